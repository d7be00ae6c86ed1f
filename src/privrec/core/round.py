"""The one round that every recipe plays."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from privrec.core.phase import (
    CentralFit,
    Cohort,
    Executor,
    Phase,
    Publish,
    RoundReport,
    ServerState,
    Stage,
)
from privrec.data.clients import Clients
from privrec.privacy.aggregate import CohortTotal
from privrec.seeds import rng, secret_rng
from privrec.types import IntArray

Draw = Callable[[int], np.random.Generator]
"""The randomness of a round's cohort, by the round's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a round needs besides its phase: people's devices, what runs them, and the two books.

    `take` reads the data on people's devices, `run` adds up a cohort, `draw` has the randomness of
    cohorts, and `publish` adds the noise and writes the ledger.
    """

    take: Callable[[IntArray], Clients]
    run: Executor
    draw: Draw
    publish: Publish


def cohort_draw(seed: int, *, secret: bool) -> Draw:
    """Return the generator for sampling cohorts: from the seed, or from the operating system.

    Sampling amplifies privacy only if nobody can predict the cohort. So secure noise goes with
    secret sampling.
    """
    return lambda round_index: secret_rng() if secret else rng(seed, round_index, "cohort")


def play_round(
    phase: Phase, state: ServerState, around: Surroundings
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round: draw, tell, contribute, publish, absorb."""
    report = RoundReport(round_index=state.round_index, clients=None, loss=None)

    def add_up() -> CohortTotal:
        nonlocal report
        people = phase.release.sampling.draw(phase.population, around.draw(state.round_index))
        cohort, told = Cohort(people, around.take), phase.tell(state)
        total = around.run(phase, told, cohort, state.round_index, state.clip_norm)
        answered = len(people) - total.dropped - total.skipped
        report = RoundReport(
            round_index=state.round_index,
            clients=len(people),
            loss=None if total.loss is None else total.loss / max(answered, 1),
            clipped=total.clipped,
            dropped=total.dropped,
            skipped=total.skipped,
        )
        return total._replace(clients=len(people))

    published = around.publish(state, add_up)
    after = phase.absorb(state, published)
    return replace(after, round_index=state.round_index + 1, clip_norm=published.clip_norm), report


def play_stage_round(
    stage: Stage, state: ServerState, around: Surroundings
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round of a phase or of a central fit."""
    if isinstance(stage, CentralFit):
        around.publish(state, lambda: CohortTotal({}))  # Writes the ledger line; there is no sum.
        return stage.play(state)
    return play_round(stage, state, around)
