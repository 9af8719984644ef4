"""Two thousand calls through the real service while connections are cut, servers restart, and callers leave."""

import asyncio
import contextlib
import json
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import anyio
import pytest
from httpx_sse import EventSource

from tests.fakes.mcp_servers import Kind, wait_until
from tests.fakes.service import Event, Service, open_service, operator_server
from tests.fakes.upstream import Answer, Request, call, end, open_upstream, stream, text
from tests.soak.servers import TOOLS, Station, open_station

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(240)]

SEED = int(os.environ.get("SOAK_SEED", "1"))
"""Another one may be given, to look for what this one does not find."""
CALLS = 2000
AT_ONCE = 12
"""Runs side by side."""
RUNS_PER_BLOW = 10
"""A server is restarted or its connections are cut whenever so many runs have ended."""
CUT_SHARE = 0.04
KINDS: tuple[Kind, ...] = ("modern", "legacy", "legacy-stateless", "sse")

Reader: TypeAlias = Literal["stays", "cancels", "leaves", "returns"]


@dataclass(frozen=True)
class Act:
    """One call of the model."""

    number: int
    kind: Kind
    tool: str


@dataclass
class Plan:
    """What one run does and what its reader does."""

    rounds: list[list[Act]]
    reader: Reader
    patience: int
    """After so many events a reader that does not stay acts."""
    run_id: str = ""

    @property
    def acts(self) -> list[Act]:
        return [act for round_ in self.rounds for act in round_]


@dataclass
class Soak:
    """All that takes part."""

    service: Service
    stations: list[Station]
    plans: list[Plan]
    rng: random.Random
    ended: int = 0

    async def work(self, waiting: list[Plan]) -> None:
        """Carry out runs until none waits; strike a server now and then."""
        while waiting:
            await self.carry_out(waiting.pop())
            self.ended += 1
            if self.ended % RUNS_PER_BLOW == 0:
                await self.strike()

    async def strike(self) -> None:
        station = self.rng.choice(self.stations)
        if self.rng.random() < 0.5:
            station.cut()
        else:
            await station.restart()

    async def carry_out(self, plan: Plan) -> None:
        messages = [{"role": "user", "content": str(self.plans.index(plan))}]
        resumable = plan.reader == "returns"
        async with self.service.streaming(model="m", messages=messages, resumable=resumable) as (response, source):
            plan.run_id = response.headers["X-Run-Id"]
            async for event in told(source):
                if plan.reader != "stays" and int(event.id) >= plan.patience:
                    if plan.reader != "cancels":
                        break
                    await self.service.client.post(f"/v1/runs/{plan.run_id}/cancel")
        if plan.reader == "returns":
            await self.replay(plan, after=plan.patience)

    async def replay(self, plan: Plan, after: int = 0) -> list[Event]:
        """Read a run's events from the record, to their end."""
        url, headers = f"/v1/runs/{plan.run_id}/events", {"Last-Event-ID": str(after)}
        async with self.service.client.stream("GET", url, headers=headers) as response:
            nothing_follows = response.status_code == 204
            return [] if nothing_follows else [event async for event in told(EventSource(response))]


async def told(source: EventSource) -> AsyncGenerator[Event]:
    """Read events. The library also makes some of what is none: of a time to reconnect, and of comments."""
    async for event in source.aiter_sse():
        if event.data:
            yield Event(event.id, event.event, json.loads(event.data))


def made_plans(rng: random.Random, numbers: Sequence[int]) -> list[Plan]:
    """Make plans that call as many tools as there are numbers."""
    plans: list[Plan] = []
    while numbers:
        size = rng.randint(1, 9)
        taken, numbers = numbers[:size], numbers[size:]
        acts = [Act(number, rng.choice(KINDS), rng.choices(TOOLS, (4, 6, 2, 1, 1))[0]) for number in taken]
        at = rng.randint(0, len(acts))
        reader: Reader = rng.choices(("stays", "cancels", "leaves", "returns"), (12, 2, 2, 1))[0]
        plans.append(Plan([acts for acts in (acts[:at], acts[at:]) if acts], reader, rng.randint(1, 12)))
    return plans


def made_script(plans: Sequence[Plan]) -> Any:
    def script(request: Request) -> Answer:
        messages: list[Any] = request.json["messages"]
        plan = plans[int(next(message["content"] for message in messages if message["role"] == "user"))]
        done = sum(bool(message.get("tool_calls")) for message in messages)
        if done == len(plan.rounds):
            return stream(text("Done."), end())
        chunks = [
            call(at, f"c{act.number}", f"{act.kind.replace('-', '_')}_{act.tool}", json.dumps({"number": act.number}))
            for at, act in enumerate(plan.rounds[done])
        ]
        return stream(*chunks, end("tool_calls"))

    return script


@asynccontextmanager
async def open_soak(plans: list[Plan], rng: random.Random, stations: list[Station]) -> AsyncGenerator[Soak]:
    servers = [operator_server(station.kind, station.url) for station in stations]
    async with (
        open_upstream(made_script(plans)) as upstream,
        open_service(upstream, extra_servers=servers, mcp_tool_timeout_ms=5000, mcp_list_wait_ms=2000) as service,
    ):
        yield Soak(service, stations, plans, rng)


async def test_nothing_is_left_behind_or_done_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    rng = random.Random(SEED)  # noqa: S311  # no keys are made of it
    calm = Plan([[Act(CALLS + at, kind, "once") for at, kind in enumerate(KINDS)]], "stays", 0)
    plans = [*made_plans(rng, range(CALLS)), calm]
    async with AsyncExitStack() as stack:
        stations = [await stack.enter_async_context(open_station(kind, SEED)) for kind in KINDS]
        async with open_soak(made_plans(rng, range(2 * CALLS, 2 * CALLS + 10)), rng, stations) as soak:
            # What libraries keep once they were used is there before the counting begins.
            await soak.work(soak.plans.copy())
        await wait_until(lambda: not any(station.connections for station in stations))
        files, tasks = open_files(), asyncio.all_tasks()
        async with open_soak(plans, rng, stations) as soak:
            for station in stations:
                station.cut_share = CUT_SHARE
            async with anyio.create_task_group() as group:
                waiting = plans[-2::-1]
                for _ in range(AT_ONCE):
                    group.start_soon(soak.work, waiting)
            for station in stations:
                station.cut_share = 0.0
            await wait_until(lambda: not soak.service.app.state.doors.journal.running, 20)
            await soak.carry_out(calm)
            replays = [await soak.replay(plan) for plan in plans]
        with contextlib.suppress(TimeoutError):
            await wait_until(lambda: asyncio.all_tasks() <= tasks and open_files() <= files, 10)
        assert [str(task) for task in asyncio.all_tasks() - tasks] == []
        assert open_files() <= files
        assert [station.connections for station in stations] == [0, 0, 0, 0]
        assert [station.left_sessions for station in stations] == [[], [], [], []]
    for plan, replay in zip(plans, replays, strict=True):
        check_events(plan, replay)
    check_executions(plans, replays, stations)
    assert [event.data for event in replays[-1] if event.name == "tool/error"] == []
    assert [event.name for event in replays[-1]].count("tool/result") == len(KINDS)
    assert not [record for record in caplog.records if record.name.startswith("app")]


def open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208  # Path.iterdir opens one more


def check_events(plan: Plan, replay: Sequence[Event]) -> None:
    """Events are numbered without gaps, every call has one end, and the run has one, which is last."""
    assert [event.id for event in replay] == [str(number) for number in range(1, len(replay) + 1)]
    called = [event.data["uuid"] for event in replay if event.name == "tool/call"]
    ended = [event.data["uuid"] for event in replay if event.name in ("tool/result", "tool/error")]
    assert sorted(called) == sorted(ended)
    ends = [event for event in replay if event.name == "status" and event.data["status"] in ("finished", "error")]
    assert len(ends) == 1
    assert [(event.name, event.data) for event in replay[int(ends[0].id) :]] == []
    if plan.reader == "stays":
        assert replay[-1].data["outcome"] == "completed"
        assert len(called) == len(plan.acts)


def check_executions(plans: Sequence[Plan], replays: Sequence[Sequence[Event]], stations: Sequence[Station]) -> None:
    """What may not be repeated was not; what has a result was done; and all this was not for want of trouble."""
    executed = sum((station.executed for station in stations), Counter[int]())
    twice = [act for plan in plans for act in plan.acts if act.tool != "look" and executed[act.number] > 1]
    assert twice == []
    done = [
        event.data["result"]["call"]["parameters"]["number"]
        for replay in replays
        for event in replay
        if event.name == "tool/result"
    ]
    assert [number for number in done if not executed[number]] == []
    assert len(done) > CALLS / 2
    assert min(station.cuts for station in stations) > 0
    assert min(station.restarts for station in stations) > 0
