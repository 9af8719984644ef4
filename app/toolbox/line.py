"""What is asked over an open connection, and what its troubles mean: for the call, the connection, what is believed.

A caller waits for its own answer and for the end of the connection: in a cancel scope of its own, which the owner
cancels when the connection is over. Deadlines live here, outside the HTTP client, whose limits restart with every byte.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio
import mcp_types
from mcp import MCPError
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION

from app.domain.jsontypes import JsonObject
from app.domain.spec import ServerSpec
from app.toolbox.entries import ListedTool
from app.toolbox.faults import Exchange, under_way
from app.toolbox.inquiry import DECLINED, Inquiry, elicit
from app.toolbox.patience import Patience
from app.toolbox.progress import ProgressGate
from app.toolbox.session import Session, headers_from_arguments, is_sendable
from app.toolbox.transports import TransportName
from app.toolbox.trouble import Trouble, trouble_from_error, trouble_from_fault, trouble_from_loss, trouble_from_silence

Era: TypeAlias = Literal["modern", "legacy"]

REFUSING = (400, 404, 405)
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
    rest_seconds: float = 30.0
    """After so long without an answer a connection is asked for a sign of life before it is used again."""
    abandoned_seconds: float = 3.0
    """A handshake that nobody waits for may go on for this long, so that the session it makes can be ended."""
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


@dataclass(frozen=True, slots=True)
class Call:
    """One call under way, over however many attempts."""

    tool: ListedTool
    patience: Patience
    gate: ProgressGate
    inquiry: Inquiry | None = None
    """None where nobody may be asked."""

    async def hear(self, progress: float, total: float | None, message: str | None) -> None:
        self.patience.hear()
        self.gate.offer(progress, total, message)


@dataclass(slots=True)
class Owner:
    """What a connection tells the one who keeps it."""

    on_end: Callable[[], None]
    on_doubt: Callable[[], None]
    """The server is not what it seemed to be, or not there."""
    on_list_change: Callable[[bool], None]
    """Whether it was said in a session that is one run's own."""


class Line:
    """The asking half of a connection; its life is `Connection`'s."""

    def __init__(
        self, server: ServerSpec, limits: ConnectionLimits, *, memory: Memory | None, elicits: bool, owner: Owner
    ) -> None:
        self.memory = memory
        """What is believed of the server. None once it has proved wrong, or as long as nothing is known."""
        self.limits = limits
        self.conversation: str | None = None
        """Whose session this is, where it is kept for more than one run."""
        self.on_change: Callable[[], None] | None = None
        """Called when tools change, where this is one run's session."""
        self.has_own_list = False
        """The server said in this session that tools have changed, which need not be so for others."""
        self.users = 0
        self._server = server
        self.principal = server.principal
        """On whose behalf it is."""
        self._elicits = elicits
        self._owner = owner
        self._session: Session | None = None
        self._is_over = False
        self._closing = anyio.Event()
        self._calls: set[anyio.CancelScope] = set()
        self._inquiries: list[Inquiry] = []
        """Of the calls under way."""
        self._heard = anyio.current_time()
        """When the server last answered."""
        self._checking = anyio.Lock()
        self._holds_state = False
        """A tool was called in a session of ours, so that the server may keep something of its caller in it."""
        self._is_proven = False
        """Something was answered on this connection, so what is believed of the server is true."""

    @property
    def is_over(self) -> bool:
        """No new call may use it."""
        return self._is_over

    @property
    def keeps_session(self) -> bool:
        """The server knows this connection from others, and may keep something of its caller in it."""
        return self.memory is not None and self.memory.keeps_session and self._server.session != "shared"

    @property
    def serves_one_run(self) -> bool:
        """Whether one run at a time may use it: it has a state, or asks on it for whoever that may be."""
        return self.keeps_session or (self._elicits and self.era == "legacy")

    def is_free_for(self, conversation: str | None) -> bool:
        """Whether a run of that conversation may use it now; None for a run of none."""
        if not self.serves_one_run:
            return True
        is_ours = conversation is not None and self.conversation == conversation
        return not self.users and (is_ours or not (self.keeps_session and self._holds_state))

    @property
    def era(self) -> Era:
        return "modern" if self._session is not None and self._session.is_modern else "legacy"

    @property
    def transport(self) -> TransportName:
        return self.memory.transport if self.memory is not None else "streamable-http"

    @property
    def protocol_version(self) -> str | None:
        return self._session.protocol_version if self._session is not None else None

    def retire(self) -> None:
        """Take no more calls; the owner ends it when those under way are through."""
        if not self._is_over:
            self._is_over = True
            self._owner.on_end()
        if not self._calls:
            self._closing.set()

    def _hear_of_change(self) -> None:
        self.has_own_list = self.serves_one_run
        self._owner.on_list_change(self.on_change is not None)
        if self.on_change is not None:
            self.on_change()

    async def _elicit(self, params: JsonObject) -> JsonObject:
        """Put a question that the server pushed: to the call on whose stream it came, else to those it may be for."""
        exchange = under_way.get()
        own = exchange.inquiry if exchange is not None else None
        if isinstance(own, Inquiry):
            return await elicit(params, [own], lost_by="server")
        if exchange is not None and exchange.is_asked:
            return DECLINED  # on the stream of something else that was asked, which is no call
        return await elicit(params, self._inquiries, lost_by="server") if self.serves_one_run else DECLINED

    @property
    def has_rested(self) -> bool:
        """Whether it was silent for so long that it may not work any more."""
        is_quiet = not self._is_over and not self._calls
        return is_quiet and anyio.current_time() - self._heard >= self.limits.rest_seconds

    def suspect(self) -> None:
        """Have it asked for a sign of life before it is used again."""
        self._heard = -math.inf

    async def answers(self) -> bool:
        """Make sure that it still works, where it has rested for a while. One that does not is over then."""
        if not self.has_rested and not self._checking.locked():
            return not self._is_over
        async with self._checking:
            if not self.has_rested:
                return not self._is_over
            seconds = self.limits.probe_seconds
            scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
            try:
                await self._ask("server/discover" if self.era == "modern" else "ping", {}, scope=scope, seconds=seconds)
            except Trouble as trouble:
                if trouble.rpc_code is None:
                    self.retire()
            return not self._is_over

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

    async def call(self, call: Call, params: JsonObject) -> JsonObject:
        """Send one `tools/call` and return its result as it came, within the call's patience.

        The server is told when the wait ends before its answer, by time or by cancellation.

        Raises:
            Trouble: There is no result. `again` where nothing was executed for sure.
        """
        patience = call.patience
        is_modern = self.era == "modern"
        headers = headers_from_arguments(call.tool.param_headers, params["arguments"]) if is_modern else None
        scope = patience.attempt()
        self._holds_state = True
        if call.inquiry is not None:
            self._inquiries.append(call.inquiry)
        try:
            result = await self._ask(
                "tools/call", params, scope=scope, seconds=patience.silence_seconds, call=call, headers=headers
            )
        except Trouble as trouble:
            if trouble.code == "tool_timeout" and patience.is_used_up:
                raise Trouble(
                    "tool_timeout", f"The tool did not finish within {patience.total_seconds:g} seconds."
                ) from None
            raise
        finally:
            if call.inquiry is not None:
                self._inquiries.remove(call.inquiry)
        if not is_modern and result.get("resultType") == "input_required":
            raise Trouble("tool_failed", "The server asks in a way that its protocol version does not know.")
        return result

    async def _ask(
        self,
        method: str,
        params: JsonObject,
        *,
        scope: anyio.CancelScope,
        seconds: float,
        call: Call | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """Send a request in the caller's task, within `scope`, whose end is the end of the wait."""
        session = self._session
        if session is None or self.is_over:
            raise trouble_from_loss(was_sent=False)
        if not is_sendable(params):
            raise Trouble("tool_arguments_invalid", "The arguments cannot be written as JSON.")
        inquiry = None if call is None else call.inquiry
        # A call has patience of its own, and is heard of on other streams too: silence on this one is no fault.
        longest = seconds if call is None else call.patience.total_seconds
        silence = longest + _GRACE_SECONDS if inquiry is None else None
        exchange = Exchange(silence, on_fault=scope.cancel, inquiry=inquiry, is_asked=True)
        token = under_way.set(exchange)
        self._calls.add(scope)
        try:
            with scope:
                hear = None if call is None else call.hear
                result = await session.ask(method, params, on_progress=hear, headers=headers)
                self._is_proven = True
                self._heard = anyio.current_time()
                return result
            if exchange.fault is not None:
                trouble = trouble_from_fault(exchange.fault, self._server)
            elif self._closing.is_set():
                trouble = trouble_from_loss(was_sent=exchange.attempted)
            else:
                trouble = trouble_from_silence(seconds)
            raise self._judged(trouble, exchange)
        except MCPError as error:
            if exchange.is_said:
                self._heard = anyio.current_time()
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
        is_refused = exchange.status in REFUSING and (exchange.fault is not None or rpc_code == INVALID_REQUEST)
        if exchange.is_undispatched or is_version_refused:
            trouble.again = True
        if exchange.is_undispatched or is_version_refused or is_refused:
            # The server speaks differently than was believed: it was deployed anew, or has forgotten us.
            self.memory = None
            trouble.again |= not self._is_proven
        if trouble.again or self.memory is None:
            self.retire()
        if trouble.again or trouble.code not in ("tool_failed", "tool_timeout"):
            self._owner.on_doubt()
        return trouble
