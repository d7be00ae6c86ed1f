"""`privrec watch`: what a thousand polls in a second cost, and what they cost a training."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Figure

POLLS, SECONDS, TIMES = 1000, 10.0, 5
_TRAIN = ("train", "privrec", "--data", "synthetic:users=20000,items=500", "--set", "rounds=100000")
_HERE = Path(__file__).parent


def watch() -> list[Figure]:
    """Return the processor time of the server, and the speed of a training with and without it.

    Ten seconds with polls and ten without take turns, five times, in one training.
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
        spent, polled, with_polls, without = [], [], [], []
        for _ in range(TIMES):
            cpu, first = _cpu(server.pid), _rounds(run)
            polled.append(_poll(url)["per_second"])
            with_polls.append((_rounds(run) - first) / SECONDS)
            spent.append((_cpu(server.pid) - cpu) / SECONDS)
            first = _rounds(run)
            time.sleep(SECONDS)
            without.append((_rounds(run) - first) / SECONDS)
    each = statistics.median(spent) / statistics.median(polled)
    ratios = [one / other for one, other in zip(without, with_polls, strict=True)]
    return [
        Figure(
            name=f"processor time of the server at {statistics.median(polled):,.0f} polls a second",
            value=statistics.median(spent),
            unit="cores",
            against="5 % of all cores",
            against_value=0.05 * (os.cpu_count() or 1),
        ),
        Figure(
            name="processor time of a poll",
            value=1e6 * each,
            unit="µs",
            against="a poll that would take 5 % of all cores",
            against_value=1e6 * 0.05 * (os.cpu_count() or 1) / POLLS,
        ),
        Figure(
            name="time of a round under these polls, which also take processor time",
            value=statistics.median(ratios),
            unit="times",
            against="without polls, median of five",
            against_value=1.0,
        ),
    ]


@contextlib.contextmanager
def _command(*words: str) -> Iterator[Any]:
    code = "from privrec.cli.app import main; main()"
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


def _poll(url: str) -> dict[str, float]:
    words = [sys.executable, str(_HERE / "polls.py"), url, str(POLLS), str(SECONDS)]
    found: dict[str, float] = json.loads(subprocess.check_output(words))
    return found


def _rounds(run: Path) -> int:
    path = run / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _cpu(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
