"""What a run takes on this machine, estimated from a sample: by a clock that the test moves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commands import document, done
from privrec.algorithms.privrec_plus import solve
from privrec.algorithms.privrec_plus.recipe import PRIVREC_PLUS
from privrec.algorithms.recipe import Candidates
from privrec.algorithms.recipes import configure, prepare
from privrec.data.clients import Clients
from privrec.data.sources import load
from privrec.runs import forecast
from privrec.runs.api import plan
from privrec.types import IntArray
from tiny import DATA, MODEL, as_options


class Clock:
    """Stands in for `time`: it stands still, but for what `spend` and `tick` say."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("whole", [5, 100, 4738, 10**7])
def test_a_round_is_a_fixed_part_and_a_part_for_each_person(
    whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    asked: list[int] = []
    monkeypatch.setattr(forecast, "time", clock)

    def run(count: int) -> int:
        clock.spend(0.25 + 0.001 * count + (3.0 if not asked else 0.0))  # Compiles once.
        asked.append(count)
        return count

    compiling, seconds, count, found = forecast._grown(run, whole)
    assert compiling == pytest.approx(3.0)
    assert seconds == pytest.approx(0.25 + 0.001 * whole)
    assert count == found == max(asked) == min(whole, 4096)


def test_a_slow_round_is_not_sampled_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    asked: list[int] = []
    monkeypatch.setattr(forecast, "time", clock)

    def run(count: int) -> None:
        clock.spend(0.1 * count)
        asked.append(count)

    _, seconds, _, _ = forecast._grown(run, 1000)
    assert seconds == pytest.approx(100)
    assert asked == [16, 16, 64]  # 256 people would take 26 seconds.
    asked.clear()
    assert forecast._grown(lambda count: run(10 * count), 1000)[1] == pytest.approx(1000)
    assert asked == [160, 160]
    asked.clear()
    assert forecast._grown(lambda count: run(100 * count), 1000)[1] == pytest.approx(10_000)
    assert asked == [1600]  # Nothing compiles for minutes.


def test_what_is_compiled_counts_once_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round of 200 people was said to take as long as 200 compilations."""
    clock = Clock()
    asked: list[int] = []
    monkeypatch.setattr(forecast, "time", clock)

    def run(count: int) -> None:
        clock.spend(0.5 + (20.0 if not asked else 0.0))
        asked.append(count)

    compiling, seconds, _, _ = forecast._grown(run, 200)
    assert [compiling, seconds] == pytest.approx([20.0, 0.5])
    asked.clear()
    assert forecast._timed_again(lambda: run(1))[0] == pytest.approx(0.5)


def test_what_a_larger_sample_compiles_counts_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    known: set[int] = set()
    monkeypatch.setattr(forecast, "time", clock)

    def run(count: int) -> None:
        size = -(-count // 64)
        clock.spend(0.01 + 0.001 * count + (0.0 if size in known else 2.0))
        known.add(size)

    compiling, seconds, count, _ = forecast._grown(run, 200)
    assert [compiling, seconds, count] == pytest.approx([4.0, 0.21, 200])


CHOOSING = {"rounds": 0, "history": "subspace", "subspace_rank": 8, "subspace_rounds": 3}
MANY = "synthetic:users=500,items=300,longest=40"


@pytest.mark.slow
def test_the_choice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "time", Clock(tick=1.0))
    monkeypatch.setattr(forecast, "multiply_speed", lambda: 1e30)
    task = prepare(configure("privrec-plus", MANY, CHOOSING), load(MANY)).task
    assert PRIVREC_PLUS.choice is not None
    ahead = PRIVREC_PLUS.choice.ahead(task, CHOOSING)
    assert ahead is not None

    def seconds(some: Candidates) -> float:
        return forecast.of_choice([some]).time_seconds or 0.0

    usual = ahead.candidates[0]
    usual = usual._replace(sums=1, solved=0, looks=0)
    once = seconds(usual)
    # Both stages compile once; a round tells, asks, publishes; of three, two are absorbed.
    assert once == (1 + 3) + (1 + 3 * 3 + 2)
    assert seconds(usual._replace(sums=3)) == 3 * once
    # The closed form takes no time here; that popularity is absorbed counts as solving.
    assert seconds(usual._replace(solved=5)) == pytest.approx(once + 5)
    looked = seconds(usual._replace(looks=2))
    assert looked - once == pytest.approx(2 * usual.people / min(usual.people, 128))
    alone, beside = (
        forecast.of_choice([usual._replace(beside=is_beside)]).peak_bytes
        for is_beside in (False, True)
    )
    assert beside > alone


@pytest.mark.slow
def test_a_dry_run_is_of_the_largest_run_that_may_be_chosen() -> None:
    found = plan("privrec-plus", MANY, **{**CHOOSING, "subspace_rank": 16})
    assert [stage.name for stage in found.stages] == ["popularity", "subspace", "pairs"]
    assert found.choice is not None
    parts = [share.time_seconds or 0.0 for share in (found.choice, *found.machine)]
    assert found.time_seconds == pytest.approx(sum(parts))
    assert found.as_json()["choice"]["time_seconds"] == parts[0] > 0
    fixed = plan("privrec-plus", MANY, choose=False, **CHOOSING)
    assert fixed.choice is None
    assert fixed.as_json()["choice"] is None
    assert "settings are chosen first: " in done(
        "train", "privrec-plus", "--data", MANY, "--dry-run", *as_options(CHOOSING)
    )


@pytest.mark.slow
def test_rounds_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever is measured takes one second.
    monkeypatch.setattr(forecast, "time", Clock(tick=1.0))

    def seconds(rounds: int, every: int) -> float | None:
        settings = {**MODEL, "rounds": rounds, "validate_every": every, "validation_share": 0.3}
        prepared = prepare(configure("privrec", DATA, settings), load(DATA))
        (found,) = forecast.forecast(prepared)
        return found.time_seconds

    # Compile once; then a round tells, asks, publishes and absorbs.
    assert seconds(3, 0) == 1 + 4 * 3
    assert seconds(10, 0) == 1 + 4 * 10
    assert seconds(10, 5) == 1 + 4 * 10 + 2


@pytest.mark.slow
def test_nothing_is_solved_and_nobody_is_asked_who_is_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no(*_: Any, **__: Any) -> Any:
        raise AssertionError("a dry run must not solve")

    monkeypatch.setattr(solve, "regression", no)
    settings = {"rounds": 2, "cohort": 8, "validate_every": 1, "validation_share": 0.3}
    data, asked = load(DATA), []

    def take(positions: IntArray) -> Clients:
        asked.extend(positions.tolist())
        return data.take(positions)

    prepared = prepare(configure("privrec-plus", DATA, settings), replace(data, take=take))
    stages = forecast.forecast(prepared)
    assert [share.stage for share in stages] == ["popularity", "moments", "train"]
    assert set(asked) <= {
        *prepared.task.split.train.tolist(),
        *prepared.task.split.validation.tolist(),
    }
    assert set(asked) & set(prepared.task.split.validation.tolist())
    assert len(prepared.task.split.test)


def test_the_server_sees_sums_of_the_size_of_the_whole_cohort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the noise would leave fewer items for the second sum than in the run itself."""
    monkeypatch.setattr(forecast, "_MOST", 16)
    data = load("synthetic:users=640,items=40,longest=20")
    settings = {"rounds": 0, "noise_multiplier": 1e-6, "delta": 1e-4, "noise": "seeded"}
    prepared = prepare(configure("dp-privrec-plus", data.name, settings), data)
    first = prepared.stages()[0]
    sample = forecast._of_phase(prepared, first, first.start(None))  # type: ignore[arg-type]
    found = np.asarray(sample.params["items/popularity"])
    # Each person adds a vector of length 1 and of at most 20 items: a sum between 1 and √20.
    assert len(prepared.task.split.train) <= found.sum() <= len(prepared.task.split.train) * 20**0.5


@pytest.mark.slow
def test_what_is_said(scratch: Any) -> None:
    words = ("train", "privrec-plus", "--data", DATA, "--dry-run", "--set", "rounds=0")
    found = document(*words, "--json")
    shares = found["stages"]
    assert found["time_seconds"] == pytest.approx(sum(share["time_seconds"] for share in shares))
    assert found["peak_bytes"] == max(share["peak_bytes"] for share in shares) > 10**7
    assert found["items"] == {"in_catalogue": 40, "with_vector": 40}
    text = done(*words)
    assert "on this machine, estimated from a sample: about" in text
    assert " of memory" in text
    # Data in one place is read, and a matrix inverted; nothing of that is in a sample's way.
    assert document("train", "ease", "--data", DATA, "--dry-run", "--json")["time_seconds"] > 0
