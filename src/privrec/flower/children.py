"""Flower's SuperLink and SuperNode as child processes: `python -m privrec.flower.children KIND`.

The SuperLink gets a guard before its Control API, and the SuperNode asks more often.
"""

import asyncio
import hmac
import importlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from privrec.errors import FederationError
from privrec.flower.processes import end_with_parent

MODULE = "privrec.flower.children"

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

    from privrec.flower.slow_clients import Impatient

    place = arguments[arguments.index("--superexec-auth-secret-file") + 1]
    guard = Middleware(guarded, secret=Path(place).read_bytes())
    extensions = importlib.import_module("flwr.superlink.extensions")
    if not hasattr(extensions, "get_middleware"):
        raise FederationError("this version of Flower has no place for the guard of a SuperLink")
    vars(extensions)["get_middleware"] = lambda: (guard,)
    HTTP_PROTOCOLS["auto"] = f"{Impatient.__module__}:{Impatient.__name__}"
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
