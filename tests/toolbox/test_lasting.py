"""Connections that last: whose they are, whether they still live, what is sent again, and what changes meanwhile."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import pytest

from app.domain.events import ServerReport
from app.domain.jsontypes import JsonObject
from app.domain.messages import ToolOutcome
from app.domain.spec import ServerSpec
from app.toolbox.box import open_servers
from app.toolbox.offers import Offer
from app.toolbox.rollcall import RollCall
from tests.fakes.mcp_servers import open_mcp_server, wait_until
from tests.fakes.raw_mcp import (
    CUT,
    HANG,
    Era,
    Form,
    RawMcp,
    RawRequest,
    Reply,
    error,
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
from tests.fakes.toolboxes import LOCAL, QUICK, OpenBox, ScriptedPerson, open_lone_run, open_run, operator, user

pytestmark = pytest.mark.anyio

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
RESTLESS = replace(LOCAL, connection=replace(QUICK, rest_seconds=0.0))
"""Asks for a sign of life before each call."""


async def counted(run: OpenBox) -> list[str]:
    return (await run.call("count")).text.split()


# Whose a session is


async def test_runs_of_one_conversation_share_a_session_one_after_another() -> None:
    async with open_mcp_server("legacy") as server, open_servers(LOCAL) as servers:
        seen: list[list[str]] = []
        for conversation in ("a", "b", "a", None, "a"):
            async with open_run(servers, operator(server.url), conversation_id=conversation) as run:
                seen.append(await counted(run))
        assert [count for _, count in seen] == ["1", "1", "2", "1", "3"]
        assert len({session for session, _ in seen}) == 3
        assert server.http["DELETE"] == 1, "that of the run without a conversation"
    assert server.http["DELETE"] == 3


async def test_runs_of_one_conversation_at_once_never_share_a_session() -> None:
    async with open_mcp_server("legacy") as server, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(server.url), conversation_id="a") as first:
            one = await counted(first)
            async with open_run(servers, operator(server.url), conversation_id="a") as second:
                other = await counted(second)
        assert one[0] != other[0]


async def test_session_of_a_conversation_that_went_silent_is_ended() -> None:
    options = replace(LOCAL, connection=replace(QUICK, idle_seconds=0.2))
    async with open_mcp_server("legacy") as server, open_servers(options) as servers:
        async with open_run(servers, operator(server.url), conversation_id="a") as run:
            await counted(run)
        await wait_until(lambda: server.http["DELETE"] == len(server.sessions))


async def test_session_that_the_operator_shares_is_one_for_all_runs_at_once() -> None:
    async with open_mcp_server("legacy") as server, open_servers(LOCAL) as servers:
        shared = operator(server.url, session="shared")
        async with open_run(servers, shared) as first, open_run(servers, shared) as second:
            seen = [await counted(first), await counted(second)]
        async with open_run(servers, shared) as third:
            seen.append(await counted(third))
        assert [count for _, count in seen] == ["1", "2", "3"]
        assert len({session for session, _ in seen}) == 1
        assert server.http["DELETE"] == 0


async def test_interactive_runs_never_share_a_connection_on_which_a_server_could_ask_either() -> None:
    async with open_raw_mcp() as raw, open_servers(LOCAL) as servers:
        async with (
            open_run(servers, operator(raw.url), person=ScriptedPerson()) as first,
            open_run(servers, operator(raw.url), person=ScriptedPerson()) as second,
        ):
            await first.call("echo")
            await second.call("echo")
            assert raw.asked["initialize"] == 2
        async with open_run(servers, operator(raw.url), person=ScriptedPerson()) as third:
            await third.call("echo")
        assert raw.asked["initialize"] == 2, "without a session there is nothing left in it"


async def test_person_is_announced_only_by_runs_that_have_one() -> None:
    def announced(request: RawRequest) -> Any:
        params = request.rpc["params"]
        meta = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
        return params.get("capabilities", meta).get("elicitation")

    eras: list[tuple[Era, str]] = [("legacy", "initialize"), ("modern", "tools/call")]
    for era, method in eras:
        async with open_raw_mcp(era=era) as raw, open_servers(LOCAL) as servers:
            for person in (None, ScriptedPerson()):
                async with open_run(servers, operator(raw.url), person=person) as run:
                    await run.call("echo")
            requests = [request for request in raw.requests if request.method == method]
            assert [announced(request) for request in requests] == [None, {"form": {}, "url": {}}]


async def test_session_is_opened_before_the_first_call_wants_it() -> None:
    # On a busy machine the goodbye to the server may take a while.
    unhurried = replace(LOCAL, connection=replace(QUICK, close_seconds=5.0))
    async with open_mcp_server("legacy") as server, open_servers(unhurried) as servers:
        async with open_run(servers, operator(server.url)) as holder, open_run(servers, operator(server.url)):
            await wait_until(lambda: len(server.sessions) == 2)
            assert server.rpc["tools/call"] == 0
            await counted(holder)
        await wait_until(lambda: server.http["DELETE"] == 1)


async def test_session_that_a_caller_left_behind_while_it_was_made_is_ended() -> None:
    release, asked = anyio.Event(), anyio.Event()

    async def slowly(request: RawRequest) -> bytes:
        asked.set()
        await release.wait()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}}
        return json_reply(result_of(request, hello), Mcp_Session_Id="s1")

    async with open_raw_mcp({"initialize": slowly}) as raw, open_servers(LOCAL) as servers:

        async def use() -> None:
            async with open_run(servers, operator(raw.url)):
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await asked.wait()
            tasks.cancel_scope.cancel()
        release.set()
        await wait_until(lambda: raw.asked["DELETE"] == 1)


# Whether it still lives


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_connection_that_rested_is_asked_for_a_sign_of_life(era: Era) -> None:
    sign = "ping" if era == "legacy" else "server/discover"
    async with open_raw_mcp({"ping": result({})}, era=era) as raw, open_servers(RESTLESS) as servers:
        async with open_run(servers, operator(raw.url)) as run:
            before = raw.asked[sign]
            assert (await run.call("echo")).text == "fine"
            assert raw.asked[sign] > before
    async with open_raw_mcp({"ping": result({})}, era=era) as raw, open_lone_run(operator(raw.url)) as run:
        await run.call("echo")
        assert raw.asked["ping"] == 0, "it has just answered"


@pytest.mark.parametrize(
    ("sign", "sessions"),
    [
        (error(-32601, "no such method"), 1),
        (http_reply(404), 2),
        (HANG, 2),
        (CUT, 2),
        (http_reply(502, b"bad gateway"), 2),
    ],
)
async def test_connection_that_died_at_rest_is_replaced_before_the_call(sign: Reply, sessions: int) -> None:
    replies: dict[str, Any] = {"ping": [sign, result({})]}
    async with open_raw_mcp(replies, session_id="s1") as raw, open_lone_run(operator(raw.url), rest_seconds=0.0) as run:
        assert (await run.call("echo")).text == "fine"
        assert raw.asked["tools/call"] == 1, "the call itself was sent once"
        assert raw.asked["initialize"] == sessions


@pytest.mark.parametrize("sign", [http_reply(404), HANG])
async def test_session_that_expired_does_not_cost_another_conversation_its_own(sign: Reply) -> None:
    given, dead = iter(f"s{number}" for number in range(1, 10)), ""
    hello: JsonObject = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "r", "version": "1"},
    }

    def ping(request: RawRequest) -> Reply:
        is_dead = request.headers["mcp-session-id"] == dead
        return sign if is_dead else json_reply(result_of(request, {}))

    def greet(request: RawRequest) -> bytes:
        return json_reply(result_of(request, hello), Mcp_Session_Id=next(given))

    def call(request: RawRequest) -> bytes:
        return json_reply(result_of(request, text_result(request.headers["mcp-session-id"])))

    replies: dict[str, Any] = {"initialize": greet, "ping": ping, "tools/call": call}
    async with open_raw_mcp(replies) as raw, open_servers(RESTLESS) as servers:
        said: list[str] = []
        for conversation in ("a", "b", "a", "b"):
            dead = said[0] if len(said) > 1 else ""
            async with open_run(servers, operator(raw.url), conversation_id=conversation) as run:
                said.append((await run.call("echo")).text)
        assert said[1] == said[3], "the other goes on"
        assert said[0] != said[2]


async def test_calls_that_come_while_a_rested_connection_is_asked_wait_for_its_sign_of_life() -> None:
    asked = anyio.Event()

    async def deaf(_request: RawRequest) -> str:
        asked.set()
        await anyio.sleep_forever()
        return HANG

    def call(request: RawRequest) -> Reply:
        is_dead = request.headers["mcp-session-id"] == "s1" and asked.is_set()
        return HANG if is_dead else json_reply(result_of(request, text_result("fine")))

    given = iter(f"s{number}" for number in range(1, 10))
    hello: JsonObject = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    hello["serverInfo"] = {"name": "r", "version": "1"}

    def greet(request: RawRequest) -> bytes:
        return json_reply(result_of(request, hello), Mcp_Session_Id=next(given))

    replies: dict[str, Any] = {
        "initialize": greet,
        "ping": [deaf, result({})],
        "tools/call": call,
    }
    async with open_raw_mcp(replies) as raw, open_lone_run(operator(raw.url), rest_seconds=0.0) as run:
        texts: list[str] = []

        async def use() -> None:
            texts.append((await run.call("echo")).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await asked.wait()
            tasks.start_soon(use)
            tasks.start_soon(use)
        assert texts == ["fine"] * 3


async def test_progress_on_the_connections_own_stream_keeps_a_call_alive() -> None:
    streams: list[RawRequest] = []
    done = anyio.Event()

    async def stream(request: RawRequest) -> bytes:
        streams.append(request)
        await request.write(sse_reply([], end=False))
        await done.wait()
        return b"0\r\n\r\n"

    async def call(request: RawRequest) -> bytes:
        for step in range(1, 8):
            await anyio.sleep(0.1)
            await streams[-1].write(sse_frame(progress_of(request, step)))
        return json_reply(result_of(request, text_result("fine")))

    replies: dict[str, Any] = {"GET": stream, "tools/call": call}
    async with open_raw_mcp(replies, session_id="s1") as raw:
        async with open_lone_run(operator(raw.url), call_seconds=0.35) as run:
            await wait_until(lambda: streams)
            assert (await run.call("echo")).text == "fine"
            done.set()


# What is sent again


READS = {"annotations": {"readOnlyHint": True}}
REPEATS = {"annotations": {"idempotentHint": True}}
WRITES = {"annotations": {"destructiveHint": True, "readOnlyHint": False}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("failure", [CUT, sse_reply([]), http_reply(502), http_reply(200, b"<html>", "text/html")])
@pytest.mark.parametrize(("hints", "attempts"), [(READS, 2), (REPEATS, 2), (WRITES, 1), ({}, 1)])
async def test_unclear_failure_is_sent_again_only_where_that_does_no_harm(
    hints: dict[str, Any], attempts: int, failure: Reply, era: Era
) -> None:
    replies: dict[str, Any] = {"tools/call": [failure, result(text_result("fine"))]}
    tools = [tool_entry("pay", **hints)]
    async with open_raw_mcp(replies, era=era, tools=tools) as raw, open_lone_run(operator(raw.url)) as run:
        outcome = await run.call("pay")
        assert raw.asked["tools/call"] == attempts
        if attempts == 1:
            assert outcome.error_code == "tool_outcome_unknown"
            assert "not known whether the tool ran" in outcome.text
            assert (await run.call("pay")).text == "fine", "what comes after it is fine"
        else:
            assert outcome.text == "fine"


async def test_harmless_call_that_fails_again_is_not_sent_a_third_time() -> None:
    tools = [tool_entry("read", **READS)]
    async with open_raw_mcp({"tools/call": CUT}, tools=tools) as raw, open_lone_run(operator(raw.url)) as run:
        assert (await run.call("read")).error_code == "tool_outcome_unknown"
        assert raw.asked["tools/call"] == 2


async def test_silence_is_not_answered_with_another_call() -> None:
    tools = [tool_entry("read", **READS)]
    server = user
    async with (
        open_raw_mcp({"tools/call": HANG}, tools=tools) as raw,
        open_lone_run(server(raw.url, timeout_seconds=0.2)) as run,
    ):
        outcome = await run.call("read")
        assert outcome.error_code == "tool_timeout"
        assert outcome.message.startswith("read of Fake: The server gave no sign of life for 0.2 seconds.")
        assert raw.asked["tools/call"] == 1


# What changes meanwhile


def names_of(run: OpenBox) -> list[str]:
    return [tool.spec.name for tool in run.box.tools]


def pages(*names: list[str]) -> list[Reply]:
    return [result({"tools": [tool_entry(name) for name in page]}) for page in names]


@asynccontextmanager
async def changing(
    lists: list[Reply], call: Reply, *, era: Era = "legacy", **fields: Any
) -> AsyncGenerator[tuple[RawMcp, OpenBox]]:
    async with (
        open_raw_mcp({"tools/list": lists, "tools/call": call}, era=era, **fields) as raw,
        open_lone_run(operator(raw.url)) as run,
    ):
        yield raw, run


@pytest.mark.parametrize("session_id", [None, "s1"])
async def test_tools_that_change_during_a_call_are_there_after_it_and_bursts_cost_one_listing(
    session_id: str | None,
) -> None:
    def call(request: RawRequest) -> bytes:
        return sse_reply([CHANGED] * 20 + [result_of(request, text_result("fine"))])

    lists = pages(["echo", "old"], ["echo", "new"])
    async with changing(lists, call, session_id=session_id) as (raw, run):
        assert names_of(run) == ["echo", "old"]
        assert (await run.call("echo")).text == "fine"
        await run.box.settle()
        assert names_of(run) == ["echo", "new"]
        assert raw.asked["tools/list"] == 2
        reports = [event for event in run.events if isinstance(event, ServerReport)]
        assert [list(report.tools) for report in reports] == [["echo", "old"], ["echo", "new"]]
        assert run.box.find("old") is None


async def test_call_under_way_is_not_touched_by_a_change() -> None:
    told = anyio.Event()

    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([CHANGED], end=False))
        await told.wait()
        await request.write(sse_frame(result_of(request, text_result("fine"))))
        return b"0\r\n\r\n"

    async with changing(pages(["echo"], ["other"]), call) as (raw, run), anyio.create_task_group() as tasks:
        texts: list[str] = []

        async def use() -> None:
            texts.append((await run.call("echo")).text)

        tasks.start_soon(use)
        await wait_until(lambda: names_of(run) == ["other"])
        told.set()
        await wait_until(lambda: texts == ["fine"])
        assert raw.asked["tools/call"] == 1


async def test_change_to_the_same_tools_is_no_news() -> None:
    def call(request: RawRequest) -> bytes:
        return sse_reply([CHANGED, result_of(request, text_result("fine"))])

    async with changing(pages(["echo"], ["echo"]), call) as (raw, run):
        await run.call("echo")
        await run.box.settle()
        assert raw.asked["tools/list"] == 2
        assert len([event for event in run.events if isinstance(event, ServerReport)]) == 1


async def test_server_that_tells_a_change_with_each_list_holds_up_no_round() -> None:
    def call(request: RawRequest) -> bytes:
        return sse_reply([CHANGED, result_of(request, text_result("fine"))])

    def page(request: RawRequest) -> bytes:
        return sse_reply([CHANGED, result_of(request, {"tools": [tool_entry("echo")]})])

    options = replace(LOCAL, list_wait_seconds=30.0)
    async with open_raw_mcp({"tools/call": call, "tools/list": page}) as raw, open_servers(options) as servers:
        async with open_run(servers, operator(raw.url)) as run:
            with anyio.fail_after(10):
                for _ in range(5):
                    await run.call("echo")
                    await run.box.settle()
            assert raw.asked["tools/list"] > 5, "it is asked again all the same"


async def test_run_that_ends_while_its_connection_opens_does_not_make_the_era_forgotten() -> None:
    hello: JsonObject = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "r", "version": "1"},
    }
    replies: dict[str, Any] = {"initialize": [result(hello), HANG, result(hello)]}
    async with open_raw_mcp(replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url)):
            pass
        for connection in list(servers._means.pool._all()):
            connection.close()
        async with open_run(servers, operator(raw.url)):
            await wait_until(lambda: raw.asked["initialize"] == 2)
        async with open_run(servers, operator(raw.url)) as run:
            assert (await run.call("echo")).text == "fine"
        assert raw.asked["server/discover"] == 1


async def test_change_that_cannot_be_listed_leaves_what_there_was() -> None:
    def call(request: RawRequest) -> bytes:
        return sse_reply([CHANGED, result_of(request, text_result("fine"))])

    async with changing([*pages(["echo"]), error(-32000, "busy")], call) as (_, run):
        await run.call("echo")
        await run.box.settle()
        assert names_of(run) == ["echo"]


Say: TypeAlias = Callable[[Any], Awaitable[None]]


def subscription(tell: Callable[[Say], Awaitable[None]]) -> Reply:
    """Acknowledge a subscription, go on with what `tell` says, and break off."""
    return lambda request: _subscribed(request, tell)


async def _subscribed(request: RawRequest, tell: Callable[[Say], Awaitable[None]]) -> str:
    about = {"io.modelcontextprotocol/subscriptionId": request.id}
    filters = {"toolsListChanged": True}
    method = "notifications/subscriptions/acknowledged"
    acknowledged = {"jsonrpc": "2.0", "method": method, "params": {"_meta": about, "notifications": filters}}

    async def say(message: Any) -> None:
        await request.write(sse_frame({**message, "params": {"_meta": about}}))

    await request.write(sse_reply([acknowledged], end=False))
    await tell(say)
    return CUT


DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}},
    "resultType": "complete",
    "ttlMs": 0,
    "cacheScope": "private",
}


async def test_modern_server_tells_changes_over_a_subscription_that_runs_share() -> None:
    says: list[Say] = []
    hold = anyio.Event()

    async def tell(say: Say) -> None:
        says.append(say)
        await hold.wait()

    lists = pages(["old"], ["new"])
    replies: dict[str, Any] = {
        "server/discover": result(DISCOVERED),
        "subscriptions/listen": subscription(tell),
        "tools/list": lists,
    }
    async with open_raw_mcp(replies, era="modern") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url)) as first, open_run(servers, operator(raw.url)) as second:
            await wait_until(lambda: says)
            for _ in range(5):
                await says[0](CHANGED)
            await wait_until(lambda: names_of(first) == names_of(second) == ["new"])
            assert raw.asked["subscriptions/listen"] == 1
            assert raw.asked["tools/list"] == 2
        hold.set()


async def test_subscription_that_breaks_is_begun_anew_and_counts_as_a_change() -> None:
    hold = anyio.Event()

    async def end_at_once(_say: Say) -> None:
        return

    async def stay(_say: Say) -> None:
        await hold.wait()

    replies: dict[str, Any] = {
        "server/discover": result(DISCOVERED),
        "subscriptions/listen": [
            subscription(end_at_once),
            subscription(stay),
        ],
        "tools/list": pages(["old"], ["new"]),
    }
    async with open_raw_mcp(replies, era="modern") as raw, open_lone_run(operator(raw.url)) as run:
        assert names_of(run) == ["old"]
        await wait_until(lambda: names_of(run) == ["new"], 10)
        assert raw.asked["subscriptions/listen"] == 2
        hold.set()


# What one server must not cost the others


@pytest.mark.parametrize("form", ["json", "sse"])
@pytest.mark.parametrize("status", [400, 404, 405, 500])
async def test_result_with_the_status_of_an_error_costs_its_call_only(form: Form, status: int) -> None:
    replies: dict[str, Any] = {"tools/call": [result(text_result("odd"), status=status), result(text_result("fine"))]}
    async with open_raw_mcp(replies, form=form) as raw, open_raw_mcp() as other, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url)) as run, open_run(servers, operator(other.url)) as neighbour:
            is_gone = (form, status) == ("sse", 404)  # which says that the session is not known, so it is sent again
            assert ((await run.call("echo")).error_code is None) == is_gone
            assert (await run.call("echo")).text == "fine"
            assert (await neighbour.call("echo")).text == "fine"


PING = {"jsonrpc": "2.0", "id": "p", "method": "ping"}


@pytest.mark.parametrize("message", [PING, CHANGED], ids=["ping", "list_changed"])
async def test_server_that_floods_its_own_stream_is_not_listened_to(message: dict[str, Any]) -> None:
    sent, is_over = 0, anyio.Event()

    async def flood(request: RawRequest) -> str:
        nonlocal sent
        await request.write(sse_reply([], end=False))
        while not is_over.is_set():
            await request.write(sse_frame(message) * 50)
            sent += 50
            await anyio.lowlevel.checkpoint()
        return CUT

    replies: dict[str, Any] = {"GET": [flood, http_reply(405)], "POST": http_reply(202)}
    async with open_raw_mcp(replies, session_id="s1") as raw, open_lone_run(operator(raw.url)) as run:
        await wait_until(lambda: raw.asked["GET"] >= 2, 10)
        is_over.set()
        assert raw.asked["POST"] <= 400, "what it asks is answered no longer"
        assert (await run.call("echo")).text == "fine"
        assert raw.asked["tools/list"] < 20


@pytest.mark.parametrize(
    ("listed", "unchanged"),
    [
        (result({"tools": [tool_entry("echo", description="Other.")]}), False),
        (result({"tools": []}), False),
        (error(-32000, "busy"), "server_unreachable"),
        (http_reply(500), "server_unreachable"),
        (http_reply(401), "server_unreachable"),
        (HANG, "server_unreachable"),
        ([http_reply(503), result({"tools": [tool_entry("echo")]})], True),
        ([http_reply(404), result({"tools": [tool_entry("echo")]})], True),
    ],
)
async def test_tool_is_looked_at_again_and_what_cannot_be_seen_is_said(
    listed: Reply | list[Reply], unchanged: bool | str
) -> None:
    lists: list[Reply] = [result({"tools": [tool_entry("echo")]}), *(listed if isinstance(listed, list) else [listed])]
    replies: dict[str, Any] = {"tools/list": lists}
    async with (
        open_raw_mcp(replies, session_id="s1") as raw,
        open_lone_run(operator(raw.url), list_seconds=0.3) as run,
    ):
        tool = run.box.find("echo")
        assert tool is not None
        told = await run.box.is_unchanged(tool)
        assert (told.error_code if isinstance(told, ToolOutcome) else told) == unchanged


async def test_calls_that_were_allowed_at_once_share_one_look() -> None:
    async with open_raw_mcp(session_id="s1") as raw, open_lone_run(operator(raw.url)) as run:
        tool = run.box.find("echo")
        assert tool is not None
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(run.box.is_unchanged, tool)
        assert raw.asked["tools/list"] == 2


async def test_tool_of_a_server_that_is_gone_is_not_called() -> None:
    async with open_mcp_server("modern") as server, open_lone_run(operator(server.url)) as run:
        tool = run.box.find("echo")
        assert tool is not None
        server.kill()
        with anyio.fail_after(5):
            while (await run.call("echo", text="x")).error_code != "server_unreachable":
                pass
        assert isinstance(await run.box.is_unchanged(tool), ToolOutcome)


# What comes too late


async def test_server_that_answers_in_the_moment_in_which_it_is_dismissed_is_not_told_of() -> None:
    answer, told = anyio.Event(), list[Offer]()
    server = operator("https://mcp.example.com/mcp")

    async def ask(server: ServerSpec) -> Offer:
        await answer.wait()
        return Offer(server, "ready")

    roll = RollCall([server], ask, told.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(roll.run)
        await anyio.wait_all_tasks_blocked()
        answer.set()
        roll.dismiss(goes_on=False)
    assert not told


async def test_change_that_is_listed_in_the_moment_in_which_the_run_ends_is_not_told_of() -> None:
    def call(request: RawRequest) -> bytes:
        return sse_reply([CHANGED, result_of(request, text_result("fine"))])

    for _ in range(20):
        async with changing(pages(["echo"], ["other"]), call) as (raw, run):
            await run.call("echo")
            await wait_until(lambda raw=raw: raw.asked["tools/list"] == 2)
            told = len(run.events)
        assert len(run.events) == told


async def test_list_that_comes_too_late_for_a_run_is_there_for_the_next_one() -> None:
    asked = anyio.Event()
    answer = anyio.Event()

    async def slowly(request: RawRequest) -> bytes:
        asked.set()
        await answer.wait()
        return json_reply(result_of(request, {"tools": [tool_entry("echo")]}))

    options = replace(LOCAL, list_wait_seconds=0.0)
    async with (
        open_raw_mcp({"tools/list": slowly}) as slow,
        open_raw_mcp() as quick,
        open_servers(options) as servers,
    ):
        specs = operator(quick.url), replace(operator(slow.url), name="Slow")
        async with open_run(servers, *specs) as run:
            assert run.reports["Slow"].state == "waiting"
            await asked.wait()
        answer.set()
        await wait_until(lambda: not servers._means.listings._under_way)
        async with open_run(servers, *specs) as run:
            assert run.reports["Slow"].state == "ready"
        assert slow.asked["tools/list"] == 1


async def test_tools_that_a_conversations_own_session_has_are_there_in_its_next_run() -> None:
    def listed(request: RawRequest) -> bytes:
        names = ["login", "secret"] if logged_in & {request.headers.get("mcp-session-id")} else ["login"]
        return json_reply(result_of(request, {"tools": [tool_entry(name) for name in names]}))

    def call(request: RawRequest) -> bytes:
        logged_in.add(request.headers.get("mcp-session-id"))
        return sse_reply([CHANGED, result_of(request, text_result("in"))])

    sessions = iter(range(1, 9))

    def initialize(request: RawRequest) -> bytes:
        hello: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
        hello["serverInfo"] = {"name": "r", "version": "1"}
        return json_reply(result_of(request, hello), Mcp_Session_Id=f"s{next(sessions)}")

    logged_in: set[str | None] = set()
    replies: dict[str, Reply] = {"initialize": initialize, "tools/list": listed, "tools/call": call}
    async with open_raw_mcp(replies) as raw, open_servers(LOCAL) as servers:
        server = operator(raw.url)
        async with open_run(servers, server, conversation_id="one") as run:
            await run.call("login")
            await wait_until(lambda: names_of(run) == ["login", "secret"])
        async with open_run(servers, server, conversation_id="one") as run:
            assert names_of(run) == ["login", "secret"]
            assert (await run.call("secret")).error_code is None
        async with open_run(servers, server, conversation_id="two") as run:
            assert names_of(run) == ["login"], "another conversation's session knows nothing of it"


async def test_no_call_takes_longer_in_all_than_the_operator_allows_whatever_its_entry_says() -> None:
    async with (
        open_raw_mcp({"tools/call": HANG}) as raw,
        open_lone_run(replace(user(raw.url), timeout_seconds=60.0), call_total_seconds=0.2) as run,
    ):
        with anyio.fail_after(10):
            outcome = await run.call("echo")
    assert outcome.error_code == "tool_timeout"


async def test_tool_that_wants_authorization_is_asked_once_in_a_run_and_others_go_on() -> None:
    def call(request: RawRequest) -> bytes:
        if request.rpc["params"]["name"] == "guarded":
            return http_reply(401, WWW_Authenticate="Bearer")
        return json_reply(result_of(request, text_result("fine")))

    tools = [tool_entry("guarded"), tool_entry("open")]
    async with open_raw_mcp({"tools/call": call}, tools=tools) as raw, open_lone_run(operator(raw.url)) as run:
        codes = [(await run.call("guarded")).error_code for _ in range(3)]
        assert codes == ["tool_failed"] * 3
        assert (await run.call("open")).text == "fine"
        assert names_of(run) == ["open"]
        assert raw.asked["tools/call"] == 2
        assert [report.state for report in run.events if isinstance(report, ServerReport)] == ["ready", "authRequired"]


async def test_server_that_asks_much_and_takes_no_answer_gets_few_at_once() -> None:
    def call(request: RawRequest) -> bytes:
        pings = [{"jsonrpc": "2.0", "id": f"p{number}", "method": "ping"} for number in range(100)]
        return sse_reply([*pings, result_of(request, text_result("fine"))])

    async with open_raw_mcp({"tools/call": call, "POST": HANG}) as raw, open_lone_run(operator(raw.url)) as run:
        assert (await run.call("echo")).text == "fine"
        assert 0 < raw.open_connections <= 24
        assert 0 < raw.asked["POST"] <= 16
