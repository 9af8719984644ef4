"""What we say over one MCP connection: the handshake of either era, the tool list, calls. Knows no HTTP.

Results are taken as JSON and not through the SDK's models: those refuse a whole list for one odd entry, and a result
for a field that it lacks. The SDK's check of results against output schemas, which may block the loop and may list
tools behind our back, is not used at all.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
import mcp_types
from mcp import ClientSession, MCPError
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions, DispatchContext, ProgressFnT
from mcp.shared.inbound import mcp_param_headers
from mcp.shared.transport_context import TransportContext
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from pydantic import ValidationError
from pydantic_core import to_json
from typing_extensions import override

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.spec import Protocol

_HEADER_VALUE_BYTES = 8192
"""Longest argument that is repeated in a header."""


_FIRST_WAIT_SECONDS = 1.0
_LAST_WAIT_SECONDS = 60.0
_SUBSCRIPTIONS = 20
"""So often a subscription is begun anew; then what is cached of the list ages as it does without one."""

Elicit: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]
"""Puts a server's question, MCP's `elicitation/create` params, to whom it concerns; returns MCP's `ElicitResult`."""


@dataclass(frozen=True, slots=True)
class Ears:
    """What a session hears of its server between answers."""

    on_list_change: Callable[[], None]
    elicit: Elicit | None = None
    """None: it is not announced that a person can be asked, and who asks all the same gets an error at once."""


class Session(ClientSession):
    """One side of a connection that was negotiated or is about to be."""

    ears: Ears | None = None

    @override
    def _build_capabilities(self, version: str) -> mcp_types.ClientCapabilities:
        capabilities = super()._build_capabilities(version)
        if self.ears is None or self.ears.elicit is None:
            return capabilities
        form, url = mcp_types.FormElicitationCapability(), mcp_types.UrlElicitationCapability()
        return capabilities.model_copy(update={"elicitation": mcp_types.ElicitationCapability(form=form, url=url)})

    @override
    async def _on_request(
        self, dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Answer a server. Its questions are taken as they come: the SDK refuses them for one odd field."""
        if method == "elicitation/create" and self.ears is not None and self.ears.elicit is not None:
            return await self.ears.elicit(dict(params or {}))
        return await super()._on_request(dctx, method, params)

    @override
    def _intercept_notification(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Hear of a change before the answer that follows it: this is called in the order of arrival."""
        if method == "notifications/tools/list_changed" and self.ears is not None:
            self.ears.on_list_change()
        return super()._intercept_notification(method, params)

    @property
    def is_modern(self) -> bool:
        return self.discover_result is not None

    @property
    def discovered(self) -> mcp_types.DiscoverResult | None:
        """What is to be remembered of a modern server: not what it wrote for people, which may be megabytes."""
        found = self.discover_result
        if found is None:
            return None
        capabilities = mcp_types.ServerCapabilities(tools=found.capabilities.tools)
        return found.model_copy(update={"capabilities": capabilities, "instructions": None, "meta": None})

    @property
    def claims_tools(self) -> bool:
        capabilities = self.server_capabilities
        return capabilities is not None and capabilities.tools is not None

    @property
    def tells_changes(self) -> bool:
        """Whether the server says that it tells when its tools change."""
        capabilities = self.server_capabilities
        return bool(capabilities and capabilities.tools and capabilities.tools.list_changed)

    async def subscribe(self) -> None:
        """Hear of changes in the modern era: over a subscription, begun anew where it is lost. Runs until cancelled.

        What changed while there was none is not known, so that counts as a change.
        """
        wait = _FIRST_WAIT_SECONDS
        for attempt in range(_SUBSCRIPTIONS):
            try:
                async with listen(self, tools_list_changed=True) as subscription:
                    if not subscription.honored.tools_list_changed:
                        return
                    if attempt and self.ears is not None:
                        self.ears.on_list_change()
                    async for _ in subscription:
                        wait = _FIRST_WAIT_SECONDS
            except MCPError as error:
                if error.code in (METHOD_NOT_FOUND, INVALID_PARAMS):
                    return
            except SubscriptionLost:
                pass
            await anyio.sleep(wait)
            wait = min(wait * 2, _LAST_WAIT_SECONDS)

    async def negotiate(self, protocol: Protocol, probe_seconds: float, is_hopeless: Callable[[], bool]) -> None:
        """Find out the era and shake hands.

        The modern attempt gets `probe_seconds`, since a server that swallows unknown methods would eat the whole limit.
        Any answer that is not a modern one means the older era, unless `is_hopeless` then says that no handshake can
        help: nobody there, or no authorization.

        Raises:
            MCPError: The server answered with an error, or the transport did in its place.
            ValidationError, RuntimeError: It answered with something that is no handshake.
            TimeoutError: Only `modern` is allowed and the server did not answer in time.
        """
        if protocol == "legacy":
            await self.initialize()
            return
        slow = False
        try:
            await self._discover(probe_seconds)
        except (MCPError, ValidationError, RuntimeError, TimeoutError) as error:
            if protocol == "modern" or is_hopeless() or _knows_no_handshake(error):
                raise
            slow = isinstance(error, TimeoutError)
        else:
            return
        try:
            await self.initialize()
        except MCPError as error:
            if is_hopeless() or not (slow or _names_ours(error)):
                raise
            # A modern server that was only slow to start refuses the handshake and is awake now.
            await self._discover(probe_seconds)

    async def _discover(self, seconds: float) -> None:
        """Ask for the modern era; a server that knows our version and would not hear it is asked once more."""
        with anyio.fail_after(seconds):
            try:
                raw = await self.send_discover(LATEST_MODERN_VERSION)
            except MCPError as error:
                if not _names_ours(error):
                    raise
                raw = await self.send_discover(LATEST_MODERN_VERSION)
        self.adopt(mcp_types.DiscoverResult.model_validate(raw, by_name=False))

    async def ask(
        self,
        method: str,
        params: JsonObject,
        *,
        on_progress: ProgressFnT | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """Send a request and return the result as it came.

        Raises:
            MCPError: The server answered with an error, or the transport did in its place.
        """
        data: JsonObject = {"method": method, "params": params}
        options: CallOptions = {}
        self._stamp(data, options)
        if headers:
            options["headers"] = {**options.get("headers", {}), **headers}
        if on_progress is not None:
            options["on_progress"] = on_progress
        return await self._dispatcher.send_raw_request(method, data["params"], options)


def _supported(error: Exception) -> list[Json] | None:
    """Return the versions that a server names which refuses ours; None where it does not say so."""
    if not isinstance(error, MCPError) or error.code != UNSUPPORTED_PROTOCOL_VERSION:
        return None
    data: Json = error.error.data
    versions: Json = data.get("supported") if is_object(data) else None
    return versions if is_array(versions) else None


def _names_ours(error: Exception) -> bool:
    return LATEST_MODERN_VERSION in (_supported(error) or ())


def _knows_no_handshake(error: Exception) -> bool:
    versions = _supported(error)
    return bool(versions) and not any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in versions)


def is_sendable(params: JsonObject) -> bool:
    """Tell whether the SDK can write these params. One that it cannot would end the connection for all its users."""
    try:
        to_json({"params": params})
    except ValueError:
        return False
    return True


def headers_from_arguments(paths: Mapping[tuple[str, ...], str], arguments: Mapping[str, Json]) -> dict[str, str]:
    """Repeat the arguments that a modern server wants in headers; those that are too long are left out."""
    headers = mcp_param_headers(paths, arguments)
    return {name: value for name, value in headers.items() if len(value) <= _HEADER_VALUE_BYTES}
