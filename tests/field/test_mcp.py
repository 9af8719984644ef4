"""What MCP servers do to those who connect: sessions, streams, redirects, refusals, silence, and what is sent again.

Rows are named by the number of the report. Each runs over real sockets through the whole service, against a server
that is exact to the byte; checked is what the reader sees, what the server was asked, and what the model is asked next.
What servers say in results and progress is in `test_mcp_results.py`.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
SOME = ("legacy", "legacy sse", "modern streams")
LEGACY, MODERN = WAYS["legacy"], WAYS["modern"]
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
some_ways = pytest.mark.parametrize("way", [WAYS[name] for name in SOME], ids=SOME)
both_eras = pytest.mark.parametrize("way", [LEGACY, MODERN], ids=["legacy", "modern"])

HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}
NOTED: dict[str, Any] = {
    "jsonrpc": "2.0",
    "method": "notifications/message",
    "params": {"level": "info", "data": "busy"},
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


ODD_RETRIES = {"below zero": "-5", "without bounds": "9" * 400, "word": "soon"}


def event_stream(retry: str) -> bytes:
    body = f"id: e1\nretry: {retry}\ndata: {json.dumps(NOTED)}\n\n".encode()
    return http_reply(200, body, "text/event-stream")


@pytest.mark.parametrize("retry", ODD_RETRIES.values(), ids=ODD_RETRIES)
async def test_fr_070_stream_that_says_nonsense_of_when_to_come_back_costs_nothing(retry: str) -> None:
    async with open_met({"GET": event_stream(retry)}, session_id="s1") as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert told(it) == ["fine"]
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


@some_ways
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


async def test_fr_073_server_whose_list_changes_with_each_look_is_not_asked_for_ever() -> None:
    count = 0

    def listing(request: RawRequest) -> bytes:
        nonlocal count
        count += 1
        return sse_reply([CHANGED, result_of(request, {"tools": [tool_entry("act"), tool_entry(f"n{count}")]})])

    async with open_met({"tools/list": listing}, answers=[*ONE] * 3, mcp_list_wait_ms=200) as it:
        with anyio.fail_after(15):
            run = await it.run()
        asked = it.mcp.asked["tools/list"]
    assert is_whole(run, it)
    assert told(it, 3) == ["fine"] * 3
    assert asked <= 30


# FR-082: the stream ends before the result


def ends_with(*messages: Any, event_id: str | None = None) -> Reply:
    return sse_reply(messages, event_id=event_id)


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
    "stream with a comment only": http_reply(200, b": ping\n\n", "text/event-stream"),
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
    "the same again": event_stream("5"),
}


@pytest.mark.parametrize("reply", RESUMES.values(), ids=RESUMES)
async def test_fr_082_taking_up_an_answer_is_given_up_soon(reply: Reply) -> None:
    replies: Replies = {"tools/call": event_stream("5"), "GET": reply}
    async with open_met(replies, session_id="s1") as it:
        with anyio.fail_after(10):
            run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_outcome_unknown"]
    assert it.mcp.asked["tools/call"] == 1
    assert it.mcp.asked["GET"] <= 12


@both_eras
@pytest.mark.parametrize("retry", ODD_RETRIES.values(), ids=ODD_RETRIES)
async def test_fr_082_answer_that_breaks_off_with_nonsense_costs_no_other_call(retry: str, way: Way) -> None:
    bad_is_over = asyncio.Event()

    async def call(request: RawRequest) -> bytes:
        if request.rpc["params"]["name"] == "bad":
            return event_stream(retry)
        await bad_is_over.wait()
        return json_reply(result_of(request, text_result("good")))

    tools = [tool_entry("bad"), tool_entry("good")]
    async with open_met({"tools/call": call}, way=way, tools=tools, answers=[calls("bad", "good")]) as it:
        async with it.service.streaming(model="m") as (response, source):
            run = Run(response)
            async for event in events(source):
                run.events.append(event)
                if event.name == "tool/error":
                    bad_is_over.set()
    assert is_whole(run, it)
    assert told(it)[1] == "good"
    assert codes(run) == ["tool_outcome_unknown"]


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


# FR-083: readers that go while sessions are open


@dataclass
class Abort:
    """How a run with two sessions ends before its time: which answers of which server, and after which event."""

    replies: dict[str, Any]
    sees: str
    has_begun: str
    answers: Callable[[], list[Answer]] = lambda: [calls("act", "bend")]


ABORTS = {
    "while calls run": Abort({"tools/call": HANG}, "tool/eta", "tools/call"),
    "while tools are listed": Abort({"tools/list": HANG}, "status", "tools/list"),
    "while hands are shaken": Abort({"initialize": HANG}, "status", "initialize"),
    "while the model speaks": Abort({}, "stream", "initialize", lambda: [stream(text("a"), asyncio.Event())]),
}


@pytest.mark.parametrize("way", [LEGACY, WAYS["legacy sse"]], ids=["streamable", "sse"])
@pytest.mark.parametrize("row", ABORTS.values(), ids=ABORTS)
async def test_fr_083_reader_that_goes_while_sessions_are_open_leaves_nothing_behind(
    row: Abort, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [tool_entry("bend")]
    async with open_raw_mcp(row.replies, form=way[1], tools=tools, session_id="t1") as second:
        others = [operator_server("box2", second.url)]
        is_warm = row.sees != "status"
        answers = [*([stream(text("warm"), end())] if is_warm else []), *row.answers()]
        async with open_met(row.replies, way=way, answers=answers, others=others, session_id="s1") as it:
            before = tasks_of_service()
            if is_warm:
                await it.run()
                before = await settled_tasks(it)
            async with it.service.streaming(model="m") as (_, source):
                reader = events(source)
                while (await anext(reader)).name != row.sees:
                    pass
                await wait_until(lambda: it.mcp.asked[row.has_begun] and second.asked[row.has_begun])
            await settled_tasks(it)
            await wait_until(lambda: len(tasks_of_service()) <= len(before), 8)
            assert it.service.app.state.doors.journal.running == 0
            cancelled = {request.rpc["params"]["requestId"] for request in sent(it, "notifications/cancelled")}
            assert not cancelled & {request.id for request in sent(it, "initialize")}
            plain = await it.run(server_names=[])
            assert plain.last["outcome"] == "completed"
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
    assert "unhandled" not in caplog.text


@pytest.mark.parametrize("reply", [HANG, CUT, http_reply(500)], ids=["hang", "cut", "500"])
async def test_fr_083_server_that_cannot_be_closed_leaves_nothing_behind(
    reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_met({"DELETE": reply}, session_id="s1", answers=[*ONE, *ONE]) as it:
        first = await it.run()
        await wait_until(lambda: it.mcp.asked["DELETE"] == 1)
        second = await it.run()
    assert (first.last["outcome"], second.last["outcome"]) == ("completed", "completed")
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


# FR-084: one server of many


@asynccontextmanager
async def open_dead_ends() -> AsyncGenerator[list[Any]]:
    """One server that refuses connections, and one that accepts them and never says a word."""
    async with open_raw_mcp({"server/discover": HANG, "initialize": HANG}) as silent:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            closed = taken.getsockname()[1]
            yield [
                operator_server("refuses", f"http://127.0.0.1:{closed}/mcp"),
                operator_server("silent", silent.url),
            ]


async def test_fr_084_dead_servers_are_named_and_the_healthy_one_is_used() -> None:
    async with open_dead_ends() as dead, open_met(others=dead, connect_ms=600) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]
    assert [tool["function"]["name"] for tool in it.request(0)["tools"]] == ["act"]
    assert [states(run, name) for name in ("box", "refuses", "silent")] == [["ready"], ["unavailable"], ["unavailable"]]
    assert message_of(run, "refuses") == "The server does not accept connections."
    assert "0.6 seconds" in message_of(run, "silent")


async def test_fr_084_slow_server_is_not_waited_for_for_long_where_another_is_ready() -> None:
    async with open_dead_ends() as dead, open_met(others=dead, mcp_list_wait_ms=300, connect_ms=60_000) as it:
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]
    assert states(run, "silent")[0] == "waiting"
    prepared = [event.data.get("status") for event in run.events].index("prepared")
    assert "silent" in [event.data.get("name") for event in run.events[:prepared]]


async def test_fr_084_slow_server_joins_later_under_names_that_stay() -> None:
    may_list = asyncio.Event()

    async def listing(request: RawRequest) -> bytes:
        await may_list.wait()
        return json_reply(result_of(request, {"tools": [tool_entry("act"), tool_entry("late")]}))

    async def call(request: RawRequest) -> bytes:
        may_list.set()
        await wait_until(lambda: slow.asked["tools/list"] == 1)
        return json_reply(result_of(request, text_result("fine")))

    async with (
        open_raw_mcp({"tools/list": listing, "tools/call": result(text_result("late one"))}) as slow,
        open_met(
            {"tools/call": call},
            others=[operator_server("slow", slow.url)],
            mcp_list_wait_ms=100,
            answers=[*ONE, *ONE, calls("late")],
        ) as it,
    ):
        run = await it.run()
    assert is_whole(run, it)
    assert offered(it, 0) == ["act"]
    assert offered(it, 3)[0] == "act"
    assert "late" in offered(it, 3)
    assert len(offered(it, 3)) == 3
    assert told(it, 3) == ["fine", "fine", "late one"]
    assert states(run, "slow") == ["waiting", "ready"]


async def test_fr_084_text_chat_works_without_any_server() -> None:
    async with open_dead_ends() as dead, open_met(others=dead, answers=[], connect_ms=400) as it:
        run = await it.run(server_names=["refuses", "silent"])
    assert is_whole(run, it)
    assert run.status("prepared")["tools"] == "not_applicable"
    assert "tools" not in it.request(0)
    assert [states(run, name) for name in ("refuses", "silent")] == [["unavailable"], ["unavailable"]]


# FR-085: redirects


def moved(old: str, new: str, replies: Replies, *, status: int = 307) -> dict[str, Reply]:
    """Answer each message at `old` with a redirect to `new`, and there with what is in `replies`."""

    def reply_of(method: str) -> Reply:
        def reply(request: RawRequest) -> Any:
            if request.path == old:
                return http_reply(status, HTML, "text/html", Location=new)
            answer: Any = replies[method]
            return answer(request) if callable(answer) else answer

        return reply

    return {method: reply_of(method) for method in replies}


def well_behaved(era: Era) -> dict[str, Reply]:
    cache = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if era == "modern" else {}
    discovered: Any = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **cache}
    return {
        "server/discover": result(discovered) if era == "modern" else error(-32601, "unknown"),
        "initialize": result(HELLO, Mcp_Session_Id="s1") if era == "legacy" else error(-32601, "unknown"),
        "notifications/initialized": http_reply(202),
        "tools/list": result({"tools": [tool_entry("act")], **cache}),
        "tools/call": result(text_result("fine")),
        "GET": http_reply(405),
        "DELETE": http_reply(200),
    }


MOVES: dict[str, tuple[str, str]] = {
    "to a slash": ("/mcp", "/mcp/"),
    "from a slash": ("/mcp/", "/mcp"),
    "to a query": ("/mcp", "/mcp/?v=2"),
    "by a relative path": ("/mcp", "./mcp/"),
    "to a longer path": ("/mcp", "/api/v2/mcp"),
}


@both_eras
@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(("old", "new"), MOVES.values(), ids=MOVES)
async def test_fr_085_redirect_is_followed_with_method_body_and_headers(
    old: str, new: str, status: int, way: Way
) -> None:
    replies = moved(old, new, well_behaved(way[0]), status=status)
    async with open_raw_mcp(replies, era=way[0]) as mcp:
        box = operator_server("moved", mcp.url.removesuffix("/mcp") + old, **AUTHORIZED)
        async with open_met(others=[box]) as it:
            run = await it.run(server_names=["moved"])
    assert is_whole(run, it)
    assert told(it) == ["fine"]
    there = [request for request in mcp.requests if request.path != old]
    here = [request for request in mcp.requests if request.path == old]
    assert [(r.http_method, r.body) for r in there] == [(r.http_method, r.body) for r in here]
    assert {request.headers["authorization"] for request in mcp.requests} == {f"Bearer {TOKEN}"}
    versions = [request.headers.get("mcp-protocol-version") for request in there]
    assert versions == [request.headers.get("mcp-protocol-version") for request in here]
    sessions = [request.headers.get("mcp-session-id") for request in there]
    assert sessions == [request.headers.get("mcp-session-id") for request in here]
    assert Counter(request.method for request in there)["tools/call"] == 1


@both_eras
async def test_fr_085_two_hops_are_followed(way: Way) -> None:
    last = moved("/mcp/", "/v2/mcp", well_behaved(way[0]))
    async with open_met(moved("/mcp", "/mcp/", last), way=way, server=AUTHORIZED) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]
    assert [request.path for request in sent(it, "tools/call")] == ["/mcp", "/mcp/", "/v2/mcp"]
    assert len({request.body for request in sent(it, "tools/call")}) == 1


ELSEWHERE: dict[str, str] = {
    "itself": "/mcp",
    "another host": "http://localhost:{port}/mcp",
    "another port": "http://127.0.0.1:{other}/mcp",
    "another scheme": "https://127.0.0.1:{port}/mcp",
    "another host without a scheme": "//localhost:{other}/mcp",
    "a name with ours in front": "http://127.0.0.1:{port}@localhost:{other}/mcp",
    "no address": "http://[::1/mcp",
    "a file": "file:///etc/hostname",
    "nothing": "",
}


@both_eras
@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE)
async def test_fr_085_redirect_that_leaves_the_origin_or_loops_is_not_followed(place: str, way: Way) -> None:
    async with open_raw_mcp(era=way[0]) as other:
        other_port = other.url.split(":")[2].split("/")[0]

        def redirect(request: RawRequest) -> bytes:
            port = request.headers["host"].partition(":")[2]
            return http_reply(307, HTML, "text/html", Location=place.format(port=port, other=other_port))

        replies: Replies = dict.fromkeys(("server/discover", "initialize"), redirect)
        async with open_met(replies, way=way, server=AUTHORIZED, answers=[]) as it:
            run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["unavailable"]
    assert len(it.mcp.requests) <= 6
    assert it.mcp.asked["GET"] == 0
    assert other.requests == []
    assert not {MARKER, TOKEN, "localhost"} & set(all_that_was_said(run, it).split())
    assert "localhost" not in all_that_was_said(run, it)


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_fr_085_redirect_that_would_make_a_get_of_a_call_is_not_followed(status: int) -> None:
    replies: Replies = {"tools/call": http_reply(status, b"", Location="/mcp/")}
    async with open_met(replies) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["server_unreachable"]
    assert [request.path for request in it.mcp.requests if request.path != "/mcp"] == []


# FR-086: authorization

WANTING: dict[str, tuple[Reply, str | None]] = {
    "401 with a challenge": (http_reply(401, HTML, "text/html", WWW_Authenticate=CHALLENGE), CHALLENGE),
    "401 as an error": (
        json_reply(rpc_error(-32001, f"{MARKER} unauthorized", None), 401, WWW_Authenticate=CHALLENGE),
        CHALLENGE,
    ),
    "401 without": (http_reply(401, b"no"), None),
    "403 with a challenge": (
        http_reply(403, b"no", WWW_Authenticate='Bearer error="insufficient_scope", scope="files:read"'),
        'Bearer error="insufficient_scope", scope="files:read"',
    ),
    "401 that says the token back": (
        http_reply(401, TOKEN.encode(), WWW_Authenticate=f'Bearer error="bad token {TOKEN}"'),
        'Bearer error="bad token …"',
    ),
}


@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
@pytest.mark.parametrize("row", WANTING.values(), ids=WANTING)
async def test_fr_086_server_that_wants_authorization_is_told_as_such_and_costs_the_others_nothing(
    row: tuple[Reply, str | None], method: str
) -> None:
    reply, challenge = row
    async with open_raw_mcp({method: reply}) as closed:
        others = [operator_server("closed", closed.url, **AUTHORIZED)]
        async with open_met(others=others) as it:
            run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]
    assert (states(run), states(run, "closed")) == (["ready"], ["authRequired"])
    told_of = next(data for data in run.named("server") if data["name"] == "closed")
    assert told_of.get("challenge") == challenge
    assert closed.asked[method] == 1
    assert closed.asked["GET"] == 0
    assert TOKEN not in all_that_was_said(run, it)
    assert MARKER not in all_that_was_said(run, it)


@some_ways
@pytest.mark.parametrize("row", WANTING.values(), ids=WANTING)
async def test_fr_086_authorization_that_a_call_wants_is_told_once_and_the_run_goes_on(
    row: tuple[Reply, str | None], way: Way
) -> None:
    reply, challenge = row
    async with open_met({"tools/call": reply}, way=way, server=AUTHORIZED, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_failed"] * 2
    assert all("wants authorization" in content for content in told(it, 2))
    assert states(run) == ["ready", "authRequired"]
    assert run.named("server")[1].get("challenge") == challenge
    assert it.mcp.asked["tools/call"] == 1, "the same would be said again"
    assert it.mcp.asked["initialize"] <= 1
    assert TOKEN not in all_that_was_said(run, it)
    assert MARKER not in all_that_was_said(run, it)


@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
async def test_fr_086_challenge_is_cleaned_and_capped(method: str) -> None:
    challenge = f'Bearer realm="a\xad\x85b", x={"y" * 20_000}'
    head = f"HTTP/1.1 401 No\r\nContent-Length: 0\r\nWWW-Authenticate: {challenge}\r\n\r\n"
    async with open_met({method: head.encode("latin-1")}, answers=ONE if method == "tools/call" else []) as it:
        run = await it.run()
    assert is_whole(run, it)
    told_of = run.named("server")[-1]
    assert told_of["state"] == "authRequired"
    assert len(told_of["challenge"]) <= 2000
    assert told_of["challenge"].startswith('Bearer realm="ab"')


# FR-087, FR-088: what a server asks during a call

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
QUESTIONS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "elicitation": ("elicitation/create", {"message": "sure?", "requestedSchema": SCHEMA}),
    "elicitation without a schema": ("elicitation/create", {"message": "sure?"}),
    "elicitation by page": (
        "elicitation/create",
        {"mode": "url", "message": "m", "url": "https://a.example/", "elicitationId": "e"},
    ),
    "sampling": ("sampling/createMessage", {"messages": [], "maxTokens": 5}),
    "roots": ("roots/list", None),
    "nothing known": ("x/unknown", {"a": 1}),
    "our own method": ("tools/list", {}),
}


def asking(method: str, params: Any, id_: Any, answered: asyncio.Event) -> Reply:
    """Run a tool that asks something first, and ends only once it has been answered."""

    async def call(request: RawRequest) -> bytes:
        question = {"jsonrpc": "2.0", "id": id_, "method": method, **({} if params is None else {"params": params})}
        await request.write(sse_reply([question], end=False))
        await answered.wait()
        return sse_frame(result_of(request, text_result("after the answer"))) + b"0\r\n\r\n"

    return call


def announced(it: Field) -> dict[str, Any]:
    return sent(it, "initialize")[-1].rpc["params"]["capabilities"]


@pytest.mark.parametrize("form", ["json", "sse"], ids=["streamable", "sse"])
@pytest.mark.parametrize("id_", [0, "q-1"])
@pytest.mark.parametrize("row", QUESTIONS.values(), ids=QUESTIONS)
async def test_fr_087_server_that_asks_what_is_not_served_is_refused_at_once_and_its_tool_can_end(
    row: tuple[str, dict[str, Any] | None], id_: Any, form: Form
) -> None:
    answered = asyncio.Event()
    answers: list[Any] = []

    def post(request: RawRequest) -> bytes:
        answers.append(request.rpc)
        answered.set()
        return http_reply(202)

    replies: Replies = {"tools/call": asking(*row, id_, answered), "POST": post}
    async with open_met(replies, way=("legacy", form)) as it:
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["after the answer"]
    assert not {"elicitation", "sampling", "roots"} & set(announced(it))
    (answer,) = answers
    assert answer["id"] == id_
    assert type(answer["id"]) is type(id_)
    is_declined = answer.get("result") == {"action": "decline"}
    assert is_declined or isinstance(answer["error"]["code"], int)
    assert run.named("elicitation") == []


async def test_fr_087_question_is_put_to_a_person_who_is_there() -> None:
    answered = asyncio.Event()
    answers: list[Any] = []

    def post(request: RawRequest) -> bytes:
        answers.append(request.rpc)
        answered.set()
        return http_reply(202)

    replies: Replies = {"tools/call": asking(*QUESTIONS["elicitation"], 9, answered), "POST": post}
    async with open_met(replies) as it:
        async with it.service.streaming(model="m", interactive=True) as (response, source):
            run = Run(response)
            async for event in events(source):
                run.events.append(event)
                if event.data.get("subtype") == "request":
                    url = f"/v1/runs/{response.headers['x-run-id']}/inputs/{event.data['inputId']}"
                    body = {"action": "accept", "content": {"ok": True}}
                    assert (await it.service.client.post(url, json=body)).status_code == 204
    assert is_whole(run, it)
    assert announced(it)["elicitation"] == {"form": {}, "url": {}}
    assert answers[0]["result"] == {"action": "accept", "content": {"ok": True}}
    assert told(it) == ["after the answer"]
    assert [data["subtype"] for data in run.named("elicitation")] == ["request", "resolved"]


@both_eras
async def test_fr_087_modern_tool_that_needs_a_person_fails_where_nobody_is(way: Way) -> None:
    wanted = {"q1": {"method": "elicitation/create", "params": {"message": "sure?", "requestedSchema": SCHEMA}}}
    asks = result({"resultType": "input_required", "inputRequests": wanted, "requestState": "s"})
    async with open_met({"tools/call": asks}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_failed"]
    assert it.mcp.asked["tools/call"] == 1


@pytest.mark.parametrize("form", ["json", "sse"], ids=["streamable", "sse"])
@pytest.mark.parametrize("id_", ["p1", 1, 0, "", 2**53, "1"])
async def test_fr_088_ping_during_a_call_is_answered_at_once(id_: Any, form: Form) -> None:
    answered = asyncio.Event()
    answers: list[Any] = []

    def post(request: RawRequest) -> bytes:
        answers.append(request.rpc)
        if len(answers) == 3:
            answered.set()
        return http_reply(202)

    async def call(request: RawRequest) -> bytes:
        ping = {"jsonrpc": "2.0", "id": id_, "method": "ping"}
        await request.write(sse_reply([ping, {**ping, "params": {}}, {**ping, "id": "other"}], end=False))
        await answered.wait()
        return sse_frame(result_of(request, text_result("after the answers"))) + b"0\r\n\r\n"

    async with open_met({"tools/call": call, "POST": post}, way=("legacy", form), session_id="s1") as it:
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["after the answers"]
    expected: list[Any] = [{"jsonrpc": "2.0", "id": each, "result": {}} for each in (id_, id_, "other")]
    assert sorted(answers, key=str) == sorted(expected, key=str)


async def test_fr_088_ping_on_the_connections_own_stream_is_answered_during_a_call() -> None:
    answered, opened = asyncio.Event(), asyncio.Event()
    streams: list[RawRequest] = []

    async def open_stream(request: RawRequest) -> str:
        await request.write(sse_reply([], end=False))
        streams.append(request)
        opened.set()
        return HANG

    async def call(request: RawRequest) -> bytes:
        await opened.wait()
        await streams[0].write(sse_frame({"jsonrpc": "2.0", "id": "p1", "method": "ping"}))
        await answered.wait()
        return json_reply(result_of(request, text_result("after the answer")))

    def post(request: RawRequest) -> bytes:
        answered.set()
        assert request.rpc == {"jsonrpc": "2.0", "id": "p1", "result": {}}
        return http_reply(202)

    async with open_met({"tools/call": call, "POST": post, "GET": open_stream}, session_id="s1") as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["after the answer"]


@pytest.mark.parametrize("form", ["json", "sse"], ids=["streamable", "sse"])
async def test_fr_088_flood_of_pings_holds_up_nothing(form: Form) -> None:
    async def call(request: RawRequest) -> bytes:
        pings = [{"jsonrpc": "2.0", "id": f"p{at}", "method": "ping"} for at in range(500)]
        await request.write(sse_reply(pings, end=False))
        await wait_until(lambda: it.mcp.asked["POST"] >= 100)
        return sse_frame(result_of(request, text_result("fine"))) + b"0\r\n\r\n"

    async with open_met({"tools/call": call, "POST": http_reply(202)}, way=("legacy", form), answers=[*ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]


@pytest.mark.parametrize("method", ["ping", "elicitation/create", "roots/list"])
async def test_fr_088_request_of_a_modern_server_which_may_not_send_any_costs_nothing(method: str) -> None:
    def call(request: RawRequest) -> bytes:
        asked = {"jsonrpc": "2.0", "id": request.id, "method": method, "params": {"message": "m"}}
        return sse_reply([asked, {**asked, "id": "p1"}, result_of(request, text_result("fine"))])

    async with open_met({"tools/call": call, "POST": http_reply(202)}, way=MODERN, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it, 2) == ["fine", "fine"]


# FR-089: which era

UNKNOWN: dict[str, Reply] = {
    "unknown method": error(-32601, "unknown method"),
    "invalid request": error(-32600, "invalid"),
    "invalid params": error(-32602, "invalid"),
    "any error": error(-32000, "what?"),
    "error for no id": lambda _request: json_reply(rpc_error(-32601, "unknown", None)),
    "400 with an error": error(-32600, "Bad Request: Unsupported protocol version", status=400),
    "version error": error(-32022, "unsupported", status=400),
    "not a discovery": result({"hello": "world"}),
    "versions that nobody knows": result({"supportedVersions": ["2099-01-01"], "capabilities": {}}),
    "page": HTML_PAGE,
    "empty": http_reply(200, b"", "application/json"),
    "202": http_reply(202),
    "stream without an event": sse_reply([]),
    "cut": CUT,
    **{
        f"status {status}": http_reply(status, HTML, "text/html") for status in (400, 404, 405, 406, 415, 422, 500, 501)
    },
}


@pytest.mark.parametrize("reply", UNKNOWN.values(), ids=UNKNOWN)
async def test_fr_089_any_unknown_answer_to_the_probe_means_the_older_era(reply: Reply) -> None:
    async with open_met({"server/discover": reply}, answers=[*ONE, stream(text("Done."), end()), *ONE]) as it:
        run = await it.run()
        again = await it.run()
    assert is_whole(run, it)
    assert is_whole(again, it)
    assert told(it) == ["fine"]
    assert it.mcp.asked["server/discover"] == 1
    assert MARKER not in all_that_was_said(run, it)


async def test_fr_089_server_that_swallows_the_probe_is_of_the_older_era() -> None:
    async with open_met({"server/discover": HANG}, connect_ms=20_000, mcp_list_wait_ms=10_000) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]


NOT_ABOUT_THE_ERA: dict[str, tuple[Reply, str]] = {
    "401": (http_reply(401, WWW_Authenticate=CHALLENGE), "authRequired"),
    "401 without a challenge": (http_reply(401), "authRequired"),
    "403 with a challenge": (http_reply(403, WWW_Authenticate=CHALLENGE), "authRequired"),
    "redirect elsewhere": (http_reply(307, Location="https://a.example/mcp"), "unavailable"),
    "redirect to sign in": (http_reply(302, Location="https://a.example/login"), "unavailable"),
}


@pytest.mark.parametrize("row", NOT_ABOUT_THE_ERA.values(), ids=NOT_ABOUT_THE_ERA)
async def test_fr_089_what_says_nothing_of_the_era_is_no_reason_for_the_older_one(row: tuple[Reply, str]) -> None:
    reply, state = row
    async with open_met({"server/discover": reply}, answers=[]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == [state]
    assert it.mcp.asked == {"server/discover": 1}


async def test_fr_089_untrusted_tls_is_told_and_nothing_older_is_tried() -> None:
    async with open_met(answers=[]) as it:
        url = it.mcp.url.replace("http://", "https://")
        body = {"name": "tls", "url": url}
        answer = (await it.service.client.post("/v1/servers/check", json={"name": "box"})).json()
        refused = (await it.service.client.post("/v1/servers/check", json=body)).json()
    assert answer["era"] == "legacy"
    assert refused["reachable"] is False
    assert it.mcp.asked["initialize"] == 1


@pytest.mark.parametrize("session_id", [None, "s1"])
@both_eras
async def test_fr_089_era_is_remembered(way: Way, session_id: str | None) -> None:
    answers = [*ONE, stream(text("Done."), end()), *ONE]
    async with open_met(way=way, session_id=session_id, answers=answers) as it:
        await it.run()
        await it.run()
    assert told(it, 3) == ["fine"]
    assert it.mcp.asked["server/discover"] == 1
    assert it.mcp.asked["initialize"] == (0 if way == MODERN else 2 if session_id else 1)


async def test_fr_089_modern_server_is_never_greeted() -> None:
    async with open_met(way=MODERN) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert set(it.mcp.asked) == {"server/discover", "tools/list", "tools/call"}
    versions = {request.headers.get("mcp-protocol-version") for request in it.mcp.requests}
    assert versions == {"2026-07-28"}


# FR-090: what is said to a notification


NOTED_BY: dict[str, Reply] = {
    "202 text": http_reply(202, b"ok"),
    "200 text": http_reply(200, b"ok"),
    "200 with an answer to nothing": json_reply({"jsonrpc": "2.0", "id": None, "result": {}}),
    "200 with an error for nothing": json_reply(rpc_error(-32601, "unknown method", None)),
    "200 with an answer to another": json_reply({"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}),
    "200 null": http_reply(200, b"null", "application/json"),
    "200 broken": http_reply(200, b"{", "application/json"),
    "200 stream": sse_reply([]),
    "200 stream with an answer": sse_reply([{"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}]),
    "202 without a length": b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "page": HTML_PAGE,
    "204": http_reply(204, content_type=None),
    **{str(status): http_reply(status, b"no") for status in (400, 404, 405, 500)},
    "cut": CUT,
    "hang": HANG,
}


@pytest.mark.parametrize("form", ["json", "sse"], ids=["streamable", "sse"])
@pytest.mark.parametrize("reply", NOTED_BY.values(), ids=NOTED_BY)
async def test_fr_090_whatever_is_said_to_a_notification_is_not_heeded(reply: Reply, form: Form) -> None:
    async with open_met({"notifications/initialized": reply}, way=("legacy", form), session_id="s1") as it:
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert told(it) == ["fine"]
    assert (it.mcp.asked["initialize"], it.mcp.asked["notifications/initialized"]) == (1, 1)


# FR-091: media types

JSON_TYPES = [
    "Application/JSON; charset=utf-8",
    "application/json;charset=UTF-8",
    "APPLICATION/JSON",
    ' application/json ; a=b; c="d;e"',
    "application/json;",
]
STREAM_TYPES = ["text/event-stream; charset=utf-8", "Text/Event-Stream", "TEXT/EVENT-STREAM;charset=utf-8"]


def typed(content_type: str, era: Era) -> Replies:
    """Answer well, each time with this type."""

    def typing(reply: Reply) -> Reply:
        def typed_reply(request: RawRequest) -> bytes:
            body = reply(request) if callable(reply) else reply
            assert isinstance(body, bytes)
            value = body.partition(b"\r\n\r\n")[2]
            if "event-stream" in content_type.lower():
                value = b"event: message\ndata: " + value + b"\n\n"
            return http_reply(200, value, content_type)

        return typed_reply

    asked = ("server/discover", "initialize", "tools/list", "tools/call")
    return {method: typing(reply) for method, reply in well_behaved(era).items() if method in asked}


@both_eras
@pytest.mark.parametrize("content_type", [*JSON_TYPES, *STREAM_TYPES])
async def test_fr_091_media_type_is_read_without_case_and_parameters(content_type: str, way: Way) -> None:
    async with open_met(typed(content_type, way[0]), way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert told(it) == ["fine"]


# FR-092: whose session


def counting() -> Reply:
    counts: Counter[str] = Counter()

    def call(request: RawRequest) -> bytes:
        session = request.headers.get("mcp-session-id", "none")
        counts[session] += 1
        return json_reply(result_of(request, text_result(f"{session} {counts[session]}")))

    return call


def numbered_sessions() -> Reply:
    count = 0

    def initialize(request: RawRequest) -> bytes:
        nonlocal count
        count += 1
        return json_reply(result_of(request, HELLO), Mcp_Session_Id=f"s{count}")

    return initialize


DONE = stream(text("Done."), end())


@pytest.mark.parametrize("form", ["json", "stream"])
async def test_fr_092_all_calls_of_a_run_are_made_in_one_session_which_ends_with_it(form: Form) -> None:
    replies: Replies = {"initialize": numbered_sessions(), "tools/call": counting()}
    answers = [*ONE, calls("act", "act"), *ONE, DONE, *ONE]
    async with open_met(replies, way=("legacy", form), answers=answers) as it:
        first = await it.run()
        await wait_until(lambda: it.mcp.asked["DELETE"] == 1)
        second = await it.run()
        await wait_until(lambda: it.mcp.asked["DELETE"] == 2)
    assert is_whole(first, it)
    assert is_whole(second, it)
    assert sorted(told(it, 3)) == ["s1 1", "s1 2", "s1 3", "s1 4"]
    assert told(it, 5) == ["s2 1"]
    assert [request.headers["mcp-session-id"] for request in sent(it, "DELETE")] == ["s1", "s2"]


async def test_fr_092_runs_of_one_conversation_go_on_in_its_session() -> None:
    replies: Replies = {"initialize": numbered_sessions(), "tools/call": counting()}
    async with open_met(replies, answers=[*ONE, DONE] * 5) as it:
        for conversation in ("a", "b", "a", None, "a"):
            metadata = {} if conversation is None else {"metadata": {"conversation_id": conversation}}
            await it.run(**metadata)
    said = [told(it, number)[0].split() for number in (1, 3, 5, 7, 9)]
    assert [count for _, count in said] == ["1", "1", "2", "1", "3"]
    assert len({session for session, _ in said}) == 3
    assert it.mcp.asked["DELETE"] == 3


async def test_fr_092_session_of_a_run_that_was_stopped_is_ended_too() -> None:
    replies: Replies = {"initialize": numbered_sessions(), "tools/call": HANG}
    async with open_met(replies) as it:
        async with it.service.streaming(model="m"):
            await wait_until(lambda: it.mcp.asked["tools/call"] == 1)
        await wait_until(lambda: it.mcp.asked["DELETE"] == 1, 8)
    methods = [request.method for request in it.mcp.requests]
    assert methods.index("notifications/cancelled") < methods.index("DELETE")


async def test_fr_092_callers_with_credentials_of_their_own_never_meet_in_a_session() -> None:
    replies: Replies = {"initialize": numbered_sessions(), "tools/call": counting()}
    async with open_met(replies, answers=[*ONE, DONE] * 3, mcp_allow_insecure_urls=True) as it:
        for token in ("one-secret", "two-secret", "one-secret"):
            mine = {"name": "mine", "url": it.mcp.url, "headers": {"Authorization": f"Bearer {token}"}}
            await it.run(servers=[mine], server_names=["mine"], metadata={"conversation_id": "a"})
    by_session: dict[str, set[str]] = {}
    for request in it.mcp.requests:
        if "mcp-session-id" in request.headers:
            by_session.setdefault(request.headers["mcp-session-id"], set()).add(request.headers["authorization"])
    assert all(len(tokens) == 1 for tokens in by_session.values())
    assert [told(it, number)[0].split()[1] for number in (1, 3, 5)] == ["1", "1", "2"]


# FR-093: unclear failures

READS = {"annotations": {"readOnlyHint": True}}
REPEATS = {"annotations": {"idempotentHint": True, "readOnlyHint": False}}
DESTROYS = {"annotations": {"destructiveHint": True}}
PRETENDS = {"annotations": {"readOnlyHint": "true", "idempotentHint": 1}}
HINTS: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, 1),
    "destructive": (DESTROYS, 1),
    "not a boolean": (PRETENDS, 1),
    "none at all": ({"annotations": None}, 1),
    "neither": ({"annotations": {"readOnlyHint": False, "idempotentHint": False}}, 1),
    "read-only": (READS, 2),
    "idempotent": (REPEATS, 2),
}


UNCLEAR: dict[str, Reply] = {
    "reset": CUT,
    "408": http_reply(408, b"", None),
    "500": http_reply(500, b"no"),
    "502": http_reply(502, HTML, "text/html"),
    "520": http_reply(520, HTML, "text/html"),
    "503": http_reply(503, b"", None),
    "504": http_reply(504, HTML, "text/html"),
    "empty stream": sse_reply([]),
    "half of a body": half_a_body_and_cut,
    "page": HTML_PAGE,
    "202": http_reply(202),
}


UNCLEAR_CALLS = [
    *((failure, hints) for failure in UNCLEAR for hints in ("none", "read-only")),
    *(("reset", hints) for hints in HINTS if hints not in ("none", "read-only")),
]


@both_eras
@pytest.mark.parametrize(("failure", "kind"), UNCLEAR_CALLS)
async def test_fr_093_call_whose_outcome_is_unknown_is_sent_again_only_where_its_server_says_that_it_may_be(
    failure: str, kind: str, way: Way
) -> None:
    hints, attempts = HINTS[kind]
    replies: Replies = {"tools/call": [UNCLEAR[failure], result(text_result("paid"))]}
    tools = [tool_entry("pay", **hints)]
    async with open_met(replies, way=way, tools=tools, answers=[calls("pay", n=1), calls("pay", n=2)]) as it:
        run = await it.run()
    assert is_whole(run, it)
    numbers = [request.rpc["params"]["arguments"]["n"] for request in sent(it, "tools/call")]
    if attempts == 1:
        assert numbers == [1, 2]
        assert codes(run) == ["tool_outcome_unknown"]
        assert "not known whether the tool ran" in told(it, 2)[0]
        assert told(it, 2)[1] == "paid", "later calls are fine"
    else:
        assert numbers == [1, 1, 2]
        assert codes(run) == []
        assert told(it, 2) == ["paid", "paid"]
    assert MARKER not in all_that_was_said(run, it)


@pytest.mark.parametrize("hints", [READS, REPEATS], ids=["read-only", "idempotent"])
@both_eras
async def test_fr_093_harmless_call_is_sent_twice_at_most(way: Way, hints: dict[str, Any]) -> None:
    async with open_met({"tools/call": CUT}, way=way, tools=[tool_entry("act", **hints)]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert it.mcp.asked["tools/call"] == 2
    assert codes(run) == ["tool_outcome_unknown"]


CLEAR: dict[str, tuple[Reply, str]] = {
    "500 that says why": (error(-32000, "broker down", status=500), "tool_failed"),
    "429": (http_reply(429, b"no"), "tool_failed"),
    "error": (error(-32000, "broker down"), "tool_failed"),
    "its own failure": (result({"content": [], "isError": True}), "tool_failed"),
    "401": (http_reply(401), "tool_failed"),
    "silence": (HANG, "tool_timeout"),
}


@pytest.mark.parametrize("hints", [READS, {}], ids=["read-only", "none"])
@pytest.mark.parametrize(("reply", "code"), CLEAR.values(), ids=CLEAR)
async def test_fr_093_failure_that_is_clear_is_not_answered_with_another_call(
    reply: Reply, code: str, hints: dict[str, Any]
) -> None:
    tools = [tool_entry("act", **hints)]
    async with open_met({"tools/call": reply}, tools=tools, mcp_tool_timeout_ms=300) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert it.mcp.asked["tools/call"] == 1
    assert codes(run) == [code]


@pytest.mark.parametrize("hints", [READS, {}], ids=["read-only", "none"])
async def test_fr_093_older_transport_whose_stream_breaks_is_no_other(hints: dict[str, Any]) -> None:
    replies: Replies = {"tools/call": [http_reply(202), result(text_result("fine"))]}

    async def end_stream() -> None:
        await wait_until(lambda: it.mcp.asked["tools/call"] == 1)
        await sent(it, "GET")[0].write(b"0\r\n\r\n")

    tools = [tool_entry("act", **hints)]
    async with (
        open_met(replies, way=WAYS["legacy sse"], tools=tools) as it,
        anyio.create_task_group() as also,
    ):
        also.start_soon(end_stream)
        run = await it.run()
        assert is_whole(run, it)
        assert it.mcp.asked["tools/call"] == (2 if hints else 1)
        assert codes(run) == ([] if hints else ["tool_outcome_unknown"])


@both_eras
async def test_fr_093_server_that_closes_after_each_answer_costs_no_call(way: Way) -> None:
    async def call(request: RawRequest) -> str:
        await request.write(json_reply(result_of(request, text_result("fine"))))
        return CUT

    async with open_met({"tools/call": call}, way=way, answers=[calls("act", n=at) for at in range(5)]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it, 5) == ["fine"] * 5
    assert it.mcp.asked["tools/call"] == 5


# FR-094: the server is told when nobody waits any more


async def run_that_ends(it: Field, ends: str) -> list[Event]:
    """Make a run whose first call is under way when it ends: by its reader, by being stopped, or on its own."""
    seen: list[Event] = []
    async with it.service.streaming(model="m") as (response, source):
        async for event in events(source):
            seen.append(event)
            if event.name == "tool/eta":
                await wait_until(lambda: it.mcp.asked["tools/call"] >= 1)
                if ends == "reader goes":
                    break
                if ends == "stopped":
                    await it.service.client.post(f"/v1/runs/{response.headers['x-run-id']}/cancel")
    return seen


ENDS: dict[str, dict[str, Any]] = {
    "reader goes": {},
    "stopped": {},
    "too silent": {"mcp_tool_timeout_ms": 300},
    "too long": {"tool_max_ms": 400, "mcp_tool_timeout_ms": 400},
}


@pytest.mark.parametrize("form", ["json", "stream", "sse"])
@pytest.mark.parametrize("ends", ENDS)
async def test_fr_094_older_server_is_told_by_id_which_call_is_over(ends: str, form: Form) -> None:
    is_told = asyncio.Event()

    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([], end=False))
        while ends == "too long" and not is_told.is_set():
            await request.write(sse_frame(progress_of(request, anyio.current_time())))
            await anyio.sleep(0.05)  # the pace of the progress
        await is_told.wait()
        return sse_frame(result_of(request, text_result("too late"))) + b"0\r\n\r\n"

    def cancelled(_request: RawRequest) -> bytes:
        is_told.set()
        return http_reply(202)

    replies: Replies = {"tools/call": [call, result(text_result("fine"))], "notifications/cancelled": cancelled}
    answers = [calls("act", n=1), calls("act", n=2)]
    async with open_met(replies, way=("legacy", form), answers=answers, session_id="s1", **ENDS[ends]) as it:
        seen = await run_that_ends(it, ends)
        await wait_until(is_told.is_set)
        if ends in ("reader goes", "stopped"):
            assert is_whole(await it.run(), it)
        assert told(it, -1)[-1] == "fine"
    (notification,) = sent(it, "notifications/cancelled")
    assert notification.rpc["params"]["requestId"] == sent(it, "tools/call")[0].id
    failures = [event.data["code"] for event in seen if event.name == "tool/error"]
    assert failures == {"reader goes": [], "stopped": ["cancelled"]}.get(ends, ["tool_timeout"])
    assert "too late" not in json.dumps([event.data for event in seen])


@pytest.mark.parametrize("form", ["json", "stream"])
@pytest.mark.parametrize("ends", ["reader goes", "stopped", "too silent"])
async def test_fr_094_modern_server_sees_its_response_closed_and_hears_nothing_else(ends: str, form: Form) -> None:
    async def call(request: RawRequest) -> str:
        if form == "stream":
            await request.write(sse_reply([], end=False))
        return HANG

    async with open_met({"tools/call": call}, way=("modern", form), **ENDS[ends]) as it:
        await run_that_ends(it, ends)
        await wait_until(sent(it, "tools/call")[0].closed.is_set, 8)
    assert set(it.mcp.asked) == {"server/discover", "tools/list", "tools/call"}
    assert it.mcp.asked["tools/call"] == 1


@pytest.mark.parametrize("reply", [HANG, CUT, http_reply(500), HTML_PAGE], ids=["hang", "cut", "500", "page"])
async def test_fr_094_server_that_does_not_take_the_cancellation_holds_up_nobody(reply: Reply) -> None:
    replies: Replies = {"tools/call": [HANG, result(text_result("fine"))], "notifications/cancelled": reply}
    async with open_met(replies, answers=[*ONE, *ONE], mcp_tool_timeout_ms=300) as it:
        with anyio.fail_after(5):
            run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_timeout"]
    assert told(it, 2)[1] == "fine"


# FR-096: odd entries of a tool list

ODD: dict[str, tuple[Any, bool]] = {
    "output schema with an id": (tool_entry("odd", outputSchema={"$id": "x"}), True),
    "output schema that is none": (tool_entry("odd", outputSchema=7), True),
    "output schema null": (tool_entry("odd", outputSchema=None), True),
    "output schema of another type": (tool_entry("odd", outputSchema={"type": "array"}), True),
    "output schema with a broken reference": (tool_entry("odd", outputSchema={"$ref": "#/$defs/none"}), True),
    "no input schema": ({"name": "odd"}, True),
    "input schema null": (tool_entry("odd", inputSchema=None), True),
    "input schema that is none": (tool_entry("odd", inputSchema="x"), True),
    "input schema without a type": (tool_entry("odd", inputSchema={}), True),
    "no description": ({"name": "odd", "inputSchema": {"type": "object"}}, True),
    "description that is no text": (tool_entry("odd", description=["a"]), True),
    "annotations that are none": (tool_entry("odd", annotations="x"), True),
    "hints that are none": (tool_entry("odd", annotations={"readOnlyHint": "yes"}), True),
    "icons that are none": (tool_entry("odd", icons=7, title=8, _meta=9, execution="x"), True),
    "no name": ({"inputSchema": {"type": "object"}}, False),
    "name that is no text": ({**tool_entry("odd"), "name": 7}, False),
    "name null": ({**tool_entry("odd"), "name": None}, False),
    "empty name": (tool_entry(""), False),
    "null": (None, False),
    "text": ("odd", False),
    "number": (7, False),
    "list": ([tool_entry("odd")], False),
    "tool for tasks only": (tool_entry("odd", execution={"taskSupport": "required"}), False),
}


@pytest.mark.parametrize(("way", "is_first"), [(LEGACY, True), (MODERN, False)], ids=["first, legacy", "last, modern"])
@pytest.mark.parametrize("row", ODD.values(), ids=ODD)
async def test_fr_096_odd_entry_does_not_cost_the_others(row: tuple[Any, bool], way: Way, *, is_first: bool) -> None:
    entry, is_usable = row
    good = tool_entry("act")
    tools = [entry, good] if is_first else [good, entry]
    answers = [calls("odd"), *ONE] if is_usable else ONE
    async with open_met(way=way, tools=tools, answers=answers) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert sorted(offered(it, 0)) == sorted(["act", "odd"] if is_usable else ["act"])
    assert told(it, len(answers)) == ["fine"] * len(answers)
    assert len(notices(run, "tool_dropped")) == (0 if is_usable else 1)
    assert all(isinstance(tool["function"]["parameters"], dict) for tool in it.request(0)["tools"])
    assert all(tool["function"]["description"] for tool in it.request(0)["tools"])


@every_way
async def test_fr_096_half_a_character_in_one_entry_does_not_cost_the_others(way: Way) -> None:
    tools = [tool_entry("odd", description="cut \ud83d"), tool_entry("act")]
    async with open_met(way=way, tools=tools, connect_ms=2000) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert states(run) == ["ready"]
    assert "act" in offered(it, 0)
    assert told(it) == ["fine"]


NO_LISTS: dict[str, Any] = {
    "no list": {},
    "null": {"tools": None},
    "object": {"tools": {"a": 1}},
    "text": {"tools": "x"},
}


@both_eras
@pytest.mark.parametrize("value", NO_LISTS.values(), ids=NO_LISTS)
async def test_fr_096_list_that_is_none_is_an_empty_one(value: Any, way: Way) -> None:
    async with open_met({"tools/list": result(value)}, way=way, answers=[]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert run.status("prepared")["tools"] == "not_applicable"


# FR-097: pages that are no MCP

NO_MCP: dict[str, tuple[Reply, str]] = {
    "200 page": (HTML_PAGE, "not MCP"),
    "200 page with parameters": (http_reply(200, HTML, "Text/HTML; charset=utf-8"), "text/html"),
    "200 page without a type": (http_reply(200, HTML, None), "not MCP"),
    "200 page that says it is JSON": (http_reply(200, HTML, "application/json"), "not MCP"),
    "200 page that says it is a stream": (http_reply(200, HTML, "text/event-stream"), ""),
    "200 text": (http_reply(200, MARKER.encode()), "not MCP"),
    "200 JSON of another kind": (json_reply({"detail": MARKER}), "not MCP"),
    "200 JSON list": (json_reply([MARKER]), "not MCP"),
    "200 JSON-RPC 1": (json_reply({"id": 1, "result": {"x": MARKER}, "error": None}), "not MCP"),
    "502 page": (http_reply(502, HTML, "text/html"), "502"),
    "503 page": (http_reply(503, HTML, "text/html"), "503"),
    "403 page": (http_reply(403, HTML, "text/html"), "403"),
    "type with markup": (http_reply(200, HTML, f"<b>{MARKER}</b>"), "not MCP"),
}


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
@pytest.mark.parametrize("row", NO_MCP.values(), ids=NO_MCP)
async def test_fr_097_page_is_told_in_a_sentence_and_never_quoted(row: tuple[Reply, str], method: str) -> None:
    reply, said = row
    async with open_met({method: reply}, answers=ONE if method == "tools/call" else [], session_id="s1") as it:
        run = await it.run()
    assert is_whole(run, it)
    message = run.named("tool/error")[0]["message"] if method == "tools/call" else message_of(run)
    assert said in message
    assert 0 < len(message) < 200
    everything = all_that_was_said(run, it)
    assert MARKER not in everything
    assert "<html" not in everything
    assert "<h1" not in everything
    assert it.mcp.asked[method] == 1
    if method != "tools/call":
        assert states(run) == ["unavailable"]
    if method == "initialize":
        assert it.mcp.asked["GET"] == 0


# FR-099: a handshake that is never answered


async def opens_a_stream_and_is_silent(request: RawRequest) -> str:
    await request.write(sse_reply([NOTED], end=False))
    return HANG


UNANSWERED: dict[str, Reply] = {
    "silent": HANG,
    "silent after a first event": opens_a_stream_and_is_silent,
}


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
@pytest.mark.parametrize("reply", UNANSWERED.values(), ids=UNANSWERED)
async def test_fr_099_handshake_that_is_never_answered_is_closed_without_a_cancellation(
    reply: Reply, method: str
) -> None:
    async with open_met({method: reply}, answers=[], connect_ms=500) as it:
        run = await it.run()
        await wait_until(lambda: it.mcp.open_connections == 0, 8)
    assert is_whole(run, it)
    assert states(run) == ["unavailable"]
    assert "within 0.5 seconds" in message_of(run)
    assert it.mcp.asked["notifications/cancelled"] == 0
    assert it.mcp.asked[method] == 1
    assert it.mcp.asked["GET"] == 0


async def test_fr_099_older_transport_whose_handshake_is_never_answered_is_closed() -> None:
    replies: Replies = {"initialize": http_reply(202)}
    async with open_met(replies, way=WAYS["legacy sse"], answers=[], connect_ms=500) as it:
        run = await it.run()
        await wait_until(lambda: it.mcp.open_connections == 0, 8)
    assert is_whole(run, it)
    assert states(run) == ["unavailable"]
    assert it.mcp.asked["notifications/cancelled"] == 0
