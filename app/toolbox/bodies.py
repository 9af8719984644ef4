"""Bodies of an MCP server's answers, read within limits. Knows bytes, not what they say."""

import re
from collections.abc import AsyncIterator, Callable
from typing import cast

import anyio
import anyio.lowlevel
import httpx2

from app.toolbox.faults import TOO_LARGE, Exchange
from app.toolbox.frames import Frames

_LEAST_PIECE_BYTES = 256
"""So many bytes count as a piece, however short it is: each costs as much as a long one, and may be a single byte."""
_MOST_VALUES = 100_000
"""In a reply. Each takes as long as hundreds of bytes of text, and an empty object 30 times the memory of its text."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TURN_SECONDS = 0.005


class _Turns:
    """Lets others have their turn: what has come already is read without ever waiting."""

    def __init__(self) -> None:
        self._since = anyio.current_time()

    async def share(self) -> None:
        if anyio.current_time() - self._since > _TURN_SECONDS:
            await anyio.lowlevel.checkpoint()
            self._since = anyio.current_time()


class WatchedBody(httpx2.AsyncByteStream):
    """An event stream that is cleaned, cut at a limit, and tells when it has ended, however it did."""

    def __init__(
        self,
        response: httpx2.Response,
        limit: int | None,
        ended: Callable[[], None],
        *,
        frames: Frames,
        exchange: Exchange | None = None,
    ) -> None:
        self._frames = frames
        self._exchange = exchange
        self._stream = cast("httpx2.AsyncByteStream", response.stream)  # that of an async transport
        self._limit = limit
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, turns = 0, _Turns()
        try:
            async for chunk in self._stream:
                await turns.share()
                size += max(len(chunk), _LEAST_PIECE_BYTES)
                if self._limit is not None and size > self._limit:
                    raise httpx2.ReadError(TOO_LARGE.reason)
                if self._exchange is not None and anyio.current_time() > self._exchange.ends_at:
                    raise httpx2.ReadError("Nobody waits for this answer any more.")
                if cleaned := self._frames.take(chunk):
                    yield cleaned
                if self._frames.is_flood or self._frames.is_too_large:
                    if self._exchange is not None:
                        self._exchange.fault = TOO_LARGE
                    raise httpx2.ReadError("The server says too much.")
            if rest := self._frames.rest():
                yield rest
        except httpx2.HTTPError:
            self._ended()
            raise
        self._ended()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def read_capped(response: httpx2.Response, limit: int) -> bytes | None:
    """Read a body; None where it is larger than the limit, or would be once it is decoded."""
    body, size, turns = bytearray(), 0, _Turns()
    try:
        async for chunk in response.aiter_raw():
            await turns.share()
            body += chunk
            size += max(len(chunk), _LEAST_PIECE_BYTES)
            if size > limit:
                return None
    finally:
        await response.aclose()
    return None if _values(body) > _MOST_VALUES else bytes(body)


def _values(body: bytearray) -> int:
    """Count what JSON holds, about; where that seems to be much, without what stands in its texts."""
    count = _marks(body)
    return count if count <= _MOST_VALUES else _marks(_STRING.sub(b"", body))


def _marks(text: bytes | bytearray) -> int:
    return text.count(b",") + text.count(b"{") + text.count(b"[")
