"""What `privrec watch` serves: the page of a run and its figures.

It answers this machine alone: the name of the machine in `Host`, a token in every address, GET
only, and no address leads to a file.
"""

import contextlib
import hmac
import os
import secrets
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from privrec.errors import SettingsError
from privrec.show.page import policy, render
from privrec.show.status import Watched

HOST = "127.0.0.1"
_CONNECTIONS = 256
"""How many there are at a time. Chosen by hand, as what follows."""
_LONGEST = 8192
"""Bytes of the head of a request."""
_NICE = 10
"""With a training on every core, a process gets a tenth of one. At 19 it gets a seventieth, and
the first epsilon would take a minute."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is served, and the token that opens it."""

    routes: Sequence[Route]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


def serve(site: Site, port: int, ready: Callable[[int], None]) -> None:
    """Serve until Ctrl-C; `ready` is told the port, which is a free one for 0."""
    with listening(port) as line:
        ready(line.getsockname()[1])
        server = server_of(site, line)
        signal.signal(signal.SIGINT, server.handle_exit)
        server.run(sockets=[line])
        raise KeyboardInterrupt


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine."""
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"cannot listen on port {port} of {HOST}: {reason}") from error


def server_of(site: Site, line: socket.socket) -> uvicorn.Server:
    """Return the server of a site that listens on `line`."""
    app = Starlette(routes=site.routes)
    app.router.redirect_slashes = False
    config = uvicorn.Config(
        _Guard(app, site.token, line.getsockname()[1]),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_LONGEST,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """A server that raises no signal again at its end: two of them end a command at once."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to `serve`."""
        return contextlib.nullcontext()


def step_back() -> None:
    """Lower the priority of this process: whoever trains comes first."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)


class _Guard:
    """Refuses what does not come from this machine with the token; adds headers to all answers."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token.encode()
        end = "" if port == 80 else f":{port}"
        self._hosts = {f"{name}{end}" for name in (HOST, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Content-Security-Policy", "default-src 'none'")
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        given = request.query_params.get("token", "").encode()
        if request.headers.getlist("host")[:2] not in [[host] for host in self._hosts]:
            return _refused(403, "this server answers only to the name of this machine")
        if not hmac.compare_digest(given, self._token):
            return _refused(403, "the address needs the token that 'privrec watch' printed")
        if request.method != "GET":
            return _refused(405, "only GET is answered", {"Allow": "GET"})
        if {"content-length", "transfer-encoding"} & set(request.headers.keys()):
            return _refused(400, "a request must have no content")
        return None


def _refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    # What follows a refused request may be its content: the connection ends.
    return PlainTextResponse(
        f"{status}: {why}\n", status, headers={**(headers or {}), "Connection": "close"}
    )


def page_route(path: str, text: str, script: str) -> Route:
    """Return the route of a page that is written once."""
    headers = {"Content-Security-Policy": f"{policy(script)}; frame-ancestors 'none'"}
    response = HTMLResponse(text, headers=headers)
    return Route(path, lambda _: response)


def site_of(run: Path) -> Site:
    """Return the page of a run, and the status that it asks for."""
    watched = Watched(run)
    page = page_route("/", render("watch.html", "watch.js", run=str(run)), "watch.js")
    status = Route("/status", lambda _: Response(watched.text(), media_type="application/json"))
    return Site(routes=[page, status])
