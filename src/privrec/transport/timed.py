"""Uvicorn's HTTP/1.1 protocol, with limits on what a connection may send.

The head of a request has a largest size and a time limit. A connection may begin a request only
after the last one was answered.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 20.0
LARGEST_HEAD = 2**16
"""The most bytes of the head of a request. This and `HEAD_SECONDS` are chosen by hand."""
UNSENT = 2**16
"""The bytes of an answer that may wait to be sent before no more are written. asyncio lets 512 kB
wait for each TLS connection, which is much where a request goes to a thousand nodes."""

_Base: Any = AutoHTTPProtocol


class TimedHttpProtocol(_Base):  # type: ignore[misc]
    """Uvicorn's protocol without two of its weaknesses.

    Uvicorn waits for the rest of a request's head without a limit of time or size. Anybody who can
    reach the port could send many unfinished requests, until the server stops answering or its
    memory is full. Also, if a second request waits on a connection, uvicorn does not tell the first
    one that the connection is closed. So a stream would stay open for ever.
    """

    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the time limit for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNSENT)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """End the connection if the head of a request, or data that nobody reads, is too long."""
        before, reads = self.cycle, self._is_asked() and self.cycle.more_body
        super().data_received(data)
        if reads or self.cycle is not before:
            self._head = 0
            return
        self._head += len(data)
        if self._head > LARGEST_HEAD and self.transport is not None:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """End the connection if a request begins before the last one was answered."""
        before, is_early = self.cycle, self._is_asked()
        super().on_headers_complete()
        if is_early and self.cycle is not before:
            before.disconnected = True
            before.message_event.set()
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Start the time limit for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
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
        """Return whether the last request is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete
