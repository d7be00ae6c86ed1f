"""One round of a training; all recipes share this code."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privrec.core.bound import bounded
from privrec.core.contribution import add_to, scaled, shapes_of
from privrec.core.phase import (
    Cohort,
    Executor,
    Journal,
    Phase,
    RoundReport,
    ServerState,
    Stage,
    Told,
)
from privrec.data.clients import Clients
from privrec.privacy.aggregate import CohortTotal, Published
from privrec.seeds import rng
from privrec.types import IntArray, Leaf, OnProgress

Draw = Callable[[int], np.random.Generator | None]
"""Round number -> the random generator for drawing its cohort; None for a secret draw."""

Begun = Callable[[int], IntArray | None]
"""Round number -> the cohort that was drawn before the process was killed, or None. A resumed round
must use the same cohort."""


def tell_nobody(what: str, done: int, total: int) -> None:
    """Report no progress."""


def none_begun(round_index: int) -> IntArray | None:
    """Return None, because no round was begun before."""
    return None


PEOPLE, SERVER = "people in this round", "the server's part"
"""The names of the two steps of a round, as shown in a progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a round needs besides its phase.

    `take` reads the data on people's devices. `run` returns the sum over a cohort. `draw` returns
    the random generator for a cohort, and `begun` a cohort that was already drawn. `journal`
    provides the noise, and writes the published sums and the ledger. `on_step` receives the
    progress of the round; several threads may call it.
    """

    take: Callable[[IntArray], Clients]
    run: Executor
    draw: Draw
    journal: Journal
    on_step: OnProgress = tell_nobody
    begun: Begun = none_begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Cohorts on other machines: `run` returns the sum over a cohort; `about` is for the ledger."""

    run: Executor
    about: Mapping[str, Any]
    begun: Begun = none_begun


def cohort_draw(seed: int, *, secret: bool) -> Draw:
    """Return the function from a round number to the random generator for the round's cohort.

    Sampling amplifies privacy only if nobody can predict the cohort. So runs with secure noise draw
    cohorts in secret: the function then returns None.
    """
    return lambda round_index: None if secret else rng(seed, round_index, "cohort")


def play_round(
    phase: Phase, state: ServerState, around: Surroundings
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round, and the report of the round.

    If a killed process had already written the release of this round, the release is read from disk
    and devices do not contribute again.
    """
    round_index, clip_norm = state.round_index, state.clip_norm
    report = RoundReport(round_index=round_index, clients=None, loss=None)
    published = around.journal.kept(state)
    if published is None:
        people = around.begun(round_index)
        if people is None:
            people = phase.release.sampling.draw(phase.population, around.draw(round_index))
        cohort = Cohort(people, around.take, PeopleDone(around.on_step, len(people)))
        total = around.run(phase, phase.tell(state), cohort, round_index, clip_norm)
        total = total._replace(clients=len(people))
        report = report_of(round_index, total)
        noise = around.journal.noise(state)
        published = phase.aggregator.publish_round(total, clip_norm, noise)
        del total  # Keep only the noised sum.
        around.journal.write(state, published)
    around.on_step(SERVER, 0, 1)
    after = phase.absorb(state, published)
    return replace(after, round_index=round_index + 1, clip_norm=published.clip_norm), report


def report_of(round_index: int, total: CohortTotal) -> RoundReport:
    """Return the report of a round; its loss is the mean over clients with a usable update."""
    answered = total.clients - total.dropped - total.skipped
    return RoundReport(
        round_index=round_index,
        clients=total.clients,
        loss=total.loss / answered if total.loss is not None and answered else None,
        clipped=total.clipped,
        dropped=total.dropped,
        skipped=total.skipped,
    )


class PeopleDone:
    """Counts the people of a round who are done; several threads may call the counter."""

    def __init__(self, on_step: OnProgress, total: int) -> None:
        self._on_step, self._total, self._done = on_step, total, 0
        self._lock = threading.Lock()
        on_step(PEOPLE, 0, total)

    def __call__(self, count: int) -> None:
        """Add `count` people, and report the progress."""
        with self._lock:
            self._done += count
            done = self._done
        # After all people, only the server's work is left: adding noise, writing, solving.
        step = (SERVER, 0, 1) if done >= self._total else (PEOPLE, done, self._total)
        self._on_step(*step)


def one_by_one(
    phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
) -> CohortTotal:
    """Return the sum of the cohort's bounded contributions by a plain loop.

    This loop is slow. Tests compare kernels with it.
    """
    # The contribution of a device without data gives the names and shapes of all sums.
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
    """Return the same sum as `one_by_one`, by the algorithm's kernel if it has one."""
    kernel = phase.device.kernel
    if kernel is None:
        return one_by_one(phase, told, cohort, round_index, clip_norm)
    return kernel(told, cohort, round_index, clip_norm)


def play_stage_round(
    stage: Stage, state: ServerState, around: Surroundings
) -> tuple[ServerState, RoundReport]:
    """Return the state after one more round of a phase or of a central fit, and its report."""
    if isinstance(stage, Phase):
        return play_round(stage, state, around)
    around.journal.write(state, Published({}, state.clip_norm))  # A central fit has no sum.
    return stage.play(state, PeopleDone(around.on_step, stage.release.sampling.cohort))
