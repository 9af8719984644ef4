"""Hears one streamed reply: text and reasoning are passed on as they come, call fragments are put together.

No text is shown after the first call delta of a round; it is kept in the reply's content.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.domain.errors import RunError
from app.domain.events import ReasoningToken, Token
from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, Reply, TextDelta, Usage
from app.domain.ports import Ask, ChatModel, Emit
from app.domain.wire import writable
from app.run.assembly import CallAssembly
from app.run.talk import call_ids


@dataclass(slots=True)
class Ears:
    """What listening needs, for a whole run; counts the tokens used."""

    model: ChatModel
    emit: Emit
    reasoning: Literal["separate", "inline", "hidden"] = "separate"
    usage: Usage | None = None
    heard: str = ""
    """What was shown of the last reply that broke off."""

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
        except RunError:
            self.heard = "".join(hearing.shown or hearing.texts)
            raise
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
    shown: list[str] = field(default_factory=list[str])
    withheld_from: int = 0
    """From where on the text was not shown, in characters, once a call has begun."""
    half: str = ""
    """The first half of a character that was split over two deltas."""

    def take(self, batch: Sequence[Delta]) -> None:
        for delta in batch:
            if isinstance(delta, TextDelta):
                self.hear_text(delta.text)
            elif isinstance(delta, ReasoningDelta):
                self.hear_thought(delta.text)
            elif isinstance(delta, CallFragment):
                self.hear_call(delta)
            elif isinstance(delta, Finish):
                self.finish_reason = delta.reason
            else:
                self.usage = delta

    def hear_call(self, fragment: CallFragment) -> None:
        if not self.assembly:
            self.end_thought()
            self.withheld_from = sum(map(len, self.texts))
        self.assembly.add(fragment)

    def hear_text(self, text: str) -> None:
        if self.half or "\ud800" <= text[-1:] <= "\udbff":
            text = self.whole(text)
        if text:
            self.texts.append(text)
            if not self.assembly:
                if self.is_thinking:
                    self.end_thought()
                self.show(text)

    def whole(self, text: str) -> str:
        text = self.half + text
        self.half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return writable(text.removesuffix(self.half)) if self.half else writable(text)

    def hear_thought(self, text: str) -> None:
        self.thoughts.append(text)
        if self.assembly:
            return  # told with the call
        if self.mode == "separate":
            self.emit(ReasoningToken(text))
        elif self.mode == "inline":
            if not self.is_thinking:
                self.is_thinking = True
                self.show("<think>")
            self.show(text)

    def end_thought(self) -> None:
        if self.is_thinking:
            self.is_thinking = False
            self.show("</think>")

    def show(self, text: str) -> None:
        if self.mode == "inline":
            self.shown.append(text)
        self.emit(Token(text))

    def reply(self, taken_ids: set[str]) -> Reply:
        if self.half:
            self.half, half = "", self.half
            self.hear_text(writable(half))
        self.end_thought()
        calls = self.assembly.calls(cut_off=self.finish_reason == "length", taken_ids=taken_ids)
        content = writable("".join(self.texts))
        if self.assembly and not calls:
            self.show_withheld(content)
        return Reply(
            content=content,
            reasoning=writable("".join(self.thoughts)),
            calls=calls,
            finish_reason=self.finish_reason,
            shown="".join(self.shown) if self.mode == "inline" else None,
        )

    def show_withheld(self, content: str) -> None:
        """Show the text that was held back for a call that came to nothing."""
        if self.withheld_from < len(content):
            self.show(content[self.withheld_from :])
