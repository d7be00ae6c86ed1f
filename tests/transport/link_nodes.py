"""A federation's link on this machine: its keys, nodes in threads, and a node that a test plays."""

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import httpx
import pytest

from privrec.errors import FederationError
from privrec.protocol.certificates import (
    key_hash,
    make_authority,
    make_node_key,
    public_key_text,
    read_private_key,
    sign,
)
from privrec.transport import client
from privrec.transport.link import Link, open_link
from privrec.transport.local import LOCAL, free_port
from privrec.transport.paths import (
    CHALLENGE,
    REPLIES,
    STREAM,
    TOKEN_HEADER,
    frames,
    statement,
)

LONG = 300.0
"""Seconds that a test waits at most: no test hopes that something is fast."""


def until(found: Callable[[], bool]) -> None:
    """Return when something is found."""
    stop = time.monotonic() + LONG
    while not found():
        assert time.monotonic() < stop
        time.sleep(0.01)


def backwards(request: bytes) -> bytes:
    return request[::-1]


@dataclass
class Net:
    """The folder of a server with four keys; the nodes 0 to 2 are enrolled, and 3 is a stranger."""

    folder: Path
    port: int = field(default_factory=free_port)
    told: list[tuple[int, str]] = field(default_factory=list)
    """(node, state) as nodes in threads told it."""
    slept: list[tuple[str, float]] = field(default_factory=list)
    """(what was told last, seconds) for each wait of a node."""
    counts: "Counter[str]" = field(default_factory=Counter)

    def __post_init__(self) -> None:
        make_authority(self.folder, hosts=[LOCAL])
        for k in range(4):
            make_node_key(self.key(k))
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return f"{LOCAL}:{self.port}"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def key(self, k: int) -> Path:
        return self.folder / f"key{k}"

    def open(self, **more: Any) -> AbstractContextManager[Link]:
        """Return a context in which the server listens."""
        keys = [public_key_text(self.key(k)) for k in range(3)]
        return open_link(self.folder, keys, host=LOCAL, port=self.port, counts=self.counts, **more)

    def start(self, k: int, handle: client.Handle = backwards, port: int | None = None) -> None:
        """Start a node in a thread, which ends after the server, when this ends."""

        def tell(state: str) -> None:
            self.told.append((k, state))

        words = {"server": f"{LOCAL}:{port or self.port}", "ca": self.ca, "key": self.key(k)}
        thread = threading.Thread(
            target=client.serve, args=(handle,), kwargs={**words, "on_state": tell}, daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def refusal(self, k: int, **more: Any) -> str:
        """Return with which words a node ends that is not let in."""
        words = {"server": self.address, "ca": self.ca, "key": self.key(k), "patience": 0.0}
        with pytest.raises(FederationError) as refused:
            client.serve(backwards, **{**words, **more})
        return str(refused.value)

    def sleep(self, seconds: float) -> None:
        """Sleep as the node's side does; nodes in threads stop when this ends."""
        self.slept.append((self.told[-1][1] if self.told else "", seconds))
        if self._end.wait(seconds):
            raise client._Stopped

    def __enter__(self) -> Self:
        self._patch = pytest.MonkeyPatch()
        clock = SimpleNamespace(sleep=self.sleep, monotonic=time.monotonic)
        self._patch.setattr(client, "time", clock)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(LONG)
            assert not thread.is_alive()
        self._patch.undo()


@contextmanager
def linked(folder: Path, *nodes: int, **more: Any) -> Iterator[tuple[Net, Link]]:
    """Yield a federation and its open link, to which these nodes in threads have come."""
    with Net(folder) as net, net.open(**more) as link:
        for k in nodes:
            net.start(k)
        until(lambda: link.online() == set(nodes))
        yield net, link


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let the server read HTTP by the library that uvicorn takes if it is installed, or without.

    Returns the module that limits the time of a request's head.
    """
    pytest.importorskip(request.param)
    kind = {"httptools": "HttpToolsProtocol", "h11": "H11Protocol"}[request.param]
    base = getattr(import_module(f"uvicorn.protocols.http.{request.param}_impl"), kind)
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", base)
    spec = find_spec("privrec.transport.timed")
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setattr("privrec.transport.link.TimedHttpProtocol", made.TimedHttpProtocol)
    return made


def context_of(net: Net) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(net.ca))


class Played(httpx.Client):
    """A node's side that a test plays by hand: it sends what the test says."""

    def __init__(self, net: Net, k: int) -> None:
        place = f"https://{net.address}"
        super().__init__(base_url=place, verify=context_of(net), trust_env=False, timeout=LONG)
        self._net, self._k = net, k
        self._key = net.key(k)
        self.token = ""

    def signed(self, challenge: str, ca: bytes | None = None, **changes: Any) -> dict[str, Any]:
        """Return what asks for a stream."""
        content = statement(self._net.ca.read_bytes() if ca is None else ca, challenge)
        made = sign(read_private_key(self._key), content).hex()
        name = key_hash(public_key_text(self._key))
        return {"key": name, "challenge": challenge, "signature": made, "after": -1, **changes}

    def challenge(self) -> str:
        return self.get(CHALLENGE).raise_for_status().text

    def open(self, asked: Any) -> int:
        """Ask for a stream; return the status."""
        content = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        request = self.build_request("POST", STREAM, content=content)
        self._response = self.send(request, stream=True)
        if self._response.status_code != 200:
            self._response.close()
            return self._response.status_code
        self._chunks = self._response.iter_raw()
        self._frames = frames(self._chunks)
        number, token = next(self._frames)
        assert number == 0
        self.token = token.decode()
        return 200

    def enter(self, after: int = -1) -> Self:
        """Open a stream, as soon as the server lets this node in."""
        until(lambda: self.open(self.signed(self.challenge(), after=after)) == 200)
        return self

    def next(self) -> tuple[int, bytes]:
        """Return the next request and its number."""
        return next(frame for frame in self._frames if frame[0])

    def begin(self) -> None:
        """Get a piece of a large request; then only leave."""
        assert len(next(piece for piece in self._chunks if len(piece) > 16)) < len(LARGE)

    def leave(self) -> None:
        """Break the stream, wherever it is."""
        self._response.close()

    def reply(self, number: int | str, content: bytes) -> int:
        """Send a reply; return the status, or 0 if the connection ended before there was one."""
        head = self.head(number, f"Content-Length: {len(content)}", "Connection: close")
        return status_of(sent(self._net, head + content))

    def head(self, number: int | str, *lines: str) -> bytes:  # type: ignore[override]
        """Return the head of a reply with these lines."""
        first = [f"POST {REPLIES}/{number} HTTP/1.1", "Host: x", f"{TOKEN_HEADER}: {self.token}"]
        return "\r\n".join([*first, *lines, "", ""]).encode()


@contextmanager
def played(net: Net, *nodes: int) -> Iterator[list[Played]]:
    """Yield nodes that a test plays; each has a stream."""
    with ExitStack() as stack:
        made = [stack.enter_context(Played(net, k)).enter() for k in nodes]
        for one in made:
            stack.callback(one.leave)
        yield made


def sent(net: Net, content: bytes, *, half: bool = False) -> bytes:
    """Send bytes over TLS; return what comes until the server ends the connection.

    With `half`, the connection is ended at once.
    """
    answer = b""
    safe = context_of(net).wrap_socket(
        socket.create_connection((LOCAL, net.port), timeout=LONG), server_hostname=LOCAL
    )
    with safe, contextlib.suppress(ConnectionError, ssl.SSLError):
        safe.sendall(content)
        while not half and (piece := safe.recv(2**16)):
            answer += piece
    return answer


def status_of(answer: bytes) -> int:
    """Return the status of an answer, or 0 if there is none."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


class Asked:
    """An exchange in a thread: what was heard of whom, when it is over."""

    def __init__(
        self, link: Link, requests: Mapping[int, bytes], *, seconds: float = LONG, most: int = 2**26
    ) -> None:
        self._replies: dict[int, bytes] = {}
        # The requests are sent before this returns; only replies are waited for in the thread.
        heard = link.ask(requests, seconds, most)
        self._thread = threading.Thread(target=lambda: self._replies.update(heard), daemon=True)
        self._thread.start()

    def heard(self) -> dict[int, bytes]:
        self._thread.join(2 * LONG)
        assert not self._thread.is_alive()
        return self._replies


class Cutter:
    """What lies between a node and its server, and cuts all lines when so many bytes went by."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._line = socket.create_server((LOCAL, 0))
        self.port = int(self._line.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.left: dict[str, float] = {"up": float("inf"), "down": float("inf")}
        self.next, self.cuts = float("inf"), 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._accepting.join(LONG)
        self.cut()
        for thread in self._threads:
            thread.join(LONG)
        # Not before: a thread could go on reading from another connection with the same number.
        for one in [self._line, *self._open]:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._line.accept()
                try:
                    far = socket.create_connection((LOCAL, self._to))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for pair in ((near, far, "up"), (far, near, "down")):
                    self._threads.append(
                        threading.Thread(target=self._pump, args=pair, daemon=True)
                    )
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(2**16):
                self.left[way] -= len(piece)
                if self.left[way] < 0:
                    self.cuts += 1
                    self.left[way] = self.next
                    self.cut()
                    break
                target.sendall(piece)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all lines."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def ended_nodes(patch: pytest.MonkeyPatch) -> Iterator[list[threading.Thread]]:
    """Yield a list for threads of nodes; they end with this, when they would connect again."""
    end, threads = threading.Event(), list[threading.Thread]()

    def sleep(seconds: float) -> None:
        if end.wait(seconds):
            raise client._Stopped

    with patch.context() as inner:
        inner.setattr(client, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        try:
            yield threads
        finally:
            end.set()
            for thread in threads:
                thread.join(LONG)
                assert not thread.is_alive()


LARGE = os.urandom(3 * 2**20)
