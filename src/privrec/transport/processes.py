"""Flower's two programs as child processes that end with their parent.

The SuperLink gets a guard before its Control API and limits on the size and time of a request. The
SuperNode asks more often for messages.
"""

import asyncio
import contextlib
import hmac
import importlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from privrec.errors import FederationError

# Flower reads these when it is first imported.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def private_folder(path: Path) -> Path:
    """Return the folder `path`, made if needed, which only this account can read."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def prepare(folder: Path) -> None:
    """Set what Flower reads from the environment; call this before Flower is imported."""
    os.environ.update(ENVIRONMENT)
    os.environ["FLWR_HOME"] = str(private_folder(folder / "home"))
    # A proxy must never see what two processes of one machine say to each other.
    local = {"127.0.0.1", "localhost"}
    for name in ("NO_PROXY", "no_proxy"):
        hosts = {part for part in os.environ.get(name, "").split(",") if part}
        os.environ[name] = ",".join(sorted(hosts | local))


def write_secret(path: Path) -> bytes:
    """Return a new secret, also written to `path`, which only this account can read."""
    secret = secrets.token_hex(32).encode("ascii")
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    return secret


@contextlib.contextmanager
def child(
    module: str, arguments: Sequence[str], *, log: Path, patience: float = 5.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that runs `module`, writes to `log`, and ends with the context.

    Its input is a pipe that closes when this process ends in any way: see `end_with_parent`.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as output:
        process = subprocess.Popen(  # noqa: S603 (the command is our own interpreter and module)
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def end_with_parent(*, grace: float) -> None:
    """End this process when its input closes: at once, or `grace` seconds after a SIGTERM."""
    threading.Thread(target=_await_parent, args=(grace,), daemon=True, name="parent").start()


def _await_parent(grace: float) -> None:
    while os.read(0, 1):
        pass
    if grace > 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


HEAD_SECONDS = 20.0
"""Chosen by hand."""

_Base: Any = AutoHTTPProtocol


class TimedHttpProtocol(_Base):  # type: ignore[misc]
    """Uvicorn's protocol, which also ends a connection that sends no whole head in time.

    Uvicorn waits without end for the rest of a request's head. So anybody who can reach the port
    could keep it from answering, by many requests that are never finished.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if timer := getattr(self, "_timer", None):
            timer.cancel()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end_if_unasked)

    def _end_if_unasked(self) -> None:
        if (self.cycle is None or self.cycle.response_complete) and self.transport is not None:
            self.transport.abort()


MODULE = "privrec.transport.processes"

# The SuperLink serves only these paths to whoever does not send the secret in this header.
NODES_MAY_CALL = "/v1/fleet/"
SECRET_HEADER = "x-privrec-secret"  # noqa: S105 (a name, not a secret)

# The most bytes of one request of a node, before it is known to be one. Flower cuts a message into
# pieces of 5 MiB; the list of the pieces of a message of 1 GiB has about 40 kB.
LARGEST_REQUEST = 16 * 2**20

BODY_SECONDS = 120.0
"""How long a node's request may take. Chosen by hand: 16 MiB over a slow line take a minute."""

# How often a SuperNode asks for messages; Flower's 3 s would be most of a round (by hand).
POLL = 0.2


def guarded(app: Any, *, secret: bytes, seconds: float = BODY_SECONDS) -> Any:
    """Return `app` such that a request without the secret reaches only what nodes call.

    Flower leaves its Control API, on the same port, open to everyone: anyone could enroll nodes,
    remove them, and end runs. A node's request must be there within `seconds`.
    """

    async def call(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        taken, end = 0, asyncio.get_running_loop().time() + seconds

        async def limited() -> Any:
            nonlocal taken
            async with asyncio.timeout_at(end):
                message = await receive()
            taken += len(message.get("body", b""))
            if taken > LARGEST_REQUEST:
                raise ConnectionError("a request is too large")
            return message

        given = headers.get(SECRET_HEADER.encode("ascii"), b"")
        open_to_all = scope["type"] == "http" and scope["path"].startswith(NODES_MAY_CALL)
        is_owner = hmac.compare_digest(given, secret)
        if scope["type"] == "lifespan" or is_owner:
            await app(scope, receive, send)
        elif open_to_all and _length(headers) <= LARGEST_REQUEST:
            await app(scope, limited, send)
        elif open_to_all:
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return call


def _length(headers: Mapping[bytes, bytes]) -> int:
    """Return how long a request says that it is; 0 if it does not."""
    said = headers.get(b"content-length", b"0")
    return int(said) if said.isdigit() and len(said) < 20 else LARGEST_REQUEST + 1


def _plain_log() -> None:
    """Let Flower log for a file: with times, and without colours."""
    from flwr.supercore.logger import update_console_handler

    update_console_handler(timestamps=True, colored=False)


def _superlink(arguments: Sequence[str]) -> None:
    """Run Flower's SuperLink behind the guard, for as long as the parent process lives."""
    end_with_parent(grace=0.0)
    _plain_log()
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware
    from uvicorn.config import HTTP_PROTOCOLS

    place = arguments[arguments.index("--superexec-auth-secret-file") + 1]
    guard = Middleware(guarded, secret=Path(place).read_bytes())
    extensions = importlib.import_module("flwr.superlink.extensions")
    if not hasattr(extensions, "get_middleware"):
        raise FederationError("this version of Flower has no place for the guard of a SuperLink")
    vars(extensions)["get_middleware"] = lambda: (guard,)
    HTTP_PROTOCOLS["auto"] = f"{TimedHttpProtocol.__module__}:{TimedHttpProtocol.__name__}"
    flower_superlink()


def _supernode(_arguments: Sequence[str]) -> None:
    """Run Flower's SuperNode for as long as the parent process lives."""
    end_with_parent(grace=5.0)
    _plain_log()
    from flwr.supernode.cli.flower_supernode import flower_supernode

    internal = importlib.import_module("flwr.supernode.start_client_internal")
    names = vars(internal)
    names["time"] = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, POLL)))
    names["pull_objects"] = partial(names["pull_objects"], initial_backoff=POLL, backoff_cap=1.0)
    code = 1
    try:
        flower_supernode()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        # A thread of Flower would keep the process alive after its work has ended.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    # Flower reads its arguments from sys.argv.
    start = {"superlink": _superlink, "supernode": _supernode}[sys.argv.pop(1)]
    start(sys.argv[1:])
