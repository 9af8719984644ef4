"""When the talk is over: what the answer is, and why it ends there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.errors import RunError
from app.domain.events import AnswerReason, Notice, Outcome, Token
from app.domain.messages import Reply
from app.domain.ports import Emit
from app.run.listen import Ears
from app.run.prompt import CLOSING
from app.run.talk import Talk, assistant_message

_REASONS: dict[str | None, AnswerReason] = {"length": "length", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a run that has one."""

    text: str
    reason: AnswerReason
    outcome: Outcome = "completed"


def is_blank(reply: Reply) -> bool:
    """Tell whether a reply says nothing, for no reason that the provider names."""
    return not reply.content.strip() and reply.finish_reason not in _REASONS


def answered(reply: Reply, talk: Talk, ears: Ears, *, called: Sequence[str]) -> Answer:
    """Make the last reply the answer; where it says nothing, an honest sentence is."""
    reason = _REASONS.get(reply.finish_reason, "stop")
    text = reply.content
    if not text.strip():
        text = _excuse(reason, called)
        ears.emit(Token(text))
    talk.say(assistant_message(Reply(text, reply.reasoning, (), reply.finish_reason)))
    return Answer(_as_shown(text, reply, ears.reasoning), reason)


async def closing_answer(talk: Talk, ears: Ears, *, max_rounds: int, called: Sequence[str]) -> Answer:
    """All rounds are used: let the model answer from what was gathered; say so ourselves only if it cannot."""
    _tell_limit(ears.emit, max_rounds)
    try:
        reply = await ears.hear_reply(talk.closing_question(CLOSING))
    except RunError:
        reply = Reply("", "", (), None)
    text = reply.content
    if not text.strip():
        text = f"I stopped after {max_rounds} rounds of tool calls without an answer.{_ran(called)}"
        ears.emit(Token(text))
    talk.say(assistant_message(Reply(text, reply.reasoning, (), "stop")))
    return Answer(_as_shown(text, reply, ears.reasoning), "rounds", "exhausted")


def _tell_limit(emit: Emit, max_rounds: int) -> None:
    emit(
        Notice(
            "round_limit",
            f"All {max_rounds} rounds are used; the model answers from what it has.",
            {"rounds": max_rounds},
        )
    )


def _as_shown(text: str, reply: Reply, mode: Literal["separate", "inline", "hidden"]) -> str:
    return f"<think>{reply.reasoning}</think>{text}" if mode == "inline" and reply.reasoning else text


def _excuse(reason: AnswerReason, called: Sequence[str]) -> str:
    if reason == "length":
        return f"The answer was cut off by the length limit before it began.{_ran(called)}"
    if reason == "content_filter":
        return f"The model's provider withheld the answer (content filter).{_ran(called)}"
    return f"The model gave no answer, also when asked again.{_ran(called)}"


def _ran(called: Sequence[str]) -> str:
    return f" These tools ran: {', '.join(called)}." if called else ""
