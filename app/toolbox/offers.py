"""What one server offers a caller: judged, given its credentials, listed and filtered. Knows no runs and no calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cachetools import LRUCache

from app.domain.events import ServerReport, ServerState
from app.domain.jsontypes import JsonObject
from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.addresses import Refused, origin_of
from app.toolbox.admission import Policy, judge_server
from app.toolbox.entries import ListedTool
from app.toolbox.failures import FailureBudget
from app.toolbox.listing import Listing, Listings
from app.toolbox.overlays import overlay
from app.toolbox.pool import key_of
from app.toolbox.selection import tool_allowed
from app.toolbox.trouble import Trouble
from app.toolbox.wire import UNREACHABLE

_UNREACHABLE = "server_unreachable"
_TOO_MANY = "Too many servers could not be reached lately; a new one is tried again in a minute."
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Offer:
    """What came of one server."""

    server: ServerSpec
    """With the credentials that belong to it."""
    state: ServerState
    tools: tuple[ListedTool, ...] = ()
    """What passes the server's lists and can be offered to a model."""
    dropped: tuple[ListedTool, ...] = ()
    """What passes the lists and cannot, and what is told of entries without a name."""
    listing: Listing | None = None
    code: str | None = None
    message: str | None = None
    challenge: str | None = None

    def report(self, *, include_tools: bool) -> ServerReport:
        """Tell it as an event."""
        tools = [described_tool(tool) for tool in self.tools] if include_tools else [tool.name for tool in self.tools]
        return ServerReport(
            server=self.server.name,
            state=self.state,
            tools=tools,
            message=self.message,
            code=self.code,
            challenge=self.challenge,
        )


def described_tool(tool: ListedTool) -> JsonObject:
    """Describe a tool to people: `{name, description, schema, hints}`, the name being the original one."""
    return {"name": tool.name, "description": tool.description, "schema": tool.parameters, "hints": tool.hints}


class Offers:
    """Finds out what servers offer."""

    def __init__(
        self, listings: Listings, policy: Policy, *, forward_user_token: bool, exa_api_key: Secret | None
    ) -> None:
        self._listings = listings
        self._policy = policy
        self._forward_user_token = forward_user_token
        self._exa_api_key = exa_api_key
        self._failures = FailureBudget()
        self._proven: LRUCache[bytes, None] = LRUCache(_REMEMBERED)
        """Origins of servers of requests that were there when they were last asked."""

    async def of(
        self, server: ServerSpec, user_token: Secret | None = None, *, elicits: bool = False, afresh: bool = False
    ) -> Offer:
        """Ask one server; trouble is an offer too. `afresh` asks it even where its list is known."""
        refused = judge_server(server, self._policy)
        if isinstance(refused, Refused):
            return Offer(server, "rejected", message=refused.reason)
        server = overlay(
            server,
            user_token=user_token,
            forward_user_token=self._forward_user_token,
            exa_api_key=self._exa_api_key,
        )
        if server.trust == "operator":
            return await self._asked(server, elicits=elicits, afresh=afresh)
        key = key_of(replace(server, url=origin_of(server.url), headers={}))
        if key in self._proven:
            offer = await self._asked(server, elicits=elicits, afresh=afresh)
            if offer.state == "unavailable":
                self._failures.fail(server.principal)
        else:
            async with self._failures.attempt(server.principal) as attempt:
                if attempt is None:
                    return Offer(server, "unavailable", code=_UNREACHABLE, message=_TOO_MANY)
                offer = await self._asked(server, elicits=elicits, afresh=afresh)
                if offer.state != "unavailable":
                    attempt.succeed()
        if offer.state == "unavailable":
            self._proven.pop(key, None)
        else:
            self._proven[key] = None
        return offer

    async def _asked(self, server: ServerSpec, *, elicits: bool, afresh: bool) -> Offer:
        try:
            listing = await (self._listings.afresh if afresh else self._listings.of)(server, elicits=elicits)
        except Trouble as trouble:
            return _offer_of_trouble(server, trouble)
        return offer_from_listing(server, listing)


def offer_from_listing(server: ServerSpec, listing: Listing) -> Offer:
    """Say what of a server's list passes its own lists."""
    allowed = [tool for tool in listing.tools if not tool.name or tool_allowed(server, tool.name)]
    return Offer(
        server, "ready", tools=_with(allowed, refused=False), dropped=_with(allowed, refused=True), listing=listing
    )


def _with(tools: Sequence[ListedTool], *, refused: bool) -> tuple[ListedTool, ...]:
    return tuple(tool for tool in tools if (tool.refused is not None) == refused)


def _offer_of_trouble(server: ServerSpec, trouble: Trouble) -> Offer:
    """Say why there is nothing. For a user's server, all that a look-up or connection tells is one sentence."""
    if trouble.wants_auth:
        return Offer(server, "authRequired", message=trouble.reason, challenge=trouble.challenge or None)
    message = trouble.reason if server.trust == "operator" else UNREACHABLE.reason
    return Offer(server, "unavailable", code=_UNREACHABLE, message=message)
