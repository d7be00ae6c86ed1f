"""Who is refused by a real SuperLink or by a real node, and what they are told."""

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from privrec.errors import FederationError
from privrec.protocol import certificates
from privrec.protocol.certificates import make_authority, make_node_key, public_key_text
from privrec.transport.link import Link, _Server, open_link
from privrec.transport.local import LOCAL, free_port
from privrec.transport.processes import MODULE, SECRET_HEADER, child, private_folder, write_secret

# Flower packs an app with a call that its library `pathspec` deprecates.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

NODE = """
import sys
from pathlib import Path
from privrec.errors import FederationError
from privrec.transport.supernode import serve

folder, superlink, ca, key, port, patience = sys.argv[1:]
try:
    serve(lambda request: request[::-1], folder=Path(folder), superlink=superlink, ca=Path(ca),
          key=Path(key), port=int(port), patience=float(patience))
except FederationError as error:
    sys.exit(f"refused: {error}")
"""


@dataclass
class Party:
    """A server's folder with the keys of two enrolled nodes and of a stranger, and its port."""

    folder: Path
    port: int

    @property
    def address(self) -> str:
        return f"{LOCAL}:{self.port}"

    def key(self, name: str) -> Path:
        return self.folder / f"key-{name}"

    def node(self, name: str, key: str, *, patience: float, **more: Path) -> subprocess.Popen[str]:
        """Return the process of a node that knows this server, or another `ca`."""
        words = [self.folder / name, self.address, more.get("ca", self.folder / "ca.crt")]
        words += [self.key(key), str(free_port()), str(patience)]
        return subprocess.Popen(
            [sys.executable, "-c", NODE, *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
        )

    def refusal(self, name: str, key: str, **more: Path) -> str:
        """Return the one line with which a node ends that is not let in."""
        node = self.node(name, key, patience=1.0, **more)
        try:
            _, said = node.communicate(timeout=300)
        finally:
            end(node)
        assert node.returncode == 1, said
        [line] = [line for line in said.splitlines() if line.startswith("refused: ")]
        assert "Traceback" not in said
        return line


def end(node: subprocess.Popen[str]) -> None:
    """End a node and wait for its SuperNode."""
    if node.poll() is None:
        below = psutil.Process(node.pid).children(recursive=True)
        node.terminate()
        node.communicate(timeout=120)
        psutil.wait_procs(below, timeout=60)


@contextmanager
def same_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def new_party(folder: Path) -> Party:
    make_authority(private_folder(folder), hosts=[LOCAL])
    party = Party(folder, free_port())
    for name in ("one", "two", "stranger"):
        make_node_key(party.key(name))
    return party


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Party, Link]]:
    """A server that waits for its nodes one and two."""
    party = new_party(tmp_path_factory.mktemp("refused") / "server")
    keys = [public_key_text(party.key(name)) for name in ("one", "two")]
    with same_environment(), open_link(party.folder, keys, host=LOCAL, port=party.port) as link:
        yield party, link


def until(found: Callable[[], bool], seconds: float = 300.0) -> None:
    stop = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < stop
        time.sleep(0.2)


# --- nodes that a server refuses -------------------------------------------------------------


def test_a_stranger_and_a_second_node_with_one_key_are_refused(
    opened: tuple[Party, Link],
) -> None:
    party, link = opened
    genuine = party.node("genuine", "one", patience=60.0)
    try:
        until(lambda: link.online() == {0})
        said = party.refusal("stranger", "stranger")
        assert f"{party.address} does not accept the key {party.key('stranger')}" in said
        assert "it is not enrolled there, or in use elsewhere" in said
        assert link.online() == {0}
        # Someone has copied the key of node one. The genuine node goes on undisturbed.
        said = party.refusal("thief", "one")
        assert f"does not accept the key {party.key('one')}" in said
        assert link.online() == {0}
        assert dict(link.ask({0: b"abc"}, 30.0)) == {0: b"cba"}
        assert genuine.poll() is None
    finally:
        end(genuine)


def test_a_ca_that_did_not_sign_the_server(opened: tuple[Party, Link], tmp_path: Path) -> None:
    party, link = opened
    make_authority(tmp_path, hosts=[LOCAL])
    said = party.refusal("other-ca", "two", ca=tmp_path / "ca.crt")
    assert said.endswith(
        f"the certificate of {party.address} was not signed by the authority in"
        f" {tmp_path / 'ca.crt'}"
    )
    assert 1 not in link.online()


def test_a_client_without_tls_gets_no_answer(opened: tuple[Party, Link], tmp_path: Path) -> None:
    party, link = opened
    before = link.online()  # A node of an earlier test may not have been missed yet.
    for path in ("/", "/v1/fleet/register-node", "/v1/control/list-nodes"):
        with pytest.raises(httpx.TransportError):
            httpx.post(f"http://{party.address}{path}", trust_env=False)
    log = bare_supernode(party, tmp_path / "supernode.log", "--insecure")
    assert "SuperNode ID:" not in log
    assert link.online() <= before


def test_a_node_without_a_key_is_refused(opened: tuple[Party, Link], tmp_path: Path) -> None:
    """A SuperLink without authentication would let it in."""
    party, link = opened
    before = link.online()
    ca = party.folder / "ca.crt"
    log = bare_supernode(party, tmp_path / "supernode.log", "--root-certificates", str(ca))
    assert "SuperNode ID:" not in log
    assert "SuperNode authentication is enabled" in log
    assert link.online() <= before


def bare_supernode(party: Party, log: Path, *words: str) -> str:
    """Return what a SuperNode that has no key writes until it ends, or is let in."""
    given = ["supernode", "--superlink", party.address, "--isolation", "process", *words]
    given += ["--host", LOCAL, "--port", str(free_port()), "--max-retries", "2"]
    with child(MODULE, given, log=log) as process:
        until(lambda: process.poll() is not None or b"SuperNode ID:" in log.read_bytes())
    return log.read_text()


# --- servers that a node refuses -------------------------------------------------------------


def new_certificate(party: Party, host: str, days: int) -> None:
    """Let the authority sign another certificate of the server."""
    key = serialization.load_pem_private_key((party.folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificates._certify(party.folder, key, [certificates._general_name(host)], days)


@contextmanager
def superlink(party: Party) -> Iterator[None]:
    """Start a SuperLink that looks at no certificate; `open_link` would not start."""
    place = private_folder(party.folder / "superlink")
    ca = (party.folder / "ca.crt").read_bytes()
    log = place / "superlink.log"
    server = _Server(address=party.address, ca=ca, secret=write_secret(place / "secret"), log=log)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOCAL, party.port)) == 0

    with server.started(party.folder, host=LOCAL, port=party.port):
        until(listens)
        yield


@pytest.mark.parametrize(
    ("host", "days", "words", "own"),
    [
        (
            LOCAL,
            -2,
            "has expired; its operator makes a new one with: privrec federate server FOLDER",
            "server.pem expired on .*; make a new one with: privrec federate server",
        ),
        (
            "server.example",
            2,
            "is for another host; its operator adds a name with: privrec federate server FOLDER",
            "certificate is not for 127.0.0.1",
        ),
    ],
)
def test_a_certificate_that_expired_or_is_for_another_host(
    host: str, days: int, words: str, own: str, tmp_path: Path
) -> None:
    party = new_party(tmp_path / "server")
    new_certificate(party, host, days)
    with same_environment():
        with superlink(party):
            said = party.refusal("node", "one")
            assert f"the certificate of {party.address} {words}" in said
        keys = [public_key_text(party.key("one"))]
        with (
            pytest.raises(FederationError, match=own),
            open_link(party.folder, keys, host=LOCAL, port=party.port),
        ):
            pass


def test_a_server_that_speaks_plain_http(tmp_path: Path) -> None:
    party = new_party(tmp_path / "server")
    asked: list[str] = []

    class Plain(http.server.BaseHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            asked.append(self.path)

    with http.server.ThreadingHTTPServer((LOCAL, party.port), Plain) as plain:
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        said = party.refusal("node", "one")
        plain.shutdown()
    assert said == f"refused: {party.address} speaks plain HTTP instead of TLS"
    assert not asked


# --- strangers at the Control API ------------------------------------------------------------


def test_a_stranger_cannot_call_what_is_the_owners(opened: tuple[Party, Link]) -> None:
    """Flower would let anybody start and stop runs and enroll nodes."""
    from flwr.proto.control_pb2 import (
        ListNodesRequest,
        RegisterNodeRequest,
        StartRunRequest,
        StopRunRequest,
    )
    from flwr.supercore.control import ControlHttpClient

    party, link = opened
    before = link.online()
    control = ControlHttpClient.from_server_address(
        party.address,
        insecure=False,
        root_certificates=(party.folder / "ca.crt").read_bytes(),
        interceptors=[],
    )
    calls: list[Callable[[], object]] = [
        lambda: control.StartRun(StartRunRequest()),
        lambda: control.StopRun(StopRunRequest(run_id=1)),
        lambda: control.RegisterNode(RegisterNodeRequest(public_key=b"key")),
        lambda: control.ListNodes(ListNodesRequest()),
    ]
    try:
        for call in calls:
            with pytest.raises(httpx.HTTPStatusError) as refused:
                call()
            assert refused.value.response.status_code == 403
    finally:
        control.close()
    assert link.online() <= before


@pytest.mark.parametrize("secret", [None, "", "0" * 64])
def test_only_what_nodes_call_is_open(opened: tuple[Party, Link], secret: str | None) -> None:
    from flwr.superlink.routers.control.router import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    party, _ = opened
    closed = [getattr(route, "path", "") for route in control.routes]
    assert "/v1/control/start-run" in closed
    closed += ["/", "/docs", "/openapi.json", "/v1/fleet", "/v1//fleet/", "//v1/fleet/"]
    closed += ["/v1/runtime/acquire-task", "/v1/runtime/push-messages", "/V1/FLEET/x"]
    own = (party.folder / "superlink" / "secret").read_text()
    with httpx.Client(verify=context(party), trust_env=False, timeout=60) as client:

        def answer(path: str, given: str | None) -> int:
            headers = {} if given is None else {SECRET_HEADER: given}
            return client.post(f"https://{party.address}{path}", headers=headers).status_code

        assert {path: answer(path, secret) for path in closed} == dict.fromkeys(closed, 403)
        # A path that leaves the open part again is no way in.
        for path in ("/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/list-nodes"):
            assert answer(path, secret) in (403, 404)
        # A node that does not sign its requests is refused by Flower itself.
        for route in fleet.routes:
            assert answer(getattr(route, "path", ""), secret) in (400, 401, 403, 415, 422)
        assert answer("/v1/control/list-nodes", own) != 403


def context(party: Party) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(party.folder / "ca.crt"))
