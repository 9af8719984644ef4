"""Whatever goes wrong, callers learn it by one of a closed set of codes, in a published form, without an echo."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

import anyio
import httpx
import pytest

from app.api.problems import STATUSES
from app.api.published import ProblemBody, RunSnapshot
from app.api.published_events import RunEvent
from app.domain.errors import CALL_CODES
from tests.fakes.raw_mcp import (
    CUT,
    HANG,
    RawRequest,
    Replies,
    Reply,
    error,
    http_reply,
    json_reply,
    open_raw_mcp,
    result_of,
    text_result,
    tool_entry,
)
from tests.fakes.service import USER, Run, Service, events, open_service, operator_server
from tests.fakes.upstream import (
    Answer,
    Request,
    Script,
    call,
    dropped,
    end,
    failure,
    models,
    open_upstream,
    stream,
    text,
)

pytestmark = pytest.mark.anyio

OF_REQUESTS = {
    "invalid_request",
    "model_required",
    "model_not_found",
    "unauthorized",
    "forbidden",
    "not_found",
    "conflict",
    "body_too_large",
    "too_many_runs",
    "shutting_down",
}
OF_RUNS = {
    "upstream_unreachable",
    "upstream_auth",
    "upstream_rate_limited",
    "upstream_refused",
    "upstream_failed",
    "upstream_incomplete",
    "context_length_exceeded",
    "deadline_exceeded",
    "internal",
}
OF_CALLS = {
    "tool_failed",
    "tool_unknown",
    "tool_arguments_invalid",
    "tool_timeout",
    "tool_outcome_unknown",
    "tool_changed",
    "approval_declined",
    "skipped",
    "cancelled",
    "connection_lost",
    "server_unreachable",
}
KEY = "tf_key-of-a-caller"
ECHO = "zqEcho-5e1f"


def test_code_has_the_codes_that_are_promised_and_no_others() -> None:
    assert {cls.code for cls in STATUSES} | {"forbidden"} == OF_REQUESTS | OF_RUNS
    assert CALL_CODES == OF_CALLS


def problem_in(answer: httpx.Response) -> str:
    """Return the code of an error, which is as published, with a true status and the ids that go with it."""
    body = ProblemBody.model_validate(answer.json())
    assert answer.status_code >= 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert body.error.message.strip()
    assert "Traceback" not in answer.text
    return body.error.code


@asynccontextmanager
async def opened(
    script: Script | None = None, replies: Replies | None = None, *, listed: Script | None = None, **settings: Any
) -> AsyncGenerator[Service]:
    """The service with a key that is not trusted, in front of a server whose one tool is `act`."""
    chosen = script or (lambda _: stream(text("Done."), end()))
    keys = f"caller:{sha256(KEY.encode()).hexdigest()}"
    async with (
        open_raw_mcp(replies, tools=[tool_entry("act")]) as raw,
        open_upstream(chosen, models_script=listed) as up,
    ):
        servers = [operator_server("box", raw.url)]
        basic: dict[str, Any] = {"auth": "required", "api_keys": keys, "upstream_backoff_ms": 1}
        async with open_service(up, extra_servers=servers, **{**basic, **settings}) as service:
            service.client.headers["Authorization"] = f"Bearer {KEY}"
            yield service


Send: TypeAlias = Callable[[Service], Awaitable[httpx.Response]]


def post(
    content: bytes | None = None, path: str = "/v1/runs", headers: dict[str, str] | None = None, **body: Any
) -> Send:
    raw = json.dumps({"messages": USER, **body}).encode() if content is None else content
    return lambda service: service.client.post(
        path, content=raw, headers={"Content-Type": "application/json", **(headers or {})}
    )


def get(path: str, method: str = "GET", **headers: str) -> Send:
    return lambda service: service.client.request(method, path, headers=headers)


@dataclass
class Failing:
    """How a request fails."""

    send: Send
    status: int
    code: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


async def _twice(service: Service) -> httpx.Response:
    await post(headers={"Idempotency-Key": "a"})(service)
    return await post(headers={"Idempotency-Key": "a"}, seed=1)(service)


async def _beside_another(service: Service) -> httpx.Response:
    async with service.streaming():
        return await post()(service)


async def _while_draining(service: Service) -> httpx.Response:
    service.app.state.doors.is_draining = True
    return await post()(service)


async def _slowly(service: Service) -> httpx.Response:
    status, told = await exchange(service, "POST /v1/runs", ("Content-Length", b"9"), body=b"{")
    head, _, body = told.partition("\r\n\r\n")
    fields = [line.split(": ", 1) for line in head.split("\r\n")[1:]]
    return httpx.Response(status, headers=[(name, value) for name, value in fields], text=body)


NO_RUN = f"/v1/runs/run_{'0' * 32}"
FAILING: dict[str, Failing] = {
    "no JSON": Failing(post(b"{"), 400, "invalid_request"),
    "nothing": Failing(post(b""), 400, "invalid_request"),
    "no text": Failing(post(b"\xff\xfe{}"), 400, "invalid_request"),
    "an unknown field": Failing(post(tempersture=1), 422, "invalid_request"),
    "another media type": Failing(post(headers={"Content-Type": "text/plain"}), 415, "invalid_request"),
    "another method": Failing(get("/v1/runs", "PATCH"), 405, "invalid_request"),
    "a body that does not come": Failing(_slowly, 408, "invalid_request", {"body_read_ms": 50}),
    "a cursor that is none": Failing(get(f"{NO_RUN}/events?after=x"), 404, "not_found"),
    "no model": Failing(post(), 400, "model_required", {"default_model": None, "listed": [models()] * 3}),
    "a model that is not listed": Failing(post(model="b"), 404, "model_not_found", {"models": '[{"id": "a"}]'}),
    "no key": Failing(get("/v1/models", Authorization="x"), 401, "unauthorized"),
    "a wrong key": Failing(get("/v1/models", Authorization=f"Bearer {KEY}x"), 401, "unauthorized"),
    "an end user of a key that is not trusted": Failing(get("/v1/models", **{"X-End-User": "a"}), 403, "forbidden"),
    "another host": Failing(get("/v1/models", Host="evil.example"), 403, "forbidden"),
    "a page of elsewhere": Failing(get("/v1/models", Origin="https://evil.example"), 403, "forbidden"),
    "an unknown route": Failing(get("/v2/models"), 404, "not_found"),
    "an unknown run": Failing(get(NO_RUN), 404, "not_found"),
    "an unknown run's events": Failing(get(f"{NO_RUN}/events"), 404, "not_found"),
    "an unknown run to stop": Failing(get(f"{NO_RUN}/cancel", "POST"), 404, "not_found"),
    "an unknown question": Failing(post(b'{"action": "accept"}', f"{NO_RUN}/inputs/a"), 404, "not_found"),
    "an unknown server": Failing(post(b'{"name": "a"}', "/v1/servers/check"), 404, "not_found"),
    "another body under the same key": Failing(_twice, 409, "conflict"),
    "too large a body": Failing(post(seed=1, preprompt="x" * 300), 413, "body_too_large", {"max_body_bytes": 200}),
    "too many runs": Failing(_beside_another, 429, "too_many_runs", {"max_runs_per_key": 1}),
    "a service that stops": Failing(_while_draining, 503, "shutting_down"),
}


@pytest.mark.parametrize("row", FAILING.values(), ids=FAILING)
async def test_failing_request_has_a_true_status_and_one_of_the_codes(row: Failing) -> None:
    script = [stream(text("a"), asyncio.Event())] if row.code == "too_many_runs" else None
    async with opened(script, **row.settings) as service:
        answer = await row.send(service)
    assert (answer.status_code, problem_in(answer)) == (row.status, row.code)
    assert row.code in OF_REQUESTS
    assert ("retry-after" in answer.headers) is (row.status in (429, 503))


# Runs


@dataclass
class Broken:
    """What the model endpoint does, and how a run ends then."""

    answer: Answer
    code: str
    status: int
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


BROKEN: dict[str, Broken] = {
    "no connection": Broken(dropped(), "upstream_unreachable", 502),
    "a key that is refused": Broken(failure(401, "no"), "upstream_auth", 502),
    "a limit": Broken(failure(429, "slow down"), "upstream_rate_limited", 429),
    "a refusal": Broken(failure(400, "no"), "upstream_refused", 400),
    "a fault": Broken(failure(500, "no"), "upstream_failed", 502),
    "a fault in the stream": Broken(stream(text("a"), {"error": {"message": "no"}}), "upstream_failed", 502),
    "half an answer": Broken(stream(text("a"), done=False), "upstream_incomplete", 502),
    "too long a talk": Broken(failure(400, "no", code="context_length_exceeded"), "context_length_exceeded", 400),
    "an answer without end": Broken(
        stream(text("a"), asyncio.Event()), "deadline_exceeded", 504, {"run_timeout_ms": 300}
    ),
}


@pytest.mark.parametrize("row", BROKEN.values(), ids=BROKEN)
async def test_failing_run_ends_with_one_of_the_codes_in_either_form(row: Broken) -> None:
    async with opened([row.answer] * 9, **row.settings) as service:
        run = await service.run(model="m")
        whole = await service.whole(model="m")
    for event in run.events:
        RunEvent.model_validate(event.data)
    assert (run.last["status"], run.last["code"]) == ("error", row.code)
    assert row.code in OF_RUNS
    snapshot = RunSnapshot.model_validate(whole.json())
    assert snapshot.error is not None
    assert (whole.status_code, snapshot.error.code, snapshot.error.message) == (
        row.status,
        row.code,
        run.last["message"],
    )


# Calls


async def nothing(_service: Service, _run_id: str, _data: Any) -> None:
    """Do nothing about an event."""


Respond: TypeAlias = Callable[[Service, str, Any], Awaitable[None]]


async def stop(service: Service, run_id: str, data: Any) -> None:
    if data.get("subtype") == "call":
        await service.client.post(f"/v1/runs/{run_id}/cancel")


async def accept(service: Service, run_id: str, data: Any) -> None:
    if data["type"] == "approval" and data["subtype"] == "request":
        await service.client.post(f"/v1/runs/{run_id}/inputs/{data['inputId']}", json={"action": "accept"})


ONE = call(0, "c1", "act", "{}")
TWO = call(1, "c2", "act", '{"a": 1}')


@dataclass
class Bad:
    """What becomes of a call."""

    code: str
    reply: Reply | None = None
    calls: tuple[Any, ...] = (ONE,)
    respond: Respond = nothing
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    body: dict[str, Any] = field(default_factory=dict[str, Any])
    replies: Replies = field(default_factory=dict[str, Reply])


def listing(*descriptions: str) -> list[Reply]:
    """List the tool by these descriptions, one after the other."""

    def reply(description: str) -> Reply:
        tools = [tool_entry("act", description=description)]
        return lambda request: json_reply(result_of(request, {"tools": tools}))

    return [reply(description) for description in descriptions]


HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}


def greet(request: RawRequest) -> bytes:
    return json_reply(result_of(request, HELLO), Mcp_Session_Id="s")


def complain(request: RawRequest) -> bytes:
    return json_reply(result_of(request, {**text_result("no"), "isError": True}))


BAD: dict[str, Bad] = {
    "an error": Bad("tool_failed", error(-32000, "no")),
    "an error of the tool": Bad("tool_failed", complain),
    "a tool that is not": Bad("tool_unknown", calls=(call(0, "c1", "bend", "{}"),)),
    "arguments that are none": Bad("tool_arguments_invalid", calls=(call(0, "c1", "act", '{"a":'),)),
    "silence": Bad("tool_timeout", HANG, settings={"mcp_tool_timeout_ms": 100}),
    "a lost connection": Bad("tool_outcome_unknown", CUT),
    "another place": Bad("server_unreachable", http_reply(307, Location="http://127.0.0.1:9/")),
    "a session that is forgotten": Bad(
        "connection_lost",
        http_reply(404),
        replies={"initialize": greet},
    ),
    "too many calls": Bad("skipped", calls=(ONE, TWO), settings={"max_calls_per_round": 1}),
    "a run that is stopped": Bad("cancelled", HANG, respond=stop),
    "a person who says nothing": Bad(
        "approval_declined", body={"approval": "always"}, settings={"input_timeout_ms": 50}
    ),
    "a tool that has changed": Bad(
        "tool_changed", respond=accept, body={"approval": "always"}, replies={"tools/list": listing("a", "b")}
    ),
}


@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
async def test_failing_call_has_one_of_the_codes_and_the_snapshot_says_the_same(row: Bad) -> None:
    answers = [stream(*row.calls, end("tool_calls"))]
    replies: Replies = {**({"tools/call": row.reply} if row.reply else {}), **row.replies}

    def script(_request: Request) -> Answer:
        return answers.pop() if answers else stream(text("Done."), end())

    async with opened(script, replies, **row.settings) as service:
        async with service.streaming(model="m", **row.body) as (response, source):
            run = Run(response)
            async for event in events(source):
                run.events.append(event)
                RunEvent.model_validate(event.data)
                await row.respond(service, response.headers["x-run-id"], event.data)
        shown = await service.client.get(f"/v1/runs/{response.headers['x-run-id']}")
    assert [data["code"] for data in run.named("tool/error")] == [row.code]
    assert row.code in OF_CALLS
    snapshot = RunSnapshot.model_validate(shown.json())
    assert [made.error.code for made in snapshot.calls if made.error] == [row.code]


# What stands in paths, queries and headers

ODD_PATHS = [
    f"/v1/runs/{ECHO}",
    f"/v1/runs/{ECHO}/events",
    f"/v1/runs/{NO_RUN[9:]}/events?after={ECHO}",
    f"/v1/runs/{NO_RUN[9:]}/events?after=%00{ECHO}&after=1",
    f"/v1/runs/{NO_RUN[9:]}/events?token={ECHO}&token={ECHO}",
    f"/v1/runs/%ff%fe{ECHO}",
    f"/v1/runs/%00{ECHO}%0d%0aX-Evil:%201",
    f"/v1/runs/%ed%a0%80{ECHO}",
    f"/v1/runs/%{ECHO}",
    f"/v1/runs/..%2f..%2f{ECHO}",
    f"/v1/runs/{ECHO * 500}",
    f"/{ECHO}%c0%af",
    f"/v1/models?{ECHO}={ECHO}&%ff=%ff",
    f"//{ECHO}/v1/models",
    f"/v1/servers?limit={ECHO}",
]
ODD_HEADERS = {
    "a cursor": ("Last-Event-ID", ECHO.encode()),
    "bytes in a cursor": ("Last-Event-ID", b"\xff\xfe" + ECHO.encode()),
    "a cursor of other digits": ("Last-Event-ID", "٣".encode() + ECHO.encode()),
    "a long cursor": ("Last-Event-ID", b"9" * 5000),
    "a long key": ("Idempotency-Key", ECHO.encode() * 100),
    "bytes in a key": ("Idempotency-Key", b"\xff\xfe" + ECHO.encode()),
    "bytes in a token": ("X-User-Token", b"\xff" + ECHO.encode()),
    "a blank in a token": ("X-User-Token", b"a " + ECHO.encode()),
    "bytes in a request's id": ("X-Request-Id", b"\xff" + ECHO.encode()),
    "bytes in a user's name": ("X-End-User", b"\xff" + ECHO.encode()),
    "bytes in a key of the service": ("Authorization", b"Bearer \xff" + ECHO.encode()),
    "bytes in a media type": ("Content-Type", b"application/json; charset=\xff" + ECHO.encode()),
    "another charset": ("Content-Type", b"application/json; charset=" + ECHO.encode()),
    "bytes in an origin": ("Origin", b"\xff" + ECHO.encode()),
    "bytes in what is taken": ("Accept", b"\xff" + ECHO.encode()),
    "a length that is none": ("Content-Length", b"2" + ECHO.encode()),
}


async def exchange(service: Service, head: str, *headers: tuple[str, bytes], body: bytes = b"") -> tuple[int, str]:
    """Send bytes as they are; returns the status and all that came back."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    names = {name.lower() for name, _ in headers}
    usual = [("Host", f"{host}:{port}".encode()), ("Authorization", f"Bearer {KEY}".encode()), ("Connection", b"close")]
    usual += [("Content-Type", b"application/json"), ("Content-Length", str(len(body)).encode())]
    lines = [*(header for header in usual if header[0].lower() not in names), *headers]
    fields = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in lines)
    raw = head.encode("latin-1") + b" HTTP/1.1\r\n" + fields
    told = b""
    async with await anyio.connect_tcp(host, int(port)) as connection:
        await connection.send(raw + b"\r\n" + body)
        with anyio.fail_after(10):
            async for data in connection:
                told += data
    return int(told.split(b" ", 2)[1]), told.decode("latin-1")


@pytest.mark.parametrize("path", ODD_PATHS, ids=range(len(ODD_PATHS)))
async def test_odd_path_or_query_is_no_fault_and_is_not_repeated(path: str) -> None:
    async with opened() as service:
        told = [await exchange(service, f"{method} {path}") for method in ("GET", "POST", "DELETE")]
    assert [status for status, _ in told if status >= 500] == []
    assert [text_ for _, text_ in told if ECHO in text_ or "Evil" in text_] == []


@pytest.mark.parametrize("header", ODD_HEADERS.values(), ids=ODD_HEADERS)
async def test_odd_header_is_no_fault_and_is_not_repeated(header: tuple[str, bytes]) -> None:
    body = json.dumps({"messages": USER, "model": "m"}).encode()
    async with opened() as service:
        run_id = (await service.whole(model="m")).headers["x-run-id"]
        told = [
            await exchange(service, "POST /v1/runs", header, body=body),
            await exchange(service, f"GET /v1/runs/{run_id}/events", header),
            await exchange(service, f"POST /v1/runs/{run_id}/inputs/a", header, body=b'{"action": "accept"}'),
            await exchange(service, "POST /v1/servers/check", header, body=b'{"name": "box"}'),
        ]
    assert [status for status, _ in told if status >= 500] == []
    assert [text_ for _, text_ in told if ECHO in text_] == []


# What stands in bodies

IMPOSSIBLE = {
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "too large a number": b"1e999",
    "half a pair": f'"{ECHO}\\ud800"'.encode(),
    "half a pair as a name": f'{{"{ECHO}\\udc00": 1}}'.encode(),
}
ODD_VALUES = {
    "an object": f'{{"a": ["{ECHO}"]}}'.encode(),
    "a list": f'["{ECHO}", ["{ECHO}"]]'.encode(),
    "a text": f'"{ECHO}"'.encode(),
    "a number of many digits": b"1" * 5000,
    "deep": b"[" * 5000,
}
FIELDS = {
    "/v1/runs": ["model", "servers", "timezone", "temperature", "metadata", "tool_choice", "messages", "max_rounds"],
    "/v1/servers/check": ["url", "headers", "timeout_ms", "allowed_tools"],
    "inputs": ["action", "content", "remember", "reason"],
}


@pytest.mark.parametrize("value", [*IMPOSSIBLE.values(), *ODD_VALUES.values()], ids=[*IMPOSSIBLE, *ODD_VALUES])
async def test_odd_value_in_any_body_is_no_fault_and_is_not_repeated_where_it_is_refused(value: bytes) -> None:
    ask = stream(call(0, "c1", "act", "{}"), end("tool_calls"))
    told: list[httpx.Response] = []
    async with opened([ask, *[stream(text("Done."), end())] * 9]) as service:
        asking = (await service.whole(model="m", approval="always")).json()
        inputs = f"/v1/runs/{asking['id']}/inputs/{asking['inputs'][0]['inputId']}"
        for path, fields in FIELDS.items():
            basic: dict[str, Any] = {"name": "a", "url": "https://a.example/"} if "check" in path else {"action": ECHO}
            basic = {"messages": USER, "model": "m"} if path == "/v1/runs" else basic
            for field_ in fields:
                rest = b"".join(
                    b", %b" % json.dumps({key: item})[1:-1].encode() for key, item in basic.items() if key != field_
                )
                content = b'{"%b": %b%b}' % (field_.encode(), value, rest)
                told.append(await post(content, inputs if path == "inputs" else path)(service))
    refused = [answer for answer in told if answer.status_code >= 300]
    assert {(answer.status_code, problem_in(answer)) for answer in refused} <= {
        (422, "invalid_request"),
        (400, "invalid_request"),
    }
    assert [answer.text for answer in refused if ECHO in answer.text] == []
    if value in IMPOSSIBLE.values():
        assert [answer.status_code for answer in told] == [422] * len(told)
