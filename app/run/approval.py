"""Asks a person before calls are made, remembers what holds for the run, and says to the model what came of it.

An acceptance is bound to what was shown: server, tool, its description and schema, and the arguments. What ran before,
and what tools answer, never gets into a question.
"""

import json
import unicodedata
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from app.domain.errors import InvalidRequest
from app.domain.events import ApprovalAsked, InputResolved, Settler
from app.domain.jsontypes import JsonObject
from app.domain.messages import Tool, ToolCall, ToolOutcome
from app.domain.ports import Person, Toolbox
from app.domain.questions import CANCELLED, InputAnswer

_LONGEST_REASON = 2000
_LONGEST_SHOWN = 16_384
"""Of changed arguments, as the model is told them."""
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Invisible, but part of how words and signs are written."""

_Key: TypeAlias = tuple[str, str, bytes]


@dataclass(frozen=True, slots=True)
class Allowed:
    """A call may be made."""

    arguments: JsonObject
    """What it is made with."""
    by_person: bool = False
    """Whether a person has let it be made, now or for the run; else nobody had to be asked."""
    is_edited: bool = False
    """Whether the arguments are others than the model's."""


@dataclass(slots=True)
class Approvals:
    """What a person was asked about a run's calls."""

    mode: Literal["never", "destructive", "always"]
    person: Person
    toolbox: Toolbox
    remembered: dict[_Key, InputAnswer] = field(default_factory=dict[_Key, InputAnswer])

    async def judge(self, call: ToolCall, tool: Tool) -> Allowed | ToolOutcome:
        """Ask whether a call may be made, where that must be asked; an outcome says why it may not."""
        written = call.arguments or {}
        if self.mode == "never" or (self.mode == "destructive" and tool.hints.get("readOnlyHint") is True):
            return Allowed(written)
        key = (tool.server, tool.name, tool.digest)
        known = self.remembered.get(key)
        if known is not None:
            return Allowed(written, by_person=True) if known.action == "accept" else _declined(known, is_known=True)
        answer = await self._ask(_CallQuestion(call, tool, self.toolbox))
        if answer.remember == "run" and answer.action != "cancel":
            self.remembered[key] = answer
        if answer.action != "accept":
            return _declined(answer)
        arguments = written if answer.arguments is None else answer.arguments
        return Allowed(arguments, by_person=True, is_edited=not _is_same(arguments, written))

    async def objection(self, tool: Tool, *, by_person: bool) -> ToolOutcome | None:
        """Say why a call must not be made after all: its tool is not what it was when it was judged.

        Its server is asked, where a person was; else what is known of it counts, which may have changed meanwhile.
        """
        if self.mode == "never":
            return None
        known = self.toolbox.find(tool.spec.name)
        if known is None or (known.server, known.name, known.digest) != (tool.server, tool.name, tool.digest):
            return _changed()
        unchanged = not by_person or await self.toolbox.is_unchanged(tool)
        return unchanged if isinstance(unchanged, ToolOutcome) else None if unchanged else _changed()

    async def _ask(self, question: "_CallQuestion") -> InputAnswer:
        ticket = self.person.ask(question)
        try:
            return await ticket.answer()
        finally:
            ticket.withdraw("cancel")


@dataclass(frozen=True, slots=True)
class _CallQuestion:
    """The port `Question`: may this call be made?"""

    call: ToolCall
    tool: Tool
    toolbox: Toolbox

    def asked(self, input_id: str, expires_at: str) -> ApprovalAsked:
        call = self.call
        return ApprovalAsked(input_id, call.uuid, call.name, call.arguments or {}, self.tool, expires_at)

    def resolved(self, input_id: str, answer: InputAnswer, by: Settler) -> InputResolved:
        # Silence is no consent: the call is declined, and the reader is told so.
        action = "decline" if by == "expiry" else answer.action
        return InputResolved("approval", input_id, action, by, arguments=answer.arguments)

    def fitted(self, answer: InputAnswer) -> InputAnswer:
        if answer.content is not None:
            text = "content: is for questions of servers; a call that is changed is given `arguments`."
            raise InvalidRequest(text, param="content")
        if answer.action != "accept":
            return replace(answer, arguments=None, reason=_clean(answer.reason))
        if answer.arguments is None:
            return replace(answer, reason=None)
        fitted = self.toolbox.fitted(self.tool, answer.arguments)
        if isinstance(fitted, str):
            where, _, what = fitted.rpartition(": ")
            param = f"arguments.{where}" if where else "arguments"
            raise InvalidRequest(f"{param}: {what}", param=param)
        return replace(answer, arguments=fitted, reason=None)


def _changed() -> ToolOutcome:
    """What a call comes to whose tool is not the one that was judged any more."""
    text = (
        "Error: The server has changed this tool since the call was made, so it was not executed. "
        "Look at the tools again before you call it once more."
    )
    return ToolOutcome(text, error_code="tool_changed", message="The tool has changed since the call was made.")


def with_edit_told(outcome: ToolOutcome, arguments: JsonObject) -> ToolOutcome:
    """Tell the model, before anything else, that a person changed the arguments, and what ran."""
    shown = json.dumps(arguments, ensure_ascii=False)
    if len(shown) > _LONGEST_SHOWN:
        shown = f"{shown[:_LONGEST_SHOWN]}… (the rest is left out)"
    edit = f"A person changed the arguments of this call before it was made. It ran with these: {shown}"
    return replace(outcome, text=f"{edit}\n\n{outcome.text}")


def _declined(answer: InputAnswer, *, is_known: bool = False) -> ToolOutcome:
    if is_known:
        said = "The user does not allow calls of this tool for now."
    elif answer is CANCELLED:
        said = "Nobody has answered in time whether this call may be made."
    elif answer.action == "cancel":
        said = "The user was asked whether this call may be made, and did not decide."
    else:
        said = "The user was asked, and does not allow this call."
    reason = f" The user's reason: {answer.reason}" if answer.reason else ""
    text = f"Error: {said} It was not executed.{reason}\nDo not try the same again unless the user asks for it."
    return ToolOutcome(text, error_code="approval_declined", message=said)


def _is_same(one: JsonObject, other: JsonObject) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _clean(reason: str | None) -> str | None:
    """Leave one line of a person's words, without control characters and what cannot be seen."""
    line = " ".join((reason or "")[: 4 * _LONGEST_REASON].split())
    return "".join(sign for sign in line if not _is_unseen(sign))[:_LONGEST_REASON].strip() or None


def _is_unseen(sign: str) -> bool:
    return unicodedata.category(sign) in ("Cc", "Cf", "Cs") and sign not in _JOINERS
