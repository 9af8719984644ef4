"""Scripted twins of the two ports that the heart knows: a model that says what it is told, tools that are functions."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio

from app.domain.jsontypes import JsonObject
from app.domain.messages import CallFragment, Delta, Finish, Progress, TextDelta, Tool, ToolOutcome, ToolSpec
from app.domain.ports import Ask, Tell

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

    def __init__(self, functions: Mapping[str, ToolFunction] | None = None) -> None:
        self.functions = dict(functions or {})
        self.called: list[tuple[str, JsonObject]] = []

    @property
    def tools(self) -> Sequence[Tool]:
        specs = [ToolSpec(name, f"does {name}", {"type": "object", "properties": {}}) for name in self.functions]
        return [Tool(spec, "box", spec.name) for spec in specs]

    def find(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.spec.name == name), None)

    async def call(self, tool: Tool, arguments: JsonObject, on_progress: Callable[[Progress], None]) -> ToolOutcome:
        self.called.append((tool.name, arguments))
        return await self.functions[tool.name](arguments, on_progress)


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
