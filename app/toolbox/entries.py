"""A server's tools as it lists them, made usable one by one. Pure; knows neither connections nor what a run allows.

One odd entry must not cost the good ones , so nothing is taken as a whole that can be taken in parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import mcp_types
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from pydantic import ValidationError

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.toolbox.results import describe_tool
from app.toolbox.schema import repair_schema, schema_refused

_ESSENTIALS = frozenset({"name", "title", "description"})
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of a server, ready to be offered."""

    name: str
    """The original one."""
    description: str
    """Never empty."""
    parameters: JsonObject
    """The repaired schema; empty where the tool was refused."""
    refused: str | None
    """Why the tool cannot be offered, in a sentence."""
    hints: JsonObject
    """What the server claims of the tool's effects, in MCP's words. Claims, never grants."""
    param_headers: Mapping[tuple[str, ...], str]
    """Arguments that a modern server wants repeated in headers: their path, and the end of the header's name."""


def entries_from_page(page: JsonObject) -> list[Json]:
    """Return the entries of one page; none where it holds no list."""
    tools: Json = page.get("tools")
    return tools if is_array(tools) else []


def listed_tools(entries: Iterable[Json], *, modern: bool, schema_bytes: int) -> list[ListedTool]:
    """Make the entries of all pages usable, in their order.

    What has no name, or can be called as a task only, is left out; of tools with the same name the first counts.
    """
    tools: dict[str, ListedTool] = {}
    for entry in entries:
        tool = _tool_from_entry(entry)
        if tool is not None and tool.name not in tools:
            tools[tool.name] = _listed(tool, modern=modern, schema_bytes=schema_bytes)
    return list(tools.values())


def _tool_from_entry(entry: Json) -> mcp_types.Tool | None:
    if not is_object(entry) or not isinstance(entry.get("name"), str) or not entry["name"]:
        return None
    schema: Json = entry.get("inputSchema")
    whole = {**entry, "inputSchema": schema if is_object(schema) else {"type": "object"}}
    execution: Json = entry.get("execution")
    if is_object(execution) and execution.get("taskSupport") == "required":
        return None
    bare: JsonObject = {key: value for key, value in whole.items() if key in _ESSENTIALS and isinstance(value, str)}
    annotated = {"annotations": entry["annotations"]} if is_object(entry.get("annotations")) else {}
    for attempt in (whole, {**bare, **annotated, "inputSchema": whole["inputSchema"]}):
        try:
            return mcp_types.Tool.model_validate(attempt, by_name=False)
        except ValidationError:
            continue
    return mcp_types.Tool.model_validate({**bare, "inputSchema": whole["inputSchema"]}, by_name=False)


def _listed(tool: mcp_types.Tool, *, modern: bool, schema_bytes: int) -> ListedTool:
    refused = schema_refused(tool.input_schema, max_bytes=schema_bytes)
    if refused is None and modern and find_invalid_x_mcp_header(tool.input_schema) is not None:
        refused = "Its schema asks for request headers in a way that the protocol forbids."
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return ListedTool(
        name=tool.name,
        description=describe_tool(tool),
        parameters=repair_schema(tool.input_schema) if refused is None else {},
        refused=refused,
        hints={key: hints[key] for key in _HINTS if key in hints},
        param_headers=x_mcp_header_map(tool.input_schema) if modern and refused is None else {},
    )


def readable_result(raw: JsonObject) -> mcp_types.CallToolResult | None:
    """Read a tool's result; blocks that are no MCP content are left out. None where it is no result at all."""
    content: Json = raw.get("content", [])
    if not is_array(content) or ("content" not in raw and "structuredContent" not in raw):
        return None
    rest: JsonObject = {key: raw[key] for key in ("structuredContent", "isError") if key in raw}
    for blocks in (content, _good_blocks(content)):
        try:
            return mcp_types.CallToolResult.model_validate({**rest, "content": blocks}, by_name=False)
        except ValidationError:
            continue
    return None


def _good_blocks(content: Sequence[Json]) -> list[Json]:
    good: list[Json] = []
    for block in content:
        try:
            mcp_types.CallToolResult.model_validate({"content": [block]}, by_name=False)
        except ValidationError:
            continue
        good.append(block)
    return good
