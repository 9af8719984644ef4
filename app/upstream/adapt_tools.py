"""Rules for complaints about tools: how many, which, their descriptions and schemas, or that there are any. Pure."""

import re
from collections.abc import Iterator
from dataclasses import replace

from app.domain.jsontypes import Json, is_array, is_object
from app.domain.messages import Tool
from app.upstream.quirks import MOST_REFUSED
from app.upstream.refusal import NO_TOOLS, QUOTE, SHOULD_MATCH, UNKNOWN, Case, Change
from app.upstream.request import tool_digest

_SMALLEST_DESCRIPTION = 64

_PLACE_OF_TOOL = re.compile(
    r"function_declarations[\[.]+(\d+)|\btools[\[./]+(\d+)(?!\d*[\].]+function_decl)|\btool (?:#|index |at index )(\d+)"
    r"|\btools?['\"], *(\d+)"
)
_OTHER_LIMITS = re.compile(r"\b(?:[kmg]i?b|bytes?|tokens?|sizes?|characters|large|plan|tier|minute|hour|day)\b")
_LIMIT_WORDS = re.compile(r"too (?:many|long|large)|at most|maximum|\bmax\b|limit|exceed|more than|up to|\bover\b")
_NUMBER = re.compile(r"(?<![\[\w.])\d+(?![\]\w])")
_NEEDS_TOOLS = re.compile(
    r"without [`'\"]?tools=|tool_result blocks must define tools|tools? (?:field|parameter|config)\w* (?:must|is req)"
)
_PATTERNS = re.compile(r"pattern|regex|regular expression|lookahead|look-ahead|grammar")
_KEYWORD = re.compile(
    r"['\"`]([$\w-]+)['\"`]|(?:keywords?|name|field|property) ([$\w-]+)|([$a-z]+[A-Z]\w*|\bx-[\w-]+|\b[a-z]+_[a-z_]+)"
)
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default", "examples", "example"})
_NEEDED = frozenset({"type", "items", "required", "description", "anyOf", "allOf", "not", "if", "then", "else", "$ref"})
"""Keywords that cannot simply go, or that a rule of their own is about."""
_LEVELS = 40


def _tools_at_all(case: Case) -> Iterator[Change]:
    if case.refused.tools and NO_TOOLS.search(case.words):
        yield case.change("The model takes no tools, so it was asked without them.", "tools_refused", tools=False)


def _tool_count(case: Case) -> Iterator[Change]:
    count = len(case.refused.tools)
    is_about = "tools" in case.places or (re.search(r"\btools\b|\bfunctions\b|declarations", case.words) is not None)
    if not (count > 1 and is_about and _LIMIT_WORDS.search(case.words)):
        return
    if _PLACE_OF_TOOL.search(case.text) or _OTHER_LIMITS.search(case.words):
        return
    told = [int(number) for number in _NUMBER.findall(case.words) if len(number) <= 6 and 0 < int(number) < count]
    limit = max(told, default=128 if count > 128 else count // 2)
    yield case.change(
        f"The model's endpoint takes at most {limit} tools; {count - limit} were left out.",
        "tools_left_out",
        max_tools=limit,
    )


def _description(case: Case) -> Iterator[Change]:
    if not (case.refused.tools and "description" in case.text):
        return
    longest = max(len(tool.spec.description) for tool in case.refused.tools)
    told = [int(number) for number in _NUMBER.findall(case.words) if len(number) <= 6]
    told = [number for number in told if _SMALLEST_DESCRIPTION <= number < longest]
    if told or _LIMIT_WORDS.search(case.words):
        limit = min(told, default=1024)
        yield case.change(
            f"The model's endpoint takes no tool descriptions of more than {limit} characters; longer ones were cut.",
            "description_cut",
            description_characters=limit,
        )


def _schemas(case: Case) -> Iterator[Change]:
    if not case.speaks_of_tools:
        return
    said = "The model's endpoint does not take {} in tool schemas, so they were left out."
    if _PATTERNS.search(SHOULD_MATCH.sub("", case.text)):
        yield case.schema(said.format("patterns"), patterns=False)
    if re.search(r"\bformats?\b|grammar", case.text) and not re.search(r"format of|wrong format", case.words):
        yield case.schema(said.format("formats"), formats="none")
    if re.search(r"\$ref|\$defs|\breferences?\b|\bdefinitions?\b|recursi|circular", case.text):
        yield case.schema(said.format("references"), references=False)
    if re.search(r"\btype\b[^.]{0,60}\b(?:list|array|string|str)\b|\btypes? lists?\b|\bnullable\b", case.text):
        yield case.schema(said.format("lists of types"), type_lists="single")
    unknown = _unknown_keywords(case)
    if unknown:
        without = case.quirks.schema.without | unknown
        yield case.schema(said.format(", ".join(sorted(unknown))), without=without)
    if re.search(r"anyof|oneof|allof|\bany_of\b|\bone_of\b|\ball_of\b|combinator|\bunions?\b", case.text):
        yield case.schema(said.format("alternatives at the root"), root_combinators=False)
        yield case.schema(said.format("alternatives"), root_combinators=False, combinators=False)
    if re.search(r"grammar|m(?:in|ax)(?:length|items|imum|properties)|exclusive|multipleof|constraint", case.text):
        yield case.schema(said.format("limits of values"), patterns=False, formats="none", constraints=False)


def _unknown_keywords(case: Case) -> frozenset[str]:
    """Find keywords of the schemas that are sent which the complaint says are not known."""
    if re.search(r"\benum\b[^.]{0,60}\bstring\b|\btype_string\b", case.text):
        return frozenset({"enum"})
    if not UNKNOWN.search(case.text):
        return frozenset()
    told = {_folded(found[1] or found[2] or found[3]) for found in _KEYWORD.finditer(case.message)}
    told |= {_folded(place.rpartition(".")[2]) for place in case.places}
    return frozenset(
        key for tool in case.refused.tools for key in _keywords(tool.spec.parameters, _LEVELS) if _folded(key) in told
    )


def _keywords(schema: Json, levels: int) -> Iterator[str]:
    """List the keywords of a schema and of those within it, but for those that no schema can do without."""
    if is_array(schema) and levels > 0:
        for item in schema:
            yield from _keywords(item, levels - 1)
    elif is_object(schema) and levels > 0:
        for key, value in schema.items():
            if key in _MAPS:
                for item in value.values() if is_object(value) else ():
                    yield from _keywords(item, levels - 1)
            elif key not in _NEEDED:
                yield key
            if key not in _DATA and key not in _MAPS:
                yield from _keywords(value, levels - 1)


def _folded(word: str) -> str:
    return word.lower().replace("_", "")


def _named_tool(case: Case) -> Iterator[Change]:
    tools = _named_tools(case)
    if tools:
        refused = (*case.quirks.refused_tools, *map(tool_digest, tools))[-MOST_REFUSED:]
        names = ", ".join(tool.name for tool in tools)
        message = f"The model's endpoint refused what is not offered now: {names}."
        yield Change(replace(case.quirks, refused_tools=refused), "tool_dropped", message, tuple(tools))


def _named_tools(case: Case) -> list[Tool]:
    """Find the tools that are complained of: by their place in the request, else by their names."""
    tools = case.refused.tools
    if not case.speaks_of_tools:
        return []
    places = {
        int(next(group for group in found.groups() if group is not None)[:6])
        for text in (*case.places, case.words)
        for found in _PLACE_OF_TOOL.finditer(text)
    }
    named = [tools[place] for place in sorted(places) if place < len(tools)]
    return named or [tool for tool in tools if _is_named(tool.spec.name.lower(), case.words)]


def _is_named(name: str, words: str) -> bool:
    name = re.escape(name)
    quoted = rf"{QUOTE}{name}{QUOTE}"
    return bool(re.search(rf"{quoted}|\b(?:functions?|tools?)[ :=]+{name}(?![\w-])", words))


def _dummy_tools(case: Case) -> Iterator[Change]:
    if _NEEDS_TOOLS.search(case.words):
        yield case.change(
            "The tools of earlier calls were named to the model, as its endpoint demands.", needs_tools=True
        )


TOOL_RULES = (_tool_count, _description, _schemas, _named_tool, _dummy_tools, _tools_at_all)
