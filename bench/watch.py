"""`privrec watch`: what a page that is open beside a training costs it."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from figures import Figure

PERIOD, PERIODS = 4, 30
"""Seconds of a period, in every other of which a page asks once a second."""
_TRAIN = ("train", "privrec", "--data", "synthetic:users=20000,items=500", "--set", "rounds=100000")


def watch() -> list[Figure]:
    """Return the processor time of the server, and the speed of a training with and without it.

    Periods with a page and without take turns in one training, because a machine is slower at some
    times than at others.
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
        start, rounds, spent = time.monotonic(), [_rounds(run)], [_cpu(server.pid)]
        for second in range(1, PERIODS * PERIOD + 1):
            if (second - 1) // PERIOD % 2 == 0:
                urllib.request.urlopen(url).read()  # noqa: S310 - our own server
            time.sleep(max(start + second - time.monotonic(), 0.0))
            if second % PERIOD == 0:
                rounds.append(_rounds(run))
                spent.append(_cpu(server.pid))
    played, cpu = (np.diff(found).reshape(-1, 2) for found in (rounds, spent))
    with_page, without = played.sum(axis=0) / PERIOD / (PERIODS / 2)
    return [
        Figure(
            name="processor time of the server beside one page",
            value=cpu[:, 0].sum() / PERIOD / (PERIODS / 2),
            unit="cores",
            against="5 % of all cores",
            against_value=0.05 * (os.cpu_count() or 1),
        ),
        Figure(
            name="rounds a second beside one page",
            value=with_page,
            unit="rounds",
            against=f"without, in turns of {PERIOD} s",
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
