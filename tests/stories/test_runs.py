"""Stories of runs: a request in, events out, over real sockets."""

import asyncio
import json
import logging
from typing import Any

import anyio
import httpx
import pytest
from httpx_sse import EventSource

from tests.fakes.mcp_servers import open_mcp_server, wait_until
from tests.fakes.service import USER, Event, events, open_service, operator_server
from tests.fakes.upstream import call, end, open_upstream, reasoning, stream, text, usage
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio


@proves("run-order", "plain-run")
async def test_plain_completion_comes_as_typed_events_in_order() -> None:
    script = [stream(reasoning("Hm"), text("Hel"), text("lo"), end(), usage(3, 2))]
    async with open_upstream(script) as upstream, open_service(upstream) as service:
        run = await service.run(model="m-1")
    names = ["status", "status", "reasoning", "stream", "stream", "usage", "finalAnswer", "status"]
    assert run.names == names
    run_id = run.response.headers["x-run-id"]
    assert run.events[0].data == {"type": "status", "status": "started", "runId": run_id}
    assert run.events[1].data == {
        "type": "status",
        "status": "prepared",
        "model": "m-1",
        "tools": "not_applicable",
        "reason": "no_servers",
    }
    assert run.named("usage") == [{"type": "usage", "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}]
    assert run.answer == {"type": "finalAnswer", "text": "Hello", "reason": "stop", "interrupted": False}
    assert run.last == {"type": "status", "status": "finished", "outcome": "completed"}
    (ask,) = upstream.asks
    assert ask.headers["authorization"] == "Bearer sk-operator-key"
    assert ask.json["messages"] == USER
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(ask.json)


@proves("run-frames")
async def test_stream_is_exact_to_the_byte_and_made_for_proxies() -> None:
    async with open_upstream([stream(text('caf\u00e9\n"x"'), end())]) as upstream, open_service(upstream) as service:
        response = await service.client.post("/v1/runs", json={"messages": USER, "model": "m"})
    headers = response.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers
    assert headers["x-request-id"]
    run_id = headers["x-run-id"]
    first = 'data: {"type":"status","status":"started","runId":"' + run_id + '"}'
    assert response.text.startswith(f"retry: 1000\nid: 1\nevent: status\n{first}\n\nid: 2\nevent: status\n")
    assert "\r" not in response.text
    frames = response.text.split("\n\n")
    assert frames[-1] == ""
    ids = [line for frame in frames[:-1] for line in frame.split("\n") if line.startswith("id: ")]
    assert ids == [f"id: {number}" for number in range(1, len(frames))]
    assert 'event: stream\ndata: {"type":"stream","token":"caf\u00e9\\n\\"x\\""}\n\n' in response.text


@proves("run-heartbeat")
async def test_silence_is_filled_with_comments_that_are_no_events() -> None:
    go_on = asyncio.Event()
    script = [stream(text("a"), go_on, text("b"), end())]
    async with open_upstream(script) as upstream, open_service(upstream, heartbeat_ms=20) as service:
        body = {"messages": USER, "model": "m"}
        received = ""
        async with service.client.stream("POST", "/v1/runs", json=body) as response:
            async for part in response.aiter_text():
                received += part
                if received.count("\n:") >= 3:
                    go_on.set()
    assert received.count("\n:") >= 3
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=received)
    heard = list(EventSource(response).iter_sse())
    assert [event.id for event in heard] == [str(number) for number in range(1, 7)]
    assert all(json.loads(event.data) for event in heard)


@proves("run-whole")
async def test_stream_false_answers_the_snapshot() -> None:
    script = [stream(text("Hello"), end(), usage(3, 2)), stream(text("again"), end())]
    async with open_upstream(script) as upstream, open_service(upstream) as service:
        response = await service.whole(model="m")
        snapshot = response.json()
        shown = (await service.client.get(f"/v1/runs/{snapshot['id']}")).json()
    assert response.status_code == 200
    assert response.headers["x-run-id"] == snapshot["id"]
    assert shown == snapshot
    assert snapshot.pop("createdAt").endswith("Z")
    assert snapshot.pop("id").startswith("run_")
    assert snapshot == {
        "object": "run",
        "state": "ended",
        "outcome": "completed",
        "model": "m",
        "text": "Hello",
        "reasoning": "",
        "calls": [],
        "inputs": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "messages": [{"role": "assistant", "content": "Hello"}],
        "lastEventId": 6,
    }


@proves("run-messages", "tool-loop")
async def test_snapshot_messages_carry_the_conversation_on() -> None:
    script = [
        stream(text("Let me see. "), call(0, "c1", "echo", '{"text":"hi"}'), end("tool_calls")),
        stream(text("It said hi."), end()),
        stream(text("As I said: hi."), end()),
    ]
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        servers = [operator_server("box", mcp.url)]
        async with open_service(upstream, extra_servers=servers) as service:
            first = (await service.whole(model="m")).json()
            second = await service.whole(
                model="m", messages=[*USER, *first["messages"], {"role": "user", "content": "And?"}]
            )
    assert [message["role"] for message in first["messages"]] == ["assistant", "tool", "assistant"]
    (shown,) = first["calls"]
    assert (shown["server"], shown["tool"], shown["result"]["status"]) == ("box", "echo", "success")
    assert second.json()["text"] == "As I said: hi."
    asked = upstream.asks[2].json["messages"]
    assert asked[1:] == [*USER, *first["messages"], {"role": "user", "content": "And?"}]


@proves("cancel-gone")
async def test_client_that_goes_while_the_model_speaks_ends_the_model_stream() -> None:
    never = asyncio.Event()
    async with open_upstream([stream(text("a"), never)]) as upstream, open_service(upstream) as service:
        async with service.streaming(model="m") as (response, source):
            async for event in events(source):
                if event.name == "stream":
                    break
        with anyio.fail_after(4):
            await upstream.closed_early.wait()
        snapshot = await ended(service.client, response.headers["x-run-id"])
    assert snapshot["outcome"] == "aborted"
    assert snapshot["text"] == "a"


@proves("cancel-gone")
async def test_client_that_goes_while_a_tool_runs_ends_the_tool_and_leaves_nothing_running() -> None:
    script = [stream(call(0, "c1", "wait", "{}"), end("tool_calls"))]
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            async with service.streaming(model="m") as (response, _):
                await wait_until(lambda: mcp.started)
            await wait_until(lambda: mcp.cancelled == ["wait"], 4)
            snapshot = await ended(service.client, response.headers["x-run-id"])
            names = {task.get_name() for task in asyncio.all_tasks()}
            assert response.headers["x-run-id"] not in names
    assert snapshot["outcome"] == "aborted"
    assert snapshot["calls"][0]["error"]["code"] == "cancelled"
    assert len(upstream.asks) == 1


@proves("cancel-gone", "run-whole")
async def test_client_that_goes_before_the_whole_answer_cancels_too() -> None:
    never = asyncio.Event()
    async with open_upstream([stream(text("a"), never)]) as upstream, open_service(upstream) as service:
        with anyio.move_on_after(0.3):
            await service.whole(model="m")
        with anyio.fail_after(4):
            await upstream.closed_early.wait()


@proves("cancel-route")
async def test_cancel_stops_a_run_and_twice_is_no_error() -> None:
    never = asyncio.Event()
    async with open_upstream([stream(text("a"), never)]) as upstream, open_service(upstream) as service:
        async with service.streaming(model="m") as (response, source):
            path = f"/v1/runs/{response.headers['x-run-id']}/cancel"
            reader = events(source)
            seen = [await anext(reader) for _ in range(3)]
            first = await service.client.post(path)
            seen += [event async for event in reader]
        second = await service.client.post(path)
    assert seen[-1].data == {"type": "status", "status": "finished", "outcome": "aborted"}
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["outcome"] == second.json()["outcome"] == "aborted"
    assert "finalAnswer" not in [event.name for event in seen]


@proves("resume")
async def test_events_are_replayed_after_a_cursor_and_go_live() -> None:
    go_on = asyncio.Event()
    script = [stream(text("a"), text("b"), go_on, text("c"), end())]
    async with open_upstream(script) as upstream, open_service(upstream) as service:
        async with service.streaming(model="m") as (response, source):
            run_id = response.headers["x-run-id"]
            reader = events(source)
            first = [await anext(reader) for _ in range(4)]
            late: list[str] = []
            rest: list[Event] = []

            async def follow() -> None:
                late.extend(event.id for event in (await service.follow(run_id, 3)).events)

            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                await wait_until(lambda: service.app.state.doors.journal.find(run_id)._waiting.__len__() >= 2)
                go_on.set()
                rest += [event async for event in reader]
        replayed = await service.follow(run_id)
        by_query = await service.client.get(f"/v1/runs/{run_id}/events?after=6")
        nothing = await service.client.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": "7"})
        header_wins = await service.client.get(f"/v1/runs/{run_id}/events?after=2", headers={"Last-Event-ID": "6"})
    ids = [event.id for event in [*first, *rest]]
    assert ids == [str(number) for number in range(1, 8)]
    assert late == ids[3:]
    assert replayed.events == [*first, *rest]
    assert by_query.text == header_wins.text
    assert by_query.text.startswith("retry: 1000\nid: 7\n")
    assert nothing.status_code == 204


@proves("resume")
@pytest.mark.parametrize("cursor", ["99", "-1", "abc", "1.5", "9" * 40, "\u00b2"])
async def test_cursor_that_cannot_be_is_a_400(cursor: str) -> None:
    async with open_upstream([stream(text("a"), end())]) as upstream, open_service(upstream) as service:
        run = await service.run(model="m")
        path = f"/v1/runs/{run.response.headers['x-run-id']}/events"
        response = await service.client.get(path, params={"after": cursor})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "after")


@proves("resume")
async def test_empty_cursor_is_none_and_a_reader_at_the_end_of_a_silent_run_is_told_at_once() -> None:
    never = asyncio.Event()
    async with open_upstream([stream(text("a"), never)]) as upstream, open_service(upstream) as service:
        async with service.streaming(model="m", resumable=True) as (response, source):
            reader = events(source)
            seen = [await anext(reader) for _ in range(3)]
        path = f"/v1/runs/{response.headers['x-run-id']}"
        async with service.client.stream("GET", f"{path}/events", headers={"Last-Event-ID": ""}) as again:
            assert (await anext(events(EventSource(again)))).id == "1"
        async with service.client.stream("GET", f"{path}/events", headers={"Last-Event-ID": seen[-1].id}) as silent:
            with anyio.fail_after(5):
                assert await anext(silent.aiter_text()) == "retry: 1000\n\n"
        await service.client.post(f"{path}/cancel")


@proves("run-whole")
async def test_what_an_event_can_carry_a_snapshot_can_too() -> None:
    odd = b'data: {"choices":[{"index":0,"delta":{"content":"hi \\ud83d x"}}]}\n\n'
    async with open_upstream([stream(odd, end())] * 2) as upstream, open_service(upstream) as service:
        run = await service.run(model="m")
        whole = await service.whole(model="m")
    assert run.answer["text"] == whole.json()["text"] == "hi \ufffd x"


@proves("idempotency")
async def test_blank_key_is_no_key() -> None:
    async with open_upstream([stream(text("a"), end())] * 2) as upstream, open_service(upstream) as service:
        await service.run(model="m", headers={"Idempotency-Key": ""})
        await service.run(model="n", headers={"Idempotency-Key": ""})
    assert len(upstream.asks) == 2


@proves("idempotency")
async def test_nobody_joins_a_run_of_another_token() -> None:
    async with open_upstream([stream(text("once"), end())]) as upstream:
        async with open_service(upstream, use_user_token=True) as service:
            await service.run(model="m", headers={"Idempotency-Key": "k", "X-User-Token": "alice"})
            headers = {"Idempotency-Key": "k", "X-User-Token": "bob"}
            other = await service.client.post("/v1/runs", json={"messages": USER, "model": "m"}, headers=headers)
    assert other.status_code == 409


@proves("resume")
@pytest.mark.parametrize("method_path", ["GET ", "GET /events", "POST /cancel"])
async def test_unknown_run_is_a_404(method_path: str) -> None:
    method, _, rest = method_path.partition(" ")
    async with open_service() as service:
        response = await service.client.request(method, f"/v1/runs/run_{'0' * 32}{rest}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@proves("resume")
async def test_events_that_were_cut_are_a_410() -> None:
    script = [stream(*[text("x" * 50) for _ in range(100)], end())]
    async with open_upstream(script) as upstream, open_service(upstream, max_run_bytes=5000) as service:
        snapshot = (await service.whole(model="m")).json()
        response = await service.client.get(f"/v1/runs/{snapshot['id']}/events")
        tail = await service.follow(snapshot["id"], snapshot["lastEventId"] - 1)
    assert response.status_code == 410
    assert [event.name for event in tail.events] == ["status"]
    assert snapshot["text"] == "x" * 5000


@proves("resumable")
async def test_resumable_run_goes_on_without_its_reader() -> None:
    go_on = asyncio.Event()
    async with (
        open_upstream([stream(text("a"), go_on, text("b"), end())]) as upstream,
        open_service(upstream) as service,
    ):
        async with service.streaming(model="m", resumable=True) as (response, source):
            async for event in events(source):
                if event.name == "stream":
                    break
        go_on.set()
        run = await service.follow(response.headers["x-run-id"], 3)
    assert run.text == "b"
    assert run.answer["text"] == "ab"
    assert run.last["outcome"] == "completed"


@proves("idempotency")
async def test_same_key_joins_the_run_and_another_body_is_a_conflict() -> None:
    async with open_upstream([stream(text("once"), end())]) as upstream, open_service(upstream) as service:
        headers = {"Idempotency-Key": "k-1"}
        first = await service.run(model="m", headers=headers)
        again = await service.run(model="m", headers=headers)
        other = await service.client.post("/v1/runs", json={"messages": USER, "model": "n"}, headers=headers)
    assert again.events == first.events
    assert len(upstream.asks) == 1
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")


@proves("too-many")
async def test_one_run_too_many_is_refused_with_retry_after() -> None:
    go_on = asyncio.Event()
    async with open_upstream([stream(text("a"), go_on, end())]) as upstream:
        async with open_service(upstream, max_runs_per_key=1) as service, service.streaming(model="m") as (_, source):
            reader = events(source)
            await anext(reader)
            refused = await service.client.post("/v1/runs", json={"messages": USER, "model": "m"})
            go_on.set()
            assert [event async for event in reader][-1].data["outcome"] == "completed"
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_runs")
    assert refused.headers["retry-after"]


@proves("shutdown")
async def test_stopping_the_service_ends_runs_with_a_reason_that_readers_hear() -> None:
    never = asyncio.Event()
    async with open_upstream([stream(text("a"), never)]) as upstream, open_service(upstream) as service:
        async with service.streaming(model="m") as (_, source):
            reader = events(source)
            seen = [await anext(reader) for _ in range(3)]
            service.app.state.crossings.cancel_scope.cancel()
            seen += [event async for event in reader]
    assert seen[-1].data["code"] == "shutting_down"


@proves("secrets")
async def test_secrets_show_up_in_no_event_answer_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = {
        "name": "dead",
        "url": "https://127.0.0.1.example.invalid/mcp?api_key=SECRET-QUERY",
        "headers": {"Authorization": "Bearer SECRET-HEADER", "X-Bad\n": "SECRET-BROKEN"},
    }
    odd = {**server, "timeout_ms": "SECRET-TYPE", "nonsense": "SECRET-FIELD"}
    script = [stream(text("ok"), end())]
    async with open_upstream(script) as upstream, open_service(upstream, openai_api_key="SECRET-KEY") as service:
        run = await service.run(model="m", servers=[server], headers={"X-User-Token": "SECRET-TOKEN"})
        refused = await service.client.post("/v1/runs", json={"messages": USER, "servers": [odd]})
        checked = await service.client.post("/v1/servers/check", json=server)
    shown = json.dumps([event.data for event in run.events]) + refused.text + checked.text + str(refused.headers)
    assert refused.status_code == 422
    assert "SECRET" not in shown
    assert "SECRET" not in "\n".join(record.getMessage() for record in caplog.records if not is_ours(record))


def is_ours(record: logging.LogRecord) -> bool:
    """Tell lines of the test's own client and of the event loop, which nobody logs in the service."""
    return record.name.startswith(("httpx", "httpcore", "asyncio"))


async def ended(client: httpx.AsyncClient, run_id: str) -> Any:
    """Wait for a run's end and return its snapshot."""
    with anyio.fail_after(5):
        while (snapshot := (await client.get(f"/v1/runs/{run_id}")).json())["state"] != "ended":  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return snapshot


@proves("run-order")
async def test_reader_that_only_follows_owns_nothing() -> None:
    go_on = asyncio.Event()
    async with (
        open_upstream([stream(text("a"), go_on, text("b"), end())]) as upstream,
        open_service(upstream) as service,
    ):
        async with service.streaming(model="m") as (response, source):
            reader = events(source)
            await anext(reader)
            path = f"/v1/runs/{response.headers['x-run-id']}/events"
            async with service.client.stream("GET", path) as follower:
                await anext(events(EventSource(follower)))
            go_on.set()
            rest = [event async for event in reader]
    assert rest[-1].data["outcome"] == "completed"
