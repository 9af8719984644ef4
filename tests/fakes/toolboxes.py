"""The toolbox room opened as a run opens it, against whatever servers a test stands up."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import anyio

from app.domain.events import Event, Notice, ServerReport, Settler
from app.domain.messages import Progress, ToolOutcome
from app.domain.ports import Caller, Toolbox
from app.domain.questions import CANCELLED, InputAnswer, Question
from app.domain.spec import RunSpec, ServerSpec
from app.toolbox.admission import Policy
from app.toolbox.box import McpServers, open_servers
from app.toolbox.line import ConnectionLimits
from app.toolbox.options import Options

QUICK = ConnectionLimits(connect_seconds=2.0, probe_seconds=0.2, list_seconds=2.0, call_seconds=5.0, close_seconds=1.0)
LOCAL = Options(policy=Policy(allow_insecure_urls=True), connection=QUICK)


@dataclass
class ScriptedTicket:
    """One question that was put to a `ScriptedPerson`."""

    question: Question
    person: "ScriptedPerson"
    withdrawn_by: Settler | None = None
    _answer: InputAnswer | None = None
    _settled: anyio.Event = field(default_factory=anyio.Event)

    def give(self, answer: InputAnswer) -> None:
        self._answer = self.question.fitted(answer)
        self._settled.set()

    async def answer(self) -> InputAnswer:
        await self._settled.wait()
        return self._answer or CANCELLED

    def withdraw(self, by: Settler) -> None:
        if not self._settled.is_set():
            self.withdrawn_by = by
            self._settled.set()


@dataclass
class ScriptedPerson:
    """Answers each question at once with what `reply` gives, or not at all where it gives None."""

    reply: Callable[[Question], InputAnswer | None] = lambda _question: None
    tickets: list[ScriptedTicket] = field(default_factory=list[ScriptedTicket])

    def ask(self, question: Question) -> ScriptedTicket:
        ticket = ScriptedTicket(question, self)
        self.tickets.append(ticket)
        answer = self.reply(question)
        if answer is not None:
            ticket.give(answer)
        return ticket


@dataclass
class OpenBox:
    """A toolbox, and what was told while it was opened."""

    box: Toolbox
    events: list[Event] = field(default_factory=list[Event])
    uuids: list[str] = field(default_factory=list[str])
    """Of the calls that were made."""

    @property
    def reports(self) -> dict[str, ServerReport]:
        return {event.server: event for event in self.events if isinstance(event, ServerReport)}

    @property
    def notices(self) -> list[Notice]:
        return [event for event in self.events if isinstance(event, Notice)]

    @property
    def report(self) -> ServerReport:
        (report,) = self.reports.values()
        return report

    @property
    def names(self) -> list[str]:
        return [tool.spec.name for tool in self.box.tools]

    async def call(
        self, name: str, on_progress: Callable[[Progress], None] = lambda _progress: None, /, **arguments: Any
    ) -> ToolOutcome:
        tool = self.box.find(name)
        assert tool is not None, f"no tool {name} in {self.names}"
        self.uuids.append(str(uuid4()))
        return await self.box.call(tool, arguments, Caller(self.uuids[-1], on_progress))


def operator(url: str, name: str = "Fake", **fields: Any) -> ServerSpec:
    return ServerSpec(name, url, "operator", **fields)


def user(url: str, name: str = "Fake", **fields: Any) -> ServerSpec:
    return ServerSpec(name, url, "user", **fields)


def run_spec(*servers: ServerSpec, **fields: Any) -> RunSpec:
    return RunSpec(messages=(), servers=servers, **fields)


@asynccontextmanager
async def open_run(
    servers: McpServers, *specs: ServerSpec, person: ScriptedPerson | None = None, **fields: Any
) -> AsyncGenerator[OpenBox]:
    """Open the box of one run; an interactive one where there is a person."""
    events: list[Event] = []
    spec = run_spec(*specs, interactive=person is not None, **fields)
    async with servers.open_box(spec, events.append, person or ScriptedPerson()) as box:
        yield OpenBox(box, events)


@asynccontextmanager
async def open_lone_run(*specs: ServerSpec, options: Options = LOCAL, **limits: Any) -> AsyncGenerator[OpenBox]:
    """Open the room for one run alone. `limits` are the connections' that differ from `QUICK`."""
    options = replace(options, connection=replace(options.connection, **limits))
    async with open_servers(options) as servers, open_run(servers, *specs) as run:
        yield run
