"""Ctrl-C: exit code 130 and one line: what is kept, and how to go on, which then works."""

import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from commands import SET, document, invoke, tree
from privrec.cli.console import EXPERIMENTS_KEPT
from privrec.runs import folder as records
from privrec.runs import loop
from privrec.runs.progress import Progress
from tiny import DATA


def interrupting(patch: pytest.MonkeyPatch, owner: Any, name: str, *, call: int) -> None:
    """Raise what Ctrl-C raises, before the given call (from 1) of a function."""
    real, left = getattr(owner, name), call

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("owner", "name", "call", "round_"),
    [
        (loop, "prepare", 1, None),
        (loop, "play_stage_round", 1, 0),
        (loop, "play_stage_round", 3, 2),
        # The last round was played, but its line is not written: it is played again.
        (records, "append_round", 2, 1),
        (Progress, "end_round", 2, 2),
    ],
)
def test_a_stopped_training_says_how_to_go_on_and_does(
    trained: Path, scratch: Path, owner: Any, name: str, call: int, round_: int | None
) -> None:
    words = ["train", "privrec", "--data", DATA, "--out", "my run", *SET]
    with pytest.MonkeyPatch.context() as patch:
        interrupting(patch, owner, name, call=call)
        result = invoke(*words)
    assert (result.exit_code, result.stdout) == (130, "")
    [line] = result.stderr.splitlines()
    if round_ is None:
        assert "nothing is kept" in line
        assert not (scratch / "my run").exists()
        return
    go_on = "privrec train privrec --out 'my run' --resume"
    assert line == f"privrec: stopped at round {round_}; go on with: {go_on}"
    assert records.played_rounds(records.RunFolder(path=scratch / "my run")) == round_
    document("train", "privrec", "--out", "my run", "--resume", "--json")
    for file in ("params.safetensors", "rounds.jsonl", "ledger.jsonl", "config.toml"):
        assert (scratch / "my run" / file).read_bytes() == (trained / file).read_bytes(), file


def stop(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "words", "said"),
    [
        ("privrec.runs.run.evaluate_run", ["evaluate", "RUN"], "evaluated again"),
        (
            "privrec.runs.frontier.run_jobs",
            ["compare", "--data", DATA, "--recipes", "popularity"],
            None,
        ),
        ("privrec.runs.frontier.find_frontier", ["frontier", "--data", DATA], None),
        ("privrec.attacks.membership.play_attack", ["attack", "RUN", "--workers", "1"], None),
        ("privrec.attacks.audit.audit", ["audit", "popularity", "--data", DATA], "begins anew"),
        ("privrec.runs.api.open_released", ["recommend", "RUN"], "begins anew"),
        ("privrec.runs.run.exported", ["export", "RUN", "--out", "f"], "begins anew"),
    ],
)
def test_every_long_command_says_what_is_kept(
    copy: records.RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    words: list[str],
    said: Any,
) -> None:
    monkeypatch.setattr(place, stop)
    before = tree(copy.path)
    result = invoke(*(str(copy.path) if word == "RUN" else word for word in words))
    assert (result.exit_code, result.stdout) == (130, "")
    [line] = result.stderr.splitlines()
    assert (said or EXPERIMENTS_KEPT) in line
    assert tree(copy.path) == before


_LONG = """
import time, typer
from privrec.cli import entry
from privrec.cli.console import plain_errors
entry._PATIENCE = {patience}
def work():
  with plain_errors("stopped; all is kept"):
    {work}
entry.handle_interrupts()
typer.run(work)
"""
_DEAF = """import ctypes
    lock = (ctypes.c_char * 64)(); wait = ctypes.CDLL(None).pthread_mutex_lock
    while True:
        try:
            print("ready", flush=True)
            wait(lock)
        except KeyboardInterrupt:
            pass"""
"""Waits for itself outside Python, and for no signal, as a long matrix product does; also if the
first signal comes before the wait."""


@contextmanager
def long_process(work: str, patience: float = 60.0) -> Iterator[subprocess.Popen[str]]:
    """Start some work; after `patience` seconds a first interrupt is answered by a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LONG.format(work=work, patience=patience)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_real_interrupt_ends_with_130_and_no_traceback() -> None:
    with long_process("print('ready', flush=True); time.sleep(60)") as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == "privrec: stopped; all is kept\n"
    assert process.returncode == 130


_DROPPED = """import gc, signal
    once = []
    def collected(phase, about):
        if not once:
            once.append(1)
            signal.raise_signal(signal.SIGINT)
    gc.callbacks.append(collected)
    print("ready", flush=True)
    gc.collect()
    time.sleep(60)"""
"""Is interrupted where Python drops what is raised, as in the function that JAX has called."""


@pytest.mark.slow
def test_an_interrupt_that_python_drops_comes_again() -> None:
    with long_process(_DROPPED) as process:
        assert process.communicate(timeout=120)[1] == "privrec: stopped; all is kept\n"
    assert process.returncode == 130


@pytest.mark.slow
def test_an_interrupt_waits_for_the_end_of_an_import(tmp_path: Path) -> None:
    module = "import os, signal; signal.raise_signal(signal.SIGINT); os.write(2, b'imported. ')"
    (tmp_path / "compiled.py").write_text(module)
    work = f"print('ready', flush=True); import sys; sys.path.append({str(tmp_path)!r});"
    with long_process(f"{work} import compiled; time.sleep(60)") as process:
        said = process.communicate(timeout=120)[1]
    assert said == "imported. privrec: stopped; all is kept\n"
    assert process.returncode == 130


@pytest.mark.slow
def test_an_interrupt_while_commands_are_imported_is_one_line() -> None:
    begin = """
import sys
class Stop:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
from privrec.cli.entry import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "privrec: stopped\n")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["scripts"]["privrec"] == "privrec.cli.entry:main"


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_inside_a_computation() -> None:
    with long_process(_DEAF, patience=1.0) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "privrec: stopping; Ctrl-C again ends it\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "privrec: ended\n"
        assert process.wait() == 130
