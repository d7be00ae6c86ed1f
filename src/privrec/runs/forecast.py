"""Estimates the time and memory of a run on this machine from a short measured sample.

For each stage, one round is computed with some of its people, and the result is thrown away.
Nothing is published or written, and no test person's data is used.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from privrec.algorithms.recipe import Candidates, Plan
from privrec.core.phase import (
    CentralFit,
    Cohort,
    Exchange,
    Phase,
    ServerState,
    ServerWork,
    Stage,
    Told,
    silent,
)
from privrec.core.round import fastest
from privrec.privacy.aggregate import CohortTotal
from privrec.privacy.release import secure, seeded
from privrec.runs.evaluate import VALIDATED, validate
from privrec.seeds import rng
from privrec.simulate.cost import NOISE_COPIES, multiply_speed, process_memory
from privrec.types import IntArray, Params

_FEWEST, _MOST, _TIMES = 16, 4096, 4
"""The people in the smallest and largest sample of a round, and the factor between samples."""
_AGAIN = 1.5
"""A sample that takes this many times longer than in proportion to its people is assumed to include
a compilation. Chosen by hand."""
_LONG = 5.0
"""The seconds that a larger sample may be expected to take. Chosen by hand."""
_TOO_LONG = 60.0
"""A call that takes this many seconds is not timed again without its compilation, which takes less
time. Chosen by hand."""
_LOOKED_AT = 128
"""The number of validation people in a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The estimated seconds (None: no estimate) and peak memory in bytes of one stage."""

    stage: str
    time_seconds: float | None
    peak_bytes: int


class _Sample(NamedTuple):
    """The measurements of a stage: seconds of all rounds, bytes, and parameters after the sample.

    `seconds` includes `solving`, the seconds of the computation after the last round. `published`
    is the size of a round's published sum in bytes.
    """

    seconds: float | None
    bytes: int
    params: Params
    solving: float = 0.0
    published: int = 0


def forecast(prepared: Plan) -> tuple[Forecast, ...]:
    """Return the estimated time and memory of each stage of a run on this machine."""
    found: list[Forecast] = []
    params: Params | None = None
    for stage in prepared.stages():
        state = stage.start(params)
        if isinstance(stage, Phase):
            sample = _of_phase(prepared, stage, state)
        elif isinstance(stage, Exchange):
            sample = _Sample(None, 2 * _size(state.params), state.params)
        else:
            sample = _of_fit(stage, state)
        params, seconds = sample.params, sample.seconds
        if seconds is not None:
            seconds += _of_validation(prepared, stage, params)
        # Without the parameters before and after the sample, which `sample.bytes` includes.
        peak = _process_without(state, params) + sample.bytes
        found.append(Forecast(stage=stage.name, time_seconds=seconds, peak_bytes=peak))
    return tuple(found)


def of_choice(candidates: Sequence[Candidates]) -> Forecast:
    """Return the estimated time and memory of comparing these candidates on this machine."""
    seconds, peak = 0.0, 0
    for some in candidates:
        params: Params | None = None
        for stage in some.stages:
            state = stage.start(params)
            sample = _of_phase(some.plan, stage, state)  # type: ignore[arg-type]
            params = sample.params
            asking = (sample.seconds or 0.0) - sample.solving
            seconds += some.sums * asking + some.solved * sample.solving
            beside = sample.published + 2 * _size(params) if some.beside else 0
            peak = max(peak, _process_without(state, params) + sample.bytes + beside)
        if params and some.looks:
            few = min(some.people, _LOOKED_AT)
            looking, _ = _timed_again(partial(some.look, params, few))
            seconds += some.looks * looking * some.people / max(few, 1)
    return Forecast(stage="choice", time_seconds=seconds, peak_bytes=peak)


def _process_without(state: ServerState, params: Params) -> int:
    """Return the bytes of this process without the parameters before and after a sample."""
    gc.collect()  # Frees the sample's objects, which are not part of the run.
    return max(0, process_memory() - _size((state.params, state.opt_state, params)))


def _of_phase(prepared: Plan, phase: Phase, state: ServerState) -> _Sample:
    before, _ = _timed(lambda: phase.device.prepare(state.params))
    phase.tell(state)
    telling, told = _timed(lambda: phase.tell(state))
    cohort = phase.release.sampling.cohort
    people = _some(phase.population, min(cohort, _MOST))
    sample = Cohort(people, prepared.task.federation.take)
    run = partial(_total_of_first, phase, state, told, sample)
    compiling, asking, count, total = _grown(run, cohort)
    # Scale the sum to the whole cohort, because the server's work may depend on the numbers.
    scale = cohort / max(count, 1)
    update = {name: np.asarray(leaf) * scale for name, leaf in total.update.items()}
    total = total._replace(update=update, clients=cohort)
    noise = (
        secure() if prepared.task.settings.budget.draws_in_secret else seeded(rng(0, 0, "forecast"))
    )
    publishing, published = _timed(
        partial(phase.aggregator.publish_round, total, state.clip_norm, noise)
    )
    del total, update
    work = None if phase.work is None else phase.work(told)
    if work is None:
        noised = phase.release.is_private
        copies = NOISE_COPIES if noised else 3
        needed = 2 * _size((state.params, state.opt_state)) + 2 * _size(told)
        needed += copies * _size(published.update)
    else:
        needed = work.bytes
    rounds, last, summed = phase.rounds, _seconds_after(work), _size(published.update)
    seconds = before + compiling + rounds * (telling + asking + publishing)
    if rounds == 1 and last is not None:
        return _Sample(seconds + last, needed, state.params, last, summed)
    absorbing, after = _timed_again(lambda: phase.absorb(state, published))
    last = absorbing if last is None else last
    seconds += (rounds - 1) * absorbing + last
    return _Sample(seconds, needed, after.params, last, summed)


def _total_of_first(
    phase: Phase, state: ServerState, told: Told, sample: Cohort, count: int
) -> CohortTotal:
    chosen = sample._replace(people=sample.people[:count])
    return fastest(phase, told, chosen, state.round_index, state.clip_norm)


def _of_fit(fit: CentralFit, state: ServerState) -> _Sample:
    """Return the measurements for a stage that trains on all data in one place."""
    work = None if fit.work is None else fit.work(None)
    needed = 3 * _size((state.params, state.opt_state)) if work is None else work.bytes
    if fit.read is not None:
        compiling, reading, _, _ = _grown(fit.read, fit.release.sampling.cohort)
        seconds = compiling + reading + (_seconds_after(work) or 0.0)
        return _Sample(seconds, needed, state.params)
    first, (state, _) = _timed(lambda: fit.play(state, silent))
    later = first
    if first < _TOO_LONG and fit.rounds > 1:
        later, (state, _) = _timed(lambda: fit.play(state, silent))
    return _Sample(first + (fit.rounds - 1) * later, needed, state.params)


def _grown(run: Callable[[int], Any], whole: int) -> tuple[float, float, int, Any]:
    """Return the seconds of compiling `run`, those of `run(whole)`, the largest count, its result.

    While a call is short, the next one has `_TIMES` as many people. The seconds of `run(whole)` are
    extrapolated from the last two calls: their difference gives the seconds per person, and the
    rest of a round takes the same time for any number of people.
    """
    count = min(_FEWEST, whole)
    seconds, found = _timed(partial(run, count))
    compiling = 0.0
    if seconds < _TOO_LONG:
        once = seconds
        seconds, found = _timed(partial(run, count))
        compiling = max(0.0, once - seconds)
    # The seconds per person are not known yet. For a long sample, assume a time in proportion.
    slope = 0.0 if seconds < _LONG else seconds / max(count, 1)
    while (more := min(_TIMES * count, whole, _MOST)) > count:
        if seconds + slope * (more - count) > _LONG:
            break
        del found
        longer, found = _timed(partial(run, more))
        # So much more time means that something was compiled again.
        if longer > _AGAIN * _TIMES * seconds:
            once = longer
            longer, found = _timed(partial(run, more))
            compiling += max(0.0, once - longer)
        slope = max(0.0, longer - seconds) / (more - count)
        count, seconds = more, longer
    return compiling, seconds + slope * (whole - count), count, found


def _of_validation(prepared: Plan, stage: Stage, params: Params) -> float:
    """Return the seconds of all validations between the rounds of a stage."""
    config, people = prepared.task.settings, prepared.task.split.validation[:VALIDATED]
    looks = sum(config.validates_after(k, stage.rounds) for k in range(1, stage.rounds + 1))
    if not (looks and config.budget.shows_raw_figures and stage.ranks and len(people) and params):
        return 0.0
    few = min(len(people), _LOOKED_AT)
    seconds, _ = _timed_again(lambda: validate(prepared, params, few))
    return looks * seconds * len(people) / few


def _seconds_after(work: ServerWork | None) -> float | None:
    """Return the seconds of the server's work after the last round; None if not estimated."""
    return work.multiply_adds / multiply_speed() if work and work.multiply_adds else None


def _size(tree: Any) -> int:
    """Return the bytes of all different arrays."""
    arrays = {id(leaf): int(np.asarray(leaf).nbytes) for leaf in jax.tree.leaves(tree)}
    return sum(arrays.values())


def _some(people: IntArray, count: int) -> IntArray:
    """Return a sample of people in random order, so that its first people are a sample too."""
    return people[rng(0, 0, "forecast").choice(len(people), min(count, len(people)), replace=False)]


def _timed_again(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the result of `_timed` without the time of compilation, from a second call."""
    seconds, found = _timed(call)
    return _timed(call) if seconds < _TOO_LONG else (seconds, found)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call until its result is computed, and the result."""
    started = time.perf_counter()
    found = call()
    # JAX returns before the arrays are computed, so wait for them.
    for leaf in jax.tree.leaves(getattr(found, "params", None)):
        leaf.block_until_ready()
    return time.perf_counter() - started, found
