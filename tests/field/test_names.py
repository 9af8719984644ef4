"""Names of tools that providers refuse, or that come twice: each tool stays callable, by its own server."""

import re
from typing import Any

import anyio
import pytest

from tests.fakes.raw_mcp import RawMcp, RawRequest, json_reply, open_raw_mcp, result_of, text_result, tool_entry
from tests.fakes.service import Run, open_service, operator_server
from tests.fakes.upstream import FakeUpstream, Request, end, open_upstream, stream, text
from tests.field.serving import open_field, tool_messages
from tests.field.test_streams import END, fn, tc

pytestmark = pytest.mark.anyio

VALID = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
LONG = "list_all_directory_entries_with_sizes_and_modification_dates_recursive"

LISTS: dict[str, list[str]] = {
    "FR-059": ["album.add/item one"],
    "FR-059 of any kind": ["über", "日本語", "a b", "tool:x", "a/b", "x" * 128, "..", "-", "2fa"],
    "FR-060": [LONG],
    "FR-060 the same beginning": [f"{LONG}_a", f"{LONG}_b", LONG],
    "FR-061": ["a.b", "a_b"],
    "FR-061 more of them": ["read-only", "read_only", "read only", "read.only"],
    "FR-061 only case apart": ["Find", "find"],
}


def offered(request: Request) -> list[str]:
    return [tool["function"]["name"] for tool in request.json.get("tools", ())]


def calls_all(request: Request) -> Any:
    """Call each tool that is offered, once."""
    if tool_messages(request.json):
        return stream(text("Done."), end())
    return stream(tc(*(fn(name, "{}", index=at, id=f"c{at}") for at, name in enumerate(offered(request)))), END)


@pytest.mark.parametrize("names", LISTS.values(), ids=LISTS)
async def test_report_of_names_every_tool_is_called_by_the_name_that_its_server_gave_it(names: list[str]) -> None:
    tools = [tool_entry(name) for name in names]
    async with open_field(calls_all, tools=tools) as it:
        first, second = await it.run(), await it.run()
    assert sorted(name for name, _ in it.executed) == sorted(names * 2)
    sent = offered(it.upstream.asks[0])
    assert all(VALID.fullmatch(name) for name in sent)
    assert len(set(sent)) == len(names)
    assert sent == offered(it.upstream.asks[2])
    for run in (first, second):
        assert [(data["call"]["name"], data["tool"]) for data in run.named("tool/call")] == list(
            zip(sent, names, strict=True)
        )


async def run_with(upstream: FakeUpstream, *servers: tuple[str, RawMcp]) -> Run:
    specs = [operator_server(name, mcp.url) for name, mcp in servers]
    async with open_service(upstream, extra_servers=specs) as service:
        return await service.run(model="m")


async def test_fr_062_same_name_on_two_servers_each_call_reaches_its_own() -> None:
    def answering(letter: str) -> Any:
        def call(request: RawRequest) -> bytes:
            return json_reply(result_of(request, text_result(f"from {letter}")))

        return {"tools/call": call}

    tools = [tool_entry("search")]
    async with open_raw_mcp(answering("A"), tools=tools) as a, open_raw_mcp(answering("B"), tools=tools) as b:
        async with open_upstream(calls_all) as upstream:
            run = await run_with(upstream, ("A", a), ("B", b))
    sent = offered(upstream.asks[0])
    assert len(set(sent)) == 2
    assert [(data["server"], data["tool"]) for data in run.named("tool/call")] == [("A", "search"), ("B", "search")]
    assert [message["content"] for message in tool_messages(upstream.asks[1].json)] == ["from A", "from B"]


async def test_fr_062_names_do_not_depend_on_who_is_quicker() -> None:
    tools = [tool_entry("search")]
    names: list[list[str]] = []
    for slow in ("A", "B"):

        async def listing(request: RawRequest) -> bytes:
            other = b if slow == "A" else a  # noqa: B023  # the servers of this turn
            while not other.asked["tools/list"]:  # noqa: ASYNC110  # a few steps
                await anyio.sleep(0.001)
            return json_reply(result_of(request, {"tools": tools}))

        waiting = {"tools/list": listing}
        async with (
            open_raw_mcp(waiting if slow == "A" else {}, tools=tools) as a,
            open_raw_mcp(waiting if slow == "B" else {}, tools=tools) as b,
            open_upstream([stream(text("Done."), end())]) as upstream,
        ):
            await run_with(upstream, ("A", a), ("B", b))
            names.append(offered(upstream.asks[0]))
    assert names[0] == names[1]
