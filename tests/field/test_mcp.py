"""What MCP servers do to those who connect: sessions, streams, redirects, refusals, silence, and what is sent again.

Rows are named by the number of the report. Each runs over real sockets through the whole service, against a server
that is exact to the byte; checked is what the reader sees, what the server was asked, and what the model is asked next.
What servers say in results and progress is in `test_mcp_results.py`.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
import pytest

from app.domain.secrets import Secret
from tests.fakes.mcp_servers import wait_until
from tests.fakes.raw_mcp import (
    CUT,
    HANG,
    Era,
    Form,
    RawRequest,
    Replies,
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
from tests.fakes.service import Event, Run, events, open_service, operator_server
from tests.fakes.upstream import Answer, Request, end, open_upstream, stream, text
from tests.field.serving import Field, is_valid_history, tool_messages
from tests.field.test_loop import ends_of_calls, notices, settled_tasks, tasks_of_service, uuids
from tests.field.test_streams import END, fn, tc

pytestmark = pytest.mark.anyio

Way: TypeAlias = tuple[Era, Form]
WAYS: dict[str, Way] = {
    "legacy": ("legacy", "json"),
    "legacy streams": ("legacy", "stream"),
    "legacy sse": ("legacy", "sse"),
    "modern": ("modern", "json"),
    "modern streams": ("modern", "stream"),
}
LEGACY, MODERN = WAYS["legacy"], WAYS["modern"]
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
both_eras = pytest.mark.parametrize("way", [LEGACY, MODERN], ids=["legacy", "modern"])

HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}
MARKER = "MARKER-7f3a"
HTML = f"<!doctype html><html><h1>Please sign in</h1>{MARKER}</html>".encode()
HTML_PAGE = http_reply(200, HTML, "text/html")
CHALLENGE = 'Bearer resource_metadata="https://a.example/.well-known/oauth-protected-resource"'
TOKEN = "tok-5e1f-sesame"
AUTHORIZED = {"headers": {"Authorization": Secret(f"Bearer {TOKEN}")}}


def calls(*names: str, **parameters: Any) -> Answer:
    """A round of calls with ids `c1`, `c2` …"""
    text_ = json.dumps(parameters)
    return stream(tc(*(fn(name, text_, index=at, id=f"c{at + 1}") for at, name in enumerate(names))), END)


ONE = [calls("act")]


@asynccontextmanager
async def open_met(
    replies: Replies | None = None,
    *,
    way: Way = LEGACY,
    answers: Sequence[Answer] = ONE,
    server: Any = None,
    others: Sequence[Any] = (),
    tools: Sequence[Any] = (tool_entry("act"),),
    session_id: str | None = None,
    **settings: Any,
) -> AsyncGenerator[Field]:
    """Serve `answers` and then "Done."; the one server `box` is met the given `way`, with the fields `server`."""
    left = list(answers)

    def script(_request: Request) -> Answer:
        return left.pop(0) if left else stream(text("Done."), end())

    era, form = way
    async with (
        open_raw_mcp(replies, era=era, form=form, tools=tools, session_id=session_id) as mcp,
        open_upstream(script) as upstream,
    ):
        servers = [operator_server("box", mcp.url, **(server or {})), *others]
        async with open_service(upstream, extra_servers=servers, upstream_backoff_ms=5, **settings) as service:
            yield Field(service, upstream, mcp)


def told(it: Field, number: int = 1) -> list[str]:
    """What the model reads of the calls before it is asked for the nth time, from 0."""
    return [message["content"] for message in tool_messages(it.request(number))]


def sent(it: Field, method: str) -> list[RawRequest]:
    return [request for request in it.mcp.requests if request.method == method]


def states(run: Run, name: str = "box") -> list[str]:
    return [data["state"] for data in run.named("server") if data["name"] == name]


def message_of(run: Run, name: str = "box") -> str:
    return next(data.get("message", "") for data in run.named("server") if data["name"] == name)


def codes(run: Run) -> list[str]:
    return [data["code"] for data in run.named("tool/error")]


def all_that_was_said(run: Run, it: Field) -> str:
    """Everything that a reader or the model got to see."""
    return json.dumps([event.data for event in run.events]) + b"".join(ask.body for ask in it.upstream.asks).decode()


def is_whole(run: Run, it: Field) -> bool:
    """Whether the run ended well, each call has one end, and the model is asked with a valid history."""
    return (
        run.last == {"type": "status", "status": "finished", "outcome": "completed"}
        and run.answer["text"] == "Done."
        and sorted(ends_of_calls(run)) == sorted(uuids(run))
        and all(is_valid_history(request.json) for request in it.upstream.asks)
    )


# FR-069: the session has expired


def opens(*sessions: str) -> list[Reply]:
    return [result(HELLO, Mcp_Session_Id=session) for session in sessions]


def gone(body: Any, status: int = 404, content_type: str = "application/json") -> Reply:
    return http_reply(status, body if isinstance(body, bytes) else json.dumps(body).encode(), content_type)


def rpc_error(code: int, message: str, id_: Any) -> Any:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}


GONE: dict[str, Reply] = {
    "empty": http_reply(404),
    "without a type": http_reply(404, b"", None),
    "text": gone(b"Session not found", content_type="text/plain"),
    "page": gone(HTML, content_type="text/html"),
    "error for no id": gone(rpc_error(-32001, "Session not found", None)),
    "error for a made-up id": gone(rpc_error(-32600, "Session not found", "server-error")),
    "error for the request": lambda request: json_reply(error_of(request, -32001, "Session not found"), 404),
    "error without an id": gone({"jsonrpc": "2.0", "error": {"code": -32001, "message": "Session not found"}}),
    "400 of a server that lost its memory": gone(
        rpc_error(-32000, "Bad Request: No valid session ID provided", None), 400
    ),
    "400 of one that wants a handshake": gone(rpc_error(-32000, "Bad Request: Server not initialized", None), 400),
}


@pytest.mark.parametrize("form", ["json", "stream"])
@pytest.mark.parametrize("refusal", GONE.values(), ids=GONE)
async def test_fr_069_expired_session_is_replaced_and_the_call_made_in_the_new_one(refusal: Reply, form: Form) -> None:
    replies: Replies = {"initialize": opens("s1", "s2"), "tools/call": [refusal, result(text_result("fine"))]}
    async with open_met(replies, way=("legacy", form), answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it, 2) == ["fine", "fine"]
    assert ["mcp-session-id" in request.headers for request in sent(it, "initialize")] == [False, False]
    assert [request.headers["mcp-session-id"] for request in sent(it, "tools/call")] == ["s1", "s2", "s2"]
    ids = [request.rpc["params"] for request in sent(it, "tools/call")]
    assert [params["name"] for params in ids] == ["act"] * 3
    assert MARKER not in all_that_was_said(run, it)


async def test_fr_069_session_that_expires_again_is_a_clear_error_and_the_next_call_has_another() -> None:
    replies: Replies = {
        "initialize": opens("s1", "s2", "s3"),
        "tools/call": [http_reply(404), http_reply(404), result(text_result("fine"))],
    }
    async with open_met(replies, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["connection_lost"]
    assert "forgotten the session" in run.named("tool/error")[0]["message"]
    failed, fine = told(it, 2)
    assert "forgotten the session" in failed
    assert fine == "fine"
    assert [request.headers["mcp-session-id"] for request in sent(it, "tools/call")] == ["s1", "s2", "s3"]


async def test_fr_069_calls_that_meet_an_expired_session_at_once_share_the_new_one() -> None:
    met: list[str] = []
    all_there = asyncio.Event()

    async def call(request: RawRequest) -> bytes:
        if request.headers["mcp-session-id"] == "s1":
            met.append(request.rpc["params"]["name"])
            if len(met) == 3:
                all_there.set()
            await all_there.wait()
            return http_reply(404)
        return json_reply(result_of(request, text_result(request.rpc["params"]["name"])))

    replies: Replies = {"initialize": opens("s1", "s2", "s3"), "tools/call": call}
    tools = [tool_entry(name) for name in ("act", "bend", "cut")]
    async with open_met(replies, answers=[calls("act", "bend", "cut")], tools=tools) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["act", "bend", "cut"]
    assert it.mcp.asked["initialize"] == 2
    assert Counter(request.headers["mcp-session-id"] for request in sent(it, "tools/call")) == {"s1": 3, "s2": 3}


async def test_fr_069_session_that_expires_while_tools_are_listed_costs_nothing() -> None:
    listed = result({"tools": [tool_entry("act")]})
    replies: Replies = {"initialize": opens("s1", "s2"), "tools/list": [http_reply(404), listed]}
    async with open_met(replies) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert told(it) == ["fine"]
    assert it.mcp.asked["initialize"] == 2


@pytest.mark.parametrize("refusal", [http_reply(401), http_reply(500), HANG, CUT], ids=["401", "500", "hang", "cut"])
async def test_fr_069_session_that_cannot_be_replaced_is_an_error_after_one_attempt(refusal: Reply) -> None:
    replies: Replies = {"initialize": [*opens("s1"), refusal], "tools/call": http_reply(404)}
    async with open_met(replies, connect_ms=500) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["server_unreachable"]
    assert (it.mcp.asked["tools/call"], it.mcp.asked["initialize"]) == (1, 2)


async def test_fr_069_session_forgotten_by_a_server_of_the_older_transport_is_replaced() -> None:
    replies: Replies = {"tools/call": [http_reply(404), result(text_result("fine"))]}
    async with open_met(replies, way=WAYS["legacy sse"]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]
    assert (it.mcp.asked["initialize"], it.mcp.asked["GET"]) == (2, 2)


# FR-070: the stream that need not be there

ENDED_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
RETRY_NOW = b"16\r\nid: 1\nretry: 1\ndata:\n\n\r\n"
RETRY_AT_ONCE = b"16\r\nid: 1\nretry: 0\ndata:\n\n\r\n"

GETS: dict[str, Reply] = {
    **{str(status): http_reply(status) for status in (204, 400, 401, 403, 404, 405, 406, 410, 500, 502)},
    "hang": HANG,
    "cut": CUT,
    "page": HTML_PAGE,
    "json": json_reply({"detail": "Not Found"}),
    "redirect elsewhere": http_reply(302, Location="https://a.example/login"),
    "redirect to itself": http_reply(307, Location="/mcp"),
    "stream that ends": ENDED_STREAM + b"0\r\n\r\n",
    "stream that ends and asks to come back soon": ENDED_STREAM + RETRY_NOW + b"0\r\n\r\n",
    "stream that ends and asks to come back at once": ENDED_STREAM + RETRY_AT_ONCE + b"0\r\n\r\n",
}


@pytest.mark.parametrize("reply", GETS.values(), ids=GETS)
async def test_fr_070_stream_that_is_not_to_be_had_is_done_without(reply: Reply) -> None:
    later = asyncio.Event()

    async def call(request: RawRequest) -> bytes:
        if later.is_set():
            await anyio.sleep(0.3)  # time in which a loop of reconnections would show
        later.set()
        return json_reply(result_of(request, text_result("fine")))

    replies: Replies = {"GET": reply, "tools/call": call}
    async with open_met(replies, session_id="s1", answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert told(it, 2) == ["fine", "fine"]
    assert 1 <= it.mcp.asked["GET"] <= 10
    assert it.mcp.asked["initialize"] == 1


# FR-071: the older transport is tried for what a wrong place answers only

REFUSALS: dict[str, tuple[Reply, str, str]] = {
    **{str(status): (http_reply(status), "unavailable", str(status)) for status in (402, 406, 415, 429, 500, 502, 503)},
    "401": (http_reply(401), "authRequired", "authorization"),
    "401 with a challenge": (http_reply(401, WWW_Authenticate=CHALLENGE), "authRequired", "authorization"),
    "403": (http_reply(403), "unavailable", "403"),
    "403 with a challenge": (http_reply(403, WWW_Authenticate=CHALLENGE), "authRequired", "authorization"),
    "502 page": (http_reply(502, HTML, "text/html"), "unavailable", "502"),
    "500 with a word": (error(-32603, "database is down", status=500), "unavailable", "database is down"),
    "error": (error(-32603, "database is down"), "unavailable", "database is down"),
    "200 page": (HTML_PAGE, "unavailable", "not MCP"),
    "202": (http_reply(202), "unavailable", ""),
    "elsewhere": (http_reply(302, Location="https://a.example/login"), "unavailable", "another place"),
    "cut": (CUT, "unavailable", "broke off"),
    "hang": (HANG, "unavailable", "0.4 seconds"),
}


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
async def test_fr_071_refusal_is_told_as_it_is_and_the_older_transport_is_not_tried(
    row: tuple[Reply, str, str],
) -> None:
    reply, state, said = row
    async with open_met({"initialize": reply}, answers=[], connect_ms=400) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == [state]
    assert said in message_of(run)
    assert (it.mcp.asked["GET"], it.mcp.asked["initialize"]) == (0, 1)
    assert MARKER not in all_that_was_said(run, it)


@pytest.mark.parametrize("status", [400, 404, 405])
@pytest.mark.parametrize(
    "stream_reply",
    [http_reply(404), http_reply(500), HTML_PAGE, CUT, HANG, sse_reply([])],
    ids=["404", "500", "page", "cut", "hang", "empty"],
)
async def test_fr_071_first_refusal_is_kept_where_the_older_transport_is_no_better(
    status: int, stream_reply: Reply
) -> None:
    replies: Replies = {"initialize": http_reply(status, HTML, "text/html"), "GET": stream_reply}
    async with open_met(replies, answers=[], connect_ms=400) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["unavailable"]
    assert str(status) in message_of(run) or (stream_reply == HANG and "seconds" in message_of(run))
    assert it.mcp.asked["GET"] == 1
    assert MARKER not in all_that_was_said(run, it)


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_fr_071_older_transport_is_found_behind_a_place_that_takes_no_posts(status: int) -> None:
    stream_of: list[RawRequest] = []

    async def open_stream(request: RawRequest) -> str:
        stream_of.append(request)
        event = b"event: endpoint\ndata: /messages?s=1\n\n"
        await request.write(sse_reply([], end=False) + f"{len(event):x}\r\n".encode() + event + b"\r\n")
        return HANG

    def post(answer: Reply) -> Reply:
        async def reply(request: RawRequest) -> bytes:
            if request.path != "/messages?s=1":
                return http_reply(status, HTML, "text/html")
            assert callable(answer)
            body = answer(request)
            assert isinstance(body, bytes)
            await stream_of[-1].write(sse_frame(json.loads(body.partition(b"\r\n\r\n")[2])))
            return http_reply(202, b"Accepted")

        return reply

    replies: Replies = {
        "GET": open_stream,
        "server/discover": post(error(-32601, "unknown")),
        "initialize": post(result(HELLO)),
        "tools/list": post(result({"tools": [tool_entry("act")]})),
        "tools/call": post(result(text_result("fine"))),
    }
    async with open_met(replies) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert told(it) == ["fine"]
    assert it.mcp.asked["GET"] == 1


async def test_fr_071_nobody_there_is_told_as_such() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else can come there
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        async with open_met(others=[operator_server("gone", url)]) as it:
            run = await it.run()
    assert is_whole(run, it)
    assert (states(run), states(run, "gone")) == (["ready"], ["unavailable"])
    assert message_of(run, "gone") == "The server does not accept connections."


# FR-072: pages of tools


def by_cursor(pages: dict[Any, tuple[list[str], Any]], era: Era) -> Reply:
    """Pages by the cursor that asks for them: names, and the next cursor; `...` leaves that out."""

    def reply(request: RawRequest) -> bytes:
        names, following = pages[request.rpc.get("params", {}).get("cursor")]
        more = {} if following is ... else {"nextCursor": following}
        cache = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if era == "modern" else {}
        return json_reply(result_of(request, {"tools": [tool_entry(name) for name in names], **more, **cache}))

    return reply


PAGES: dict[str, tuple[dict[Any, tuple[list[str], Any]], list[str], int]] = {
    "two": ({None: (["a"], "p2"), "p2": (["b"], ...)}, ["a", "b"], 2),
    "three, the last cursor null": (
        {None: (["a"], "p2"), "p2": (["b"], "p3"), "p3": (["c"], None)},
        ["a", "b", "c"],
        3,
    ),
    "an empty one between": ({None: (["a"], "p2"), "p2": ([], "p3"), "p3": (["c"], ...)}, ["a", "c"], 3),
    "an empty one first": ({None: ([], "p2"), "p2": (["b"], ...)}, ["b"], 2),
    "an empty one last": ({None: (["a"], "p2"), "p2": ([], ...)}, ["a"], 2),
    "cursor with odd characters": ({None: (["a"], 'ä "\u2028/+='), 'ä "\u2028/+=': (["b"], ...)}, ["a", "b"], 2),
    "cursor that comes again": ({None: (["a"], "p2"), "p2": (["b"], "p2")}, ["a", "b"], 2),
}


@every_way
@pytest.mark.parametrize("row", PAGES.values(), ids=PAGES)
async def test_fr_072_pages_are_followed_to_the_last(
    row: tuple[dict[Any, tuple[list[str], Any]], list[str], int], way: Way
) -> None:
    pages, names, requests = row
    async with open_met({"tools/list": by_cursor(pages, way[0])}, way=way, answers=[calls(names[-1])]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert [tool["function"]["name"] for tool in it.request(0)["tools"]] == names
    assert run.named("server")[0]["tools"] == names
    assert told(it) == ["fine"]
    assert it.mcp.asked["tools/list"] == requests


@pytest.mark.parametrize("end_of_list", ["", 0, False, [], {}])
async def test_fr_072_cursor_that_is_none_ends_the_list_and_nothing_is_offered_or_told_twice(end_of_list: Any) -> None:
    pages = {None: (["act"], end_of_list), "": (["act"], end_of_list)}
    async with open_met({"tools/list": by_cursor(pages, "legacy")}) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert run.named("server")[0]["tools"] == ["act"]
    assert notices(run, "tool_dropped") == []


async def test_fr_072_later_page_that_fails_does_not_cost_the_earlier_ones() -> None:
    first = result({"tools": [tool_entry("act")], "nextCursor": "p2"})
    async with open_met({"tools/list": [first, http_reply(500, HTML, "text/html")]}) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert run.named("server")[0]["tools"] == ["act"]
    assert told(it) == ["fine"]
    assert notices(run, "tool_dropped") != []


# FR-073: the tools change

CHANGED: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def lists(era: Era, *names: list[str]) -> list[Reply]:
    cache = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if era == "modern" else {}
    return [result({"tools": [tool_entry(name) for name in page], **cache}) for page in names]


def offered(it: Field, number: int) -> list[str]:
    return [tool["function"]["name"] for tool in it.request(number)["tools"]]


@pytest.mark.parametrize("form", ["json", "sse"], ids=["stream of the call", "older transport"])
@pytest.mark.parametrize("session_id", [None, "s1"])
@pytest.mark.parametrize("burst", [1, 30])
async def test_fr_073_change_told_during_a_call_is_there_in_the_next_round(
    burst: int, session_id: str | None, form: Form
) -> None:
    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([CHANGED] * burst, end=False))
        return sse_frame(result_of(request, text_result("fine"))) + b"0\r\n\r\n"

    replies: Replies = {
        "tools/list": lists("legacy", ["act", "old"], ["act", "new"]),
        "tools/call": [call, result(text_result("new one"))],
    }
    async with open_met(replies, way=("legacy", form), answers=[*ONE, calls("new")], session_id=session_id) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert (offered(it, 0), offered(it, 1)) == (["act", "old"], ["act", "new"])
    assert told(it, 2) == ["fine", "new one"]
    assert it.mcp.asked["tools/list"] == 2
    assert [data["tools"] for data in run.named("server")] == [["act", "old"], ["act", "new"]]


async def test_fr_073_change_told_on_the_connections_own_stream_is_there_in_the_next_round() -> None:
    streams: list[RawRequest] = []
    opened = asyncio.Event()

    async def open_stream(request: RawRequest) -> str:
        await request.write(sse_reply([], end=False))
        streams.append(request)
        opened.set()
        return HANG

    async def call(request: RawRequest) -> bytes:
        await opened.wait()
        for _ in range(10):
            await streams[0].write(sse_frame(CHANGED))
        await wait_until(lambda: it.mcp.asked["tools/list"] == 2)
        return json_reply(result_of(request, text_result("fine")))

    replies: Replies = {
        "GET": open_stream,
        "tools/list": lists("legacy", ["act"], ["act", "new"]),
        "tools/call": [call, result(text_result("new one"))],
    }
    async with open_met(replies, answers=[*ONE, calls("new")], session_id="s1") as it:
        run = await it.run()
    assert is_whole(run, it)
    assert (offered(it, 0), offered(it, 1)) == (["act"], ["act", "new"])
    assert told(it, 2) == ["fine", "new one"]
    assert it.mcp.asked["tools/list"] == 2


def discovering_changes() -> Reply:
    capabilities = {"tools": {"listChanged": True}}
    return result(
        {
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        }
    )


async def test_fr_073_change_told_over_a_subscription_is_there_in_the_next_round() -> None:
    subscribed = asyncio.Event()
    listeners: list[RawRequest] = []

    async def listen(request: RawRequest) -> str:
        about = {"io.modelcontextprotocol/subscriptionId": request.id}
        method = "notifications/subscriptions/acknowledged"
        params = {"_meta": about, "notifications": {"toolsListChanged": True}}
        await request.write(sse_reply([{"jsonrpc": "2.0", "method": method, "params": params}], end=False))
        listeners.append(request)
        subscribed.set()
        return HANG

    async def call(request: RawRequest) -> bytes:
        await subscribed.wait()
        about = {"io.modelcontextprotocol/subscriptionId": listeners[0].id}
        for _ in range(10):
            await listeners[0].write(sse_frame({**CHANGED, "params": {"_meta": about}}))
        await wait_until(lambda: it.mcp.asked["tools/list"] == 2)
        return json_reply(result_of(request, text_result("fine")))

    replies: Replies = {
        "server/discover": discovering_changes(),
        "subscriptions/listen": listen,
        "tools/list": lists("modern", ["act"], ["act", "new"]),
        "tools/call": [call, result(text_result("new one"))],
    }
    async with open_met(replies, way=MODERN, answers=[*ONE, calls("new")]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert (offered(it, 0), offered(it, 1)) == (["act"], ["act", "new"])
    assert told(it, 2) == ["fine", "new one"]
    assert (it.mcp.asked["tools/list"], it.mcp.asked["subscriptions/listen"]) == (2, 1)


async def test_fr_073_call_of_a_tool_that_went_away_meanwhile_ends_in_its_own_time() -> None:
    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([CHANGED], end=False))
        await wait_until(lambda: it.mcp.asked["tools/list"] == 2)
        return sse_frame(result_of(request, text_result("fine"))) + b"0\r\n\r\n"

    replies: Replies = {"tools/list": lists("legacy", ["act"], ["new"]), "tools/call": call}
    async with open_met(replies, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_unknown"]
    assert told(it, 1) == ["fine"]
    assert offered(it, 1) == ["new"]
    assert it.mcp.asked["tools/call"] == 1, "what is not offered any more is not called"


async def test_fr_073_change_that_one_run_hears_of_is_known_to_the_next() -> None:
    async def call(request: RawRequest) -> bytes:
        return sse_reply([CHANGED, result_of(request, text_result("fine"))])

    replies: Replies = {"tools/list": lists("legacy", ["act"], ["act", "new"]), "tools/call": call}
    async with open_met(replies) as it:
        await it.run()
        await it.run()
    assert offered(it, 2) == ["act", "new"]


# FR-082: the stream ends before the result


def ends_with(*messages: Any, event_id: str | None = None) -> Reply:
    return sse_reply(messages, event_id=event_id)


NOTED: dict[str, Any] = {
    "jsonrpc": "2.0",
    "method": "notifications/message",
    "params": {"level": "info", "data": "busy"},
}
WHOLE = json.dumps(rpc_error(-1, "x", 1)).encode()


async def progress_and_cut(request: RawRequest) -> str:
    await request.write(sse_reply([progress_of(request, 1)], end=False))
    return CUT


def half_of_the_result(request: RawRequest) -> bytes:
    frame = sse_frame(result_of(request, text_result("fine")))
    return sse_reply([], end=False) + frame[: len(frame) // 2]


async def half_and_cut(request: RawRequest) -> str:
    await request.write(half_of_the_result(request))
    return CUT


async def half_a_body_and_cut(request: RawRequest) -> str:
    whole = json_reply(result_of(request, text_result("fine")))
    await request.write(whole[:-10])
    return CUT


async def head_and_cut(request: RawRequest) -> str:
    await request.write(b"HTTP/1.1 200 OK\r\nContent-Type: appli")
    return CUT


LOSSES: dict[str, Reply] = {
    "stream without an event": ends_with(),
    "stream with a notification only": ends_with(NOTED),
    "stream with a comment only": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\n: ping\n\n\n",
    "stream with another's answer": ends_with({"jsonrpc": "2.0", "id": 4711, "result": text_result("not yours")}),
    "stream that is cut": progress_and_cut,
    "half of the result": half_and_cut,
    "half of a body": half_a_body_and_cut,
    "half of a head": head_and_cut,
    "nothing": CUT,
}


@both_eras
@pytest.mark.parametrize("reply", LOSSES.values(), ids=LOSSES)
async def test_fr_082_answer_that_breaks_off_ends_its_call_at_once(reply: Reply, way: Way) -> None:
    replies: Replies = {"tools/call": [reply, result(text_result("fine"))]}
    async with open_met(replies, way=way, answers=[*ONE, *ONE], session_id="s1") as it:
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_outcome_unknown"]
    lost, fine = told(it, 2)
    assert "not known whether the tool ran" in lost
    assert fine == "fine"
    assert it.mcp.asked["tools/call"] == 2, "neither was sent again"


async def test_fr_082_answer_that_breaks_off_is_taken_up_where_the_server_keeps_it() -> None:
    async def taken_up(request: RawRequest) -> bytes:
        if "last-event-id" not in request.headers:
            return http_reply(405)
        call = sent(it, "tools/call")[0]
        return sse_reply([result_of(call, text_result("kept"))], event_id="e2")

    replies: Replies = {"tools/call": sse_reply([NOTED], event_id="e1"), "GET": taken_up}
    async with open_met(replies, session_id="s1") as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["kept"]
    assert it.mcp.asked["tools/call"] == 1
    assert [request.headers.get("last-event-id") for request in sent(it, "GET")][-1] == "e1"


RESUMES: dict[str, Reply] = {
    "405": http_reply(405),
    "500": http_reply(500),
    "cut": CUT,
    "page": HTML_PAGE,
    "empty stream": sse_reply([]),
    "the same again": sse_reply([NOTED], event_id="e1"),
}


@pytest.mark.parametrize("reply", RESUMES.values(), ids=RESUMES)
async def test_fr_082_taking_up_an_answer_is_given_up_soon(reply: Reply) -> None:
    replies: Replies = {"tools/call": sse_reply([NOTED], event_id="e1"), "GET": reply}
    async with open_met(replies, session_id="s1") as it:
        with anyio.fail_after(10):
            run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_outcome_unknown"]
    assert it.mcp.asked["tools/call"] == 1
    assert it.mcp.asked["GET"] <= 12


async def test_fr_082_older_transport_whose_stream_ends_fails_its_calls_at_once_and_is_opened_anew() -> None:
    replies: Replies = {"tools/call": [http_reply(202), result(text_result("fine"))]}

    async def end_stream() -> None:
        await wait_until(lambda: it.mcp.asked["tools/call"] == 1)
        await sent(it, "GET")[0].write(b"0\r\n\r\n")

    async with open_met(replies, way=WAYS["legacy sse"], answers=[*ONE, *ONE]) as it, anyio.create_task_group() as also:
        also.start_soon(end_stream)
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_outcome_unknown"]
    assert told(it, 2)[1] == "fine"
    assert (it.mcp.asked["tools/call"], it.mcp.asked["GET"]) == (2, 2)
