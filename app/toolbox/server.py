"""One live MCP connection. Owned by one task, which opens and closes it; spoken to from any task.

A caller waits for its own answer and for the end of the owner: in a cancel scope of its own, which the owner cancels
when the connection is over. Deadlines live here, outside the HTTP client, whose limits restart with every byte.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio
import anyio.abc
import mcp_types
from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION

from app.domain.jsontypes import JsonObject
from app.domain.messages import Progress
from app.domain.spec import ServerSpec
from app.toolbox.egress import Egress
from app.toolbox.entries import ListedTool
from app.toolbox.faults import Exchange, Fault, under_way
from app.toolbox.progress import ProgressGate
from app.toolbox.session import Session, headers_from_arguments, is_sendable
from app.toolbox.transports import TransportName, open_session
from app.toolbox.trouble import (
    Trouble,
    trouble_from_error,
    trouble_from_fault,
    trouble_from_handshake,
    trouble_from_loss,
    trouble_from_silence,
)

_log = logging.getLogger(__name__)

Era: TypeAlias = Literal["modern", "legacy"]

_REFUSING = (400, 404, 405)
"""What a POST of the wrong transport or era is answered with; then, and only then, another one is tried."""

_GRACE_SECONDS = 5.0
"""A silent response is read for this much longer than its caller waits: where the server was told to stop, it may."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long and how much."""

    connect_seconds: float = 10.0
    """Look-up, connect and handshake, with all attempts."""
    probe_seconds: float = 3.0
    list_seconds: float = 10.0
    call_seconds: float = 120.0
    """Silence allowed during a call; progress restarts it."""
    call_total_seconds: float = 1800.0
    idle_seconds: float = 600.0
    close_seconds: float = 5.0
    tools: int = 256
    pages: int = 20
    schema_bytes: int = 65_536
    """Of one tool; a larger one is not offered."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a connection found out about a server, so that the next one need not ask."""

    transport: TransportName
    discovered: mcp_types.DiscoverResult | None
    """None for the handshake era."""
    keeps_session: bool


class Connection:
    """One connection, from its opening to its end. `run` is the owner task's life."""

    def __init__(
        self,
        server: ServerSpec,
        egress: Egress,
        limits: ConnectionLimits,
        memory: Memory | None,
        *,
        on_end: Callable[["Connection"], None],
        on_doubt: Callable[[], None],
    ) -> None:
        """Do nothing yet. `on_doubt` is called whenever the server is not what it seemed to be, or not there."""
        self.memory = memory
        """What is believed of the server. None once it has proved wrong, or as long as nothing is known."""
        self.users = 0
        self.waiters = 0
        """Who waits for it to open; without any it need not."""
        self.idle_since = anyio.current_time()
        self._server = server
        self._egress = egress
        self.limits = limits
        self._on_end = on_end
        self._on_doubt = on_doubt
        self._opened = anyio.Event()
        self._is_over = False
        self._closing = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)
        # Shielded, so that the goodbye is said in any case; every phase but the one that `close` ends has a deadline.
        self._session: Session | None = None
        self._trouble: Trouble | None = None
        self._calls: set[anyio.CancelScope] = set()
        self._exchange = Exchange(0)
        """What became of the latest message of the handshake."""
        self._holds_state = False
        """A tool was called in a session of ours, so that the server may keep something of its caller in it."""
        self._is_proven = False
        """Something was answered on this connection, so what is believed of the server is true."""

    @property
    def is_opening(self) -> bool:
        return not self._opened.is_set()

    @property
    def is_over(self) -> bool:
        """No new call may use it."""
        return self._is_over

    @property
    def keeps_session(self) -> bool:
        """The server knows this connection from others, so that one run at a time may use it."""
        return self.memory is not None and self.memory.keeps_session

    @property
    def era(self) -> Era:
        return "modern" if self._session is not None and self._session.is_modern else "legacy"

    @property
    def transport(self) -> TransportName:
        return self.memory.transport if self.memory is not None else "streamable-http"

    @property
    def protocol_version(self) -> str | None:
        return self._session.protocol_version if self._session is not None else None

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
        """One user less; without any the idle time begins. A session in which tools were called ends with its user."""
        self.users -= 1
        self.idle_since = anyio.current_time()
        if self._holds_state and self.keeps_session:
            self.retire()

    def retire(self) -> None:
        """Take no more calls; the owner ends it when those under way are through."""
        if not self._is_over:
            self._is_over = True
            self._on_end(self)
        if not self._calls:
            self._closing.set()

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
        finally:
            if self._session is None and self._trouble is None:
                self._trouble = Trouble("server_unreachable", "The connection was closed before it was ready.")
            if self._session is None:
                self._on_doubt()
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
        if not await self._serve("streamable-http", None, chores) and self._exchange.status in _REFUSING:
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
        try:
            async with open_session(transport, self._server, self._egress, chores, on_end=self._stream_ended) as opened:
                session, wire = opened
                if not await self._shake_hands(session, known):
                    return False
                keeps_session = transport == "sse" or wire.session_id is not None
                self.memory = Memory(transport, session.discover_result, keeps_session)
                self._session = session
                try:
                    await self._stay()
                finally:
                    self.close()
                    self._scope.deadline = anyio.current_time() + self.limits.close_seconds
        except Exception:  # noqa: BLE001 - whatever ends the SDK's blocks, mostly in groups, ends here
            fault = self._exchange.fault or Fault("unreachable", "No connection to the server can be made.")
            self._trouble = trouble_from_fault(fault, self._server)
        finally:
            under_way.reset(token)
        return self._session is not None

    def _stream_ended(self) -> None:
        if self._session is not None:
            self.close()

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

    async def list_page(self, cursor: str | None, deadline: float) -> JsonObject:
        """Ask for one page of the tool list. It is empty where a server that claims no tools has no list.

        Raises:
            Trouble: With the reason; `again` where the connection is at fault.
        """
        seconds = self.limits.list_seconds
        scope = anyio.CancelScope(deadline=min(deadline, anyio.current_time() + seconds))
        params: JsonObject = {} if cursor is None else {"cursor": cursor}
        try:
            return await self._ask("tools/list", params, scope=scope, seconds=seconds)
        except Trouble as trouble:
            if trouble.rpc_code != METHOD_NOT_FOUND or (self._session is not None and self._session.claims_tools):
                raise
            return {}

    async def call_tool(
        self, tool: ListedTool, arguments: JsonObject, on_progress: Callable[[Progress], None], seconds: float
    ) -> JsonObject:
        """Call a tool and return its result as it came. `seconds` is the silence allowed; progress restarts it.

        The server is told when the wait ends before its answer, by time or by cancellation.

        Raises:
            Trouble: There is no result. `again` where nothing was executed for sure.
        """
        latest = anyio.current_time() + self.limits.call_total_seconds
        scope = anyio.CancelScope(deadline=min(anyio.current_time() + seconds, latest))
        gate = ProgressGate(on_progress)

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            scope.deadline = min(anyio.current_time() + seconds, latest)
            gate.offer(progress, total, message)

        headers = headers_from_arguments(tool.param_headers, arguments) if self.era == "modern" else None
        params = {"name": tool.wire_name, "arguments": arguments}
        self._holds_state = True
        try:
            return await self._ask(
                "tools/call", params, scope=scope, seconds=seconds, on_progress=hear, headers=headers
            )
        except Trouble as trouble:
            if trouble.code == "tool_timeout" and anyio.current_time() >= latest:
                limit = f"{self.limits.call_total_seconds / 60:g} minutes"
                raise Trouble("tool_timeout", f"The tool did not finish within {limit}.") from None
            raise
        finally:
            gate.close()

    async def _ask(
        self,
        method: str,
        params: JsonObject,
        *,
        scope: anyio.CancelScope,
        seconds: float,
        on_progress: ProgressFnT | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """Send a request in the caller's task, within `scope`, whose end is the end of the wait."""
        session = self._session
        if session is None or self.is_over:
            raise trouble_from_loss(was_sent=False)
        if not is_sendable(params):
            raise Trouble("tool_arguments_invalid", "The arguments cannot be written as JSON.")
        exchange = Exchange(seconds + _GRACE_SECONDS, on_fault=scope.cancel)
        token = under_way.set(exchange)
        self._calls.add(scope)
        try:
            with scope:
                result = await session.ask(method, params, on_progress=on_progress, headers=headers)
                self._is_proven = True
                return result
            if exchange.fault is not None:
                trouble = trouble_from_fault(exchange.fault, self._server)
            elif self._closing.is_set():
                trouble = trouble_from_loss(was_sent=exchange.attempted)
            else:
                trouble = trouble_from_silence(seconds)
            raise self._judged(trouble, exchange)
        except MCPError as error:
            raise self._judged(trouble_from_error(error, exchange, self._server), exchange, error.code) from None
        finally:
            exchange.end_within(_GRACE_SECONDS)
            self._calls.discard(scope)
            under_way.reset(token)
            if self._is_over:
                self.retire()

    def _judged(self, trouble: Trouble, exchange: Exchange, rpc_code: int = 0) -> Trouble:
        """Draw the conclusions from a trouble: for the call, the connection, and what is believed of the server."""
        is_version_refused = rpc_code == UNSUPPORTED_PROTOCOL_VERSION
        is_refused = exchange.status in _REFUSING and (exchange.fault is not None or rpc_code == INVALID_REQUEST)
        if exchange.is_undispatched or is_version_refused:
            trouble.again = True
        if exchange.is_undispatched or is_version_refused or is_refused:
            # The server speaks differently than was believed: it was deployed anew, or has forgotten us.
            self.memory = None
            trouble.again |= not self._is_proven
        if trouble.again or self.memory is None:
            self.retire()
        if trouble.again or trouble.code not in ("tool_failed", "tool_timeout"):
            self._on_doubt()
        return trouble
