"""Connections to MCP servers, kept and shared across runs. Owns one task group, and in it one task a connection.

A server that does not know its connections apart (all of the modern era, and handshakes without a session id) gets one,
which all runs share. One that does keeps a run's state in it, so such a connection is leased to one run at a time, and
ended once tools were called over it: the next run must not see what this one left there. It is kept for the next run of
the same conversation, where there is one. One that was only listed over holds nothing, and the next run takes it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Self

import anyio
from cachetools import LRUCache

from app.domain.principal import Principal
from app.domain.spec import ServerSpec
from app.toolbox.egress import Egress
from app.toolbox.line import ConnectionLimits, Memory, Owner
from app.toolbox.server import Connection
from app.toolbox.trouble import Trouble

_REMEMBERED = 4096
_USERS_SHARE = 8
"""One end user may have an eighth of the connections of a key."""
_STILLBORN = 3
"""So many connections may end before they are used; then the server is given up."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many connections there may be."""

    connections: int = 1024
    """In all, `TOOLFERRY_MAX_SESSIONS`."""
    per_key: int = 256
    """On behalf of one API key, `TOOLFERRY_MAX_SESSIONS_PER_KEY`."""


@dataclass(frozen=True, slots=True)
class Party:
    """On whose behalf a connection is used."""

    elicits: bool = False
    """A person is there, which the server is told."""
    conversation: str | None = None


def key_of(server: ServerSpec, *, elicits: bool = False) -> bytes:
    """Tell servers apart by everything that decides what a connection sees.

    That is on whose behalf, trust, address, all headers, protocol, whether its sessions are shared, and whether a
    person is announced. A digest, since it is kept. Fields are framed by their length: no value can pass for two.
    """
    headers = sorted((name.lower(), value.reveal()) for name, value in server.headers.items())
    owner = server.principal
    fields = [owner.key, str(owner.user is not None), owner.user or ""]
    fields += [server.trust, server.protocol, server.session, str(server.allow_plain_http_public), server.url]
    fields.append(str(elicits))
    fields += [text for header in headers for text in header]
    digest = sha256()
    for field in fields:
        encoded = field.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8) + encoded)
    return digest.digest()


class Pool:
    """All connections of the process. An async context manager; leaving it ends them all, each telling its server."""

    def __init__(self, egress: Egress, limits: PoolLimits, connection_limits: ConnectionLimits) -> None:
        self._egress = egress
        self._limits = limits
        self._connection_limits = connection_limits
        self._connections: dict[bytes, list[Connection]] = {}
        self._counts: Counter[Principal] = Counter()
        """Of owner tasks, those that are closing included, by whom they are for."""
        self._memories: LRUCache[bytes, Memory] = LRUCache(_REMEMBERED)
        self._is_closing = False
        self._on_doubt: Callable[[bytes], None] = _ignore
        self._on_list_change: Callable[[bytes, bool], None] = lambda _key, _is_own: None

    def when_in_doubt(self, forget: Callable[[bytes], None]) -> None:
        """Have `forget` called with a server's key whenever what was known of it may be true no longer."""
        self._on_doubt = forget

    def when_lists_change(self, renew: Callable[[bytes, bool], None]) -> None:
        """Have `renew` called with a server's key when it says that its tools have changed.

        And whether it said so in one run's own session, which that run is told of already.
        """
        self._on_list_change = renew

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._is_closing = True
        for connection in list(self._all()):
            connection.close()
        return await self._tasks.__aexit__(kind, error, traceback)

    async def lease(self, server: ServerSpec, party: Party) -> Connection:
        """Lend a connection until its `release` is called.

        Raises:
            Trouble: None can be made.
        """
        key, place = key_of(server, elicits=party.elicits), key_of(server)
        stillborn = 0
        while stillborn < _STILLBORN:
            memory = self._memories.get(place)
            is_private = memory is not None and _is_private(server, party, memory)
            connection = self._find(key, party, is_private=is_private) or self._open(key, server, party, memory)
            connection.waiters += 1
            try:
                await connection.opened()
            finally:
                connection.waiters -= 1
                if connection.is_opening and not connection.waiters:
                    connection.abandon()
            if connection.is_over:
                stillborn += 1
            elif connection.is_free_for(party.conversation):
                if connection.memory is not None:
                    self._memories[place] = connection.memory
                connection.conversation = party.conversation
                if await _is_taken(connection):
                    return connection
                self._close_idle(key)
        raise Trouble("server_unreachable", "The server ends each connection at once.")

    def has_own_list(self, server: ServerSpec, party: Party) -> bool:
        """Tell whether the party's conversation has a session at rest that may have tools of its own."""
        connections = self._connections.get(key_of(server, elicits=party.elicits), ())
        return party.conversation is not None and any(
            each.has_own_list and each.conversation == party.conversation and not each.users for each in connections
        )

    def _find(self, key: bytes, party: Party, *, is_private: bool) -> Connection | None:
        """Find one that may be used; best the conversation's own. Else one that may prove usable once it is open.

        `is_private` says that it will not.
        """
        found: Connection | None = None
        for connection in self._connections.get(key, ()):
            if connection.is_opening:
                found = found or (None if is_private else connection)
            elif connection.is_free_for(party.conversation):
                if connection.conversation == party.conversation:
                    return connection
                found = connection
        return found

    def _open(self, key: bytes, server: ServerSpec, party: Party, memory: Memory | None) -> Connection:
        if self._is_closing:
            raise Trouble("server_unreachable", "The service is shutting down.")
        self._make_room(server.principal)
        limits, owner = self._connection_limits, self._owner(server)
        connection = Connection(server, self._egress, limits, memory=memory, elicits=party.elicits, owner=owner)
        owner.on_end = lambda: self._forget(key, server, connection)
        self._connections.setdefault(key, []).append(connection)
        self._counts[server.principal] += 1
        self._tasks.start_soon(self._own, connection)
        return connection

    def _make_room(self, owner: Principal) -> None:
        """Have an idle connection closed where there are too many: one of those who have too many."""
        of_key = sum(count for other, count in self._counts.items() if other.key == owner.key)
        crowd: Callable[[Principal], bool] | None = None
        if owner.user is not None and self._counts[owner] >= max(self._limits.per_key // _USERS_SHARE, 1):
            crowd = owner.__eq__
        elif of_key >= self._limits.per_key:
            crowd = lambda other: other.key == owner.key  # noqa: E731 - as the others
        elif self._counts.total() >= self._limits.connections:
            crowd = lambda _: True  # noqa: E731
        if crowd is not None and not self._close_longest_idle(crowd):
            raise Trouble("server_unreachable", "Too many connections to MCP servers are open.")

    def _owner(self, server: ServerSpec) -> Owner:
        """Make what a connection tells the pool by. All that is known of a server is so for both of its keys."""
        keys = [key_of(server, elicits=elicits) for elicits in (False, True)]

        def doubt() -> None:
            # Where the server has forgotten one session it was mostly started anew, and has forgotten all.
            for each in keys:
                for other in self._connections.get(each, ()):
                    other.suspect()
                self._on_doubt(each)

        def change(is_own: bool) -> None:  # noqa: FBT001 - a callback
            for each in keys:
                self._on_list_change(each, is_own)

        return Owner(lambda: None, doubt, change)

    def _forget(self, key: bytes, server: ServerSpec, connection: Connection) -> None:
        self._connections[key].remove(connection)
        if not self._connections[key]:
            del self._connections[key]
        if connection.memory is None and not connection.is_abandoned:
            self._memories.pop(key_of(server), None)

    async def _own(self, connection: Connection) -> None:
        """Be the owner task of one connection."""
        owner = connection.principal
        try:
            await connection.run()
        finally:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]

    def _close_idle(self, key: bytes) -> None:
        """One connection has died at rest, so mostly have the others that rest; asking each would take too long."""
        for connection in list(self._connections.get(key, ())):
            is_unused = not connection.is_opening and not connection.users and connection.conversation is None
            if is_unused and connection.has_rested:
                connection.close()

    def _close_longest_idle(self, crowd: Callable[[Principal], bool]) -> bool:
        """Close the connection that has rested longest, of those that are the crowd's; tells whether there is one."""
        idle = [
            connection
            for connection in self._all()
            if not connection.is_opening and not connection.users and crowd(connection.principal)
        ]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.idle_since).close()
        return True

    def _all(self) -> Iterator[Connection]:
        for connections in self._connections.values():
            yield from connections


async def _is_taken(connection: Connection) -> bool:
    """Become a user of a connection, where it still works."""
    connection.users += 1
    is_alive = False
    try:
        is_alive = await connection.answers()
    finally:
        if not is_alive:
            connection.release()
    return is_alive


def _is_private(server: ServerSpec, party: Party, memory: Memory) -> bool:
    """Tell whether each run gets a connection of its own, as far as is remembered."""
    return (memory.keeps_session and server.session != "shared") or (party.elicits and memory.discovered is None)


def _ignore(_: bytes) -> None:
    pass
