"""When the talk is over: what the answer is, and why it ends there."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.errors import RunError, UpstreamIncomplete
from app.domain.events import AnswerReason, Notice, Outcome, Token
from app.domain.messages import Reply
from app.run.assembly import CUT_OFF
from app.run.listen import Ears
from app.run.prompt import CLOSING
from app.run.talk import Talk

_REASONS: dict[str | None, AnswerReason] = {"length": "length", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a run that has one."""

    text: str
    reason: AnswerReason
    outcome: Outcome = "completed"


def is_blank(reply: Reply) -> bool:
    """Tell whether a reply says nothing, for no reason that the provider names."""
    return not reply.calls and not reply.content.strip() and reply.finish_reason not in CUT_OFF


def answered(reply: Reply, talk: Talk, ears: Ears, *, called: Sequence[str]) -> Answer:
    """Make the last reply the answer; where it says nothing, an honest sentence is.

    Raises:
        UpstreamIncomplete: The provider says that it stopped in the middle.
    """
    if reply.finish_reason in CUT_OFF and reply.finish_reason not in _REASONS:
        ears.all_shown()
        raise UpstreamIncomplete("The model's provider stopped the answer before it was complete.")
    reason = _REASONS.get(reply.finish_reason, "stop")
    excuse = _excuse(reason, called, is_thought=bool(reply.reasoning))
    return Answer(_spoken(talk, ears, excuse, is_whole=True), reason)


async def closing_answer(talk: Talk, ears: Ears, *, max_rounds: int, called: Sequence[str]) -> Answer:
    """All rounds are used: let the model answer from what was gathered; say so ourselves only if it cannot."""
    rounds = "1 round" if max_rounds == 1 else f"{max_rounds} rounds"
    ears.emit(Notice("round_limit", f"The limit of {rounds} is reached.", {"rounds": max_rounds}))
    try:
        await ears.hear_within_window(talk, lambda: talk.closing_question(CLOSING))
        is_whole = True
    except RunError:
        is_whole = False
    excuse = f"I stopped after {rounds} of tool calls without an answer.{_ran(called)}"
    return Answer(_spoken(talk, ears, excuse, is_whole=is_whole), "rounds", "exhausted")


def _spoken(talk: Talk, ears: Ears, excuse: str, *, is_whole: bool) -> str:
    """Say the last reply in the conversation and return it as it was shown; the excuse is added where it must be."""
    shown, content = ears.all_shown(), ears.content
    if not (is_whole and content.strip()):
        added = f"\n\n{excuse}" if content.strip() else excuse
        ears.emit(Token(added))
        shown, content = shown + added, content + added
    talk.say_answer(content, ears.thought)
    return shown


def _excuse(reason: AnswerReason, called: Sequence[str], *, is_thought: bool) -> str:
    if reason == "length":
        return f"The answer was cut off by the length limit before it began.{_ran(called)}"
    if reason == "content_filter":
        return f"The model's provider withheld the answer (content filter).{_ran(called)}"
    if is_thought:
        return f"The model ended with its reasoning and gave no answer, also when asked again.{_ran(called)}"
    return f"The model gave no answer, also when asked again.{_ran(called)}"


def _ran(called: Sequence[str]) -> str:
    return f" These tools ran: {', '.join(called)}." if called else ""
