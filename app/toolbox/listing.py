"""The tools of a server, cached for a minute. Knows what a server lists, not which of it a run may use."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.abc
from cachetools import TTLCache

from app.domain.spec import ServerSpec
from app.toolbox.entries import ListedTool
from app.toolbox.pool import Pool, key_of
from app.toolbox.server import Era
from app.toolbox.transports import TransportName
from app.toolbox.trouble import Trouble


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """How long a listing may take, and how many are kept for how long."""

    seconds: float = 10.0
    """For one server: connect, handshake, all pages."""
    ttl_seconds: float = 60.0
    entries: int = 1000


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server offers and how it is spoken to."""

    tools: tuple[ListedTool, ...]
    era: Era
    transport: TransportName
    protocol_version: str | None


class _Attempt:
    """One listing under way, which any number of callers wait for."""

    def __init__(self) -> None:
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
        self._pool = pool
        self._limits = limits
        self._tasks = tasks
        self._kept: TTLCache[bytes, Listing] = TTLCache(limits.entries, limits.ttl_seconds, clock)
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
        await attempt.done.wait()
        if attempt.listing is None:
            raise attempt.trouble
        return attempt.listing

    async def afresh(self, server: ServerSpec) -> Listing:
        """List a server now, whatever it listed before.

        Raises:
            Trouble: It cannot be listed.
        """
        with anyio.move_on_after(self._limits.seconds):
            return await self._list(server)
        raise self._late()

    async def _run(self, key: bytes, server: ServerSpec, attempt: _Attempt) -> None:
        try:
            attempt.listing = self._kept[key] = await self.afresh(server)
        except Trouble as trouble:
            attempt.trouble = trouble
        finally:
            del self._under_way[key]
            attempt.done.set()

    async def _list(self, server: ServerSpec) -> Listing:
        try:
            return await self._list_once(server)
        except Trouble as trouble:
            if not trouble.again:
                raise
        return await self._list_once(server)

    async def _list_once(self, server: ServerSpec) -> Listing:
        async with self._pool.leased(server) as connection:
            tools = await connection.list_tools()
            return Listing(tuple(tools), connection.era, connection.transport, connection.protocol_version)

    def _late(self) -> Trouble:
        return Trouble(
            "server_unreachable", f"The server did not list its tools within {self._limits.seconds:g} seconds."
        )
