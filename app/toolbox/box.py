"""All servers of a run as one toolbox: specs for the model, dispatch by name. The room's door to the others."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.abc
from anyio import to_thread

from app.domain.errors import NotFound
from app.domain.events import Notice, ServerReport
from app.domain.jsontypes import JsonObject, is_small
from app.domain.messages import Progress, Tool, ToolOutcome, ToolSpec
from app.domain.ports import Emit, Toolbox
from app.domain.secrets import Secret
from app.domain.spec import RunSpec, ServerSpec
from app.toolbox.admission import Policy
from app.toolbox.arguments import fitted_arguments
from app.toolbox.egress import Egress, EgressLimits
from app.toolbox.entries import ListedTool
from app.toolbox.listing import ListingLimits, Listings
from app.toolbox.naming import exposed_names
from app.toolbox.offers import Offer, Offers, described_tool
from app.toolbox.pool import Pool, PoolLimits
from app.toolbox.results import ResultLimits, outcome_from_result
from app.toolbox.rollcall import RollCall
from app.toolbox.selection import fold_name, merge_servers
from app.toolbox.server import Connection, ConnectionLimits
from app.toolbox.trouble import Trouble

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator settles for all runs."""

    environment: tuple[ServerSpec, ...] = ()
    policy: Policy = field(default_factory=Policy)
    egress: EgressLimits = field(default_factory=EgressLimits)
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    pool: PoolLimits = field(default_factory=PoolLimits)
    listing: ListingLimits = field(default_factory=ListingLimits)
    results: ResultLimits = field(default_factory=ResultLimits)
    list_wait_seconds: float = 3.0
    """How long a server may hold up a run that others are ready for."""
    forward_user_token: bool = False
    """`MCP_FORWARD_HF_USER_TOKEN`."""
    exa_api_key: Secret | None = None


@asynccontextmanager
async def open_servers(options: Options) -> AsyncGenerator["McpServers"]:
    """Serve MCP servers to runs. Leaving ends all connections, within `ConnectionLimits.close_seconds`."""
    egress = Egress(options.policy, options.egress)
    async with Pool(egress, options.pool, options.connection) as pool, anyio.create_task_group() as tasks:
        offers = Offers(
            Listings(pool, options.listing, tasks),
            options.policy,
            forward_user_token=options.forward_user_token,
            exa_api_key=options.exa_api_key,
        )
        try:
            yield McpServers(options, pool, offers, tasks)
        finally:
            tasks.cancel_scope.cancel()


class McpServers:
    """The port `Servers`."""

    def __init__(self, options: Options, pool: Pool, offers: Offers, tasks: anyio.abc.TaskGroup) -> None:
        """`tasks` runs the roll calls, which go on while their runs do."""
        self._options = options
        self._tasks = tasks
        self._pool = pool
        self._offers = offers

    def are_selected(self, spec: RunSpec) -> bool:
        return bool(merge_servers(self._options.environment, spec.servers, spec.server_names))

    @asynccontextmanager
    async def open_box(self, spec: RunSpec, emit: Emit) -> AsyncGenerator[Toolbox]:
        """Collect, merge, admit and list a run's servers, all at once, and report each as soon as it is known.

        A server that takes longer than `list_wait_seconds` while others are ready joins later.
        """
        servers = merge_servers(self._options.environment, spec.servers, spec.server_names)
        box = McpToolbox(self._pool, self._options, has_servers=bool(servers))

        def tell(offer: Offer) -> None:
            _tell(offer, spec, emit)
            if box.is_open:
                box.add([offer])

        roll = RollCall(self._offers, servers, spec.user_token, tell)
        self._tasks.start_soon(roll.run)
        try:
            await roll.enough(self._options.list_wait_seconds)
            for server in roll.missing:
                emit(ServerReport(server.name, "waiting", message="It is slow to list its tools, and may join later."))
            box.add(roll.answers)
            yield box
        finally:
            roll.dismiss()
            box.leave()

    async def environment(self) -> Sequence[JsonObject]:
        roll = RollCall(self._offers, self._options.environment, None, _tell_nobody)
        await roll.run()
        return [_summary(offer) for offer in roll.answers]

    async def check(self, server: ServerSpec | str) -> JsonObject:
        if isinstance(server, str):
            server = self._named(server)
        start = time.monotonic()
        offer = await self._offers.of(server, afresh=True)
        return {**_description(offer), "duration": round(time.monotonic() - start, 3)}

    def _named(self, name: str) -> ServerSpec:
        folded = fold_name(name)
        for server in self._options.environment:
            if fold_name(server.name) == folded:
                return server
        raise NotFound("No server of the environment has this name.", param="name")


def _tell(offer: Offer, spec: RunSpec, emit: Emit) -> None:
    emit(offer.report(include_tools=spec.include_tools))
    for tool in offer.dropped:
        about = {"server": offer.server.name}
        if tool.name:
            emit(Notice("tool_dropped", f"A tool is not offered. {tool.refused}", {**about, "tool": tool.name}))
        else:
            emit(Notice("tool_dropped", f"Not all tools are offered. {tool.refused}", about))


def _tell_nobody(_: Offer) -> None:
    pass


def _summary(offer: Offer) -> JsonObject:
    summary: JsonObject = {"name": offer.server.name, "state": offer.state, "tools": len(offer.tools)}
    return summary if offer.message is None else {**summary, "message": offer.message}


def _description(offer: Offer) -> JsonObject:
    names = exposed_names([(offer.server, tool.name) for tool in offer.tools])
    listing = offer.listing
    description: JsonObject = {
        "name": offer.server.name,
        "reachable": offer.state in ("ready", "authRequired"),
        "era": listing.era if listing is not None else None,
        "transport": listing.transport if listing is not None else None,
        "protocolVersion": listing.protocol_version if listing is not None else None,
        "tools": [{**described_tool(tool), "exposedName": name} for tool, name in zip(offer.tools, names, strict=True)],
        "authRequired": offer.state == "authRequired",
    }
    for key, value in (("challenge", offer.challenge), ("message", offer.message)):
        if value is not None:
            description[key] = value
    return description


class McpToolbox:
    """The port `Toolbox`: what a run can call, and the connections that it holds meanwhile."""

    def __init__(self, pool: Pool, options: Options, *, has_servers: bool) -> None:
        self.has_servers = has_servers
        self.is_open = False
        """Whether the first servers are in; what comes now is late."""
        self._pool = pool
        self._options = options
        self._entries: dict[str, _Entry] = {}
        self._berths: list[_Berth] = []

    @property
    def tools(self) -> Sequence[Tool]:
        return [entry.tool for entry in self._entries.values()]

    def add(self, offers: Sequence[Offer]) -> None:
        """Take in what servers offer. The names of tools that are there already stay."""
        self.is_open = True
        offered: list[tuple[_Berth, ListedTool]] = []
        for offer in offers:
            berth = _Berth(self._pool, offer.server)
            self._berths.append(berth)
            offered += [(berth, tool) for tool in offer.tools]
        names = exposed_names([(berth.server, tool.name) for berth, tool in offered], taken=self._entries)
        for name, (berth, listed) in zip(names, offered, strict=True):
            spec = ToolSpec(name, listed.description, listed.parameters)
            self._entries[name] = _Entry(Tool(spec, berth.server.name, listed.name), listed, berth)

    def find(self, name: str) -> Tool | None:
        entry = self._entries.get(name)
        return entry.tool if entry is not None else None

    async def call(self, tool: Tool, arguments: JsonObject, on_progress: Callable[[Progress], None]) -> ToolOutcome:
        entry = self._entries[tool.spec.name]
        seconds = entry.berth.server.timeout_seconds or self._options.connection.call_seconds
        try:
            fitted = fitted_arguments(arguments, entry.listed.written)
            raw = await entry.berth.call(entry.listed, fitted, on_progress, seconds)
        except Trouble as trouble:
            return _outcome_of_trouble(trouble, tool)
        except Exception:  # noqa: BLE001 - one call must not take its run down; logged with its traceback
            _log.exception("A tool call failed for a reason that nobody thought of.")
            return _failed("tool_failed", "The call failed inside the service.", tool)
        if raw.get("resultType") == "input_required":
            return _failed("tool_failed", "The tool wants to ask a person, and nobody can be asked here.", tool)
        limits = self._options.results
        if is_small(raw):
            outcome = outcome_from_result(raw, limits)
        else:
            # In a thread, since the server decides how much work its result is, and others wait for this loop.
            outcome = await to_thread.run_sync(outcome_from_result, raw, limits, abandon_on_cancel=True)
        return outcome or _failed("tool_failed", "The server's answer is not the result of a tool.", tool)

    def leave(self) -> None:
        """Give all connections back."""
        for berth in self._berths:
            berth.leave()


class _Berth:
    """A run's place at one server: a connection, leased at the first call and given back at the end."""

    def __init__(self, pool: Pool, server: ServerSpec) -> None:
        self.server = server
        self._pool = pool
        self._held: Connection | None = None
        self._lock = anyio.Lock()

    async def call(
        self, tool: ListedTool, arguments: JsonObject, on_progress: Callable[[Progress], None], seconds: float
    ) -> JsonObject:
        """Call a tool. Where nothing was executed for sure, once more over a new connection.

        Raises:
            Trouble: There is no result.
        """
        connection = await self._connection(None)
        try:
            return await connection.call_tool(tool, arguments, on_progress, seconds)
        except Trouble as trouble:
            if not trouble.again:
                raise
        connection = await self._connection(connection)
        return await connection.call_tool(tool, arguments, on_progress, seconds)

    async def _connection(self, lost: Connection | None) -> Connection:
        """Return the held connection, or lease one. Calls that lost the same one share the next."""
        async with self._lock:
            if self._held is not None and (self._held is lost or self._held.is_over):
                self.leave()
            if self._held is None:
                self._held = await self._pool.lease(self.server)
            return self._held

    def leave(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    listed: ListedTool
    berth: _Berth


def _outcome_of_trouble(trouble: Trouble, tool: Tool) -> ToolOutcome:
    reason = trouble.reason
    if trouble.code in ("connection_lost", "tool_outcome_unknown", "tool_timeout") and not trouble.again:
        reason = f"{reason} It is not known whether the tool ran."
    return _failed(trouble.code, reason, tool)


def _failed(code: str, reason: str, tool: Tool) -> ToolOutcome:
    return ToolOutcome(
        text=f"The call of {tool.spec.name} failed: {reason}",
        error_code=code,
        message=f"{tool.name} of {tool.server}: {reason}",
    )
