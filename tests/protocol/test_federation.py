"""One real federation in which a node dies, and wrong input to the commands of a federation."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import privrec
from commands import Refused, invoke
from privrec.errors import FederationError
from privrec.protocol.certificates import read_private_key, sign
from privrec.protocol.enrolment import (
    Enrolment,
    NodeFolder,
    check_roster,
    enrol,
    read_enrolments,
)
from privrec.runs.journal import settled_ledger
from tiny import DATA

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
UP = "from privrec.cli.entry import main; main()"
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
    telemetry: set[str | None] = field(default_factory=set)
    steps: set[tuple[int, int, str, str]] = field(default_factory=set)
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
        """Note the step; kill the victim's processes in the middle of the first round."""
        seen = status_of(self.out)
        state, attempt = seen["state"].get(str(victim), ""), (seen["round_index"], seen["attempt"])
        self.steps.add((*attempt, seen["step"], state))
        if self.killed_at is None and seen["step"] == "mask" and state == "mask …":
            self.killed_at = attempt
            folder = str(self.out / "nodes" / f"{victim:02d}")
            found = root.children(recursive=True)
            kill_tree(next(p for p in found if folder in words_of(p)))

    def _look_at(self, process: psutil.Process) -> None:
        for connection in process.net_connections(kind="inet"):
            self.remote |= set(connection.raddr[:1])
            if connection.status == psutil.CONN_LISTEN:
                self.listening |= set(connection.laddr[:1])
        # A process that has just ended has an empty environment.
        if "privrec.transport.processes" in words_of(process) and (found := process.environ()):
            self.telemetry.add(found.get("FLWR_TELEMETRY_ENABLED"))


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
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FLWR")}
    ours.pop("no_proxy", None)
    proxy = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), f"http://127.0.0.1:{PROXY}")
    found = os.pathsep.join([str(path), ours.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**ours, **proxy, "NO_PROXY": "", "PYTHONPATH": found, "WITNESS": str(path / "log")}


@pytest.mark.slow
def test_a_node_dies_in_mid_round_and_nothing_else_is_lost(tmp_path: Path) -> None:
    out, victim = tmp_path / "federation", 2
    words = ["--recipe", "dp-privrec-plus", "--data", DATA, "--epsilon", "8", "--nodes", "3"]
    words += [
        "--set",
        "missing=0.34",
        "--set",
        "min_people=1",
        "--set",
        "deadline=20",
        "--out",
        str(out),
    ]
    watch = Watch(out)
    with (tmp_path / "said").open("wb") as said:
        up = subprocess.Popen(
            [sys.executable, "-c", UP, "federate", "up", *words],
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

    # The node died with its masks in the sum, and the round went on without it.
    assert watch.killed_at is not None
    assert watch.killed_at[0] == 0
    assert (*watch.killed_at, "reveal", "no mask") in watch.steps
    run = privrec.open_run(out / "server" / "run")
    lines = settled_ledger(run.folder)
    assert [line["round"] for line in lines] == [0, 1]
    assert {(line["sums"], line["noise"]) for line in lines} == {("masked", "secure")}
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
    assert watch.telemetry == {"0"}

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
    private += [path for path in out.rglob("*") if path.name in {"secret", "people.safetensors"}]
    private += [*out.rglob("*.log"), *out.rglob("enrolment.json"), out / "server" / "roster.json"]
    assert len(private) >= 3 * 5 + 5
    assert modes(private) == {0o600}
    folders = [out / "server", *(out / "nodes").iterdir()]
    folders += [*out.rglob("superlink"), *out.rglob("supernode")]
    assert len(folders) == 4 + 4
    assert modes(folders) == {0o700}


# --- wrong input -----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def nodes(scratch: Path) -> Path:
    """The folders of three nodes, and of one whose data is of another catalogue."""
    data = privrec.load(DATA)
    for k in range(3):
        enrol(data, np.arange(16 * k, 16 * k + 16), scratch / f"n{k}")
    other = privrec.load(DATA.replace("items=40", "items=41"))
    enrol(other, np.arange(16), scratch / "other")
    return scratch


def enrolments(*names: str) -> list[str]:
    return [word for name in names for word in ("--enrolment", f"{name}/enrolment.json")]


ALL = enrolments("n0", "n1", "n2")
CATALOGUE = ["--catalogue", "n0/catalogue.json"]
PREPARE = ["federate", "server", "server", "--prepare-only"]


def rewrite(place: Path, signer: Path | None, **changes: Any) -> Path:
    """Change an enrolment; sign it again with the key in a node's folder, if one is given."""
    path = place / "enrolment.json"
    found = json.loads(path.read_text()) | changes
    if signer is not None:
        statement = Enrolment.model_construct(**found).statement
        found["signature"] = sign(read_private_key(signer / "key"), statement).hex()
    path.write_text(json.dumps(found))
    return path


Change = Callable[[Path], Path]
WRONG: dict[str, tuple[Change, str]] = {
    "changed": (lambda p: rewrite(p / "n0", None, people=["somebody"]), "not signed by the key"),
    "no pseudonym": (lambda p: rewrite(p / "n0", p / "n0", people=[]), "names nobody, or"),
    "doubled": (lambda p: rewrite(p / "n0", p / "n0", people=["a", "b", "a"]), "somebody twice"),
    "signed by another": (lambda p: rewrite(p / "n0", p / "n1"), "not signed by the key"),
    "another's key": (
        lambda p: rewrite(p / "n0", None, public_key=read_enrolments(p / "n1")[0].public_key),
        "not signed by the key",
    ),
    "no name": (lambda p: rewrite(p / "n0", p / "n0", name=""), "no enrolment of a node"),
    "another name": (lambda p: rewrite(p / "n0", None, name="n1"), "not signed by the key"),
    "no hex": (lambda p: rewrite(p / "n0", None, signature="signature"), "no enrolment of a node"),
    "a number": (lambda p: rewrite(p / "n0", None, people=3), "no enrolment of a node"),
    "no key": (lambda p: rewrite(p / "n0", None, public_key="ü"), "not signed by the key"),
    "empty": (lambda p: text(p / "n0" / "enrolment.json", ""), "no enrolment of a node"),
    "a list": (lambda p: text(p / "n0" / "enrolment.json", "[]"), "no enrolment of a node"),
    "missing": (lambda p: p / "nowhere", "no enrolment of a node"),
}


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_enrolment_is_refused(name: str, nodes: Path, refused: Refused) -> None:
    change, words = WRONG[name]
    path = change(nodes)
    with pytest.raises(FederationError, match=words):
        read_enrolments(path)
    line = refused(*PREPARE, *CATALOGUE, "--enrolment", path, *enrolments("n1", "n2"))
    assert words in line


def test_enrolments_that_do_not_go_together_are_refused(nodes: Path) -> None:
    one, two = (read_enrolments(nodes / name)[0] for name in ("n0", "n1"))
    check_roster([one, two], one.catalogue)
    with pytest.raises(FederationError, match="the same key"):
        check_roster([one, two, one], one.catalogue)
    shared = Enrolment(
        name="shared",
        public_key=two.public_key,
        people=(*two.people, one.people[0]),
        catalogue=one.catalogue,
        undeclared=(),
        signature="",
    )
    with pytest.raises(FederationError, match="the same person"):
        check_roster([one, shared], one.catalogue)
    with pytest.raises(FederationError, match="enrolment 2 was made with another catalogue"):
        check_roster([one, *read_enrolments(nodes / "other")], one.catalogue)


SERVER: list[tuple[list[str], str]] = [
    ([], "give --catalogue and an --enrolment"),
    (CATALOGUE, "give --catalogue and an --enrolment"),
    (["--catalogue", "nowhere", *ALL], "nowhere: No such file"),
    (["--catalogue", "n0/enrolment.json", *ALL], "is not a whole catalogue"),
    ([*CATALOGUE, *ALL, *enrolments("n1")], "two enrolments present the same key"),
    ([*CATALOGUE, *ALL, *enrolments("other")], "enrolment 4 was made with another catalogue"),
    ([*CATALOGUE, *enrolments("n0")], "secure sums need at least 2 nodes"),
    ([*CATALOGUE, *ALL, "--recipe", "nothing"], "unknown recipe 'nothing'"),
    ([*CATALOGUE, *ALL, "--set", "roundz=1"], "did you mean 'rounds'?"),
    ([*CATALOGUE, *ALL, "--recipe", "ease"], "needs all data in one place"),
    (
        [*CATALOGUE, *ALL, "--noise-from", "me"],
        "`noise_from` must be 'server' or 'nodes'",
    ),
    ([*CATALOGUE, *ALL, "--noise-from", "nodes", "--no-secure-sum"], "needs secure sums"),
    ([*CATALOGUE, *ALL, "--set", "missing=1"], "`missing` must be < 1; got 1"),
    (
        [*CATALOGUE, *ALL, "--set", "missing=0.34", "--set", "colluding=0.34"],
        "too few to hide one node",
    ),
    ([*CATALOGUE, *ALL, "--set", "deadline=nan"], "`deadline` must be"),
    ([*CATALOGUE, *ALL, "--set", "deadline=inf"], "`deadline` must be <= 86400"),
    ([*CATALOGUE, *ALL, "--set", "min_people=-1"], "`min_people` must be >= 0"),
    ([*CATALOGUE, *ALL, "--set", "min_people=1000"], "`min_people` must be <= 48"),
    ([*CATALOGUE, *ALL, "--name", "b\u00e4nk"], "is no host name or address"),
    ([*CATALOGUE, *ALL, "--name", ""], "is no host name or address"),
    ([*CATALOGUE, *ALL, "--host", "a b"], "is no host name or address"),
    (["--catalogue", "n0/people.safetensors", *ALL], "is not a"),
    (
        [*CATALOGUE, *ALL, "--noise-from", "nodes", "--set", "noise_multiplier=0"],
        "noise from nodes needs noise in every phase",
    ),
    ([*CATALOGUE, *ALL, "--set", "delta=0.5"], "`delta` must be < 1/48"),
]


@pytest.mark.parametrize(("words", "said"), SERVER)
def test_a_server_that_cannot_be_is_not_made(
    words: list[str], said: str, nodes: Path, refused: Refused
) -> None:
    assert said in refused(*PREPARE, *words)


def test_other_commands_with_wrong_input(nodes: Path, refused: Refused) -> None:
    enrolling = ("federate", "enrol", "--data")
    assert "no built-in name" in refused(*enrolling, "nowhere", "--out", "new")
    assert "n0 is in the way" in refused(*enrolling, DATA, "--out", "n0")
    assert "Not a directory" in refused(*enrolling, DATA, "--out", "n0/key/below")
    assert "has no federation" in refused("federate", "status", "nowhere")
    made = invoke(*PREPARE, *CATALOGUE, *ALL)
    assert made.exit_code == 0, made.output
    assert "has not been started yet" in refused("federate", "status", "server")
    again = "has its terms already; start it without settings"
    for words in (
        ["--seed", "3"],
        ["--recipe", "privrec"],
        ["--set", "missing=0.1"],
        ["--secure-sum"],
    ):
        assert again in refused(*PREPARE, *words)
    assert "has its terms already" in refused(*PREPARE, *CATALOGUE, *ALL)
    assert "has no federation" in refused("federate", "server", "new", "--renew")

    def joins(name: str, terms: str = "server/terms.json", ca: str = "server/ca.crt") -> str:
        given = ("--server", "127.0.0.1:1", "--terms", terms, "--ca", ca)
        return refused("federate", "node", name, *given)

    assert "nowhere is no folder of a node" in joins("nowhere")
    assert "the node in other is not enrolled in these terms" in joins("other")
    assert "cannot read nowhere" in joins("n0", terms="nowhere")
    assert "has no terms of a federation" in joins("n0", terms="server/ca.crt")
    assert "cannot read the certificate nowhere" in joins("n0", ca="nowhere")
    assert "is no certificate in PEM format" in joins("n0", ca="server/terms.json")


def test_a_node_refuses_terms_that_are_not_about_its_people(nodes: Path, refused: Refused) -> None:
    assert invoke(*PREPARE, *CATALOGUE, *ALL).exit_code == 0
    path = nodes / "server" / "terms.json"
    terms = json.loads(path.read_text())
    terms["members"][0]["people"] += 1
    path.write_text(json.dumps(terms))
    given = ("--server", "127.0.0.1:1", "--terms", path, "--ca", "server/ca.crt")
    assert "have 17 people of the node in n0" in refused("federate", "node", "n0", *given)
    NodeFolder(path=nodes / "n1").people.write_bytes(b"nothing")
    assert "n1 is no folder of a node" in refused("federate", "node", "n1", *given)
