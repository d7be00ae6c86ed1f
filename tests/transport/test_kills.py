"""SIGKILL for nodes and the server of a real federation, again and again: it costs only time."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import privrec
from privrec.protocol.enrolment import NodeFolder
from privrec.runs import folder as records
from privrec.runs.ledger import ledger_of, settled_ledger
from privrec.transport.local import LocalFederation, free_port, make_local, start_node
from tiny import DATA, MODEL
from witness import TESTS

pytestmark = pytest.mark.slow

RECIPE = "dp-privrec-one"
# With 40 of 48 people in a round, every node has some of them.
SETTINGS: dict[str, Any] = {**MODEL, "cohort": 40, "epsilon": 8.0}
STEPS = ("keys", "shares", "mask", "reveal")
PUBLISHED = "published"

# The command of the server. It also notes which sum every round used, takes a moment at each step,
# so that a kill can hit it, and begins no attempt before so many nodes are there.
SERVER = """
import sys, time
sys.path.insert(0, sys.argv.pop(1))
from privrec.cli.entry import main
from privrec.protocol.server import ServerStatus
from witness import digest, witness
path, nodes = sys.argv.pop(1), int(sys.argv.pop(1))
real_write, real_look = ServerStatus.write, ServerStatus.look
def note(state, published):
    with open(path, "a") as out:
        out.write(f"{state.round_index} {digest(published)}\\n")
    time.sleep(0.1)
def write(status, place):
    real_write(status, place)
    time.sleep(0.03)
def look(status, online):
    while len(real_look(status, online)) < nodes:
        time.sleep(0.05)
    return status.online
witness(note)
ServerStatus.write, ServerStatus.look = write, look
main()
"""


def settled(path: Path, nodes: int, rounds: int, **options: Any) -> LocalFederation:
    agreed = {"deadline": 8.0, "min_people": 1, **options}
    settings = {**SETTINGS, "rounds": rounds}
    return make_local(path, RECIPE, DATA, nodes=nodes, settings={**settings, **agreed})


class Nodes:
    """The nodes of a federation as processes that can be killed and started again."""

    def __init__(self, local: LocalFederation, port: int) -> None:
        self.local, self.port = local, port
        self.count = len(local.terms.members)
        self.running: dict[int, Any] = {}
        self.process: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int) -> None:
        """Start a node on its own folder."""
        self.running[node] = start_node(self.local, node, self.port)
        self.process[node] = self.running[node].__enter__()

    def kill(self, node: int) -> None:
        """Kill a node's process, and start it again."""
        kill(self.process[node])
        self.end(node)
        self.start(node)

    def end(self, node: int) -> None:
        """End a node, dead or alive."""
        self.running.pop(node).__exit__(None, None, None)

    def up(self) -> list[int]:
        """Return the nodes that have come to the server since they were started."""
        return [node for node, process in self.process.items() if self._is_up(process)]

    def _is_up(self, process: subprocess.Popen[bytes]) -> bool:
        lines = psutil.Process(process.pid).net_connections("tcp")
        return any(x.status == psutil.CONN_ESTABLISHED and x.raddr[1] == self.port for x in lines)


@contextmanager
def nodes_of(local: LocalFederation, port: int) -> Iterator[Nodes]:
    nodes = Nodes(local, port)
    try:
        for node in range(nodes.count):
            nodes.start(node)
        yield nodes
    finally:
        for node in list(nodes.running):
            nodes.end(node)


def start_server(local: LocalFederation, port: int, nodes: int = 0) -> subprocess.Popen[bytes]:
    words = [local.path / "used", nodes, "federate", "server", local.server.path, "--port", port]
    words += ["--wait", 100]
    with (local.path / "server.log").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-c", SERVER, str(TESTS), *map(str, words)], stdout=said, stderr=said
        )


def said(local: LocalFederation) -> str:
    return (local.path / "server.log").read_text()


def status(local: LocalFederation, since: float) -> dict[str, Any]:
    """Return what the server that was started at `since` saw last."""
    found: dict[str, Any] = {"step": "", "round_index": 0, "state": {}, "abandoned": 0}
    if not local.server.status.exists():
        return found
    seen: dict[str, Any] = json.loads(local.server.status.read_text())
    return seen if seen["time"] > since else found


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()


def check_exact(local: LocalFederation, rounds: int, tmp_path: Path) -> None:
    """Every round was released once, used as it was released, and counted as by the simulator."""
    run = privrec.open_run(local.server.run)
    lines = settled_ledger(run.folder)
    assert [line.round for line in lines] == list(range(rounds))
    assert len({line.published for line in lines}) == rounds
    assert run.rounds == rounds
    used = {tuple(line.split()) for line in (local.path / "used").read_text().splitlines()}
    assert sorted(int(number) for number, _ in used) == list(range(rounds))
    assert not list(run.folder.path.glob("published-*"))
    params = records.read_arrays(run.folder.params_path)
    assert all(np.isfinite(array).all() for array in params.values())
    alone = privrec.train(RECIPE, DATA, out=tmp_path / "alone", **SETTINGS, rounds=rounds)
    assert ledger_of(run.folder).entries == ledger_of(alone.folder).entries
    assert run.privacy().epsilon == alone.privacy().epsilon


def test_two_of_seven_nodes_are_killed_in_every_round(tmp_path: Path) -> None:
    """Each round loses two nodes at a random step; they come back, and others are next."""
    rounds, draw = 10, random.Random(0)  # noqa: S311 (moments, not secrets)
    local, port = settled(tmp_path / "federation", 7, rounds, missing=0.3), free_port()
    hit: Counter[str] = Counter()
    last: set[int] = set()
    killed: set[int] = set()
    abandoned, stop = 0, time.monotonic() + 900
    with nodes_of(local, port) as nodes:
        for _ in range(4):
            began, server = time.time(), start_server(local, port, nodes.count)
            step = draw.choice(STEPS)
            try:
                while server.poll() is None:
                    assert time.monotonic() < stop, said(local)
                    seen = status(local, began)
                    if seen["round_index"] in killed or seen["step"] != step:
                        time.sleep(0.002)
                        continue
                    hit[step] += 1
                    killed.add(seen["round_index"])
                    last = set(draw.sample(sorted(set(range(nodes.count)) - last), 2))
                    for node in last:
                        nodes.kill(node)
                    step = draw.choice(STEPS)
            finally:
                kill(server)
            abandoned += status(local, began)["abandoned"]
            if server.returncode == 0:
                break
            # All attempts of a round failed, and nothing of it was published.
            assert "go on later with the same command" in said(local), said(local)
    print(f"\nkilled in {sorted(killed)} at {dict(hit)}; {abandoned} attempts abandoned")  # noqa: T201
    assert server.returncode == 0, said(local)
    assert len(killed) >= 7
    assert "Traceback" not in said(local)
    check_exact(local, rounds, tmp_path)


def test_the_server_is_killed_at_twenty_moments(tmp_path: Path) -> None:
    """Nodes go on running; the same command goes on from where it was killed."""
    rounds, draw = 40, random.Random(1)  # noqa: S311 (moments, not secrets)
    local, port = settled(tmp_path / "federation", 3, rounds, missing=0.34), free_port()
    hit: Counter[str] = Counter()
    reached: list[int] = []
    stop = time.monotonic() + 900
    with nodes_of(local, port) as nodes:
        for number in range(20):
            began, server = time.time(), start_server(local, port)
            try:
                if number % 4 == 0:
                    # It starts, waits for nodes, or has just begun.
                    end, lines = time.monotonic() + draw.uniform(0, 6), ledger_lines(local)
                    while time.monotonic() < end and ledger_lines(local) == lines:
                        time.sleep(0.01)
                elif number % 4 == 1:
                    hold_with_a_sum(server, local, began, draw.randrange(2), stop)
                else:
                    wait_for(server, local, began, draw.randrange(3), draw.choice(STEPS), stop)
                    time.sleep(draw.uniform(0, 0.1))
                assert server.poll() is None, said(local)
            finally:
                kill(server)
            seen = status(local, began)
            step = PUBLISHED if kept_sums(local) else seen["step"].split(":")[0] or "start"
            hit[step] += 1
            reached.append(len(ledger_lines(local)))
        server = start_server(local, port)
        try:
            assert server.wait(max(1.0, stop - time.monotonic())) == 0, said(local)
        finally:
            kill(server)
        assert all(process.poll() is None for process in nodes.process.values())
    print(f"\nkilled at {dict(hit)} with {reached} rounds in the ledger")  # noqa: T201
    assert sum(hit[step] for step in STEPS) >= 5
    # A sum was on the disk, and the round that used it was not: it was used again.
    assert hit[PUBLISHED] >= 5
    assert 0 < reached[-1] < rounds
    assert "Traceback" not in said(local)
    check_exact(local, rounds, tmp_path)


def wait_for(
    server: subprocess.Popen[bytes],
    local: LocalFederation,
    began: float,
    rounds: int,
    step: str,
    stop: float,
) -> None:
    """Return when a server that was started at `began` is at a step, some rounds later."""
    first = None
    while True:
        assert time.monotonic() < stop, said(local)
        assert server.poll() is None, said(local)
        seen = status(local, began)
        if first is None and seen["step"] in STEPS:
            first = seen["round_index"]
        there = first is not None and seen["round_index"] >= first + rounds
        if there and (seen["step"] == step or (step == PUBLISHED and kept_sums(local))):
            return
        time.sleep(0.002)


def hold_with_a_sum(
    server: subprocess.Popen[bytes], local: LocalFederation, began: float, rounds: int, stop: float
) -> None:
    """Stop the server at a moment when a noised sum is on the disk and its round is not over."""
    while True:
        wait_for(server, local, began, rounds, PUBLISHED, stop)
        server.send_signal(signal.SIGSTOP)
        if kept_sums(local):
            return
        server.send_signal(signal.SIGCONT)


def kept_sums(local: LocalFederation) -> list[Path]:
    """Return the noised sums that are on the disk because their round is not over."""
    return list(local.server.run.glob("published-*.safetensors"))


def ledger_lines(local: LocalFederation) -> list[str]:
    path = local.server.run / "ledger.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_a_node_that_was_killed_or_stood_still_helps_again(tmp_path: Path) -> None:
    """One process dies in a round; one machine hangs until a round was over without it."""
    rounds = 30
    local = settled(tmp_path / "federation", 4, rounds, missing=0.26, noise_from="nodes")
    port, killed, stopped = free_port(), 1, 2
    at: dict[int, int] = {}
    before = {node: kept(local, node) for node in (killed, stopped)}
    stop, began = time.monotonic() + 900, time.time()
    with nodes_of(local, port) as nodes:
        server = start_server(local, port)
        try:
            while server.poll() is None:
                assert time.monotonic() < stop, said(local)
                seen = status(local, began)
                now, ready = seen["round_index"], seen["step"] == "mask" and len(nodes.up()) == 4
                if killed not in at and ready and now > 0:
                    at[killed] = now
                    nodes.kill(killed)
                elif killed in at and stopped not in at and ready and now > at[killed] + 1:
                    at[stopped] = now
                    nodes.process[stopped].send_signal(signal.SIGSTOP)
                elif stopped in at and now > at[stopped] + 1:
                    nodes.process[stopped].send_signal(signal.SIGCONT)
                if at.keys() == before.keys() and all(
                    max(helped(local, node)) > at[node] + 1 for node in at
                ):
                    break
                time.sleep(0.02)
            else:
                pytest.fail(f"no node came back: {said(local)}")
        finally:
            kill(server)
            nodes.process[stopped].send_signal(signal.SIGCONT)
    assert {node: kept(local, node) for node in before} == before
    for node in before:
        found = helped(local, node)
        assert min(found) == 0
        assert set(found.values()) <= {1, 2}
        print(f"\nnode {node}: gone in {at[node]}, helped in {sorted(found)}")  # noqa: T201


def kept(local: LocalFederation, node: int) -> list[bytes]:
    """Return what a node keeps for itself: its key, its people, its enrolment."""
    folder = NodeFolder(local.node(node))
    return [path.read_bytes() for path in (folder.key, folder.people, folder.enrolment)]


def helped(local: LocalFederation, node: int) -> dict[int, int]:
    """Return how often a node answered in which rounds, by the file in its own folder."""
    path = NodeFolder(local.node(node)).reveals(local.terms.fingerprint)
    times = json.loads(path.read_text())["times"] if path.is_file() else {}
    return {int(number): count for number, count in times.items()}
