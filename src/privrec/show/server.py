"""The local web server of `privrec watch`: it serves the page of a run and its figures.

Other machines cannot connect to it. Each request must have a name of this machine in `Host`, the
token in its address, and the method GET. No address leads to a file.
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
"""The most connections at a time. Chosen by hand, like the constants below."""
_LONGEST = 8192
"""The most bytes of a request's head."""
_NICE = 10
"""How much `nice` lowers the priority. Beside a training on every core, this process gets a tenth
of a core. With 19 it would get a seventieth, and the first epsilon would take a minute."""
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
    """The routes that are served, and the token that every request needs."""

    routes: Sequence[Route]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


def serve(site: Site, port: int, ready: Callable[[int], None]) -> None:
    """Serve until Ctrl-C; `ready` gets the port, which is a free one if `port` is 0."""
    with listening(port) as line:
        ready(line.getsockname()[1])
        server = server_of(site, line)
        signal.signal(signal.SIGINT, server.handle_exit)
        server.run(sockets=[line])
        raise KeyboardInterrupt


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port, for this machine alone."""
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
    """A server that, unlike uvicorn's, does not raise Ctrl-C again at its end.

    A second Ctrl-C would end the command at once (`cli.entry`).
    """

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Return a context that does nothing, because `serve` handles the signals."""
        return contextlib.nullcontext()


def step_back() -> None:
    """Lower the priority of this process, so that it does not slow a training down."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)


class _Guard:
    """Refuses requests without this machine's name or the token; adds headers to all answers."""

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
    # End the connection, because the next bytes may be the content of the refused request.
    return PlainTextResponse(
        f"{status}: {why}\n", status, headers={**(headers or {}), "Connection": "close"}
    )


def page_route(path: str, text: str, script: str) -> Route:
    """Return the route of a page with a fixed text."""
    headers = {"Content-Security-Policy": f"{policy(script)}; frame-ancestors 'none'"}
    response = HTMLResponse(text, headers=headers)
    return Route(path, lambda _: response)


def site_of(run: Path) -> Site:
    """Return the site of a run: its page, and the status that the page requests."""
    watched = Watched(run)
    page = page_route("/", render("watch.html", "watch.js", run=str(run)), "watch.js")
    status = Route("/status", lambda _: Response(watched.text(), media_type="application/json"))
    return Site(routes=[page, status])
