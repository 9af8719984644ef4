"""Tool lists: how long they are kept, and who shares the asking."""

import anyio
import pytest

from app.toolbox.admission import Policy
from app.toolbox.egress import Egress, EgressLimits
from app.toolbox.listing import ListingLimits, Listings
from app.toolbox.pool import Pool, PoolLimits, key_of
from app.toolbox.trouble import Trouble
from tests.fakes.mcp_servers import open_mcp_server, wait_until
from tests.fakes.raw_mcp import (
    CUT,
    HANG,
    RawMcp,
    RawRequest,
    Reply,
    error,
    http_reply,
    json_reply,
    open_raw_mcp,
    result,
    result_of,
    tool_entry,
)
from tests.fakes.toolboxes import QUICK, operator

pytestmark = pytest.mark.anyio


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pool() -> Pool:
    return Pool(Egress(Policy(), EgressLimits()), PoolLimits(), QUICK)


def listed(raw: RawMcp) -> int:
    return raw.asked["tools/list"]


async def test_list_of_a_minute_ago_is_used_at_once_and_asked_for_again_behind() -> None:
    clock = Clock()
    pages = [result({"tools": [tool_entry(name)]}) for name in ("old", "new", "newest")]
    async with open_raw_mcp({"tools/list": pages}) as raw, pool() as connections, anyio.create_task_group() as tasks:
        listings = Listings(connections, ListingLimits(), tasks, clock)
        told: list[str] = []
        leave = listings.watch(key_of(operator(raw.url)), lambda: told.append("other"))
        rows = ((0.0, "old", 1), (59.0, "old", 1), (61.0, "old", 2), (62.0, "new", 2), (700.0, "newest", 3))
        for clock.now, name, asked in rows:
            assert [tool.name for tool in (await listings.of(operator(raw.url))).tools] == [name]
            await wait_until(lambda asked=asked: listed(raw) == asked and not listings._under_way)
        assert told == ["other"], "told of the second list only: the third was waited for by who asked"
        leave()
        assert not listings._watchers


async def test_list_that_cannot_be_asked_for_again_is_not_used_any_longer() -> None:
    clock = Clock()
    async with pool() as connections, anyio.create_task_group() as tasks:
        listings = Listings(connections, ListingLimits(), tasks, clock)
        async with open_raw_mcp(era="modern") as raw:
            server = operator(raw.url)
            await listings.of(server)
        clock.now = 61.0
        assert (await listings.of(server)).tools[0].name == "echo"
        await wait_until(lambda: not listings._under_way)
        with pytest.raises(Trouble):
            await listings.of(server)


async def test_list_that_changes_while_it_is_asked_for_is_asked_for_again() -> None:
    asked, answer = anyio.Event(), anyio.Event()

    async def slowly(request: RawRequest) -> bytes:
        asked.set()
        await answer.wait()
        return json_reply(result_of(request, {"tools": [tool_entry("old")]}))

    replies = {"tools/list": [slowly, result({"tools": [tool_entry("new")]})]}
    async with open_raw_mcp(replies) as raw, pool() as connections, anyio.create_task_group() as tasks:
        listings = Listings(connections, ListingLimits(), tasks)
        server = operator(raw.url)
        async with anyio.create_task_group() as early:
            early.start_soon(listings.of, server)
            await asked.wait()
            listings.renew(key_of(server))
            assert (await listings.of(server)).tools[0].name == "new"
            answer.set()
        assert (await listings.of(server)).tools[0].name == "new"


async def test_least_recently_used_list_makes_room() -> None:
    async with open_raw_mcp() as raw, pool() as connections, anyio.create_task_group() as tasks:
        listings = Listings(connections, ListingLimits(entries=2), tasks)
        for query, asked in (("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)):
            await listings.of(operator(f"{raw.url}?{query}"))
            assert listed(raw) == asked


async def test_failure_is_not_kept() -> None:
    def fine(request: RawRequest) -> bytes:
        return json_reply(result_of(request, {"tools": [tool_entry("echo")]}))

    async with (
        open_raw_mcp({"tools/list": [http_reply(500), fine]}) as raw,
        pool() as connections,
        anyio.create_task_group() as tasks,
    ):
        listings = Listings(connections, ListingLimits(), tasks)
        with pytest.raises(Trouble, match="HTTP status 500"):
            await listings.of(operator(raw.url))
        assert len((await listings.of(operator(raw.url))).tools) == 1


async def test_callers_at_once_share_one_listing_and_one_who_leaves_does_not_stop_it() -> None:
    release = anyio.Event()

    async def slowly(request: RawRequest) -> bytes:
        await release.wait()
        return json_reply(result_of(request, {"tools": [tool_entry("echo")]}))

    names: list[str] = []
    async with open_raw_mcp({"tools/list": slowly}) as raw, pool() as connections:
        async with anyio.create_task_group() as tasks:
            listings = Listings(connections, ListingLimits(), tasks)

            async def ask() -> None:
                names.extend(tool.name for tool in (await listings.of(operator(raw.url))).tools)

            async with anyio.create_task_group() as patient, anyio.create_task_group() as hasty:
                hasty.start_soon(ask)
                await wait_until(lambda: listed(raw) == 1)
                patient.start_soon(ask)
                patient.start_soon(ask)
                hasty.cancel_scope.cancel()
                await wait_until(lambda: len(listings._under_way) == 1)
                release.set()
        assert names == ["echo", "echo"]
        assert listed(raw) == 1


async def test_failure_reaches_all_who_wait() -> None:
    reasons: list[str] = []
    async with open_raw_mcp({"tools/list": http_reply(500)}) as raw, pool() as connections:
        async with anyio.create_task_group() as tasks:
            listings = Listings(connections, ListingLimits(), tasks)

            async def ask() -> None:
                try:
                    await listings.of(operator(raw.url))
                except Trouble as trouble:
                    reasons.append(trouble.reason)

            async with anyio.create_task_group() as callers:
                for _ in range(3):
                    callers.start_soon(ask)
        assert reasons == ["The server answered with HTTP status 500."] * 3
        assert listed(raw) == 1


async def test_server_that_lists_too_slowly_is_given_up_in_time() -> None:
    async with open_raw_mcp({"tools/list": HANG}) as raw, pool() as connections:
        async with anyio.create_task_group() as tasks:
            listings = Listings(connections, ListingLimits(seconds=0.3), tasks)
            with anyio.fail_after(5), pytest.raises(Trouble, match=r"within 0\.3 seconds"):
                await listings.of(operator(raw.url))


@pytest.mark.parametrize("second", [http_reply(500), http_reply(404), CUT, HANG, error(-32603, "page 2 broke")])
async def test_later_page_that_fails_costs_its_own_tools_only(second: Reply, caplog: pytest.LogCaptureFixture) -> None:
    def first(request: RawRequest) -> bytes:
        return json_reply(result_of(request, {"tools": [tool_entry("one")], "nextCursor": "cursor-s3cret"}))

    async with open_raw_mcp({"tools/list": [first, second]}) as raw, pool() as connections:
        async with anyio.create_task_group() as tasks:
            listings = Listings(connections, ListingLimits(seconds=0.5), tasks)
            server = operator(f"{raw.url}?key=s3cret", "Pages")
            assert [tool.name for tool in (await listings.of(server)).tools if not tool.refused] == ["one"]
    assert "Pages" in caplog.text
    assert "s3cret" not in caplog.text


async def test_fresh_list_replaces_the_kept_one() -> None:
    def page(request: RawRequest) -> bytes:
        return json_reply(result_of(request, {"tools": [tool_entry(f"t{listed(raw)}")]}))

    async with (
        open_raw_mcp({"tools/list": page}) as raw,
        pool() as connections,
        anyio.create_task_group() as tasks,
    ):
        listings = Listings(connections, ListingLimits(), tasks)
        server = operator(raw.url)
        seen = [await listings.of(server), await listings.afresh(server), await listings.of(server)]
        assert [listing.tools[0].name for listing in seen] == ["t1", "t2", "t2"]


async def test_listing_that_all_have_left_is_stopped_and_the_next_caller_starts_another() -> None:
    def fine(request: RawRequest) -> bytes:
        return json_reply(result_of(request, {"tools": [tool_entry("echo")]}))

    async with (
        open_raw_mcp({"tools/list": [HANG, fine]}) as raw,
        pool() as connections,
        anyio.create_task_group() as tasks,
    ):
        listings = Listings(connections, ListingLimits(), tasks)
        async with anyio.create_task_group() as callers:
            for _ in range(2):
                callers.start_soon(listings.of, operator(raw.url))
            await wait_until(lambda: listed(raw) == 1)
            callers.cancel_scope.cancel()
        with anyio.fail_after(4):
            assert (await listings.of(operator(raw.url))).tools[0].name == "echo"


async def test_list_of_a_server_that_came_back_in_another_era_is_asked_for_twice_and_had() -> None:
    clock = Clock()
    async with pool() as connections, anyio.create_task_group() as tasks:
        listings = Listings(connections, ListingLimits(), tasks, clock)
        async with open_mcp_server("modern") as server:
            url = server.url
            assert (await listings.of(operator(url))).era == "modern"
        clock.now = 601.0
        for connection in list(connections._all()):
            connection.close()
        async with open_mcp_server("legacy", port=int(url.split(":")[2].split("/")[0])):
            assert (await listings.of(operator(url))).era == "legacy"
