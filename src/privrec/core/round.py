"""The one round that every recipe plays."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from privrec.core.phase import CentralFit, Phase, Publish, RoundReport, ServerState, Stage
from privrec.privacy.aggregate import CohortTotal
from privrec.seeds import rng, secret_rng

Draw = Callable[[int], np.random.Generator]
"""The randomness of a round's cohort, by the round's number."""


def cohort_draw(seed: int, *, secret: bool) -> Draw:
    """Return the generator for sampling cohorts: from the seed, or from the operating system.

    Sampling amplifies privacy only if nobody can predict the cohort. So secure noise goes with
    secret sampling.
    """
    return lambda round_index: secret_rng() if secret else rng(seed, round_index, "cohort")


def play_round(
    phase: Phase, state: ServerState, *, draw: Draw, publish: Publish
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round: draw, tell, contribute, publish, absorb."""
    report = RoundReport(round_index=state.round_index, clients=None, loss=None)

    def add_up() -> CohortTotal:
        nonlocal report
        sampling = phase.release.sampling
        cohort = sampling.draw(phase.population, draw(state.round_index))
        total = phase.add_up(phase.tell(state), cohort, state.round_index, state.clip_norm)
        answered = len(cohort) - total.dropped - total.skipped
        report = RoundReport(
            round_index=state.round_index,
            clients=len(cohort),
            loss=None if total.loss is None else total.loss / max(answered, 1),
            clipped=total.clipped,
            dropped=total.dropped,
            skipped=total.skipped,
        )
        return total._replace(clients=len(cohort))

    published = publish(state, add_up)
    after = phase.absorb(state, published)
    return replace(after, round_index=state.round_index + 1, clip_norm=published.clip_norm), report


def play_stage_round(
    stage: Stage, state: ServerState, *, draw: Draw, publish: Publish
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round of a phase or of a central fit."""
    if isinstance(stage, CentralFit):
        publish(state, lambda: CohortTotal({}))  # Writes the ledger line; there is no sum.
        return stage.play(state)
    return play_round(stage, state, draw=draw, publish=publish)
