"""What owners and operators are shown: whom to trust, who is missing, and what to do."""

import base64
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from commands import Refused, document, done, invoke
from privrec.errors import FederationError, SettingsError
from privrec.protocol.certificates import check_certificate, make_authority
from privrec.protocol.enrolment import enrol
from privrec.protocol.server import ServerStatus
from privrec.protocol.terms import Terms, read_terms
from privrec.show.status import Watched
from privrec.transport import run_server as server
from privrec.transport.link import Link
from privrec.transport.run_node import open_node
from tiny import DATA

NAMES = ("north", "south", "west")
NODE = ("--server", "127.0.0.1:1", "--terms", "host/terms.json", "--ca", "host/ca.crt")


def found(*more: str, names: tuple[str, ...] = NAMES) -> list[str]:
    """Return the command that founds a federation of these nodes in the folder `host`."""
    words = ["federate", "server", "host", "--prepare-only", "--catalogue", "north/catalogue.json"]
    for name in names:
        words += ["--enrolment", f"{name}/enrolment.json"]
    return [*words, *more]


def enrol_nodes(data: str, people: int) -> None:
    loaded = privrec.load(data)
    for k, name in enumerate(NAMES):
        enrol(loaded, np.arange(people * k, people * (k + 1)), Path(name))


@pytest.fixture
def host(scratch: Path) -> Path:
    """A federation of three nodes of 16 people; one node may be missing."""
    enrol_nodes(DATA, 16)
    done(*found("--set", "missing=0.34", "--set", "min_people=1", "--set", "deadline=5"))
    return scratch / "host"


# --- what people compare ---------------------------------------------------------------------


def shown_to_owners(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Yield what is shown where an owner compares: on the server, on a node, in the status."""
    yield "server", done("federate", "server", "host", "--prepare-only")

    def starts(handle: Any, *, on_state: Any, **rest: Any) -> None:
        on_state("starting")

    monkeypatch.setattr("privrec.transport.run_node.serve", starts)
    yield "node", done("federate", "node", "north", *NODE)
    ServerStatus().write(Path("host/status.json"))
    yield "status", done("federate", "status", "host")


def key_hash(name: str) -> str:
    """Return the hash of a node's key, as other programs for such keys compute it."""
    kind, blob = Path(name, "key.pub").read_text().split()[:2]
    assert kind == "ecdsa-sha2-nistp384"
    return hashlib.sha256(base64.b64decode(blob)).hexdigest()


@pytest.mark.usefixtures("host")
def test_owners_compare_128_bits_of_the_terms_and_of_every_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = Path("host/terms.json").read_text()
    terms = hashlib.sha256(text.encode()).hexdigest()
    for where, shown in shown_to_owners(monkeypatch):
        together = "".join(shown.split())
        assert terms[:32] in together, where
        for name in NAMES:
            lines = [x for x in shown.splitlines() if key_hash(name)[:32] in "".join(x.split())]
            [line] = lines
            assert {name, "16"} <= set(line.replace("│", " ").split()), where


@pytest.mark.usefixtures("host")
def test_terms_that_agree_in_64_bits_look_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that writes the terms can search for two with the same beginning of their hash."""
    shown = {}
    for digest in ("0" * 64, "0" * 16 + "1" * 48, "0" * 31 + "1" + "0" * 32):
        monkeypatch.setattr(Terms, "fingerprint", digest)
        shown[digest] = dict(shown_to_owners(monkeypatch))
    for where in ("server", "node", "status"):
        assert len({texts[where] for texts in shown.values()}) == 3, where


@pytest.mark.usefixtures("host")
def test_an_owner_can_look_before_the_node_takes_part() -> None:
    shown = done("federate", "node", "north", *NODE, "--dry-run")
    assert "against who sees the model: epsilon" in shown
    assert "north (this node)" in shown


def test_a_name_is_the_owners_and_signed(scratch: Path, refused: Refused) -> None:
    loaded = privrec.load(DATA)
    enrol(loaded, np.arange(16), Path("north"), name="the clinic")
    enrolment = Path("north/enrolment.json")
    enrol(loaded, np.arange(16, 32), Path("south"))
    assert "the clinic" in done(*found(names=("north", "south")))
    enrolment.write_text(enrolment.read_text().replace("the clinic", "the office"))
    words = [word.replace("host", "other") for word in found(names=("north", "south"))]
    assert "not signed by the key" in refused(*words)
    with pytest.raises(SettingsError, match="`name` must be 1 to 60 characters"):
        enrol(loaded, np.arange(16), Path("west"), name="a\x1b[2Jb")
    assert not Path("west").exists()


# --- secure sums -----------------------------------------------------------------------------


@pytest.mark.slow
def test_sums_are_secure_unless_plain_ones_are_asked_for_by_name(
    scratch: Path, refused: Refused
) -> None:
    enrol_nodes("synthetic:users=330,items=40,longest=20", 110)
    for recipe in ("dp-privrec-plus", "privrec-plus"):
        folder = Path(recipe)
        words = [word if word != "host" else recipe for word in found("--recipe", recipe)]
        assert "secure sums" in done(*words)
        assert json.loads((folder / "terms.json").read_text())["secure_sum"] is True
    shown = done(*found("--set", "secure_sum=false"))
    assert "plain sums: the server sees each node's own sum" in shown
    assert json.loads(Path("host/terms.json").read_text())["secure_sum"] is False
    alone = [word if word != "host" else "alone" for word in found(names=("north",))]
    line = refused(*alone)
    assert "secure sums need at least 2 nodes" in line
    assert "--set secure_sum=false" in line
    assert "plain sums" in done(*alone, "--set", "secure_sum=false")


# --- status ----------------------------------------------------------------------------------


class Died(Exception):
    """The server's process was killed."""


@contextmanager
def stand_in(hosts: Mapping[int, Any], late: set[int], dies_at: int) -> Iterator[Any]:
    """Yield what carries messages in this process; the server dies at a request of some round."""
    asked = []

    def ask(
        requests: Mapping[int, bytes], deadline: float, most: int
    ) -> Iterator[tuple[int, bytes]]:
        asked.append(requests)
        if len(asked) >= dies_at:
            raise Died
        for node in requests.keys() - late:
            yield node, hosts[node].handle(requests[node])

    @contextmanager
    def connect(*words: Any, **more: Any) -> Iterator[Link]:
        yield Link(ask=ask, online=lambda: set(hosts))

    yield connect


@pytest.mark.slow
def test_status_names_who_is_missing_and_says_that_a_server_is_dead(host: Path) -> None:
    terms = read_terms(host / "terms.json")
    # The west was never there; the south answers the first request and then no more.
    hosts = {k: open_node(Path(name), terms) for k, name in enumerate(NAMES[:2])}
    alive: list[str] = []
    pages: list[dict[str, Any]] = []
    late: set[int] = set()

    def watch(seen: Any) -> None:
        alive.append(done("federate", "status", "host"))
        pages.append(json.loads(Watched(Path("host")).text()))
        if seen.step == "keys" and seen.state.get(1) == "keys":
            late.add(1)

    began = time.time()
    with stand_in(hosts, late, dies_at=4) as connect, pytest.raises((Died, FederationError)):
        server.serve(host, host="127.0.0.1", port=1, wait=0.0, watch=watch, connect=connect)
    assert alive
    assert not [text for text in alive if "not running" in text]
    assert re.search("west .*missing, not seen yet", alive[0])
    assert re.search("<td>west</td><td></td><td>missing, not seen yet</td>", pages[0]["nodes"])
    assert "The server is running: " in pages[0]["nodes"]
    last = json.loads(Watched(Path("host")).text())
    assert "The server is not running." in last["nodes"]
    assert (last["state"], last["resume"]) == ("stopped", "privrec federate server host")
    dead = done("federate", "status", "host")
    assert "the server is not running" in dead
    assert "go on with: privrec federate server host" in dead
    status = document("federate", "status", "host", "--json")
    assert status["running"] is False
    assert [member["name"] for member in status["members"]] == list(NAMES)
    assert status["missing"].keys() == {"1", "2"}
    since = status["missing"]["1"]
    assert began <= since <= time.time()
    assert re.search(
        f"south .*missing, since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S}", dead
    )
    assert status["missing"]["2"] is None


@pytest.mark.parametrize(
    "content", [None, "{", '{"last": {"0": 1e300}}', '{"last": {"0": NaN}}', '{"last": {"0": -1}}']
)
def test_a_status_of_another_hand_is_refused(tmp_path: Path, content: str | None) -> None:
    place = tmp_path / "status.json"
    if content is None:
        os.mkfifo(place)
    else:
        place.write_text(content)
    with pytest.raises(FederationError, match="damaged"):
        ServerStatus.read(place)


def test_a_server_that_waits_in_vain_names_who_is_missing(host: Path) -> None:
    terms = read_terms(host / "terms.json")
    hosts = {0: open_node(Path("north"), terms)}
    with (
        stand_in(hosts, set(), dies_at=1) as connect,
        pytest.raises(FederationError, match="missing: south, west"),
    ):
        server.serve(host, host="127.0.0.1", port=1, wait=0.0, connect=connect)


# --- what to do ------------------------------------------------------------------------------


def test_an_expired_certificate_says_how_to_make_a_new_one(host: Path, refused: Refused) -> None:
    make_authority(host, hosts=["a.example"], days=-2)
    authority = (host / "ca.crt").read_bytes()
    line = refused("federate", "node", "north", *NODE)
    assert "host/ca.crt expired on" in line
    assert "ask the server's operator for a new one" in line
    invoked = invoke("federate", "server", "host")
    assert invoked.exit_code == 2
    assert "Traceback" not in invoked.output
    [line] = invoked.stderr.splitlines()
    assert "expired on" in line
    command = line.rpartition("make a new one with: ")[2]
    assert command == "privrec federate server host --renew --prepare-only"
    said = done(*shlex.split(command)[1:])
    assert "give every node the new host/ca.crt" in said
    assert (host / "ca.crt").read_bytes() != authority
    for name in ("ca.crt", "server.pem"):
        check_certificate(host / name)
    done("federate", "node", "north", *NODE, "--dry-run")


def test_a_new_certificate_of_the_same_authority_needs_nothing_from_nodes(host: Path) -> None:
    """It also has another name, for a server that moved."""
    before = {name: (host / name).read_bytes() for name in ("ca.crt", "ca.key", "server.pem")}
    words = ("federate", "server", "host", "--prepare-only", "--renew", "--name", "b.example")
    assert "nodes need no new file" in done(*words)
    after = {name: (host / name).read_bytes() for name in before}
    assert [name for name in before if before[name] != after[name]] == ["server.pem"]
    from cryptography import x509

    authority, made = (x509.load_pem_x509_certificate(after[n]) for n in ("ca.crt", "server.pem"))
    made.verify_directly_issued_by(authority)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "b.example"}


@pytest.mark.slow
def test_a_node_is_added_by_the_steps_that_the_error_gives(host: Path, refused: Refused) -> None:
    enrol(privrec.load(DATA), np.arange(48, 60), Path("east"))
    line = refused("federate", "server", "host", "--enrolment", "east/enrolment.json")
    assert "has its terms already" in line
    command = line.partition("begin another training: ")[2].partition("; then")[0]
    assert "give every node the new terms.json; nodes" in line
    done(*shlex.split(command)[1:], "--prepare-only")
    made = json.loads(Path("host-2/terms.json").read_text())
    assert [member["name"] for member in made["members"]] == [*NAMES, "east"]
    assert made["settings"]["recipe"] == "dp-privrec-plus"
    for name in (*NAMES, "east"):
        given = [word.replace("host/", "host-2/") for word in NODE]
        done("federate", "node", name, *given, "--dry-run")
