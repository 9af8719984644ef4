"""What one run can call: its servers' tools by the names the model knows them by, as they are now."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import anyio
import anyio.abc
from anyio import to_thread
from cachetools import LRUCache

from app.domain.events import Notice, ServerReport
from app.domain.jsontypes import Json, JsonObject, is_small
from app.domain.messages import UNKNOWN_ETA_SECONDS, Tool, ToolOutcome, ToolSpec
from app.domain.ports import Caller
from app.domain.spec import ServerSpec
from app.toolbox.arguments import fitted_arguments
from app.toolbox.berth import Berth, Done, Trip, Wait
from app.toolbox.checking import SchemaCheck
from app.toolbox.durations import Durations
from app.toolbox.entries import ListedTool
from app.toolbox.listing import Listings
from app.toolbox.naming import exposed_names
from app.toolbox.offers import Offer, offer_from_listing
from app.toolbox.options import Options
from app.toolbox.pool import Pool, key_of
from app.toolbox.renewal import Renewals
from app.toolbox.results import ResultLimits, outcome_from_result
from app.toolbox.trouble import Trouble

_log = logging.getLogger(__name__)

_WARNED = 1024


@dataclass(frozen=True, slots=True)
class Means:
    """What all runs share."""

    pool: Pool
    listings: Listings
    durations: Durations
    tasks: anyio.abc.TaskGroup
    """Runs what no caller waits for."""
    warned: "LRUCache[tuple[str, str], None]"
    """Tools whose results were warned of."""

    @classmethod
    def of(cls, pool: Pool, listings: Listings, tasks: anyio.abc.TaskGroup) -> "Means":
        """Begin with nothing known."""
        return cls(pool, listings, Durations(), tasks, LRUCache(_WARNED))


def tell_offer(offer: Offer, trip: Trip, *, before: Offer | None = None) -> None:
    """Tell what a server offers, and of each tool that cannot be offered: of those only that `before` did not tell."""
    trip.emit(offer.report(include_tools=trip.spec.include_tools))
    hidden = sum(tool.hidden for tool in offer.tools)
    if hidden and (before is None or hidden != sum(tool.hidden for tool in before.tools)):
        said = f"Characters that nobody sees were taken out of names and descriptions of its tools: {hidden}."
        trip.emit(Notice("hidden_characters", said, {"server": offer.server.name, "count": hidden}))
    for tool in offer.dropped:
        if before is not None and tool in before.dropped:
            continue
        about = {"server": offer.server.name}
        if tool.name:
            trip.emit(Notice("tool_dropped", f"A tool is not offered. {tool.refused}", {**about, "tool": tool.name}))
        else:
            trip.emit(Notice("tool_dropped", f"Not all tools are offered. {tool.refused}", about))


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    listed: ListedTool
    berth: Berth


class McpToolbox:
    """The port `Toolbox`: what a run can call, and the connections that it holds meanwhile."""

    def __init__(self, means: Means, options: Options, trip: Trip, *, has_servers: bool) -> None:
        self.has_servers = has_servers
        self.is_open = False
        """Whether the first servers are in; what comes now is late."""
        self._means = means
        self._options = options
        self._trip = trip
        self._entries: dict[str, _Entry] = {}
        self._offers: dict[Berth, Offer] = {}
        self._denied: dict[str, str] = {}
        """Tools whose calls were turned away for want of authorization, with what was said: not for this run again."""
        self._peers: dict[Berth, bytes] = {}
        """Who learns from each other how long a server's calls take."""
        self._renewals = Renewals(means.tasks, self._renew)
        self._leaving: list[Callable[[], None]] = []

    @property
    def tools(self) -> Sequence[Tool]:
        return [entry.tool for name, entry in self._entries.items() if name not in self._denied]

    def add(self, offers: Sequence[Offer]) -> None:
        """Take in what servers offer. The names of tools that are there already stay."""
        self.is_open = True
        offered: list[tuple[Berth, ListedTool]] = []
        for offer in offers:
            berth = Berth(self._means.pool, self._means.listings, offer.server, self._trip.party)
            self._offers[berth] = offer
            self._peers[berth] = _peers_of(offer.server)
            offered += [(berth, tool) for tool in offer.tools]
            if offer.state == "ready":
                self._watch(berth)
            if offer.tools:
                # While the model thinks of its first call.
                self._means.tasks.start_soon(berth.warm)
            if self._means.pool.has_own_list(offer.server, self._trip.party):
                self._renewals.begin(berth)
        self._enter(offered)

    def _watch(self, berth: Berth) -> None:
        def changed() -> None:
            self._renewals.begin(berth)

        key = key_of(berth.server, elicits=berth.party.elicits)
        self._leaving.append(self._means.listings.watch(key, changed))
        berth.on_change = changed

    def _enter(self, offered: Sequence[tuple[Berth, ListedTool]]) -> None:
        names = exposed_names([(berth.server, tool.name) for berth, tool in offered], taken=self._entries)
        for name, (berth, listed) in zip(names, offered, strict=True):
            self._entries[name] = _Entry(_tool(name, listed, berth.server), listed, berth)

    async def _renew(self, berth: Berth) -> None:
        """Ask a server again whose tools have changed, and take over what is other now."""
        try:
            offer = offer_from_listing(berth.server, await berth.list())
        except Trouble:
            _log.warning("The server %s said that its tools have changed, and could not list them.", berth.server.name)
            return
        except Exception:  # noqa: BLE001 - one list must not end the room; logged with its traceback
            _log.exception("A changed list could not be read for a reason that nobody thought of.")
            return
        before = self._offers[berth]
        if self._renewals.has_ended:
            return  # the answer came in the moment in which the run ended
        if (offer.tools, offer.dropped) == (before.tools, before.dropped):
            return
        self._offers[berth] = offer
        left = {tool.name: tool for tool in offer.tools}
        kept: dict[str, _Entry] = {}
        for name, entry in self._entries.items():
            if entry.berth is not berth:
                kept[name] = entry
            elif (listed := left.pop(entry.listed.name, None)) is not None:
                kept[name] = _Entry(_tool(name, listed, berth.server), listed, berth)
        self._entries = kept
        self._enter([(berth, tool) for tool in left.values()])
        tell_offer(offer, self._trip, before=before)

    def find(self, name: str) -> Tool | None:
        entry = self._entries.get(name)
        return entry.tool if entry is not None else None

    def expected_seconds(self, tool: Tool) -> float:
        entry = self._entries.get(tool.spec.name)
        expected = None if entry is None else self._expected(entry)
        return UNKNOWN_ETA_SECONDS if expected is None else expected

    def _expected(self, entry: _Entry) -> float | None:
        return self._means.durations.expected(self._peers[entry.berth], entry.listed.name)

    def fitted(self, tool: Tool, arguments: JsonObject) -> JsonObject | str:
        entry = self._entries.get(tool.spec.name)
        if entry is None:
            return SchemaCheck(tool.spec.parameters).fault(arguments) or arguments
        schema = entry.listed.parameters
        known: JsonObject = schema.get("properties") or {}
        if "additionalProperties" not in entry.listed.written and known:
            # A server may take what it does not know, and would not say that a person has mistyped a name.
            unknown = next((name for name in arguments if name not in known), None)
            if unknown is not None:
                return f"{unknown[:64]}: the tool has no such argument"
        fitted = fitted_arguments(arguments, entry.listed.written)
        return SchemaCheck(schema).fault(fitted) or fitted

    async def is_unchanged(self, tool: Tool) -> bool | ToolOutcome:
        entry = self._entries.get(tool.spec.name)
        if entry is None:
            return False
        try:
            listing = await entry.berth.list_afresh()
        except Trouble as trouble:
            self._tell_auth(entry.berth, trouble)
            told = "It cannot be told whether the tool is still what was allowed, so it was not executed."
            return _failed("server_unreachable", f"{told} {trouble.reason}", tool)
        found = next((listed for listed in listing.tools if listed.wire_name == entry.listed.wire_name), None)
        is_same = found is not None and _tool(tool.spec.name, found, entry.berth.server).digest == tool.digest
        if not is_same:
            self._renewals.begin(entry.berth)
        return is_same

    async def settle(self) -> None:
        await self._renewals.done(self._options.list_wait_seconds)

    async def call(self, tool: Tool, arguments: JsonObject, caller: Caller) -> ToolOutcome:
        entry = self._entries.get(tool.spec.name)
        if entry is None:
            return _failed("tool_unknown", "Its server does not list it any more.", tool)
        if tool.spec.name in self._denied:
            return _failed("tool_failed", self._denied[tool.spec.name], tool)
        server, limits = entry.berth.server, self._options.connection
        silence = min(server.timeout_seconds or limits.call_seconds, limits.call_total_seconds)
        wait = Wait(silence, limits.call_total_seconds, self._expected(entry))
        try:
            fitted = fitted_arguments(arguments, entry.listed.written)
            done = await entry.berth.call(entry.listed, fitted, caller, wait=wait, trip=self._trip)
        except Trouble as trouble:
            self._tell_auth(entry.berth, trouble)
            if trouble.wants_auth:
                self._denied[tool.spec.name] = trouble.reason
            return _outcome_of_trouble(trouble, tool)
        except Exception:  # noqa: BLE001 - one call must not take its run down; logged with its traceback
            _log.exception("A tool call failed for a reason that nobody thought of.")
            return _failed("tool_failed", "The call failed inside the service.", tool)
        return await self._read(done, entry)

    async def _read(self, done: Done, entry: _Entry) -> ToolOutcome:
        raw, tool = done.result, entry.tool
        if raw.get("resultType") == "input_required":
            return _failed("tool_failed", "The tool wants to ask a person, and nobody can be asked here.", tool)
        read = _Reading(raw, self._options.results, self._check_of_output(entry))
        # In a thread, where it may take a while: the server decides how much work it is, and others wait for this loop.
        is_quick = is_small(raw) and (read.check is None or entry.listed.is_checked_quickly)
        outcome, fault = read() if is_quick else await to_thread.run_sync(read, abandon_on_cancel=True)
        if fault is not None:
            self._means.warned[_tool_key(entry)] = None
            _log.warning("A result of %s of %s does not follow its output schema: %s", tool.name, tool.server, fault)
        if outcome is None:
            return _failed("tool_failed", "The server's answer is not the result of a tool.", tool)
        if outcome.error_code is None:
            self._means.durations.note(self._peers[entry.berth], entry.listed.name, done.seconds)
        return outcome

    def _check_of_output(self, entry: _Entry) -> SchemaCheck | None:
        """Return what to hold a result against; none where it would be said a second time."""
        return None if _tool_key(entry) in self._means.warned else entry.listed.output

    def _tell_auth(self, berth: Berth, trouble: Trouble) -> None:
        """Tell, once, that a server wants authorization now."""
        if not trouble.wants_auth:
            return
        before = self._offers[berth]
        offer = replace(before, state="authRequired", message=trouble.reason, challenge=trouble.challenge or None)
        if before.state != offer.state:
            self._offers[berth] = offer
            report = ServerReport(berth.server.name, offer.state, message=offer.message, challenge=offer.challenge)
            self._trip.emit(report)

    def leave(self) -> None:
        """Give all connections back."""
        for leave in self._leaving:
            leave()
        self._renewals.end()
        for berth in self._offers:
            berth.leave()


@dataclass(frozen=True, slots=True)
class _Reading:
    """A result being read."""

    raw: JsonObject
    limits: ResultLimits
    check: SchemaCheck | None

    def __call__(self) -> tuple[ToolOutcome | None, str | None]:
        outcome = outcome_from_result(self.raw, self.limits)
        if self.check is None or outcome is None or outcome.error_code is not None:
            return outcome, None
        structured: Json = self.raw.get("structuredContent")
        return outcome, "it has no structured content" if structured is None else self.check.fault(structured)


def _tool(name: str, listed: ListedTool, server: ServerSpec) -> Tool:
    digest = hashlib.sha256(server.url.encode(errors="surrogatepass") + b"\0" + listed.digest).digest()
    spec = ToolSpec(name, listed.description, listed.parameters)
    return Tool(spec, server.name, listed.name, listed.hints, digest)


def _tool_key(entry: _Entry) -> tuple[str, str]:
    return entry.berth.server.url, entry.listed.wire_name


def _peers_of(server: ServerSpec) -> bytes:
    """Tell servers apart by on whose behalf they are asked; what an operator's headers say of a run does not matter."""
    return key_of(server if server.trust == "user" else replace(server, headers={}))


def _outcome_of_trouble(trouble: Trouble, tool: Tool) -> ToolOutcome:
    reason = trouble.reason
    if trouble.code in ("connection_lost", "tool_outcome_unknown", "tool_timeout") and not trouble.again:
        reason = f"{reason} It is not known whether the tool ran."
    return _failed(trouble.code, reason, tool)


def _failed(code: str, reason: str, tool: Tool) -> ToolOutcome:
    return ToolOutcome(
        text=f"The call of {tool.spec.name} ({tool.server}) failed: {reason}",
        error_code=code,
        message=f"{tool.name} of {tool.server}: {reason}",
    )
