"""Uvicorn's protocol for HTTP/1.1, with limits of its own on what a connection may send.

The head of a request has a largest size and a time, and requests come one after another.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 20.0
LARGEST_HEAD = 2**16
"""Both chosen by hand."""

_Base: Any = AutoHTTPProtocol


class TimedHttpProtocol(_Base):  # type: ignore[misc]
    """Uvicorn waits without end for the rest of a request's head, however long it gets.

    So anybody who can reach the port could keep it from answering, by many requests that are never
    finished, or fill its memory. And with a second request on the line, uvicorn does not tell the
    first one that the line is gone: a stream would stay open for ever.
    """

    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """End a connection whose head is too long, or that sends more than it was asked for."""
        before, reads = self.cycle, self._is_asked() and self.cycle.more_body
        super().data_received(data)
        if reads or self.cycle is not before:
            self._head = 0
            return
        self._head += len(data)
        if self._head > LARGEST_HEAD and self.transport is not None:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """End a connection that begins a request before the last one was answered."""
        before, is_early = self.cycle, self._is_asked()
        super().on_headers_complete()
        if is_early and self.cycle is not before:
            before.disconnected = True
            before.message_event.set()
            self.transport.abort()

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
        if not self._is_asked() and self.transport is not None:
            self.transport.abort()

    def _is_asked(self) -> bool:
        """Return whether a request waits for its answer."""
        return self.cycle is not None and not self.cycle.response_complete
