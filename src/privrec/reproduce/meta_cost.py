"""Measures the seconds of a round of second-order MAML and of other trainings of the same network.

The trainings take turns after each round, with the same people and cohorts. A round is timed from
the draw of its cohort to the new parameters. The first round of each training is left out. The
paper says that MAML takes 1.1 to 1.3 times as long as Reptile.
"""

import statistics
import time

import jax

from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Phase, ServerState, Unwritten
from privrec.core.round import Surroundings, cohort_draw, fastest, play_round
from privrec.data.federation import Federation

MAML, REPTILE = "MAML, second order", "Reptile"
_ONE_PASS = {"batch_size": 32, "local_epochs": 1, "local_steps": 0, "whole_batch": False}
_ONE_STEP = {"batch_size": 128, "local_epochs": 1, "whole_batch": True}
_HALVES = {"batch_size": 128, "inner_steps": 1}
CONTENDERS = {
    REPTILE: ("privrec", _ONE_PASS),
    "Reptile, one step": ("privrec", _ONE_STEP),
    "MAML, first order": ("nn-self", {**_HALVES, "second_order": False}),
    MAML: ("nn-self", {**_HALVES, "second_order": True}),
}


def seconds_of_rounds(whole: Federation, *, cohort: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of a round by the name of the training in `CONTENDERS`."""
    usual = configure("privrec", whole.name, {})
    # The trainings differ only in what a device does.
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
        prepared = prepare(configure(recipe, whole.name, {**settings, **same}), whole)
        (phases[name],) = prepared.stages()  # type: ignore[assignment]
        states[name] = phases[name].start(None)
        phases[name].device.prepare(states[name].params)
    draw = cohort_draw(0, secret=False)
    around = Surroundings(
        take=prepared.task.federation.take, run=fastest, draw=draw, journal=Unwritten()
    )
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds + 1):
        for name, phase in phases.items():
            started = time.perf_counter()
            states[name], _report = play_round(phase, states[name], around)
            jax.block_until_ready(states[name].params)  # type: ignore[no-untyped-call]
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}
