"""Servers that are not there: how often they may be named, and what is told of them."""

import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import anyio
import httpcore2
import pytest

from app.domain.principal import Principal
from app.domain.spec import ServerSpec
from app.toolbox.admission import Policy
from app.toolbox.egress import Egress, EgressLimits
from app.toolbox.failures import FailureBudget
from app.toolbox.line import ConnectionLimits
from app.toolbox.listing import ListingLimits, Listings
from app.toolbox.offers import Offer, Offers
from app.toolbox.pool import Pool, PoolLimits
from tests.fakes.dialling import PUBLIC, FakeNet
from tests.fakes.mcp_servers import wait_until
from tests.fakes.raw_mcp import HANG, http_reply, open_raw_mcp
from tests.fakes.toolboxes import LOCAL, open_run, open_servers, operator, user

pytestmark = pytest.mark.anyio

TOO_MANY = "Too many servers could not be reached lately; a new one is tried again in a minute."
UNREACHABLE = "The server cannot be reached."


async def spend(budget: FailureBudget, key: object, times: int, *, succeed: bool = False) -> int:
    """Make attempts one after the other; returns how many could be made."""
    made = 0
    for _ in range(times):
        async with budget.attempt(key) as attempt:
            if attempt is not None:
                made += 1
                if succeed:
                    attempt.succeed()
    return made


async def test_failures_are_bounded_in_each_minute_and_come_free_one_by_one() -> None:
    now = 0.0
    budget = FailureBudget(clock=lambda: now)
    assert await spend(budget, "a", 4) == 4
    now = 30.0
    assert await spend(budget, "a", 9) == 6
    now = 59.9
    assert await spend(budget, "a", 1) == 0
    now = 60.0
    assert await spend(budget, "a", 9) == 4
    now = 90.0
    assert await spend(budget, "a", 9) == 6


async def test_one_key_costs_no_other_and_successes_cost_nothing() -> None:
    budget = FailureBudget(failures=2)
    assert await spend(budget, "a", 3) == 2
    assert await spend(budget, "b", 3) == 2
    assert await spend(budget, "c", 50, succeed=True) == 50
    assert await spend(budget, "c", 3) == 2


async def test_attempts_under_way_count_until_they_have_gone_well() -> None:
    budget = FailureBudget(failures=2)
    going_on, made = anyio.Event(), list[bool]()

    async def attempt(*, succeed: bool) -> None:
        async with budget.attempt("a") as attempt:
            made.append(attempt is not None)
            await going_on.wait()
            if attempt is not None and succeed:
                attempt.succeed()

    async with anyio.create_task_group() as tasks:
        for succeed in (True, False, True, False, True):
            tasks.start_soon(lambda succeed=succeed: attempt(succeed=succeed))
        await wait_until(lambda: len(made) == 2)
        going_on.set()
    assert made == [True, True, True, True, False]


async def test_attempt_that_is_called_off_has_failed_and_makes_room() -> None:
    budget = FailureBudget(failures=3)
    with anyio.CancelScope() as scope:
        async with budget.attempt("a") as attempt:
            assert attempt is not None
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(KeyError):
        async with budget.attempt("a"):
            raise KeyError
    assert await spend(budget, "a", 2) == 1


@contextmanager
def closed_ports(count: int) -> Generator[list[int]]:
    """Hold ports at which nobody listens."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


async def reports_of(servers: Any, specs: Sequence[ServerSpec], **fields: Any) -> list[str | None]:
    async with open_run(servers, *specs, **fields) as run:
        return [run.reports[spec.name].message for spec in specs]


async def test_who_names_too_many_servers_that_are_not_there_waits_with_new_ones() -> None:
    async with open_raw_mcp() as known, open_raw_mcp() as new, open_servers(LOCAL) as servers:
        good = user(known.url, "known")
        assert await reports_of(servers, [good]) == [None]
        with closed_ports(14) as ports:
            absent = [user(f"http://127.0.0.1:{port}/mcp", f"absent-{port}") for port in ports]
            told = await reports_of(servers, absent)
            assert sorted(map(str, told)) == [UNREACHABLE] * 10 + [TOO_MANY] * 4
            assert await reports_of(servers, [good, absent[0], user(new.url, "new")]) == [None, TOO_MANY, TOO_MANY]
            assert new.requests == []
            configured = [operator(absent[0].url, "own"), operator(new.url, "new")]
            theirs = await reports_of(servers, configured)
            assert theirs == ["The server does not accept connections.", None], "operators' servers are not counted"
            somebody = Principal("other")
            elses = await reports_of(servers, [replace(user(new.url, "new"), principal=somebody)], principal=somebody)
            assert elses == [None], "nor is it anybody else's fault"


async def test_server_that_was_there_and_is_gone_counts_like_any_other() -> None:
    async with open_servers(LOCAL) as servers:
        async with open_raw_mcp() as raw:
            gone = user(raw.url, "gone")
            assert await reports_of(servers, [gone]) == [None]
        told = [(await servers.check(gone, gone.principal))["message"] for _ in range(13)]
    assert told == [UNREACHABLE] * 10 + [TOO_MANY] * 3


CAUSES: dict[str, dict[str, Any]] = {
    "refused answer": {"answers": [["10.0.0.5"]]},
    "no such name": {"answers": [OSError("no such name")]},
    "nobody there": {"dead": {PUBLIC: httpcore2.ConnectError("refused")}},
    "filtered": {"dead": {PUBLIC: httpcore2.ConnectTimeout()}},
    "our own address": {"own_address": PUBLIC},
    "no TLS": {"has_tls": True},
    "silence": {},
    "another protocol": {"replies": [b"220 mail.example ESMTP\r\n"]},
    "a page": {"replies": [http_reply(200, b"<html>marker</html>", "text/html")]},
    "an error": {"replies": [http_reply(500, b"marker")]},
    "another place": {"replies": [http_reply(302, Location="https://10.0.0.1/marker")]},
}


async def offer_of(net: FakeNet) -> Offer:
    egress = Egress(Policy(), EgressLimits(connect_seconds=0.3), net.resolve, dial=net.dial)
    limits = ConnectionLimits(connect_seconds=0.5, probe_seconds=0.2, close_seconds=0.2)
    found: list[Offer] = []
    async with Pool(egress, PoolLimits(), limits) as pool, anyio.create_task_group() as tasks:
        offers = Offers(
            Listings(pool, ListingLimits(seconds=1), tasks), Policy(), forward_user_token=False, exa_api_key=None
        )
        found += [await offers.of(user("https://mcp.example.com/mcp"))]
        tasks.cancel_scope.cancel()
    return found[0]


@pytest.mark.parametrize("cause", CAUSES)
async def test_one_answer_is_given_for_whatever_is_in_a_servers_place(cause: str) -> None:
    async with open_raw_mcp({"server/discover": HANG, "initialize": HANG}) as raw:
        is_real = cause in ("silence", "no TLS")
        net = FakeNet(port=int(raw.url.split(":")[2].split("/")[0]) if is_real else None, **CAUSES[cause])
        offer = await offer_of(net)
    assert (offer.state, offer.code, offer.message) == ("unavailable", "server_unreachable", UNREACHABLE)
    assert (offer.challenge, offer.tools, offer.dropped, offer.listing) == (None, (), (), None)
