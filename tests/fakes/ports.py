"""Scripted twins of the ports that the heart knows: a model that says what it is told, tools that are functions."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import anyio

from app.domain.errors import InvalidRequest
from app.domain.events import ElicitationAsked, Event, InputResolved, Settler
from app.domain.jsontypes import JsonObject
from app.domain.messages import CallFragment, Delta, Finish, Progress, TextDelta, Tool, ToolOutcome, ToolSpec
from app.domain.ports import Ask, Caller, Tell
from app.domain.questions import InputAnswer

Scripted: TypeAlias = Sequence[Delta | Exception | anyio.Event]
ToolFunction: TypeAlias = Callable[[JsonObject, Callable[[Progress], None]], Awaitable[ToolOutcome]]


class ScriptedModel:
    """Gives its replies one by one; an exception in a reply is raised there, an event is waited for."""

    def __init__(self, *replies: Scripted) -> None:
        self.asks: list[Ask] = []
        self._replies = list(replies)

    def offered(
        self,
        tools: Sequence[Tool],
        tool_choice: str | JsonObject = "auto",  # noqa: ARG002  # the port names it
    ) -> Sequence[Tool]:
        return tools

    @asynccontextmanager
    async def stream(
        self,
        ask: Ask,
        tell: Tell,  # noqa: ARG002  # the port names it
    ) -> AsyncGenerator[AsyncIterator[Sequence[Delta]], None]:
        self.asks.append(ask)
        yield self._batches(self._replies.pop(0))

    async def _batches(self, reply: Scripted) -> AsyncIterator[Sequence[Delta]]:
        for item in reply:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, anyio.Event):
                await item.wait()
            else:
                yield [item]


class ScriptedToolbox:
    """Tools that are functions; all on a server named `box`."""

    has_servers = True

    def __init__(
        self,
        functions: Mapping[str, ToolFunction] | None = None,
        *,
        hints: Mapping[str, JsonObject] | None = None,
        fault: Callable[[JsonObject], str | None] = lambda _arguments: None,
    ) -> None:
        self.functions = dict(functions or {})
        self.hints = dict(hints or {})
        self.versions: Counter[str] = Counter()
        """Count one up, and the tool of that name is another one."""
        self.changed: set[str] = set()
        """Names of tools that their server has changed without saying so."""
        self.called: list[tuple[str, JsonObject]] = []
        self.uuids: list[str] = []
        """Of the calls in `called`."""
        self.asked_again: list[str] = []
        """Names of the tools whose server was asked whether they are unchanged."""
        self.settled = 0
        self._fault = fault

    @property
    def tools(self) -> Sequence[Tool]:
        return [self._tool(name) for name in self.functions]

    def _tool(self, name: str) -> Tool:
        spec = ToolSpec(name, f"does {name}", {"type": "object", "properties": {}})
        return Tool(spec, "box", name, self.hints.get(name, {}), f"{name} {self.versions[name]}".encode())

    def find(self, name: str) -> Tool | None:
        return self._tool(name) if name in self.functions else None

    async def call(self, tool: Tool, arguments: JsonObject, caller: Caller) -> ToolOutcome:
        self.called.append((tool.name, arguments))
        self.uuids.append(caller.uuid)
        return await self.functions[tool.name](arguments, caller.on_progress)

    def expected_seconds(self, tool: Tool) -> float:
        return float(len(tool.name))

    def fitted(self, tool: Tool, arguments: JsonObject) -> JsonObject | str:  # noqa: ARG002  # the port names it
        return self._fault(arguments) or arguments

    async def is_unchanged(self, tool: Tool) -> bool:
        self.asked_again.append(tool.name)
        return tool.name not in self.changed

    async def settle(self) -> None:
        self.settled += 1


def says(text: str, *, gives: Sequence[JsonObject] = ()) -> ToolFunction:
    """Make a tool that always answers the same."""

    async def tool(_arguments: JsonObject, _on_progress: Callable[[Progress], None]) -> ToolOutcome:
        return ToolOutcome(text=text, outputs=tuple(gives) or ({"text": text, "content": []},))

    return tool


def calls(*named: tuple[str, str], finish: str = "tool_calls") -> list[Delta]:
    """Make a reply that calls tools: pairs of name and arguments."""
    fragments = [CallFragment(at, f"id{at}", name, arguments) for at, (name, arguments) in enumerate(named)]
    return [*fragments, Finish(finish)]


def text(*tokens: str, finish: str = "stop") -> list[Delta]:
    """Make a reply of plain text."""
    return [*map(TextDelta, tokens), Finish(finish)]


@dataclass(frozen=True)
class Riddle:
    """A question that takes any answer but one with a reason, and adds to its content."""

    server: str = "box"

    def asked(self, input_id: str, expires_at: str) -> Event:
        return ElicitationAsked(input_id, self.server, {"mode": "form", "message": "?"}, expires_at)

    def resolved(self, input_id: str, answer: InputAnswer, by: Settler) -> Event:
        return InputResolved("elicitation", input_id, answer.action, by)

    def fitted(self, answer: InputAnswer) -> InputAnswer:
        if answer.reason is not None:
            raise InvalidRequest("reason: no", param="reason")
        return replace(answer, content={**(answer.content or {}), "fitted": True})
