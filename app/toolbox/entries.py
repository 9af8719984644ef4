"""A server's tools as it lists them, made usable one by one. Pure; knows neither connections nor what a run allows.

One odd entry must not cost the good ones, so nothing is taken as a whole that can be taken in parts. A server decides
how much work its list is: the number of tools and the parts of all their schemas are bounded.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map

from app.domain.jsontypes import Json, JsonObject, is_array, is_object, is_small
from app.toolbox.checking import SchemaCheck
from app.toolbox.cleaning import clean_text, hidden_in, shown_name
from app.toolbox.schema import MAX_NODES, count_nodes, repair_schema, schema_refused

MAX_NAME_CHARACTERS = 128
MAX_DESCRIPTION_BYTES = 4096
MAX_LISTED_NODES = 50_000
"""Objects and arrays, in all schemas of a server."""
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One tool of a server, ready to be offered or with the reason why not; or the reason why others are missing."""

    name: str
    """For people: the original one, clean and on one line. Empty where this stands for entries that have no name."""
    refused: str | None
    """Why it cannot be offered, in a sentence."""
    wire_name: str = ""
    """For calls: the original one as it is."""
    description: str = ""
    """Never empty for a tool that can be offered."""
    parameters: JsonObject = field(default_factory=dict[str, Json])
    """The repaired schema."""
    written: JsonObject = field(default_factory=dict[str, Json])
    """The schema as the server wrote it, which arguments are fitted to."""
    hints: JsonObject = field(default_factory=dict[str, Json])
    """What the server claims of the tool's effects, in MCP's words. Claims, never grants."""
    output: SchemaCheck | None = None
    """What the server says its structured results look like."""
    is_checked_quickly: bool = True
    """Whether to hold a small result against that takes no time worth speaking of."""
    hidden: int = 0
    """Characters taken out of name and description that hide something from people."""
    digest: bytes = b""
    """Of name, description, schema and hints, as the server wrote them."""
    param_headers: Mapping[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])
    """Arguments that a modern server wants repeated in headers: their path, and the end of the header's name."""

    @property
    def is_repeatable(self) -> bool:
        """Whether its server says that calling it twice is as good as once."""
        return self.hints.get("readOnlyHint") is True or self.hints.get("idempotentHint") is True


def entries_from_page(page: JsonObject) -> list[Json]:
    """Return the entries of one page; none where it holds no list."""
    tools: Json = page.get("tools")
    return tools if is_array(tools) else []


def listed_tools(
    entries: Sequence[Json], *, modern: bool, schema_bytes: int, limit: int, has_more: bool = False
) -> list[ListedTool]:
    """Make the entries of all pages usable, in their order; what cannot be offered is there with its reason.

    At most `limit` tools are looked at. The rest, and what has no name of its own, is told by one entry for each cause
    at the end. `has_more` says that the server has entries that were never read.
    """
    named: dict[str, JsonObject] = {}
    nameless = doubled = beyond = 0
    for position, entry in enumerate(entries):
        if len(named) >= limit:
            beyond = len(entries) - position
            break
        name = _shown_name(entry.get("name")) if is_object(entry) else ""
        if not name:
            nameless += 1
        elif name in named:
            doubled += 1
        else:
            named[name] = entry
    reader = _Reader(modern=modern, schema_bytes=schema_bytes)
    tools = [reader.tool(name, entry) for name, entry in named.items()]
    left_out = [
        (nameless, f"Entries of the tool list that have no name, left out: {nameless}."),
        (doubled, f"Entries of the tool list with the name of an earlier one, left out: {doubled}."),
        (beyond, f"Entries of the tool list beyond the first {limit} tools, left out: {beyond}."),
        (has_more, "The tool list goes on after what was read; the rest is left out."),
    ]
    return tools + [ListedTool("", refused=reason) for count, reason in left_out if count]


def _shown_name(name: Json) -> str:
    """Make a name fit to be shown. One that is too long for use keeps its beginning."""
    return shown_name(name, MAX_NAME_CHARACTERS) if isinstance(name, str) else ""


class _Reader:
    """Reads the tools of one list, with the nodes that are left for their schemas."""

    def __init__(self, *, modern: bool, schema_bytes: int) -> None:
        self._modern = modern
        self._schema_bytes = schema_bytes
        self._left = MAX_LISTED_NODES

    def tool(self, name: str, entry: JsonObject) -> ListedTool:
        given: Json = entry.get("inputSchema")
        schema: JsonObject = given if is_object(given) else {"type": "object"}
        refused = self._refused(entry, schema)
        if refused is not None:
            return ListedTool(name, refused)
        annotations: Json = entry.get("annotations")
        claims: JsonObject = annotations if is_object(annotations) else {}
        output = _output_schema(entry, self._schema_bytes)
        written = json.dumps(schema, ensure_ascii=False)
        texts: tuple[Json, ...] = (entry.get("description"), entry.get("title"), claims.get("title"))
        return ListedTool(
            name,
            refused=None,
            wire_name=entry["name"],
            description=_description(name, texts),
            parameters=repair_schema(schema),
            written=schema,
            hidden=sum(hidden_in(text) for text in (entry["name"], *texts, written) if isinstance(text, str)),
            hints={key: claims[key] for key in _HINTS if isinstance(claims.get(key), bool)},
            output=None if output is None else SchemaCheck(output),
            is_checked_quickly=output is None or (is_small(output) and "$ref" not in json.dumps(output)),
            digest=_digest(entry),
            param_headers=x_mcp_header_map(schema) if self._modern else {},
        )

    def _refused(self, entry: JsonObject, schema: JsonObject) -> str | None:
        if len(entry["name"]) > MAX_NAME_CHARACTERS:
            return f"Its name is longer than {MAX_NAME_CHARACTERS} characters."
        execution: Json = entry.get("execution")
        if is_object(execution) and execution.get("taskSupport") == "required":
            return "It can be called as a task only, which is not supported."
        nodes = count_nodes(schema)
        if self._left < nodes <= MAX_NODES:
            return f"The schemas of its server have more than {MAX_LISTED_NODES} parts in all."
        refused = schema_refused(schema, max_bytes=self._schema_bytes)
        if refused is not None:
            return refused
        self._left -= nodes
        if self._modern and find_invalid_x_mcp_header(schema) is not None:
            return "Its schema asks for request headers in a way that the protocol forbids."
        return None


_APPROVED = ("name", "title", "description", "inputSchema", "annotations")


def _digest(entry: JsonObject) -> bytes:
    return sha256(json.dumps([entry.get(key) for key in _APPROVED], sort_keys=True).encode()).digest()


def _output_schema(entry: JsonObject, max_bytes: int) -> JsonObject | None:
    schema: Json = entry.get("outputSchema")
    return schema if is_object(schema) and schema_refused(schema, max_bytes=max_bytes) is None else None


def _description(name: str, candidates: Sequence[Json]) -> str:
    """Return what the model is told of a tool: the first text that has something to read, at most 4 KiB of it."""
    for candidate in candidates:
        cleaned = clean_text(candidate).strip() if isinstance(candidate, str) else ""
        if cleaned:
            return _shortened(cleaned)
    return f"The tool {name}."


def _shortened(description: str) -> str:
    encoded = description.encode()
    if len(encoded) <= MAX_DESCRIPTION_BYTES:
        return description
    marker = " […]"
    return encoded[: MAX_DESCRIPTION_BYTES - len(marker.encode())].decode(errors="ignore") + marker
