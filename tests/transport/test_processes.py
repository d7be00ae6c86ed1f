"""One real federation in which a node dies: nothing else is lost, nothing leaves the machine."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import privrec
from privrec.runs.ledger import settled_ledger
from tiny import DATA

LOST = ("no mask", "no reveal")
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
# The server appends every state to a file: a look now and then could miss one.
UP = """
import sys
from privrec.cli.entry import main
from privrec.protocol.server import ServerStatus
states, real_write = sys.argv.pop(1), ServerStatus.write
def write(status, place):
    with open(states, "a") as out:
        out.write(status.model_dump_json() + "\\n")
    real_write(status, place)
ServerStatus.write = write
main()
"""
# Nobody listens there, and nobody may try: what is for another machine would go through a proxy.
PROXY = "9"

# Python runs this first in every process of the federation. Unlike a look now and then, it misses
# no connection and no question for an address, not even one that fails.
WITNESS = """
import os, sys
def note(event, words):
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
        place = words if event == "socket.getaddrinfo" else words[1]
        host, port = place[:2] if isinstance(place, tuple) else (place, "")
        file = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{event} {host} {port}\\n".encode())
        os.close(file)
sys.addaudithook(note)
"""


@dataclass
class Watch:
    """What was seen of the processes of a federation while it ran."""

    out: Path
    processes: set[psutil.Process] = field(default_factory=set)
    remote: set[str] = field(default_factory=set)
    listening: set[str] = field(default_factory=set)
    killed_at: tuple[int, int] | None = None

    def look(self, root: psutil.Process) -> None:
        """Look at all processes; this can take longer than a step of a round."""
        found = [root, *root.children(recursive=True)]
        self.processes |= set(found)
        for process in found:
            try:
                self._look_at(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue

    def follow(self, root: psutil.Process, victim: int) -> None:
        """Kill the victim in the middle of the first round, while the server waits for its mask."""
        seen = status_of(self.out)
        state = seen["state"].get(str(victim), "")
        if self.killed_at is None and seen["step"] == "mask" and state == "mask …":
            self.killed_at = seen["round_index"], seen["attempt"]
            folder = str(self.out / "nodes" / f"{victim:02d}")
            next(p for p in root.children(recursive=True) if folder in words_of(p)).kill()

    def _look_at(self, process: psutil.Process) -> None:
        for connection in process.net_connections(kind="inet"):
            self.remote |= set(connection.raddr[:1])
            if connection.status == psutil.CONN_LISTEN:
                self.listening |= set(connection.laddr[:1])


def keep_looking(watch: Watch, root: psutil.Process, up: "subprocess.Popen[bytes]") -> None:
    while up.poll() is None:
        with suppress(psutil.NoSuchProcess):
            watch.look(root)
        time.sleep(0.1)


def status_of(out: Path) -> dict[str, Any]:
    path = out / "server" / "status.json"
    found: dict[str, Any] = {"step": "", "state": {}, "round_index": 0, "attempt": 0}
    return found | json.loads(path.read_text()) if path.exists() else found


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill_tree(process: psutil.Process) -> None:
    """Kill a process and all below it, as if their machine had lost its power."""
    for one in [process, *process.children(recursive=True)]:
        one.kill()


def environment(path: Path) -> dict[str, str]:
    """Return the environment of a federation under watch, with a proxy that nobody may use."""
    path.mkdir()
    (path / "sitecustomize.py").write_text(WITNESS)
    ours = {name: value for name, value in os.environ.items() if name != "no_proxy"}
    proxy = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), f"http://127.0.0.1:{PROXY}")
    found = os.pathsep.join([str(path), ours.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**ours, **proxy, "NO_PROXY": "", "PYTHONPATH": found, "WITNESS": str(path / "log")}


@pytest.mark.slow
def test_a_node_dies_in_mid_round_and_nothing_else_is_lost(tmp_path: Path) -> None:
    out, victim = tmp_path / "federation", 2
    words = ["--recipe", "dp-privrec-plus", "--data", DATA, "--epsilon", "8", "--nodes", "3"]
    words += ["--set", "missing=0.34", "--set", "min_people=1", "--set", "deadline=20"]
    words += ["--out", str(out)]
    watch = Watch(out)
    with (tmp_path / "said").open("wb") as said:
        up = subprocess.Popen(
            [sys.executable, "-c", UP, str(tmp_path / "states"), "federate", "up", *words],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment(tmp_path / "witness"),
        )
    try:
        root, stop = psutil.Process(up.pid), time.monotonic() + 600
        looking = threading.Thread(target=keep_looking, args=(watch, root, up), daemon=True)
        looking.start()
        while up.poll() is None:
            assert time.monotonic() < stop, (tmp_path / "said").read_text()
            watch.follow(root, victim)
            time.sleep(0.01)
        looking.join(60)
    finally:
        if up.poll() is None:
            kill_tree(root)
            up.wait()
    assert up.returncode == 0, (tmp_path / "said").read_text()

    # The node died with its masks in the sum, and the round went on without it. It may have sent
    # its masked sum just before.
    assert watch.killed_at is not None
    assert watch.killed_at[0] == 0
    states = [json.loads(line) for line in (tmp_path / "states").read_text().splitlines()]
    missing = {
        (state["round_index"], state["attempt"])
        for state in states
        if state["step"] == "reveal" and state["state"].get(str(victim)) in LOST
    }
    assert watch.killed_at in missing
    run = privrec.open_run(out / "server" / "run")
    lines = settled_ledger(run.folder)
    assert [line.round for line in lines] == [0, 1]
    assert {(line.sums, line.noise) for line in lines} == {("masked", "secure")}
    epsilon = run.privacy().epsilon
    assert epsilon is not None
    assert 7.8 < epsilon <= 8
    assert run.folder.params_path.is_file()

    # Nothing left this machine, and nothing tried to.
    assert watch.remote
    assert watch.remote <= LOOPBACK
    assert watch.listening == {"127.0.0.1"}
    log = (tmp_path / "witness" / "log").read_text()
    events = [line.split(" ") for line in log.splitlines()]
    assert {event for event, _, _ in events} >= {"socket.connect", "socket.bind"}
    assert {host for _, host, _ in events} <= LOOPBACK
    assert PROXY not in {port for _, _, port in events}

    _, left = psutil.wait_procs(watch.processes, timeout=60)
    found = [words_of(process) for process in left]
    for process in left:
        process.kill()
    assert not found
    check_modes(out)


def check_modes(out: Path) -> None:
    """Keys and people's data are for their owner alone, and so are the folders they lie in."""

    def modes(names: list[Path]) -> set[int]:
        assert names
        return {stat.S_IMODE(path.stat().st_mode) for path in names}

    private = [path for path in out.rglob("*") if path.name in {"key", "ca.key", "server.key"}]
    private += [*out.rglob("people.safetensors"), out / "server" / "roster.json"]
    private += [*out.rglob("*.log"), *out.rglob("enrolment.json")]
    assert len(private) >= 3 * 4 + 3
    assert modes(private) == {0o600}
    folders = [out / "server", *(out / "nodes").iterdir()]
    assert len(folders) == 4
    assert modes(folders) == {0o700}
