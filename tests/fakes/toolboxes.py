"""The toolbox room opened as a run opens it, against whatever servers a test stands up."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.events import Event, Notice, ServerReport
from app.domain.messages import Progress, ToolOutcome
from app.domain.ports import Toolbox
from app.domain.spec import RunSpec, ServerSpec
from app.toolbox.admission import Policy
from app.toolbox.box import McpServers, Options, open_servers
from app.toolbox.server import ConnectionLimits

QUICK = ConnectionLimits(connect_seconds=2.0, probe_seconds=0.2, list_seconds=2.0, call_seconds=5.0, close_seconds=1.0)
LOCAL = Options(policy=Policy(allow_insecure_urls=True), connection=QUICK)


@dataclass
class OpenBox:
    """A toolbox, and what was told while it was opened."""

    box: Toolbox
    events: list[Event] = field(default_factory=list[Event])

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
        return await self.box.call(tool, arguments, on_progress)


def operator(url: str, name: str = "Fake", **fields: Any) -> ServerSpec:
    return ServerSpec(name, url, "operator", **fields)


def user(url: str, name: str = "Fake", **fields: Any) -> ServerSpec:
    return ServerSpec(name, url, "user", **fields)


def run_spec(*servers: ServerSpec, **fields: Any) -> RunSpec:
    return RunSpec(messages=(), servers=servers, **fields)


@asynccontextmanager
async def open_run(servers: McpServers, *specs: ServerSpec, **fields: Any) -> AsyncGenerator[OpenBox]:
    """Open the box of one run."""
    events: list[Event] = []
    async with servers.open_box(run_spec(*specs, **fields), events.append) as box:
        yield OpenBox(box, events)


@asynccontextmanager
async def open_lone_run(*specs: ServerSpec, options: Options = LOCAL, **limits: Any) -> AsyncGenerator[OpenBox]:
    """Open the room for one run alone. `limits` are the connections' that differ from `QUICK`."""
    options = replace(options, connection=replace(options.connection, **limits))
    async with open_servers(options) as servers, open_run(servers, *specs) as run:
        yield run
