"""Turns what MCP servers say into what the model reads and what events carry: cleaned, capped, never empty. Pure.

What a server says is passed on as data. Characters that nobody sees (control, zero-width, direction, tag) are removed,
since they hide instructions from the person who reads along. What is dropped leaves a note in its place.

A server decides how much work its result is: everything here is bounded in blocks and parts, and a long text is cleaned
in pieces, so that a thread that does it lets others go on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import mcp_types
from pydantic import TypeAdapter, ValidationError

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import ToolOutcome
from app.toolbox.cleaning import clean_result, hidden_in
from app.toolbox.media import amount, data_size, is_media, note, without_media

_MAX_BLOCKS = 256
_MAX_BLOCK_PARTS = 200
_MAX_PARTS = 20_000
"""Values of any kind, in structured content."""
_MAX_JSON_DEPTH = 64
_NOTES_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """How much of one result is passed on, in bytes of UTF-8."""

    model_text_bytes: int = 65_536
    client_result_bytes: int = 1_048_576
    """All of an event's `outputs`, as JSON."""


def outcome_from_result(raw: JsonObject, limits: ResultLimits) -> ToolOutcome | None:
    """Turn a tool's result, as it came, into text for the model and one output for the event.

    None where it is no result at all. An `isError` result is an outcome with code `tool_failed`; the model reads its
    text, marked as an error.
    """
    result = _read(raw)
    if result is None:
        return None
    said = _said(result)
    if raw.get("isError") in (True, "true"):
        mark = "The tool reported an error:\n"
        cut = _cut(said or "The tool failed without saying why.", limits.model_text_bytes - len(mark), _ADVICE)
        omitted = cut.omitted + result.omitted
        return ToolOutcome(
            text=mark + cut.text,
            error_code="tool_failed",
            message=cut.text,
            omitted_characters=omitted,
            is_cut_for_reader=omitted > 0 or result.left_out > 0,
            hidden_characters=result.hidden,
        )
    nothing = "The tool ran and returned no visible text." if result.blocks else "The tool ran and returned nothing."
    cut = _cut(said or nothing, limits.model_text_bytes, _ADVICE)
    output, is_cut = _output(said, result, limits.client_result_bytes)
    return ToolOutcome(
        text=cut.text,
        outputs=(output,),
        omitted_characters=cut.omitted + result.omitted,
        is_cut_for_reader=is_cut,
        hidden_characters=result.hidden,
    )


class _Copy:
    """One walk through JSON that cleans it and ends after so many parts, with notes where something is missing."""

    def __init__(self, parts: int) -> None:
        self._left = parts
        self.is_cut = False
        self.hidden = 0
        """Characters that were taken out and hide something from people."""

    def of(self, value: Json, depth: int = 0) -> Json:
        self._left -= 1
        if isinstance(value, str):
            self.hidden += hidden_in(value)
            return clean_result(value)
        if depth >= _MAX_JSON_DEPTH and (is_object(value) or is_array(value)):
            return f"[nested deeper than {_MAX_JSON_DEPTH} levels]"
        if is_object(value):
            return self._object(value, depth)
        return self._array(value, depth) if is_array(value) else value

    def _object(self, value: JsonObject, depth: int) -> JsonObject:
        fields: JsonObject = {}
        for key, item in value.items():
            if self._left <= 0:
                return {**fields, "…": self._rest(len(value) - len(fields))}
            fields[clean_result(key)] = self.of(item, depth + 1)
        return fields

    def _array(self, value: Sequence[Json], depth: int) -> list[Json]:
        items: list[Json] = []
        for item in value:
            if self._left <= 0:
                return [*items, self._rest(len(value) - len(items))]
            items.append(self.of(item, depth + 1))
        return items

    def _rest(self, count: int) -> str:
        self.is_cut = True
        return f"[{count} more left out]"


class _Block(NamedTuple):
    """One block of a result."""

    shown: JsonObject
    """For the event: valid MCP content."""
    line: str
    """For the model."""
    has_text: bool = True
    is_cut: bool = False
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class _Result:
    """A result within bounds."""

    blocks: Sequence[_Block]
    left_out: int
    """Blocks after the last one that is read."""
    omitted: int
    """Characters of text in those."""
    structured: Json
    is_structure_cut: bool
    hidden: int


def _read(raw: JsonObject) -> _Result | None:
    """Read a result; null means absent, wherever a field may be absent."""
    content: Json = raw.get("content")
    content = [] if content is None else content
    content = [_as_text(content)] if isinstance(content, str) else content
    if not is_array(content) or raw.keys().isdisjoint(("content", "structuredContent", "isError")):
        return None
    rest = content[_MAX_BLOCKS:]
    copy = _Copy(_MAX_PARTS)
    structured, blocks = copy.of(raw.get("structuredContent")), [_block(block) for block in content[:_MAX_BLOCKS]]
    return _Result(
        blocks=blocks,
        left_out=len(rest),
        omitted=sum(len(block["text"]) for block in rest if is_object(block) and isinstance(block.get("text"), str)),
        structured=structured,
        is_structure_cut=copy.is_cut,
        # The same text mostly stands in both.
        hidden=max(copy.hidden, sum(block.hidden for block in blocks)),
    )


_KINDS = ("text", "image", "audio", "resource", "resource_link")
_ESSENTIALS = ("type", "text", "data", "blob", "mimeType", "uri", "name", "title", "description")
_CONTENT: Final = TypeAdapter[mcp_types.ContentBlock](mcp_types.ContentBlock)


def _block(raw: Json) -> _Block:
    """Read one block: as it is, else what it is about without its trimmings, else a note of what cannot be read."""
    if not is_object(raw) or raw.get("type") not in _KINDS:
        copy = _Copy(_MAX_BLOCK_PARTS)
        line = _dump(without_media(copy.of(raw)))
        return _Block(_as_text(line), line, is_cut=copy.is_cut, hidden=copy.hidden)
    whole = {key: value for key, value in raw.items() if value is not None}
    for attempt in (whole, _essentials(raw)):
        copy = _Copy(_MAX_BLOCK_PARTS)
        block: JsonObject = copy.of(attempt)
        if not copy.is_cut and _is_content(block):
            has_text = "text" in block.get("resource", block)
            return _Block(block, _text_from_block(block), has_text=has_text, hidden=copy.hidden)
    unreadable = f"[unreadable block of type {raw['type']}]"
    return _Block(_as_text(unreadable), unreadable, has_text=False)


def _is_content(block: JsonObject) -> bool:
    try:
        _CONTENT.validate_python(block, by_name=False)
    except ValidationError:
        return False
    return True


def _essentials(block: JsonObject) -> JsonObject:
    bare: JsonObject = {key: block[key] for key in _ESSENTIALS if isinstance(block.get(key), str)}
    if "uri" in bare and block.get("type") == "resource_link":
        bare.setdefault("name", bare["uri"])
    inner: Json = block.get("resource")
    if not is_object(inner):
        return bare
    kept = _essentials(inner)
    return {**bare, "resource": kept} if "uri" in kept or "text" not in kept else _as_text(kept["text"])


def _as_text(line: str) -> JsonObject:
    return {"type": "text", "text": line}


def _said(result: _Result) -> str:
    """Write a whole result as text. Structured content is a fill-in: with a text to show it would be said twice."""
    lines = [block.line for block in result.blocks if block.line]
    if result.left_out:
        lines.append(f"[{result.left_out:,} more blocks left out]")
    has_text = any(block.has_text and block.line.strip() for block in result.blocks)
    is_shown = bool(lines) and is_media(result.structured)  # the same pictures once more
    if result.structured is not None and not has_text and not is_shown:
        lines.append(_dump(without_media(result.structured)))
    said = "\n".join(lines)
    return said if said.strip() else ""


def _text_from_block(block: JsonObject) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text), **rest}}:
            return f"{note('resource', uri, rest.get('mimeType'))}\n{text}"
        case {"type": "resource_link", "uri": str(uri), **rest}:
            size: Json = rest.get("size")
            told = [rest.get("title") or rest.get("name"), uri, rest.get("mimeType"), rest.get("description")]
            return note("resource link", *dict.fromkeys(told), amount(size) if isinstance(size, int) else None)
        case _:
            return note(*_facts(block))


def _facts(block: JsonObject) -> tuple[str, ...]:
    """Name what cannot be shown as text: kind, address, type and size."""
    inner: Json = block.get("resource", block)
    held: JsonObject = inner if is_object(inner) else {}
    data: Json = held.get("data", held.get("blob", ""))
    size = data_size(data) if isinstance(data, str) else 0
    facts = [block.get("type"), held.get("uri"), held.get("mimeType"), amount(size) if size else None]
    return tuple(fact for fact in facts if isinstance(fact, str))


_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


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


def _output(said: str, result: _Result, limit: int) -> tuple[JsonObject, bool]:
    """Fill an event's output in the order text, structure, blocks, and tell whether that left anything out.

    What does not fit is cut or replaced by a note.
    """
    left = limit - _NOTES_BYTES
    text = _fitted(said, left // 2)
    left -= _size(text)
    output: JsonObject = {"text": text}
    notes: list[str] = []
    if result.structured is not None:
        size = _size(result.structured)
        if result.is_structure_cut:
            notes.append(note("structured content", f"more than {_MAX_PARTS:,} parts", "left out"))
        elif size <= left:
            output["structured"] = result.structured
            left -= size
        else:
            notes.append(note("structured content", amount(size), "left out"))
    content: list[JsonObject] = []
    dropped = result.left_out
    is_cut = text != said or bool(notes)
    for block in result.blocks:
        shown, size = _shown(block.shown, left)
        is_cut |= block.is_cut or shown is not block.shown
        if size > left:
            dropped += 1
            continue
        content.append(shown)
        left -= size + 1
    if dropped:
        notes.append(f"[{dropped} more left out]")
    return {**output, "content": content + [_as_text(note) for note in notes]}, is_cut or dropped > 0


def _shown(block: JsonObject, left: int) -> tuple[JsonObject, int]:
    """Return the block, or a shorter one in its place where it does not fit, and the size; both may be too large."""
    size = _size(block)
    if size <= left:
        return block, size
    if block.get("type") == "text":
        shown = _as_text(_fitted(str(block.get("text", "")), left - _size(_as_text(""))))
    else:
        shown = _as_text(note(*_facts(block), "left out"))
    return shown, _size(shown)


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
