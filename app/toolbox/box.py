"""The room's door to the others: opens a run's servers as one toolbox, and describes servers."""

import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager

import anyio

from app.domain.errors import NotFound
from app.domain.events import ServerReport
from app.domain.jsontypes import JsonObject
from app.domain.ports import Emit, Person, Toolbox
from app.domain.principal import Principal
from app.domain.spec import RunSpec, ServerSpec
from app.toolbox.addresses import Refused, split_url
from app.toolbox.berth import Trip
from app.toolbox.callers import for_caller
from app.toolbox.egress import Egress
from app.toolbox.listing import Listings
from app.toolbox.naming import exposed_names
from app.toolbox.offers import Offer, Offers, described_tool
from app.toolbox.options import Options
from app.toolbox.pool import Pool
from app.toolbox.repairs import repairs_between
from app.toolbox.rollcall import RollCall
from app.toolbox.selection import fold_name, merge_servers
from app.toolbox.tools import McpToolbox, Means, tell_offer


@asynccontextmanager
async def open_servers(options: Options) -> AsyncGenerator["McpServers"]:
    """Serve MCP servers to runs. Leaving ends all connections, within `ConnectionLimits.close_seconds`."""
    egress = Egress(options.policy, options.egress)
    async with Pool(egress, options.pool, options.connection) as pool, anyio.create_task_group() as tasks:
        means = Means.of(pool, Listings(pool, options.listing, tasks), tasks)
        try:
            yield McpServers(options, means)
        finally:
            tasks.cancel_scope.cancel()


class McpServers:
    """The port `Servers`."""

    def __init__(self, options: Options, means: Means) -> None:
        """The tasks of `means` run the roll calls, which go on while their runs do."""
        self._options = options
        self._means = means
        self._offers = Offers(
            means.listings,
            options.policy,
            forward_user_token=options.forward_user_token,
            exa_api_key=options.exa_api_key,
        )

    def are_selected(self, spec: RunSpec) -> bool:
        return bool(merge_servers(self._options.environment, spec.servers, spec.server_names))

    @asynccontextmanager
    async def open_box(self, spec: RunSpec, emit: Emit, person: Person) -> AsyncGenerator[Toolbox]:
        """Collect, merge, admit and list a run's servers, all at once, and report each as soon as it is known.

        A server that takes longer than `list_wait_seconds` while others are ready joins later.
        """
        merged = merge_servers(self._options.environment, spec.servers, spec.server_names)
        servers = [for_caller(server, spec) for server in merged]
        trip = Trip(spec, emit, person)
        box = McpToolbox(self._means, self._options, trip, has_servers=bool(servers))

        def tell(offer: Offer) -> None:
            if box.is_open:
                box.add([offer])
            tell_offer(offer, trip)

        def ask(server: ServerSpec) -> Awaitable[Offer]:
            return self._offers.of(server, spec.user_token, elicits=spec.interactive)

        roll = RollCall(servers, ask, tell)
        self._means.tasks.start_soon(roll.run)
        has_ended = False
        try:
            await roll.enough(self._options.list_wait_seconds)
            for server in roll.missing:
                emit(ServerReport(server.name, "waiting", message="It is slow to list its tools, and may join later."))
            box.add(roll.answers)
            await box.settle()
            yield box
            has_ended = True
        finally:
            # What is still being listed is there for the next run, but where this one was called off.
            roll.dismiss(goes_on=has_ended)
            box.leave()

    async def environment(self, principal: Principal) -> Sequence[JsonObject]:
        asked = [for_caller(server, _nothing_of(principal)) for server in self._options.environment]
        roll = RollCall(asked, self._offers.of, _tell_nobody)
        await roll.run()
        return [_summary(offer, shows_host=self._options.shows_hosts) for offer in roll.answers]

    async def check(self, server: ServerSpec | str, principal: Principal) -> JsonObject:
        server = for_caller(self._named(server) if isinstance(server, str) else server, _nothing_of(principal))
        start = time.monotonic()
        offer = await self._offers.of(server, afresh=True)
        return {**_description(offer), "duration": round(time.monotonic() - start, 3)}

    def _named(self, name: str) -> ServerSpec:
        folded = fold_name(name)
        for server in self._options.environment:
            if fold_name(server.name) == folded:
                return server
        raise NotFound("No server of the environment has this name.", param="name")


def _nothing_of(principal: Principal) -> RunSpec:
    """Make what stands for a run of the caller's where there is none."""
    return RunSpec(messages=(), principal=principal)


def _tell_nobody(_: Offer) -> None:
    pass


def _summary(offer: Offer, *, shows_host: bool) -> JsonObject:
    summary: JsonObject = {"name": offer.server.name, "state": offer.state, "tools": len(offer.tools)}
    if offer.message is not None:
        summary["message"] = offer.message
    parts = split_url(offer.server.url)
    if shows_host and not isinstance(parts, Refused):
        summary["host"] = parts.host
    return summary


def _description(offer: Offer) -> JsonObject:
    names = exposed_names([(offer.server, tool.name) for tool in offer.tools])
    listing = offer.listing
    description: JsonObject = {
        "name": offer.server.name,
        "reachable": offer.state in ("ready", "authRequired"),
        "era": listing.era if listing is not None else None,
        "transport": listing.transport if listing is not None else None,
        "protocolVersion": listing.protocol_version if listing is not None else None,
        "tools": [
            {
                **described_tool(tool),
                "exposedName": name,
                "inputSchema": tool.written,
                "repairs": repairs_between(tool.written, tool.parameters),
            }
            for tool, name in zip(offer.tools, names, strict=True)
        ],
        "dropped": [{"name": tool.name or None, "reason": tool.refused} for tool in offer.dropped],
        "authRequired": offer.state == "authRequired",
    }
    for key, value in (("challenge", offer.challenge), ("message", offer.message)):
        if value is not None:
            description[key] = value
    return description
