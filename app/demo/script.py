"""What the demo model replies to a conversation: calls, then an answer from their results. Pure; no language model.

Knows chat messages and tool names, nothing of HTTP. A tool is found by the beginning of its name, since a collision
with another server's tool adds a suffix.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.demo.words import wanted_calls
from app.domain.jsontypes import Json, JsonObject, is_array, is_object

SIGNATURE = "(Scripted demo model: plain rules wrote this, not a language model.)"

_EXAMPLES = {
    "clock": "What time is it in Tokyo?",
    "dice": "Roll 3d6",
    "countdown": "Count down from 3",
    "chart": "Draw a chart of 3, 5, 8",
    "fail": "Call the tool that fails",
    "ask": "Ask me which colour I like",
}
_GREETING = re.compile(r"\W*(hi|hello|hey|good (morning|afternoon|evening|day)|greetings)\b", re.IGNORECASE)
_THINK = re.compile(r"\bthink\b", re.IGNORECASE)
_TROUBLE = re.compile(
    r"\W*(?:error|fail(?:ed|ure)|could not|cannot|unknown|invalid|timed out|timeout|cancelled|skipped)\b", re.IGNORECASE
)
_QUOTE_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call to make: the tool's name as it was offered, and its arguments."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply: what is thought, said and called, in this order."""

    text: str
    reasoning: str = ""
    calls: tuple[PlannedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class _Result:
    call: PlannedCall
    text: str


def next_turn(messages: Sequence[Json], tool_names: Sequence[str], *, parallel: bool = True) -> Turn:
    """Decide the next reply to a conversation in OpenAI's chat form.

    Args:
        messages: The conversation; what does not look like a message is passed over.
        tool_names: The tools on offer; empty when none may be called.
        parallel: False makes one call a turn, the others in the turns that follow.
    """
    question, results = _split(messages, closing=not tool_names)
    thinks = _THINK.search(question) is not None
    calls: list[PlannedCall] = []
    missing: list[str] = []
    for tool, arguments in wanted_calls(question, [result.text for result in results]):
        name = _offered_name(tool, tool_names)
        if any(_is_named(result.call.name, tool) and result.call.arguments == arguments for result in results):
            continue
        if name is None:
            missing.append(tool)
        else:
            calls.append(PlannedCall(name, arguments))
    if calls:
        calls = calls if parallel else calls[:1]
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        thought = f"The words of the question match these tools: {names}." if thinks else ""
        return Turn(f"(Scripted) Calling {names}.\n", thought, tuple(calls))
    text = _answer(question, results, list(dict.fromkeys(missing)), tool_names)
    return Turn(f"{text}\n\n{SIGNATURE}", "No tool is left to call, so it is time to answer." if thinks else "")


def _split(messages: Sequence[Json], *, closing: bool) -> tuple[str, list[_Result]]:
    """Find the last question and the results of the calls made for it.

    Where no tool may be called any more (`closing`), a user message right after tool results asks to sum them up: then
    the question is the one before.
    """
    known = [message for message in messages if is_object(message)]
    users = [index for index, message in enumerate(known) if message.get("role") == "user"]
    if not users:
        return "", []
    if closing and len(users) > 1 and known[users[-1] - 1].get("role") == "tool":
        users.pop()
    calls: dict[str, PlannedCall] = {}
    results: list[_Result] = []
    for message in known[users[-1] :]:
        calls.update(_calls_by_id(message))
        if message.get("role") == "tool":
            call = calls.get(str(message.get("tool_call_id")), PlannedCall("a tool", {}))
            results.append(_Result(call, _text(message.get("content"))))
    return _text(known[users[-1]].get("content")), results


def _calls_by_id(message: JsonObject) -> dict[str, PlannedCall]:
    calls: dict[str, PlannedCall] = {}
    made: Json = message.get("tool_calls")
    for call in made if is_array(made) else []:
        function: Json = call.get("function") if is_object(call) else None
        if is_object(call) and is_object(function):
            try:
                arguments: Json = json.loads(str(function.get("arguments")))
            except (ValueError, RecursionError):
                arguments = None
            calls[str(call.get("id"))] = PlannedCall(
                str(function.get("name")), arguments if is_object(arguments) else {}
            )
    return calls


def _text(content: Json) -> str:
    if is_array(content):
        return " ".join(_text(part.get("text")) for part in content if is_object(part))
    return content if isinstance(content, str) else ""


def _is_named(name: str, tool: str) -> bool:
    return re.match(rf"{tool}(?![A-Za-z0-9])", name) is not None


def _offered_name(tool: str, names: Sequence[str]) -> str | None:
    return tool if tool in names else next((name for name in names if _is_named(name, tool)), None)


def _answer(question: str, results: Sequence[_Result], missing: Sequence[str], tool_names: Sequence[str]) -> str:
    lines = [_told(result) for result in results]
    if lines:
        lines.insert(0, "Here is what the tools returned:")
    if missing:
        lines.append(f"I would call {', '.join(missing)} for this, but no such tool may be called now.")
    if lines:
        return "\n".join(lines)
    if _GREETING.match(question):
        return "Hello! Ask me for the time somewhere, for dice, a countdown or a chart."
    known = [tool for tool in _EXAMPLES if not tool_names or _offered_name(tool, tool_names)]
    if not known:
        return "None of the tools on offer is one that I know."
    start = (
        "I understand" if tool_names else "No tool may be called in this request. With the demo's tools I understand"
    )
    return "\n".join((f"{start}, for example:", *(f"- {_EXAMPLES[tool]} ({tool})" for tool in known)))


def _told(result: _Result) -> str:
    text = " ".join(result.text.split()) or "nothing"
    text = text if len(text) <= _QUOTE_CHARACTERS else f"{text[:_QUOTE_CHARACTERS]} …"
    return f"- {result.call.name}{' did not work' if _TROUBLE.match(text) else ''}: {text}"
