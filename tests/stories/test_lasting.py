"""Stories of what lasts over rounds, runs and questions: sessions, learned times, changing tools, servers that ask."""

import json
from typing import Any

import anyio
import pytest

from app.api.published import ServerCheck
from tests.fakes.mcp_servers import open_mcp_server, wait_until
from tests.fakes.raw_mcp import RawRequest, open_raw_mcp, result, result_of, sse_reply, text_result, tool_entry
from tests.fakes.service import Event, Run, events, open_service, operator_server
from tests.fakes.upstream import Answer, Request, call, end, open_upstream, stream, text
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio


def calling(name: str, arguments: str = "{}", *, rounds: int = 1) -> Any:
    """Make a model that calls one tool in each of its first rounds, and then answers."""

    def script(request: Request) -> Answer:
        done = sum(message["role"] == "tool" for message in request.json["messages"])
        return stream(call(0, f"c{done}", name, arguments), end("tool_calls")) if done < rounds else _DONE

    return script


_DONE = stream(text("Done."), end())


@proves("learned-eta")
async def test_after_twenty_calls_the_estimate_is_within_a_fifth_of_what_a_call_takes() -> None:
    async with (
        open_mcp_server() as mcp,
        open_upstream(calling("wait", '{"seconds": 2}')) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service,
    ):
        runs: list[Run] = []

        async def go() -> None:
            runs.append(await service.run())

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(go)
        assert {run.named("tool/eta")[0]["eta"] for run in runs} == {10.0}, "nothing was known yet"
        assert mcp.started == ["wait"] * 20
        (eta,) = (await service.run()).named("tool/eta")
        assert 1.6 <= eta["eta"] <= 2.4


@proves("learned-eta")
async def test_progress_tells_how_much_is_left() -> None:
    async with (
        open_mcp_server() as mcp,
        open_upstream(calling("slow", '{"steps": 4, "pause": 0.2}')) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service,
    ):
        run = await service.run()
        told = [progress["eta"] for progress in run.named("tool/progress") if "eta" in progress]
        assert told
        assert told[-1] < 1


@proves("session-per-run")
async def test_session_lasts_over_the_rounds_of_a_run_and_the_runs_of_a_conversation() -> None:
    async with (
        open_mcp_server("legacy") as mcp,
        open_upstream(calling("count", rounds=2)) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service,
    ):
        counts: list[list[str]] = []
        for conversation in ("one", "one", None):
            about = {"metadata": {"conversation_id": conversation}} if conversation else {}
            run = await service.run(**about)
            counts.append([result["result"]["outputs"][0]["text"].split()[1] for result in run.named("tool/result")])
        assert counts == [["1", "2"], ["3", "4"], ["1", "2"]]
        await wait_until(lambda: mcp.http["DELETE"] == 1)


@proves("list-changes")
async def test_next_round_sees_the_tools_that_changed_in_this_one() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}

    def sign_in(request: RawRequest) -> bytes:
        return sse_reply([changed, changed, result_of(request, text_result("Welcome."))])

    lists = [result({"tools": [tool_entry(name) for name in page]}) for page in (["sign_in"], ["sign_in", "buy"])]
    script = [stream(call(0, "c1", "sign_in", "{}"), end("tool_calls")), _DONE]
    async with (
        open_raw_mcp({"tools/list": lists, "tools/call": sign_in}) as mcp,
        open_upstream(script) as upstream,
        open_service(upstream, extra_servers=[operator_server("shop", mcp.url)]) as service,
    ):
        run = await service.run()
        offered = [[tool["function"]["name"] for tool in ask.json["tools"]] for ask in upstream.asks]
        assert offered == [["sign_in"], ["sign_in", "buy"]]
        assert [server["tools"] for server in run.named("server")] == offered
        prompts = [ask.json["messages"][0]["content"] for ask in upstream.asks]
        assert "sign_in, buy" not in prompts[0]
        assert "sign_in, buy" in prompts[1]
        assert mcp.asked["tools/list"] == 2


FORM = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}, "required": ["size"]}
ASKS = {"message": "Which size?", "requestedSchema": FORM}


@proves("input-elicitation")
async def test_server_that_asks_gets_what_the_person_filled_in_and_the_model_gets_the_result() -> None:
    wants = {"size": {"method": "elicitation/create", "params": ASKS}}
    answers = [
        result({"resultType": "input_required", "inputRequests": wants, "requestState": "s"}),
        result(text_result("Bought.")),
    ]
    async with (
        open_raw_mcp({"tools/call": answers}, era="modern", tools=[tool_entry("buy")]) as mcp,
        open_upstream(calling("buy")) as upstream,
        open_service(upstream, extra_servers=[operator_server("shop", mcp.url)]) as service,
        service.streaming(interactive=True) as (response, source),
    ):
        run_id = response.headers["x-run-id"]
        heard: list[Event] = []
        async for event in events(source):
            heard.append(event)
            if event.name == "elicitation" and event.data["subtype"] == "request":
                url = f"/v1/runs/{run_id}/inputs/{event.data['inputId']}"
                snapshot = (await service.client.get(f"/v1/runs/{run_id}")).json()
                assert snapshot["state"] == "awaiting_input"
                wrong = await service.client.post(url, json={"action": "accept", "content": {"size": 0}})
                assert (wrong.status_code, wrong.json()["error"]["param"]) == (422, "content.size")
                right = await service.client.post(url, json={"action": "accept", "content": {"size": 42}})
                assert right.status_code == 204
                assert (await service.client.post(url, json={"action": "decline"})).status_code == 409
        run = Run(response, heard)
        request, resolved = run.named("elicitation")
        assert request["server"] == "shop"
        assert request["toolUuid"] == run.named("tool/call")[0]["uuid"]
        assert request["request"]["requestedSchema"]["properties"]["size"]["minimum"] == 1
        assert (resolved["action"], resolved["by"]) == ("accept", "caller")
        assert run.named("tool/result")[0]["result"]["outputs"][0]["text"] == "Bought."
        second = [request for request in mcp.requests if request.method == "tools/call"][1].rpc["params"]
        assert second["inputResponses"] == {"size": {"action": "accept", "content": {"size": 42}}}
        assert second["requestState"] == "s"


@proves("input-elicitation")
async def test_server_that_asks_where_nobody_is_there_costs_its_call_only() -> None:
    wants = {"size": {"method": "elicitation/create", "params": ASKS}}
    asks = result({"resultType": "input_required", "inputRequests": wants})
    async with (
        open_raw_mcp({"tools/call": asks}, era="modern", tools=[tool_entry("buy")]) as mcp,
        open_upstream(calling("buy")) as upstream,
        open_service(upstream, extra_servers=[operator_server("shop", mcp.url)]) as service,
    ):
        run = await service.run()
        assert not run.named("elicitation")
        assert run.named("tool/error")[0]["code"] == "tool_failed"
        assert run.last["outcome"] == "completed"
        assert mcp.asked["tools/call"] == 1


@proves("servers-routes")
async def test_check_tells_repairs_and_what_is_not_offered() -> None:
    tools = [
        tool_entry("odd", inputSchema={"type": "object", "properties": {"when": {"type": "date"}}}),
        tool_entry("task", execution={"taskSupport": "required"}),
    ]
    async with (
        open_raw_mcp(tools=tools) as mcp,
        open_upstream([]) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service,
    ):
        answer = (await service.client.post("/v1/servers/check", json={"name": "box"})).json()
        ServerCheck.model_validate(answer)
        assert [tool["name"] for tool in answer["tools"]] == ["odd"]
        assert any("when" in line for line in answer["tools"][0]["repairs"])
        assert [dropped["name"] for dropped in answer["dropped"]] == ["task"]
        assert "task" in json.dumps(answer["dropped"][0]["reason"])
