"""Runs of the real service with published MCP servers, in each era and over each transport that they offer."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import anyio.to_thread
import pytest

from tests.fakes.raw_mcp import http_reply, open_raw_mcp
from tests.fakes.service import Event, Run, Service, events, open_service
from tests.fakes.upstream import Answer, FakeUpstream, Request, call, end, open_upstream, stream, text
from tests.published.conftest import Published, Transport

# The first test waits for the installation.
pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(300)]

Era: TypeAlias = Literal["modern", "legacy"]

TRANSPORTS = {"http": "streamable-http", "sse": "sse"}
VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}
WAYS: list[tuple[Transport, Era]] = [("http", "modern"), ("http", "legacy"), ("sse", "modern"), ("sse", "legacy")]
AWKWARD: list[tuple[str, Transport, Era]] = [
    *(("awkward", transport, era) for transport, era in WAYS),
    ("awkward-stateless", "http", "legacy"),
]


@dataclass
class Row:
    """A call and what comes of it: a text, else an error that says something."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    says: str = ""
    structured: Any = None
    blocks: list[str] = field(default_factory=lambda: ["text"])
    fails: str | None = None


@asynccontextmanager
async def open_talk(rows: Sequence[Row]) -> AsyncGenerator[tuple[Service, FakeUpstream]]:
    """The service and a model that makes these calls one after another in each of its runs."""

    def script(request: Request) -> Answer:
        done = sum(message["role"] == "tool" for message in request.json["messages"])
        if done == len(rows):
            return stream(text("Done."), end())
        row = rows[done]
        return stream(call(0, f"c{done}", row.tool, json.dumps(row.arguments)), end("tool_calls"))

    async with open_upstream(script) as upstream:
        async with open_service(upstream, mcp_allow_insecure_urls=True) as service:
            yield service, upstream


def entry_of(published: Published, name: str, transport: Transport, era: Era) -> dict[str, Any]:
    # A modern server is found out; the older era of one that speaks both has to be asked for.
    protocol = "auto" if era == "modern" else "legacy"
    url = published.url(name, transport)
    return {"name": "box", "url": url, "protocol": protocol, "blocked_tools": ["grown_*"]}


async def is_each_tool_called(published: Published, server: tuple[str, Transport, Era], rows: Sequence[Row]) -> Run:
    """Check a server, have each of its tools called, and hold what came against the rows."""
    name, transport, era = server
    entry = entry_of(published, name, transport, era)
    async with open_talk(rows) as (service, upstream):
        check = (await service.client.post("/v1/servers/check", json=entry)).json()
        run = await service.run(model="m", servers=[entry], max_rounds=50)
    assert check["reachable"], check
    told = (check["era"], check["transport"], check["protocolVersion"])
    assert told == (era, TRANSPORTS[transport], VERSIONS[era])
    assert {tool["name"] for tool in check["tools"]} == {row.tool for row in rows}
    assert run.named("server")[0]["tools"] == [tool["name"] for tool in check["tools"]]
    assert run.last["outcome"] == "completed"
    ends = [event for event in run.events if event.name in ("tool/result", "tool/error")]
    told_model = [message["content"] for message in upstream.asks[-1].json["messages"] if message["role"] == "tool"]
    for row, event, content in zip(rows, ends, told_model, strict=True):
        check_end(row, event.name, event.data, content)
    return run


def check_end(row: Row, name: str, data: Any, content: str) -> None:
    """Hold the end of one call, and what the model is told of it, against its row."""
    if row.fails is not None:
        assert (name, data.get("code")) == ("tool/error", "tool_failed"), (row.tool, data)
        assert row.fails in data["message"], row.tool
        assert row.fails in content, row.tool
        return
    assert name == "tool/result", (row.tool, data)
    (output,) = data["result"]["outputs"]
    assert row.says in output["text"], row.tool
    assert row.says in content, row.tool
    assert [block["type"] for block in output["content"]] == row.blocks, row.tool
    if row.structured is not None:
        assert output["structured"] == row.structured, row.tool


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_time_is_told_and_converted(published: Published, transport: Transport, era: Era) -> None:
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kolkata"}
    rows = [
        Row("get_current_time", {"timezone": "Europe/Vienna"}, '"timezone": "Europe/Vienna"'),
        Row("convert_time", noon, '"time_difference": "+5.5h"'),
        Row("convert_time", {**noon, "source_timezone": "Nowhere"}, fails="Invalid timezone"),
    ]
    run = await is_each_tool_called(published, ("time", transport, era), rows)
    now, converted = (data["result"]["outputs"][0]["structured"] for data in run.named("tool/result"))
    assert now["timezone"] == "Europe/Vienna"
    assert converted["target"]["datetime"].endswith("17:30:00+05:30")


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_page_is_fetched(published: Published, transport: Transport, era: Era) -> None:
    page = http_reply(200, b"<html><body><h1>A page</h1><p>Hello there.</p></body></html>", "text/html")
    async with open_raw_mcp({"GET": page}) as web:
        rows = [
            Row("fetch", {"url": web.url}, "Hello there."),
            Row("fetch", {"url": web.url, "raw": True}, "<h1>A page</h1>"),
            Row("fetch", {"url": "http://127.0.0.1:9/"}, fails="Failed to fetch"),
        ]
        await is_each_tool_called(published, ("fetch", transport, era), rows)
        assert web.asked["GET"] == 2


async def test_refusal_of_a_private_page_is_an_error(published: Published) -> None:
    async with open_raw_mcp() as web:
        rows = [Row("fetch", {"url": web.url}, fails="not a public address")]
        await is_each_tool_called(published, ("fetch-careful", "http", "modern"), rows)
        assert not web.requests


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_repository_is_read_and_changed(published: Published, transport: Transport, era: Era) -> None:
    branch = f"{transport}-{era}"
    (published.repository / "f.txt").write_text(f"one\n{branch}\n")
    await is_each_tool_called(published, ("git", transport, era), git_rows(published.repository, branch))


def git_rows(repository: Path, branch: str) -> list[Row]:
    def git(verb: str, says: str = "", *, fails: str | None = None, **arguments: Any) -> Row:
        return Row(f"git_{verb}", {"repo_path": str(repository), **arguments}, says, fails=fails)

    return [
        git("status", "Changes not staged for commit"),
        git("diff_unstaged", f"+{branch}"),
        git("add", "staged", files=["f.txt"]),
        git("diff_staged", f"+{branch}"),
        git("commit", "committed successfully", message=f"Commit of {branch}"),
        git("log", f"Commit of {branch}"),
        git("show", f"+{branch}", revision="HEAD"),
        git("diff", f"+{branch}", target="HEAD~1"),
        git("create_branch", branch, branch_name=branch),
        git("checkout", branch, branch_name=branch),
        git("branch", f"* {branch}", branch_type="local"),
        git("reset", "reset"),
        git("show", fails="did not resolve", revision="nothing"),
    ]


@pytest.mark.parametrize(("name", "transport", "era"), AWKWARD)
async def test_results_of_every_kind_come_through(
    published: Published, name: str, transport: Transport, era: Era
) -> None:
    weather = {"city": "Oslo", "celsius": 21.5, "tags": ["sunny"]}
    rows = [
        Row("add", {"a": 1, "b": 2}, "3", {"result": 3}),
        Row("weather", {"city": "Oslo"}, '"celsius":21.5', weather),
        Row("picture", {}, "[image: image/png", blocks=["image"]),
        Row("mixed", {}, "[audio: audio/wav", blocks=["text", "image", "audio", "resource_link"]),
        Row("steps", {"count": 3}, "finished 3 steps"),
        Row("slow", {"seconds": 0.1}, "slept 0.1"),
        Row("tally", {}, "finished"),
        Row("fails", fails="it broke"),
        Row("crashes", fails="internal detail"),
        Row("ask", fails="licitation" if name == "awkward" else "back-channel"),
        Row("ask_rounds", fails="nobody can be asked" if era == "modern" else "InputRequiredResult"),
        Row("grow", {"name": f"grown_{era}"}, f"there is grown_{era} now"),
        Row("environment", {}, "PATH", {"result": ["HOME", "LANG", "PATH"]}),
        Row("add", {"a": "many"}, fails="valid integer"),
    ]
    run = await is_each_tool_called(published, (name, transport, era), rows)
    steps = [(data["progress"], data["total"], data["message"]) for data in run.named("tool/progress")]
    assert steps[-1] == (3, 3, "step 3 of 3")
    assert steps == sorted(steps)
    results = {data["result"]["call"]["name"]: data["result"]["outputs"][0] for data in run.named("tool/result")}
    (picture,) = results["picture"]["content"]
    assert (picture["mimeType"], picture["data"][:11]) == ("image/png", "iVBORw0KGgo")
    assert picture["data"] not in results["picture"]["text"]
    _, image, audio, link = results["mixed"]["content"]
    assert (image["data"], audio["mimeType"], link["uri"]) == (picture["data"], "audio/wav", "awkward://doc/1")


# Not the stateless one: a handshake server without sessions has nothing to tell it by which call is meant.
@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_cancelling_a_run_ends_its_tool(published: Published, transport: Transport, era: Era) -> None:
    entry = entry_of(published, "awkward", transport, era)

    async def tally(service: Service) -> dict[str, int]:
        run = await service.run(model="tally", servers=[entry])
        (result,) = run.named("tool/result")
        return result["result"]["outputs"][0]["structured"]

    def script(request: Request) -> Answer:
        if request.json["messages"][-1]["role"] == "tool":
            return stream(text("Done."), end())
        tool, arguments = ("slow", '{"seconds":60}') if request.json["model"] == "slow" else ("tally", "{}")
        return stream(call(0, "c1", tool, arguments), end("tool_calls"))

    async with open_upstream(script) as upstream, open_service(upstream, mcp_allow_insecure_urls=True) as service:
        before = await tally(service)
        async with service.streaming(model="slow", servers=[entry]) as (response, source):
            seen: list[str] = []
            async for event in events(source):
                seen.append(event.name)
                if event.name == "tool/eta":
                    with anyio.fail_after(10):
                        while (await tally(service))["started"] == before["started"]:
                            pass
                    await service.client.post(f"/v1/runs/{response.headers['X-Run-Id']}/cancel")
        assert seen.count("tool/error") == 1
        with anyio.fail_after(10):
            while (await tally(service))["cancelled"] == before["cancelled"]:
                pass
        after = await tally(service)
    assert (after["started"], after["cancelled"]) == (before["started"] + 1, before["cancelled"] + 1)
    assert after["finished"] == before["finished"]


@pytest.mark.parametrize(
    ("name", "transport", "era"), [("time", "http", "modern"), ("time", "sse", "legacy"), *AWKWARD]
)
async def test_server_that_was_started_anew_is_used_again(
    published: Published, name: str, transport: Transport, era: Era
) -> None:
    entry = entry_of(published, name, transport, era)
    row = Row("get_current_time", {"timezone": "UTC"}) if name == "time" else Row("add", {"a": 1, "b": 2})
    program = published.programs[name, transport]
    async with open_talk([row]) as (service, _):
        before = await service.run(model="m", servers=[entry])
        program.kill()
        without = await service.run(model="m", servers=[entry])
        program.start()
        await anyio.to_thread.run_sync(program.wait)
        after = [await service.run(model="m", servers=[entry]) for _ in range(2)]
    assert [ends(run) for run in (before, *after)] == [["tool/result"]] * 3
    assert "tool/result" not in ends(without)
    assert without.last["outcome"] == "completed"


def ends(run: Run) -> list[str]:
    return [name for name in run.names if name in ("tool/result", "tool/error")]


@pytest.mark.parametrize(("name", "transport", "era"), AWKWARD)
async def test_tool_that_a_server_adds_is_offered_to_the_next_run(
    published: Published, name: str, transport: Transport, era: Era
) -> None:
    new = f"new_{name}_{transport}_{era}".replace("-", "_")
    entry = entry_of(published, name, transport, era)
    async with open_talk([Row("grow", {"name": new})]) as (service, upstream):
        await service.run(model="m", servers=[entry])
        with anyio.fail_after(10):
            while new not in offered(upstream.asks[-1]):
                await service.run(model="m", servers=[entry])


def offered(request: Request) -> list[str]:
    return [tool["function"]["name"] for tool in request.json["tools"]]


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_question_of_a_tool_reaches_a_person_and_the_answer_the_tool(
    published: Published, transport: Transport, era: Era
) -> None:
    tool, said = ("ask_rounds", "accept Ada round-1") if era == "modern" else ("ask", "hello Ada")
    entry = entry_of(published, "awkward", transport, era)
    async with open_talk([Row(tool)]) as (service, _):
        async with service.streaming(model="m", servers=[entry], interactive=True) as (response, source):
            seen: list[Event] = []
            async for event in events(source):
                seen.append(event)
                if event.name == "elicitation" and event.data["subtype"] == "request":
                    url = f"/v1/runs/{response.headers['X-Run-Id']}/inputs/{event.data['inputId']}"
                    body = {"action": "accept", "content": {"name": "Ada"}}
                    assert (await service.client.post(url, json=body)).status_code == 204
    asked, resolved = (event.data for event in seen if event.name == "elicitation")
    assert asked["request"]["message"] == "Who are you?"
    assert list(asked["request"]["requestedSchema"]["properties"]) == ["name"]
    assert (resolved["action"], resolved["by"]) == ("accept", "caller")
    (result,) = (event.data for event in seen if event.name == "tool/result")
    assert result["result"]["outputs"][0]["text"] == said
