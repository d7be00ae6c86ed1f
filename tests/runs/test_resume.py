"""A run that is killed at any moment and resumed gives the same bits as a run without a kill.

The killed processes have a separate compilation cache: a kill may damage an entry of it, and the
user's own cache must not be damaged.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.data.sources import load
from privrec.errors import RunFolderError, SettingsError
from privrec.runs import folder as records
from privrec.runs import loop
from privrec.runs.loop import train
from privrec.types import OnProgress
from tiny import DATA, MODEL, late, new_folder

ROUNDS = 40
TINY = {**MODEL, "rounds": ROUNDS, "validate_every": 0}
PROGRAM = """
import sys, time
import privrec, privrec.runs.loop
out, data, resume, settings = sys.argv[1], sys.argv[2], sys.argv[3] == "resume", eval(sys.argv[4])
privrec.runs.loop.CHECKPOINT_SECONDS = 0.05
slowly = lambda what, done, total: time.sleep(0.05 if what == "rounds" else 0)
privrec.train("privrec", data, out=out, resume=resume, on_progress=slowly, **settings)
"""


def rounds_of(path: Path) -> list[dict[str, Any]]:
    """Return what each round did, without the clock; every line of both files must be whole."""
    folder = records.RunFolder(path=path)
    named, lines = (
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (folder.rounds_path, folder.figures_path)
    )
    for line in lines:
        assert line.pop("seconds") >= 0
    assert named == [{"round": line["round"], "stage": line["stage"]} for line in lines]
    return lines


def files_of(path: Path) -> dict[str, bytes]:
    return {str(at.relative_to(path)): at.read_bytes() for at in path.rglob("*") if at.is_file()}


def assert_same_run(path: Path, whole: Path) -> None:
    """All but the clock and the process is the same to the last bit, and no other file is there."""
    ours, theirs = files_of(path), files_of(whole)
    assert set(ours) == set(theirs)
    for name in set(theirs) - {"simulation/rounds.jsonl", "simulation/progress.json"}:
        assert ours[name] == theirs[name], name
    lines = rounds_of(path)
    assert [line["round"] for line in lines] == list(range(ROUNDS))
    assert lines == rounds_of(whole)


def tear(path: Path, text: str) -> None:
    """Write what a kill in the middle of a line leaves."""
    for name in ("rounds.jsonl", "simulation/rounds.jsonl"):
        with (path / name).open("a") as file:
            file.write(text)


# --- real kills ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Killable:
    """Starts training processes that have one compilation cache and one number of devices."""

    cache: Path

    def start(self, path: Path, *, resume: bool) -> subprocess.Popen[bytes]:
        words = [str(path), DATA, "resume" if resume else "start", repr(TINY)]
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(self.cache)},
            stderr=subprocess.PIPE,
        )

    def finish(self, path: Path, *, resume: bool) -> None:
        process = self.start(path, resume=resume)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()

    def kill(self, path: Path, *, resume: bool, when: Callable[[], bool]) -> bool:
        """Return whether the process was killed once `when` held; otherwise it had ended."""
        process = self.start(path, resume=resume)
        while process.poll() is None and not when():
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
        return process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def killable(pytestconfig: pytest.Config) -> Killable:
    return Killable(cache=pytestconfig.cache.mkdir("compiled"))


@pytest.fixture(scope="module")
def whole(killable: Killable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was never stopped."""
    path = tmp_path_factory.mktemp("resume") / "whole"
    killable.finish(path, resume=False)
    assert [line["round"] for line in rounds_of(path)] == list(range(ROUNDS))
    return path


def has_played(path: Path, rounds: int, pause: float) -> Callable[[], bool]:
    """Return a condition: `rounds.jsonl` has a line of that round; it takes `pause` to say so."""

    def when() -> bool:
        if rounds < 0:
            reached = (path / "config.toml").is_file()
        elif not (path / "rounds.jsonl").is_file():
            reached = False
        else:
            reached = f'{{"round": {rounds},'.encode() in (path / "rounds.jsonl").read_bytes()
        if reached:
            time.sleep(pause)
        return reached

    return when


@pytest.mark.slow
def test_two_kills_change_nothing(killable: Killable, whole: Path, tmp_path: Path) -> None:
    """One before the first checkpoint, and one at a random time after it."""
    path = tmp_path / "run"
    draw = random.Random(1)  # noqa: S311
    for kills, rounds in enumerate([-1, draw.randrange(1, ROUNDS - 3)]):
        when = has_played(path, rounds, pause=draw.uniform(0, 0.04))
        assert killable.kill(path, resume=kills > 0, when=when), "ended before it was killed"
        assert not (path / "params.safetensors").exists()
        # Other files that a kill in the middle of a write can leave.
        (path / f".checkpoint.safetensors.{kills}.tmp").write_bytes(b"torn")
        tear(path, '{"round": 99, "clie'[: 9 * kills])
    killable.finish(path, resume=True)
    assert_same_run(path, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_many_kills_at_any_moment_change_nothing(
    killable: Killable, whole: Path, tmp_path: Path, seed: int
) -> None:
    """Also while the process starts, compiles or ends; a run killed early is started again."""
    path = tmp_path / "run"
    draw = random.Random(seed)  # noqa: S311
    kills = 0
    while kills < 25:
        deadline = time.monotonic() + draw.uniform(0, 4)
        when = lambda deadline=deadline: time.monotonic() > deadline  # noqa: E731
        kills += killable.kill(path, resume=path.exists(), when=when)
        if (path / "params.safetensors").exists():
            killable.finish(path, resume=True)
            assert_same_run(path, whole)
            shutil.rmtree(path)
    killable.finish(path, resume=path.exists())
    assert_same_run(path, whole)


# --- other stops, simulated in this process --------------------------------------------------


class Stopped(BaseException):
    """Simulates the end of the process."""


def stop_after(rounds: int) -> OnProgress:
    def on_progress(what: str, done: int, total: int) -> None:
        if what == "rounds" and done == rounds:
            raise Stopped

    return on_progress


@pytest.fixture(scope="module")
def here() -> Plan:
    return prepare(configure("privrec", DATA, TINY), load(DATA))


@pytest.fixture(scope="module")
def whole_here(here: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume") / "here"
    loop.play_stages(here, new_folder(path, here))
    return path


@pytest.mark.parametrize("seconds", [-1.0, late(0.02), late(1e9)])
def test_stopping_after_any_round_changes_nothing(
    here: Plan,
    whole_here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    """With a checkpoint after every round, now and then, and never."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
    path = tmp_path / "run"
    folder = new_folder(path, here)
    for rounds in (1, 2, 3, 10, 25, 26, ROUNDS):
        with pytest.raises(Stopped):
            loop.play_stages(here, folder, resume=rounds > 1, on_progress=stop_after(rounds))
        assert len(rounds_of(path)) == rounds
    assert not folder.params_path.exists()
    loop.play_stages(here, folder, resume=True)
    assert_same_run(path, whole_here)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [-1.0, 0.02])
def test_stopping_between_any_two_steps_changes_nothing(
    here: Plan,
    whole_here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    """Before and after a line of rounds.jsonl, before and after a checkpoint, and the parameters.

    The first attempt makes one step, the second two, and so on.
    """
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
    left = 0

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Stopped

    def stepping(name: str) -> None:
        real = getattr(records, name)

        def stepped(*arguments: Any, **options: Any) -> None:
            step()
            real(*arguments, **options)
            step()

        monkeypatch.setattr(records, name, stepped)

    real_file_errors = records.file_errors

    @contextmanager
    def stepping_file_errors(at: Path, verb: str) -> Iterator[None]:
        """Also between the two lines of a round, which are in two files."""
        with real_file_errors(at, verb):
            yield
        if verb == "write":
            step()

    for name in ("append_round", "write_arrays"):
        stepping(name)
    monkeypatch.setattr(records, "file_errors", stepping_file_errors)
    folder = new_folder(tmp_path / "run", here)
    for attempt in range(1, 1000):
        left = attempt
        try:
            loop.play_stages(here, folder, resume=attempt > 1)
        except Stopped:
            continue
        break
    assert attempt > 10
    assert_same_run(folder.path, whole_here)


@pytest.mark.slow
def test_a_stopped_run_goes_on_without_its_settings_being_repeated(
    whole_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.02)
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        train("privrec", DATA, out=path, on_progress=stop_after(30), **TINY)
    (path / ".params.safetensors.1.tmp").write_bytes(b"torn")
    tear(path, '{"round": 30, "clie')
    run = train("privrec", DATA, out=path, resume=True)
    assert run.config.model_dump()["rounds"] == ROUNDS
    assert_same_run(path, whole_here)


@pytest.mark.slow
def test_a_kill_before_the_settings_were_written_costs_nothing(
    whole_here: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    (path / "simulation").mkdir(parents=True)
    (path / "simulation" / "data.json").write_text('{"fingerprint": "of other data"}')
    (path / "catalogue.json").write_text("{}")
    (path / ".config.toml.1.tmp").write_bytes(b"recipe = ")
    train("privrec", DATA, out=path, resume=True, **TINY)
    assert_same_run(path, whole_here)


def test_a_kill_between_the_last_round_and_the_parameters_costs_nothing(
    whole_here: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole_here, path)
    (path / "params.safetensors").unlink()
    train("privrec", DATA, out=path, resume=True, on_progress=stop_after(ROUNDS))
    assert_same_run(path, whole_here)


def test_a_reference_that_was_stopped_before_its_end_is_fitted_again(tmp_path: Path) -> None:
    run = train("popularity", DATA, out=tmp_path / "run")
    params, ledger = run.folder.params_path.read_bytes(), run.folder.ledger_path.read_bytes()
    run.folder.params_path.unlink()
    train("popularity", DATA, out=tmp_path / "run", resume=True)
    assert run.folder.params_path.read_bytes() == params
    assert run.folder.ledger_path.read_bytes() == ledger


@pytest.mark.parametrize("recipe", ["privrec", "popularity"])
def test_resuming_a_finished_run_changes_nothing(
    whole_here: Path, tmp_path: Path, recipe: str
) -> None:
    path = tmp_path / "run"
    if recipe == "privrec":
        shutil.copytree(whole_here, path)
        (path / "checkpoint.safetensors").unlink()  # A finished run can do without.
    else:
        train(recipe, DATA, out=path)
    before = files_of(path), [entry.stat().st_mtime_ns for entry in sorted(path.rglob("*"))]
    train(recipe, DATA, out=path, resume=True)
    after = files_of(path), [entry.stat().st_mtime_ns for entry in sorted(path.rglob("*"))]
    assert after == before


def test_other_data_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    """Even if all else is the same: two releases would reveal what changed."""
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        train("privrec", DATA, out=path, on_progress=stop_after(3), **TINY)
    before = files_of(path)
    changed = replace(load(DATA), fingerprint="one rating was changed")
    with pytest.raises(RunFolderError, match="the data has changed since"):
        train("privrec", changed, out=path, resume=True)
    assert files_of(path) == before


def test_a_checkpoint_that_does_not_fit_is_refused(
    here: Plan, whole_here: Path, tmp_path: Path
) -> None:
    """For example that of the same folder before its data was changed."""
    folder = new_folder(tmp_path / "run", here)
    arrays = records.read_arrays(whole_here / "checkpoint.safetensors")
    arrays["00000"] = arrays["00000"][:-1]
    records.write_arrays(folder.checkpoint_path, arrays, {})
    with pytest.raises(RunFolderError, match=r"checkpoint\.safetensors does not fit"):
        loop.play_stages(here, folder, resume=True)
    torn = folder.checkpoint_path.read_bytes()[:-1]
    folder.checkpoint_path.write_bytes(torn)
    with pytest.raises(RunFolderError, match=r"cannot read .*checkpoint\.safetensors"):
        loop.play_stages(here, folder, resume=True)


def test_resuming_needs_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        train("privrec", DATA, out=tmp_path / "nowhere", resume=True, **TINY)
    with pytest.raises(SettingsError, match="`resume` needs `out`"):
        train("privrec", DATA, resume=True, **TINY)
    assert os.listdir(tmp_path) == []
