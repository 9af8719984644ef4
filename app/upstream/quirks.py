"""What endpoints and models take, as facts in one table: pattern, facts, reason. Pure; knows no request and no answer.

The defaults are what all endpoints are known to take; where they disagree, the form that most take. What an endpoint
refuses in spite of them is learned from its complaint (`adapt.py`). The operator's word in `MODELS` wins over the
table. Vendors may be named here and nowhere else in this room.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints
from urllib.parse import urlsplit

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.upstream.schemas import SchemaDialect

MOST_REFUSED = 256


@dataclass(frozen=True, slots=True)
class Quirks:
    """How one model at one endpoint wants to be asked."""

    tools: bool = True
    """False: it refuses requests with tools."""
    max_tools: int = 128
    """More are left out, fairly over servers."""
    description_characters: int | None = None
    """A tool's description is cut to so many; None for as many as a listing may hold."""
    schema: SchemaDialect = field(default_factory=SchemaDialect)
    response_format: Literal["any", "without_tools"] = "any"
    """Where it is taken: anywhere, or only in requests without tools, which is the closing one of a run."""
    needs_tools: bool = False
    """True: where the history has calls, the request must have tools, even if none may be called."""
    tool_choice: Literal["any", "auto", "absent"] = "any"
    """What may be said: anything, `auto` and no more, or nothing at all."""
    empty_content: Literal["empty", "null", "absent"] = "empty"
    """How an assistant message says that it holds calls and no text."""
    blank_messages: bool = True
    """False: assistant messages with neither text nor calls are left out."""
    content_parts: bool = True
    """False: content of text parts is sent as one text."""
    images: bool = True
    """False: a placeholder is sent instead of each image."""
    system_role: bool = True
    """False: the system text stands before the first user message."""
    call_ids: Literal["any", "plain", "nine"] = "any"
    """As they are; at most 40 letters, digits, `_` and `-`; exactly nine letters and digits."""
    tool_name: Literal["given", "required", "refused"] = "given"
    """`name` in tool messages: as the caller sent it, always, never."""
    reasoning: Literal["given", "echo", "required", "refused"] = "given"
    """Reasoning in assistant messages: the caller's, as it was sent; the model's own too, where it made calls; on each
    message with calls, empty where there was none; never."""
    output_limit: Literal["given", "max_tokens", "max_completion_tokens"] = "given"
    """Which of the two names of the same parameter is sent."""
    leave_out: frozenset[str] = frozenset()
    """Request fields that it refuses, such as `stream_options` or `parallel_tool_calls`."""
    refused_tools: tuple[str, ...] = ()
    """Digests of tools that it refused, at most `MOST_REFUSED`."""


class _Fact(NamedTuple):
    host: str
    """A pattern for the endpoint's host name; empty for any."""
    model: str
    """A pattern for the model's id; empty for any."""
    facts: JsonObject
    reason: str


_OPENAI_SCHEMA = {"references": True, "typeLists": "keep"}

_TABLE = (
    _Fact(
        r"(^|\.)openai\.(com|azure\.com)$",
        "",
        {"descriptionCharacters": 1024, "schema": _OPENAI_SCHEMA},
        "follows references and type lists; longer descriptions are a 400",
    ),
    _Fact(
        "",
        r"^(openai/)?(o\d|gpt-5)",
        {"outputLimit": "max_completion_tokens"},
        "max_tokens is a 400 since the o series",
    ),
    _Fact("", r"(mi|mag|minis|code|dev|pix)stral", {"callIds": "nine"}, "other call ids are a 400"),
    _Fact(r"(^|\.)mistral\.ai$", "", {"leaveOut": ["stream_options"]}, "an extra field is a 422; usage comes anyway"),
    _Fact(
        r"(^|\.)googleapis\.com$",
        "",
        {"toolName": "required", "schema": {"typeLists": "nullable", "formats": "none"}},
        "knows few formats and `nullable`; a result without its tool's name is a 400",
    ),
    _Fact(
        "", r"claude", {"emptyContent": "null", "callIds": "plain"}, "an empty text beside calls, other ids are a 400"
    ),
    _Fact(
        "", r"deepseek", {"reasoning": "required"}, "thinking with tools goes on only with reasoning_content returned"
    ),
    _Fact("", r"kimi|moonshot", {"reasoning": "required"}, "the same"),
    _Fact("", r"minimax", {"reasoning": "echo"}, "made to think on between calls; without its thoughts it gets worse"),
    _Fact(r"(^|\.)openrouter\.ai$", "", {"reasoning": "echo"}, "signed reasoning_details must come back unchanged"),
    _Fact(r"(^|\.)groq\.com$", "", {"reasoning": "refused"}, "reasoning_content in a message is a 400"),
)


def quirks_from_table(base_url: str, model: str) -> Quirks:
    """Gather what is known of a model at an endpoint; all rows that fit count, later ones win."""
    host = (urlsplit(base_url).hostname or "").lower()
    name = model.lower()
    quirks = Quirks()
    for row in _TABLE:
        if re.search(row.host, host) and re.search(row.model, name):
            quirks = quirks_with(quirks, row.facts)
    return quirks


def quirks_with(quirks: Quirks, facts: Mapping[str, Json]) -> Quirks:
    """Set facts by their JSON names: those of `Quirks` and `SchemaDialect` in camel case, `schema` an object itself.

    Raises:
        ValueError: A name is not known, or a value cannot be; the message names it.
    """
    return _set(quirks, facts, "")


_Facts = TypeVar("_Facts", Quirks, SchemaDialect)


def _set(owner: _Facts, facts: Mapping[str, Json], path: str) -> _Facts:
    known = {_camel(each.name): each.name for each in fields(owner) if each.name != "refused_tools"}
    hints = get_type_hints(type(owner))
    changes: dict[str, Any] = {}
    for key, value in facts.items():
        name = known.get(key)
        if name is None:
            raise ValueError(f"`{path}{key}` is not known; there are: {', '.join(known)}")
        if hints[name] is SchemaDialect:
            if not is_object(value):
                raise ValueError(f"`{path}{key}` must be an object")
            changes[name] = _set(getattr(owner, name), value, f"{path}{key}.")
        else:
            changes[name] = _value(value, hints[name], f"{path}{key}")
    return replace(owner, **changes)


def _value(value: Json, hint: Any, path: str) -> Any:
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError(f"`{path}` must be true or false")
        return value
    if hint == frozenset[str]:
        if not (is_array(value) and all(isinstance(item, str) for item in value)):
            raise ValueError(f"`{path}` must be a list of texts")
        return frozenset[str](value)
    choices = get_args(hint)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise ValueError(f"`{path}` must be one of: {', '.join(choices)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{path}` must be a whole number from 1")
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
