"""`privrec watch`: what a thousand polls in a second cost, and what they cost a training."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from figures import Figure

POLLS, PERIOD, PERIODS = 1000, 2.0, 100
_TRAIN = ("train", "privrec", "--data", "synthetic:users=20000,items=500", "--set", "rounds=100000")
_HERE = Path(__file__).parent


def watch() -> list[Figure]:
    """Return the processor time of the server, and the speed of a training with and without it.

    Two seconds with polls and two without take turns in one training, because a machine is slower
    at some times than at others.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        run = Path(folder) / "run"
        ends.enter_context(_command(*_TRAIN, "--out", str(run), "--set", "validate_every=1000000"))
        server = ends.enter_context(_command("watch", str(run), "--json"))
        text = ""
        while "}" not in text:
            text += server.stdout.readline()
        url = json.loads(text)["url"].replace("/?", "/status?")
        while _rounds(run) < 10:
            time.sleep(0.5)
        start = time.monotonic() + 2
        words = [sys.executable, str(_HERE / "polls.py"), url]
        numbers = (POLLS, start, PERIOD, PERIODS)
        poller = subprocess.Popen([*words, *map(str, numbers)], stdout=subprocess.PIPE)
        rounds, spent = [], []
        for k in range(PERIODS + 1):
            time.sleep(max(start + k * PERIOD - time.monotonic(), 0.0))
            rounds.append(_rounds(run))
            spent.append(_cpu(server.pid))
        polled: dict[str, float] = json.loads(poller.communicate()[0])
    played, cpu = (np.diff(found).reshape(-1, 2) for found in (rounds, spent))
    with_polls, without = played.sum(axis=0) / PERIOD / (PERIODS / 2)
    served = cpu[:, 0].sum() / PERIOD / (PERIODS / 2)
    return [
        Figure(
            name=f"processor time of the server at {polled['per_second']:,.0f} polls a second",
            value=served,
            unit="cores",
            against="5 % of all cores",
            against_value=0.05 * (os.cpu_count() or 1),
        ),
        Figure(
            name="processor time of the program that polls, on the same cores",
            value=polled["cpu"],
            unit="cores",
            against="the server",
            against_value=served,
        ),
        Figure(
            name="rounds a second under these polls",
            value=with_polls,
            unit="rounds",
            against=f"without, in turns of {PERIOD:.0f} s",
            against_value=without,
        ),
    ]


@contextlib.contextmanager
def _command(*words: str) -> Iterator[Any]:
    code = "from privrec.cli.entry import main; main()"
    started = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def _rounds(run: Path) -> int:
    path = run / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _cpu(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
