"""The one round that every recipe plays."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privrec.core.contribution import add_to, bounded, scaled, shapes_of
from privrec.core.phase import (
    Advance,
    Cohort,
    Exchange,
    Executor,
    Phase,
    Publish,
    RoundReport,
    ServerState,
    Stage,
    Told,
)
from privrec.data.clients import Clients
from privrec.privacy.aggregate import CohortTotal, Published
from privrec.privacy.release import NoiseSource
from privrec.seeds import rng
from privrec.types import IntArray, Leaf

Draw = Callable[[int], np.random.Generator | None]
"""The randomness of a round's cohort, by the round's number; None draws in secret."""

Begun = Callable[[int], IntArray | None]
"""The people of a round that was begun before a kill and must be ended with them, or None."""

OnStep = Callable[[str, int, int], None]
"""(name of a step inside a round, how much is done, how much there is)"""


def tell_nobody(what: str, done: int, total: int) -> None:
    """Tell nobody how far a step is."""


def none_begun(round_index: int) -> IntArray | None:
    """Return None: no round was begun before."""
    return None


PEOPLE, SERVER = "people in this round", "the server's part"
"""The steps of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a round needs besides its phase.

    `take` reads the data on people's devices. `run` adds up a cohort. `draw` has the randomness of
    cohorts, and `begun` a cohort that was drawn already. `publish` gives the source of noise, and
    writes what was published and the ledger. `on_step` is told how far the round is; several
    threads may call it.
    """

    take: Callable[[IntArray], Clients]
    run: Executor
    draw: Draw
    publish: Publish
    on_step: OnStep = tell_nobody
    begun: Begun = none_begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Cohorts on other machines: what adds them up, and what ledger lines say about it."""

    run: Executor
    about: Mapping[str, Any]
    begun: Begun = none_begun


def cohort_draw(seed: int, *, secret: bool) -> Draw:
    """Return the generator for sampling cohorts: from the seed, or none for a secret draw.

    Sampling amplifies privacy only if nobody can predict the cohort. So secure noise goes with
    secret sampling.
    """
    return lambda round_index: None if secret else rng(seed, round_index, "cohort")


def play_round(
    phase: Phase, state: ServerState, around: Surroundings
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round: draw, tell, contribute, publish, absorb."""
    report = RoundReport(round_index=state.round_index, clients=None, loss=None)

    def play(noise: NoiseSource) -> Published:
        nonlocal report
        people = around.begun(state.round_index)
        if people is None:
            people = phase.release.sampling.draw(phase.population, around.draw(state.round_index))
        told = phase.tell(state)
        cohort = Cohort(people, around.take, _counting(around.on_step, len(people)))
        total = around.run(phase, told, cohort, state.round_index, state.clip_norm)
        answered = len(people) - total.dropped - total.skipped
        report = RoundReport(
            round_index=state.round_index,
            clients=len(people),
            loss=total.loss / answered if total.loss is not None and answered else None,
            clipped=total.clipped,
            dropped=total.dropped,
            skipped=total.skipped,
        )
        total = total._replace(clients=len(people))
        return phase.aggregator.publish_round(total, state.clip_norm, noise)

    published = around.publish(state, play)
    around.on_step(SERVER, 0, 1)
    after = phase.absorb(state, published)
    return replace(after, round_index=state.round_index + 1, clip_norm=published.clip_norm), report


def one_by_one(
    phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
) -> CohortTotal:
    """Return the sum of the cohort's bounded contributions by a plain loop: the slow truth."""
    # What a device without data would send has the names and shapes of all sums, and adds nothing.
    nobody = cohort.take(phase.population[:1])
    nobody = nobody.keep(np.zeros(len(nobody.item), np.bool_))
    blank = phase.device.contribute(told, nobody, round_index)
    expected = shapes_of(blank)
    if expected is None:
        raise ValueError(f"{phase.name}: `contribute` returns an unsound contribution")
    total: dict[str, Leaf] = {}
    add_to(total, scaled(blank, 0.0))
    clipped = dropped = 0
    norm = phase.aggregator.norm
    for position in cohort.people:
        sent = phase.device.contribute(told, cohort.take(np.array([position])), round_index)
        cohort.advance(1)
        found = bounded(sent, clip_norm, norm, expected=expected)
        add_to(total, found.contribution)
        clipped += found.was_long
        dropped += not found.is_finite
    return CohortTotal(total, clipped=clipped, dropped=dropped)


def fastest(
    phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
) -> CohortTotal:
    """Return the same by the kernel that the algorithm offers, or else one by one."""
    kernel = phase.device.kernel
    if kernel is None:
        return one_by_one(phase, told, cohort, round_index, clip_norm)
    return kernel(told, cohort, round_index, clip_norm)


def play_stage_round(
    stage: Stage, state: ServerState, around: Surroundings
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round of a phase, of a central fit or of an exchange."""
    if isinstance(stage, Phase):
        return play_round(stage, state, around)
    # Writes the ledger line; there is no sum.
    around.publish(state, lambda noise: Published({}, state.clip_norm))
    if isinstance(stage, Exchange):
        return stage.play(state, around.take)
    return stage.play(state, _counting(around.on_step, stage.release.sampling.cohort))


def _counting(on_step: OnStep, total: int) -> Advance:
    """Return what is told how many more people are done, by any thread."""
    done, lock = 0, threading.Lock()
    on_step(PEOPLE, 0, total)

    def advance(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            all_done = done >= total
        # What is left is to solve, or to add noise and write.
        on_step(*((SERVER, 0, 1) if all_done else (PEOPLE, done, total)))

    return advance
