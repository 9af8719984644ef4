"""One live MCP connection. Owned by one task, which opens and closes it; spoken to from any task.

What is asked over it meanwhile is `line`'s.
"""

import logging
import math
from functools import partial

import anyio
import anyio.abc
from mcp import MCPError

from app.domain.spec import ServerSpec
from app.toolbox.egress import Egress
from app.toolbox.faults import Exchange, Fault, under_way
from app.toolbox.line import REFUSING, ConnectionLimits, Line, Memory, Owner
from app.toolbox.session import Ears, Session
from app.toolbox.transports import TransportName, open_session
from app.toolbox.trouble import (
    Trouble,
    trouble_from_fault,
    trouble_from_handshake,
)

_log = logging.getLogger(__name__)


class Connection(Line):
    """One connection, from its opening to its end. `run` is the owner task's life."""

    def __init__(
        self,
        server: ServerSpec,
        egress: Egress,
        limits: ConnectionLimits,
        *,
        memory: Memory | None,
        elicits: bool,
        owner: Owner,
    ) -> None:
        """Do nothing yet. `elicits` tells the server that a person can be asked."""
        super().__init__(server, limits, memory=memory, elicits=elicits, owner=owner)
        self.is_abandoned = False
        """Nobody waited for it to open, so it says nothing about its server."""
        self.waiters = 0
        """Who waits for it to open; without any it need not."""
        self.idle_since = anyio.current_time()
        self._egress = egress
        self._opened = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)
        # Shielded, so that the goodbye is said in any case; every phase but the one that `close` ends has a deadline.
        self._trouble: Trouble | None = None
        self._exchange = Exchange(0)
        """What became of the latest message of the handshake."""

    @property
    def is_opening(self) -> bool:
        return not self._opened.is_set()

    async def opened(self) -> None:
        """Wait until the connection can be used.

        Raises:
            Trouble: It cannot be made.
        """
        await self._opened.wait()
        if self._session is None and self._trouble is not None:
            # Whatever went wrong, no tool ran; and this was a new connection.
            self._trouble.code, self._trouble.again = "server_unreachable", False
            raise self._trouble

    def release(self) -> None:
        """One user less; without any the idle time begins.

        A session in which tools were called ends with its run, or idle, where it is a conversation's.
        """
        self.users -= 1
        self.idle_since = anyio.current_time()
        if self._holds_state and self.keeps_session and self.conversation is None:
            self.retire()

    def abandon(self) -> None:
        """Nobody waits for it to open. What the server has begun to open may come, so that it can be ended."""
        self.is_abandoned = True
        self.retire()
        self._closing.set()
        self._scope.deadline = min(self._scope.deadline, anyio.current_time() + self.limits.abandoned_seconds)

    def close(self) -> None:
        """Take no more calls, and let the owner end it at once."""
        self.retire()
        self._closing.set()
        if self.is_opening:
            self._scope.cancel()

    async def run(self) -> None:
        """Open, stay until closed or idle for too long, close. Raises nothing but cancellation."""
        try:
            with self._scope:
                self._scope.deadline = anyio.current_time() + self.limits.connect_seconds
                await self._live()
            if self._session is None and self._scope.cancelled_caught:
                limit = f"{self.limits.connect_seconds:g} seconds"
                self._trouble = Trouble("server_unreachable", f"The server did not get ready within {limit}.")
        except Exception:  # noqa: BLE001 - one connection must not end all others; logged with its traceback
            _log.exception("A connection ended for a reason that nobody thought of.")
        finally:
            if self._session is None and self._trouble is None:
                self._trouble = Trouble("server_unreachable", "The connection was closed before it was ready.")
            if self._session is None and not self.is_abandoned:
                self._owner.on_doubt()
            self.close()
            for scope in list(self._calls):
                scope.cancel()
            self._opened.set()

    async def _live(self) -> None:
        refused = await self._egress.vet(self._server)
        if refused is not None:
            self._trouble = Trouble("server_unreachable", refused.reason)
            return
        known, self.memory = self.memory, None
        async with anyio.create_task_group() as chores:
            try:
                await self._find_transport(known, chores)
            finally:
                chores.cancel_scope.cancel()

    async def _find_transport(self, known: Memory | None, chores: anyio.abc.TaskGroup) -> None:
        if known is not None and (await self._serve(known.transport, known, chores) or self._is_hopeless()):
            return
        if not await self._serve("streamable-http", None, chores) and self._exchange.status in REFUSING:
            first = self._trouble
            await self._serve("sse", None, chores)
            if self._trouble is None or not self._trouble.wants_auth:
                self._trouble = first

    def _is_hopeless(self) -> bool:
        """Tell whether another attempt is pointless: nobody is there, or authorization is missing."""
        fault, status = self._exchange.fault, self._exchange.status
        is_redirected = status is not None and 300 <= status < 400
        return is_redirected or (fault is not None and fault.kind in ("unreachable", "auth"))

    async def _serve(self, transport: TransportName, known: Memory | None, chores: anyio.abc.TaskGroup) -> bool:
        """Make one attempt and stay as long as the connection lives. False leaves the reason in `_trouble`."""
        self._exchange = Exchange(self.limits.connect_seconds)
        token = under_way.set(self._exchange)
        ears = Ears(self._hear_of_change, self._elicit if self._elicits else None)
        opening = partial(open_session, ears=ears, on_end=self._stream_ended)
        try:
            async with opening(transport, self._server, self._egress, chores) as (session, wire):
                if not await self._shake_hands(session, known):
                    return False
                keeps_session = not session.is_modern and (transport == "sse" or wire.session_id is not None)
                self.memory = Memory(transport, session.discovered, keeps_session)
                self._session = session
                self._heard = anyio.current_time()
                async with anyio.create_task_group() as hearing:
                    if session.is_modern and session.tells_changes:
                        hearing.start_soon(self._hear_changes, session)
                    try:
                        await self._stay()
                    finally:
                        self.close()
                        self._scope.deadline = anyio.current_time() + self.limits.close_seconds
                        hearing.cancel_scope.cancel()
        except Exception:  # noqa: BLE001 - whatever ends the SDK's blocks, mostly in groups, ends here
            fault = self._exchange.fault or Fault("unreachable", "No connection to the server can be made.")
            self._trouble = trouble_from_fault(fault, self._server)
        finally:
            under_way.reset(token)
        return self._session is not None

    def _stream_ended(self) -> None:
        if self._session is not None:
            self.close()

    async def _hear_changes(self, session: Session) -> None:
        under_way.set(Exchange(None))
        await session.subscribe()

    async def _shake_hands(self, session: Session, known: Memory | None) -> bool:
        """Agree on an era. False leaves the reason in `_trouble`."""
        with anyio.CancelScope() as scope:
            self._exchange.on_fault = lambda: scope.cancel() if self._is_hopeless() else None
            try:
                if known is None:
                    await session.negotiate(self._server.protocol, self.limits.probe_seconds, self._is_hopeless)
                elif known.discovered is not None:
                    session.adopt(known.discovered)
                else:
                    await session.initialize()
            except (MCPError, ValueError, RuntimeError, TimeoutError) as error:
                self._trouble = trouble_from_handshake(error, self._exchange, self._server)
                return False
        self._is_proven = known is None or known.discovered is None
        if scope.cancelled_caught and self._exchange.fault is not None:
            self._trouble = trouble_from_fault(self._exchange.fault, self._server)
        return not scope.cancelled_caught

    async def _stay(self) -> None:
        self._scope.deadline = math.inf
        self._opened.set()
        while not self._closing.is_set():
            idle_until = self.idle_since + self.limits.idle_seconds
            now = anyio.current_time()
            if self.users == 0 and now >= idle_until:
                return
            with anyio.move_on_at(idle_until if idle_until > now else now + self.limits.idle_seconds):
                await self._closing.wait()
