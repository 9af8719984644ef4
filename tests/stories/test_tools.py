"""Stories of tools: real MCP servers behind the real service."""

import json
from typing import Any

import anyio
import pytest

from app.api.published import ServerCheck, ServerList
from tests.fakes.mcp_servers import FakeMcpServer, Kind, open_mcp_server
from tests.fakes.raw_mcp import HANG, http_reply, open_raw_mcp, tool_entry
from tests.fakes.service import USER, Run, open_service, operator_server
from tests.fakes.upstream import Answer, Request, call, end, open_upstream, stream, text
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio


def calls_then_answers(*chunks: Any, answer: str = "Done.") -> list[Answer]:
    return [stream(*chunks, end("tool_calls")), stream(text(answer), end())]


def from_request(mcp: FakeMcpServer, name: str = "Mine", **fields: Any) -> dict[str, Any]:
    return {"name": name, "url": mcp.url, **fields}


@proves("tool-loop", "run-order", "tool-names")
async def test_calls_run_on_the_server_and_the_model_gets_their_results() -> None:
    script = calls_then_answers(text("Let me see."), call(0, "c1", "echo", '{"text":"hi"}'))
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            run = await service.run(model="m")
    assert run.names == [
        *("status", "server", "status", "stream"),
        *("tool/call", "tool/eta", "tool/result"),
        *("stream", "finalAnswer", "status"),
    ]
    assert run.named("server")[0]["state"] == "ready"
    assert "echo" in run.named("server")[0]["tools"]
    assert run.status("prepared") == {"type": "status", "status": "prepared", "model": "m", "tools": "active"}
    (called,) = run.named("tool/call")
    assert called == {
        "type": "tool",
        "subtype": "call",
        "uuid": called["uuid"],
        "call": {"name": "echo", "parameters": {"text": "hi"}},
        "server": "box",
        "tool": "echo",
        "originalId": "c1",
        "argumentsRaw": '{"text":"hi"}',
        "content": "Let me see.",
    }
    assert run.named("tool/eta") == [{"type": "tool", "subtype": "eta", "uuid": called["uuid"], "eta": 10.0}]
    (result,) = run.named("tool/result")
    assert result["uuid"] == called["uuid"]
    assert result["duration"] >= 0
    assert result["result"]["outputs"][0]["text"] == "hi"
    assert (result["result"]["status"], result["result"]["display"]) == ("success", True)
    first, second = (ask.json for ask in upstream.asks)
    assert "echo" in [tool["function"]["name"] for tool in first["tools"]]
    assert first["tool_choice"] == "auto"
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "hi"}


@proves("tool-parallel")
async def test_calls_of_one_round_run_side_by_side_over_servers() -> None:
    chunks = [call(n, f"c{n}", "slow" if n % 2 else "slow_second", '{"steps":2,"pause":0.2}') for n in range(4)]
    async with (
        open_mcp_server() as one,
        open_mcp_server() as two,
        open_upstream(calls_then_answers(*chunks)) as upstream,
    ):
        servers = [operator_server("first", one.url), operator_server("second", two.url)]
        async with open_service(upstream, extra_servers=servers) as service:
            run = await service.run(model="m")
    assert run.names.count("tool/result") == 4
    first_result = run.names.index("tool/result")
    started = {data["uuid"] for data in run.named("tool/call")}
    progressed = {event.data["uuid"] for event in run.events[:first_result] if event.name == "tool/progress"}
    assert progressed == started
    assert [message["tool_call_id"] for message in upstream.asks[1].json["messages"][3:]] == ["c0", "c1", "c2", "c3"]
    assert (len(one.started), len(two.started)) == (2, 2)


@proves("tool-progress")
async def test_progress_is_told_while_the_tool_runs() -> None:
    script = calls_then_answers(call(0, "c1", "slow", '{"steps":3}'))
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            run = await service.run(model="m")
    steps = [(data["progress"], data["total"], data["message"]) for data in run.named("tool/progress")]
    assert steps[-1] == (3, 3, "step 3")
    assert steps == sorted(steps)
    assert run.names.index("tool/progress") < run.names.index("tool/result")


@proves("tool-failure")
async def test_failure_of_a_tool_is_an_event_and_the_model_reads_it() -> None:
    script = calls_then_answers(
        call(0, "c1", "fail", '{"reason":"no such city"}'), call(1, "c2", "echo", '{"text":"x"}')
    )
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            run = await service.run(model="m")
    (error,) = run.named("tool/error")
    assert error["code"] == "tool_failed"
    assert "no such city" in error["message"]
    told = upstream.asks[1].json["messages"][3]["content"]
    assert "no such city" in told
    assert "error" in told.lower()
    assert run.last["outcome"] == "completed"


@proves("tool-media")
async def test_image_comes_in_the_event_and_the_model_gets_a_note() -> None:
    script = calls_then_answers(call(0, "c1", "image", "{}"), call(1, "c2", "structured", "{}"))
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            run = await service.run(model="m")
    outputs = {data["result"]["call"]["name"]: data["result"]["outputs"][0] for data in run.named("tool/result")}
    (block,) = outputs["image"]["content"]
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert outputs["structured"]["structured"] == {"celsius": 21}
    image, structured = (message["content"] for message in upstream.asks[1].json["messages"][3:])
    assert block["data"] not in image
    assert "image/png" in image
    assert json.loads(structured) == {"celsius": 21}


@proves("tool-images")
async def test_image_reference_reaches_the_tool_as_data_and_events_show_the_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="app")
    picture = "data:image/png;base64,QUJDREVGRw=="
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": picture}}]
    script = calls_then_answers(call(0, "c1", "look", '{"image":"image_1"}'))
    seen: list[Any] = []

    def answer(request: Any) -> bytes:
        seen.append(request.rpc["params"]["arguments"])
        return http_reply(200, json.dumps(reply(request)).encode(), "application/json")

    def reply(request: Any) -> Any:
        return {"jsonrpc": "2.0", "id": request.id, "result": {"content": [{"type": "text", "text": "a cat"}]}}

    async with (
        open_raw_mcp({"tools/call": answer}, tools=[tool_entry("look")]) as mcp,
        open_upstream(script) as upstream,
    ):
        async with open_service(upstream, extra_servers=[operator_server("eye", mcp.url)]) as service:
            run = await service.run(model="m", messages=[{"role": "user", "content": content}])
    assert seen == [{"image": picture}]
    assert "QUJDREVGRw" not in json.dumps([event.data for event in run.events])
    assert "QUJDREVGRw" not in caplog.text
    assert "image_1" in upstream.asks[0].json["messages"][0]["content"]


@proves("tool-prompt")
async def test_model_is_told_tools_date_and_zone_in_the_one_system_message() -> None:
    async with open_mcp_server() as mcp, open_upstream([stream(text("ok"), end())]) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            messages = [*USER, {"role": "system", "content": "Be brief."}]
            await service.run(model="m", messages=messages, preprompt="You are a pirate.", timezone="Asia/Kolkata")
    said = upstream.asks[0].json["messages"]
    assert [message["role"] for message in said] == ["system", "user"]
    prompt = said[0]["content"]
    assert (
        prompt.index("echo, add") < prompt.index("IST, UTC+05:30") < prompt.index("pirate") < prompt.index("Be brief.")
    )


@proves("tool-names")
async def test_names_are_made_valid_and_distinct_and_lead_back() -> None:
    tools = [tool_entry("album.add/item one"), tool_entry("a.b"), tool_entry("a_b"), tool_entry("x" * 80)]

    def answer(request: Any) -> bytes:
        result = {"content": [{"type": "text", "text": request.rpc["params"]["name"]}]}
        body = {"jsonrpc": "2.0", "id": request.id, "result": result}
        return http_reply(200, json.dumps(body).encode(), "application/json")

    async with open_raw_mcp({"tools/call": answer}, tools=tools) as mcp:
        offered: list[str] = []

        def script(request: Request) -> Answer:
            if not offered:
                offered.extend(tool["function"]["name"] for tool in request.json["tools"])
                chunks = [call(at, f"c{at}", name, "{}") for at, name in enumerate(offered)]
                return stream(*chunks, end("tool_calls"))
            return stream(text("ok"), end())

        async with open_upstream(script) as upstream:
            async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
                run = await service.run(model="m")
    assert len(set(offered)) == 4
    assert all(1 <= len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in offered)
    originals = ["album.add/item one", "a.b", "a_b", "x" * 80]
    assert [data["tool"] for data in run.named("tool/call")] == originals
    texts = {data["result"]["outputs"][0]["text"] for data in run.named("tool/result")}
    assert texts == set(originals)


@proves("plain-run", "force-tools")
@pytest.mark.parametrize(
    ("body", "reason", "is_listed"),
    [
        ({"model": "plain"}, "model_without_tools", False),
        ({"model": "plain", "force_tools": True}, None, True),
        ({"model": "able"}, None, True),
        ({"model": "able", "server_names": []}, "no_servers", False),
        ({"model": "able", "tool_choice": "none"}, "tool_choice_none", False),
        ({"model": "able", "server_names": ["elsewhere"]}, "no_servers", False),
    ],
)
async def test_tools_are_used_only_where_they_can_be(body: dict[str, Any], reason: str | None, is_listed: bool) -> None:
    models = '[{"id":"plain","supportsTools":false},{"id":"able"}]'
    async with open_mcp_server() as mcp, open_upstream([stream(text("ok"), end())]) as upstream:
        servers = [operator_server("box", mcp.url)]
        async with open_service(upstream, extra_servers=servers, models=models) as service:
            run = await service.run(**body)
    prepared = run.status("prepared")
    assert (prepared["tools"], prepared.get("reason")) == ("active" if is_listed else "not_applicable", reason)
    assert bool(mcp.seen) is is_listed
    assert ("tools" in upstream.asks[0].json) is is_listed


@proves("plain-run")
async def test_server_without_tools_means_an_ordinary_completion() -> None:
    async with open_raw_mcp(tools=[]) as mcp, open_upstream([stream(text("ok"), end())]) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("empty", mcp.url)]) as service:
            run = await service.run(model="m")
    assert run.status("prepared")["reason"] == "no_tools"
    assert "tools" not in upstream.asks[0].json


@proves("servers-filter")
async def test_tool_with_too_large_a_schema_is_dropped_by_name_and_the_others_work() -> None:
    large = tool_entry("large", inputSchema={"type": "object", "properties": {"x": {"description": "y" * 300}}})
    async with open_raw_mcp(tools=[large, tool_entry("small")]) as mcp:
        async with open_upstream([stream(text("ok"), end())]) as upstream:
            servers = [operator_server("box", mcp.url)]
            async with open_service(upstream, extra_servers=servers, max_schema_bytes=200) as service:
                run = await service.run(model="m")
    assert [tool["function"]["name"] for tool in upstream.asks[0].json["tools"]] == ["small"]
    (notice,) = run.named("notice")
    assert (notice["code"], notice["server"], notice["tool"]) == ("tool_dropped", "box", "large")


@proves("servers-merge", "servers-select", "servers-refused")
async def test_request_servers_are_merged_selected_and_judged() -> None:
    def answers(_request: Request) -> Answer:
        return stream(text("ok"), end())

    async with open_mcp_server() as mine, open_mcp_server() as theirs, open_upstream(answers) as upstream:
        extra = [operator_server("Weather", mine.url), operator_server("Other", mine.url)]
        async with open_service(upstream, extra_servers=extra) as service:

            async def states(**body: Any) -> dict[str, str]:
                run = await service.run(model="m", **body)
                assert run.last["outcome"] == "completed"
                return {data["name"]: data["state"] for data in run.named("server")}

            replaced = await states(servers=[from_request(theirs, " weather ")])
            with_headers = await states(servers=[from_request(mine, "Weather", headers={"X-A": "1"})])
            selected = await states(servers=[from_request(mine, "weather")], server_names=["WEATHER"])
            added = await states(selectedServers=[from_request(theirs, "Mine")], selectedServerNames=["mine", "other"])
    assert sorted(replaced.values()) == ["ready", "rejected"]
    assert sorted(with_headers.values()) == ["ready", "rejected"]
    assert selected == {"Weather": "ready"}
    assert added == {"Other": "ready", "Mine": "rejected"}
    assert theirs.seen == []


@proves("servers-refused")
@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/mcp",
        "https://localhost/mcp",
        "https://127.0.0.1/mcp",
        "https://10.0.0.8/mcp",
        "https://169.254.169.254/latest",
        "https://[::1]/mcp",
        "https://2130706433/mcp",
        "ftp://example.com/mcp",
        "https://user:SECRET@example.com/mcp",
    ],
)
async def test_unsafe_address_of_a_request_is_rejected_and_the_run_goes_on(url: str) -> None:
    async with open_upstream([stream(text("ok"), end())]) as upstream, open_service(upstream) as service:
        run = await service.run(model="m", servers=[{"name": "x", "url": url}])
    (server,) = run.named("server")
    assert (server["state"], server["tools"]) == ("rejected", [])
    assert server["message"]
    assert "SECRET" not in json.dumps(server)
    assert run.last["outcome"] == "completed"


@proves("servers-refused")
async def test_local_servers_of_a_request_are_possible_where_the_operator_says_so() -> None:
    script = calls_then_answers(call(0, "c1", "echo", '{"text":"hi"}'))
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, mcp_allow_insecure_urls=True) as service:
            run = await service.run(model="m", servers=[from_request(mcp, headers={"Authorization": "Bearer mine"})])
    assert run.names.count("tool/result") == 1
    assert {seen.headers.get("authorization") for seen in mcp.seen} == {"Bearer mine"}


@proves("servers-filter")
async def test_allowed_and_blocked_tools_decide_by_original_name() -> None:
    async with open_mcp_server() as mcp, open_upstream([stream(text("ok"), end())]) as upstream:
        async with open_service(upstream, mcp_allow_insecure_urls=True) as service:
            entry = from_request(mcp, allowed_tools=["s*", "ad?"], blocked_tools=["slow"])
            run = await service.run(model="m", servers=[entry], include=["tools"])
    offered = [tool["function"]["name"] for tool in upstream.asks[0].json["tools"]]
    assert offered == ["add", "structured"]
    listed = run.named("server")[0]["tools"]
    assert [tool["name"] for tool in listed] == offered
    assert set(listed[0]) == {"name", "description", "schema", "hints"}
    assert listed[0]["description"] == "Adds two numbers"


@proves("servers-dead")
async def test_dead_servers_cost_one_event_each_and_the_others_work() -> None:
    script = calls_then_answers(call(0, "c1", "echo", '{"text":"hi"}'))
    async with open_mcp_server() as mcp, open_raw_mcp({"initialize": HANG, "server/discover": HANG}) as silent:
        servers = [
            operator_server("refusing", "http://127.0.0.1:9/mcp"),
            operator_server("healthy", mcp.url),
            operator_server("silent", silent.url),
        ]
        async with open_upstream(script) as upstream:
            async with open_service(upstream, extra_servers=servers, connect_ms=700) as service:
                run = await service.run(model="m")
    states = [(data["name"], data["state"]) for data in run.named("server")]
    assert sorted(states) == [("healthy", "ready"), ("refusing", "unavailable"), ("silent", "unavailable")]
    assert all(data["message"] for data in run.named("server") if data["state"] == "unavailable")
    assert run.names.count("tool/result") == 1
    assert run.last["outcome"] == "completed"


@proves("servers-dead")
async def test_server_that_is_slow_to_list_joins_the_run_later() -> None:
    listed = anyio.Event()
    script = [
        stream(call(0, "c1", "echo", '{"text":"hi"}'), end("tool_calls")),
        stream(call(0, "c2", "wait", '{"seconds":0.2}'), end("tool_calls")),
        stream(call(0, "c3", "late", "{}"), end("tool_calls")),
        stream(text("Done."), end()),
    ]

    async def slow(request: Any) -> bytes:
        await listed.wait()
        result = {"tools": [tool_entry("late"), tool_entry("echo")], "resultType": "complete"}
        body = {"jsonrpc": "2.0", "id": request.id, "result": result}
        return http_reply(200, json.dumps(body).encode(), "application/json")

    async with open_mcp_server() as mcp, open_raw_mcp({"tools/list": slow}) as raw, open_upstream(script) as upstream:
        servers = [operator_server("slow", raw.url), operator_server("box", mcp.url)]
        async with open_service(upstream, extra_servers=servers, mcp_list_wait_ms=50) as service:
            runs: list[Run] = []

            async def let_it_list() -> None:
                await upstream.wait_for(lambda it: len(it.asks) == 2)
                listed.set()

            async with anyio.create_task_group() as group:
                group.start_soon(let_it_list)
                runs.append(await service.run(model="m"))
    (run,) = runs
    states = [(data["name"], data["state"]) for data in run.named("server")]
    assert states == [("box", "ready"), ("slow", "waiting"), ("slow", "ready")]
    offered = [[tool["function"]["name"] for tool in ask.json["tools"]] for ask in upstream.asks]
    assert "late" not in offered[0]
    assert offered[2][: len(offered[0])] == offered[0]
    assert offered[2][-2:] == ["late", "echo_slow"]
    assert [data["result"]["call"]["name"] for data in run.named("tool/result")] == ["echo", "wait", "late"]


@proves("servers-dead")
async def test_required_server_is_waited_for_to_its_limit() -> None:
    async with open_mcp_server() as mcp, open_raw_mcp({"tools/list": HANG}) as silent:
        servers = [operator_server("silent", silent.url, required=True), operator_server("box", mcp.url)]
        async with open_upstream([stream(text("ok"), end())]) as upstream:
            async with open_service(upstream, extra_servers=servers, mcp_list_wait_ms=10, connect_ms=500) as service:
                run = await service.run(model="m")
    assert [data["state"] for data in run.named("server")] == ["ready", "unavailable"]
    assert run.last["outcome"] == "completed"


@proves("servers-auth")
async def test_server_that_wants_authorization_says_so_with_its_challenge() -> None:
    challenge = 'Bearer resource_metadata="https://a.example/.well-known/oauth-protected-resource"'
    refusal = http_reply(401, b"no", **{"WWW-Authenticate": challenge})
    async with open_raw_mcp({"initialize": refusal, "server/discover": refusal, "GET": refusal}) as mcp:
        async with open_upstream([stream(text("ok"), end())]) as upstream:
            async with open_service(upstream, extra_servers=[operator_server("locked", mcp.url)]) as service:
                run = await service.run(model="m")
    (server,) = run.named("server")
    assert (server["state"], server["challenge"]) == ("authRequired", challenge)
    assert run.status("prepared")["reason"] == "no_tools"


@proves("servers-eras")
@pytest.mark.parametrize("kind", ["modern", "legacy", "legacy-stateless", "sse"])
async def test_servers_of_every_era_and_transport_work(kind: Kind) -> None:
    script = calls_then_answers(call(0, "c1", "echo", '{"text":"hi"}'), call(1, "c2", "slow", '{"steps":1}'))
    async with open_mcp_server(kind) as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            run = await service.run(model="m")
    assert run.names.count("tool/result") == 2
    assert run.named("tool/progress")


@proves("servers-cached")
async def test_second_run_lists_and_connects_no_more() -> None:
    chunks = [stream(call(0, f"c{n}", "echo", '{"text":"hi"}'), end("tool_calls")) for n in range(2)]
    script = [chunks[0], stream(text("1"), end()), chunks[1], stream(text("2"), end())]
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            first = await service.run(model="m")
            before = mcp.rpc.copy()
            second = await service.run(model="m")
    assert first.names == second.names
    assert mcp.rpc - before == {"tools/call": 1}


@proves("servers-routes")
async def test_servers_are_listed_and_checked_without_addresses_or_headers() -> None:
    servers = '[{"name":"Dead","url":"http://127.0.0.1:9/mcp?key=SECRET","headers":{"X-Key":"SECRET"}}]'
    async with open_mcp_server() as mcp, open_service(mcp_servers=servers, connect_ms=2000, **local(mcp)) as service:
        listed = (await service.client.get("/v1/servers")).json()
        good = (await service.client.post("/v1/servers/check", json={"name": "box"})).json()
        dead = (await service.client.post("/v1/servers/check", json={"name": "dead"})).json()
        own = (await service.client.post("/v1/servers/check", json=from_request(mcp))).json()
        unknown = await service.client.post("/v1/servers/check", json={"name": "nobody"})
    ServerList.model_validate(listed)
    for answer in (good, dead, own):
        ServerCheck.model_validate(answer)
    assert {(entry["name"], entry["state"]) for entry in listed["data"]} == {("box", "ready"), ("Dead", "unavailable")}
    assert good["reachable"] is True
    assert (good["era"], good["transport"]) == ("modern", "streamable-http")
    assert "echo" in [tool["name"] for tool in good["tools"]]
    assert dead["reachable"] is False
    assert dead["message"]
    assert own["reachable"] is True
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "name")
    assert "SECRET" not in json.dumps([listed, dead])
    assert "127.0.0.1" not in json.dumps([listed, dead])


def local(mcp: FakeMcpServer) -> dict[str, Any]:
    return {"extra_servers": [operator_server("box", mcp.url)], "mcp_allow_insecure_urls": True}


@proves("identity")
@pytest.mark.parametrize(("is_on", "sent"), [(True, "Bearer callers-own"), (False, "Bearer sk-operator-key")])
async def test_callers_token_goes_to_the_model_only_where_the_operator_says_so(is_on: bool, sent: str) -> None:
    async with open_mcp_server() as mcp, open_upstream([stream(text("ok"), end())]) as upstream:
        servers = [operator_server("box", mcp.url)]
        async with open_service(upstream, extra_servers=servers, use_user_token=is_on) as service:
            await service.run(model="m", headers={"X-User-Token": "callers-own"})
    assert upstream.asks[0].headers["authorization"] == sent
    assert all("callers-own" not in json.dumps(seen.headers) for seen in mcp.seen)


@proves("tool-loop")
async def test_tool_choice_may_name_a_tool_as_its_server_does() -> None:
    async with (
        open_raw_mcp(tools=[tool_entry("a.b")]) as mcp,
        open_upstream([stream(text("ok"), end())] * 2) as upstream,
    ):
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            choice = {"type": "function", "function": {"name": "a.b"}}
            await service.run(model="m", tool_choice=choice)
            wrong = await service.run(model="m", tool_choice={"type": "function", "function": {"name": "nobody"}})
    assert upstream.asks[0].json["tool_choice"] == {"type": "function", "function": {"name": "a_b"}}
    assert upstream.asks[1].json["tool_choice"] == "auto"
    assert [notice["code"] for notice in wrong.named("notice")] == ["tool_choice_dropped"]
    assert wrong.last["outcome"] == "completed"


@proves("plain-run")
async def test_forced_choice_without_any_tool_is_an_ordinary_completion() -> None:
    async with open_upstream([stream(text("ok"), end())]) as upstream, open_service(upstream) as service:
        run = await service.run(model="m", tool_choice={"type": "function", "function": {"name": "forecast"}})
    assert run.last["outcome"] == "completed"
    assert "tool_choice" not in upstream.asks[0].json


@proves("tool-loop")
async def test_many_runs_at_once_each_get_their_own_results() -> None:
    def script(request: Request) -> Answer:
        messages = request.json["messages"]
        word = messages[1]["content"]
        if messages[-1]["role"] == "tool":
            return stream(text(messages[-1]["content"]), end())
        return stream(call(0, "c1", "echo", json.dumps({"text": word})), end("tool_calls"))

    async with open_mcp_server("legacy") as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            answers: dict[str, str] = {}

            async def one(word: str) -> None:
                run = await service.run(model="m", messages=[{"role": "user", "content": word}])
                answers[word] = run.answer["text"]

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(one, f"word-{number}")
    assert answers == {f"word-{number}": f"word-{number}" for number in range(20)}
