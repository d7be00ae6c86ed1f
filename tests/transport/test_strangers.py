"""Who is refused by a server or by a node, and what they are told."""

import contextlib
import http.server
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from link_nodes import LONG, Net, Played, context_of, linked, played, until

from privrec.errors import FederationError, WireError
from privrec.protocol import certificates
from privrec.protocol.certificates import make_authority, read_private_key, sign
from privrec.transport import link as links
from privrec.transport.local import LOCAL
from privrec.transport.paths import CHALLENGE, STREAM, frames, head_of, statement

# --- nodes that a server refuses -------------------------------------------------------------


def test_a_stranger_and_a_second_node_with_one_key_are_refused(tmp_path: Path) -> None:
    with linked(tmp_path, 0) as (net, link):
        said = net.refusal(3)
        assert said == (
            f"{net.address} does not accept the key {net.key(3)}: it is not enrolled there"
        )
        # Someone has copied the key of node 0. The genuine node goes on undisturbed.
        said = net.refusal(0)
        assert said.endswith(f"does not accept the key {net.key(0)}: it is in use elsewhere")
        assert link.online() == {0}
        assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}
    assert [state for _, state in net.told][:2] == ["starting", "online"]


Change = Callable[[Played, Net], Any]


def altered(text: str) -> str:
    """Return a text of the same length whose first character is another hexadecimal digit."""
    return ("1" if text[0] == "0" else "0") + text[1:]


WRONG: dict[str, tuple[int, Change]] = {
    "signed by another": (
        403,
        lambda node, net: node.signed(
            text := node.challenge(),
            signature=sign(
                read_private_key(net.key(1)), statement(net.ca.read_bytes(), text)
            ).hex(),
        ),
    ),
    "signed for another federation": (
        403,
        lambda node, net: node.signed(node.challenge(), ca=b"another authority"),
    ),
    "signed without a federation": (
        403,
        lambda node, net: node.signed(
            text := node.challenge(),
            signature=sign(read_private_key(net.key(0)), text.encode()).hex(),
        ),
    ),
    "not signed": (403, lambda node, net: node.signed(node.challenge(), signature="")),
    "a forged challenge": (401, lambda node, net: node.signed(altered(node.challenge()))),
    "a longer time": (
        401,
        lambda node, net: node.signed(node.challenge().replace(".", ".9", 1)),
    ),
    "no challenge": (401, lambda node, net: node.signed("")),
    "an own challenge": (401, lambda node, net: node.signed(f"{'0' * 32}.9.{'0' * 64}")),
    "a challenge in other letters": (
        401,
        lambda node, net: node.signed("x") | {"challenge": "ü\ud800.9.0"},
    ),
    "no signature": (400, lambda node, net: node.signed(node.challenge(), signature="ü")),
    "a number": (400, lambda node, net: node.signed(node.challenge(), signature=3)),
    "no place": (400, lambda node, net: node.signed(node.challenge(), after="x")),
    "an endless place": (400, lambda node, net: b'{"after": 1e999}'),
    "half": (400, lambda node, net: {"key": "x"}),
    "a list": (400, lambda node, net: []),
    "nested": (400, lambda node, net: b"[" * 4096),
    "no text": (400, lambda node, net: b"\xff"),
    "empty": (400, lambda node, net: b""),
}


def test_no_wrong_request_opens_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with linked(tmp_path) as (net, link), closing(Played(net, 0)) as node:
        for name, (status, asked) in WRONG.items():
            assert (name, node.open(asked(node, net))) == (name, status)
        good, kept = node.challenge(), node.challenge()
        with monkeypatch.context() as patch:
            patch.setattr(links, "CHALLENGE_SECONDS", -1.0)
            old = node.challenge()
        assert node.open(node.signed(old)) == 401
        assert link.online() == set()
        # Nothing of it hurts the server; the same request is good if it is not changed.
        assert node.open(node.signed(good)) == 200
        assert link.online() == {0}
        assert node.open(node.signed(kept)) == 409
    assert not caplog.records or {one.name for one in caplog.records} == {"httpx"}


def test_replies_without_the_token_of_a_node_are_not_read(tmp_path: Path) -> None:
    with linked(tmp_path) as (net, link), played(net, 0, 1) as [node, other]:
        asked = link.ask({0: b"abc"}, LONG, 3)
        number, _ = node.next()
        token = node.token
        for wrong in ("", altered(token), token[:-1], f"{token}0"):
            node.token = wrong
            assert node.reply(number, b"bad") == 401
        assert other.reply(number, b"bad") == 410
        node.token = token
        assert [node.reply(wrong, b"bad") for wrong in (number + 1, 0, "x", "9" * 99)] == 4 * [410]
        assert node.reply(number, b"cba") == 204
        assert dict(asked) == {0: b"cba"}
        assert node.reply(number, b"bad") == 410
    assert (net.counts["refused 401"], net.counts["refused 410"]) == (4, 6)


def test_a_client_without_tls_or_with_an_old_one_gets_no_answer(tmp_path: Path) -> None:
    with linked(tmp_path) as (net, _):
        for path in ("/", CHALLENGE, STREAM):
            with pytest.raises(httpx.TransportError):
                httpx.post(f"http://{net.address}{path}", trust_env=False, timeout=LONG)
        old = context_of(net)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection((LOCAL, net.port), timeout=LONG) as line,
            pytest.raises(ssl.SSLError),
        ):
            old.wrap_socket(line, server_hostname=LOCAL)
        with closing(Played(net, 0)) as node:
            assert len(node.challenge()) > 64


# --- servers that a node refuses -------------------------------------------------------------


def new_certificate(net: Net, host: str, days: int) -> None:
    """Let the authority sign another certificate of the server."""
    key = serialization.load_pem_private_key((net.folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificates._certify(net.folder, key, [certificates._general_name(host)], days)


@pytest.mark.parametrize(
    ("host", "days", "words"),
    [
        (LOCAL, -2, "has expired; its operator makes a new one with: privrec federate server"),
        ("server.example", 2, "is for another host; its operator adds a name with: privrec"),
    ],
)
def test_a_certificate_that_expired_or_is_for_another_host(
    host: str, days: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Net(tmp_path) as net:
        new_certificate(net, host, days)
        if days < 0:
            with (
                pytest.raises(FederationError, match=r"expired on .*; make a new one with"),
                net.open(),
            ):
                pass
        monkeypatch.setattr(links, "check_certificate", lambda *_, **__: None)
        with net.open():
            assert f"the certificate of {net.address} {words}" in net.refusal(0)


def test_a_ca_that_did_not_sign_the_server(tmp_path: Path) -> None:
    make_authority(tmp_path / "other", hosts=[LOCAL])
    with linked(tmp_path / "own") as (net, link):
        ca = tmp_path / "other" / "ca.crt"
        assert net.refusal(0, ca=ca) == (
            f"the certificate of {net.address} was not signed by the authority in {ca}"
        )
        assert link.online() == set()


def test_a_server_that_speaks_plain_http(tmp_path: Path) -> None:
    asked: list[str] = []

    class Plain(http.server.BaseHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            asked.append(self.path)

    with Net(tmp_path) as net, http.server.ThreadingHTTPServer((LOCAL, net.port), Plain) as plain:
        threading.Thread(target=plain.serve_forever, args=(0.05,), daemon=True).start()
        said = net.refusal(0)
        plain.shutdown()
    assert said == f"{net.address} speaks plain HTTP instead of TLS"
    assert not asked


def test_no_server_makes_a_node_sign_or_read_what_it_likes() -> None:
    """A challenge is a part of a longer statement; a frame has a largest size."""
    assert statement(b"", "privrec reply ").startswith(b"privrec stream ")
    assert statement(b"a", "c") != statement(b"b", "c")
    with pytest.raises(WireError, match="at most"):
        next(frames([head_of(1, 2**30 + 1)]))
    whole = head_of(1, 50) + bytes(range(50)) + head_of(2, 0)
    for size in (1, 7, 200):
        pieces = [whole[k : k + size] for k in range(0, len(whole), size)]
        assert list(frames(pieces)) == [(1, bytes(range(50))), (2, b"")]


@pytest.mark.parametrize(
    "heads",
    [
        {"Content-Length": str(2**40)},
        {"Content-Type": "text/plain; charset=rot13"},
        {"Content-Encoding": "gzip"},
    ],
    ids=["endless", "charset", "packed"],
)
def test_no_answer_of_a_server_ends_a_node_or_fills_its_memory(
    heads: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it says about itself, only the beginning is read, as it came."""
    served: list[int] = []

    class Hostile(http.server.BaseHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in {"Content-Length": "6", **heads}.items():
                self.send_header(name, value)
            self.end_headers()
            served.append(0)
            with contextlib.suppress(OSError):
                self.wfile.write(b"\x1b[2J\xff\n")
                while int(heads.get("Content-Length", 0)) > served[-1]:
                    served[-1] += self.wfile.write(bytes(2**16))

        def do_POST(self) -> None:
            self.send_response(403)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"\x1b[2J\xff\n")

    caplog.set_level("INFO", "privrec.node")
    with Net(tmp_path) as net, http.server.ThreadingHTTPServer((LOCAL, 0), Hostile) as hostile:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(net.folder / "server.pem", net.folder / "server.key")
        hostile.socket = context.wrap_socket(hostile.socket, server_side=True)
        threading.Thread(target=hostile.serve_forever, args=(0.05,), daemon=True).start()
        net.start(0, port=hostile.server_address[1])
        until(lambda: len(net.slept) >= 2)
        hostile.shutdown()
    assert len(served) >= 2
    assert max(served) < 2**26
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize(
    "server",
    ["", "a", "a:", ":1", "a:b", "a:0", "a:70000", "https://a:1", "a:1/b", "a b:1", "u@a:1"],
)
def test_an_address_is_a_host_and_a_port(server: str, tmp_path: Path) -> None:
    with Net(tmp_path) as net:
        said = net.refusal(0, server=server)
    assert said == f"the server's address must be HOST:PORT; got {server!r}"
