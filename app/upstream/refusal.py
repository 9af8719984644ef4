"""What an endpoint complains of, as the rules that answer it look at it. Pure; knows no answer.

Providers say what they refuse in their own ways: a path (`param`, `loc`), a field's name, a sentence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from app.domain.jsontypes import JsonObject
from app.domain.messages import Tool
from app.upstream.faults import Complaint
from app.upstream.quirks import Quirks

_READ_CHARACTERS = 4000
UNKNOWN = re.compile(
    r"unsupported|not supported|n't support|does not support|unknown|unrecogni[sz]ed|unexpected|extra\b|extra_forbidden"
    r"|not (?:permitted|allowed|available|accepted|implemented)|no longer|additional propert|cannot find field"
)
OF_TOOLS = re.compile(r"\btools?\b|\bfunctions?\b|declaration|schema|grammar|\bparameters\b|json")
_IN_MESSAGES = re.compile(r"\bmessages?\W{0,3}\d|\btool_calls\W{0,3}\d")
_QUOTED = re.compile(r"(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`)")
SHOULD_MATCH = re.compile(
    r"match(?:es)?(?: the| this)? (?:pattern|regex|regular expression)|regular expression pattern"
)
"""What is said of a value that has the wrong form: no word about patterns in schemas."""
_TOOL_USE = r"(?:tools?|functions?|tool[ _-](?:use|calls?|calling)|function[ _-](?:calls?|calling))"
NO_TOOLS = re.compile(
    rf"(?:not|n't) support(?:ed)?(?: the)?(?: use of)? [`'\"]?{_TOOL_USE}\b"
    r"(?![ _]choice|[ _]use[ds]? |[^.]{0,20}without)"
    rf"|(?<!parallel )(?<!with )\b{_TOOL_USE}[`'\"]? (?:is|are) (?:not |un)(?:supported|available|enabled|allowed)"
    r"|no endpoints found that support tool use|tool choice requires"
)
QUOTE = "['\"`\u2018\u2019\u201c\u201d]"
"""Any kind of quotation mark."""


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
    tools: tuple[Tool, ...] = ()
    """Those that are left out by name."""
    is_last_resort: bool = False
    """For this request only: nothing is learned of it."""


class Case:
    """A refusal as the rules look at it."""

    def __init__(self, refused: Refused) -> None:
        self.refused = refused
        self.quirks = refused.quirks
        self.body = refused.body
        # A quoted sentence is what the endpoint repeats of the request, whose words are no complaint.
        self.message = refused.complaint.message[:_READ_CHARACTERS]
        self.words = _QUOTED.sub(_word_only, self.message.lower())
        self.places = [place.lower().removeprefix("body.") for place in refused.complaint.places]
        self.text = " ".join([*self.places, self.words, refused.complaint.code])
        is_of_messages = _IN_MESSAGES.search(self.text) is not None
        self.speaks_of_tools = bool(refused.tools) and not is_of_messages and bool(OF_TOOLS.search(self.text))

    def names_field(self, name: str) -> bool:
        """Tell whether a request field is what is complained of; a word of everyday language must stand as a name."""
        if any(re.match(rf"{name}(?![\w-])", place) for place in self.places):
            return True
        if "_" in name:
            spelled = name.replace("_", "[_ ]?")  # also in camel case, and in words
            return bool(re.search(rf"(?<![\w.]){spelled}(?![\w])", self.words))
        as_name = rf"{QUOTE}{name}{QUOTE}|(?:^|[\n{{]|- ){name}: |(?:parameters?|arguments?|fields?|model):? {name}\b"
        return bool(re.search(as_name, self.words))

    def change(self, message: str, code: ChangeCode = "request_adapted", **facts: object) -> Change:
        return Change(replace(self.quirks, **facts), code, message)  # pyright: ignore[reportArgumentType]

    def schema(self, message: str, **facts: object) -> Change:
        dialect = replace(self.quirks.schema, **facts)  # pyright: ignore[reportArgumentType]
        return self.change(message, "schema_adapted", schema=dialect)


def _word_only(quoted: re.Match[str]) -> str:
    return quoted[0] if len(quoted[0].split()) == 1 else "…"
