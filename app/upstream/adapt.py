"""A refusal that points at something that can be left out or said differently becomes other facts. Pure.

Providers say what they refuse in their own ways: a path (`param`, `loc`), a field's name, a sentence. A rule looks for
one kind of complaint and proposes other facts. Rules are tried in order; whoever asks skips those whose facts make the
same request, so nothing is ever sent unchanged. What nobody has a rule for stays an error.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from app.domain.jsontypes import Json, JsonObject, is_array
from app.domain.messages import Message, Tool
from app.upstream.faults import Complaint
from app.upstream.messages import REASONING_FIELDS
from app.upstream.quirks import Quirks
from app.upstream.request import tool_digest

_READ_CHARACTERS = 4000
_MOST_REFUSED = 256
_SMALLEST_DESCRIPTION = 64

_OPTIONAL = ("stream_options", "parallel_tool_calls")
"""Ours: no caller needs them, so whatever is wrong with them, they go."""
_CALLERS = (
    "temperature",
    "top_p",
    "seed",
    "stop",
    "user",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
)
"""The caller's: they go only where the endpoint does not know them, not where a value is wrong."""
_UNKNOWN = re.compile(
    r"unsupported|not supported|n't support|does not support|unknown|unrecogni[sz]ed|unexpected|extra\b|extra_forbidden"
    r"|not (?:permitted|allowed|available|accepted|implemented)|no longer|additional propert|cannot find field"
)
_OF_TOOLS = re.compile(r"\btools?\b|\bfunctions?\b|declaration|schema|grammar|\bparameters\b|json")
_PLACE_OF_TOOL = re.compile(
    r"function_declarations[\[.]+(\d+)|\btools?[\[./ ]+(\d+)(?!\d*[\].]+function_decl)|\btools?['\"], *(\d+)"
)
_LIMIT_WORDS = re.compile(r"too (?:many|long|large)|at most|maximum|\bmax\b|limit|exceed|more than|up to|\bover\b")
_NUMBER = re.compile(r"(?<![\[\w.])\d+(?![\]\w])")
_NO_TOOLS = re.compile(
    r"(?:\btools?\b|\bfunctions?\b|tool[ _-](?:use|calls?|calling|choice)|function[ _-]calling)[^.]{0,60}"
    r"(?:not (?:supported|available|enabled|allowed)|unsupported|n't support)"
    r"|(?:not|n't) support[^.]{0,40}\b(?:tools?|functions?|tool[ _-]\w+|function[ _-]calling)\b"
    r"|tool choice requires"
)
_NO_SYSTEM = re.compile(
    r"(?:system|developer)[ _-]?(?:role|messages?|prompts?|instructions?)[^.]{0,40}"
    r"(?:not (?:supported|enabled|allowed|available)|unsupported)"
)
_IDS = re.compile(
    r"tool[ _]?call[ _]?ids?\b|tool_calls?\S{0,8}\bid\b"
    r"|\bids?\b[^.]{0,60}(?:format|length|letters|digits|characters|alphanumeric)"
)
_NOT_IDS = re.compile(r"followed by|match|not found|missing|respond|correspond|duplicate|unique|preced")
_NINE = re.compile(r"\bnine\b|\b9\b")
_REASONING = re.compile(r"reasoning_content|reasoning_details|\breasoning\b(?![ _]effort)|\bthinking\b(?![ _]?budget)")
_WANTED = re.compile(
    r"missing|must be|must have|required|pass(?:ed)? back|is needed|provide|expected|should be|lacks?\b"
)
_PICTURE = re.compile(r"\bimages?\b|image_url|\bvision\b|multi-?modal|modalit")
_BLANK_WORDS = re.compile(r"empty|blank|null|\bnone\b|\bnil\b|missing|required|at least")
_NOT_CONTENT = re.compile(
    r"content[ _-]?(?:filter|polic|manage|moderat|length)|content-type|polic(?:y|ies)\b|filtered|safety"
)
_QUOTE = "['\"`\u2018\u2019\u201c\u201d]"
_QUOTED = re.compile(r"(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`)")
_LIST_WORDS = re.compile(r"\bstr\b|string|sequence|\blist\b|array|\bparts?\b|\btext\b")


class Refused(NamedTuple):
    """A request that was refused, and how it was put."""

    complaint: Complaint
    body: JsonObject
    tools: Sequence[Tool]
    """Parallel to `body["tools"]`."""
    quirks: Quirks


ChangeCode: TypeAlias = Literal[
    "request_adapted",
    "schema_adapted",
    "description_cut",
    "images_left_out",
    "tool_dropped",
    "tools_left_out",
    "tools_refused",
]


@dataclass(frozen=True, slots=True)
class Change:
    """Other facts to ask with, and what to tell of them."""

    quirks: Quirks
    code: ChangeCode
    message: str
    tool: Tool | None = None
    """The one that is left out."""


def changes(refused: Refused) -> Iterator[Change]:
    """Propose other facts, the likeliest first."""
    case = _Case(refused)
    for rule in _RULES:
        yield from rule(case)


class _Case:
    """A refusal as the rules look at it."""

    def __init__(self, refused: Refused) -> None:
        self.refused = refused
        self.quirks = refused.quirks
        self.body = refused.body
        # A quoted sentence is what the endpoint repeats of the request, whose words are no complaint.
        self.words = _QUOTED.sub(_word_only, refused.complaint.message[:_READ_CHARACTERS].lower())
        self.places = [place.lower().removeprefix("body.") for place in refused.complaint.places]
        self.text = " ".join([*self.places, self.words, refused.complaint.code])
        messages: Json = refused.body.get("messages")
        self.messages: list[Message] = messages if is_array(messages) else []
        self.speaks_of_tools = bool(refused.tools) and bool(_OF_TOOLS.search(self.text))

    def names_field(self, name: str) -> bool:
        """Tell whether a request field is what is complained of; a word of everyday language must be quoted."""
        if any(re.match(rf"{name}(?![\w-])", place) for place in self.places):
            return True
        if "_" in name:
            return bool(re.search(rf"(?<![\w.]){name}(?![\w])", self.words))
        return bool(re.search(rf"{_QUOTE}{name}{_QUOTE}", self.words))

    def change(self, message: str, code: ChangeCode = "request_adapted", **facts: object) -> Change:
        return Change(replace(self.quirks, **facts), code, message)  # pyright: ignore[reportArgumentType]

    def schema(self, message: str, **facts: object) -> Change:
        dialect = replace(self.quirks.schema, **facts)  # pyright: ignore[reportArgumentType]
        return self.change(message, "schema_adapted", schema=dialect)


def _word_only(quoted: re.Match[str]) -> str:
    return quoted[0] if len(quoted[0].split()) == 1 else "…"


# The rules


def _tools_at_all(case: _Case) -> Iterator[Change]:
    if case.refused.tools and _NO_TOOLS.search(case.words) and not _named_tools(case):
        if "choice" in case.words and "requires" not in case.words:
            yield from _choice(case)
        yield case.change("The model takes no tools, so it was asked without them.", "tools_refused", tools=False)


def _fields(case: _Case) -> Iterator[Change]:
    is_unknown = bool(_UNKNOWN.search(case.text))
    yield from _output_limit(case)
    gone = {name for name in _OPTIONAL if name in case.body and case.names_field(name)}
    if is_unknown:
        gone |= {name for name in _CALLERS if name in case.body and case.names_field(name)}
    if gone:
        named = ", ".join(sorted(gone))
        yield case.change(
            f"The model's endpoint does not take {named}, so it was left out.", leave_out=case.quirks.leave_out | gone
        )
    if "tool_choice" in case.body and case.names_field("tool_choice"):
        yield from _choice(case)
    if "response_format" in case.body and case.refused.tools and case.names_field("response_format"):
        said = "The model's endpoint takes no response_format beside tools; it is sent with requests that have none."
        yield case.change(said, response_format="without_tools")


def _choice(case: _Case) -> Iterator[Change]:
    if case.body.get("tool_choice") != "auto":
        yield case.change("The model's endpoint takes no such tool_choice; the model chooses.", tool_choice="auto")
    yield case.change("The model's endpoint does not take tool_choice, so it was left out.", tool_choice="absent")


def _output_limit(case: _Case) -> Iterator[Change]:
    for given, other in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        is_refused = given in case.body and case.names_field(given)
        if is_refused and (other in case.words or _UNKNOWN.search(case.text)):
            yield case.change(f"The model's endpoint takes {other} instead of {given}.", output_limit=other)


def _tool_count(case: _Case) -> Iterator[Change]:
    count = len(case.refused.tools)
    is_about = "tools" in case.places or (re.search(r"\btools\b|\bfunctions\b|declarations", case.words) is not None)
    if not (count > 1 and is_about and _LIMIT_WORDS.search(case.words)) or _PLACE_OF_TOOL.search(case.text):
        return
    told = [int(number) for number in _NUMBER.findall(case.words) if len(number) <= 6 and 0 < int(number) < count]
    limit = max(told, default=128 if count > 128 else count // 2)
    yield case.change(
        f"The model's endpoint takes at most {limit} tools; {count - limit} were left out.",
        "tools_left_out",
        max_tools=limit,
    )


def _description(case: _Case) -> Iterator[Change]:
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


def _schemas(case: _Case) -> Iterator[Change]:
    if not case.speaks_of_tools:
        return
    said = "The model's endpoint does not take {} in tool schemas, so they were left out."
    if re.search(r"pattern|regex|regular expression|lookahead|look-ahead|grammar", case.text):
        yield case.schema(said.format("patterns"), patterns=False)
    if re.search(r"\bformats?\b|grammar", case.text) and not re.search(r"format of|wrong format", case.words):
        yield case.schema(said.format("formats"), formats="none")
    if re.search(r"\$ref|\$defs|\breferences?\b|\bdefinitions?\b|recursi|circular", case.text):
        yield case.schema(said.format("references"), references=False)
    if re.search(r"\btype\b[^.]{0,60}\b(?:list|array|string|str)\b|\btypes? lists?\b|\bnullable\b", case.text):
        yield case.schema(said.format("lists of types"), type_lists="single")
    if re.search(r"anyof|oneof|allof|\bany_of\b|\bone_of\b|\ball_of\b|combinator|\bunions?\b", case.text):
        yield case.schema(said.format("alternatives at the root"), root_combinators=False)
        yield case.schema(said.format("alternatives"), root_combinators=False, combinators=False)
    if re.search(
        r"grammar|m(?:in|ax)(?:length|items|imum|properties)|exclusive|multipleof|constraint", case.text
    ):
        yield case.schema(said.format("limits of values"), patterns=False, formats="none", constraints=False)


def _named_tool(case: _Case) -> Iterator[Change]:
    for tool in _named_tools(case)[:1]:
        refused = (*case.quirks.refused_tools, tool_digest(tool))[-_MOST_REFUSED:]
        message = f"The model's endpoint refused the tool {tool.name}, so it is not offered."
        yield Change(replace(case.quirks, refused_tools=refused), "tool_dropped", message, tool)


def _named_tools(case: _Case) -> list[Tool]:
    """Find the tools that are complained of: by their place in the request, else by their names."""
    tools = case.refused.tools
    if not case.speaks_of_tools:
        return []
    for text in (*case.places, case.words):
        for found in _PLACE_OF_TOOL.finditer(text):
            place = int(next(group for group in found.groups() if group is not None)[:6])
            if place < len(tools):
                return [tools[place]]
    return [tool for tool in tools if _is_named(tool.spec.name.lower(), case.words)]


def _is_named(name: str, words: str) -> bool:
    name = re.escape(name)
    quoted = rf"{_QUOTE}{name}{_QUOTE}"
    return bool(re.search(rf"{quoted}|\b(?:functions?|tools?)[ :=]+{name}(?![\w-])", words))


def _reasoning(case: _Case) -> Iterator[Change]:
    if not _REASONING.search(case.text):
        return
    if _WANTED.search(case.words) and not _UNKNOWN.search(case.text):
        yield case.change("The model's reasoning was sent back to it, as its endpoint demands.", reasoning="required")
    elif any(key in message for message in case.messages for key in REASONING_FIELDS):
        yield case.change(
            "The model's endpoint takes no reasoning in messages, so it was left out.", reasoning="refused"
        )


def _call_ids(case: _Case) -> Iterator[Change]:
    if _IDS.search(case.text) and not _NOT_IDS.search(case.words):
        said = "Ids of calls were rewritten as the model's endpoint wants them."
        if not _NINE.search(case.words):
            yield case.change(said, call_ids="plain")
        yield case.change(said, call_ids="nine")


def _tool_name(case: _Case) -> Iterator[Change]:
    is_name = any(re.search(r"messages\W*\d+\W+name$", place) for place in case.places)
    if is_name or re.search(
        r"\btool (?:messages?|results?|responses?)\b[^.]{0,60}\bname\b|function_response\.name", case.words
    ):
        if _UNKNOWN.search(case.text):
            yield case.change("The model's endpoint takes no names in tool messages.", tool_name="refused")
        else:
            yield case.change("Tool messages were sent with their tools' names.", tool_name="required")


def _pictures(case: _Case) -> Iterator[Change]:
    if _PICTURE.search(case.text):
        yield case.change("The model takes no images, so they were left out.", "images_left_out", images=False)


def _content(case: _Case) -> Iterator[Change]:
    if _NO_SYSTEM.search(case.words):
        yield case.change("The model takes no system message; its text was put before the question.", system_role=False)
    if not re.search(r"\bcontents?\b", case.text) or _NOT_CONTENT.search(case.text):
        return
    parts = case.change("Content in parts was sent as one text.", content_parts=False)
    if _LIST_WORDS.search(case.words) and not _BLANK_WORDS.search(case.words):
        yield parts
    said = "The empty text beside tool calls was sent in another form."
    forms = ("empty", "null", "absent")
    at = forms.index(case.quirks.empty_content)
    for form in (*forms[at + 1 :], *forms[:at]):
        yield case.change(said, empty_content=form)
    yield parts


_RULES: tuple[Callable[[_Case], Iterator[Change]], ...] = (
    _fields,
    _tool_count,
    _description,
    _schemas,
    _named_tool,
    _tools_at_all,
    _reasoning,
    _call_ids,
    _tool_name,
    _pictures,
    _content,
)
