"""Clients per second of one round of second-order MAML on real MovieLens clients.

Ours and a plain torch loop take turns, round by round, on the same clients, instances, model and
parameters. Ours is timed from the draw of the cohort to the new parameters.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engine import ask_peer, check_same, start_peer, workload_arrays
from figures import Figure
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.algorithms.reptile.dssm import network_of
from privrec.algorithms.reptile.pack import PackedTask
from privrec.algorithms.reptile.phase import maml_training, one_stage
from privrec.core.phase import Phase
from privrec.core.round import cohort_draw, play_round
from privrec.data.sources import load
from scale import surroundings

COHORT, RATE, ROUNDS = 30, 0.5, 10
PEER = "torch loop"


def maml() -> list[Figure]:
    """Return our speed against the peer's."""
    settings = {
        "cohort": COHORT,
        "local_lr": RATE,
        "inner_steps": 1,
        "second_order": True,
        "negatives": 4,
        "batch_size": 64,
        "server_optimizer": "plain",
        "server_lr": 1.0,
    }
    prepared = prepare(configure("nn-self", "movielens-1m", settings), load("movielens-1m"))
    config, federation, split = (
        prepared.task.settings,
        prepared.task.federation,
        prepared.task.split,
    )
    network = network_of(config, federation.catalogue)  # type: ignore[arg-type]
    training = maml_training(prepared.task, network)  # type: ignore[arg-type]
    (phase,) = one_stage(maml_training, prepared.task)
    state = phase.start(None)
    phase.device.prepare(state.params)
    draw = cohort_draw(0, secret=False)
    tasks = [
        task
        for r in range(ROUNDS)
        for task in training.pack(
            federation.take(phase.release.sampling.draw(split.train, draw(r))), r
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "workload.npz"
        _write_workload(workload, prepared, state.params, tasks)
        ours, theirs = _take_turns(workload, prepared, phase)
    return [
        Figure(
            name=f"second-order MAML against {PEER}",
            value=COHORT / statistics.median(ours),
            unit="clients/s",
            against=PEER,
            against_value=COHORT / statistics.median(theirs),
        )
    ]


def _write_workload(path: Path, prepared: Plan, params: Any, tasks: Sequence[Any]) -> None:
    """Write what the peer trains on: for each client its support, then its query."""

    def places(task: PackedTask) -> Any:
        query = np.arange(int(task.begin), int(task.end))
        return np.concatenate([np.arange(int(task.support)), query])

    clients = [(task.client, places(task)) for task in tasks]
    np.savez(
        path,
        **workload_arrays(prepared.task.federation, params, clients, COHORT),
        support=np.array([int(task.support) for task in tasks]),
        # All instances of a part in one step.
        batch_size=max(int(task.size) for task in tasks),
        epochs=1,
        learning_rate=RATE,
    )


def _take_turns(workload: Path, prepared: Plan, phase: Phase) -> tuple[list[float], list[float]]:
    """Return the seconds of each round, ours and the peer's."""
    ours, theirs = [], []
    peer = start_peer("torch_maml.py", workload)
    state, around = phase.start(None), surroundings(prepared.task.federation)
    for r in range(ROUNDS):
        before = state.params
        started = time.perf_counter()
        state, _ = play_round(phase, state, around)
        jax.block_until_ready(state.params)  # type: ignore[no-untyped-call]  # JAX has no stub
        ours.append(time.perf_counter() - started)
        answer = ask_peer(peer, r)
        if r == 0:
            # Later rounds begin with parameters that differ in the last bit, and that grows.
            check_same(PEER, answer["checksum"], before, state.params)
        theirs.append(answer["seconds"])
    peer.communicate()
    return ours, theirs
