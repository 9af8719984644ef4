"""The room's door: what a run is told of its servers, which tools it gets, and what people see when they ask."""

import json
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import anyio
import pytest

from app.domain.errors import NotFound
from app.domain.events import Event, ServerReport
from app.domain.jsontypes import JsonObject
from app.domain.messages import Progress
from app.domain.principal import NOBODY
from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox import entries, results
from app.toolbox.admission import Policy
from app.toolbox.box import open_servers
from app.toolbox.options import Options
from tests.fakes.mcp_servers import TOOL_NAMES, Kind, open_mcp_server
from tests.fakes.raw_mcp import (
    HANG,
    Era,
    RawRequest,
    http_reply,
    json_reply,
    open_raw_mcp,
    progress_of,
    result,
    result_of,
    sse_reply,
    text_result,
    tool_entry,
)
from tests.fakes.toolboxes import LOCAL, ScriptedPerson, open_lone_run, open_run, operator, run_spec, user

pytestmark = pytest.mark.anyio


async def test_one_dead_server_among_three_costs_one_event() -> None:
    async with open_raw_mcp() as gone:
        dead = gone.url
    async with (
        open_mcp_server("modern") as one,
        open_mcp_server("legacy") as two,
        open_lone_run(operator(one.url, "One"), operator(dead, "Dead"), operator(two.url, "Two")) as run,
    ):
        assert {name: report.state for name, report in run.reports.items()} == {
            "One": "ready",
            "Dead": "unavailable",
            "Two": "ready",
        }
        assert len(run.events) == 3
        assert len(run.box.tools) == 2 * len(TOOL_NAMES)


async def test_servers_are_reported_as_they_answer_and_listed_in_their_own_order() -> None:
    release = anyio.Event()

    async def slowly(request: RawRequest) -> bytes:
        await release.wait()
        return json_reply(result_of(request, {"tools": [tool_entry("a")]}))

    def note(event: Event) -> None:
        events.append(event)
        release.set()

    events: list[Event] = []
    async with (
        open_raw_mcp({"tools/list": slowly}) as slow,
        open_raw_mcp(tools=[tool_entry("b")]) as quick,
        open_servers(LOCAL) as servers,
        open_run(servers) as empty,
    ):
        assert not empty.box.has_servers
        specs = (operator(slow.url, "Slow"), operator(quick.url, "Quick"))
        async with servers.open_box(run_spec(*specs), note, ScriptedPerson()) as box:
            assert [event.server for event in events if isinstance(event, ServerReport)] == ["Quick", "Slow"]
            assert [(tool.server, tool.name) for tool in box.tools] == [("Slow", "a"), ("Quick", "b")]


async def test_same_tool_on_two_servers_has_two_names_that_lead_to_the_right_one() -> None:
    async with (
        open_mcp_server("modern") as one,
        open_mcp_server("modern") as two,
        open_lone_run(user(one.url, "Mine"), operator(two.url, "Ours")) as run,
    ):
        assert run.names[: len(TOOL_NAMES)] == [f"{name}_Mine" for name in TOOL_NAMES]
        await run.call("echo_Mine", text="x")
        await run.call("echo", text="x")
        await run.call("echo", text="x")
        assert (one.started, two.started) == (["echo"], ["echo", "echo"])


async def test_lists_of_a_server_decide_what_is_offered_and_reported() -> None:
    async with open_mcp_server("modern") as server:
        spec = operator(server.url, allowed_tools=("e*", "add", "slow"), blocked_tools=("s*",))
        async with open_lone_run(spec) as run:
            assert list(run.report.tools) == ["echo", "add"]
            assert run.names == ["echo", "add"]
            assert run.box.find("slow") is None


async def test_descriptions_schemas_and_hints_are_told_where_they_are_asked_for() -> None:
    schema: JsonObject = {"properties": {"city": {"default": None, "items": {}}}}
    annotations = {"title": "Weather", "readOnlyHint": True, "destructiveHint": False}
    tools = [tool_entry("get", description="", inputSchema=schema, annotations=annotations)]
    async with (
        open_raw_mcp(tools=tools) as raw,
        open_servers(LOCAL) as servers,
        open_run(servers, operator(raw.url), include_tools=True) as run,
    ):
        (tool,) = run.report.tools
        assert tool["name"] == "get"
        assert tool["description"] == "Weather"
        assert tool["schema"] == {"type": "object", "properties": {"city": {"type": "array", "items": {}}}}
        assert tool["hints"] == {"readOnlyHint": True, "destructiveHint": False}
        spec = run.box.tools[0].spec
        assert spec.description == "Weather"
        assert "readOnlyHint" not in json.dumps(spec.parameters)


async def test_tool_whose_schema_is_refused_is_dropped_with_a_notice() -> None:
    far = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema"}}}
    tools = [tool_entry("good"), tool_entry("far", inputSchema=far), tool_entry("hidden", inputSchema=far)]
    async with open_raw_mcp(tools=tools) as raw, open_lone_run(operator(raw.url, blocked_tools=("hidden",))) as run:
        assert run.names == ["good"]
        (notice,) = run.notices
        assert notice.code == "tool_dropped"
        assert notice.about == {"server": "Fake", "tool": "far"}


async def test_each_tool_that_is_not_offered_is_told_by_name_and_the_nameless_by_cause() -> None:
    tools = [
        tool_entry("a"),
        tool_entry("a"),
        tool_entry("task", execution={"taskSupport": "required"}),
        tool_entry("hidden", execution={"taskSupport": "required"}),
        {"description": "no name"},
        *[tool_entry(f"t{number}") for number in range(300)],
    ]
    async with open_raw_mcp(tools=tools) as raw:
        server = operator(raw.url, allowed_tools=("a", "t*"), blocked_tools=("hidden",))
        async with open_lone_run(server) as run:
            assert len(run.box.tools) == 254
            assert [(notice.code, notice.about) for notice in run.notices] == [
                ("tool_dropped", {"server": "Fake", "tool": "task"}),
                *[("tool_dropped", {"server": "Fake"})] * 3,
            ]
            told = " ".join(notice.message for notice in run.notices)
            for cause in ("no name, left out: 1.", "an earlier one, left out: 1.", "256 tools, left out: 47."):
                assert cause in told


async def test_endless_list_is_told_to_go_on() -> None:
    def page(request: RawRequest) -> bytes:
        number = int(request.rpc.get("params", {}).get("cursor", "0"))
        return json_reply(result_of(request, {"tools": [tool_entry(f"t{number}")], "nextCursor": str(number + 1)}))

    async with open_raw_mcp({"tools/list": page}) as raw, open_lone_run(operator(raw.url), pages=3) as run:
        assert run.names == ["t0", "t1", "t2"]
        (notice,) = run.notices
        assert "goes on" in notice.message


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tool_with_an_unseemly_name_is_shown_clean_and_called_by_what_its_server_calls_it(era: Era) -> None:
    wild = "a\r\nX-Evil: 1\u202eb\u0000c"
    async with (
        open_raw_mcp(era=era, tools=[tool_entry(wild), tool_entry("n" * 200_000)]) as raw,
        open_servers(LOCAL) as servers,
    ):
        async with open_run(servers, operator(raw.url, blocked_tools=("never*",))) as run:
            assert list(run.report.tools) == ["a X-Evil: 1bc"]
            hidden, notice = run.notices
            assert hidden.code == "hidden_characters"
            assert notice.about == {"server": "Fake", "tool": "n" * 128 + "…"}
            (tool,) = run.box.tools
            assert tool.name == "a X-Evil: 1bc"
            assert (await run.call(tool.spec.name)).text == "fine"
            (request,) = [request for request in raw.requests if request.method == "tools/call"]
            assert request.rpc["params"]["name"] == wild
            assert "x-evil" not in request.headers
        (described,) = (await servers.check(operator(raw.url), NOBODY))["tools"]
        assert described["name"] == "a X-Evil: 1bc"
        async with open_run(servers, operator(raw.url, blocked_tools=("a X-Evil: 1bc",))) as run:
            assert not run.box.tools


async def test_lists_and_results_are_read_beside_the_loop_so_that_large_ones_hold_up_nobody() -> None:
    read_here: list[str] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in (entries.__file__, results.__file__):
            read_here.append(frame.f_code.co_name)

    large = result({"content": [{"type": "text", "text": "word " * 10_000}], "resultType": "complete"})
    async with open_raw_mcp({"tools/call": large}) as raw:
        sys.setprofile(watch)  # this thread's calls only
        try:
            async with open_lone_run(operator(raw.url)) as run:
                assert (await run.call("echo")).text.startswith("word word")
        finally:
            sys.setprofile(None)
    assert set(read_here) <= {"entries_from_page"}


@pytest.mark.parametrize(
    ("server", "state"),
    [
        (user("http://127.0.0.1:1/mcp"), "rejected"),
        (user("https://10.0.0.1/mcp"), "rejected"),
        (user("https://localhost/mcp"), "rejected"),
        (operator("http://169.254.169.254/mcp"), "rejected"),
        (user("ftp://a.example"), "rejected"),
        (user("https://a.example/mcp", headers={"Host": Secret("b.example")}), "rejected"),
    ],
)
async def test_servers_that_policy_refuses_are_rejected_without_a_connection(server: ServerSpec, state: str) -> None:
    options = replace(LOCAL, policy=Policy())
    async with open_lone_run(server, options=options) as run:
        assert run.report.state == state
        assert run.report.message
        assert run.box.has_servers


async def test_name_that_leads_to_a_private_place_is_unavailable_for_users_and_fine_for_the_operator() -> None:
    async with open_mcp_server("modern") as server:
        named = server.url.replace("127.0.0.1", "localhost")
        async with open_lone_run(operator(named), options=replace(LOCAL, policy=Policy())) as run:
            assert run.report.state == "ready"
        async with open_lone_run(user(named)) as run:
            assert run.report.state == "ready", "MCP_ALLOW_INSECURE_URLS"


async def test_environment_is_merged_selected_and_never_contacted_when_nothing_is_selected() -> None:
    async with open_mcp_server("modern") as one, open_mcp_server("modern") as two:
        options = replace(LOCAL, environment=(operator(one.url, "One"), operator(two.url, "Two")))
        async with open_servers(options) as servers:
            async with open_run(servers, server_names=()) as run:
                assert not run.events
                assert not run.box.tools
                assert not run.box.has_servers
            assert not one.seen
            async with open_run(servers, server_names=(" two ",)) as run:
                assert list(run.reports) == ["Two"]
            assert not one.seen


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


UNSENDABLE = [("half a character", "\ud800"), ("half a character as key", {"\ud800": 1}), ("too deep", nested(400))]


@pytest.mark.parametrize("kind", ["modern", "sse"])
@pytest.mark.parametrize("value", [row[1] for row in UNSENDABLE], ids=[row[0] for row in UNSENDABLE])
async def test_arguments_that_cannot_be_sent_cost_their_call_and_not_the_connection(kind: Kind, value: Any) -> None:
    async with open_mcp_server(kind) as server, open_lone_run(operator(server.url)) as run:
        assert (await run.call("echo", text=value)).error_code == "tool_arguments_invalid"
        assert (await run.call("echo", text="fine")).text == "fine"
        assert server.started == ["echo"]


async def test_callback_that_fails_does_not_take_the_run_down() -> None:
    def fail(progress: Progress) -> None:
        if progress.progress == 2:  # the one that is held back until the result is there
            raise ValueError(progress)

    def call(request: RawRequest) -> bytes:
        steps = [progress_of(request, step) for step in (1, 2)]
        return sse_reply([*steps, result_of(request, text_result("done"))])

    async with open_raw_mcp({"tools/call": call}) as raw, open_lone_run(operator(raw.url)) as run:
        assert (await run.call("echo", fail)).error_code == "tool_failed"
        assert (await run.call("echo")).text == "done"


async def test_environment_is_described_without_addresses_or_headers() -> None:
    async with (
        open_mcp_server("modern") as good,
        open_raw_mcp({"server/discover": http_reply(401, b"", WWW_Authenticate="Bearer")}) as closed,
        open_raw_mcp({"tools/list": HANG}) as slow,
    ):
        environment = (
            operator(f"{good.url}?key=sk-secret-1", "Good", headers={"X-Key": Secret("sk-secret-2")}),
            operator(closed.url, "Closed"),
            operator(slow.url, "Slow"),
        )
        options = replace(LOCAL, environment=environment, connection=replace(LOCAL.connection, list_seconds=0.3))
        async with open_servers(options) as servers:
            described = await servers.environment(NOBODY)
            assert [(server["name"], server["state"], server["tools"]) for server in described] == [
                ("Good", "ready", len(TOOL_NAMES)),
                ("Closed", "authRequired", 0),
                ("Slow", "unavailable", 0),
            ]
            assert "127.0.0.1" not in json.dumps(described)
            assert "sk-secret" not in json.dumps(described)
            await servers.environment(NOBODY)
            assert good.rpc["tools/list"] == 1, "from the cache"


async def test_check_describes_a_server_afresh() -> None:
    async with (
        open_mcp_server("legacy") as server,
        open_servers(replace(LOCAL, environment=(operator(server.url, "Mine"),))) as servers,
    ):
        await servers.check("Mine", NOBODY)
        found = await servers.check(" MINE ", NOBODY)
        assert found["name"] == "Mine"
        assert found["reachable"]
        assert not found["authRequired"]
        assert (found["era"], found["transport"]) == ("legacy", "streamable-http")
        assert found["protocolVersion"] == "2025-11-25"
        assert [tool["exposedName"] for tool in found["tools"]] == TOOL_NAMES
        assert found["tools"][0]["hints"] == {"readOnlyHint": True}
        assert found["duration"] >= 0
        assert server.rpc["tools/list"] == 2
        assert len(server.sessions) == 1


CHECKS: list[tuple[str, Any, dict[str, Any]]] = [
    ("401", http_reply(401, b"", WWW_Authenticate="Bearer x"), {"authRequired": True, "challenge": "Bearer x"}),
    ("500", http_reply(500), {"reachable": False, "message": "The server cannot be reached.", "authRequired": False}),
]


@pytest.mark.parametrize(("reply", "expected"), [row[1:] for row in CHECKS], ids=[row[0] for row in CHECKS])
async def test_check_says_what_is_missing(reply: Any, expected: dict[str, Any]) -> None:
    replies = {"server/discover": reply, "initialize": reply}
    async with open_raw_mcp(replies) as raw, open_servers(LOCAL) as servers:
        found = await servers.check(user(raw.url), NOBODY)
        assert {key: found[key] for key in expected} == expected
        assert found["tools"] == []
        assert found["era"] is None


async def test_check_of_an_unknown_name_is_not_found() -> None:
    async with open_servers(Options()) as servers:
        with pytest.raises(NotFound) as caught:
            await servers.check("nobody", NOBODY)
        assert caught.value.param == "name"
