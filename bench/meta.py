"""Seconds of a round of second-order MAML against other ways to train, on the same network.

All take turns, round by round, on the same people and cohorts of MovieLens. A round is timed from
the draw of its cohort to the new parameters, and the first one of each is not counted. The paper:
MAML takes 1.1 to 1.3 times as long as Reptile.
"""

import statistics
import time

import jax

from figures import Figure
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Phase, ServerState
from privrec.core.round import play_round
from privrec.data.sources import load
from scale import surroundings

DATA, COHORTS, ROUNDS = "movielens-1m", (5, 10, 20, 30, 40), 11
MAML = "second-order MAML"
ONE_PASS = {"batch_size": 32, "local_epochs": 1, "local_steps": 0, "whole_batch": False}
ONE_STEP = {"batch_size": 128, "local_epochs": 1, "whole_batch": True}
HALVES = {"batch_size": 128, "inner_steps": 1}
CONTENDERS = {
    "Reptile": ("privrec", ONE_PASS),
    "Reptile, one step": ("privrec", ONE_STEP),
    "first-order MAML": ("nn-self", {**HALVES, "second_order": False}),
    MAML: ("nn-self", {**HALVES, "second_order": True}),
}


def meta() -> list[Figure]:
    """Return the median time of a round of MAML against that of each other contender."""
    figures = []
    for cohort in COHORTS:
        seconds = _take_turns(cohort)
        figures += [
            Figure(
                name=f"a round of {MAML}, {cohort} people",
                value=1000 * seconds[MAML],
                unit="ms",
                against=name,
                against_value=1000 * seconds[name],
            )
            for name in CONTENDERS
            if name != MAML
        ]
    return figures


def _take_turns(cohort: int) -> dict[str, float]:
    whole, usual = load(DATA), configure("privrec", DATA, {})
    # The same people, instances and network for all; only training on a device differs.
    same = {
        "negatives": usual.negatives,
        "dislike_target": usual.dislike_target,
        "sampling": "fixed",
        "server_optimizer": usual.server_optimizer,
        "cohort": cohort,
    }
    phases: dict[str, Phase] = {}
    states: dict[str, ServerState] = {}
    for name, (recipe, settings) in CONTENDERS.items():
        prepared = prepare(configure(recipe, DATA, {**settings, **same}), whole)
        (phases[name],) = prepared.stages()  # type: ignore[assignment]
        states[name] = phases[name].start(None)
        phases[name].device.prepare(states[name].params)
    around = surroundings(prepared.task.federation)
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS + 1):
        for name, phase in phases.items():
            started = time.perf_counter()
            states[name], _report = play_round(phase, states[name], around)
            jax.block_until_ready(states[name].params)  # type: ignore[no-untyped-call]
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}
