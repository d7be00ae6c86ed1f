"""What must not grow: a round's cost with the population, a client's with the catalogue, memory."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from figures import Figure
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.algorithms.reptile.dssm import dssm
from privrec.algorithms.reptile.local import local_sgd
from privrec.algorithms.reptile.pack import Instances, pack
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Stage, Unwritten
from privrec.core.round import Surroundings, cohort_draw, fastest, play_stage_round
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.seeds import key


def seconds_of_rounds(made: Sequence[Plan], rounds: int = 25) -> list[float]:
    """Return the median time of a round of each run's first stage; they take turns."""
    stages: list[Stage] = [prepared.stages()[0] for prepared in made]
    states = [stage.start(None) for stage in stages]
    around = [surroundings(prepared.task.federation) for prepared in made]
    for stage, state in zip(stages, states, strict=True):
        if stage.device is not None:
            stage.device.prepare(state.params)
    seconds: list[list[float]] = [[] for _ in stages]
    for turn in range(rounds + 5):
        for k, stage in enumerate(stages):
            started = time.perf_counter()
            states[k], _ = play_stage_round(stage, states[k], around[k])
            jax.block_until_ready(states[k].params)  # type: ignore[no-untyped-call]
            if turn >= 5:
                seconds[k].append(time.perf_counter() - started)
    return [statistics.median(found) for found in seconds]


def surroundings(federation: Federation) -> Surroundings:
    """Return what a round needs, with noise that is not written down: nothing is published."""
    return Surroundings(
        take=federation.take,
        run=fastest,
        draw=cohort_draw(0, secret=False),
        journal=Unwritten(),
    )


def population() -> list[Figure]:
    """Return the time of a round among ten million people against a round among a thousand."""
    experiments = {}
    for users in (1_000, 10_000_000):
        data = f"synthetic:users={users}"
        config = configure("privrec", data, {"cohort": 100})
        experiments[users] = prepare(config, load(data))
    small, large = seconds_of_rounds(list(experiments.values()))
    return [
        Figure(
            name="round among 10,000,000 people",
            value=large * 1e3,
            unit="ms",
            against="the same cohort among 1,000",
            against_value=small * 1e3,
        )
    ]


def catalogue() -> list[Figure]:
    """Return the time of one client's training with 200,000 items against 2,000.

    The same client, the same rows touched; the table around them is a hundred times as long.
    """
    federation = load("synthetic:items=2000")
    recommender = dssm(federation.schema, federation.n_items)
    local = local_sgd(recommender, learning_rate=0.05, epochs=5, batch_size=32)
    people = federation.take(np.arange(40))
    instances = Instances(negatives=4, batch_size=32)
    clients = pack(people, instances, n_items=federation.n_items, seed=0, round_index=0)
    params = recommender.init(key(0, 0, "init"))
    train = jax.jit(local)
    seconds: dict[int, list[float]] = {2_000: [], 200_000: []}
    tables = {}
    for items in seconds:
        copies = items // federation.n_items
        long = {**params, ITEM_TABLE: jnp.tile(params[ITEM_TABLE], (copies, 1))}
        bags = {
            name: type(bag)(np.tile(bag.codes, (copies, 1)), np.tile(bag.weights, (copies, 1)))
            for name, bag in federation.items.items()
        }
        tables[items] = (long, jax.device_put(bags))
    for turn in range(8):
        for items, (long, bags) in tables.items():
            started = time.perf_counter()
            for client in clients:
                train(long, bags, client).loss.block_until_ready()
            if turn > 1:
                seconds[items].append(time.perf_counter() - started)
    small, large = (statistics.median(seconds[items]) / len(clients) for items in seconds)
    return [
        Figure(
            name="one client's training among 200,000 items",
            value=large * 1e3,
            unit="ms",
            against="the same client among 2,000",
            against_value=small * 1e3,
        )
    ]


def memory() -> list[Figure]:
    """Return the peak memory of training on MovieLens-1M against the limits we set ourselves."""
    return [
        Figure(
            name=f"peak memory of {recipe} on MovieLens-1M",
            value=peak_gib(recipe, *words),
            unit="GiB",
            against=f"the limit of {limit:g} GB",
            against_value=limit * 1e9 / 2**30,
        )
        for recipe, limit, words in (
            ("privrec-paper", 2.0, ("--set", "rounds=20")),
            ("privrec-plus", 3.0, ()),
        )
    ]


def peak_gib(recipe: str, *words: str) -> float:
    """Return the most memory that `privrec train` of a recipe on MovieLens-1M had at any time."""
    return trained(recipe, "--data", "movielens-1m", *words)[1]


def trained(*words: str) -> tuple[float, float]:
    """Return the seconds of `privrec train` in a process of its own, and its peak memory in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "status"
        # The process says it itself: what wait() tells begins with the memory of the parent.
        code = (
            "import atexit, shutil; from privrec.cli.entry import main;"
            f" atexit.register(shutil.copyfile, '/proc/self/status', {str(said)!r}); main()"
        )
        run = [sys.executable, "-c", code, "train", *words, "--out", f"{folder}/run"]
        started = time.perf_counter()
        subprocess.run(run, stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - started
        (peak,) = [line for line in said.read_text().splitlines() if line.startswith("VmHWM:")]
    return seconds, int(peak.split()[1]) / 2**20
