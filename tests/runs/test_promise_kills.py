"""Under secure noise a kill costs only time: each release is made and used once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.core.phase import ServerState
from privrec.privacy.aggregate import Published
from privrec.runs import folder as records
from privrec.runs import ledger as ledgerfile
from privrec.runs.journal import RunJournal
from tiny import DATA, MODEL, without_features
from witness import TESTS, digest, witness

RECIPES: dict[str, dict[str, Any]] = {
    "dp-privrec-plus": {"rounds": 0, "epsilon": 8.0},
    "dp-privrec-one": {**MODEL, "rounds": 3, "epsilon": 8.0, "clip_quantile": 0.5},
}


class Killed(BaseException):
    """Simulates a kill: no code catches it."""


@contextmanager
def killed_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill before or after the n-th write to the disk.

    Even moments are before the write, odd ones after it.
    """
    left = moment

    def tick() -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*words: Any, **more: Any) -> Any:
            tick()
            found = call(*words, **more)
            tick()
            return found

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(records, "write_whole", around(records.write_whole))
        patch.setattr("privrec.runs.journal.append_release", around(ledgerfile.append_release))
        patch.setattr(records, "append_round", around(records.append_round))
        patch.setattr(records, "drop_published", around(records.drop_published))
        yield


@contextmanager
def witnessed(used: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record every published sum that a round uses."""

    def note(state: ServerState, published: Published) -> None:
        used.append((state.round_index, digest(published)))

    with monkeypatch.context() as patch:
        witness(note, patch.setattr)
        yield


def check(run: privrec.Run, used: list[tuple[int, str]], rounds: int) -> None:
    lines = [json.loads(line) for line in run.folder.ledger_path.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(rounds))
    # A round may use its sum again after a kill; never another one.
    assert sorted(dict(set(used))) == list(range(rounds))
    assert len(set(used)) == rounds
    epsilon = run.privacy().epsilon
    assert epsilon is not None
    assert 7.8 < epsilon <= 8
    assert not list(run.folder.path.glob("published-*"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dp-privrec-plus", "dp-privrec-one"])
def test_killed_at_every_write(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at every write to the disk, one after another."""
    settings, rounds = RECIPES[recipe], 2 if recipe == "dp-privrec-plus" else 3
    data = privrec.load(DATA)
    moment = 0
    while True:
        out, used = tmp_path / str(moment), []  # type: ignore[var-annotated]
        with witnessed(used, monkeypatch):
            try:
                with killed_at(moment, monkeypatch):
                    run = privrec.train(recipe, data, out=out, **settings)
            except Killed:
                resume = out.exists()
                run = privrec.train(recipe, data, out=out, resume=resume, **settings)
                check(run, used, rounds)
                moment += 1
                continue
        check(run, used, rounds)
        break
    assert moment > 8 * rounds


def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each resumed run is killed a little later, until one finishes."""
    data, out = privrec.load(DATA), tmp_path / "run"
    used: list[tuple[int, str]] = []
    settings = RECIPES["dp-privrec-plus"]
    with witnessed(used, monkeypatch):
        for moment in range(60):
            try:
                with killed_at(moment, monkeypatch):
                    run = privrec.train(
                        "dp-privrec-plus", data, out=out, resume=out.exists(), **settings
                    )
                break
            except Killed:
                continue
        else:
            pytest.fail("it never got through")
    check(run, used, 2)


def test_a_ledger_line_before_the_sum_is_paid_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Insert the old bug, in which sums were not kept: a kill then makes a second release."""
    monkeypatch.setattr(RunJournal, "_keeps", property(lambda journal: False))
    data, counts = privrec.load(DATA), set()
    settings = {**RECIPES["dp-privrec-plus"]}
    for moment in range(8, 24):
        out, used = tmp_path / str(moment), []  # type: ignore[var-annotated]
        with witnessed(used, monkeypatch):
            try:
                with killed_at(moment, monkeypatch):
                    privrec.train("dp-privrec-plus", data, out=out, **settings)
            except Killed:
                privrec.train("dp-privrec-plus", data, out=out, resume=True, **settings)
        counts.add(len(set(used)))
    assert counts > {2}


def test_a_kept_sum_that_was_tampered_with_is_not_used(tmp_path: Path) -> None:
    data, out = privrec.load(DATA), tmp_path / "run"

    def kill(*_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privrec.runs.loop.checkpoint", kill)
        with pytest.raises(Killed):
            privrec.train("dp-privrec-plus", data, out=out, **RECIPES["dp-privrec-plus"])
    kept = out / "published-0.safetensors"
    content = bytearray(kept.read_bytes())
    content[-9] ^= 1
    kept.write_bytes(content)
    # The first release is lost but counted: the rest of the budget allows no other release.
    run = privrec.train("dp-privrec-plus", data, out=out, resume=True, **RECIPES["dp-privrec-plus"])
    assert run.rounds < 2
    epsilon = run.privacy().epsilon
    assert epsilon is not None
    assert epsilon <= 8


VICTIM = """
import os, sys
import privrec
sys.path.insert(0, sys.argv.pop())
from witness import digest, witness
def note(state, published):
    with open(sys.argv[2], "a") as out:
        out.write(f"{state.round_index} {digest(published)}\\n")
witness(note)
out, data = sys.argv[1], "synthetic:users=400,items=300"
privrec.train("dp-privrec-plus", data, out=out, resume=os.path.exists(out), epsilon=8.0)
"""


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path: Path) -> None:
    """SIGKILL at random moments of real processes: each run is killed until it finishes."""
    kills, number, draw = 0, 0, random.Random(0)  # noqa: S311 (moments, not secrets)
    whole = time_of(tmp_path / "timed", tmp_path / "timed.used")
    while kills < 30:
        out, witness = tmp_path / f"run-{number}", tmp_path / f"used-{number}"
        number += 1
        while not (out / "params.safetensors").exists():
            # The machine may be faster or slower by now. After the last kill a run may take its
            # time; a run without a kill that is faster than `whole` moves the moments.
            is_new, began = not out.exists(), time.monotonic()
            victim = start(out, witness)
            moment = draw.uniform(0.5, 1.05) * whole if kills < 30 else None
            try:
                victim.wait(moment)
                whole = min(whole, time.monotonic() - began) if is_new else whole
            except subprocess.TimeoutExpired:
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
                kills += 1
        run = privrec.open_run(out)
        used = [line.split() for line in witness.read_text().splitlines()]
        assert len({tuple(line) for line in used}) == 3
        lines = [json.loads(line) for line in run.folder.ledger_path.read_text().splitlines()]
        assert [line["round"] for line in lines] == [0, 1, 2]
        epsilon = run.privacy().epsilon
        assert epsilon is not None
        assert 7.9 < epsilon <= 8


def start(out: Path, witness: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", VICTIM, str(out), str(witness), str(TESTS)])


def time_of(out: Path, witness: Path) -> float:
    start(out, witness).wait()
    began = time.monotonic()
    victim = start(out.with_name("again"), witness)
    assert victim.wait() == 0
    return time.monotonic() - began


@pytest.mark.parametrize(("features", "counted"), [(False, 2), (True, 1)])
def test_a_lost_sum_ends_the_run_and_nothing_stands_on_it(
    features: bool, counted: int, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first release is counted and lost: the rest of the budget does not allow all others."""
    people = privrec.load(DATA)
    data = people if features else without_features(people)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("privrec.runs.loop.checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            privrec.train("dp-privrec-plus", data, out="run", epsilon=8.0)
    Path("run/published-0.safetensors").unlink()
    run = privrec.train("dp-privrec-plus", data, out="run", resume=True, epsilon=8.0)
    lines = Path("run/ledger.jsonl").read_text().splitlines()
    # Popularity is released and counted again, if the rest of the budget allows it. It allows no
    # moments, and nothing after a popularity that has nearly all of the budget.
    assert [json.loads(line)["stage"] for line in lines] == ["popularity"] * counted
    assert run.rounds == counted - 1
    epsilon = run.privacy().epsilon
    assert epsilon is not None
    assert epsilon <= 8
