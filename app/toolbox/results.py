"""Turns what MCP servers say into what the model reads and what events carry: cleaned, capped, never empty. Pure.

What a server says is passed on as data. Characters that nobody sees (control, zero-width, direction, tag) are removed,
since they hide instructions from the person who reads along.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mcp.types as mcp_types

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import ToolOutcome

MAX_DESCRIPTION_BYTES = 4096
_MAX_JSON_DEPTH = 64
_NOTES_BYTES = 1024

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_FORMAT = (
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
)
"""Unicode's Cf, and the unassigned ones between its tag characters."""
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_SURROGATE = "\ud800-\udfff"

_UNSEEN = re.compile(f"[{_CONTROL}{_FORMAT}]")
_UNPAIRED = re.compile(f"[{_SURROGATE}]")
_UNFIT_FOR_DESCRIPTIONS = re.compile(f"[{_CONTROL}{_FORMAT}{_PRIVATE}{_SURROGATE}]")


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """How much of one result is passed on, in bytes of UTF-8."""

    model_text_bytes: int = 65_536
    client_result_bytes: int = 1_048_576
    """All of an event's `outputs`, as JSON."""


def clean_text(text: str) -> tuple[str, int]:
    """Return a name or description without unseen, private-use and unpaired characters, and how many were removed."""
    return _UNFIT_FOR_DESCRIPTIONS.subn("", text)


def describe_tool(tool: mcp_types.Tool) -> str:
    """Return what the model is told of a tool: its description, else its title, else its name; clean, at most 4 KiB."""
    title = tool.annotations.title if tool.annotations else None
    for candidate in (tool.description, tool.title, title):
        cleaned = clean_text(candidate or "")[0].strip()
        if cleaned:
            return _shortened(cleaned)
    return _shortened(f"The tool {clean_text(tool.name)[0]}.")


def outcome_from_result(result: mcp_types.CallToolResult, limits: ResultLimits) -> ToolOutcome:
    """Turn a tool's result into text for the model and one output for the event.

    An `isError` result is an outcome with code `tool_failed`; the model reads its text, marked as an error.
    """
    blocks = [_clean_json(block.model_dump(by_alias=True, exclude_none=True)) for block in result.content]
    structured = _clean_json(result.structured_content)
    said = _said(blocks, structured)
    if result.is_error:
        mark = "The tool reported an error:\n"
        cut = _cut(said or "The tool failed without saying why.", limits.model_text_bytes - len(mark), _ADVICE)
        return ToolOutcome(
            text=mark + cut.text, error_code="tool_failed", message=cut.text, omitted_characters=cut.omitted
        )
    cut = _cut(said or "The tool ran and returned nothing.", limits.model_text_bytes, _ADVICE)
    output = _output(said, structured, blocks, limits.client_result_bytes)
    return ToolOutcome(text=cut.text, outputs=(output,), omitted_characters=cut.omitted)


def _clean(text: str) -> str:
    return _UNPAIRED.sub("\ufffd", _UNSEEN.sub("", text))


def _clean_json(value: Json, depth: int = 0) -> Json:
    if isinstance(value, str):
        return _clean(value)
    if depth >= _MAX_JSON_DEPTH and (is_object(value) or is_array(value)):
        return f"[nested deeper than {_MAX_JSON_DEPTH} levels]"
    if is_object(value):
        return {_clean(key): _clean_json(item, depth + 1) for key, item in value.items()}
    if is_array(value):
        return [_clean_json(item, depth + 1) for item in value]
    return value


def _said(blocks: Sequence[JsonObject], structured: Json) -> str:
    """Write a whole result as text. Structured content is a fill-in: with usable text it would be said twice."""
    lines = [_text_from_block(block) for block in blocks]
    if structured is not None and not any(_is_text(block) for block in blocks):
        lines.append(_dump(structured))
    said = "\n".join(line for line in lines if line)
    return said if said.strip() else ""


def _is_text(block: JsonObject) -> bool:
    inner: Json = block.get("resource") if block.get("type") == "resource" else block
    text: Json = inner.get("text") if is_object(inner) else None
    return isinstance(text, str) and bool(text.strip())


def _text_from_block(block: JsonObject) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text), **rest}}:
            return f"{_note('resource', uri, rest.get('mimeType'))}\n{text}"
        case {"type": "resource_link", "uri": str(uri), **rest}:
            size: Json = rest.get("size")
            told = [rest.get("title") or rest.get("name"), uri, rest.get("mimeType"), rest.get("description")]
            return _note("resource link", *told, _amount(size) if isinstance(size, int) else None)
        case {"type": "image" | "audio" | "resource"}:
            return _note(*_facts(block))
        case _:
            return _dump(block)


def _facts(block: JsonObject) -> tuple[str, ...]:
    """Name what cannot be shown as text: kind, address, type and size."""
    inner: Json = block.get("resource", block)
    held: JsonObject = inner if is_object(inner) else {}
    data: Json = held.get("data", held.get("blob", ""))
    size = len(data) * 3 // 4 - data[-2:].count("=") if isinstance(data, str) else 0
    facts = [block.get("type"), held.get("uri"), held.get("mimeType"), _amount(size) if size else None]
    return tuple(fact for fact in facts if isinstance(fact, str))


def _note(kind: str, *facts: Json) -> str:
    """Write one line about something. Each fact is a stranger's, so it is kept to one line and a sane length."""
    shown = [" ".join(fact.split())[:500] for fact in facts if isinstance(fact, str) and fact.strip()]
    return f"[{kind}: {', '.join(shown)}]" if shown else f"[{kind}]"


def _amount(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 1024:.1f} KiB" if size < 1024**2 else f"{size / 1024**2:.1f} MiB"


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Cut(NamedTuple):
    text: str
    omitted: int
    """Characters that are missing."""


_ADVICE = " Ask for less, with a filter, a page or a smaller range, to see what matters."


def _cut(text: str, limit: int, advice: str = "") -> _Cut:
    """Keep a text's head and tail within a limit in bytes, with a marker between them; whole where it fits.

    Cuts fall between characters. A limit smaller than the marker leaves the marker alone.
    """
    encoded = text.encode()
    if len(encoded) <= max(limit, 0):
        return _Cut(text, 0)
    room = max(limit - len(_marker(len(text), len(text), advice).encode()), 0)
    tail_bytes = room // 3
    head = encoded[: room - tail_bytes].decode(errors="ignore")
    tail = encoded[len(encoded) - tail_bytes :].decode(errors="ignore")
    omitted = len(text) - len(head) - len(tail)
    return _Cut(head + _marker(omitted, len(text), advice) + tail, omitted)


def _marker(omitted: int, total: int, advice: str) -> str:
    return f"\n[… {omitted:,} of {total:,} characters are left out here.{advice} …]\n"


def _shortened(description: str) -> str:
    encoded = description.encode()
    if len(encoded) <= MAX_DESCRIPTION_BYTES:
        return description
    marker = " […]"
    return encoded[: MAX_DESCRIPTION_BYTES - len(marker.encode())].decode(errors="ignore") + marker


def _output(said: str, structured: Json, blocks: Sequence[JsonObject], limit: int) -> JsonObject:
    """Fill an event's output in the order text, structure, blocks; what does not fit is cut or replaced by a note."""
    left = limit - _NOTES_BYTES
    text = _fitted(said, left // 2)
    left -= _size(text)
    output: JsonObject = {"text": text}
    notes: list[str] = []
    if structured is not None:
        size = _size(structured)
        if size <= left:
            output["structured"] = structured
            left -= size
        else:
            notes.append(f"[structured content: {_amount(size)}, left out]")
    content: list[JsonObject] = []
    dropped = 0
    for block in blocks:
        shown = _shown(block, left)
        if shown is None:
            dropped += 1
            continue
        content.append(shown)
        left -= _size(shown) + 1
    if dropped:
        notes.append(f"[{dropped} more left out]")
    return {**output, "content": content + [{"type": "text", "text": note} for note in notes]}


def _shown(block: JsonObject, left: int) -> JsonObject | None:
    """Return the block, its text cut, or a note in its place; None where not even that fits."""
    if _size(block) <= left:
        return block
    if block.get("type") == "text":
        bare = {"type": "text", "text": ""}
        shown = {**bare, "text": _fitted(str(block.get("text", "")), left - _size(bare))}
    else:
        shown = {"type": "text", "text": _note(*_facts(block), "left out")}
    return shown if _size(shown) <= left else None


def _fitted(text: str, limit: int) -> str:
    """Cut a text so that it fits as JSON, where quotes, backslashes and line ends take two bytes."""
    allowed = limit
    while True:
        fitted = _cut(text, allowed).text
        size = _size(fitted)
        if size <= limit or allowed <= 0:
            return fitted
        allowed = min(allowed - 2, allowed * limit // size)


def _size(value: Json) -> int:
    return len(_dump(value).encode())
