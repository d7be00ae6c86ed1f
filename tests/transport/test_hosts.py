"""A federation of hosts with addresses of their own, one of which loses its network in mid-round.

Each host is a network namespace of Linux, with a cable to one switch.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privrec.core.phase import Cohort, Phase, Told
from privrec.core.round import Network, fastest
from privrec.data.clients import nobody
from privrec.privacy.aggregate import CohortTotal
from privrec.protocol.certificates import renew
from privrec.protocol.coding import layout_of
from privrec.protocol.enrolment import NodeFolder, read_people, read_server
from privrec.protocol.terms import plan_of
from privrec.runs import folder as records
from privrec.runs.ledger import ledger_of, settled_ledger
from privrec.runs.loop import play_stages
from privrec.transport.local import LocalFederation, make_local
from tiny import DATA, MODEL

pytestmark = pytest.mark.slow

NODES, ROUNDS, CUT, VICTIM = 4, 6, 2, 1
ADDRESS, PORT = "10.77.0.1", 8443
LONG = 900.0

# The command of the server. It notes each sum, waits in round CUT until a cable was pulled, and
# after the next round until it is plugged in again.
SERVER = """
import json, sys, time
from pathlib import Path
from privrec.cli.entry import main
from privrec.protocol.server import ServerStatus, Unmasking
place, cut = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
real_write, real_look, real_begin = ServerStatus.write, ServerStatus.look, Unmasking.begin
def wait(name):
    while not (place / name).exists():
        time.sleep(0.02)
def write(status, path):
    real_write(status, path)
    if status.step == "mask" and status.round_index == cut:
        wait("cut")
def look(status, online):
    while status.round_index > cut and not (place / "back").exists():
        (place / "new").write_text(json.dumps(sorted(online())))
        (place / "new").rename(place / "online")
        time.sleep(0.05)
    return real_look(status, online)
def begin(self, round_index, people, survivors):
    with (place / "sums").open("a") as out:
        out.write(json.dumps([round_index, people.tolist(), list(survivors)]) + "\\n")
    real_begin(self, round_index, people, survivors)
ServerStatus.write, ServerStatus.look, Unmasking.begin = write, look, begin
main()
"""


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Hosts:
    """Namespaces: the switch and the server are in the first one, and a node in each other one."""

    names: list[str]

    def cable(self, node: int, state: str) -> None:
        """Set the cable of a node "up" or "down", at the switch."""
        ip("-n", self.names[0], "link", "set", f"v{node}", state)

    def command(self, host: int, *words: str) -> list[str]:
        """Return the command that runs Python on a host."""
        return ["ip", "netns", "exec", self.names[host], sys.executable, *words]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Skip where nobody may make namespaces; where a browser is required, root must be able to."""
    if os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")
    required = "required" if os.environ.get("CI") == "true" else os.environ.get("PRIVREC_BROWSER")
    if shutil.which("ip") is None:
        if required == "required":
            pytest.fail("there is no `ip` (iproute2), and this machine must have all programs")
        pytest.skip("there is no `ip` (iproute2)")
    name = f"privrec-{os.getpid()}-{secrets.token_hex(4)}"
    made = Hosts([f"{name}-{k}" for k in range(NODES + 1)])
    with ExitStack() as stack:
        try:
            for host in made.names:
                ip("netns", "add", host)
                stack.callback(ip, "netns", "delete", host)
                ip("-n", host, "link", "set", "lo", "up")
        except OSError as error:
            if required == "required":
                raise
            pytest.skip(f"no network namespace can be made: {error}")
        first = made.names[0]
        ip("-n", first, "link", "add", "switch", "type", "bridge")
        ip("-n", first, "address", "add", f"{ADDRESS}/24", "dev", "switch")
        ip("-n", first, "link", "set", "switch", "up")
        for node, host in enumerate(made.names[1:]):
            peer = ["peer", "name", "eth0", "netns", host]
            ip("-n", first, "link", "add", f"v{node}", "type", "veth", *peer)
            ip("-n", first, "link", "set", f"v{node}", "master", "switch", "up")
            ip("-n", host, "address", "add", f"10.77.0.{10 + node}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
        yield made


@contextmanager
def running(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def sums_of(place: Path) -> dict[int, tuple[list[int], set[int]]]:
    """Return for each round the drawn people, and the nodes whose sums are in it."""
    path = place / "sums"
    lines = path.read_text().splitlines() if path.exists() else []
    return {number: (people, set(nodes)) for number, people, nodes in map(json.loads, lines)}


def online(place: Path) -> set[int]:
    path = place / "online"
    return set(json.loads(path.read_text())) if path.exists() else set(range(NODES))


def played_again(local: LocalFederation, path: Path) -> records.RunFolder:
    """Return the run of a training in one process, in which the same people are missing."""
    _, terms, catalogue = read_server(local.server.path)
    sums = sums_of(local.path)

    def add_up(
        phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
    ) -> CohortTotal:
        arrays = {name: np.asarray(leaf) for name, leaf in told.items()}
        empty = nobody(catalogue.schema, 1)
        layout = layout_of(phase, arrays, empty, round_index, clip_norm)
        total, nodes = np.zeros(layout.size), terms.node_of(cohort.people)
        for node in sums[round_index][1]:
            people, _ = read_people(NodeFolder(local.node(node)))
            take = plan_of(terms, catalogue, people, node).task.federation.take
            mine = cohort.people[nodes == node]
            if len(mine):
                found = fastest(phase, arrays, Cohort(mine, take), round_index, clip_norm)
                total += layout.vector(found, len(mine))
        return layout.total(total)

    def begun(round_index: int) -> Any:
        return np.array(sums[round_index][0], np.int64)

    alone = records.create_run(path, terms.settings, "{}", None)
    play_stages(
        plan_of(terms, catalogue), alone, network=Network(run=add_up, about={}, begun=begun)
    )
    return alone


def test_a_host_loses_its_network_in_mid_round_and_comes_back(hosts: Hosts, tmp_path: Path) -> None:
    agreed = {"missing": 0.26, "min_people": 1, "deadline": 20.0}
    settings = {**MODEL, "cohort": 40, "epsilon": 8.0, "noise": "seeded", "rounds": ROUNDS}
    local = make_local(
        tmp_path / "net", "dp-privrec-one", DATA, nodes=NODES, settings={**settings, **agreed}
    )
    renew(local.server.path, hosts=[ADDRESS])
    place, stop = local.path, time.monotonic() + LONG
    with ExitStack() as stack:
        words = ["-c", SERVER, str(place), str(CUT), "federate", "server", str(local.server.path)]
        words += ["--host", ADDRESS, "--port", str(PORT), "--wait", "300"]
        log = place / "server.log"
        server = stack.enter_context(running(hosts.command(0, *words), log))
        for node in range(NODES):
            words = ["-m", "privrec.transport.run_node", str(local.node(node))]
            words += [str(local.server.terms), str(local.server.ca), f"{ADDRESS}:{PORT}"]
            process = running(hosts.command(1 + node, *words), place / f"node{node}.log")
            stack.enter_context(process)

        def until(found: Callable[[], bool]) -> None:
            while not found():
                assert time.monotonic() < stop, log.read_text()
                assert server.poll() is None, log.read_text()
                time.sleep(0.02)

        def status() -> tuple[int, str]:
            path = local.server.status
            seen = json.loads(path.read_text()) if path.exists() else {}
            return seen.get("round_index", 0), seen.get("step", "")

        until(lambda: status() == (CUT, "mask"))
        hosts.cable(VICTIM, "down")
        (place / "cut").touch()
        # The training goes on without this host, which then counts as away, without a word from it.
        until(lambda: online(place) == set(range(NODES)) - {VICTIM})
        hosts.cable(VICTIM, "up")
        until(lambda: VICTIM in online(place))
        (place / "back").touch()
        assert server.wait(max(1.0, stop - time.monotonic())) == 0, log.read_text()
    check(local, tmp_path)


def check(local: LocalFederation, tmp_path: Path) -> None:
    """The ledger has each round once; the sums are those of the nodes that stayed."""
    sums = sums_of(local.path)
    assert sorted(sums) == list(range(ROUNDS))
    assert VICTIM in sums[CUT - 1][1]
    assert VICTIM not in sums[CUT][1] | sums[CUT + 1][1]
    assert VICTIM in set.union(*(sums[number][1] for number in range(CUT + 2, ROUNDS)))
    assert all(len(nodes) >= NODES - 1 for _, nodes in sums.values())
    assert "Traceback" not in (local.path / "server.log").read_text()
    run, _ = records.read_run(local.server.run)
    assert [line.round for line in settled_ledger(run)] == list(range(ROUNDS))
    alone = played_again(local, tmp_path / "alone")
    assert ledger_of(run).entries == ledger_of(alone).entries
    one, other = (records.read_arrays(folder.params_path) for folder in (run, alone))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-5, rtol=0, err_msg=name)
