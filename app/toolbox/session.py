"""What we say over one MCP connection: the handshake of either era, the tool list, calls. Knows no HTTP.

Results are taken as JSON and not through the SDK's models: those refuse a whole list for one odd entry, and a result
for a field that it lacks. The SDK's check of results against output schemas, which may block the loop and may list
tools behind our back, is not used at all.
"""

from collections.abc import Callable, Mapping

import anyio
import mcp_types
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.inbound import mcp_param_headers
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError
from pydantic_core import to_json

from app.domain.jsontypes import Json, JsonObject
from app.domain.spec import Protocol

_HEADER_VALUE_BYTES = 8192
"""Longest argument that is repeated in a header."""


class Session(ClientSession):
    """One side of a connection that was negotiated or is about to be."""

    @property
    def is_modern(self) -> bool:
        return self.discover_result is not None

    @property
    def claims_tools(self) -> bool:
        capabilities = self.server_capabilities
        return capabilities is not None and capabilities.tools is not None

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
            if protocol == "modern" or is_hopeless():
                raise
            slow = isinstance(error, TimeoutError)
        else:
            return
        try:
            await self.initialize()
        except MCPError:
            if not slow or is_hopeless():
                raise
            # A modern server that was only slow to start refuses the handshake and is awake now.
            await self._discover(probe_seconds)

    async def _discover(self, seconds: float) -> None:
        with anyio.fail_after(seconds):
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
