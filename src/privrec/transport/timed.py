"""Uvicorn's protocol for HTTP/1.1; it also ends a connection that sends no whole head in time."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 20.0
"""Chosen by hand."""

_Base: Any = AutoHTTPProtocol


class TimedHttpProtocol(_Base):  # type: ignore[misc]
    """Uvicorn waits without end for the rest of a request's head.

    So anybody who can reach the port could keep it from answering, by many requests that are never
    finished.
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
