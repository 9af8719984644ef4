"""Hears one streamed reply: text and reasoning are passed on as they come, call fragments are put together.

Nothing is shown after the first call delta of a round. What was held back for calls that then are not made (there were
none after all, or the round has no tools) is shown by `Ears.all_shown`. A call that takes a while to write is told of
as soon as its name is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from app.domain.errors import ContextLengthExceeded
from app.domain.events import Notice, ReasoningToken, Token
from app.domain.jsontypes import Json, JsonObject
from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, Reply, TextDelta, Thought, Usage
from app.domain.ports import Ask, ChatModel, Emit
from app.domain.wire import writable
from app.run.assembly import CUT_OFF, CallAssembly
from app.run.context import excess_from_error
from app.run.talk import Talk, call_ids

Reasoning: TypeAlias = Literal["separate", "inline", "hidden"]


@dataclass(slots=True)
class Ears:
    """What listening needs, for a whole run; counts the tokens used."""

    model: ChatModel
    emit: Emit
    reasoning: Reasoning = "separate"
    reasoning_as_answer: bool = False
    """A reply of nothing but reasoning is an answer, and shown as one."""
    usage: Usage | None = None
    _last: "_Hearing | None" = None

    async def hear_within_window(self, talk: Talk, ask: Callable[[], Ask]) -> Reply:
        """Ask; where the conversation is longer than the model takes, once more with shorter tool results.

        Raises:
            RunError: As `hear_reply`.
        """
        try:
            return await self.hear_reply(ask())
        except ContextLengthExceeded as error:
            excess = excess_from_error(str(error))
            if self.content or self.thought or not talk.shorten(excess):
                raise
        self.emit(
            Notice(
                "context_shortened", "The conversation was too long for the model; what tools gave back was shortened."
            )
        )
        return await self.hear_reply(ask())

    async def hear_reply(self, ask: Ask) -> Reply:
        """Ask the model and listen until it has ended.

        Raises:
            RunError: The model could not be asked, or the stream broke. What was passed on stays.
        """
        offered = frozenset(tool.spec.name for tool in ask.tools)
        hearing = self._last = _Hearing(_Voice(self.emit, self.reasoning), offered)
        try:
            async with self.model.stream(ask, self.emit) as batches:
                async for batch in batches:
                    hearing.take(batch)
        finally:
            hearing.end()
            if hearing.usage is not None:
                self.usage = hearing.usage if self.usage is None else self.usage + hearing.usage
        if self.reasoning_as_answer:
            hearing.take_reasoning_as_answer()
        return hearing.reply(call_ids(ask.messages))

    def all_shown(self) -> str:
        """Show what was held back of the last reply, whole or broken off; return all that was shown of it."""
        return self._last.all_shown() if self._last else ""

    @property
    def content(self) -> str:
        """All text of the last reply, also when it broke off."""
        return "".join(self._last.texts) if self._last else ""

    @property
    def thought(self) -> JsonObject:
        """The reasoning of the last reply, in the fields of a message."""
        return self._last.whole_thought() if self._last else {}


@dataclass(slots=True)
class _Voice:
    """Shows text and reasoning in the way that was asked for, and remembers what it showed as text."""

    emit: Emit
    mode: Reasoning
    shown: list[str] = field(default_factory=list[str])
    is_thinking: bool = False

    def say(self, text: str) -> None:
        if self.is_thinking:
            self.end_thought()
        self._show(text)

    def think(self, text: str) -> None:
        if self.mode == "separate":
            self.emit(ReasoningToken(text))
        elif self.mode == "inline":
            if not self.is_thinking:
                self.is_thinking = True
                self._show("<think>")
            self._show(text)

    def end_thought(self) -> None:
        if self.is_thinking:
            self.is_thinking = False
            self._show("</think>")

    def _show(self, text: str) -> None:
        self.shown.append(text)
        self.emit(Token(text))


@dataclass(slots=True)
class _Halves:
    """Joins characters that a provider has split over two deltas."""

    half: str = ""

    def join(self, text: str) -> str:
        if not self.half and not "\ud800" <= text[-1:] <= "\udfff":
            return text
        text = self.half + text
        self.half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return writable(text[:-1] if self.half else text)

    def rest(self) -> str:
        half, self.half = self.half, ""
        return writable(half)


@dataclass(slots=True)
class _Hearing:
    voice: _Voice
    offered: frozenset[str]
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    withheld: list[TextDelta | ReasoningDelta] = field(default_factory=list[TextDelta | ReasoningDelta])
    assembly: CallAssembly = field(default_factory=CallAssembly)
    text_halves: _Halves = field(default_factory=_Halves)
    thought_halves: _Halves = field(default_factory=_Halves)
    finish_reason: str | None = None
    usage: Usage | None = None
    thought: JsonObject = field(default_factory=dict[str, Json])

    def take(self, batch: Sequence[Delta]) -> None:
        for delta in batch:
            if isinstance(delta, TextDelta):
                self.hear_text(self.text_halves.join(delta.text))
            elif isinstance(delta, ReasoningDelta):
                self.hear_thought(self.thought_halves.join(delta.text))
            elif isinstance(delta, CallFragment):
                self.voice.end_thought()
                self.assembly.add(delta)
            elif isinstance(delta, Finish):
                self.finish_reason = delta.reason
            elif isinstance(delta, Thought):
                self.thought = delta.fields
            else:
                self.usage = delta
        if self.assembly and self.offered and self.finish_reason is None:
            self.tell_calls_under_way()

    def tell_calls_under_way(self) -> None:
        for uuid, name in self.assembly.under_way(self.offered):
            about: JsonObject = {"uuid": uuid, "name": name}
            self.voice.emit(Notice("preparing_call", f"The model is writing a call of {name}.", about))

    def hear_text(self, text: str) -> None:
        if text:
            self.texts.append(text)
            if self.assembly:
                self.withheld.append(TextDelta(text))
            else:
                self.voice.say(text)

    def hear_thought(self, text: str) -> None:
        if text:
            self.thoughts.append(text)
            if self.assembly:
                self.withheld.append(ReasoningDelta(text))
            else:
                self.voice.think(text)

    def end(self) -> None:
        """Close what is open; the stream has ended, well or not."""
        self.hear_thought(self.thought_halves.rest())
        self.hear_text(self.text_halves.rest())
        self.voice.end_thought()

    def reply(self, taken_ids: set[str]) -> Reply:
        return Reply(
            content="".join(self.texts),
            reasoning="".join(self.thoughts),
            calls=self.assembly.calls(self.finish_reason, taken_ids=taken_ids),
            finish_reason=self.finish_reason,
            thought=self.whole_thought(),
        )

    def whole_thought(self) -> JsonObject:
        if self.thought or not self.thoughts:
            return self.thought
        return {"reasoning_content": "".join(self.thoughts)}

    def take_reasoning_as_answer(self) -> None:
        """Show the reasoning as the text of a reply that has nothing else."""
        if (
            self.thoughts
            and not self.assembly
            and not "".join(self.texts).strip()
            and self.finish_reason not in CUT_OFF
        ):
            text = "".join(self.thoughts)
            self.texts.append(text)
            self.voice.say(text)

    def all_shown(self) -> str:
        for delta in self.withheld:
            if isinstance(delta, TextDelta):
                self.voice.say(delta.text)
            else:
                self.voice.think(delta.text)
        self.withheld.clear()
        self.voice.end_thought()
        return "".join(self.voice.shown)
