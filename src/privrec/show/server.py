"""A small web server for this machine alone: named pages, a token in every address, GET only.

It answers from bytes that are ready, and reads no file for a request. So a thousand requests in a
second cost little (`make bench ONLY=watch`), and no address leads to a file.
"""

import asyncio
import contextlib
import hmac
import json
import re
import secrets
import selectors
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from privrec.errors import SettingsError

HOST = "127.0.0.1"
HTML, JSON, TEXT = "text/html", "application/json", "text/plain"
_END = b"\r\n\r\n"
_LONGEST = 8192
"""Bytes of a request. Chosen by hand, and so are the numbers below."""
_CONNECTIONS = 256
_IDLE_SECONDS = 60.0
_HEAD_SECONDS = 5.0
"""A new connection ends after this time without a whole request: others wait for its place."""
_WAITING = 4
"""Computations that may wait for their turn; more are refused."""
_KNOWN = 64
"""Requests that are remembered word for word."""
_LOOK_SECONDS = 0.01
"""Requests are looked for no more often than this; those that came meanwhile are answered in one
go. Each look may take a core from a training, and costs more than an answer."""
_LONGEST_LOOK = 0.5
_HEADERS = (
    "Cache-Control: no-store\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
)
_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_NOTHING = "default-src 'none'"
"""The policy of answers that are no page. What a page may load and run, `show/page.py` says."""

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    body: bytes
    kind: str = JSON
    status: int = 200

    @property
    def wire(self) -> bytes:
        """The whole answer as it is sent."""
        reason = HTTPStatus(self.status).phrase
        allow = "Allow: GET\r\n" if self.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        found = _POLICY.search(self.body) if self.kind == HTML else None
        policy = found[1].decode() if found else _NOTHING
        head = (
            f"HTTP/1.1 {self.status} {reason}\r\nContent-Type: {self.kind}; charset=utf-8\r\n"
            f"Content-Length: {len(self.body)}\r\n{allow}{_HEADERS}"
            f"Content-Security-Policy: {policy}; frame-ancestors 'none'\r\n\r\n"
        )
        return head.encode() + self.body


def as_json(document: Any, status: int = 200) -> Answer:
    """Return a JSON document as an answer."""
    return Answer(json.dumps(document).encode() + b"\n", JSON, status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is served: by path, bytes that are ready (`pages`), or a computation (`questions`).

    A page returns the whole answer at once. A question gets the query and may take a while; one is
    computed at a time.
    """

    pages: Mapping[str, Callable[[], bytes]]
    questions: Mapping[str, Callable[[Query], Answer]] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


def serve(site: Site, port: int, ready: Callable[[int], None]) -> None:
    """Serve until Ctrl-C; `ready` is told the port, which is a free one for 0."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serving(site, port, ready))


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that looks for requests at a limited pace."""
    return asyncio.SelectorEventLoop(_Paced())


async def serving(site: Site, port: int, ready: Callable[[int], None]) -> None:
    """Serve until it is cancelled."""
    loop = asyncio.get_running_loop()
    desk = _Desk(site)
    try:
        server = await loop.create_server(lambda: _Connection(desk), HOST, port, backlog=128)
    except OSError as error:
        said = error.strerror or error
        raise SettingsError(f"cannot listen on port {port} of {HOST}: {said}") from error
    async with server:
        desk.open(server.sockets[0].getsockname()[1])
        ready(desk.port)
        try:
            await server.serve_forever()
        finally:
            for connection in tuple(desk.connections):
                connection.abort()


class _Paced(selectors.DefaultSelector):
    """Waits between two looks at the connections, however much there is to see.

    It looks twice a second at least: where a signal does not end a look, Ctrl-C is seen soon.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        timeout = _LONGEST_LOOK if timeout is None else min(timeout, _LONGEST_LOOK)
        if timeout > 0:
            early = min(max(self._last + _LOOK_SECONDS - time.monotonic(), 0.0), timeout)
            timeout -= early
            time.sleep(early)
        found = super().select(timeout)
        self._last = time.monotonic()
        return found


class _Refused(Exception):
    """A request that gets nothing but a status and a reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{status}: {why}")
        self.wire = Answer(f"{status}: {why}\n".encode(), TEXT, status).wire


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(":")


_CLOSE = re.compile(rb"\r\nconnection:[^\r\n]*\bclose\b", re.IGNORECASE)


def _is_last(head: bytes) -> bool:
    """Return whether the connection ends with the answer to this request."""
    old = head.partition(b"\r\n")[0].endswith(b" HTTP/1.0")
    return old or _CLOSE.search(head) is not None


class _Desk:
    """Decides what a request gets, and counts connections and waiting computations."""

    def __init__(self, site: Site) -> None:
        self._site, self._turn = site, threading.Lock()
        self._token = site.token.encode()
        self._hosts: set[str] = set()
        self._known: dict[bytes, Callable[[], bytes]] = {}
        self.port, self.waiting = 0, 0
        self.connections: set[_Connection] = set()

    def open(self, port: int) -> None:
        self.port = port
        end = "" if port == 80 else f":{port}"
        self._hosts = {f"{name}{end}" for name in (HOST, "localhost", "[::1]")}

    def known(self, request: bytes) -> bytes | None:
        """Return the page for a request that was answered before, word for word; or None.

        A page that polls sends the same bytes each time. A table finds them by their hash, so the
        time it takes does not tell how much of a token is right.
        """
        page = self._known.get(request)
        return None if page is None else page()

    def answer(self, head: bytes) -> bytes | Callable[[], asyncio.Future[Answer]]:
        """Return the answer to a request, or what computes it; raise a refusal."""
        request, *lines = head.decode("latin-1").split("\r\n")
        match request.split(" "):
            case [method, target, version] if version in ("HTTP/1.0", "HTTP/1.1"):
                path, _, query = target.partition("?")
            case _:
                raise _Refused(400, "this is no request of HTTP")
        headers = [(name.strip().lower(), value) for name, _, value in map(_split, lines)]
        hosts = [value.strip().lower() for name, value in headers if name == "host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            raise _Refused(403, "this server answers only to the name of this machine")
        asked = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=32))
        if not hmac.compare_digest(asked.pop("token", "").encode(), self._token):
            raise _Refused(403, "the address needs the token that 'privrec watch' printed")
        if method != "GET":
            raise _Refused(405, "only GET is answered")
        if any(name in ("content-length", "transfer-encoding") for name, _ in headers):
            raise _Refused(400, "a request must have no content")
        if (page := self._site.pages.get(path)) is not None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            if not _is_last(head):
                self._known[head + _END] = page
            return page()
        if (question := self._site.questions.get(path)) is None:
            raise _Refused(404, "there is no such page")
        if self.waiting >= _WAITING:
            raise _Refused(503, "too many computations are waiting")
        return lambda: self._compute(question, asked)

    def _compute(
        self, question: Callable[[Query], Answer], asked: Query
    ) -> "asyncio.Future[Answer]":
        """Return what a thread computes when it is its turn; no computation delays the end."""
        loop = asyncio.get_running_loop()
        coming: asyncio.Future[Answer] = loop.create_future()
        self.waiting += 1

        def done(found: Answer) -> None:
            self.waiting -= 1
            coming.set_result(found)

        def compute() -> None:
            with self._turn:
                try:
                    found = question(asked)
                except Exception:  # Whatever it is, the page must get an answer.
                    traceback.print_exc()
                    found = Answer(b"500: a fault of privrec\n", TEXT, 500)
            with contextlib.suppress(RuntimeError):  # The server may have ended.
                loop.call_soon_threadsafe(done, found)

        threading.Thread(target=compute, daemon=True).start()
        return coming


class _Connection(asyncio.Protocol):
    """One connection: requests one after another, each answered before the next is read."""

    def __init__(self, desk: _Desk) -> None:
        self._desk, self._buffer = desk, b""
        self._transport: asyncio.Transport | None = None
        self._busy = self._is_last = self._is_known = self._is_ended = False
        self._seen, self._loop = 0.0, asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            transport.close()
            return
        others = self._desk.connections
        if len(others) >= _CONNECTIONS:
            # The one that has been silent for longest gives way; one that never asked goes first.
            silent = min(others, key=_Connection.patience)
            others.discard(silent)
            silent.abort()
        self._transport = transport
        others.add(self)
        self._seen = self._loop.time()
        self._close_if_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._desk.connections.discard(self)
        self._transport = None

    def patience(self) -> tuple[bool, bool, float]:
        """Return what orders connections by who gives way first."""
        return self._busy, self._is_known, self._seen

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._buffer:
            self._seen = self._loop.time()
            open_ = self._transport is not None and not self._transport.is_closing()
            if open_ and not self._busy and (page := self._desk.known(data)) is not None:
                self._send(page)
                return
        self._buffer += data
        self._answer_all()
        # What comes while an answer is computed waits, but not without end.
        if len(self._buffer) > 8 * _LONGEST and self._transport is not None:
            self._transport.close()

    def eof_received(self) -> bool:
        self._is_ended = True
        return self._busy  # What is being computed is still sent.

    def _answer_all(self) -> None:
        while not self._busy and self._transport is not None:
            if self._transport.is_closing():
                return
            end = self._buffer.find(_END)
            if end > _LONGEST or (end < 0 and len(self._buffer) > _LONGEST):
                self._send(_Refused(431, "the request is too long").wire)
                return
            if end < 0:
                return
            head, self._buffer = self._buffer[:end], self._buffer[end + len(_END) :]
            self._is_last = _is_last(head)
            try:
                found = self._desk.answer(head)
            except _Refused as refused:
                found = refused.wire
            except ValueError:
                found = _Refused(400, "this is no request of HTTP").wire
            self._send(found) if isinstance(found, bytes) else self._send_later(found())

    def _send(self, answer: bytes) -> None:
        if self._transport is not None:
            self._seen, self._is_known = self._loop.time(), True
            self._transport.write(answer)
            # What follows a refused request may be its content.
            if self._is_last or not answer.startswith(b"HTTP/1.1 200"):
                self._transport.close()

    def _send_later(self, coming: "asyncio.Future[Answer]") -> None:
        self._busy = True

        def done(found: "asyncio.Future[Answer]") -> None:
            self._busy = False
            if not found.cancelled():
                self._send(found.result().wire)
                self._answer_all()
            if self._is_ended and not self._busy and self._transport is not None:
                self._transport.close()

        coming.add_done_callback(done)

    def _close_if_idle(self) -> None:
        if self._transport is None:
            return
        most = _IDLE_SECONDS if self._is_known and not self._buffer else _HEAD_SECONDS
        if not self._busy and self._loop.time() - self._seen >= most:
            self._transport.abort()
            return
        self._loop.call_later(_HEAD_SECONDS / 4, self._close_if_idle)
