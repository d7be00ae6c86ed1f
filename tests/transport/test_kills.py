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

# The command of the server; it also notes which sum every round used.
SERVER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from privrec.cli.entry import main
from witness import digest, witness
path = sys.argv.pop(1)
def note(state, published):
    with open(path, "a") as out:
        out.write(f"{state.round_index} {digest(published)}\\n")
witness(note)
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
        log = self.local.node(node) / "supernode" / "supernode.log"
        log.unlink(missing_ok=True)
        self.running[node] = start_node(self.local, node, self.port)
        self.process[node] = self.running[node].__enter__()

    def kill(self, node: int, *, machine: bool) -> None:
        """Kill a node's process, or with `machine` all its processes; start it again.

        If its process alone is killed, its SuperNode signs off. Otherwise the SuperLink refuses
        the node until the old one gave no sign of life for a minute.
        """
        victim = psutil.Process(self.process[node].pid)
        for one in [victim, *(victim.children(recursive=True) if machine else [])]:
            one.kill()
        self.end(node)
        self.start(node)

    def end(self, node: int) -> None:
        """End a node, dead or alive."""
        self.running.pop(node).__exit__(None, None, None)

    def up(self) -> list[int]:
        """Return the nodes that the SuperLink has accepted since they were started."""
        return [node for node in range(self.count) if self._is_up(node)]

    def _is_up(self, node: int) -> bool:
        log = self.local.node(node) / "supernode" / "supernode.log"
        return log.exists() and b"SuperNode ID:" in log.read_bytes()


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


def start_server(local: LocalFederation, port: int) -> subprocess.Popen[bytes]:
    words = [local.path / "used", "federate", "server", local.server.path, "--port", port]
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
            began, server = time.time(), start_server(local, port)
            step, seen = draw.choice(STEPS), status(local, began)
            try:
                while server.poll() is None:
                    assert time.monotonic() < stop, said(local)
                    seen, up = status(local, began), set(nodes.up())
                    able = sorted(up - last if len(up - last) >= 2 else up)
                    due = seen["round_index"] not in killed and seen["step"] == step
                    # With fewer than three, no sum would hide a node.
                    if not due or len(up) < 5:
                        time.sleep(0.02)
                        continue
                    time.sleep(draw.uniform(0, 0.3))
                    hit[f"{status(local, began)['step']}"] += 1
                    last = set(draw.sample(able, 2))
                    for node in last:
                        # Once, a whole machine is lost: its node is missing for a minute.
                        nodes.kill(node, machine=len(killed) == 4 and node == min(last))
                    killed.add(seen["round_index"])
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
    rounds, draw = 24, random.Random(1)  # noqa: S311 (moments, not secrets)
    local, port = settled(tmp_path / "federation", 3, rounds, missing=0.34), free_port()
    hit: Counter[str] = Counter()
    reached: list[int] = []
    stop = time.monotonic() + 900
    with nodes_of(local, port) as nodes:
        for number in range(20):
            began, server = time.time(), start_server(local, port)
            try:
                if number % 4 == 0:
                    time.sleep(draw.uniform(0, 12))  # it starts, or waits for nodes
                elif number % 4 == 1:
                    hold_with_a_sum(server, local, began, draw.randrange(2), stop)
                else:
                    wait_for(local, began, draw.randrange(3), draw.choice(STEPS), stop)
                    time.sleep(draw.uniform(0, 0.6))
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
        assert len(nodes.up()) == 3
        assert all(process.poll() is None for process in nodes.process.values())
    print(f"\nkilled at {dict(hit)} with {reached} rounds in the ledger")  # noqa: T201
    assert sum(hit[step] for step in STEPS) >= 5
    # A sum was on the disk, and the round that used it was not: it was used again.
    assert hit[PUBLISHED] >= 5
    assert 0 < reached[-1] < rounds
    assert "Traceback" not in said(local)
    check_exact(local, rounds, tmp_path)


def wait_for(local: LocalFederation, began: float, rounds: int, step: str, stop: float) -> None:
    """Return when a server that was started at `began` is at a step, some rounds later."""
    first = None
    while True:
        assert time.monotonic() < stop, said(local)
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
        wait_for(local, began, rounds, PUBLISHED, stop)
        assert server.poll() is None, said(local)
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


def test_a_restarted_node_goes_on_with_its_own_folder(tmp_path: Path) -> None:
    """One node's process dies and one node's machine; both help again in later rounds."""
    rounds = 30
    local = settled(tmp_path / "federation", 4, rounds, missing=0.26, noise_from="nodes")
    port, dead = free_port(), {1: False, 2: True}
    at: dict[int, int] = {}
    before = {node: kept(local, node) for node in dead}
    stop, began = time.monotonic() + 400, time.time()
    with nodes_of(local, port) as nodes:
        server = start_server(local, port)
        try:
            while server.poll() is None:
                assert time.monotonic() < stop, said(local)
                seen = status(local, began)
                for node, machine in dead.items():
                    ready = seen["round_index"] == 2 * node and seen["step"] == "mask"
                    if ready and node not in at and len(nodes.up()) == nodes.count:
                        at[node] = seen["round_index"]
                        nodes.kill(node, machine=machine)
                if at.keys() == dead.keys() and all(
                    max(helped(local, node)) > at[node] for node in dead
                ):
                    break
                time.sleep(0.05)
            else:
                pytest.fail(f"no node came back: {said(local)}")
        finally:
            kill(server)
    assert {node: kept(local, node) for node in dead} == before
    for node in dead:
        found = helped(local, node)
        assert min(found) == 0
        assert set(found.values()) <= {1, 2}
        print(f"\nnode {node}: killed in {at[node]}, helped in {sorted(found)}")  # noqa: T201


def kept(local: LocalFederation, node: int) -> list[bytes]:
    """Return what a node keeps for itself: its key, its people, its enrolment."""
    folder = NodeFolder(local.node(node))
    return [path.read_bytes() for path in (folder.key, folder.people, folder.enrolment)]


def helped(local: LocalFederation, node: int) -> dict[int, int]:
    """Return how often a node answered in which rounds, by the file in its own folder."""
    path = NodeFolder(local.node(node)).reveals(local.terms.fingerprint)
    times = json.loads(path.read_text())["times"] if path.is_file() else {}
    return {int(number): count for number, count in times.items()}
