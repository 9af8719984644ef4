"""Stories of bad input, bad upstreams, and the smaller routes."""

import csv
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from pydantic.json_schema import models_json_schema

from app.api.published import ModelList, ProblemBody, RunSnapshot, ServerCheck, ServerList
from app.api.published_events import RunEvent
from tests.fakes.mcp_servers import open_mcp_server
from tests.fakes.service import USER, open_service, operator_server
from tests.fakes.upstream import (
    CUT,
    Answer,
    Request,
    call,
    dropped,
    end,
    failure,
    json_answer,
    models,
    open_upstream,
    page,
    reasoning,
    stream,
    text,
    usage,
)
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio

DEEP = "[" * 3000 + "]" * 3000
SERVER = {"name": "x", "url": "https://mcp.example.com/mcp"}
TOOL_CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}

BAD_BODIES: dict[str, tuple[Any, int, str | None]] = {
    "not json": (b"{not json", 400, None),
    "nothing": (b"", 400, None),
    "not utf-8": (b'{"messages":"\xff"}', 400, None),
    "utf-16": ('{"messages":[]}'.encode("utf-16"), 400, None),
    "deep in utf-16": (('{"a":' + DEEP + "}").encode("utf-16"), 422, None),
    "deep behind a quote": (b'{"a":"\\\\","b":' + DEEP.encode() + b"}", 422, None),
    "a brace in a text": (b'{"messages":"' + b"{[" * 500 + b'"}', 422, "messages"),
    "unbalanced": (b"[" * 3000, 422, None),
    "a list": ([], 422, None),
    "a number": (b"7", 422, None),
    "deep": (b'{"messages":' + DEEP.encode() + b"}", 422, None),
    "a text that does not end": (b'{"messages":"' + b'\\"' * 100_000, 400, None),
    "no messages": ({}, 422, "messages"),
    "null messages": ({"messages": None}, 422, "messages"),
    "empty messages": ({"messages": []}, 422, "messages"),
    "messages a text": ({"messages": "hi"}, 422, "messages"),
    "a message no object": ({"messages": ["hi"]}, 422, "messages.0"),
    "blank model": ({"messages": USER, "model": "  "}, 422, "model"),
    "both names": ({"messages": USER, "servers": [], "selectedServers": []}, 422, "selectedServers"),
    "both limits": ({"messages": USER, "max_tokens": 1, "max_completion_tokens": 1}, 422, "max_completion_tokens"),
    "wrong role": ({"messages": [{"role": "robot", "content": "x"}]}, 422, "messages.0.role"),
    "no role": ({"messages": [*USER, {"content": "x"}]}, 422, "messages.1.role"),
    "no content": ({"messages": [{"role": "user"}]}, 422, "messages.0"),
    "content a number": ({"messages": [{"role": "user", "content": 7}]}, 422, "messages.0.content"),
    "part without type": ({"messages": [{"role": "user", "content": [{}]}]}, 422, "messages.0.content"),
    "image without url": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        422,
        "messages.0.content",
    ),
    "arguments no text": (
        {"messages": [{"role": "assistant", "tool_calls": [TOOL_CALL]}]},
        422,
        "messages.0.tool_calls",
    ),
    "tool without call": ({"messages": [{"role": "tool", "content": "x"}]}, 422, "messages.0"),
    "unknown field": ({"messages": USER, "tempersture": 1}, 422, "tempersture"),
    "text for a number": ({"messages": USER, "temperature": "hot"}, 422, "temperature"),
    "nan": (b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}', 422, "temperature"),
    "nan in messages": (b'{"messages":[{"role":"user","content":"x","n":NaN}]}', 422, "messages.0.n"),
    "half a pair": (b'{"messages":[{"role":"user","content":"\\ud800"}]}', 422, "messages.0.content"),
    "too many rounds": ({"messages": USER, "max_rounds": 0}, 422, "max_rounds"),
    "unknown zone": ({"messages": USER, "timezone": "Mars/Olympus"}, 422, "timezone"),
    "zone as a path": ({"messages": USER, "timezone": "../../etc/hostname"}, 422, "timezone"),
    "empty zone": ({"messages": USER, "timezone": ""}, 422, "timezone"),
    "zone that is a folder": ({"messages": USER, "timezone": "Europe"}, 422, "timezone"),
    "server without url": ({"messages": USER, "servers": [{"name": "x"}]}, 422, "servers.0.url"),
    "url without a scheme": (
        {"messages": USER, "servers": [{**SERVER, "url": "example.com/mcp"}]},
        422,
        "servers.0.url",
    ),
    "url of blanks": ({"messages": USER, "servers": [{**SERVER, "url": "not a url"}]}, 422, "servers.0.url"),
    "url without a host": ({"messages": USER, "servers": [{**SERVER, "url": "https:///mcp"}]}, 422, "servers.0.url"),
    "url with a blank": ({"messages": USER, "servers": [{**SERVER, "url": "https://a b/mcp"}]}, 422, "servers.0.url"),
    "server with a command": ({"messages": USER, "servers": [{**SERVER, "command": "sh"}]}, 422, "servers.0.command"),
    "server without a name": ({"messages": USER, "servers": [{**SERVER, "name": " "}]}, 422, "servers.0.name"),
    "alias too": ({"messages": USER, "selectedServers": [{"name": "x"}]}, 422, "selectedServers.0.url"),
    "headers a list": ({"messages": USER, "servers": [{**SERVER, "headers": []}]}, 422, "servers.0.headers"),
    "too many headers": (
        {"messages": USER, "servers": [{**SERVER, "headers": {f"X-{n}": "v" for n in range(33)}}]},
        422,
        "servers.0.headers",
    ),
    "too many servers": (
        {"messages": USER, "servers": [{**SERVER, "name": f"n{n}"} for n in range(17)]},
        422,
        "servers",
    ),
    "time-out of nothing": ({"messages": USER, "servers": [{**SERVER, "timeout_ms": 0}]}, 422, "servers.0.timeout_ms"),
    "odd tool choice": ({"messages": USER, "tool_choice": "some"}, 422, "tool_choice"),
    "no such approval": ({"messages": USER, "approval": "perhaps"}, 422, "approval"),
    "interactive a text": ({"messages": USER, "interactive": "yes"}, 422, "interactive"),
    "conversation too long": (
        {"messages": USER, "metadata": {"conversation_id": "x" * 257}},
        422,
        "metadata.conversation_id",
    ),
    "odd include": ({"messages": USER, "include": ["everything"]}, 422, "include.0"),
    "provider with a blank": ({"messages": USER, "provider": "a b"}, 422, "provider"),
}


@proves("bad-input")
@pytest.mark.parametrize("row", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_bad_body_is_a_4xx_that_names_the_field(row: tuple[Any, int, str | None]) -> None:
    body, status, param = row
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with open_service() as service:
        response = await service.client.post("/v1/runs", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"], error["type"]) == ("invalid_request", param, "invalid_request_error")
    assert response.headers["x-request-id"]
    if param:
        assert param in error["message"]
    ProblemBody.model_validate(response.json())


@proves("bad-input")
async def test_null_means_absent() -> None:
    fields = ("servers", "server_names", "metadata", "tool_choice", "max_rounds", "temperature", "stop", "timezone")
    async with open_upstream([stream(text("ok"), end())]) as upstream, open_service(upstream) as service:
        run = await service.run(model=None, **dict.fromkeys(fields))
    assert run.last["outcome"] == "completed"


@proves("bad-input")
async def test_misspelt_field_is_told_with_what_was_meant() -> None:
    async with open_service() as service:
        response = await service.client.post("/v1/runs", json={"messages": USER, "tempersture": 1})
    assert "temperature" in response.json()["error"]["message"]


MANY_FAULTS: list[dict[str, Any]] = [
    {"messages": USER, **{f"max_tokenz{n}": 1 for n in range(20_000)}},
    {"messages": [0] * 50_000},
    {"messages": [0] * 5_000},
    {"messages": USER, "servers": [{}] * 300_000},
    {"messages": USER, "include": [0] * 300_000},
    {"messages": USER, "server_names": [0] * 300_000},
    {"messages": USER, "servers": [{**SERVER, "allowed_tools": [0] * 300_000}]},
    {"messages": USER, "servers": [{**SERVER, "headers": {str(n): 0 for n in range(100_000)}}]},
    {"messages": USER, "metadata": {str(n): 0 for n in range(100_000)}},
    {"messages": USER, "k" * 500_000: 1},
    {"messages": [{"role": "user", "content": "x", "k" * 300_000: [[]] * 1000}], "n" * 50: 1},
]


@proves("bad-input")
@pytest.mark.parametrize("body", MANY_FAULTS)
async def test_many_or_long_faults_get_a_short_answer(body: dict[str, Any]) -> None:
    async with open_service() as service:
        response = await service.client.post("/v1/runs", json=body)
    assert response.status_code == 422
    assert len(response.content) < 3000


@proves("bad-input")
@pytest.mark.parametrize("is_declared", [True, False])
async def test_body_over_the_limit_is_a_413(is_declared: bool) -> None:
    content = json.dumps({"messages": [{"role": "user", "content": "x" * 3000}]}).encode()

    async def pieces() -> AsyncGenerator[bytes]:
        yield content

    async with open_service(max_body_bytes=2000) as service:
        response = await service.client.post(
            "/v1/runs",
            content=content if is_declared else pieces(),
            headers={"content-type": "application/json"},
        )
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


@proves("bad-input")
@pytest.mark.parametrize("token", ["caf\u00e9", "a b", "tab\there"])
async def test_token_that_no_header_can_carry_is_a_400(token: str) -> None:
    async with open_service() as service:
        headers = [(b"X-User-Token", token.encode("latin-1"))]
        response = await service.client.post("/v1/runs", json={"messages": USER}, headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-User-Token")
    assert token not in response.text


@proves("bad-input", "models")
async def test_model_that_is_not_listed_is_a_404_and_no_model_at_all_a_400() -> None:
    async with open_service(models='[{"id":"a"}]') as service:
        unknown = await service.whole(model="b")
    async with open_upstream([], models_script=[models()]) as upstream:
        async with open_service(upstream, default_model=None) as service:
            none = await service.whole()
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert unknown.json()["error"]["param"] == "model"
    assert (none.status_code, none.json()["error"]["code"]) == (400, "model_required")


@proves("bad-input")
@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("DELETE", "/v1/runs", 405)])
async def test_wrong_routes_and_methods_have_the_same_form(method: str, path: str, status: int) -> None:
    async with open_service() as service:
        response = await service.client.request(method, path)
    assert response.status_code == status
    ProblemBody.model_validate(response.json())


STATUS_OF = {
    "upstream_auth": 502,
    "upstream_rate_limited": 429,
    "upstream_refused": 400,
    "context_length_exceeded": 400,
}

BAD_UPSTREAMS: dict[str, tuple[Answer, str, str]] = {
    "401": (failure(401, "bad key"), "upstream_auth", ""),
    "403": (failure(403, "not you"), "upstream_auth", ""),
    "429 for long": (failure(429, "slow down", headers={"Retry-After": "3600"}), "upstream_rate_limited", ""),
    "400": (failure(400, "no such parameter"), "upstream_refused", ""),
    "context": (failure(400, "too long", code="context_length_exceeded"), "context_length_exceeded", ""),
    "html": (page("<html><h1>Sign in</h1></html>"), "upstream_failed", ""),
    "html in a 502": (page("<html>bad gateway</html>", 502), "upstream_failed", ""),
    "500": (failure(500, "boom"), "upstream_failed", ""),
    "dropped": (dropped(), "upstream_unreachable", ""),
    "empty": (Answer(), "upstream_failed", ""),
    "nothing but an end": (stream(), "upstream_failed", ""),
    "error in the stream": (stream(text("Hal"), {"error": {"message": "quota used up"}}), "upstream_failed", "Hal"),
    "error as a text": (stream({"error": "overloaded"}), "upstream_failed", ""),
    "silent end": (stream(text("The result is"), done=False), "upstream_incomplete", "The result is"),
    "cut": (stream(text("The res"), CUT), "upstream_incomplete", "The res"),
    "junk": (Answer([b"data: {oops\n\n", b"data: [DONE]\n\n"]), "upstream_failed", ""),
}


@proves("bad-upstream")
@pytest.mark.parametrize("row", BAD_UPSTREAMS.values(), ids=BAD_UPSTREAMS)
async def test_failing_upstream_is_one_status_error_and_what_was_streamed_stays(row: tuple[Answer, str, str]) -> None:
    answer, code, streamed = row
    async with (
        open_upstream(lambda _request: answer) as upstream,
        open_service(upstream, upstream_backoff_ms=5) as service,
    ):
        run = await service.run(model="m")
        whole = await service.whole(model="m")
    assert (run.last["status"], run.last["code"]) == ("error", code)
    assert run.text == streamed
    assert run.names.count("finalAnswer") == 0
    endings = [data for data in run.named("status") if data["status"] in ("error", "finished")]
    assert len(endings) == 1
    assert "<" not in run.last["message"]
    assert whole.status_code == STATUS_OF.get(code, 502)
    assert ("retry-after" in whole.headers) is (whole.status_code == 429)
    RunSnapshot.model_validate(whole.json())
    assert whole.json()["error"]["code"] == code
    assert whole.json()["text"] == streamed


@proves("bad-upstream")
async def test_upstream_that_is_not_there_is_unreachable() -> None:
    async with open_service("http://127.0.0.1:9/v1", upstream_backoff_ms=5) as service:
        run = await service.run(model="m")
        no_model = await service.client.get("/v1/models")
    assert (run.last["status"], run.last["code"]) == ("error", "upstream_unreachable")
    assert "127.0.0.1" not in run.last["message"]
    assert no_model.json() == {"object": "list", "data": []}


@proves("bad-upstream")
async def test_upstream_that_fails_after_the_tools_ran_keeps_their_results() -> None:
    script = [stream(call(0, "c1", "echo", '{"text":"hi"}'), end("tool_calls")), failure(400, "no")]
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            snapshot = (await service.whole(model="m")).json()
    assert snapshot["error"]["code"] == "upstream_refused"
    assert [message["role"] for message in snapshot["messages"]] == ["assistant", "tool"]
    assert snapshot["calls"][0]["result"]["status"] == "success"


@proves("upstream-retry")
@pytest.mark.parametrize("trouble", [failure(503, "busy"), failure(429, "slow"), dropped(), failure(408, "late")])
async def test_failure_before_the_first_byte_is_retried_and_told(trouble: Answer) -> None:
    script = [trouble, stream(text("ok"), end())]
    async with open_upstream(script) as upstream, open_service(upstream, upstream_backoff_ms=5) as service:
        run = await service.run(model="m")
    (retrying,) = [data for data in run.named("status") if data["status"] == "retrying"]
    assert retrying["delay"] == 0.005
    assert retrying["message"]
    assert run.answer["text"] == "ok"
    assert len(upstream.asks) == 2


@proves("models")
async def test_models_are_listed_from_the_setting_or_from_the_upstream() -> None:
    listed = '[{"id":"a","supportsTools":false,"multimodal":true,"contextLength":4096,"unknown":1},{"id":"b"}]'
    async with open_service(models=listed) as service:
        own = (await service.client.get("/v1/models")).json()
    async with open_upstream([stream(text("x"), end())], models_script=[models("up-1", "up-2")]) as upstream:
        async with open_service(upstream, default_model=None) as service:
            theirs = (await service.client.get("/v1/models")).json()
            run = await service.run()
    for answer in (own, theirs):
        ModelList.model_validate(answer)
    first, second = own["data"]
    assert (first["id"], first["object"], first["supportsTools"], first["multimodal"]) == ("a", "model", False, True)
    assert first["contextLength"] == 4096
    assert (second["supportsTools"], second["multimodal"]) == (True, False)
    assert {"created", "owned_by"} <= set(first)
    assert [entry["id"] for entry in theirs["data"]] == ["up-1", "up-2"]
    assert run.status("prepared")["model"] == "up-1"


@proves("models")
async def test_model_whose_quirks_say_that_it_takes_no_tools_is_listed_so_and_runs_without() -> None:
    script = [stream(text("ok"), end())]
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        listed = '[{"id":"a","supportsTools":true,"quirks":{"tools":false}}]'
        async with open_service(upstream, models=listed, extra_servers=[operator_server("box", mcp.url)]) as service:
            entries = (await service.client.get("/v1/models")).json()["data"]
            run = await service.run()
    assert [entry["supportsTools"] for entry in entries] == [False]
    assert run.status("prepared")["reason"] == "model_without_tools"
    assert run.named("server") == []


@proves("models")
async def test_what_the_upstream_tells_of_a_model_is_believed_by_a_run_that_names_it() -> None:
    told = json_answer({"data": [{"id": "a", "supported_parameters": ["stop"]}]})
    async with open_mcp_server() as mcp, open_upstream([stream(text("ok"), end())], models_script=[told]) as upstream:
        async with open_service(upstream, extra_servers=[operator_server("box", mcp.url)]) as service:
            run = await service.run(model="a")
    assert run.status("prepared")["reason"] == "model_without_tools"


@proves("health")
async def test_health_is_answered_and_readiness_goes_when_draining() -> None:
    async with open_service() as service:
        alive = await service.client.get("/healthz")
        ready = await service.client.get("/readyz")
        head = await service.client.head("/healthz")
        service.app.state.doors.is_draining = True
        not_ready = await service.client.get("/readyz")
        still_alive = await service.client.get("/healthz")
        refused = await service.whole(model="m")
    assert head.status_code == 200
    assert [r.status_code for r in (alive, ready, not_ready, still_alive)] == [200, 200, 503, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")


@proves("health")
async def test_request_id_of_the_caller_is_kept_where_it_is_sane() -> None:
    async with open_service() as service:
        kept = await service.client.get("/healthz", headers={"X-Request-Id": "abc-1.2_3"})
        made = await service.client.get("/healthz", headers={"X-Request-Id": "a b<script>"})
    assert kept.headers["x-request-id"] == "abc-1.2_3"
    assert len(made.headers["x-request-id"]) == 32


@proves("openapi")
async def test_every_event_that_is_sent_is_described_in_the_document() -> None:
    script = [
        failure(503, "busy"),
        stream(
            reasoning("hm"),
            text("x"),
            call(0, "c1", "slow", '{"steps":1}'),
            call(1, "c2", "image", "{}"),
            call(2, "c3", "nobody", "{}"),
            end("tool_calls"),
            usage(1, 1, prompt_tokens_details={"cached_tokens": 1}),
            headers={"X-Inference-Provider": "p"},
        ),
        stream(text("ok"), end()),
        failure(401, "no"),
    ]
    async with open_mcp_server() as mcp, open_upstream(script) as upstream:
        servers = [operator_server("box", mcp.url), operator_server("dead", "http://127.0.0.1:9/")]
        async with open_service(upstream, extra_servers=servers, upstream_backoff_ms=5) as service:
            rejected = {"name": "r", "url": "http://localhost"}
            run = await service.run(model="m", max_rounds=1, servers=[rejected], include=["tools"])
            failed = await service.run(model="m", server_names=[])
            snapshot = (await service.client.get(f"/v1/runs/{run.response.headers['x-run-id']}")).json()
            document = (await service.client.get("/openapi.json")).json()
    seen: set[str] = set()
    for event in [*run.events, *failed.events]:
        RunEvent.model_validate(event.data)
        seen.add(event.name)
    kinds = {"status", "server", "routerMetadata", "stream", "reasoning", "notice", "usage", "finalAnswer"}
    assert seen == kinds | {f"tool/{kind}" for kind in ("call", "eta", "progress", "result", "error")}
    RunSnapshot.model_validate(snapshot)
    schemas = document["components"]["schemas"]
    assert len(schemas["RunEvent"]["anyOf"]) == 20
    assert "additionalProperties" not in schemas["RunSnapshot"]
    assert undescribed(document) == []
    content = document["paths"]["/v1/runs"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"text/event-stream", "application/json"}
    assert document["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert dangling(document) == set()


def undescribed(document: Any) -> list[tuple[str, str, str]]:
    """Find answers without a schema; 204 has none."""
    found: list[tuple[str, str, str]] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                contents = answer.get("content", {}).values()
                if status != "204" and not (contents and all(content["schema"] for content in contents)):
                    found.append((path, method, status))
    return found


def dangling(document: Any) -> set[str]:
    """Find references that lead nowhere."""
    text_ = json.dumps(document)
    named = {part.split('"')[0] for part in text_.split("#/components/schemas/")[1:]}
    return named - set(document["components"]["schemas"])


@proves("openapi")
def test_every_published_model_forbids_what_it_does_not_name() -> None:
    """Without that, the story above could not tell a field that the document lacks."""
    published = (RunEvent, RunSnapshot, ModelList, ServerList, ServerCheck, ProblemBody)
    schemas = models_json_schema([(model, "serialization") for model in published])[1]["$defs"]
    objects = {name: schema for name, schema in schemas.items() if schema.get("type") == "object"}
    lenient = {name for name, schema in objects.items() if schema.get("additionalProperties") is not False}
    assert len(objects) > 15
    assert lenient == set()


STREAMS = Path(__file__).parents[1] / "upstream" / "streams"


def recordings() -> dict[str, tuple[int, str, str]]:
    """Read what the recorder wrote down of each stream: status, content type, summary."""
    found: dict[str, tuple[int, str, str]] = {}
    for index in sorted(STREAMS.glob("*-index.tsv")):
        with index.open() as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                name = f"{index.name.removesuffix('-index.tsv')}-{row['case']}"
                found[name] = (int(row["status"]), row["content-type"], row["what"])
    return found


RECORDINGS = recordings()


@proves("streams")
@pytest.mark.parametrize("name", RECORDINGS)
async def test_recorded_streams_end_a_run_exactly_once(name: str) -> None:
    status, media_type, what = RECORDINGS[name]
    body = (STREAMS / f"{name}.sse").read_bytes()  # a small file
    recorded = Answer([body], status, {"Content-Type": media_type})

    def script(request: Request) -> Answer:
        is_first = request.json["messages"][-1]["role"] != "tool" and "No more tools" not in request.body.decode()
        return recorded if is_first else stream(text("Closing."), end())

    async with open_upstream(script) as upstream, open_service(upstream, upstream_backoff_ms=5) as service:
        run = await service.run(model="m", max_rounds=1)
    endings = [data for data in run.named("status") if data["status"] in ("error", "finished")]
    assert endings == [run.last]
    called = {data["uuid"] for data in run.named("tool/call")}
    settled = [data["uuid"] for data in [*run.named("tool/result"), *run.named("tool/error")]]
    assert sorted(settled) == sorted(called)
    assert run.last["status"] == ("finished" if status == 200 and body else "error")
    assert bool(called) == (re.search(r"calls=\[[#{]", what) is not None)
    if run.last["status"] == "finished":
        assert run.answer["text"]
