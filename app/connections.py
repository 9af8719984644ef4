"""HTTP connections of callers, within limits that the server library does not have.

The library reads heads of any size, waits for their end for ever, takes any number of pipelined requests at once, and
keeps what a reader does not take. Here a connection that does any of this ends; the requests of others do not notice.
"""

import asyncio
from typing import Any

from typing_extensions import override
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_HEAD_BYTES = 64 * 1024
"""A request's first line and header fields; also its trailer fields, and what stands between pieces of its body."""
_FIELDS = 128
_PIPELINED = 32
"""Requests that wait for the answer to one before them. Browsers send none."""
_FREE_PIECES, _LEAST_PIECE_BYTES = 4096, 16
"""A body in more pieces than that must have so many bytes in each, on the average: a single byte costs as much."""
_LINGER_SECONDS = 2.0
"""How long a body that nobody reads may go on after the answer: cut at once, the caller might not get that."""
_WRITE_SECONDS = 30.0
_WRITE_BYTES = 16 * 1024
"""So much of what waits must be taken in that time."""
_GOODBYE = "The request is too large, or too many wait."


class TooMuch(Exception):
    """Ends the parser's work. It becomes a 400."""


class BoundedConnection(HttpToolsProtocol):
    """One connection. Must be the `http` of the server's configuration."""

    def __init__(self, *args: Any, head_seconds: float = 30.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_seconds = head_seconds
        self._head_bytes = 0
        self._fields = 0
        self._pieces = self._body_bytes = 0
        self._unread = 0
        """Bytes since the last piece of a body, or the begin or end of a request."""
        self._running: RequestResponseCycle | None = None
        """The one whose answer is being given; the library knows only the one that came last."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @override
    # The library itself narrows the type of the transport.
    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._await_head()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._linger_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self._dismiss()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        is_answered = self._running is None or self._running.response_complete
        if is_answered and self._linger_timer is None and self._head_timer is None:
            self._await_head()
        self._unread += len(data)
        super().data_received(data)
        if self._unread > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_GOODBYE)

    @override
    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, unless that would stand in the middle of another answer."""
        has_begun = self._dismiss()
        if has_begun:
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def _dismiss(self) -> bool:
        """Tell the request under way, if any, that its caller has gone; return whether its answer had begun."""
        cycle = self._running
        if cycle is None or cycle.response_complete:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return cycle.response_started

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self.transport.abort)

    # What the parser finds

    @override
    def on_message_begin(self) -> None:
        self._head_bytes = self._fields = self._unread = self._pieces = self._body_bytes = 0
        super().on_message_begin()

    @override
    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _HEAD_BYTES or self._fields > _FIELDS:
            raise TooMuch

    @override
    def on_headers_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._unread = 0
        super().on_headers_complete()
        if len(self.pipeline) > _PIPELINED:
            raise TooMuch

    @override
    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._pieces += 1
        self._body_bytes += len(body)
        if self._pieces > _FREE_PIECES and self._body_bytes < self._pieces * _LEAST_PIECE_BYTES:
            raise TooMuch
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._unread = 0
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        super().on_message_complete()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and self._linger_timer is None:
            self._linger_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    # What the caller takes

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    @override
    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _watch_writing(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(_WRITE_SECONDS, self._judge_writing, waiting)

    def _judge_writing(self, waiting: int) -> None:
        if waiting - self.transport.get_write_buffer_size() < _WRITE_BYTES:
            self.transport.abort()
        else:
            self._watch_writing()
