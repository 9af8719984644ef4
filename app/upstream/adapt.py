"""A refusal that points at something that can be left out or said differently becomes other facts. Pure.

A rule looks for one kind of complaint and proposes other facts. Rules are tried in order; whoever asks skips those
whose facts make the same request, so nothing is ever sent unchanged. What nobody has a rule for stays an error, and so
does what is the caller's to correct, such as a value that is wrong: facts are learned for all callers.
"""

import re
from collections.abc import Callable, Iterator

from app.upstream.adapt_tools import TOOL_RULES
from app.upstream.refusal import NO_TOOLS, OF_TOOLS, QUOTE, SHOULD_MATCH, UNKNOWN, Case, Change, Refused

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
_OF_THE_REPLY = re.compile(
    r"tool_use_failed|attempted to call|tool call validation failed|failed_generation|failed to call"
)
"""The model's reply was no good this once: nothing is wrong with the request."""
_ANSWER_FORMAT = re.compile(r"response[ _]?(?:format|mime|schema)|json mode|structured output|json_schema")
_NOT_BOTH = re.compile(
    r"not supported|unsupported|not support|combin|together|at the same time|cannot be used|not allowed"
)
_NO_SYSTEM = re.compile(
    r"(?:system|developer)[ _-]?(?:role|messages?|prompts?|instructions?)[^.]{0,40}"
    r"(?:not (?:supported|enabled|allowed|available)|unsupported)"
)
_IDS = re.compile(
    r"tool[ _]?call[ _]?ids?\b|tool_calls?\S{0,8}\bid\b|tool_use\W{0,3}id\b|tooluseid"
    r"|\bids?\b[^.]{0,60}(?:format|length|letters|digits|characters|alphanumeric)"
)
_NOT_IDS = re.compile(r"followed by|match|not found|missing|respond|correspond|duplicate|unique|preced")
_NINE = re.compile(r"\bnine\b|\b9\b")
_REASONING = re.compile(r"reasoning_content|reasoning_details|\breasoning\b(?![ _]effort)|\bthinking\b(?![ _]?budget)")
_WANTED = re.compile(
    r"missing|must be|must have|required|pass(?:ed)? back|is needed|provide|expected|should be|lacks?\b"
)
_OTHER_THOUGHTS = re.compile(r"signature|temperature|budget|top_p|top_k")
_CONDITION = re.compile(r"supported values|must be one of|\b(?:when|if|unless|while|both|together|simultaneously)\b")
"""The complaint is about a value, or about things that do not go together: that is the caller's to correct."""
_IMAGES = r"(?:images?|image[_ ]?(?:url|inputs?)|vision|multi-?modal(?:ity| inputs?)?)"
_NO_PICTURES = re.compile(
    rf"(?:not|n't) support(?: the)?(?: use of)? [`'\"]?{_IMAGES}\b(?!\s*(?:/|of |in |urls?|formats?|types?|with))"
    rf"|(?:^|[.:;({{] ?)(?:the )?{_IMAGES} (?:is|are) (?:not |un)(?:supported|enabled|allowed|available)"
    r"|unknown variant .image_url|at most 0 image|no endpoints found that support image|text-only"
)
_BAD_PICTURE = re.compile(
    r"\bformats?\b|\bsize|\b[km]b\b|\burl\b|download|process|exceed|\binvalid\b|decode|corrupt|pixel|dimension|\btypes?\b"
)
_LIST_WORDS = re.compile(r"\bstr\b|string|sequence|\blist\b|array|\bparts?\b|\btext\b")
_BLANK_WORDS = re.compile(r"empty|blank|null|\bnone\b|\bnil\b|missing|required|at least")
_NOT_CONTENT = re.compile(
    r"content[ _-]?(?:filter|polic|manage|moderat|length)|content-type|polic(?:y|ies)\b|filtered|safety|signature"
)


def changes(refused: Refused) -> Iterator[Change]:
    """Propose other facts, the likeliest first."""
    case = Case(refused)
    if not _OF_THE_REPLY.search(case.text):
        for rule in _RULES:
            yield from rule(case)


# The rules


def _fields(case: Case) -> Iterator[Change]:
    is_unknown = bool(UNKNOWN.search(case.text)) and not _CONDITION.search(case.words)
    yield from _output_limit(case)
    gone = {name for name in _OPTIONAL if name in case.body and case.names_field(name)}
    if is_unknown:
        gone |= {
            name for name in _CALLERS if name in case.body and case.names_field(name) and not _is_value(name, case)
        }
    if gone:
        named = ", ".join(sorted(gone))
        yield case.change(
            f"The model's endpoint does not take {named}, so it was left out.", leave_out=case.quirks.leave_out | gone
        )
    is_forced = case.body.get("tool_choice") not in (None, "auto")
    may_choose = not NO_TOOLS.search(case.words) or (is_forced and "requires" not in case.words)
    if may_choose and "tool_choice" in case.body and case.names_field("tool_choice"):
        yield from _choice(case)
    is_of_both = _ANSWER_FORMAT.search(case.words) and OF_TOOLS.search(case.words) and _NOT_BOTH.search(case.words)
    if "response_format" in case.body and case.refused.tools and is_of_both:
        said = "The model's endpoint takes no response_format beside tools; it is sent with requests that have none."
        yield case.change(said, response_format="without_tools")


def _is_value(name: str, case: Case) -> bool:
    """Tell whether it is a value of the field that is complained of, which another caller may not send."""
    at_value = re.search(rf"{name}{QUOTE}?(?:[ :=]+| value )(?:{QUOTE}\w|-?\d)", case.words)
    return at_value is not None and "only the default" not in case.words


def _choice(case: Case) -> Iterator[Change]:
    if case.body.get("tool_choice") != "auto":
        yield case.change("The model's endpoint takes no such tool_choice; the model chooses.", tool_choice="auto")
    yield case.change("The model's endpoint does not take tool_choice, so it was left out.", tool_choice="absent")


def _output_limit(case: Case) -> Iterator[Change]:
    for given, other in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        is_refused = given in case.body and case.names_field(given)
        if is_refused and (other in case.words or UNKNOWN.search(case.text)):
            yield case.change(f"The model's endpoint takes {other} instead of {given}.", output_limit=other)


def _reasoning(case: Case) -> Iterator[Change]:
    if not _REASONING.search(case.text):
        return
    is_refused = UNKNOWN.search(case.text) is not None
    if _WANTED.search(case.words) and not is_refused:
        yield case.change("The model's reasoning was sent back to it, as its endpoint demands.", reasoning="required")
    elif is_refused and not _OTHER_THOUGHTS.search(case.words):
        yield case.change(
            "The model's endpoint takes no reasoning in messages, so it was left out.", reasoning="refused"
        )


def _call_ids(case: Case) -> Iterator[Change]:
    if _IDS.search(case.text) and not _NOT_IDS.search(SHOULD_MATCH.sub("", case.words)):
        said = "Ids of calls were rewritten as the model's endpoint wants them."
        if not _NINE.search(case.words):
            yield case.change(said, call_ids="plain")
        yield case.change(said, call_ids="nine")


def _tool_name(case: Case) -> Iterator[Change]:
    is_name = any(re.search(r"messages\W*\d+\W+name$", place) for place in case.places)
    if is_name or re.search(
        r"\btool (?:messages?|results?|responses?)\b[^.]{0,60}\bname\b|function_response\.name", case.words
    ):
        if UNKNOWN.search(case.text):
            yield case.change("The model's endpoint takes no names in tool messages.", tool_name="refused")
        else:
            yield case.change("Tool messages were sent with their tools' names.", tool_name="required")


def _pictures(case: Case) -> Iterator[Change]:
    if _NO_PICTURES.search(case.words) and not _BAD_PICTURE.search(case.words):
        yield case.change("The model takes no images, so they were left out.", "images_left_out", images=False)


def _content(case: Case) -> Iterator[Change]:
    if _NO_SYSTEM.search(case.words):
        yield case.change("The model takes no system message; its text was put before the question.", system_role=False)
    if not re.search(r"\bcontents?\b", case.text) or _NOT_CONTENT.search(case.text):
        return
    parts = case.change("Content in parts was sent as one text.", content_parts=False)
    if _LIST_WORDS.search(case.words) and not _BLANK_WORDS.search(case.words):
        yield parts
    blank = case.change("Empty messages of the assistant were left out.", blank_messages=False)
    if re.search(r"either content or|all messages must have", case.words):
        yield blank
    said = "The empty text beside tool calls was sent in another form."
    forms = ("empty", "null", "absent")
    at = forms.index(case.quirks.empty_content)
    for form in (*forms[at + 1 :], *forms[:at]):
        yield case.change(said, empty_content=form)
    yield blank
    yield parts


_RULES: tuple[Callable[[Case], Iterator[Change]], ...] = (
    _fields,
    *TOOL_RULES,
    _reasoning,
    _call_ids,
    _tool_name,
    _pictures,
    _content,
)
