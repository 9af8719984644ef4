"""Recorded events as server-sent events: JSON bytes and an id become a frame, a batch of frames one write."""

from collections.abc import AsyncGenerator, Sequence

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.domain.errors import Gone
from app.journal.memory import Entry, RunLog

_HEADERS = {"Cache-Control": "no-cache, no-transform"}
_OPENING = b"retry: 1000\n"
_WRITE_SECONDS = 30.0


def frames_from_entries(entries: Sequence[Entry]) -> bytes:
    """Write entries as SSE frames: lines end with LF, one `data:` line each."""
    return b"".join([b"id: %d\nevent: %b\ndata: %b\n\n" % (id_, name.encode(), data) for id_, name, data in entries])


class _Heartbeat(ServerSentEvent):
    """A comment line. Without the blank line of a frame, which some readers take for an event without data."""

    @override
    def encode(self) -> bytes:
        return b":\n"


class RunStream(EventSourceResponse):
    """The events of a run from a cursor on, live, with a comment line as heartbeat.

    The response that owns its run cancels it when the connection ends, however it ends: a reader that has gone, one
    that takes longer than 30 s to accept a write, one so slow that what it wants is no longer kept.
    """

    def __init__(self, log: RunLog, *, after: int, heartbeat_seconds: float, owns_run: bool) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]  # the library's `dict` has no parameters
            _batches(log, after),
            headers={**_HEADERS, "X-Run-Id": log.run_id},
            ping=heartbeat_seconds,
            ping_message_factory=_Heartbeat,
            sep="\n",
            send_timeout=_WRITE_SECONDS,
        )
        self._log = log
        self._owns_run = owns_run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._owns_run:
                self._log.abandon()


async def _batches(log: RunLog, after: int) -> AsyncGenerator[bytes, None]:
    opening = _OPENING
    if after and after == log.last_id:
        # Nothing to replay: the stream opens now all the same. Otherwise the opening stands in the first event's own
        # frame, since some readers take a frame that only says `retry` for an event.
        yield opening + b"\n"
        opening = b""
    while True:
        try:
            entries = await log.read(after)
        except Gone:
            return
        if not entries:
            return
        after = entries[-1].id
        yield opening + frames_from_entries(entries)
        opening = b""
