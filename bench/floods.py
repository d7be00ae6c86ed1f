"""A training beside a flood of wrong requests, against the same training without the flood."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from crowd import MIB, crowd, end
from figures import Figure
from privrec.transport.local import LOCAL, make_local

COUNT, SENDERS, SECONDS = 100_000, 2, 600.0
"""So many requests are sent, or as many as can be sent in this time."""
CALM = 3
"""Trainings without a flood; the median of their times counts."""


def floods() -> list[Figure]:
    """Return the time of a training beside a flood, and the memory that the flood takes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        out = Path(folder)
        local = make_local(
            out / "federation",
            "privrec-plus",
            "synthetic:users=2000,items=300,longest=50",
            nodes=2,
            settings={"rounds": 40, "validate_every": 0, "secure_sum": False, "deadline": 300.0},
        )
        made, _ = stack.enter_context(crowd(local, 2))
        made.do("train", out / "first")  # It compiles.
        calm = [made.do("train", out / f"calm{k}") for k in range(CALM)]
        idle = made.do("idle", 1)
        senders = []
        for what in [*[COUNT // SENDERS] * SENDERS, "slow"]:
            words = [sys.executable, str(Path(__file__).with_name("flood.py")), LOCAL]
            words += [str(made.port), str(local.server.ca), str(what), str(SECONDS)]
            senders.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(end, senders[-1])
        beside: list[dict[str, Any]] = []
        while not beside or any(one.poll() is None for one in senders[:SENDERS]):
            beside.append(made.do("train", out / f"beside{len(beside)}"))
        # The last one went on when the flood was over.
        whole = beside[:-1] or beside
        sent = sum(int(one.communicate()[0]) for one in senders[:SENDERS])
    print(f"{sent:,} requests sent beside {len(beside)} trainings", flush=True)
    for found in [*calm, *beside]:
        print(json.dumps(found), flush=True)
    if len({found["params"] for found in [*calm, *beside]}) != 1 or beside[-1]["online"] != 2:
        raise RuntimeError("the flood disturbed a training")
    return [
        Figure(
            name=f"a training of two nodes beside a flood of {sent:,} wrong requests",
            value=statistics.mean(found["seconds"] for found in whole),
            unit="s",
            against="the same training without a flood",
            against_value=statistics.median(found["seconds"] for found in calm),
        ),
        Figure(
            name="memory of a server at the most in the flood",
            value=beside[-1]["peak"] / MIB,
            unit="MiB",
            against="the server before the flood",
            against_value=idle["rss"] / MIB,
        ),
    ]
