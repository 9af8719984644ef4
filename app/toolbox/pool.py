"""Connections to MCP servers, kept and shared across runs. Owns one task group, and in it one task a connection.

A server that does not know its connections apart (all of the modern era, and handshakes without a session id) gets one,
which all runs share. One that does keeps a run's state in it, so such a connection is leased to one run at a time, and
ended once tools were called over it: the next run must not see what this one left there. One that was only listed over
holds nothing, and the next run takes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Self

import anyio
from cachetools import LRUCache

from app.domain.spec import ServerSpec
from app.toolbox.egress import Egress
from app.toolbox.server import Connection, ConnectionLimits, Memory
from app.toolbox.trouble import Trouble

_REMEMBERED = 4096
_STILLBORN = 3
"""So many connections may end before they are used; then the server is given up."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many connections there may be, `TOOLFERRY_MAX_SESSIONS`."""

    connections: int = 1024


def key_of(server: ServerSpec) -> bytes:
    """Tell servers apart by everything that decides what a connection sees: trust, address, all headers, protocol.

    A digest, since it is kept. Fields are framed by their length: no value can pass for two.
    """
    headers = sorted((name.lower(), value.reveal()) for name, value in server.headers.items())
    fields = [server.trust, server.protocol, str(server.allow_plain_http_public), server.url]
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
        self._count = 0
        """Of owner tasks, those that are closing included."""
        self._memories: LRUCache[bytes, Memory] = LRUCache(_REMEMBERED)
        self._is_closing = False
        self._on_doubt: Callable[[bytes], None] = _ignore

    def when_in_doubt(self, forget: Callable[[bytes], None]) -> None:
        """Have `forget` called with a server's key whenever what was known of it may be true no longer."""
        self._on_doubt = forget

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

    async def lease(self, server: ServerSpec) -> Connection:
        """Lend a connection until its `release` is called.

        Raises:
            Trouble: None can be made.
        """
        key = key_of(server)
        stillborn = 0
        while stillborn < _STILLBORN:
            connection = self._find(key) or self._open(key, server)
            connection.waiters += 1
            try:
                await connection.opened()
            finally:
                connection.waiters -= 1
                if connection.is_opening and not connection.waiters:
                    connection.close()
            if connection.is_over:
                stillborn += 1
            elif not (connection.keeps_session and connection.users):
                if connection.memory is not None:
                    self._memories[key] = connection.memory
                connection.users += 1
                return connection
        raise Trouble("server_unreachable", "The server ends each connection at once.")

    def _find(self, key: bytes) -> Connection | None:
        """Find one that may be used, or that may prove usable once it is open."""
        memory = self._memories.get(key)
        is_private = memory is not None and memory.keeps_session
        for connection in self._connections.get(key, ()):
            if connection.is_opening:
                if not is_private:
                    return connection
            elif not (connection.keeps_session and connection.users):
                return connection
        return None

    def _open(self, key: bytes, server: ServerSpec) -> Connection:
        if self._is_closing:
            raise Trouble("server_unreachable", "The service is shutting down.")
        if self._count >= self._limits.connections and not self._close_longest_idle():
            raise Trouble("server_unreachable", "Too many connections to MCP servers are open.")

        def forget(connection: Connection) -> None:
            self._connections[key].remove(connection)
            if not self._connections[key]:
                del self._connections[key]
            if connection.memory is None:
                self._memories.pop(key, None)

        memory = self._memories.get(key)
        connection = Connection(
            server,
            self._egress,
            self._connection_limits,
            memory,
            on_end=forget,
            on_doubt=lambda: self._on_doubt(key),
        )
        self._connections.setdefault(key, []).append(connection)
        self._count += 1
        self._tasks.start_soon(self._own, connection)
        return connection

    async def _own(self, connection: Connection) -> None:
        """Be the owner task of one connection."""
        try:
            await connection.run()
        finally:
            self._count -= 1

    def _close_longest_idle(self) -> bool:
        idle = [connection for connection in self._all() if not connection.is_opening and not connection.users]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.idle_since).close()
        return True

    def _all(self) -> Iterator[Connection]:
        for connections in self._connections.values():
            yield from connections


def _ignore(_: bytes) -> None:
    pass
