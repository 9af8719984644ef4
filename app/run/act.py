"""Executes the calls of one reply side by side, and answers each, in call order.

Every call that was announced is ended by exactly one result or error, also when the run is cancelled or breaks.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import anyio

from app.domain.events import Notice, ToolCalled, ToolEta, ToolFailed, ToolProgress, ToolSucceeded
from app.domain.limits import RunLimits
from app.domain.messages import UNKNOWN_ETA_SECONDS, Message, Progress, Reply, Tool, ToolCall, ToolOutcome
from app.domain.ports import Emit, Toolbox
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
class Hands:
    """What acting needs, for a whole run; remembers what was called."""

    toolbox: Toolbox
    emit: Emit
    limits: RunLimits
    images: Sequence[str] = ()
    hides_reasoning: bool = False
    memories: dict[str, _Memory] = field(default_factory=dict[str, _Memory])
    called: list[str] = field(default_factory=list[str])
    """Names of the tools that ran, in order of their first call."""

    async def answer_calls(self, reply: Reply) -> Answers:
        """Announce all calls, run them at most `calls_at_once` at a time, return their answers in call order."""
        tools = [self.toolbox.find(call.name) for call in reply.calls]
        self._announce(reply, tools)
        outcomes: dict[str, ToolOutcome] = {}
        limiter = anyio.CapacityLimiter(self.limits.calls_at_once)
        begun = anyio.current_time()

        async def run(position: int) -> None:
            call, tool = reply.calls[position], tools[position]
            async with limiter:
                started = anyio.current_time()
                try:
                    outcome = await self._outcome(call, tool, position)
                except Exception:  # noqa: BLE001  # one bad call must not take its siblings and the run with it
                    _log.exception("call of a tool broke")
                    outcome = _refusal("tool_failed", "The call failed because of a fault in this service.")
                outcomes[call.uuid] = outcome
                self._report(call, outcome, duration=anyio.current_time() - started)

        try:
            async with anyio.create_task_group() as group:
                for position in range(len(reply.calls)):
                    group.start_soon(run, position)
        finally:
            for call in reply.calls:
                if call.uuid not in outcomes:
                    took = anyio.current_time() - begun
                    self.emit(ToolFailed(call.uuid, "The run ended before the call did.", "cancelled", took))
        ordered = [outcomes[call.uuid] for call in reply.calls]
        messages = tuple(tool_message(call, outcome.text) for call, outcome in zip(reply.calls, ordered, strict=True))
        return Answers(messages, pictures_from_outputs(output for outcome in ordered for output in outcome.outputs))

    def _announce(self, reply: Reply, tools: Sequence[Tool | None]) -> None:
        for position, (call, tool) in enumerate(zip(reply.calls, tools, strict=True)):
            first = position == 0
            self.emit(
                ToolCalled(
                    call,
                    tool,
                    parameters=call.arguments or {},
                    reasoning=reply.reasoning if first and reply.reasoning and not self.hides_reasoning else None,
                    content=reply.content if first and reply.content else None,
                )
            )
            self.emit(ToolEta(call.uuid, tool.eta_seconds if tool else UNKNOWN_ETA_SECONDS))

    async def _outcome(self, call: ToolCall, tool: Tool | None, position: int) -> ToolOutcome:
        if position >= self.limits.calls_per_round:
            return _refusal("skipped", _TOO_MANY)
        if tool is None:
            names = ", ".join(known.spec.name for known in self.toolbox.tools) or "none"
            return _refusal("tool_unknown", f"There is no tool named {call.name[:200]!r}. The tools are: {names}.")
        if call.fault is not None or call.arguments is None:
            return _refusal("tool_arguments_invalid", call.fault or "The arguments cannot be read.")
        key = json.dumps([tool.server, tool.name, call.arguments], sort_keys=True)
        memory = self.memories.get(key)
        if memory is not None and memory.count >= self.limits.identical_calls:
            return self._repeated(call, tool, memory)
        if tool.spec.name not in self.called:
            self.called.append(tool.spec.name)
        arguments = resolve_images(call.arguments, self.images)
        outcome = await self.toolbox.call(tool, arguments, partial(self._progress, call.uuid))
        self._remember(key, outcome.text)
        return outcome

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
        self.emit(ToolProgress(uuid, progress.progress, progress.total, progress.message))

    def _report(self, call: ToolCall, outcome: ToolOutcome, *, duration: float) -> None:
        told: list[str] = []
        if outcome.omitted_characters:
            told.append(
                f"The model was given a shortened result: {outcome.omitted_characters} characters were left out."
            )
        if outcome.is_cut_for_reader:
            told.append("The result is too large to be shown whole: some of it was left out.")
        if told:
            self.emit(Notice("output_truncated", " ".join(told), {"uuid": call.uuid}))
        if outcome.error_code is not None:
            self.emit(ToolFailed(call.uuid, outcome.message or outcome.text, outcome.error_code, duration))
        else:
            self.emit(ToolSucceeded(call.uuid, call.name, call.arguments or {}, outcome.outputs, duration))


def _refusal(code: str, text: str) -> ToolOutcome:
    return ToolOutcome(text=f"Error: {text}", error_code=code, message=text)
