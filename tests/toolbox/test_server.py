"""One MCP connection: how it is made, what its tools are, how calls end. Through the room's door, over real sockets."""

import gzip
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.domain.jsontypes import JsonObject
from app.domain.messages import Progress
from app.domain.secrets import Secret
from app.toolbox.box import open_servers
from app.toolbox.listing import ListingLimits
from app.toolbox.wire import EgressLimits
from tests.fakes.mcp_servers import TOOL_NAMES, FakeMcpServer, Kind, open_mcp_server, wait_until
from tests.fakes.raw_mcp import (
    CUT,
    HANG,
    Era,
    RawRequest,
    Reply,
    error,
    error_of,
    http_reply,
    json_reply,
    open_raw_mcp,
    progress_of,
    result,
    result_of,
    sse_frame,
    sse_reply,
    text_result,
    tool_entry,
)
from tests.fakes.toolboxes import LOCAL, open_lone_run, open_run, operator, user

pytestmark = pytest.mark.anyio

MODERN_HELLO: JsonObject = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
LEGACY_HELLO: JsonObject = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}
MARKER = "MARKER-7f3a"
HTML = f"<html>{MARKER}</html>".encode()
KINDS: tuple[Kind, ...] = ("modern", "legacy", "legacy-stateless", "sse")
STOPPABLE: tuple[Kind, ...] = ("modern", "legacy", "sse")
"""A handshake server without sessions cannot tell which call a cancellation means."""


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_server_lists_its_tools_and_runs_them(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_lone_run(operator(server.url)) as run:
        assert run.report.state == "ready"
        assert list(run.report.tools) == TOOL_NAMES
        assert (await run.call("echo", text="grüß")).text == "grüß"
        assert (await run.call("add", a=1, b=2)).text == "3"
        failed = await run.call("fail", reason="no such city")
        assert failed.error_code == "tool_failed"
        assert "no such city" in failed.text
        assert "21" in (await run.call("structured")).text
        (output,) = (await run.call("image")).outputs
        assert output["content"][0]["type"] == "image"
        assert server.rpc["tools/list"] == 1, "calls must not list behind our back"


async def test_json_replies_are_as_good_as_event_streams() -> None:
    async with open_mcp_server("modern", json_response=True) as server, open_lone_run(operator(server.url)) as run:
        assert (await run.call("echo", text="hi")).text == "hi"


REFUSALS: Sequence[tuple[str, Reply, str, str]] = [
    ("401", http_reply(401, HTML, WWW_Authenticate='Bearer realm="x"'), "authRequired", "authorization"),
    ("401 bare", http_reply(401, HTML), "authRequired", "authorization"),
    ("403 with challenge", http_reply(403, HTML, WWW_Authenticate="Bearer"), "authRequired", "authorization"),
    ("403", http_reply(403, HTML), "unavailable", "HTTP status 403"),
    ("429", http_reply(429, HTML, Retry_After="30"), "unavailable", "429 and asks to wait 30 seconds"),
    ("500", http_reply(500, HTML, "text/html"), "unavailable", "HTTP status 500"),
    ("200 html", http_reply(200, HTML, "text/html"), "unavailable", "type text/html that is not MCP"),
    ("foreign json", json_reply({"secret": MARKER}), "unavailable", "not MCP"),
    ("foreign error", json_reply({"secret": MARKER}, 400), "unavailable", "HTTP status 400"),
    ("broken json", http_reply(200, b'{"jsonrpc": "2.0" ' + HTML, "application/json"), "unavailable", "not MCP"),
    ("empty", http_reply(200, b"", None), "unavailable", "not MCP"),
    ("accepted only", http_reply(202), "unavailable", "did not answer"),
    ("cut", CUT, "unavailable", "broke off"),
    ("elsewhere", http_reply(307, HTML, Location=f"http://127.0.0.2:9/{MARKER}"), "unavailable", "another place"),
    ("elsewhere by GET", http_reply(302, HTML, Location="/other"), "unavailable", "another place"),
    ("event stream of nothing", sse_reply([]), "unavailable", "broke off"),
    ("event stream of junk", sse_reply([{"x": MARKER}]), "unavailable", "broke off"),
    (
        "no discovery and no hello",
        error(-32601, "what?"),
        "unavailable",
        "what?",
    ),
    ("hello without content", result({}), "unavailable", "handshake"),
    ("gzip", http_reply(200, gzip.compress(HTML), Content_Encoding="gzip"), "unavailable", "compressed"),
    ("too much", http_reply(200, b'{"x":"' + b"a" * 5_000_000, "application/json"), "unavailable", "too large"),
    ("never", HANG, "unavailable", "did not get ready within 1 seconds"),
]


@pytest.mark.parametrize(("reply", "state", "message"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_server_that_cannot_be_used_says_why_and_no_foreign_word(reply: Reply, state: str, message: str) -> None:
    replies = {"server/discover": reply, "initialize": reply}
    async with (
        open_raw_mcp(replies) as raw,
        open_lone_run(operator(f"{raw.url}?key={MARKER}"), connect_seconds=1.0) as run,
    ):
        report = run.report
        assert report.state == state
        assert message in (report.message or "")
        assert MARKER not in json.dumps(report.data())
        assert not run.box.tools


@pytest.mark.parametrize(("reply", "state", "message"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_all_that_a_look_up_tells_of_a_users_server_is_one_sentence(
    reply: Reply, state: str, message: str
) -> None:
    del message
    replies = {"server/discover": reply, "initialize": reply}
    async with open_raw_mcp(replies) as raw, open_lone_run(user(raw.url), connect_seconds=1.0) as run:
        assert run.report.state == state
        if state == "unavailable":
            assert run.report.code == "server_unreachable"
            assert run.report.message == "The server cannot be reached."


async def test_challenge_is_passed_on_without_the_token_it_repeats_and_nothing_is_tried_again() -> None:
    challenge = 'Bearer error="bad sk-secret-1", resource_metadata="https://a.example/x"'
    replies = {"server/discover": http_reply(401, b"", WWW_Authenticate=challenge)}
    headers = {"Authorization": Secret("Bearer sk-secret-1")}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url, headers=headers)) as run:
        assert run.report.challenge == 'Bearer error="bad …", resource_metadata="https://a.example/x"'
        assert dict(raw.asked) == {"server/discover": 1}


def unsupported(*versions: str) -> Reply:
    """Refuse a version and name others."""

    def reply(request: RawRequest) -> bytes:
        refusal = error_of(request, -32022, "Unsupported protocol version")
        refusal["error"]["data"] = {"supported": list(versions), "requested": "2026-07-28"}
        return json_reply(refusal, 400)

    return reply


@pytest.mark.parametrize("protocol", ["auto", "modern"])
async def test_modern_server_that_refuses_and_names_our_version_is_asked_once_more(protocol: Any) -> None:
    discovered: JsonObject = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    replies: dict[str, Any] = {"server/discover": [unsupported("2026-07-28"), result(discovered)]}
    async with open_raw_mcp(replies, era="modern") as raw, open_lone_run(operator(raw.url, protocol=protocol)) as run:
        assert run.report.state == "ready"
        assert (raw.asked["server/discover"], raw.asked["initialize"]) == (2, 0)


async def test_server_that_names_handshake_versions_gets_the_handshake() -> None:
    replies = {"server/discover": unsupported("2025-11-25", "2025-06-18")}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        assert run.report.state == "ready"
        assert (raw.asked["server/discover"], raw.asked["initialize"]) == (1, 1)


@pytest.mark.parametrize(("versions", "handshakes"), [(("2031-01-01",), 0), ((), 1), (("2031-01-01", "2025-11-25"), 1)])
async def test_server_of_another_time_is_given_up_without_a_handshake_that_it_does_not_know(
    versions: tuple[str, ...], handshakes: int
) -> None:
    replies = {"server/discover": unsupported(*versions)}
    async with open_raw_mcp(replies, era="modern") as raw, open_lone_run(operator(raw.url)) as run:
        assert run.report.state == "unavailable"
        assert raw.asked["initialize"] == handshakes


async def test_pinned_era_that_never_answers_is_given_up_after_the_probe() -> None:
    async with (
        open_raw_mcp({"server/discover": HANG}) as raw,
        open_lone_run(operator(raw.url, protocol="modern"), connect_seconds=5.0) as run,
    ):
        assert run.report.message == "The server did not answer in time."
        assert dict(raw.asked) == {"server/discover": 1}


async def test_server_without_trusted_tls_is_told_apart() -> None:
    async with open_mcp_server() as server, open_lone_run(operator(server.url.replace("http:", "https:"))) as run:
        assert run.report.message == "No trusted TLS connection to the server can be made."


async def test_tls_handshake_that_never_ends_is_given_up_and_its_socket_closed() -> None:
    options = replace(LOCAL, egress=EgressLimits(connect_seconds=0.1))
    async with open_raw_mcp() as raw:  # waits for a request's end, which no TLS handshake contains
        url = raw.url.replace("http:", "https:")
        async with open_lone_run(operator(url), options=options, probe_seconds=1.0) as run:
            assert run.report.message == "The server did not accept the connection in time."
        await wait_until(lambda: raw.open_connections == 0)


@pytest.mark.parametrize(
    "stream", [CUT, http_reply(200, gzip.compress(HTML), "text/event-stream", Content_Encoding="gzip"), sse_reply([])]
)
async def test_first_error_is_kept_when_the_sse_stream_is_no_better(stream: Reply) -> None:
    replies = {"server/discover": http_reply(405), "initialize": http_reply(405), "GET": stream}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url), connect_seconds=1.0) as run:
        assert raw.asked["GET"] == 1
        assert run.report.message == "The server answered with HTTP status 405."


@pytest.mark.parametrize("where", ["GET", "POST"])
async def test_authorization_that_only_the_sse_transport_asks_for_is_told(where: str) -> None:
    wants = http_reply(401, b"", WWW_Authenticate="Bearer realm=x")
    script = SseScript(http_reply(202))
    replies = script.replies if where == "POST" else {**script.replies, "GET": wants}
    refusing = {
        method: [http_reply(405), wants] if where == "POST" else http_reply(405)
        for method in ("server/discover", "initialize")
    }
    async with (
        open_raw_mcp({**replies, **refusing}) as raw,
        open_lone_run(operator(raw.url), connect_seconds=10.0, probe_seconds=5.0) as run,
    ):
        assert run.report.state == "authRequired"
        assert run.report.challenge == "Bearer realm=x"


async def test_last_word_of_the_handshake_is_the_one_that_is_told() -> None:
    replies: dict[str, Reply] = {"server/discover": http_reply(405), "initialize": error(-32000, "closed for today")}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        assert run.report.message == "closed for today"
        assert raw.asked["GET"] == 0


async def test_nobody_listening_costs_one_attempt() -> None:
    async with open_raw_mcp() as raw:
        url = raw.url
    async with open_lone_run(operator(url)) as run:
        assert run.report.state == "unavailable"
        assert run.report.message == "The server does not accept connections."


@pytest.mark.parametrize(("status", "falls_back"), [(400, True), (404, True), (405, True), (401, False), (500, False)])
async def test_sse_is_tried_only_after_the_statuses_of_a_wrong_transport(status: int, *, falls_back: bool) -> None:
    replies = {"server/discover": http_reply(status), "initialize": http_reply(status), "GET": http_reply(503)}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        assert (raw.asked["GET"] > 0) == falls_back
        if status != 401:
            assert run.report.message == f"The server answered with HTTP status {status}.", "the first error is kept"


GOOD_STARTS: Sequence[tuple[str, Era, dict[str, Any]]] = [
    ("unknown method", "legacy", {}),
    ("400 to the unknown method", "legacy", {"server/discover": http_reply(400, b"no session")}),
    ("500 to the unknown method", "legacy", {"server/discover": http_reply(500, b"oops")}),
    ("silence to the unknown method", "legacy", {"server/discover": HANG}),
    ("handshake acknowledged with text", "legacy", {"notifications/initialized": http_reply(202, b"ok")}),
    (
        "handshake acknowledged with a pseudo body",
        "legacy",
        {"notifications/initialized": json_reply({"jsonrpc": "2.0", "id": None, "result": {}})},
    ),
    (
        "acknowledgement redirected",
        "legacy",
        {"notifications/initialized": [http_reply(307, Location="/mcp/"), http_reply(202)]},
    ),
    ("acknowledgement refused", "legacy", {"notifications/initialized": http_reply(500)}),
    ("no media type", "modern", {"tools/list": result({"tools": [tool_entry("echo")]}, content_type=None)}),
    (
        "media type with parameters",
        "legacy",
        {"tools/list": result({"tools": [tool_entry("echo")]}, content_type="Application/JSON; charset=utf-8")},
    ),
    (
        "redirect within the origin",
        "modern",
        {"server/discover": [http_reply(307, Location="/mcp/"), result(MODERN_HELLO)]},
    ),
]


@pytest.mark.parametrize(("era", "replies"), [row[1:] for row in GOOD_STARTS], ids=[row[0] for row in GOOD_STARTS])
async def test_odd_but_usable_servers_are_used(era: Era, replies: dict[str, Any]) -> None:
    async with open_raw_mcp(replies, era=era) as raw, open_lone_run(operator(raw.url)) as run:
        assert run.report.message is None
        assert list(run.report.tools) == ["echo"]
        assert (await run.call("echo")).text == "fine"


async def test_modern_server_that_was_slow_to_start_is_asked_again() -> None:
    async with (
        open_raw_mcp({"server/discover": [HANG, result(MODERN_HELLO)]}, era="modern") as raw,
        open_lone_run(operator(raw.url)) as run,
    ):
        assert list(run.report.tools) == ["echo"]


@pytest.mark.parametrize(("protocol", "asked"), [("legacy", {"initialize": 1}), ("modern", {"server/discover": 1})])
async def test_pinned_protocol_is_the_only_one_tried(protocol: str, asked: dict[str, int]) -> None:
    async with open_mcp_server("modern") as server, open_lone_run(operator(server.url, protocol=protocol)) as run:
        assert run.report.state == "ready"
        tried = {method: count for method, count in server.rpc.items() if method in ("initialize", "server/discover")}
        assert tried == asked


@pytest.mark.parametrize("kind", KINDS)
async def test_second_connection_remembers_era_and_transport(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_servers(LOCAL) as servers:
        for _ in range(2):
            async with open_run(servers, operator(server.url)) as run:
                assert (await run.call("echo", text="x")).text == "x"
                for connection in list(servers._means.pool._all()):
                    connection.close()
        probes = 2 if kind == "sse" else 1
        assert server.rpc["server/discover"] == probes, "once over each transport, then never again"
        assert server.rpc["initialize"] == {"modern": 0, "legacy": 2, "legacy-stateless": 2, "sse": 1}[kind]


DEPLOYMENTS: Sequence[tuple[Kind, Kind]] = [
    ("modern", "legacy"),
    ("modern", "legacy-stateless"),
    ("legacy-stateless", "legacy"),
    ("legacy-stateless", "modern"),
    ("legacy", "modern"),
    ("legacy", "legacy"),
]


@pytest.mark.parametrize(("before", "after"), DEPLOYMENTS)
async def test_server_deployed_anew_in_another_era_costs_no_call(before: Kind, after: Kind) -> None:
    async with open_servers(LOCAL) as servers:
        async with open_mcp_server(before) as server, open_run(servers, operator(server.url)) as run:
            port = port_of(server)
            assert (await run.call("echo", text="x")).text == "x"
        async with open_mcp_server(after, port=port) as server, open_run(servers, operator(server.url)) as run:
            texts: list[str] = []

            async def use() -> None:
                texts.append((await run.call("echo", text="y")).text)

            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(use)
            assert texts == ["y", "y"]
            assert server.started == ["echo", "echo"]


def refused(code: int, message: str, status: int) -> bytes:
    """What a transport says: it has not read whose request it is."""
    return json_reply({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}, status)


@pytest.mark.parametrize(
    ("refusal", "attempts"),
    [
        (refused(-32000, "Bad Request: No valid session ID provided", 400), 2),
        (refused(-32600, "Bad Request: Mcp-Session-Id header is required", 400), 2),
        (error(-32600, "Bad Request: Mcp-Session-Id header is required", status=400), 2),
        (refused(-32000, "Bad Request: Unsupported protocol version (supported versions: 1)", 400), 2),
        (refused(-32000, "Bad Request: Server not initialized", 400), 2),
        (refused(-32001, "Session not found", 404), 2),
        (error(-32602, "Unknown session cart-17 (paid already)", status=400), 1),
        (error(-32000, "No valid session ID in the cart", status=400), 1),
        (error(-32001, "Session not found: it was closed by this call", status=404), 1),
        (http_reply(400, b"Invalid session ID"), 2),
        (http_reply(404, HTML), 2),
        (http_reply(405), 2),
        (error(-32602, "Unknown city", status=400), 1),
        (error(-32602, "Bad Request: Unsupported protocol version"), 1),
        (http_reply(400, HTML), 1),
        (http_reply(500, b"session not found"), 1),
    ],
)
async def test_call_is_repeated_only_where_the_transport_refused_it_before_it_could_run(
    refusal: Reply, attempts: int
) -> None:
    fine = result(text_result("fine"))
    async with (
        open_raw_mcp({"tools/call": [fine, refusal, fine]}, era="modern") as raw,
        open_lone_run(operator(raw.url)) as run,
    ):
        assert (await run.call("echo")).text == "fine"
        code = (await run.call("echo")).error_code
        assert code is None if attempts == 2 else code in ("tool_failed", "tool_outcome_unknown")
        assert raw.asked["tools/call"] == 1 + attempts


async def test_first_call_over_a_remembered_era_that_is_no_longer_true_is_repeated() -> None:
    async with open_servers(LOCAL) as servers:
        async with open_mcp_server("modern") as server, open_run(servers, operator(server.url)) as run:
            port = port_of(server)
            assert run.report.state == "ready"
            for connection in list(servers._means.pool._all()):
                connection.close()
        async with open_mcp_server("legacy", port=port) as server, open_run(servers, operator(server.url)) as run:
            assert (await run.call("echo", text="y")).text == "y"
            assert server.started == ["echo"]


def port_of(server: FakeMcpServer) -> int:
    return int(server.url.split(":")[2].split("/")[0])


async def test_all_pages_are_listed_until_a_cursor_repeats() -> None:
    def page(request: RawRequest) -> bytes:
        number = int(request.rpc.get("params", {}).get("cursor", "0"))
        listed = {"tools": [tool_entry(f"t{number}")], "nextCursor": str(min(number + 1, 3))}
        return json_reply(result_of(request, listed))

    async with open_raw_mcp({"tools/list": page}) as raw, open_lone_run(operator(raw.url)) as run:
        assert list(run.report.tools) == ["t0", "t1", "t2", "t3"]
        assert raw.asked["tools/list"] == 5 - 1


@pytest.mark.parametrize(("tools_a_page", "listed", "pages"), [(1, 5, 5), (4, 8, 2), (50, 8, 1)])
async def test_endless_listing_ends_at_a_page_or_a_tool_too_many(tools_a_page: int, listed: int, pages: int) -> None:
    def page(request: RawRequest) -> bytes:
        number = int(request.rpc.get("params", {}).get("cursor", "0"))
        tools = [tool_entry(f"t{number}_{index}") for index in range(tools_a_page)]
        return json_reply(result_of(request, {"tools": tools, "nextCursor": str(number + 1)}))

    async with open_raw_mcp({"tools/list": page}) as raw, open_lone_run(operator(raw.url), pages=5, tools=8) as run:
        assert len(run.box.tools) == listed
        assert raw.asked["tools/list"] == pages


ODD_ENTRIES: Sequence[tuple[str, Any, bool]] = [
    ("output schema that is no schema", tool_entry("odd", outputSchema={"$id": 7}), True),
    ("output schema that is no object", tool_entry("odd", outputSchema=[1]), True),
    ("annotations that are none", tool_entry("odd", annotations="safe"), True),
    ("hints of the wrong type", tool_entry("odd", annotations={"readOnlyHint": {"x": 1}}), True),
    ("icons that are none", tool_entry("odd", icons="x.png"), True),
    ("description that is a number", tool_entry("odd", description=5), True),
    ("no schema", {"name": "odd"}, True),
    ("schema null", tool_entry("odd", inputSchema=None), True),
    ("schema without type", tool_entry("odd", inputSchema={"properties": {"a": {}}}), True),
    ("name missing", {"inputSchema": {"type": "object"}}, False),
    ("name empty", tool_entry(""), False),
    ("name a number", {**tool_entry("x"), "name": 5}, False),
    ("not an object", "odd", False),
    ("null", None, False),
    ("tasks only", tool_entry("odd", execution={"taskSupport": "required"}), False),
]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("entry", "usable"), [row[1:] for row in ODD_ENTRIES], ids=[row[0] for row in ODD_ENTRIES])
async def test_odd_entry_does_not_cost_the_good_ones(era: Era, entry: Any, *, usable: bool) -> None:
    tools = [tool_entry("first"), entry, tool_entry("last")]
    async with open_raw_mcp(era=era, tools=tools) as raw, open_lone_run(operator(raw.url)) as run:
        assert run.names == (["first", "odd", "last"] if usable else ["first", "last"])
        assert all(tool.spec.description for tool in run.box.tools)
        if usable:
            assert (await run.call("odd")).text == "fine"


async def test_server_without_tools_is_ready_with_none() -> None:
    hello: JsonObject = {**LEGACY_HELLO, "capabilities": {}}
    replies = {"initialize": result(hello), "tools/list": error(-32601, "Method not found")}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        assert run.report.state == "ready"
        assert not run.box.tools


NO_ID: JsonObject = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "bad things"}}
FOR_ANOTHER: JsonObject = {"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": MARKER}]}}
FAILED_CALLS: Sequence[tuple[str, Reply, str, str]] = [
    ("error", error(-32000, "broker down"), "tool_failed", "broker down"),
    ("error, no type", error(-32000, "broker down", content_type=None), "tool_failed", "broker down"),
    ("error with status", error(-32602, "no such tool", status=400), "tool_failed", "no such tool"),
    ("error without id", json_reply(NO_ID, 400), "tool_failed", "bad things"),
    ("error in a stream", lambda r: sse_reply([error_of(r, -32000, "broker down")]), "tool_failed", "broker down"),
    ("says our secret", error(1, "bad key sk-secret-1!"), "tool_failed", "bad key …!"),
    ("isError", result({**text_result("no such city"), "isError": True}), "tool_failed", "no such city"),
    ("401", http_reply(401, HTML), "tool_failed", "authorization"),
    ("429", http_reply(429, HTML), "tool_failed", "HTTP status 429"),
    ("408", http_reply(408, HTML), "tool_outcome_unknown", "HTTP status 408"),
    ("500", http_reply(500, HTML), "tool_outcome_unknown", "HTTP status 500"),
    ("500 without MCP", json_reply({"error": MARKER}, 500), "tool_outcome_unknown", "HTTP status 500"),
    ("500 that says why", error(-32000, "broker down", status=500), "tool_failed", "broker down"),
    ("524", http_reply(524, HTML), "tool_outcome_unknown", "HTTP status 524"),
    ("502", http_reply(502, HTML, "text/html"), "tool_outcome_unknown", "HTTP status 502"),
    ("html", http_reply(200, HTML, "text/html"), "tool_outcome_unknown", "not MCP"),
    ("foreign json", json_reply({"secret": MARKER}), "tool_outcome_unknown", "not MCP"),
    ("foreign event", sse_reply([{"secret": MARKER}]), "tool_outcome_unknown", "broke off"),
    (
        "event too large",
        lambda r: sse_reply([result_of(r, text_result("a" * 1_100_000))]),
        "tool_outcome_unknown",
        "too large",
    ),
    ("parse error of the server", error(-32700, "we cannot parse you"), "tool_failed", "we cannot parse you"),
    ("error of no request", json_reply(NO_ID), "tool_failed", "bad things"),
    ("error of no request in a stream", sse_reply([NO_ID]), "tool_failed", "bad things"),
    ("error without an id", json_reply({"jsonrpc": "2.0", "error": NO_ID["error"]}), "tool_failed", "bad things"),
    ("result of another request", json_reply({**FOR_ANOTHER, "id": 999}), "tool_outcome_unknown", "not MCP"),
    ("result of a named request", json_reply({**FOR_ANOTHER, "id": "x"}), "tool_outcome_unknown", "not MCP"),
    ("result of no request", json_reply({**FOR_ANOTHER, "id": None}), "tool_outcome_unknown", "not MCP"),
    ("error of another request", json_reply({**NO_ID, "id": 999}), "tool_outcome_unknown", "not MCP"),
    ("error that is none", json_reply({"jsonrpc": "2.0", "id": 3, "error": "x"}), "tool_outcome_unknown", "not MCP"),
    ("no result", result({}), "tool_failed", "not the result of a tool"),
    ("asks a person", result({"resultType": "input_required", "inputRequests": {"a": {}}}), "tool_failed", "ask"),
    ("asks for nothing", result({"resultType": "input_required"}), "tool_failed", "asks"),
    (
        "too large",
        http_reply(200, b'{"x":"' + b"a" * 5_000_000, "application/json"),
        "tool_outcome_unknown",
        "too large",
    ),
    ("accepted only", http_reply(202), "tool_outcome_unknown", "did not answer"),
    ("cut", CUT, "tool_outcome_unknown", "not known whether"),
    ("stream ends early", sse_reply([]), "tool_outcome_unknown", "not known whether"),
    ("silence", HANG, "tool_timeout", "no sign of life for 0.3 seconds"),
    ("elsewhere", http_reply(307, HTML, Location="http://127.0.0.2:9/"), "server_unreachable", "another place"),
]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("reply", "code", "message"), [row[1:] for row in FAILED_CALLS], ids=[row[0] for row in FAILED_CALLS]
)
async def test_failed_call_says_why_stays_alone_and_is_not_sent_again(
    era: Era, reply: Reply, code: str, message: str
) -> None:
    def echo(request: RawRequest) -> Any:
        if request.rpc["params"]["name"] == "good":
            return json_reply(result_of(request, text_result("fine")))
        return reply(request) if callable(reply) else reply

    tools = [tool_entry("bad"), tool_entry("good")]
    headers = {"Authorization": Secret("Bearer sk-secret-1")}
    async with (
        open_raw_mcp({"tools/call": echo}, era=era, tools=tools) as raw,
        open_lone_run(operator(raw.url, headers=headers, timeout_seconds=0.3)) as run,
    ):
        outcome = await run.call("bad")
        assert outcome.error_code == code
        assert message in outcome.text
        assert message in outcome.message
        assert MARKER not in outcome.text + outcome.message
        assert (await run.call("good")).text == "fine"
        assert raw.asked["tools/call"] == 2, "never twice"


REPEATED: Sequence[tuple[str, str, dict[str, str]]] = [
    ("?apiKey=s%2Fecret%2Bvalue99", "no s%2Fecret%2Bvalue99 or s/ecret+value99 or s%2fecret%2bvalue99", {}),
    ("?apiKey=with+space%20s", "no 'with space s', with+space%20s, with%20space%20s", {}),
    ("?barewordkey", "no barewordkey", {}),
    ("", "no sharedprefixREST42, no sharedprefix", {"X-A": "sharedprefix", "X-B": "sharedprefixREST42"}),
    ("", "no abcdef123456, no zyxwvu", {"Cookie": "session=abcdef123456; csrf=zyxwvu"}),
    ("", "x" * 1990 + " s3cret-of-ours", {"X-A": "s3cret-of-ours"}),
]
_PARTS = ("ecret", "value99", "with", "space", "bareword", "prefix", "REST", "abcdef", "zyxw", "s3c")


@pytest.mark.parametrize(("query", "text", "headers"), REPEATED)
async def test_nothing_that_the_server_repeats_of_our_secrets_is_shown(
    query: str, text: str, headers: dict[str, str]
) -> None:
    secrets = {name: Secret(value) for name, value in headers.items()}
    challenge = http_reply(401, b"", WWW_Authenticate=f'Bearer error="{text}"')
    for method, reply in (("tools/call", error(1, text)), ("tools/list", error(1, text)), ("tools/list", challenge)):
        async with (
            open_raw_mcp({method: reply}) as raw,
            open_lone_run(operator(raw.url + query, headers=secrets)) as run,
        ):
            shown = run.report.data() if method == "tools/list" else (await run.call("echo")).message
            assert "…" in str(shown) or len(text) > 1000
            assert not [part for part in _PARTS if part in str(shown)]


async def test_answer_that_streams_without_end_is_cut_and_costs_its_call_only() -> None:
    def flood(request: RawRequest) -> bytes:
        noise = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}}
        return (
            sse_reply([noise] * 200, end=False)
            if request.rpc["params"]["arguments"]
            else sse_reply([result_of(request, text_result("fine"))])
        )

    options = replace(LOCAL, egress=EgressLimits(stream_bytes=100_000))
    async with (
        open_raw_mcp({"tools/call": flood}) as raw,
        open_lone_run(operator(raw.url), options=options) as run,
    ):
        with anyio.fail_after(3):
            assert (await run.call("echo", much=True)).error_code == "tool_outcome_unknown"
        assert (await run.call("echo")).text == "fine"


GOOD_RESULTS: Sequence[tuple[str, dict[str, Any], str]] = [
    ("fields of the era missing", {"content": [{"type": "text", "text": "7"}]}, "7"),
    ("structure only", {"content": [], "structuredContent": {"n": 7}}, "7"),
    ("structure without content", {"structuredContent": {"n": 7}}, "7"),
    ("structure that is a list", {"content": [], "structuredContent": [7]}, "7"),
    ("a block that is none", {"content": [{"type": "what"}, {"type": "text", "text": "7"}]}, "7"),
    ("isError that is neither", {"content": [{"type": "text", "text": "7"}], "isError": [1]}, "7"),
    ("structure that breaks its schema", {"content": [{"type": "text", "text": "7"}], "structuredContent": {}}, "7"),
]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("given", "text"), [row[1:] for row in GOOD_RESULTS], ids=[row[0] for row in GOOD_RESULTS])
async def test_odd_but_readable_results_are_read(era: Era, given: dict[str, Any], text: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [tool_entry("get", outputSchema=schema)]
    async with (
        open_raw_mcp({"tools/call": result(given)}, era=era, tools=tools) as raw,
        open_lone_run(operator(raw.url)) as run,
    ):
        outcome = await run.call("get")
        assert outcome.error_code is None
        assert text in outcome.text
        assert raw.asked["tools/list"] == 1


async def test_forgotten_session_is_replaced_once_for_all_calls_that_met_it() -> None:
    forgotten = {"sessions": 0}

    def hello(request: RawRequest) -> bytes:
        forgotten["sessions"] += 1
        return json_reply(result_of(request, LEGACY_HELLO), Mcp_Session_Id=f"s{forgotten['sessions']}")

    def call(request: RawRequest) -> bytes:
        if request.headers["mcp-session-id"] == "s1":
            return http_reply(404, HTML)
        return json_reply(result_of(request, text_result(request.headers["mcp-session-id"])))

    replies: dict[str, Reply] = {"initialize": hello, "tools/call": call}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        texts: list[str] = []

        async def use() -> None:
            texts.append((await run.call("echo")).text)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(use)
        assert texts == ["s2", "s2", "s2"]
        assert raw.asked["initialize"] == 2
        assert raw.asked["tools/call"] == 6
    assert raw.asked["DELETE"] == 1, "the forgotten session is not ended once more"


async def test_call_that_is_cut_does_not_cost_the_run_its_session() -> None:
    fine = result(text_result("fine"))
    async with (
        open_raw_mcp({"tools/call": [CUT, fine]}, session_id="s1") as raw,
        open_lone_run(operator(raw.url)) as run,
    ):
        assert (await run.call("echo")).error_code == "tool_outcome_unknown"
        assert (await run.call("echo")).text == "fine"
        assert raw.asked["initialize"] == 1


async def test_session_that_is_forgotten_again_is_an_error_after_two_attempts() -> None:
    async with (
        open_raw_mcp({"tools/call": http_reply(404)}, session_id="s1") as raw,
        open_lone_run(operator(raw.url)) as run,
    ):
        assert (await run.call("echo")).error_code == "connection_lost"
        assert raw.asked["tools/call"] == 2


async def test_server_that_came_back_is_connected_to_again() -> None:
    async with open_servers(LOCAL) as servers:
        async with open_mcp_server("legacy") as server:
            port = port_of(server)
            async with open_run(servers, operator(server.url)) as run:
                assert (await run.call("count")).text.endswith(" 1")
                server.kill()
                outcome = await _until_refused(lambda: run.call("echo", text="x"))
                assert outcome == "server_unreachable"
                async with open_mcp_server("legacy", port=port):
                    assert (await run.call("count")).text.endswith(" 1")


async def _until_refused(call: Callable[[], Any]) -> str | None:
    """Call until the port is closed: a killed server may still answer for an instant."""
    for _ in range(100):
        outcome = await call()
        if outcome.error_code not in (None, "tool_outcome_unknown", "connection_lost"):
            return outcome.error_code
    return None


@pytest.mark.parametrize("kind", KINDS)
async def test_server_killed_during_calls_fails_them_at_once(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_lone_run(operator(server.url)) as run:
        codes: list[str | None] = []

        async def use() -> None:
            codes.append((await run.call("wait", seconds=30)).error_code)

        with anyio.fail_after(3):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(use)
                await wait_until(lambda: server.started.count("wait") == 3)
                server.kill()
        assert codes == ["tool_outcome_unknown"] * 3
        assert server.started.count("wait") == 3, "none was sent again"


@pytest.mark.parametrize("kind", STOPPABLE)
async def test_cancelled_caller_stops_the_tool_and_leaves_the_connection_good(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_lone_run(operator(server.url)) as run:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run.call("wait", seconds=30))
            await wait_until(lambda: "wait" in server.started)
            tasks.cancel_scope.cancel()
            tasks.cancel_scope.deadline = anyio.current_time() + 1
        assert anyio.current_time() < tasks.cancel_scope.deadline, "nobody waits for the server"
        await wait_until(lambda: "wait" in server.cancelled)
        assert (await run.call("echo", text="still here")).text == "still here"
        assert server.rpc["initialize"] + server.rpc["server/discover"] <= 3, "over the same connection"


@pytest.mark.parametrize("kind", STOPPABLE)
async def test_silent_tool_times_out_and_is_told_to_stop(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_lone_run(operator(server.url, timeout_seconds=0.3)) as run:
        assert (await run.call("wait", seconds=30)).error_code == "tool_timeout"
        await wait_until(lambda: "wait" in server.cancelled)


@pytest.mark.parametrize("kind", KINDS)
async def test_progress_restarts_the_silence_limit_and_arrives(kind: Kind) -> None:
    seen: list[Progress] = []
    async with open_mcp_server(kind) as server, open_lone_run(operator(server.url, timeout_seconds=0.4)) as run:
        outcome = await run.call("slow", seen.append, steps=4, pause=0.2)
        assert outcome.text == "done after 4"
        assert seen[0] == Progress(1.0, 4.0, "step 1")
        assert seen[-1] == Progress(4.0, 4.0, "step 4", 0.0)


async def test_endless_progress_ends_at_the_hard_limit() -> None:
    async with (
        open_mcp_server("modern") as server,
        open_lone_run(operator(server.url), call_total_seconds=0.6) as run,
    ):
        outcome = await run.call("slow", steps=100, pause=0.1)
        assert outcome.error_code == "tool_timeout"
        assert "did not finish" in outcome.text


async def test_progress_is_never_backwards_nonsense_or_a_flood_and_its_last_state_arrives() -> None:
    def call(request: RawRequest) -> bytes:
        alien = {**progress_of(request, 99), "params": {"progressToken": "srv-4", "progress": 99}}
        odd = [progress_of(request, 2, message="two"), progress_of(request, 1), progress_of(request, math.nan), alien]
        flood = [progress_of(request, 3 + step / 1000) for step in range(500)]
        last = [progress_of(request, 9, message="l\u200bast"), progress_of(request, 4)]
        return sse_reply([*odd, *flood, *last, result_of(request, text_result("done"))])

    seen: list[Progress] = []
    async with open_raw_mcp({"tools/call": call}) as raw, open_lone_run(operator(raw.url)) as run:
        assert (await run.call("echo", seen.append)).text == "done"
    assert seen[0] == Progress(2.0, None, "two")
    assert seen[-1] == Progress(9.0, None, "last")
    assert [step.progress for step in seen] == sorted(step.progress for step in seen)
    assert len(seen) <= 10


@pytest.mark.parametrize(
    ("method", "answer"), [("ping", "result"), ("elicitation/create", "error"), ("sampling/createMessage", "error")]
)
async def test_server_that_asks_during_a_call_is_answered_at_once(method: str, answer: str) -> None:
    answered = anyio.Event()
    said: list[dict[str, Any]] = []

    async def call(request: RawRequest) -> bytes:
        params: JsonObject = {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}}
        ask: JsonObject = {
            "jsonrpc": "2.0",
            "id": "p1",
            "method": method,
            **({} if method == "ping" else {"params": params}),
        }
        await request.write(sse_reply([ask], end=False))
        await answered.wait()
        return sse_frame(result_of(request, text_result("after the answer"))) + b"0\r\n\r\n"

    def post(request: RawRequest) -> bytes:
        said.append(request.rpc)
        answered.set()
        return http_reply(202)

    async with open_raw_mcp({"tools/call": call, "POST": post}) as raw, open_lone_run(operator(raw.url)) as run:
        outcome = await run.call("echo")
    assert outcome.text == "after the answer"
    assert said[0]["id"] == "p1"
    assert answer in said[0]


async def test_server_that_sits_on_a_cancellation_holds_up_nobody() -> None:
    def call(request: RawRequest) -> Any:
        hangs = request.rpc["params"]["arguments"].get("hang")
        return HANG if hangs else json_reply(result_of(request, text_result("quick")))

    replies: dict[str, Reply] = {"tools/call": call, "notifications/cancelled": HANG}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: run.call("echo", hang=True))
            await wait_until(lambda: raw.asked["tools/call"] == 3)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(4):
            assert (await run.call("echo")).text == "quick"
        await wait_until(lambda: raw.asked["notifications/cancelled"] == 3)


async def test_server_that_sits_on_an_answer_of_ours_holds_up_no_cancellation_and_hears_of_it() -> None:
    async def call(request: RawRequest) -> str:
        await request.write(sse_reply([{"jsonrpc": "2.0", "id": "p1", "method": "ping"}], end=False))
        return HANG

    replies: dict[str, Reply] = {"tools/call": call, "POST": HANG, "DELETE": http_reply(200)}
    async with open_raw_mcp(replies, session_id="s1") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url)) as run, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run.call("echo"))
            await wait_until(lambda: raw.asked["POST"] == 1)
            tasks.cancel_scope.cancel()
            tasks.cancel_scope.deadline = anyio.current_time() + 1
        assert anyio.current_time() < tasks.cancel_scope.deadline
        await wait_until(lambda: raw.asked["notifications/cancelled"] == 1)


@pytest.mark.parametrize("method", ["tools/call", "notifications/cancelled"])
async def test_server_that_sits_on_a_message_over_sse_holds_up_nobody(method: str) -> None:
    script = SseScript(http_reply(202))

    async def call(request: RawRequest) -> str | bytes:
        if not request.rpc["params"]["arguments"].get("hang"):
            await script.say(result_of(request, text_result("quick")))
        elif method == "tools/call":
            return HANG
        return http_reply(202)

    replies: dict[str, Reply] = {**script.replies, "tools/call": call}
    if method != "tools/call":
        replies[method] = HANG
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run.call("echo", hang=True))
            await wait_until(lambda: raw.asked["tools/call"] == 1)
            assert (await run.call("echo")).text == "quick"
            tasks.cancel_scope.cancel()
            tasks.cancel_scope.deadline = anyio.current_time() + 1
        assert anyio.current_time() < tasks.cancel_scope.deadline
        assert (await run.call("echo")).text == "quick"


async def test_server_that_sits_on_the_end_of_the_handshake_is_used_all_the_same_and_in_time() -> None:
    async with open_raw_mcp({"notifications/initialized": HANG}, session_id="s1") as raw:
        with anyio.fail_after(3):
            async with open_lone_run(operator(raw.url)) as run:
                assert run.report.state == "ready"
                assert (await run.call("echo")).text == "fine"


async def test_first_request_waits_for_the_end_of_the_handshake_and_no_limit_is_overrun_meanwhile() -> None:
    release = anyio.Event()

    async def late(request: RawRequest) -> bytes:
        del request
        assert raw.asked["tools/list"] == 0
        await release.wait()
        assert raw.asked["tools/list"] == 0
        return http_reply(202)

    async with open_raw_mcp({"notifications/initialized": late}) as raw, anyio.create_task_group() as tasks:

        async def use() -> None:
            async with open_lone_run(operator(raw.url)) as run:
                assert run.report.state == "ready"

        tasks.start_soon(use)
        await wait_until(lambda: raw.asked["notifications/initialized"] == 1)
        release.set()
    options = replace(LOCAL, listing=ListingLimits(seconds=0.3))
    async with open_raw_mcp({"notifications/initialized": HANG}, session_id="s1") as raw, open_servers(options) as s:
        start = anyio.current_time()
        async with open_run(s, operator(raw.url)) as run:
            assert anyio.current_time() - start < 0.9
            assert run.report.state == "unavailable"


async def test_cancellation_reaches_a_server_that_redirects() -> None:
    moved: Reply = http_reply(307, Location="/mcp/")
    replies: dict[str, Any] = {"notifications/cancelled": [moved, http_reply(202)], "tools/call": HANG}
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url)) as run:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run.call("echo"))
            await wait_until(lambda: raw.asked["tools/call"] == 1)
            tasks.cancel_scope.cancel()
        await wait_until(lambda: raw.asked["notifications/cancelled"] == 2)
        assert raw.requests[-1].path == "/mcp/"


async def test_requests_carry_the_servers_headers_and_no_cookie_proxy_or_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hello(request: RawRequest) -> bytes:
        return sse_reply([error_of(request, -32601, "no")], Set_Cookie="tenant=a; Path=/")

    async with open_raw_mcp() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        headers = {"X-Team": Secret("7")}
        async with (
            open_raw_mcp({"server/discover": hello}, session_id="s1") as raw,
            open_lone_run(operator(raw.url, headers=headers)) as run,
        ):
            await run.call("echo")
        assert len(raw.requests) == 7
        for request in raw.requests:
            assert request.headers["x-team"] == "7"
            assert request.headers["accept-encoding"] == "identity"
            assert "cookie" not in request.headers
            assert request.path == "/mcp"
        assert not proxy.requests


async def test_modern_server_gets_the_arguments_that_it_wants_in_headers() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    bad = {"type": "object", "properties": {"city": {"type": "array", "x-mcp-header": "City"}}}
    tools = [tool_entry("go", inputSchema=schema), tool_entry("bad", inputSchema=bad)]
    async with open_raw_mcp(era="modern", tools=tools) as raw, open_lone_run(operator(raw.url)) as run:
        await run.call("go", city="Oslo")
        await run.call("go", city="x" * 10_000)
        sent = [request.headers.get("mcp-param-city") for request in raw.requests if request.method == "tools/call"]
        assert sent == ["Oslo", None]
        assert run.names == ["go"]
        assert run.notices[0].about == {"server": "Fake", "tool": "bad"}


class SseScript:
    """A byte-exact server of the old SSE transport; `post` says how messages after the handshake are answered."""

    def __init__(self, post: Reply, endpoint: str = "/mcp?s=1") -> None:
        self._post = post
        self._endpoint = endpoint
        self._stream: RawRequest | None = None
        self.replies: dict[str, Reply] = {
            "server/discover": self._refuse_or(error(-32601, "unknown")),
            "initialize": self._refuse_or(result(LEGACY_HELLO)),
            "tools/list": self._refuse_or(result({"tools": [tool_entry("echo")]})),
            "tools/call": post,
            "GET": self._open,
        }

    async def _open(self, request: RawRequest) -> str:
        self._stream = request
        event = f"event: endpoint\ndata: {self._endpoint}\n\n".encode()
        await request.write(sse_reply([], end=False) + f"{len(event):x}\r\n".encode() + event + b"\r\n")
        return HANG

    async def say(self, message: JsonObject) -> None:
        assert self._stream is not None
        await self._stream.write(sse_frame(message))

    def _refuse_or(self, reply: Reply) -> Reply:
        async def answer(request: RawRequest) -> bytes:
            if request.path != self._endpoint:
                return http_reply(405)
            body = reply(request) if callable(reply) else reply
            assert isinstance(body, bytes)
            await self.say(json.loads(body.partition(b"\r\n\r\n")[2]))
            return http_reply(202)

        return answer


@pytest.mark.parametrize(
    ("post", "code", "message"),
    [
        (http_reply(500, HTML), "tool_outcome_unknown", "HTTP status 500"),
        (http_reply(401, HTML), "tool_failed", "authorization"),
        (CUT, "tool_outcome_unknown", "not known whether"),
        (http_reply(202), "tool_timeout", "no sign of life"),
        (http_reply(307, HTML, Location="http://127.0.0.2:9/"), "tool_failed", "HTTP status 307"),
    ],
)
async def test_refused_message_of_the_sse_transport_fails_its_call_at_once(
    post: Reply, code: str, message: str
) -> None:
    script = SseScript(post)
    async with (
        open_raw_mcp(script.replies) as raw,
        open_lone_run(operator(raw.url, timeout_seconds=0.5), call_seconds=30) as run,
    ):
        assert list(run.report.tools) == ["echo"]
        with anyio.fail_after(5):
            outcome = await run.call("echo")
        assert outcome.error_code == code
        assert message in outcome.text
        assert MARKER not in outcome.text
        assert raw.asked["tools/call"] == 1


async def test_session_forgotten_over_sse_is_replaced_and_the_call_repeated() -> None:
    script = SseScript(http_reply(202))

    async def call(request: RawRequest) -> bytes:
        if raw.asked["tools/call"] == 1:
            return http_reply(404, HTML)
        await script.say(result_of(request, text_result("fine")))
        return http_reply(202)

    async with open_raw_mcp({**script.replies, "tools/call": call}) as raw, open_lone_run(operator(raw.url)) as run:
        assert (await run.call("echo")).text == "fine"
        assert raw.asked["tools/call"] == 2


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(http_reply(500), "tool_outcome_unknown"), (http_reply(401), "tool_failed"), (CUT, "tool_outcome_unknown")],
)
async def test_refused_message_of_the_sse_transport_costs_no_other_call(refusal: Reply, code: str) -> None:
    script = SseScript(http_reply(202))
    waiting: list[RawRequest] = []

    def call(request: RawRequest) -> Any:
        if request.rpc["params"]["arguments"].get("bad"):
            return refusal
        waiting.append(request)
        return http_reply(202)

    async with (
        open_raw_mcp({**script.replies, "tools/call": call}) as raw,
        open_lone_run(operator(raw.url)) as run,
        anyio.create_task_group() as tasks,
    ):
        texts: list[str] = []

        async def use() -> None:
            texts.append((await run.call("echo")).text)

        tasks.start_soon(use)
        await wait_until(lambda: waiting)
        assert (await run.call("echo", bad=True)).error_code == code
        await script.say(result_of(waiting[0], text_result("late but fine")))
        await wait_until(lambda: texts)
        assert texts == ["late but fine"]


@pytest.mark.parametrize("endpoint", ["http://127.0.0.2:9/mcp", "https://a.example/mcp", "//a.example/mcp"])
async def test_sse_endpoint_on_another_origin_is_not_followed_and_ends_in_time(endpoint: str) -> None:
    script = SseScript(http_reply(202), endpoint)
    async with open_raw_mcp(script.replies) as raw, open_lone_run(operator(raw.url), connect_seconds=0.5) as run:
        assert run.report.state == "unavailable"
        assert "a.example" not in (run.report.message or "")


@pytest.mark.parametrize("kind", ["modern", "legacy", "legacy-stateless", "sse"])
@pytest.mark.parametrize("value", ["notifications/list", "notifications/cancelled", "notifications/initialized"])
async def test_call_whose_arguments_look_like_a_notification_is_still_a_call(kind: Kind, value: str) -> None:
    async with open_mcp_server(kind) as server, open_lone_run(operator(server.url)) as run:
        outcome = await run.call("echo", method=value, text="x")
        assert outcome.text == "x"
        assert server.started == ["echo"]


async def test_answer_that_nobody_waits_for_is_cut_also_when_the_server_keeps_it_alive() -> None:
    """A server of the handshake era may ignore the cancellation, and pings keep its stream from being silent."""
    endless = anyio.Event()

    async def ping(request: RawRequest) -> bytes:
        await request.write(sse_reply([], end=False))
        while not endless.is_set():
            await request.write(b"8\r\n: ping\n\n\r\n")
            await anyio.sleep(0.05)  # the pace of the pings
        return b""

    async with open_raw_mcp({"tools/call": ping}) as raw, open_lone_run(operator(raw.url, timeout_seconds=0.2)) as run:
        before = raw.open_connections
        async with anyio.create_task_group() as calls:
            for _ in range(5):
                calls.start_soon(run.call, "echo")
        assert raw.open_connections >= before + 4
        await wait_until(lambda: raw.open_connections <= before + 1, 15)
        endless.set()
