"""Connections across runs: who shares one, who has one alone, and that none is left."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.domain.principal import Principal
from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.box import McpServers, open_servers
from app.toolbox.pool import PoolLimits, key_of
from tests.fakes.mcp_servers import Kind, open_mcp_server, wait_until
from tests.fakes.raw_mcp import HANG, RawRequest, http_reply, json_reply, open_raw_mcp, result_of
from tests.fakes.toolboxes import LOCAL, QUICK, OpenBox, open_run, operator, user

pytestmark = pytest.mark.anyio


async def counted(run: OpenBox) -> str:
    return (await run.call("count")).text


async def test_two_runs_at_once_have_a_session_each_which_ends_with_its_run() -> None:
    async with open_mcp_server("legacy") as server, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(server.url)) as one, open_run(servers, operator(server.url)) as two:
            texts = [await counted(one), await counted(two), await counted(one), await counted(two)]
        sessions = [text.split()[0] for text in texts]
        assert [text.split()[1] for text in texts] == ["1", "1", "2", "2"]
        assert len(set(sessions)) == 2
        assert set(sessions) == set(server.sessions)
        await wait_until(lambda: server.http["DELETE"] == 2)
        async with open_run(servers, operator(server.url)) as three:
            session, count = (await counted(three)).split()
            assert session not in sessions
            assert count == "1"


async def test_session_that_was_only_listed_over_is_taken_by_the_next_run() -> None:
    async with open_mcp_server("legacy") as server, open_servers(LOCAL) as servers:
        for _ in range(3):
            async with open_run(servers, operator(server.url)) as run:
                assert run.report.state == "ready"
        async with open_run(servers, operator(server.url)) as run:
            assert (await counted(run)).endswith(" 1")
        assert len(server.sessions) == 1


@pytest.mark.parametrize("kind", ["modern", "legacy-stateless"])
async def test_runs_one_after_another_share_a_connection_without_a_session(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_servers(LOCAL) as servers:
        for _ in range(3):
            async with open_run(servers, operator(server.url)) as run:
                await run.call("echo", text="x")
        assert server.rpc["initialize"] + server.rpc["server/discover"] <= 2


@pytest.mark.parametrize("kind", ["modern", "legacy", "legacy-stateless", "sse"])
async def test_server_that_died_during_a_call_is_not_ready_for_the_next_run(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(server.url)) as run, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run.call("wait", seconds=30))
            await wait_until(lambda: "wait" in server.started)
            server.kill()
        async with open_run(servers, operator(server.url)) as run:
            assert run.report.state == "unavailable"


async def test_server_that_cannot_be_connected_to_for_a_call_is_not_ready_for_the_next_run() -> None:
    async with open_servers(LOCAL) as servers:
        async with open_raw_mcp(era="modern") as raw, open_run(servers, operator(raw.url)):
            url = raw.url
        async with open_run(servers, operator(url)) as run:
            assert run.report.state == "ready"
            assert (await run.call("echo")).error_code == "server_unreachable"
        async with open_run(servers, operator(url)) as run:
            assert run.report.state == "unavailable"


@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
async def test_caller_who_leaves_while_a_server_is_asked_leaves_nothing_running(method: str) -> None:
    options = replace(LOCAL, connection=replace(QUICK, connect_seconds=30, probe_seconds=30, list_seconds=30))
    async with open_raw_mcp({method: HANG}) as raw, open_servers(options) as servers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_use, servers, raw.url)
            await wait_until(lambda: raw.asked[method] == 1)
            tasks.cancel_scope.cancel()
        await wait_until(lambda: raw.open_connections == 0, 4)


@pytest.mark.parametrize("kind", ["modern", "legacy-stateless"])
async def test_runs_at_once_share_the_connection_of_a_server_that_keeps_no_sessions(kind: Kind) -> None:
    async with open_mcp_server(kind) as server, open_servers(LOCAL) as servers:

        async def run_once() -> None:
            async with open_run(servers, operator(server.url)) as run:
                await run.call("echo", text="x")

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(run_once)
        assert server.rpc["server/discover"] == 1
        assert server.rpc["tools/list"] == 1, "listings at once are shared"
        assert server.rpc["tools/call"] == 10


async def test_runs_that_start_at_once_on_a_server_with_sessions_have_one_each() -> None:
    async with open_mcp_server("legacy") as server, open_servers(LOCAL) as servers:
        texts: list[str] = []
        everyone = anyio.Event()

        async def run_once() -> None:
            async with open_run(servers, operator(server.url)) as run:
                texts.append(await counted(run))
                if len(texts) == 6:
                    everyone.set()
                await everyone.wait()

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(run_once)
        assert len({text.split()[0] for text in texts}) == 6


SAME = operator("https://a.example/mcp", headers={"X-A": Secret("1"), "Authorization": Secret("t")})
OTHERS = [
    ("name", replace(SAME, name="Other"), True),
    ("case of a header's name", replace(SAME, headers={"x-a": Secret("1"), "authorization": Secret("t")}), True),
    ("order", replace(SAME, headers={"Authorization": Secret("t"), "X-A": Secret("1")}), True),
    ("lists", replace(SAME, allowed_tools=("a",), blocked_tools=("b",), timeout_seconds=3), True),
    ("trust", replace(SAME, trust="user"), False),
    ("query", replace(SAME, url="https://a.example/mcp?k=1"), False),
    ("value", replace(SAME, headers={"X-A": Secret("2"), "Authorization": Secret("t")}), False),
    ("no headers", replace(SAME, headers={}), False),
    ("protocol", replace(SAME, protocol="legacy"), False),
    ("key", replace(SAME, principal=Principal("a")), False),
    ("end user", replace(SAME, principal=Principal("", "a")), False),
    ("end user without a name", replace(SAME, principal=Principal("", "")), False),
    ("shifted border", replace(SAME, headers={"X-A": Secret("1authorization"), "t": Secret("")}), False),
]


@pytest.mark.parametrize(("server", "is_same"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS])
def test_connections_are_shared_exactly_where_they_see_the_same(server: ServerSpec, *, is_same: bool) -> None:
    assert (key_of(server) == key_of(SAME)) == is_same


def test_principals_are_told_apart_where_their_texts_run_together() -> None:
    principals = [Principal("a", "b"), Principal("ab"), Principal("a"), Principal("", "ab"), Principal("a", "")]
    assert len({key_of(replace(SAME, principal=principal)) for principal in principals}) == len(principals)


async def test_a_key_with_all_its_connections_gives_up_its_own_idle_one_and_nobody_elses() -> None:
    limits = PoolLimits(connections=10, per_key=1)
    async with (
        open_mcp_server() as one,
        open_mcp_server() as two,
        open_servers(replace(LOCAL, pool=limits)) as servers,
    ):
        first, second = operator(one.url), replace(operator(two.url), name="Two")
        async with open_run(servers, first, principal=Principal("bob")) as run:
            assert (await run.call("echo", text="x")).text == "x"
        for server in (first, second):
            async with open_run(servers, server, principal=Principal("alice")) as run:
                assert (await run.call("echo", text="x")).text == "x"
        async with open_run(servers, first, principal=Principal("bob")) as run:
            assert (await run.call("echo", text="x")).text == "x"
        assert one.rpc["server/discover"] == 2, "bob's connection was not closed for alice"
        async with open_run(servers, first, second, principal=Principal("alice")) as run:
            assert sorted(report.state for report in run.reports.values()) == ["ready", "ready"]
            outcomes = {(await run.call(name, text="x")).error_code for name in ("echo", "echo_Two")}
        assert outcomes == {None, "server_unreachable"}, "both at once are more than one"


async def test_an_end_user_has_a_share_of_the_connections_of_a_key() -> None:
    async with (
        open_mcp_server("legacy") as one,
        open_mcp_server("legacy") as two,
        open_servers(replace(LOCAL, pool=PoolLimits(per_key=8))) as servers,
    ):
        first, second = operator(one.url), replace(operator(two.url), name="Two")
        ann, ben = Principal("front", "ann"), Principal("front", "ben")
        async with open_run(servers, first, second, principal=ann) as run:
            states = sorted(report.state for report in run.reports.values())
            assert states == ["ready", "unavailable"], "one at once is an eighth of eight"
            async with open_run(servers, first, principal=ben) as other:
                assert (await other.call("echo", text="x")).text == "x"


def test_key_shows_no_secret() -> None:
    assert key_of(replace(SAME, headers={"Authorization": Secret("sk-secret-1")})).find(b"sk-secret") == -1


async def test_callers_with_other_credentials_have_their_own_session_and_list() -> None:
    def page(request: RawRequest) -> bytes:
        tool = {"name": f"of_{request.headers['authorization'][-1]}", "inputSchema": {"type": "object"}}
        return json_reply(result_of(request, {"tools": [tool]}))

    async with open_raw_mcp({"tools/list": page}, era="modern") as raw, open_servers(LOCAL) as servers:
        for tenant in ("a", "b", "a"):
            headers = {"Authorization": Secret(f"Bearer {tenant}")}
            async with open_run(servers, user(raw.url, headers=headers)) as run:
                assert list(run.report.tools) == [f"of_{tenant}"]
        assert raw.asked["tools/list"] == 2


async def test_connection_that_nobody_used_for_a_while_is_ended() -> None:
    options = replace(LOCAL, connection=replace(QUICK, idle_seconds=0.2))
    async with open_mcp_server("legacy") as server, open_servers(options) as servers:
        async with open_run(servers, operator(server.url)) as run:
            assert (await run.call("wait", seconds=0.5)).text == "waited", "a used connection is not idle"
            assert server.http["DELETE"] == 0
        async with open_run(servers, operator(server.url, protocol="legacy")):
            pass
        await wait_until(lambda: server.http["DELETE"] == 2)


async def test_too_many_connections_end_the_longest_idle_or_fail_the_new_one() -> None:
    options = replace(LOCAL, pool=PoolLimits(connections=2))
    async with (
        open_mcp_server("legacy") as a,
        open_mcp_server("legacy") as b,
        open_mcp_server("legacy") as c,
        open_servers(options) as servers,
    ):
        async with open_run(servers, operator(a.url)) as run_a:
            await counted(run_a)
            async with open_run(servers, operator(b.url)):
                await wait_until(lambda: b.rpc["tools/list"] == 1)
            async with open_run(servers, operator(c.url)) as run_c:
                await wait_until(lambda: b.http["DELETE"] == 1)
                await counted(run_c)
                async with open_run(servers, operator(b.url, blocked_tools=("x",), protocol="legacy")) as run_b:
                    assert run_b.report.message == "Too many connections to MCP servers are open."


async def test_cancelled_waiter_does_not_stop_the_connection_that_others_wait_for() -> None:
    release = anyio.Event()

    async def slowly(request: RawRequest) -> bytes:
        await release.wait()
        return json_reply(result_of(request, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}))

    options = replace(LOCAL, connection=replace(QUICK, probe_seconds=5.0))
    async with open_raw_mcp({"server/discover": slowly}, era="modern") as raw, open_servers(options) as servers:
        ready: list[str] = []

        async def run_once() -> None:
            async with open_run(servers, operator(raw.url)) as run:
                ready.append(run.report.state)

        async with anyio.create_task_group() as patient, anyio.create_task_group() as hasty:
            hasty.start_soon(run_once)
            await wait_until(lambda: raw.asked["server/discover"] == 1)
            patient.start_soon(run_once)
            (attempt,) = servers._offers._listings._under_way.values()
            await wait_until(lambda: attempt.waiters == 2)
            hasty.cancel_scope.cancel()
            await anyio.lowlevel.cancel_shielded_checkpoint()
            release.set()
        assert ready == ["ready"]
        assert raw.asked["server/discover"] == 1


async def test_connection_that_ends_at_once_each_time_is_given_up() -> None:
    def greet(request: RawRequest) -> bytes:
        del request
        body = b"event: endpoint\ndata: /mcp?s=1\n\n"
        return http_reply(200, body, "text/event-stream")

    replies: dict[str, Any] = {"server/discover": http_reply(405), "initialize": http_reply(405), "GET": greet}
    async with open_raw_mcp(replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url)) as run:
            assert run.report.state == "unavailable"
        assert raw.asked["GET"] <= 3


KINDS: tuple[Kind, ...] = ("modern", "legacy", "legacy-stateless", "sse")


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_left_after_leaving_even_in_the_middle_of_calls(kind: Kind) -> None:
    before = asyncio.all_tasks()
    async with open_mcp_server(kind) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_call_until_cancelled, server.url)
            await wait_until(lambda: server.started.count("wait") == 3)
            tasks.cancel_scope.cancel()
        assert asyncio.all_tasks() == before
        assert Counter(seen.http_method for seen in server.seen)["DELETE"] == (1 if kind == "legacy" else 0)


async def _call_until_cancelled(url: str) -> None:
    async with open_servers(LOCAL) as servers, open_run(servers, operator(url)) as run:
        async with anyio.create_task_group() as calls:
            for _ in range(3):
                calls.start_soon(lambda: run.call("wait", seconds=30))


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_under_way_when_the_room_is_closed_are_lost_at_once(kind: Kind) -> None:
    codes: list[str | None] = []
    async with open_mcp_server(kind) as server, anyio.create_task_group() as tasks:
        async with open_servers(LOCAL) as servers:
            run = await _leak_run(servers, server.url)

            async def use() -> None:
                codes.append((await run.call("wait", seconds=30)).error_code)

            for _ in range(2):
                tasks.start_soon(use)
            await wait_until(lambda: server.started.count("wait") == 2)
        await wait_until(lambda: len(codes) == 2, 4)
    assert codes == ["tool_outcome_unknown", "tool_outcome_unknown"]


async def _leak_run(servers: McpServers, url: str) -> OpenBox:
    """Open a run and use it longer than it is open, as nothing in the service does."""
    async with open_run(servers, operator(url)) as run:
        return run


async def test_server_that_never_answers_the_goodbye_is_left_in_time() -> None:
    async with open_raw_mcp({"DELETE": HANG}, session_id="s1") as raw:
        with anyio.fail_after(3):
            async with open_servers(LOCAL) as servers, open_run(servers, operator(raw.url)) as run:
                await run.call("echo")
        assert raw.asked["DELETE"] == 1
        await wait_until(lambda: raw.open_connections == 0)


async def test_sockets_are_closed_after_leaving() -> None:
    async with open_raw_mcp(session_id="s1") as raw:
        async with open_servers(LOCAL) as servers:
            await _use(servers, raw.url)
            assert raw.open_connections > 0
        await wait_until(lambda: raw.open_connections == 0)


async def test_leaving_while_a_server_is_being_connected_to_is_quick_and_clean() -> None:
    before = asyncio.all_tasks()
    async with open_raw_mcp({"server/discover": HANG}) as raw:
        held = asyncio.all_tasks()
        with anyio.fail_after(4):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_call_until_cancelled, raw.url)
                await wait_until(lambda: raw.asked["server/discover"] == 1)
                tasks.cancel_scope.cancel()
        await wait_until(lambda: raw.open_connections == 0)
        assert asyncio.all_tasks() == held
    assert asyncio.all_tasks() == before


async def _use(servers: McpServers, url: str) -> None:
    async with open_run(servers, operator(url)) as run:
        await run.call("echo")
