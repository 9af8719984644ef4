"""The tools of a server, cached for a minute. Knows what a server lists, not which of it a run may use."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread
from cachetools import TTLCache

from app.domain.jsontypes import Json
from app.domain.spec import ServerSpec
from app.toolbox.entries import ListedTool, entries_from_page, listed_tools
from app.toolbox.pool import Pool, key_of
from app.toolbox.server import Connection, Era
from app.toolbox.transports import TransportName
from app.toolbox.trouble import Trouble

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """How long a listing may take, and how many are kept for how long."""

    seconds: float = 10.0
    """For one server: connect, handshake, all pages."""
    ttl_seconds: float = 60.0
    entries: int = 1000
    characters: int = 16 * 1024 * 1024
    """Of JSON, in all that are kept; what Python makes of it is several times as large."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server offers and how it is spoken to."""

    tools: tuple[ListedTool, ...]
    era: Era
    transport: TransportName
    protocol_version: str | None
    characters: int = 0
    """How large it is, as JSON."""


class _Attempt:
    """One listing under way, which any number of callers wait for; it is stopped when the last one leaves."""

    def __init__(self) -> None:
        self.waiters = 0
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.listing: Listing | None = None
        self.trouble = Trouble("server_unreachable", "The listing was stopped.")


class Listings:
    """Lists servers. Failures are not kept; who asks for a server that is being listed joins in."""

    def __init__(
        self,
        pool: Pool,
        limits: ListingLimits,
        tasks: anyio.abc.TaskGroup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep nothing yet. `tasks` runs the listings: they belong to none of their callers, who may go away."""
        pool.when_in_doubt(self.forget)
        self._pool = pool
        self._limits = limits
        self._tasks = tasks
        least = limits.characters // limits.entries
        self._kept: TTLCache[bytes, Listing] = TTLCache(
            limits.characters,
            limits.ttl_seconds,
            clock,
            getsizeof=lambda listing: min(max(listing.characters, least), limits.characters),
        )
        self._under_way: dict[bytes, _Attempt] = {}

    async def of(self, server: ServerSpec) -> Listing:
        """List a server, or return what it listed lately.

        Raises:
            Trouble: It cannot be listed.
        """
        key = key_of(server)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        attempt = self._under_way.get(key)
        if attempt is None:
            attempt = self._under_way[key] = _Attempt()
            self._tasks.start_soon(self._run, key, server, attempt)
        attempt.waiters += 1
        try:
            await attempt.done.wait()
        finally:
            attempt.waiters -= 1
            if not attempt.waiters and not attempt.done.is_set():
                attempt.scope.cancel()
                self._under_way.pop(key, None)
        if attempt.listing is None:
            raise attempt.trouble
        return attempt.listing

    async def afresh(self, server: ServerSpec) -> Listing:
        """List a server now, whatever it listed before, and keep that.

        Raises:
            Trouble: It cannot be listed.
        """
        deadline = anyio.current_time() + self._limits.seconds
        try:
            listing = self._kept[key_of(server)] = await self._list(server, deadline)
        except Trouble:
            if anyio.current_time() < deadline:
                raise
        else:
            return listing
        limit = f"{self._limits.seconds:g} seconds"
        raise Trouble("server_unreachable", f"The server did not list its tools within {limit}.")

    def forget(self, key: bytes) -> None:
        """Drop what a server listed, so that the next one who asks learns how it is now."""
        self._kept.pop(key, None)

    async def _run(self, key: bytes, server: ServerSpec, attempt: _Attempt) -> None:
        try:
            with attempt.scope:
                attempt.listing = await self.afresh(server)
        except Trouble as trouble:
            attempt.trouble = trouble
        finally:
            if self._under_way.get(key) is attempt:
                del self._under_way[key]
            attempt.done.set()

    async def _list(self, server: ServerSpec, deadline: float) -> Listing:
        try:
            return await self._list_once(server, deadline)
        except Trouble as trouble:
            if not trouble.again:
                raise
        return await self._list_once(server, deadline)

    async def _list_once(self, server: ServerSpec, deadline: float) -> Listing:
        connection: Connection | None = None
        with anyio.move_on_at(deadline):
            connection = await self._pool.lease(server)
        if connection is None:
            raise Trouble("server_unreachable", "The server did not get ready in time.")
        try:
            tools, characters = await _list_all(connection, server.name, deadline)
            return Listing(tools, connection.era, connection.transport, connection.protocol_version, characters)
        except anyio.get_cancelled_exc_class():
            # In the older era a response goes on after its caller has left, until its connection ends.
            connection.retire()
            raise
        finally:
            connection.release()


async def _list_all(connection: Connection, name: str, deadline: float) -> tuple[tuple[ListedTool, ...], int]:
    """List page by page, and tell how large it all is; a page too many, a tool too many or a repeated cursor ends it.

    A later page that fails, or is not there by the deadline, does not cost what was listed.
    """
    limits = connection.limits
    entries: list[Json] = []
    cursors: set[str] = set()
    cursor: str | None = None
    for _ in range(limits.pages):
        try:
            page = await connection.list_page(cursor, deadline)
        except Trouble:
            if cursor is None:
                raise
            _log.warning("The server %s did not give all pages of its tool list.", name)
            break
        entries += entries_from_page(page)
        following: Json = page.get("nextCursor")
        cursor = following if isinstance(following, str) and following not in cursors else None
        if cursor is None or len(entries) >= limits.tools:
            break
        cursors.add(cursor)
    read = partial(
        listed_tools,
        entries,
        modern=connection.era == "modern",
        schema_bytes=limits.schema_bytes,
        limit=limits.tools,
        has_more=cursor is not None,
    )
    # In a thread, since the server decides how much work its list is, and others wait for this loop.
    return await anyio.to_thread.run_sync(_measured, read, abandon_on_cancel=True)


def _measured(read: Callable[[], list[ListedTool]]) -> tuple[tuple[ListedTool, ...], int]:
    tools = tuple(read())
    return tools, sum(len(tool.description) + len(json.dumps(tool.written)) for tool in tools)
