"""Stories of a person who is asked: calls that wait for leave, over the real service and a byte-exact MCP server."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import anyio
import httpx
import pytest

from app.api.published import RunSnapshot
from app.api.published_events import RunEvent
from app.demo.listen import open_demo_server
from tests.fakes.mcp_servers import wait_until
from tests.fakes.raw_mcp import (
    RawMcp,
    RawRequest,
    http_reply,
    json_reply,
    open_raw_mcp,
    result_of,
    sse_frame,
    sse_reply,
    text_result,
    tool_entry,
)
from tests.fakes.service import USER, Event, Run, Service, events, open_service, operator_server
from tests.fakes.upstream import Answer, FakeUpstream, call, end, open_upstream, stream, text
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SAVE = tool_entry("save", inputSchema=PATH, annotations={"destructiveHint": True})
LOOK = tool_entry("look", annotations={"readOnlyHint": True})
SAVE_A = call(0, "c1", "save", '{"path":"a"}')
SAVE_B = call(1, "c2", "save", '{"path":"b"}')
DONE = stream(text("Done."), end())


def calling(*chunks: Any) -> Answer:
    return stream(*chunks, end("tool_calls"))


Respond: TypeAlias = Callable[["Desk", Any], Coroutine[Any, Any, Any]]
"""Does something about a question, given its data."""


def answering(**body: Any) -> Respond:
    """Answer each question with the same."""
    return lambda desk, question: desk.answer(question["inputId"], body)


async def ignoring(_desk: "Desk", _question: Any) -> None:
    """Answer nothing."""


@dataclass
class Desk:
    """The service, what was asked of the MCP server, and how a caller answers."""

    service: Service
    upstream: FakeUpstream
    mcp: RawMcp
    tools: list[Any]
    """What the server lists; change it, and it lists something else."""
    executed: list[Any] = field(default_factory=list[Any])
    answered: list[httpx.Response] = field(default_factory=list[httpx.Response])
    instead: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """What the server answers first, by method: replies, or functions of the request."""
    seen: list[Event] = field(default_factory=list[Event])
    run_id: str = ""

    async def answer(self, input_id: str, body: Any) -> httpx.Response:
        response = await self.service.client.post(f"/v1/runs/{self.run_id}/inputs/{input_id}", json=body)
        self.answered.append(response)
        return response

    async def run(self, respond: Respond, **body: Any) -> Run:
        """Start a run and read it to its end, responding to what it asks."""
        async with self.service.streaming(model="m", **{"approval": "always", **body}) as (response, source):
            self.run_id = response.headers["x-run-id"]
            run = Run(response)
            async with anyio.create_task_group() as group:
                async for event in events(source):
                    run.events.append(event)
                    self.seen.append(event)
                    RunEvent.model_validate(event.data)
                    if is_question(event):
                        group.start_soon(respond, self, event.data)
        return run

    async def snapshot(self) -> Any:
        shown = (await self.service.client.get(f"/v1/runs/{self.run_id}")).json()
        RunSnapshot.model_validate(shown)
        return shown

    def told(self, ask: int = 1) -> list[str]:
        """What the model was told of its calls."""
        messages = self.upstream.asks[ask].json["messages"]
        return [message["content"] for message in messages if message["role"] == "tool"]


def is_question(event: Event) -> bool:
    return event.name in ("approval", "elicitation") and event.data["subtype"] == "request"


@asynccontextmanager
async def open_desk(
    *answers: Answer, tools: Sequence[Any] = (SAVE, LOOK), session_id: str | None = None, **settings: Any
) -> AsyncGenerator[Desk]:
    listed = list(tools)
    executed: list[Any] = []
    instead: dict[str, list[Any]] = {}

    def scripted(request: RawRequest) -> Any:
        left = instead.get(request.method)
        reply = left.pop(0) if left else None
        return reply(request) if callable(reply) else reply

    def act(request: RawRequest) -> Any:
        reply = scripted(request)
        if reply is not None:
            return reply
        params = request.rpc["params"]
        executed.append((params["name"], params.get("arguments")))
        return json_reply(result_of(request, text_result(f"ran {params['name']}")))

    def list_tools(request: RawRequest) -> Any:
        return scripted(request) or json_reply(result_of(request, {"tools": listed, "resultType": "complete"}))

    async with (
        open_raw_mcp({"tools/call": act, "tools/list": list_tools}, session_id=session_id) as mcp,
        open_upstream(list(answers)) as upstream,
        open_service(upstream, extra_servers=[operator_server("box", mcp.url)], **settings) as service,
    ):
        yield Desk(service, upstream, mcp, listed, executed, instead=instead)


def resolved(run: Run) -> list[tuple[str, str]]:
    return [(data["action"], data["by"]) for data in run.named("approval") if data["subtype"] == "resolved"]


def errors(run: Run) -> list[str]:
    return [data["code"] for data in run.named("tool/error")]


@proves("input-approval")
async def test_call_waits_until_it_is_allowed_and_every_reader_sees_the_question() -> None:
    async with open_desk(calling(SAVE_A), DONE) as desk:
        run = await desk.run(answering(action="accept"))
        followed = await desk.service.follow(desk.run_id)
        (taken,) = desk.answered
    assert (taken.status_code, taken.content, taken.headers["x-run-id"]) == (204, b"", desk.run_id)
    names = ["tool/call", "tool/eta", "approval", "approval", "tool/result"]
    assert [name for name in run.names if name.startswith(("tool", "approval"))] == names
    asked, _ = run.named("approval")
    (called,) = run.named("tool/call")
    assert UUID(asked["inputId"]).version == 4
    assert asked == {
        "type": "approval",
        "subtype": "request",
        "inputId": asked["inputId"],
        "toolUuid": called["uuid"],
        "call": {"name": "save", "parameters": {"path": "a"}},
        "server": "box",
        "tool": "save",
        "description": "The tool save.",
        "hints": {"destructiveHint": True},
        "expiresAt": asked["expiresAt"],
    }
    assert resolved(run) == [("accept", "caller")]
    assert desk.executed == [("save", {"path": "a"})]
    assert [(event.id, event.data) for event in followed.events] == [(event.id, event.data) for event in run.events]


@proves("input-approval")
async def test_reads_are_spared_where_only_what_is_not_declared_so_is_asked_about() -> None:
    async with open_desk(calling(SAVE_A, call(1, "c2", "look", "{}")), DONE) as desk:
        run = await desk.run(answering(action="decline"), approval="destructive")
    assert [data["tool"] for data in run.named("approval") if data["subtype"] == "request"] == ["save"]
    assert desk.executed == [("look", {})]


@proves("input-approval")
async def test_call_with_changed_arguments_runs_with_them_and_reader_and_model_are_told() -> None:
    async with open_desk(calling(SAVE_A), DONE) as desk:
        run = await desk.run(answering(action="accept", arguments={"path": "b"}))
        shown = await desk.snapshot()
    assert desk.executed == [("save", {"path": "b"})]
    assert run.named("tool/call")[0]["call"]["parameters"] == {"path": "a"}
    assert run.named("tool/result")[0]["result"]["call"]["parameters"] == {"path": "b"}
    (told,) = desk.told()
    assert told.startswith("A person changed the arguments")
    assert '{"path": "b"}' in told
    assert told.endswith("ran save")
    assert shown["messages"][1]["content"] == told


@proves("input-approval")
async def test_changed_arguments_are_told_as_the_server_got_them() -> None:
    count = tool_entry("save", inputSchema={"type": "object", "properties": {"path": {"type": "integer"}}})
    async with open_desk(calling(call(0, "c0", "save", '{"path": 1}')), DONE, tools=[count]) as desk:
        run = await desk.run(answering(action="accept", arguments={"path": "7"}))
    assert desk.executed == [("save", {"path": 7})]
    assert run.named("tool/result")[0]["result"]["call"]["parameters"] == {"path": 7}
    assert '{"path": 7}' in desk.told()[0]


@proves("input-approval")
async def test_call_that_is_declined_does_not_run_and_the_model_is_told_the_reason() -> None:
    async with open_desk(calling(SAVE_A), DONE) as desk:
        run = await desk.run(answering(action="decline", reason="Not\u0000 there."))
    assert (desk.executed, errors(run), resolved(run)) == ([], ["approval_declined"], [("decline", "caller")])
    assert "Not there." in desk.told()[0]
    assert run.last["outcome"] == "completed"


@proves("input-remember")
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_answer_for_the_run_is_not_asked_for_again(action: str) -> None:
    script = [calling(SAVE_A), calling(call(0, "c2", "save", '{"path":"b"}')), DONE]
    async with open_desk(*script) as desk:
        run = await desk.run(answering(action=action, remember="run"))
    assert len(run.named("approval")) == 2
    assert desk.executed == ([("save", {"path": "a"}), ("save", {"path": "b"})] if action == "accept" else [])
    assert errors(run) == ([] if action == "accept" else ["approval_declined"] * 2)


@proves("input-remember")
async def test_tool_that_its_server_changes_while_a_person_thinks_is_not_run() -> None:
    async def change_and_accept(desk: Desk, question: Any) -> None:
        desk.tools[0] = {**SAVE, "description": "Deletes everything."}
        await desk.answer(question["inputId"], {"action": "accept"})

    async with open_desk(calling(SAVE_A), DONE) as desk:
        run = await desk.run(change_and_accept)
    assert (desk.executed, errors(run), resolved(run)) == ([], ["tool_changed"], [("accept", "caller")])
    assert "has changed this tool" in desk.told()[0]


@proves("input-remember")
async def test_tool_that_becomes_destructive_while_its_call_waits_for_a_place_is_not_run_unasked() -> None:
    reads = {**SAVE, "name": "save", "annotations": {"readOnlyHint": True}}
    hold, changed = anyio.Event(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with open_desk(calling(SAVE_A, SAVE_B), DONE, tools=[reads], max_calls_at_once=1) as desk:

        async def act(request: RawRequest) -> bytes:
            desk.executed.append(request.rpc["params"]["arguments"])
            desk.tools[0] = {**reads, "annotations": {"destructiveHint": True}}
            await request.write(sse_reply([changed], end=False))
            await hold.wait()
            return sse_frame(result_of(request, text_result("ran"))) + b"0\r\n\r\n"

        desk.instead["tools/call"] = [act]
        runs: list[Run] = []
        async with anyio.create_task_group() as group:

            async def go() -> None:
                runs.append(await desk.run(ignoring, approval="destructive"))

            group.start_soon(go)
            await wait_until(lambda: [event.name for event in desk.seen].count("server") == 2)
            hold.set()
        assert len(desk.executed) == 1
        assert errors(runs[0]) == ["tool_changed"]


@proves("input-approval")
async def test_call_whose_session_expired_while_a_person_thought_is_made_over_a_new_one() -> None:
    async def expire_and_accept(desk: Desk, question: Any) -> None:
        desk.instead["tools/list"] = [http_reply(404)]
        await desk.answer(question["inputId"], {"action": "accept"})

    async with open_desk(calling(SAVE_A), DONE, session_id="s1") as desk:
        run = await desk.run(expire_and_accept)
    assert (len(desk.executed), errors(run)) == (1, [])


@proves("input-approval")
async def test_what_ran_before_a_run_was_stopped_is_in_its_messages() -> None:
    async def accept_one_and_stop(desk: Desk, question: Any) -> None:
        if question["call"]["parameters"]["path"] == "a":
            await desk.answer(question["inputId"], {"action": "accept"})
            await wait_until(lambda: desk.executed)
            await desk.service.client.post(f"/v1/runs/{desk.run_id}/cancel")

    async with open_desk(calling(SAVE_A, SAVE_B), DONE) as desk:
        run = await desk.run(accept_one_and_stop)
        assert run.last["outcome"] == "aborted"
        said, *answers = (await desk.snapshot())["messages"]
    assert [call["id"] for call in said["tool_calls"]] == [answer["tool_call_id"] for answer in answers]
    assert [answer["content"] for answer in answers] == ["ran save", "Error: The run ended before the call did."]


@proves("input-approval")
async def test_answer_that_is_too_large_is_not_read() -> None:
    async def overdo(desk: Desk, question: Any) -> None:
        await desk.answer(question["inputId"], {"action": "accept", "arguments": {"path": "a" * 1_100_000}})
        await desk.answer(question["inputId"], {"action": "decline", "reason": "a" * 2001})
        await desk.answer(question["inputId"], {"action": "accept", "arguments": {"pth": "a"}})
        await desk.answer(question["inputId"], {"action": "decline"})

    async with open_desk(calling(SAVE_A), DONE) as desk:
        await desk.run(overdo)
    assert [response.status_code for response in desk.answered] == [413, 422, 422, 204]
    assert desk.answered[2].json()["error"]["param"] == "arguments.pth"


@proves("input-approval")
async def test_questions_of_a_round_are_open_side_by_side_and_are_answered_in_any_order() -> None:
    asked: list[Any] = []

    async def answer_all(desk: Desk, question: Any) -> None:
        asked.append(question)
        if len(asked) == 12:
            shown = await desk.snapshot()
            assert shown["state"] == "awaiting_input"
            assert [each["inputId"] for each in shown["inputs"]] == [each["inputId"] for each in asked]
            for each in reversed(asked):
                is_even = int(each["call"]["parameters"]["path"]) % 2 == 0
                await desk.answer(each["inputId"], {"action": "accept" if is_even else "decline"})

    calls = [call(at, f"c{at}", "save", json.dumps({"path": str(at)})) for at in range(12)]
    async with open_desk(calling(*calls), DONE, max_calls_at_once=2) as desk:
        run = await desk.run(answer_all)
    assert [response.status_code for response in desk.answered] == [204] * 12
    assert sorted(int(arguments["path"]) for _, arguments in desk.executed) == [0, 2, 4, 6, 8, 10]
    assert [told.startswith("ran") for told in desk.told()] == [True, False] * 6
    assert errors(run) == ["approval_declined"] * 6


# Answers


BAD_INPUTS: dict[str, tuple[Any, int, str | None]] = {
    "no JSON": (b"{", 400, None),
    "a list": (b"[]", 422, None),
    "no action": ({}, 422, "action"),
    "unknown action": ({"action": "perhaps"}, 422, "action"),
    "unknown field": ({"action": "accept", "argument": {}}, 422, "argument"),
    "arguments that are no object": ({"action": "accept", "arguments": ["b"]}, 422, "arguments"),
    "arguments that do not fit": ({"action": "accept", "arguments": {"path": 1}}, 422, "arguments.path"),
    "content": ({"action": "accept", "content": {"path": "b"}}, 422, "content"),
    "odd memory": ({"action": "accept", "remember": "ever"}, 422, "remember"),
    "odd reason": ({"action": "decline", "reason": 1}, 422, "reason"),
}


@proves("input-answers")
@pytest.mark.parametrize("row", BAD_INPUTS.values(), ids=BAD_INPUTS)
async def test_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    row: tuple[Any, int, str | None],
) -> None:
    body, status, param = row
    refusals: list[httpx.Response] = []

    async def twice(desk: Desk, question: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"/v1/runs/{desk.run_id}/inputs/{question['inputId']}"
        refusals.append(await desk.service.client.post(url, content=content, headers=JSON))
        assert (await desk.snapshot())["state"] == "awaiting_input"
        await desk.answer(question["inputId"], {"action": "accept"})

    async with open_desk(calling(SAVE_A), DONE) as desk:
        run = await desk.run(twice)
    (refusal,) = refusals
    error = refusal.json()["error"]
    assert (refusal.status_code, error["code"], error["param"]) == (status, "invalid_request", param)
    assert refusal.headers["x-run-id"] == desk.run_id
    assert desk.executed == [("save", {"path": "a"})]
    assert resolved(run) == [("accept", "caller")]


@proves("input-answers")
async def test_second_answer_is_a_conflict_while_the_run_lives_and_after_and_unknown_ones_are_not_found() -> None:
    never = "00000000-0000-4000-8000-000000000000"
    async with open_desk(calling(SAVE_A), DONE) as desk:

        async def twice(desk: Desk, question: Any) -> None:
            # The call that was allowed runs meanwhile, or has run.
            await desk.answer(question["inputId"], {"action": "decline"})
            await desk.answer(question["inputId"], {"action": "accept"})

        run = await desk.run(twice)
        asked, _ = run.named("approval")
        after = await desk.answer(asked["inputId"], {"action": "accept"})
        unknown = await desk.answer(never, {"action": "accept"})
        desk.run_id = "run_" + "0" * 32
        no_run = await desk.answer(asked["inputId"], {"action": "accept"})
    assert [response.status_code for response in desk.answered] == [204, 409, 409, 404, 404]
    assert after.json()["error"]["code"] == "conflict"
    assert (unknown.json()["error"]["code"], no_run.json()["error"]["param"]) == ("not_found", "id")
    assert (desk.executed, resolved(run)) == ([], [("decline", "caller")])


@proves("input-expiry")
async def test_question_that_nobody_answers_expires_and_the_run_goes_on_in_its_own_time() -> None:
    # The wait is longer than the run may take.
    async with open_desk(calling(SAVE_A), DONE, input_timeout_ms=1500, run_timeout_ms=1400) as desk:
        run = await desk.run(ignoring)
        asked, _ = run.named("approval")
        late = await desk.answer(asked["inputId"], {"action": "accept"})
    assert (desk.executed, errors(run), resolved(run)) == ([], ["approval_declined"], [("decline", "expiry")])
    assert (late.status_code, run.last["outcome"]) == (409, "completed")


# Questions of servers


@asynccontextmanager
async def open_asking(*answers: Answer, era: Any = "auto", **settings: Any) -> AsyncGenerator[Desk]:
    """Open a desk with the demo's server, whose tool `ask` asks for a text named `answer`."""
    asking = calling(call(0, "c1", "ask", '{"question":"Which colour?"}'))
    async with (
        open_demo_server() as url,
        open_upstream([asking, *answers]) as upstream,
        open_service(upstream, extra_servers=[operator_server("Demo", url, protocol=era)], **settings) as service,
    ):
        yield Desk(service, upstream, RawMcp(url), [])


@proves("input-elicitation", "input-answers")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_server_asks_the_person_and_an_answer_that_does_not_fit_leaves_the_question_open(era: str) -> None:
    refusals: list[Any] = []

    async def err_then_answer(desk: Desk, question: Any) -> None:
        shown = await desk.snapshot()
        assert (shown["state"], shown["inputs"][0]["request"]) == ("awaiting_input", question["request"])
        for wrong in ({}, {"content": {"answer": 1, "more": 2}}, {"content": {"answer": "red"}, "arguments": {}}):
            refused = await desk.service.client.post(
                f"/v1/runs/{desk.run_id}/inputs/{question['inputId']}", json={"action": "accept", **wrong}
            )
            refusals.append((refused.status_code, refused.json()["error"]["param"]))
        await desk.answer(question["inputId"], {"action": "accept", "content": {"answer": "red"}})

    async with open_asking(DONE, era=era) as desk:
        run = await desk.run(err_then_answer, interactive=True, approval="never")
        followed = await desk.service.follow(desk.run_id)
    asked, settled = run.named("elicitation")
    assert (asked["server"], asked["toolUuid"]) == ("Demo", run.named("tool/call")[0]["uuid"])
    assert (asked["request"]["mode"], asked["request"]["message"]) == ("form", "Which colour?")
    assert list(asked["request"]["requestedSchema"]["properties"]) == ["answer"]
    assert [status for status, _ in refusals] == [422] * 3
    assert refusals[0][1] == "content.answer"
    assert refusals[2][1] == "arguments"
    assert (settled["inputId"], settled["action"], settled["by"]) == (asked["inputId"], "accept", "caller")
    assert "the user answered: red" in desk.told()[0]
    assert [event.data for event in followed.events] == [event.data for event in run.events]


@proves("input-elicitation")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(("action", "told"), [("decline", "declined to answer"), ("cancel", "gave no answer")])
async def test_server_hears_that_the_person_does_not_answer(era: str, action: str, told: str) -> None:
    async with open_asking(DONE, era=era) as desk:
        run = await desk.run(answering(action=action), interactive=True, approval="never")
    assert [data.get("action") for data in run.named("elicitation")] == [None, action]
    assert told in desk.told()[0]


@proves("input-elicitation")
async def test_nobody_is_asked_by_servers_where_no_person_is_there() -> None:
    async with open_asking(DONE) as desk:
        run = await desk.run(ignoring, approval="never")
    assert (run.named("elicitation"), errors(run)) == ([], ["tool_failed"])


@proves("input-elicitation", "input-expiry")
async def test_question_of_a_server_that_nobody_answers_is_cancelled_by_the_clock() -> None:
    async with open_asking(DONE, input_timeout_ms=300) as desk:
        run = await desk.run(ignoring, interactive=True, approval="never")
    assert [(data.get("action"), data.get("by")) for data in run.named("elicitation")] == [
        (None, None),
        ("cancel", "expiry"),
    ]
    assert "gave no answer" in desk.told()[0]


@proves("input-elicitation", "input-end")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_cancelling_resolves_a_servers_question_before_the_call_ends(era: str) -> None:
    async def cancel(desk: Desk, _question: Any) -> None:
        await desk.service.client.post(f"/v1/runs/{desk.run_id}/cancel")

    async with open_asking(era=era) as desk:
        run = await desk.run(cancel, interactive=True, approval="never")
    assert run.names[-4:] == ["elicitation", "elicitation", "tool/error", "status"]
    assert (run.named("elicitation")[1]["by"], errors(run), run.last["outcome"]) == ("cancel", ["cancelled"], "aborted")


@proves("input-elicitation", "input-whole")
async def test_whole_answer_shows_first_the_approval_and_then_the_servers_question() -> None:
    kinds: list[str] = []
    async with open_asking(DONE) as desk:
        body = {"messages": USER, "stream": False, "model": "m", "approval": "always", "interactive": True}
        while True:
            response = await desk.service.client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
            RunSnapshot.model_validate(response.json())
            if response.json()["state"] == "ended":
                break
            desk.run_id = response.headers["x-run-id"]
            (asked,) = response.json()["inputs"]
            kinds.append(asked["kind"])
            content = {"content": {"answer": "red"}} if asked["kind"] == "elicitation" else {}
            await desk.answer(asked["inputId"], {"action": "accept", **content})
    assert kinds == ["approval", "elicitation"]
    assert "the user answered: red" in desk.told()[0]


# Ends


@proves("input-end")
async def test_cancelling_resolves_the_questions_then_ends_the_calls_then_the_run() -> None:
    async def cancel(desk: Desk, _question: Any) -> None:
        await desk.service.client.post(f"/v1/runs/{desk.run_id}/cancel")

    async with open_desk(calling(SAVE_A)) as desk:
        run = await desk.run(cancel)
        asked, _ = run.named("approval")
        late = await desk.answer(asked["inputId"], {"action": "accept"})
        shown = await desk.snapshot()
    assert run.names[-4:] == ["approval", "approval", "tool/error", "status"]
    assert (resolved(run), errors(run)) == ([("cancel", "cancel")], ["cancelled"])
    assert (run.last["outcome"], late.status_code, desk.executed) == ("aborted", 409, [])
    assert (shown["state"], shown["inputs"]) == ("ended", [])


@proves("input-end")
async def test_caller_that_leaves_while_a_question_is_open_takes_the_run_with_it() -> None:
    async with open_desk(calling(SAVE_A)) as desk:
        async with desk.service.streaming(model="m", approval="always") as (response, source):
            desk.run_id = response.headers["x-run-id"]
            async for event in events(source):
                if is_question(event):
                    break
        followed = await desk.service.follow(desk.run_id)
    assert (resolved(followed), followed.last["outcome"]) == ([("cancel", "cancel")], "aborted")


@proves("input-end", "shutdown")
async def test_process_that_stops_resolves_the_questions_first() -> None:
    async def stop(desk: Desk, _question: Any) -> None:
        desk.service.app.state.crossings.cancel_scope.cancel()

    async with open_desk(calling(SAVE_A)) as desk:
        run = await desk.run(stop)
    assert (resolved(run), errors(run)) == ([("cancel", "cancel")], ["cancelled"])
    assert run.names[-4:] == ["approval", "approval", "tool/error", "status"]
    assert run.last["code"] == "shutting_down"


# `"stream": false`


@proves("input-whole")
async def test_whole_answer_is_the_open_question_and_the_run_lives_on_without_its_connection() -> None:
    async with open_desk(calling(SAVE_A), DONE) as desk:
        response = await desk.service.whole(model="m", approval="always")
        waiting = response.json()
        RunSnapshot.model_validate(waiting)
        desk.run_id = response.headers["x-run-id"]
        (asked,) = waiting["inputs"]
        # Its connection is closed, and another one asks.
        async with httpx.AsyncClient(base_url=desk.service.url, timeout=20) as other:
            shown = (await other.get(f"/v1/runs/{desk.run_id}")).json()
        taken = await desk.answer(asked["inputId"], {"action": "accept"})
        followed = await desk.service.follow(desk.run_id)
        ended = await desk.snapshot()
    assert (response.status_code, waiting["state"], waiting["outcome"]) == (200, "awaiting_input", None)
    assert (asked["kind"], asked["call"]) == ("approval", {"name": "save", "parameters": {"path": "a"}})
    assert shown == waiting
    assert taken.status_code == 204
    assert (ended["state"], ended["outcome"], ended["text"], ended["inputs"]) == ("ended", "completed", "Done.", [])
    assert followed.last["outcome"] == "completed"
    assert [message["role"] for message in ended["messages"]] == ["assistant", "tool", "assistant"]


@proves("input-whole", "idempotency")
async def test_same_key_joins_a_run_that_waits_and_leaving_does_not_end_it() -> None:
    headers = {"Idempotency-Key": "k"}
    body = {"messages": USER, "stream": False, "model": "m", "approval": "always"}
    async with open_desk(calling(SAVE_A), DONE) as desk:
        first = await desk.service.client.post("/v1/runs", json=body, headers=headers)
        joined = await desk.service.client.post("/v1/runs", json=body, headers=headers)
        desk.run_id = first.headers["x-run-id"]
        (asked,) = joined.json()["inputs"]
        await desk.answer(asked["inputId"], {"action": "accept"})
        after = await desk.service.client.post("/v1/runs", json=body, headers=headers)
    assert first.json() == joined.json()
    assert (after.json()["id"], after.json()["state"]) == (desk.run_id, "ended")
    assert after.json()["outcome"] == "completed"


@proves("input-whole", "cancel-gone")
async def test_whole_answer_that_nobody_waits_for_any_more_before_the_question_cancels_the_run() -> None:
    hang = asyncio.Event()
    async with open_desk(stream(text("a"), hang)) as desk:
        with pytest.raises(httpx.ReadTimeout):
            await desk.service.client.post(
                "/v1/runs", json={"messages": USER, "stream": False, "approval": "always"}, timeout=0.5
            )
        journal = desk.service.app.state.doors.journal
        await wait_until(lambda: journal.running == 0)
    assert desk.upstream.closed_early.is_set()


@proves("input-whole")
async def test_run_that_asks_twice_answers_twice() -> None:
    script = [calling(SAVE_A), calling(call(0, "c2", "save", '{"path":"b"}')), DONE]
    body = {"messages": USER, "stream": False, "model": "m", "approval": "always"}
    async with open_desk(*script) as desk:
        states: list[str] = []
        for _ in range(3):
            response = await desk.service.client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
            desk.run_id = response.headers["x-run-id"]
            states.append(response.json()["state"])
            for asked in response.json()["inputs"]:
                await desk.answer(asked["inputId"], {"action": "accept"})
    assert states == ["awaiting_input", "awaiting_input", "ended"]
    assert desk.executed == [("save", {"path": "a"}), ("save", {"path": "b"})]
