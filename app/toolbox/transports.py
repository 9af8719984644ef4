"""A session over either transport, with an HTTP client of ours under it. Knows no handshake."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import anyio
import anyio.abc
import httpx2
import mcp_types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from app.domain.spec import ServerSpec
from app.toolbox.egress import PRODUCT, VERSION, Egress, Wire
from app.toolbox.session import Ears, Session

TransportName: TypeAlias = Literal["streamable-http", "sse"]

_LAST_WORDS_SECONDS = 1.0


@asynccontextmanager
async def open_session(
    transport: TransportName,
    server: ServerSpec,
    egress: Egress,
    chores: anyio.abc.TaskGroup,
    *,
    ears: Ears,
    on_end: Callable[[], None],
) -> AsyncGenerator[tuple[Session, Wire]]:
    """Open a session that has not shaken hands yet, and close it, telling a server that keeps sessions.

    `chores` runs what nobody waits for. `on_end` is called when the one event stream of the SSE transport ends.

    Raises:
        Exception: What the SDK's transports raise, mostly in groups; the exchange under way says what happened.
    """
    info = mcp_types.Implementation(name=PRODUCT, version=VERSION)
    if transport == "sse":
        wire = Wire(egress.limits, chores, on_stream_end=on_end)
        client = egress.client(server, wire)

        def take(*_: object, **__: object) -> httpx2.AsyncClient:
            return client

        async with (
            sse_client(server.url, httpx_client_factory=take) as (read, write),
            Session(read, write, client_info=info) as session,
        ):
            session.ears = ears
            try:
                yield session, wire
            finally:
                await _say_the_rest(wire)
        return
    wire = Wire(egress.limits, chores)
    size = egress.limits.event_bytes
    async with (
        egress.client(server, wire) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=size) as (read, write),
        Session(read, write, client_info=info) as session,
    ):
        session.ears = ears
        try:
            yield session, wire
        finally:
            await _say_the_rest(wire)


async def _say_the_rest(wire: Wire) -> None:
    """Give what was told to the server just before the end, like the cancellation of a call, the time to get there."""
    with anyio.move_on_after(_LAST_WORDS_SECONDS):
        await wire.delivered()
