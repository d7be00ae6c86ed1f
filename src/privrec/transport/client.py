"""The node's side of the network: it opens a stream of requests over HTTPS and replies to each.

A node listens on no port. A request is bytes that an installed function handles; no code comes
from the network.
"""

import contextlib
import ipaddress
import logging
import re
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import httpx

from privrec.data.text import safe_text
from privrec.errors import FederationError, WireError
from privrec.protocol.certificates import (
    RENEW,
    check_certificate,
    key_hash,
    public_key_text,
    read_private_key,
    sign,
)
from privrec.transport.paths import (
    CHALLENGE,
    FAILED_HEADER,
    HEARTBEAT,
    REPLIES,
    STREAM,
    TOKEN_HEADER,
    WAITS_HEADER,
    frames,
    statement,
)

LOG = logging.getLogger("privrec.node")
Handle = Callable[[bytes], bytes]
FIRST_WAIT, LONGEST_WAIT = 0.2, 15.0
"""Seconds before a broken stream is opened again: 0.2, 0.4, … 15 (chosen by hand)."""
_SECONDS = 30.0
"""Time limit for opening a connection, and for each part of an answer (chosen by hand)."""
_REPLY_SECONDS = 600.0
"""Time limit for sending each part of a reply. It is long, because the server may first have to
use the replies of other nodes. Chosen by hand."""

_LONGEST_ANSWER = 1000
"""The most bytes that are read of an answer of the server that is no stream (chosen by hand)."""

# A pattern in the text of an error, and its meaning for the user; the first match is used.
REASONS = {
    r"CERTIFICATE_VERIFY_FAILED.*expired": (
        "the certificate of {server} has expired; its operator makes a new one with: {renew}"
    ),
    r"CERTIFICATE_VERIFY_FAILED.*(mismatch|not valid for)": (
        "the certificate of {server} is for another host; its operator adds a name with: {renew}"
        " --name NAME"
    ),
    r"CERTIFICATE_VERIFY_FAILED": (
        "the certificate of {server} was not signed by the authority in {ca}"
    ),
    r"WRONG_VERSION_NUMBER|record layer failure|HTTP_REQUEST": (
        "{server} speaks plain HTTP instead of TLS"
    ),
    r"UNEXPECTED_EOF": "{server} closed the connection: it may have too many connections",
    r"^403 ": "{server} does not accept the key {key}: it is not enrolled there",
    r"^409 ": "{server} does not accept the key {key}: it is in use elsewhere",
}


class _Stopped(BaseException):
    """A signal asked this process to stop. `except Exception` does not catch this class."""


@dataclass
class _Node:
    """One node: the function that answers requests, the server, and the state of the connection.

    `undelivered` is the number of the last request and its reply, until the reply is delivered.
    """

    handle: Handle
    server: str
    ca: Path
    key: Path
    on_state: Callable[[str], None]
    was_online: bool = False
    state: str = field(default="", init=False)
    after: int = -1
    """The number of the last request; 0 before the first request, -1 before the first stream."""
    undelivered: tuple[int, bytes | Exception] | None = None

    def tell(self, state: str) -> None:
        """Call `on_state` if the state has changed."""
        if state != self.state:
            self.state = state
            self.on_state(state)


def _silent(_state: str) -> None:
    """Ignore the state."""


def serve(
    handle: Handle,
    *,
    server: str,
    ca: Path,
    key: Path,
    on_state: Callable[[str], None] = _silent,
    patience: float = 90.0,
) -> None:
    """Answer every request with `handle(request)` until SIGTERM or SIGINT, then return.

    `server` is HOST:PORT. `on_state` is called with "starting", "online", "offline" or "stopped".
    Raises `FederationError` if the node could not connect for `patience` seconds from the start
    and the reason is known (`REASONS`).
    """
    _check_address(server)
    check_certificate(ca)
    read_private_key(key)
    node = _Node(handle, server, ca, key, on_state)
    give_up, wait = time.monotonic() + patience, FIRST_WAIT
    try:
        with _signals(), _client(server, ca) as client:
            while True:
                node.tell("offline" if node.was_online else "starting")
                reason = ""
                try:
                    _work(node, client)
                except (httpx.HTTPError, WireError, ValueError) as error:
                    reason = safe_text(str(error))
                    LOG.info("%s: %s", server, reason)
                known = _reason(reason, server=server, ca=ca, key=key)
                if known and not node.was_online and time.monotonic() > give_up:
                    raise FederationError(known)
                if node.state == "online":
                    wait = FIRST_WAIT
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
    except _Stopped:
        pass
    finally:
        node.tell("stopped")


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Raise `_Stopped` on SIGTERM and SIGINT within the context; only in the main thread."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _client(server: str, ca: Path) -> httpx.Client:
    """Return an HTTP client that requires TLS 1.3 and trusts only the authority in `ca`."""
    context = ssl.create_default_context(cafile=str(ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return httpx.Client(
        base_url=f"https://{server}",
        verify=context,
        headers={"Accept-Encoding": "identity"},
        timeout=_SECONDS,
        follow_redirects=False,
        # A proxy must never see messages between two processes of one machine.
        trust_env=not _is_loopback(server),
    )


def _check_address(server: str) -> None:
    """Raise `FederationError` unless `server` has the form HOST:PORT."""
    host, _, port = server.rpartition(":")
    try:
        url = httpx.URL(f"https://{server}")
    except httpx.InvalidURL:
        url = httpx.URL()
    is_port = port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16
    if not url.host or not is_port or re.search(r"[\s/@?#]", host):
        raise FederationError(f"the server's address must be HOST:PORT; got {server!r}")


def _is_loopback(server: str) -> bool:
    host = server.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reason(text: str, **names: object) -> str:
    """Return the meaning of an error as a sentence for the user, or "" if it is not known."""
    for pattern, sentence in REASONS.items():
        if re.search(pattern, text, re.IGNORECASE):
            return sentence.format(**names, renew=RENEW.format(folder="FOLDER"))
    return ""


def _work(node: _Node, client: httpx.Client) -> None:
    """Open a stream, and answer requests until the stream ends."""
    with client.stream("GET", CHALLENGE) as response:
        challenge = _said(response.raise_for_status())
    asked = {
        "key": key_hash(public_key_text(node.key)),
        "challenge": challenge,
        "signature": sign(
            read_private_key(node.key), statement(node.ca.read_bytes(), challenge)
        ).hex(),
        "after": node.after,
    }
    timeout = httpx.Timeout(_SECONDS, read=3 * HEARTBEAT)
    with client.stream("POST", STREAM, json=asked, timeout=timeout) as response:
        if response.status_code != 200:
            raise ValueError(f"{response.status_code} {_said(response)}")
        # The server may have refused the last reply without reading it, and its answer can be
        # lost. So the reply is dropped unless the server says that it still waits for this reply.
        if node.undelivered and str(node.undelivered[0]) != response.headers.get(WAITS_HEADER):
            node.undelivered = None
        token = ""
        for number, content in frames(response.iter_raw()):
            if number:
                node.after = number
                node.undelivered = number, _answer(node.handle, content)
                _deliver(node, client, token)
            elif content:
                token = content.decode("ascii")
                node.was_online, node.after = True, max(node.after, 0)
                node.tell("online")
                _deliver(node, client, token)


def _said(response: httpx.Response) -> str:
    """Return the beginning of an answer as text, without decoding by its headers."""
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > _LONGEST_ANSWER:
            break
    return content[:_LONGEST_ANSWER].decode("utf-8", "replace")


def _answer(handle: Handle, request: bytes) -> bytes | Exception:
    try:
        return handle(request)
    except Exception as error:
        LOG.warning("a request could not be answered: %s", type(error).__name__)
        return error


def _deliver(node: _Node, client: httpx.Client, token: str) -> None:
    """Send the undelivered reply, if there is one; of an error, send only the name of its class."""
    if node.undelivered is None:
        return
    number, reply = node.undelivered
    headers = {TOKEN_HEADER: token}
    if isinstance(reply, Exception):
        headers[FAILED_HEADER] = type(reply).__name__
        reply = b""
    timeout = httpx.Timeout(_REPLY_SECONDS, connect=_SECONDS)
    place = f"{REPLIES}/{number}"
    with client.stream("POST", place, content=reply, headers=headers, timeout=timeout) as response:
        said = _said(response)
    if response.status_code == 401:
        raise ValueError("401 the stream was opened anew")
    node.undelivered = None
    if response.status_code not in (204, 410):
        LOG.warning("a reply was not taken: %d %s", response.status_code, safe_text(said[:200]))
