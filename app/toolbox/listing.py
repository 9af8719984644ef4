"""The tools of a server, cached. Knows what a server lists, not which of it a run may use.

A list that is a minute old is still used, and asked for again behind the one who uses it; who wants to hear of changes
watches. A server that says that its tools have changed is asked again by whoever needs them next.
"""

import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import anyio
import anyio.abc
import anyio.to_thread
from cachetools import TTLCache

from app.domain.jsontypes import Json
from app.domain.spec import ServerSpec
from app.toolbox.entries import ListedTool, entries_from_page, listed_tools
from app.toolbox.line import Era
from app.toolbox.pool import Party, Pool, key_of
from app.toolbox.server import Connection
from app.toolbox.transports import TransportName
from app.toolbox.trouble import Trouble

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """How long a listing may take, and how many are kept for how long."""

    seconds: float = 10.0
    """For one server: connect, handshake, all pages."""
    fresh_seconds: float = 60.0
    """A list that is older is used and asked for again."""
    ttl_seconds: float = 600.0
    """A list that is older is forgotten."""
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


class _Kept(NamedTuple):
    listing: Listing
    listed_at: float


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
        pool.when_lists_change(lambda key, is_own: self.renew(key, is_told=not is_own))
        self._pool = pool
        self._limits = limits
        self._tasks = tasks
        least = limits.characters // limits.entries
        self._clock = clock
        self._kept: TTLCache[bytes, _Kept] = TTLCache(
            limits.characters,
            limits.ttl_seconds,
            clock,
            getsizeof=lambda kept: min(max(kept.listing.characters, least), limits.characters),
        )
        self._under_way: dict[bytes, _Attempt] = {}
        self._watchers: dict[bytes, list[Callable[[], None]]] = {}

    async def of(self, server: ServerSpec, *, elicits: bool = False) -> Listing:
        """List a server, or return what it listed lately.

        Raises:
            Trouble: It cannot be listed.
        """
        key = key_of(server, elicits=elicits)
        kept, attempt = self._kept.get(key), self._under_way.get(key)
        if kept is None:
            return await self._wait(key, attempt or self._begin(key, server, elicits=elicits))
        if attempt is None and self._clock() - kept.listed_at >= self._limits.fresh_seconds:
            self._begin(key, server, elicits=elicits).waiters += 1  # nobody's, so that nobody stops it
        return kept.listing

    async def afresh(self, server: ServerSpec, *, elicits: bool = False) -> Listing:
        """List a server now, whatever it listed before. Callers at once share one listing.

        Raises:
            Trouble: It cannot be listed.
        """
        key = key_of(server, elicits=elicits)
        return await self._wait(key, self._under_way.get(key) or self._begin(key, server, elicits=elicits))

    async def over(self, connection: Connection, server: ServerSpec) -> Listing:
        """List a server over one run's own session, which may have tools of its own; that is not kept.

        Raises:
            Trouble: It cannot be listed.
        """
        return await _listing_over(connection, server.name, anyio.current_time() + self._limits.seconds)

    def forget(self, key: bytes) -> None:
        """Drop what a server listed, so that the next one who asks learns how it is now."""
        self._kept.pop(key, None)

    def renew(self, key: bytes, *, is_told: bool = True) -> None:
        """Drop what a server listed, and tell who watches, where it is not told already."""
        self.forget(key)
        self._under_way.pop(key, None)  # what is listed at the moment may be older than the change
        if is_told:
            self._tell(key)

    def watch(self, key: bytes, tell: Callable[[], None]) -> Callable[[], None]:
        """Have `tell` called when a server's tools are not what they were, until the function returned is called."""
        watchers = self._watchers.setdefault(key, [])
        watchers.append(tell)

        def leave() -> None:
            watchers.remove(tell)
            if not watchers and self._watchers.get(key) is watchers:
                del self._watchers[key]

        return leave

    def _tell(self, key: bytes) -> None:
        for tell in list(self._watchers.get(key, ())):
            tell()

    def _begin(self, key: bytes, server: ServerSpec, *, elicits: bool) -> _Attempt:
        attempt = self._under_way[key] = _Attempt()
        self._tasks.start_soon(self._run, key, attempt, lambda: self._list(server, Party(elicits)))
        return attempt

    async def _wait(self, key: bytes, attempt: _Attempt) -> Listing:
        attempt.waiters += 1
        try:
            await attempt.done.wait()
        finally:
            attempt.waiters -= 1
            if not attempt.waiters and not attempt.done.is_set():
                attempt.scope.cancel()
                self._drop(key, attempt)
        if attempt.listing is None:
            raise attempt.trouble
        return attempt.listing

    async def _run(self, key: bytes, attempt: _Attempt, ask: Callable[[], Awaitable[Listing]]) -> None:
        before = self._kept.get(key)
        try:
            with attempt.scope:
                attempt.listing = await ask()
        except Trouble as trouble:
            attempt.trouble = trouble
        except Exception:  # noqa: BLE001 - one list must not end the room; logged with its traceback
            _log.exception("A server could not be listed for a reason that nobody thought of.")
        finally:
            attempt.done.set()
            if self._drop(key, attempt) and not attempt.scope.cancel_called:
                # It is still the newest: no change was told meanwhile.
                self._keep(key, attempt.listing, before)

    def _drop(self, key: bytes, attempt: _Attempt) -> bool:
        is_newest = self._under_way.get(key) is attempt
        if is_newest:
            del self._under_way[key]
        return is_newest

    def _keep(self, key: bytes, listing: Listing | None, before: _Kept | None) -> None:
        if listing is None:
            self.forget(key)
            return
        self._kept[key] = _Kept(listing, self._clock())
        if before is not None and before.listing.tools != listing.tools:
            self._tell(key)

    async def _list(self, server: ServerSpec, party: Party) -> Listing:
        deadline = anyio.current_time() + self._limits.seconds
        try:
            return await self._list_once(server, party, deadline)
        except Trouble as trouble:
            if not trouble.again:
                raise
        return await self._list_once(server, party, deadline)

    async def _list_once(self, server: ServerSpec, party: Party, deadline: float) -> Listing:
        connection: Connection | None = None
        with anyio.move_on_at(deadline):
            connection = await self._pool.lease(server, party)
        limit = f"{self._limits.seconds:g} seconds"
        if connection is None:
            raise Trouble("server_unreachable", f"The server did not get ready within {limit}.")
        try:
            return await _listing_over(connection, server.name, deadline)
        except Trouble:
            if anyio.current_time() < deadline:
                raise
            raise Trouble("server_unreachable", f"The server did not list its tools within {limit}.") from None
        except anyio.get_cancelled_exc_class():
            # In the older era a response goes on after its caller has left, until its connection ends.
            connection.retire()
            raise
        finally:
            connection.release()


async def _listing_over(connection: Connection, name: str, deadline: float) -> Listing:
    tools, characters = await _list_all(connection, name, deadline)
    return Listing(tools, connection.era, connection.transport, connection.protocol_version, characters)


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
        # Some servers end with an empty one.
        cursor = following if isinstance(following, str) and following and following not in cursors else None
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
