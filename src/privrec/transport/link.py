"""The server's side of the network: nodes connect, and the server asks them through their streams.

    GET  /v1/challenge        random text for a node to sign
    POST /v1/stream           the signature; the answer is a stream of requests, open while the
                              node is online
    POST /v1/replies/NUMBER   the reply to one request
    GET  /healthz, /metrics   for operators

A client can send no more than a signature before the server knows which node it is. The size of a
reply is limited while it is read. The memory of all replies that wait to be used is limited too.
The HTTP server runs in its own thread. Comments mark the methods that other threads call.
"""

import asyncio
import contextlib
import errno
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import queue
import resource
import secrets
import socket
import ssl
import threading
import time
from asyncio import sslproto
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from privrec.errors import FederationError
from privrec.protocol.certificates import check_certificate, key_hash, verify
from privrec.protocol.server import Ask
from privrec.transport.paths import (
    CHALLENGE,
    FAILED_HEADER,
    HEARTBEAT,
    REPLIES,
    STREAM,
    TOKEN_HEADER,
    WAITS_HEADER,
    head_of,
    statement,
)
from privrec.transport.timed import TimedHttpProtocol

LOG = logging.getLogger("privrec.server")
# All chosen by hand.
LARGEST_SIGNATURE = 4096
"""The most bytes of the request that opens a stream."""
CHALLENGE_SECONDS = 60.0
PATIENCE, SLOWEST = 10.0, 32_000
"""The content of a request may take 10 seconds, and one second more for each 32,000 bytes."""
MEMORY = 2**28
"""The most bytes of all replies that are being read or wait to be used. A reply that is larger than
this is read while there is no other reply."""
_CHUNK = 2**16
"""The bytes of a request that are written at a time. What is written and not yet sent is in memory,
for each node."""
_TLS_BUFFER = 2**15
"""The bytes that a TLS connection can receive at a time; each open connection holds so many."""
_EACH_ADDRESS = 50
"""One address has at most so many connections, and two more for each enrolled node: nodes may share
an address. Chosen by hand: a thousand strangers that encrypt nothing keep a core busy."""
_SPARE_FILES = 100
"""The number of files that the process can open even with the largest number of connections."""
HANDSHAKE_SECONDS = 10.0
"""A connection that is not encrypted after this time is ended, so that it leaves its place."""
_DEAD_SECONDS = 30
"""A connection counts as dead if the other side confirms no bytes for this time."""


@dataclass(frozen=True)
class Link:
    """The link of a server to its nodes: send requests, and see which nodes are online."""

    ask: Ask
    online: Callable[[], set[int]]


@contextlib.contextmanager
def open_link(
    folder: Path,
    public_keys: Sequence[str],
    *,
    host: str,
    port: int,
    metrics: Callable[[], str] = str,
    counts: "Counter[str] | None" = None,
) -> Iterator[Link]:
    """Yield the link to the nodes with these keys; node index k has `public_keys[k]`.

    `folder` holds ca.crt, server.pem and server.key. `metrics` returns the text of /metrics.
    `counts` gets the counters of the network for this text. No part of a message is ever written
    to a disk. A restarted server knows nothing about the messages of its predecessor.
    """
    for name in ("ca.crt", "server.pem"):
        check_certificate(folder / name, owner=folder)
    if len({key_hash(text) for text in public_keys}) < len(public_keys):
        raise FederationError("two nodes have the same public key")
    office = _Office(public_keys, (folder / "ca.crt").read_bytes(), metrics)
    office.counts = Counter() if counts is None else counts
    _allow_connections()
    # asyncio has no argument for it, and 256 kB for a connection that mostly waits.
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    with _listening(host, port, _EACH_ADDRESS + 2 * len(public_keys), office.counts) as line:
        config = uvicorn.Config(
            office.app(),
            http=TimedHttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
            ssl_certfile=folder / "server.pem",
            ssl_keyfile=folder / "server.key",
        )
        config.load()
        if config.ssl is None:
            raise FederationError(f"{folder / 'server.pem'} could not be loaded")
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
        server = _Server(config)
        thread = threading.Thread(
            target=_run, args=(server, office, line), daemon=True, name="link"
        )
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise FederationError(f"the server on {host}:{port} did not start")
                time.sleep(0.01)
            yield Link(ask=office.ask, online=office.online)
        finally:
            office.close()
            server.should_exit = True
            thread.join(30)


def _run(server: uvicorn.Server, office: "_Office", line: socket.socket) -> None:
    async def play() -> None:
        office.begin(asyncio.get_running_loop())
        await server.serve(sockets=[line])

    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(play())


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers wait at most `HANDSHAKE_SECONDS` for TLS; uvicorn waits 60."""

    async def create_server(self, *args: Any, **settings: Any) -> asyncio.Server:
        """Return a server with this limit of time."""
        settings["ssl_handshake_timeout"] = HANDSHAKE_SECONDS
        return await super().create_server(*args, **settings)


class _Server(uvicorn.Server):
    """A server without signal handlers. At its end it closes connections after 0.5 seconds."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to the main program."""
        return contextlib.nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Give the streams 0.5 seconds to end; then end all connections."""
        asyncio.get_running_loop().call_later(0.5, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


@contextlib.contextmanager
def _listening(host: str, port: int, most: int, counts: "Counter[str]") -> Iterator[socket.socket]:
    """Yield a socket that listens, with at most `most` connections of one address.

    A connection ends when the other side does not answer.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        line = _Line(socket.create_server((host, port), family=family, backlog=2048), most, counts)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise FederationError(f"another server already listens on {host}:{port}") from error
        raise FederationError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    with line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _DEAD_SECONDS)
        yield line


class _Line(socket.socket):
    """A listening socket that closes new connections if there are too many.

    Without a limit for all, anybody could stop a training by opening many connections, because a
    training must open files to write to the disk. Without a limit for one address, a single
    stranger could do so, or fill the memory.
    """

    def __init__(self, line: socket.socket, each: int, counts: "Counter[str]") -> None:
        super().__init__(line.family, line.type, line.proto, line.detach())
        # A new connection gets the smallest free file number. So this limit on the number is a
        # limit on the open files.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = math.inf if limit == resource.RLIM_INFINITY else limit - _SPARE_FILES
        self._each, self._of, self._counts = each, Counter[str](), counts

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its remote address."""
        connection, address = super().accept()
        origin = _origin(address[0])
        if connection.fileno() >= self.most or self._of[origin] >= self._each:
            connection.close()
            self._counts["refused connections"] += 1
            raise ConnectionAbortedError
        return _Connection(connection, origin, self._of), address


def _origin(host: str) -> str:
    """Return an address, or of IPv6 its first 64 bits: whoever has one has all that begin so."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class _Connection(socket.socket):
    """A connection that is counted for its remote address until it is closed."""

    def __init__(self, connection: socket.socket, host: str, counts: "Counter[str]") -> None:
        super().__init__(connection.family, connection.type, connection.proto, connection.detach())
        self._host, self._counts = host, counts
        counts[host] += 1

    def close(self) -> None:
        """Close the connection, and count it no more."""
        if self.fileno() >= 0:
            self._counts[self._host] -= 1
            if not self._counts[self._host]:
                del self._counts[self._host]
        super().close()


def _allow_connections() -> None:
    """Raise the limit of open files of this process to the largest value that is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(slots=True, eq=False)
class _Open:
    """A request that waits until the time `end` for a reply of at most `most` bytes."""

    number: int
    content: bytes
    most: int
    end: float
    replies: "queue.SimpleQueue[tuple[int, bytes | None]]"
    is_sent: bool = False


@dataclass(slots=True, eq=False)
class _Seat:
    """The state of one node: its stream, and the request that waits for its reply."""

    index: int
    token: str = ""
    is_here: bool = False
    is_replying: bool = False
    is_ended: bool = False
    open: _Open | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class _Refused(Exception):
    """The server refuses a request with an HTTP status and a sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Office:
    """The state of all nodes. Other threads of the server may call `ask`, `online`, `close`."""

    def __init__(self, keys: Sequence[str], authority: bytes, metrics: Callable[[], str]) -> None:
        self.counts: Counter[str] = Counter()
        self._keys = list(keys)
        self._index = {key_hash(key): k for k, key in enumerate(keys)}
        self._authority, self._metrics = authority, metrics
        self._secret = secrets.token_bytes(32)
        self._seats = [_Seat(k) for k in range(len(keys))]
        # Request numbers begin here, above all numbers of an earlier server process. So a node
        # cannot confuse the requests of the two.
        self._number = time.time_ns()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop of the server's thread."""
        self._loop, self._space = loop, _Space(MEMORY)

    # --- for other threads -----------------------------------------------------------------------

    def online(self) -> set[int]:
        """Return the indices of the nodes whose stream is open."""
        return {seat.index for seat in self._seats if seat.is_here}

    def ask(
        self, requests: Mapping[int, bytes], deadline: float, most: int
    ) -> Iterator[tuple[int, bytes]]:
        """Send the requests now, and return an iterator over (node index, reply)."""
        replies: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
        end = time.monotonic() + deadline
        self._call(self._send, requests, deadline, most, replies)
        return self._replies(set(requests), end, replies)

    def _replies(
        self, waiting: set[int], end: float, replies: "queue.SimpleQueue[tuple[int, bytes | None]]"
    ) -> Iterator[tuple[int, bytes]]:
        try:
            while waiting:
                try:
                    index, content = replies.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    return
                waiting.discard(index)
                if content is not None:
                    try:
                        yield index, content
                    finally:
                        self._call(self._space.give, len(content))
        finally:
            self._call(self._withdraw, replies)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Let the server's thread call a function; do nothing if the thread has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """End all streams."""
        self._call(self._end)

    # --- for the server's thread -----------------------------------------------------------------

    def _send(
        self, requests: Mapping[int, bytes], deadline: float, most: int, replies: Any
    ) -> None:
        end = self._loop.time() + deadline
        for index, content in requests.items():
            self._number += 1
            seat = self._seats[index]
            seat.open = _Open(self._number, content, most, end, replies)
            seat.wake.set()
        self.counts["exchanges"] += 1

    def _end(self) -> None:
        for seat in self._seats:
            seat.is_ended = True
            seat.wake.set()

    def _withdraw(self, replies: Any) -> None:
        """Stop waiting for these replies, and give back the memory of unused ones."""
        for seat in self._seats:
            if seat.open is not None and seat.open.replies is replies:
                seat.open = None
        with contextlib.suppress(queue.Empty):
            while True:
                self._space.give(len(replies.get_nowait()[1] or b""))

    def app(self) -> Starlette:
        """Return the web application with all routes."""
        app = Starlette(
            routes=[
                Route(CHALLENGE, self._challenge),
                Route(STREAM, self._stream, methods=["POST"]),
                Route(f"{REPLIES}/{{number}}", self._reply, methods=["POST"]),
                Route("/healthz", lambda _: PlainTextResponse("ok\n")),
                Route("/metrics", self._show_metrics),
            ],
            exception_handlers={_Refused: self._refuse},
        )
        app.router.redirect_slashes = False
        return app

    def _refuse(self, request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, _Refused) else 500
        self.counts[f"refused {status}"] += 1
        # The connection is closed, because unread content of the request may follow on it.
        return PlainTextResponse(f"{error}\n", status, headers={"Connection": "close"})

    def _show_metrics(self, request: Request) -> Response:
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return PlainTextResponse(self._metrics(), media_type=kind)

    def _mac(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    async def _challenge(self, request: Request) -> Response:
        text = f"{secrets.token_hex(16)}.{self._loop.time() + CHALLENGE_SECONDS:.0f}"
        return PlainTextResponse(f"{text}.{self._mac(text)}")

    def _is_fresh(self, challenge: str) -> bool:
        text, _, mac = challenge.rpartition(".")
        if not challenge.isascii() or not hmac.compare_digest(self._mac(text), mac):
            return False
        return float(text.rpartition(".")[2]) >= self._loop.time()

    async def _stream(self, request: Request) -> Response:
        """Open the stream of a node that signed a fresh challenge; refuse a second stream."""
        given = await self._read(request, LARGEST_SIGNATURE, self._loop.time() + PATIENCE)
        try:
            asked = json.loads(given)
            index, challenge = self._index.get(str(asked["key"])), str(asked["challenge"])
            made, after = bytes.fromhex(asked["signature"]), int(asked["after"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise _Refused(400, "this is no request for a stream") from error
        if not self._is_fresh(challenge):
            raise _Refused(401, "the challenge is not fresh")
        signed = statement(self._authority, challenge)
        if index is None or not verify(self._keys[index], signed, made):
            raise _Refused(403, "the key is not enrolled here")
        seat = self._seats[index]
        if seat.is_here or seat.is_replying:
            raise _Refused(409, "the key is in use elsewhere")
        seat.is_here, seat.token = True, secrets.token_hex(32)
        # If an exchange is going on, the node gets its request again unless it has received it. A
        # restarted node (`after` < 0) cannot answer the request of its old process any more, so
        # it only gets new requests.
        if seat.open is not None and seat.open.is_sent:
            if after < 0:
                self._close(seat, seat.open, None)
            else:
                seat.open.is_sent = seat.open.number <= after
        return _Requests(seat)

    async def _reply(self, request: Request) -> Response:
        token = request.headers.get(TOKEN_HEADER, "")
        seat = next((s for s in self._seats if s.token and _same(s.token, token)), None)
        if seat is None:
            raise _Refused(401, "the token is of no node that is here")
        number, asked = request.path_params["number"], seat.open
        if asked is None or str(asked.number) != number:
            raise _Refused(410, "nobody waits for this reply")
        if seat.is_replying:
            raise _Refused(409, "the reply is being read already")
        if FAILED_HEADER in request.headers:
            self._close(seat, asked, None)
            return Response(status_code=204)
        length = _length(request)
        if length > asked.most:
            self._close(seat, asked, b"")
            raise _Refused(413, f"the reply has {length:,} bytes; at most {asked.most:,} may be")
        seat.is_replying = True
        try:
            async with self._space.taken(length, asked.end) as space:
                content = await self._read(request, length, asked.end)
                if seat.open is not asked:
                    raise _Refused(410, "nobody waits for this reply any more")
                space.keep()
        finally:
            seat.is_replying = False
        self.counts["bytes in"] += length
        self._close(seat, asked, content)
        return Response(status_code=204)

    def _close(self, seat: _Seat, asked: _Open, content: bytes | None) -> None:
        seat.open = None
        asked.replies.put((seat.index, content))

    async def _read(self, request: Request, most: int, end: float) -> bytes:
        """Return the content of a request; refuse a request that is too long or too slow."""
        length = _length(request)
        if length > most:
            raise _Refused(413, f"a request has {length:,} bytes; at most {most:,} may be")
        parts: list[bytes] = []
        taken, began = 0, self._loop.time()
        more = True
        while more:
            try:
                async with asyncio.timeout_at(min(end, began + PATIENCE + taken / SLOWEST)):
                    message = await request.receive()
            except TimeoutError as error:
                raise _Refused(408, "the content of a request was late") from error
            if message["type"] != "http.request":
                raise _Refused(400, "the content of a request ended early")
            parts.append(message.get("body", b""))
            taken, more = taken + len(parts[-1]), message.get("more_body", False)
            if taken > length:
                raise _Refused(400, "a request is longer than it says")
        if taken < length:
            raise _Refused(400, "a request is shorter than it says")
        return b"".join(parts)


def _length(request: Request) -> int:
    """Return the length in bytes that the header of a request declares."""
    said = request.headers.get("content-length", "")
    if not said.isdecimal() or not said.isascii() or len(said) > 15:
        raise _Refused(411, "a request must say how long it is")
    return int(said)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


class _Requests(Response):
    """The stream of requests of one node. The node is online while this stream is sent."""

    def __init__(self, seat: _Seat) -> None:
        super().__init__()
        self._seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a frame for each request, and an empty frame after each pause of `HEARTBEAT`."""
        seat = self._seat

        async def write(content: bytes) -> None:
            await send({"type": "http.response.body", "body": content, "more_body": True})

        gone = asyncio.ensure_future(_gone(receive))
        try:
            waits = 0 if seat.open is None or not seat.open.is_sent else seat.open.number
            headers = [
                (b"content-type", b"application/octet-stream"),
                (WAITS_HEADER.encode(), str(waits).encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            token = seat.token.encode()
            await write(head_of(0, len(token)) + token)
            while not (gone.done() or seat.is_ended):
                asked = seat.open
                if asked is not None and not asked.is_sent:
                    asked.is_sent = True
                    await write(head_of(asked.number, len(asked.content)))
                    for first in range(0, len(asked.content), _CHUNK):
                        await write(asked.content[first : first + _CHUNK])
                    continue
                woken = asyncio.ensure_future(seat.wake.wait())
                first_done = asyncio.FIRST_COMPLETED
                await asyncio.wait({gone, woken}, timeout=HEARTBEAT, return_when=first_done)
                seat.wake.clear()
                if not woken.done():
                    woken.cancel()
                    if not gone.done():
                        await write(head_of(0, 0))
            if not gone.done():
                await send({"type": "http.response.body"})
        finally:
            seat.is_here = False
            gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Space:
    """The memory for replies, in bytes; a reply waits until there is enough memory for it."""

    def __init__(self, size: int) -> None:
        self._size, self._used = size, 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def taken(self, count: int, end: float) -> AsyncIterator["_Taken"]:
        """Wait for `count` bytes and reserve them; give them back at the end, unless kept."""
        taken = _Taken()
        async with self._changed:
            fits = partial(self._fits, count)
            try:
                async with asyncio.timeout_at(end):
                    await self._changed.wait_for(fits)
            except TimeoutError as error:
                raise _Refused(503, "too many replies at a time") from error
            self._used += count
        try:
            yield taken
        finally:
            if not taken.is_kept:
                self.give(count)

    def _fits(self, count: int) -> bool:
        return self._used == 0 or self._used + count <= self._size

    def give(self, count: int) -> None:
        """Give `count` bytes back."""
        self._used -= count
        self._waking = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Taken:
    """Reserved bytes. After `keep`, they stay reserved until the reply was used."""

    is_kept = False

    def keep(self) -> None:
        """Keep the bytes reserved at the end of the context."""
        self.is_kept = True
