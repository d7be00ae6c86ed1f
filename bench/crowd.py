"""A thousand nodes at one server: a masked round that a fifth leaves, and a server that waits."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from federation import traffic_of
from figures import Figure
from privrec.core.contribution import told_from_bytes
from privrec.core.phase import Cohort
from privrec.core.round import fastest
from privrec.data.clients import nobody
from privrec.protocol.coding import coding_of, layout_of
from privrec.protocol.enrolment import NodeFolder, read_people, read_server
from privrec.protocol.masks import default_degree
from privrec.protocol.terms import phases_of, plan_of
from privrec.transport.local import LOCAL, LocalFederation, free_port, make_local

NODES, PROCESSES, LOST = 1000, 10, 2
"""Two of ten processes with a hundred nodes each are killed in the middle of a round."""
MIB = 2**20
IDLE_SECONDS = 30.0


@dataclass(frozen=True)
class Crowd:
    """A server in a process, and processes with some nodes each."""

    server: "subprocess.Popen[bytes]"
    port: int
    nodes: list["subprocess.Popen[bytes]"]

    def hear(self) -> dict[str, Any]:
        """Return the next line of the server."""
        said: IO[bytes] | None = self.server.stdout
        line = said.readline() if said else b""
        if not line:
            raise RuntimeError("the server has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def order(self, *words: object) -> None:
        """Send a command to the server."""
        if self.server.stdin:
            self.server.stdin.write(" ".join(map(str, words)).encode() + b"\n")
            self.server.stdin.flush()

    def do(self, *words: object, kill_at: str = "") -> dict[str, Any]:
        """Return what a command cost; at the step `kill_at`, kill some of the nodes' processes."""
        self.order(*words)
        while "done" not in (found := self.hear()):
            if found.get("step") == kill_at:
                for process in self.nodes[:LOST]:
                    process.kill()
        return found


@contextlib.contextmanager
def crowd(local: LocalFederation, processes: int) -> Iterator[tuple[Crowd, dict[str, Any]]]:
    """Yield the processes, once all nodes are there, and what the server had before."""
    port, server = free_port(), local.server
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    pipes["stderr"] = subprocess.DEVNULL
    script = Path(__file__).with_name("crowd_server.py")
    with contextlib.ExitStack() as stack:
        words = [sys.executable, str(script), str(server.path), str(port)]
        process: subprocess.Popen[bytes] = subprocess.Popen(words, **pipes)
        stack.callback(end, process)
        made = Crowd(process, port, [])
        made.hear()
        before = made.do("idle", 10)
        script = script.with_name("crowd_nodes.py")
        members = range(len(local.terms.members))
        for part in np.array_split(members, processes):
            words = [sys.executable, str(script), f"{LOCAL}:{port}"]
            words += [str(server.terms), str(server.ca)]
            words += [str(local.node(int(number))) for number in part]
            made.nodes.append(subprocess.Popen(words, **{**pipes, "stdout": subprocess.DEVNULL}))
            stack.callback(end, made.nodes[-1])
        made.do("wait")
        yield made, before


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(60)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def check_sum(local: LocalFederation, out: Path, number: int, stayed: list[int]) -> None:
    """Raise unless the server's sum is the plain sum over the nodes that stayed."""
    _, terms, catalogue = read_server(local.server.path)
    phase = phases_of(plan_of(terms, catalogue))[number]
    told = told_from_bytes((out / "told").read_bytes())
    clip_norm = phase.aggregator.clip_norm
    layout = layout_of(phase, told, nobody(catalogue.schema, 1), phase.first, clip_norm)
    plain = np.zeros(layout.size)
    for node in stayed:
        people, _ = read_people(NodeFolder(local.node(node)))
        take = plan_of(terms, catalogue, people, node).task.federation.take
        cohort = Cohort(np.array(terms.positions(node)), take)
        mine = fastest(phase, told, cohort, phase.first, clip_norm)
        plain += layout.vector(mine, len(people))
    found = told_from_bytes((out / "sum").read_bytes())
    wanted = layout.total(plain).update
    unit = coding_of(terms.people, phase, layout, clip_norm).unit
    worst = max(float(np.abs(found[name] - wanted[name]).max()) for name in wanted)
    # Each node rounds to half a unit; twice that leaves room for the sum of many floats.
    if found.keys() != wanted.keys() or not worst <= len(stayed) * unit:
        raise RuntimeError(f"the masked sum is wrong by {worst:g}")
    print(f"{len(stayed):,} nodes stayed; the sum is right to {worst:.1e}", flush=True)


def federation(folder: Path) -> LocalFederation:
    """Return a federation of a thousand nodes with two or three people each."""
    # A share of 0.2 drops out, and by chance more of a node's 80 neighbours.
    settings = {"missing": 0.4, "deadline": 300.0, "rounds": 0}
    return make_local(
        folder / "federation",
        "privrec-plus",
        f"synthetic:users={3 * NODES},items=200,longest=50",
        nodes=NODES,
        settings=settings,
    )


def many_nodes() -> list[Figure]:
    """Return what a round with a thousand nodes costs the server if a fifth drops out in it."""
    with tempfile.TemporaryDirectory() as folder:
        out, local = Path(folder), federation(Path(folder))
        with crowd(local, PROCESSES) as (made, before):
            idle = made.do("idle", IDLE_SECONDS)
            calm = made.do("round", out)
            check_sum(local, out, 0, calm["stayed"])
            # About the same bytes as in the round below, without its work.
            _, terms, catalogue = read_server(local.server.path)
            down, up = traffic_of(terms, catalogue)[1]
            shares = 400 * default_degree(NODES)
            sizes = [(0, 600), (600 * NODES, shares), (down + shares, up), (5 * NODES, shares // 4)]
            empty = [made.do("nothing", *size) for size in sizes]
            lossy = made.do("round", out, kill_at="mask")
            check_sum(local, out, 1, lossy["stayed"])
    for name, found in {"before": before, "idle": idle, "round": calm, "lossy": lossy}.items():
        rest = {key: value for key, value in found.items() if key != "stayed"}
        print(f"{name}: {json.dumps(rest)}", flush=True)
    floor = sum(found["cpu"] for found in empty)
    who = f"{NODES:,} nodes"
    return [
        Figure(
            name=f"CPU of a server with {who} that wait, in {IDLE_SECONDS:g} s",
            value=idle["cpu"],
            unit="s",
            against="a tenth of a core",
            against_value=IDLE_SECONDS / 10,
        ),
        Figure(
            name=f"memory of a server with {who} that wait",
            value=idle["rss"] / MIB,
            unit="MiB",
            against="the server without nodes",
            against_value=before["rss"] / MIB,
        ),
        Figure(
            name=f"CPU of a server in a masked round of {who}, a fifth lost in it",
            value=lossy["cpu"],
            unit="s",
            against="the same messages without work",
            against_value=floor,
        ),
        Figure(
            name=f"time of a masked round of {who}, a fifth lost in it",
            value=lossy["seconds"],
            unit="s",
            against="the round before, nobody lost, with fewer numbers",
            against_value=calm["seconds"],
        ),
        Figure(
            name=f"peak memory of a server in a masked round of {who}",
            value=lossy["peak"] / MIB,
            unit="MiB",
            against=f"the server with {who} that wait",
            against_value=idle["rss"] / MIB,
        ),
    ]
