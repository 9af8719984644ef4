"""Executes the calls of one reply side by side, and answers each, in call order.

Every call that was announced is ended by exactly one result or error, also when the run is cancelled or breaks. Where a
person is to be asked first, all are asked at once: what waits for an answer takes no other call's place.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import anyio

from app.domain.events import Notice, ToolCalled, ToolEta, ToolFailed, ToolProgress, ToolSucceeded
from app.domain.jsontypes import JsonObject
from app.domain.limits import RunLimits
from app.domain.messages import UNKNOWN_ETA_SECONDS, Message, Progress, Reply, Tool, ToolCall, ToolOutcome
from app.domain.ports import Caller, Emit, Toolbox
from app.run.approval import Allowed, Approvals, with_edit_told
from app.run.images import pictures_from_outputs, resolve_images
from app.run.talk import tool_message

_log = logging.getLogger(__name__)

_TOO_MANY = (
    "More calls were made in one reply than are allowed, so this one was not executed. Make fewer calls at once."
)


@dataclass(slots=True)
class _Memory:
    """How often a call was made with the same arguments and gave the same text."""

    text: str
    count: int = 1


class Answers(NamedTuple):
    """What the calls of one reply came to."""

    messages: tuple[Message, ...]
    """One for each call, in call order."""
    pictures: tuple[str, ...]
    """As `data:` URLs."""


@dataclass(slots=True)
class _Act:
    """One call of a reply."""

    call: ToolCall
    tool: Tool | None
    arguments: JsonObject
    """What it is made with: the model's, or what a person put in their place."""
    begun: float | None = None
    outcome: ToolOutcome | None = None

    @property
    def duration(self) -> float:
        """Seconds since it was made; what it waited for before does not count."""
        return 0.0 if self.begun is None else anyio.current_time() - self.begun


@dataclass(slots=True)
class Hands:
    """What acting needs, for a whole run; remembers what was called."""

    toolbox: Toolbox
    emit: Emit
    limits: RunLimits
    images: Sequence[str] = ()
    hides_reasoning: bool = False
    approvals: Approvals | None = None
    """None where nobody is asked before calls."""
    acts: list[_Act] = field(default_factory=list[_Act])
    """The calls of the latest reply."""
    memories: dict[str, _Memory] = field(default_factory=dict[str, _Memory])
    called: list[str] = field(default_factory=list[str])
    """Names of the tools that ran, in order of their first call."""

    async def answer_calls(self, reply: Reply) -> Answers:
        """Announce all calls, run them at most `calls_at_once` at a time, return their answers in call order."""
        acts = self.acts = [_Act(call, self.toolbox.find(call.name), call.arguments or {}) for call in reply.calls]
        self._announce(reply, acts)
        limiter = anyio.CapacityLimiter(self.limits.calls_at_once)

        async def run(position: int) -> None:
            act = acts[position]
            try:
                outcome = await self._outcome(act, position, limiter)
            except Exception:  # noqa: BLE001  # one bad call must not take its siblings and the run with it
                _log.exception("call of a tool broke")
                outcome = _refusal("tool_failed", "The call failed because of a fault in this service.")
            act.outcome = outcome
            self._report(act, outcome)

        try:
            async with anyio.create_task_group() as group:
                for position in range(len(acts)):
                    group.start_soon(run, position)
        finally:
            for act in acts:
                if act.outcome is None:
                    act.outcome = _stopped()
                    self.emit(ToolFailed(act.call.uuid, act.outcome.message, "cancelled", act.duration))
        # What the calls have changed about the tools is to be known when the model is asked again.
        await self.toolbox.settle()
        outputs = (output for act in acts if act.outcome for output in act.outcome.outputs)
        return Answers(self.answered(reply), pictures_from_outputs(outputs))

    def answered(self, reply: Reply) -> tuple[Message, ...]:
        """Answer the calls of the reply that was acted on last, as far as they came, in call order."""
        outcomes = {act.call.uuid: act.outcome for act in self.acts}
        return tuple(tool_message(call, (outcomes.get(call.uuid) or _stopped()).text) for call in reply.calls)

    def _announce(self, reply: Reply, acts: Sequence[_Act]) -> None:
        for position, act in enumerate(acts):
            first = position == 0
            self.emit(
                ToolCalled(
                    act.call,
                    act.tool,
                    parameters=act.arguments,
                    reasoning=reply.reasoning if first and reply.reasoning and not self.hides_reasoning else None,
                    content=reply.content if first and reply.content else None,
                )
            )
            eta = self.toolbox.expected_seconds(act.tool) if act.tool else UNKNOWN_ETA_SECONDS
            self.emit(ToolEta(act.call.uuid, eta))

    async def _outcome(self, act: _Act, position: int, limiter: anyio.CapacityLimiter) -> ToolOutcome:
        call, tool = act.call, act.tool
        if position >= self.limits.calls_per_round:
            return _refusal("skipped", _TOO_MANY)
        if tool is None:
            names = ", ".join(known.spec.name for known in self.toolbox.tools) or "none"
            return _refusal("tool_unknown", f"There is no tool named {call.name[:200]!r}. The tools are: {names}.")
        if call.fault is not None or call.arguments is None:
            return _refusal("tool_arguments_invalid", call.fault or "The arguments cannot be read.")
        memory = self._worn_out(tool, call.arguments)
        if memory is not None:
            return self._repeated(call, tool, memory)
        allowed = Allowed(call.arguments) if self.approvals is None else await self.approvals.judge(call, tool)
        if isinstance(allowed, ToolOutcome):
            return allowed
        act.arguments = allowed.arguments
        async with limiter:
            return await self._made(act, tool, allowed)

    async def _made(self, act: _Act, tool: Tool, allowed: Allowed) -> ToolOutcome:
        """Make a call that may be made."""
        memory = self._worn_out(tool, allowed.arguments)
        if memory is not None and not allowed.is_edited:  # a person who writes the arguments means it
            return self._repeated(act.call, tool, memory)
        if self.approvals and (objection := await self.approvals.objection(tool, by_person=allowed.by_person)):
            return objection
        act.begun = anyio.current_time()
        if tool.spec.name not in self.called:
            self.called.append(tool.spec.name)
        uuid = act.call.uuid
        arguments = resolve_images(allowed.arguments, self.images)
        outcome = await self.toolbox.call(tool, arguments, Caller(uuid, partial(self._progress, uuid)))
        self._remember(_key(tool, allowed.arguments), outcome.text)
        return with_edit_told(outcome, allowed.arguments) if allowed.is_edited else outcome

    def _worn_out(self, tool: Tool, arguments: JsonObject) -> _Memory | None:
        """Find the memory of a call that was made so often with the same result that it is not made again."""
        memory = self.memories.get(_key(tool, arguments))
        return memory if memory is not None and memory.count >= self.limits.identical_calls else None

    def _remember(self, key: str, text: str) -> None:
        memory = self.memories.get(key)
        if memory is not None and memory.text == text:
            memory.count += 1
        else:
            self.memories[key] = _Memory(text)

    def _repeated(self, call: ToolCall, tool: Tool, memory: _Memory) -> ToolOutcome:
        about = {"uuid": call.uuid, "server": tool.server, "tool": tool.name}
        self.emit(
            Notice("repeated_call", f"{tool.name} was called again with the same arguments; it was not run.", about)
        )
        text = (
            f"This exact call was made {memory.count} times and gave the same result each time, so it was not executed "
            f"again. Use the result you have, or call with other arguments."
        )
        return _refusal("skipped", text)

    def _progress(self, uuid: str, progress: Progress) -> None:
        self.emit(ToolProgress(uuid, progress.progress, progress.total, progress.message, progress.eta))

    def _report(self, act: _Act, outcome: ToolOutcome) -> None:
        call = act.call
        told: list[str] = []
        if outcome.omitted_characters:
            told.append(
                f"The model was given a shortened result: {outcome.omitted_characters} characters were left out."
            )
        if outcome.is_cut_for_reader:
            told.append("The result is too large to be shown whole: some of it was left out.")
        if told:
            self.emit(Notice("output_truncated", " ".join(told), {"uuid": call.uuid}))
        if outcome.hidden_characters:
            said = f"Characters that nobody sees were taken out of the result: {outcome.hidden_characters}."
            self.emit(Notice("hidden_characters", said, {"uuid": call.uuid, "count": outcome.hidden_characters}))
        if outcome.error_code is not None:
            self.emit(ToolFailed(call.uuid, outcome.message or outcome.text, outcome.error_code, act.duration))
        else:
            self.emit(ToolSucceeded(call.uuid, call.name, act.arguments, outcome.outputs, act.duration))


def _stopped() -> ToolOutcome:
    text = "The run ended before the call did."
    return ToolOutcome(text=f"Error: {text}", error_code="cancelled", message=text)


def _refusal(code: str, text: str) -> ToolOutcome:
    return ToolOutcome(text=f"Error: {text}", error_code=code, message=text)


def _key(tool: Tool, arguments: JsonObject) -> str:
    return json.dumps([tool.server, tool.name, arguments], sort_keys=True)
