"""Hears one streamed reply: text and reasoning are passed on as they come, call fragments are put together.

No text is shown after the first call delta of a round; it is kept in the reply's content.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.domain.events import ReasoningToken, Token
from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, Reply, TextDelta, Usage
from app.domain.ports import Ask, ChatModel, Emit
from app.run.assembly import CallAssembly
from app.run.talk import call_ids


@dataclass(slots=True)
class Ears:
    """What listening needs, for a whole run; counts the tokens used."""

    model: ChatModel
    emit: Emit
    reasoning: Literal["separate", "inline", "hidden"] = "separate"
    usage: Usage | None = None

    async def hear_reply(self, ask: Ask) -> Reply:
        """Ask the model and listen until it has ended.

        Raises:
            RunError: The model could not be asked, or the stream broke. What was passed on stays.
        """
        hearing = _Hearing(self.emit, self.reasoning)
        try:
            async with self.model.stream(ask, self.emit) as batches:
                async for batch in batches:
                    hearing.take(batch)
        finally:
            if hearing.usage is not None:
                self.usage = hearing.usage if self.usage is None else self.usage + hearing.usage
        return hearing.reply(call_ids(ask.messages))


@dataclass(slots=True)
class _Hearing:
    emit: Emit
    mode: Literal["separate", "inline", "hidden"]
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    assembly: CallAssembly = field(default_factory=CallAssembly)
    finish_reason: str | None = None
    usage: Usage | None = None
    is_thinking: bool = False

    def take(self, batch: Sequence[Delta]) -> None:
        for delta in batch:
            if isinstance(delta, TextDelta):
                self.hear_text(delta.text)
            elif isinstance(delta, ReasoningDelta):
                self.hear_thought(delta.text)
            elif isinstance(delta, CallFragment):
                self.end_thought()
                self.assembly.add(delta)
            elif isinstance(delta, Finish):
                self.finish_reason = delta.reason
            else:
                self.usage = delta

    def hear_text(self, text: str) -> None:
        self.texts.append(text)
        if not self.assembly:
            if self.is_thinking:
                self.end_thought()
            self.emit(Token(text))

    def hear_thought(self, text: str) -> None:
        self.thoughts.append(text)
        if self.mode == "separate":
            self.emit(ReasoningToken(text))
        elif self.mode == "inline" and not self.assembly:
            if not self.is_thinking:
                self.is_thinking = True
                self.emit(Token("<think>"))
            self.emit(Token(text))

    def end_thought(self) -> None:
        if self.is_thinking:
            self.is_thinking = False
            self.emit(Token("</think>"))

    def reply(self, taken_ids: set[str]) -> Reply:
        self.end_thought()
        return Reply(
            content="".join(self.texts),
            reasoning="".join(self.thoughts),
            calls=self.assembly.calls(cut_off=self.finish_reason == "length", taken_ids=taken_ids),
            finish_reason=self.finish_reason,
            usage=self.usage,
        )
