"""What MCP servers say in results, in progress and in errors, and what the reader and the model get of it.

Rows are named by the number of the report. Each runs over real sockets through the whole service, in both eras, over
JSON replies, event streams and the older transport.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from tests.fakes.raw_mcp import (
    HANG,
    RawRequest,
    Replies,
    Reply,
    http_reply,
    json_reply,
    progress_of,
    result,
    result_of,
    sse_frame,
    sse_reply,
    text_result,
    tool_entry,
)
from tests.fakes.service import Run, events
from tests.field.serving import Field
from tests.field.test_loop import notices
from tests.field.test_mcp import (
    LEGACY,
    MODERN,
    ONE,
    WAYS,
    Way,
    both_eras,
    calls,
    codes,
    every_way,
    is_whole,
    open_met,
    sent,
    some_ways,
    told,
)

pytestmark = pytest.mark.anyio

STREAMING = pytest.mark.parametrize(
    "way",
    [WAYS["legacy streams"], WAYS["legacy sse"], WAYS["modern streams"]],
    ids=["legacy streams", "legacy sse", "modern streams"],
)


def block(content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **fields}


def gives(**fields: Any) -> Reply:
    """The result of a call, complete as the newer era wants it."""
    return result({"resultType": "complete", **fields})


def output(run: Run) -> dict[str, Any]:
    (shown,) = run.named("tool/result")[0]["result"]["outputs"]
    return shown


# FR-074: a result that is a failure

MARK = "The tool reported an error:\n"
FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"content": [block("no such city")]}, "no such city"),
    "two texts": ({"content": [block("no such"), block("city")]}, "no such\ncity"),
    "nothing": ({"content": []}, "The tool failed without saying why."),
    "no content": ({}, "The tool failed without saying why."),
    "null": ({"content": None}, "The tool failed without saying why."),
    "blank": ({"content": [block(" \n")]}, "The tool failed without saying why."),
    "structure only": ({"content": [], "structuredContent": {"error": "no city"}}, '{"error":"no city"}'),
    "text and structure": ({"content": [block("no city")], "structuredContent": {"code": 7}}, "no city"),
    "resource": (
        {"content": [{"type": "resource", "resource": {"uri": "log://1", "text": "boom"}}]},
        "[resource: log://1]\nboom",
    ),
}


@some_ways
@pytest.mark.parametrize("row", FAILURES.values(), ids=FAILURES)
async def test_fr_074_failure_that_a_tool_reports_is_an_error_and_the_loop_goes_on(
    row: tuple[dict[str, Any], str], way: Way
) -> None:
    fields, said = row
    replies: Replies = {"tools/call": [gives(isError=True, **fields), gives(content=[block("fine")])]}
    async with open_met(replies, way=way, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it, 2) == [MARK + said, "fine"]
    assert codes(run) == ["tool_failed"]
    assert run.named("tool/error")[0]["message"] == said
    assert len(run.named("tool/result")) == 1


@pytest.mark.parametrize("flag", [False, None, 0, "", "false"])
async def test_fr_074_result_that_only_speaks_of_errors_is_none(flag: Any) -> None:
    async with open_met({"tools/call": gives(isError=flag, content=[block("Error: 404")])}) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == []
    assert told(it) == ["Error: 404"]


# FR-075, FR-076: structured content

STRUCTURES: dict[str, Any] = {
    "object": {"celsius": 21},
    "empty": {},
    "nested": {"a": [{"b": None}, True, 1.5, "ä\u2028"]},
    "falsy": {"n": 0, "s": "", "b": False, "x": None},
    "large number": {"n": 2**63, "f": 1e300},
}
NO_TEXTS: dict[str, dict[str, Any]] = {
    "empty list": {"content": []},
    "absent": {},
    "null": {"content": None},
    "empty text": {"content": [block("")]},
    "blank text": {"content": [block(" \n\t")]},
}


ALONE: list[tuple[Any, dict[str, Any]]] = [
    *((structure, {"content": []}) for structure in STRUCTURES.values()),
    *((STRUCTURES["object"], content) for content in NO_TEXTS.values()),
]


@both_eras
@pytest.mark.parametrize(("structure", "content"), ALONE)
async def test_fr_075_structure_alone_is_told_to_the_model_and_carried_by_the_event(
    structure: Any, content: dict[str, Any], way: Way
) -> None:
    async with open_met({"tools/call": gives(structuredContent=structure, **content)}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert json.loads(told(it)[0]) == structure
    assert output(run)["structured"] == structure
    assert output(run)["text"] == told(it)[0]


@pytest.mark.parametrize("structure", [[1, {"a": 2}], "just text", 7, 0, False, []])
@both_eras
async def test_fr_075_structure_that_is_no_object_is_told_too(structure: Any, way: Way) -> None:
    async with open_met({"tools/call": gives(content=[], structuredContent=structure)}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert json.loads(told(it)[0]) == structure
    assert output(run)["structured"] == structure


NOT_TEXT: dict[str, dict[str, Any]] = {
    "image": {"type": "image", "mimeType": "image/png", "data": "iVBORw0K"},
    "audio": {"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="},
    "bytes": {"type": "resource", "resource": {"uri": "doc://7", "blob": "JVBERi0xLjcK"}},
    "link": {"type": "resource_link", "uri": "doc://7", "name": "seven"},
}


@both_eras
@pytest.mark.parametrize("other", NOT_TEXT.values(), ids=NOT_TEXT)
async def test_fr_076_structure_fills_in_where_blocks_hold_no_text(other: dict[str, Any], way: Way) -> None:
    async with open_met({"tools/call": gives(content=[other], structuredContent={"celsius": 21})}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert '{"celsius":21}' in told(it)[0]
    assert output(run)["structured"] == {"celsius": 21}


TWICE: dict[str, tuple[list[Any], Any, str]] = {
    "the same": ([block('{"celsius":21}')], {"celsius": 21}, '{"celsius":21}'),
    "the same, written otherwise": ([block('{ "celsius": 21 }')], {"celsius": 21}, '{ "celsius": 21 }'),
    "in words": ([block("21 degrees")], {"celsius": 21}, "21 degrees"),
    "wrapped": ([block("21")], {"result": 21}, "21"),
    "a list in parts": ([block("a"), block("b")], {"result": ["a", "b"]}, "a\nb"),
    "a resource": (
        [{"type": "resource", "resource": {"uri": "doc://7", "text": "# Seven"}}],
        {"title": "Seven"},
        "[resource: doc://7]\n# Seven",
    ),
}


@some_ways
@pytest.mark.parametrize("row", TWICE.values(), ids=TWICE)
async def test_fr_076_what_is_said_twice_is_told_once_and_the_event_keeps_both(
    row: tuple[list[Any], Any, str], way: Way
) -> None:
    content, structure, said = row
    async with open_met({"tools/call": gives(content=content, structuredContent=structure)}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == [said]
    assert output(run) == {"text": said, "structured": structure, "content": content}


# FR-077, FR-078: resources and links

RESOURCES: dict[str, tuple[dict[str, Any], str]] = {
    "text": (
        {"uri": "doc://7", "mimeType": "text/markdown", "text": "# Seven"},
        "[resource: doc://7, text/markdown]\n# Seven",
    ),
    "without a type": ({"uri": "doc://7", "text": "# Seven"}, "[resource: doc://7]\n# Seven"),
    "type null": ({"uri": "doc://7", "mimeType": None, "text": "# Seven"}, "[resource: doc://7]\n# Seven"),
    "empty": ({"uri": "doc://7", "mimeType": "text/plain", "text": ""}, "[resource: doc://7, text/plain]\n"),
    "with its own fields": (
        {"uri": "file:///a b.txt", "text": "x\ny", "name": "a", "_meta": {"k": 1}, "size": 3},
        "[resource: file:///a b.txt]\nx\ny",
    ),
    "text that is more than text": (
        {"uri": "doc://7", "mimeType": 7, "text": "# Seven", "annotations": "x"},
        "[resource: doc://7]\n# Seven",
    ),
    "bytes": (
        {"uri": "doc://7", "mimeType": "application/pdf", "blob": "JVBERi0xLjcK"},
        "[resource: doc://7, application/pdf, 9 bytes]",
    ),
}


@some_ways
@pytest.mark.parametrize("row", RESOURCES.values(), ids=RESOURCES)
async def test_fr_077_embedded_resource_is_read_with_its_address(row: tuple[dict[str, Any], str], way: Way) -> None:
    resource, said = row
    blocks = [{"type": "resource", "resource": resource}]
    async with open_met({"tools/call": gives(content=blocks)}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == [said]
    shown = output(run)["content"][0]
    assert shown["type"] == "resource"
    assert shown["resource"]["uri"] == resource["uri"]
    assert [shown["resource"].get(key) for key in ("text", "blob")] == [resource.get(key) for key in ("text", "blob")]
    assert "object at 0x" not in told(it)[0]
    assert it.mcp.asked["resources/read"] == 0


@both_eras
@pytest.mark.parametrize(
    "resource", [{"text": "# Seven"}, {"uri": None, "text": "# Seven"}, {"uri": 7, "text": "# Seven"}]
)
async def test_fr_077_text_of_a_resource_without_an_address_is_not_lost(resource: Any, way: Way) -> None:
    async with open_met({"tools/call": gives(content=[{"type": "resource", "resource": resource}])}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert "# Seven" in told(it)[0]


LINKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plain": (
        {"uri": "file:///r.pdf", "name": "Report", "mimeType": "application/pdf"},
        ["Report", "file:///r.pdf", "application/pdf"],
    ),
    "with a description": (
        {
            "uri": "https://a.example/r",
            "name": "r",
            "title": "The report",
            "description": "Of last year.",
            "size": 2048,
        },
        ["The report", "https://a.example/r", "Of last year.", "2.0 KiB"],
    ),
    "without a type": ({"uri": "db://t/1", "name": "row"}, ["row", "db://t/1"]),
    "without a name": ({"uri": "db://t/1"}, ["db://t/1"]),
    "on many lines": ({"uri": "db://t/1", "name": "a\nb", "description": "c\r\nd"}, ["a b", "db://t/1", "c d"]),
    "to the server itself": ({"uri": "{url}", "name": "me"}, ["me"]),
}


@some_ways
@pytest.mark.parametrize("row", LINKS.values(), ids=LINKS)
async def test_fr_078_link_is_one_readable_line_and_nothing_is_fetched(
    row: tuple[dict[str, Any], list[str]], way: Way
) -> None:
    link, facts = row

    def call(request: RawRequest) -> bytes:
        uri = link["uri"].replace("{url}", f"http://{request.headers['host']}/secret")
        return json_reply(result_of(request, {"content": [{"type": "resource_link", **link, "uri": uri}]}))

    async with open_met({"tools/call": call}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    (line,) = told(it)
    assert line.startswith("[resource link: ")
    assert "\n" not in line
    assert all(fact in line for fact in facts)
    assert output(run)["text"] == line
    assert {request.path.partition("?")[0] for request in it.mcp.requests} == {"/mcp"}
    assert it.mcp.asked["resources/read"] == 0


# FR-079, FR-080, FR-101: progress


def tokens(it: Field) -> list[Any]:
    return [request.rpc["params"]["_meta"]["progressToken"] for request in sent(it, "tools/call")]


@every_way
async def test_fr_079_each_call_carries_a_token_of_its_own(way: Way) -> None:
    async with open_met(way=way, answers=[*ONE, calls("act", "act")]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert len(tokens(it)) == 3
    assert all(isinstance(token, int | str) and token != "" for token in tokens(it))


def heartbeats(count: int, pause: float, *, more: Callable[[int], dict[str, Any]] = lambda _at: {}) -> Reply:
    """Report progress `count` times with a pause before each, then give the result."""

    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([], end=False))
        for at in range(1, count + 1):
            await anyio.sleep(pause)  # the pace of the server
            await request.write(sse_frame(progress_of(request, at, **more(at))))
        return sse_frame(result_of(request, text_result("done"))) + b"0\r\n\r\n"

    return call


@STREAMING
async def test_fr_079_progress_restarts_the_silence_and_is_told(way: Way) -> None:
    replies: Replies = {"tools/call": heartbeats(5, 0.25, more=lambda at: {"total": 5, "message": f"step {at}"})}
    async with open_met(replies, way=way, mcp_tool_timeout_ms=1000) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["done"]
    steps = [(data["progress"], data["total"], data["message"]) for data in run.named("tool/progress")]
    assert steps == [(at, 5, f"step {at}") for at in range(1, 6)]
    order = [event.name for event in run.events]
    assert order.index("tool/call") < order.index("tool/progress") < order.index("tool/result")


@STREAMING
async def test_fr_079_progress_without_end_ends_at_the_hard_maximum(way: Way) -> None:
    replies: Replies = {"tools/call": heartbeats(1000, 0.05)}
    async with open_met(replies, way=way, mcp_tool_timeout_ms=400, tool_max_ms=600) as it:
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_timeout"]
    assert "within 0.6 seconds" in told(it)[0]
    assert it.mcp.asked["tools/call"] == 1


@STREAMING
async def test_fr_079_silence_after_progress_ends_the_call(way: Way) -> None:
    async def call(request: RawRequest) -> str:
        await request.write(sse_reply([progress_of(request, 1)], end=False))
        return HANG

    async with open_met({"tools/call": call}, way=way, mcp_tool_timeout_ms=300) as it:
        with anyio.fail_after(8):
            run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_timeout"]
    assert [data["progress"] for data in run.named("tool/progress")] == [1]


PARTIAL: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "message only": ({"progress": 3, "message": "page 3"}, {"progress": 3, "message": "page 3"}),
    "number only": ({"progress": 3}, {"progress": 3}),
    "zero": ({"progress": 0, "message": "begin"}, {"progress": 0, "message": "begin"}),
    "total zero": ({"progress": 0, "total": 0}, {"progress": 0}),
    "total null": ({"progress": 3, "total": None, "message": None}, {"progress": 3}),
    "total that is passed": ({"progress": 3, "total": 2}, {"progress": 3}),
    "total below zero": ({"progress": 3, "total": -1}, {"progress": 3}),
    "fractions": ({"progress": 0.25, "total": 1.0}, {"progress": 0.25, "total": 1}),
    "more fields": ({"progress": 1, "total": 4, "_meta": {"a": 1}, "percentage": 99}, {"progress": 1, "total": 4}),
    "empty message": ({"progress": 3, "message": ""}, {"progress": 3, "message": ""}),
    "beyond all numbers": ({"progress": 10**400, "total": 10**401}, None),
    "text for a number": ({"progress": "x"}, None),
    "no number": ({"message": "page 3"}, None),
    "null": ({"progress": None}, None),
    "total that is none": ({"progress": 3, "total": "many"}, {"progress": 3}),
}


@STREAMING
@pytest.mark.parametrize("row", PARTIAL.values(), ids=PARTIAL)
async def test_fr_080_progress_is_told_as_it_is_and_no_share_is_made_up(
    row: tuple[dict[str, Any], dict[str, Any] | None], way: Way
) -> None:
    params, told_of = row

    def call(request: RawRequest) -> bytes:
        token = request.rpc["params"]["_meta"]["progressToken"]
        notification = {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": token, **params},
        }
        return sse_reply([notification, result_of(request, text_result("done"))])

    async with open_met({"tools/call": call}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["done"]
    told_fields = ("progress", "total", "message")
    shown = [{key: data[key] for key in told_fields if key in data} for data in run.named("tool/progress")]
    assert shown == ([] if told_of is None else [told_of])


@both_eras
@pytest.mark.parametrize(
    "params", [{"progress": 10**400}, {"progress": 1, "total": 10**400}], ids=["progress", "total"]
)
async def test_fr_080_number_that_nothing_can_hold_costs_no_other_call(params: dict[str, Any], way: Way) -> None:
    bad_is_over = asyncio.Event()

    async def call(request: RawRequest) -> bytes:
        if request.rpc["params"]["name"] == "bad":
            said = progress_of(request, 1)
            said["params"].update(params)
            return sse_reply([said, result_of(request, text_result("done"))])
        await bad_is_over.wait()
        return json_reply(result_of(request, text_result("good")))

    tools = [tool_entry("bad"), tool_entry("good")]
    async with open_met({"tools/call": call}, way=way, tools=tools, answers=[calls("bad", "good")]) as it:
        async with it.service.streaming(model="m") as (response, source):
            run = Run(response)
            async for event in events(source):
                run.events.append(event)
                if event.name in ("tool/result", "tool/error"):
                    bad_is_over.set()
    assert is_whole(run, it)
    assert told(it) == ["done", "good"]


STRANGE_TOKENS: dict[str, Any] = {
    "another's": "srv-4",
    "a number nobody gave": 987654,
    "null": None,
    "a list": [1],
    "an object": {"t": 1},
    "a boolean": True,
    "a fraction": 1.5,
    "empty": "",
    "none": ...,
}


@STREAMING
@pytest.mark.parametrize("token", STRANGE_TOKENS.values(), ids=STRANGE_TOKENS)
async def test_fr_101_progress_with_a_token_that_was_never_given_costs_nothing(token: Any, way: Way) -> None:
    params = {"progress": 0, "total": 1, **({} if token is ... else {"progressToken": token})}
    strange = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}

    def call(request: RawRequest) -> bytes:
        given = request.rpc["params"]["_meta"]["progressToken"]
        assert token is True or given != token
        return sse_reply([strange] * 3 + [progress_of(request, 1)] + [result_of(request, text_result("done"))])

    async with open_met({"tools/call": call}, way=way, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it, 2) == ["done", "done"]
    assert [data["progress"] for data in run.named("tool/progress")] == [1, 1]
    assert it.mcp.asked["initialize"] <= 1


OTHER_TYPES: dict[str, Callable[[Any], Any]] = {
    "text": str,
    "number": int,
}


@STREAMING
@pytest.mark.parametrize("other", OTHER_TYPES.values(), ids=OTHER_TYPES)
async def test_fr_101_token_of_another_type_is_still_ours(other: Callable[[Any], Any], way: Way) -> None:
    def call(request: RawRequest) -> bytes:
        notification = progress_of(request, 1, total=2)
        notification["params"]["progressToken"] = other(notification["params"]["progressToken"])
        return sse_reply([notification, result_of(request, text_result("done"))])

    async with open_met({"tools/call": call}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["done"]
    assert [data["progress"] for data in run.named("tool/progress")] == [1]


@STREAMING
async def test_fr_080_flood_of_progress_is_thinned_out_and_its_last_word_arrives(way: Way) -> None:
    def call(request: RawRequest) -> bytes:
        steps = [progress_of(request, at, total=3000) for at in range(1, 3001)]
        return sse_reply([*steps, result_of(request, text_result("done"))])

    async with open_met({"tools/call": call}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    progress = [data["progress"] for data in run.named("tool/progress")]
    assert progress == sorted(set(progress))
    assert progress[-1] == 3000
    assert len(progress) < 100


@STREAMING
async def test_fr_101_progress_after_its_result_is_not_anothers(way: Way) -> None:
    stale: list[Any] = []

    def call(request: RawRequest) -> bytes:
        messages = [*stale, result_of(request, text_result("done"))]
        stale[:] = [progress_of(request, 9)]
        return sse_reply(messages)

    async with open_met({"tools/call": call}, way=way, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert run.named("tool/progress") == []


def raw_event(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


ODD_EVENTS: dict[str, str] = {
    "empty object": "{}",
    "heartbeat": '{"type":"ping"}',
    "null": "null",
    "word": "ping",
    "message without a kind": '{"jsonrpc":"2.0"}',
    "notification with a list": '{"jsonrpc":"2.0","method":"notifications/message","params":[1]}',
    "notification of an unknown level": '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"loud"}}',
    "notification that nobody knows": '{"jsonrpc":"2.0","method":"x/y","params":{"a":1}}',
    "progress without anything": '{"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
    "progress without params": '{"jsonrpc":"2.0","method":"notifications/progress"}',
    "request for no id": '{"jsonrpc":"2.0","id":null,"method":"ping"}',
    "answer to another": '{"jsonrpc":"2.0","id":"srv-4","result":{}}',
}


@STREAMING
@pytest.mark.parametrize("event", ODD_EVENTS.values(), ids=ODD_EVENTS)
async def test_fr_101_odd_event_before_the_answer_does_not_cost_the_answer(event: str, way: Way) -> None:
    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([], end=False))
        await request.write(raw_event(event))
        return sse_frame(result_of(request, text_result("done"))) + b"0\r\n\r\n"

    answers = [calls("act", n=1), calls("act", n=2)]
    async with open_met({"tools/call": call}, way=way, answers=answers, mcp_tool_timeout_ms=1000) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it, 2) == ["done", "done"]
    assert it.mcp.asked["initialize"] <= 1


# FR-081: how long a call may take


@every_way
async def test_fr_081_limit_that_is_over_names_server_tool_and_limit(way: Way) -> None:
    async with open_met({"tools/call": HANG}, way=way, mcp_tool_timeout_ms=250) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_timeout"]
    message = run.named("tool/error")[0]["message"]
    assert re.search(r"\bact\b.*\bbox\b.*\b0\.25 seconds", message)
    assert re.search(r"\bact\b.*\b0\.25 seconds", told(it)[0])


@pytest.mark.parametrize(
    ("default_ms", "own_seconds", "is_over"),
    [(200, 8.0, False), (8000, 0.2, True), (200, None, True), (8000, None, False)],
)
async def test_fr_081_limit_of_a_server_goes_before_that_of_all(
    default_ms: int, own_seconds: float | None, *, is_over: bool
) -> None:
    async def call(request: RawRequest) -> bytes:
        await anyio.sleep(0.5)  # how long the tool takes
        return json_reply(result_of(request, text_result("slow and fine")))

    server = {"timeout_seconds": own_seconds}
    async with open_met({"tools/call": call}, server=server, mcp_tool_timeout_ms=default_ms) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_timeout"] * is_over
    assert ("slow and fine" in told(it)[0]) is not is_over


async def test_fr_081_limit_that_a_caller_sets_for_his_own_server_holds() -> None:
    async with open_met({"tools/call": HANG}, mcp_allow_insecure_urls=True) as it:
        mine = {"name": "mine", "url": it.mcp.url, "timeout_ms": 300}
        with anyio.fail_after(8):
            run = await it.run(servers=[mine], server_names=["mine"])
    assert is_whole(run, it)
    assert codes(run) == ["tool_timeout"]
    assert re.search(r"\bact\b.*\bmine\b.*\b0\.3 seconds", run.named("tool/error")[0]["message"])


# FR-095: results that are not what was declared

INTEGER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
MISMATCHES: dict[str, tuple[Any, dict[str, Any], str, bool]] = {
    "no structure": (INTEGER, {"content": [block("7")]}, "7", True),
    "another type": (INTEGER, {"content": [block("7")], "structuredContent": {"n": "7"}}, "7", True),
    "a field missing": (INTEGER, {"content": [block("7")], "structuredContent": {}}, "7", True),
    "a list": (INTEGER, {"content": [block("7")], "structuredContent": [7]}, "7", True),
    "structure alone": (INTEGER, {"content": [], "structuredContent": {"n": "7"}}, '{"n":"7"}', True),
    "as declared": (INTEGER, {"content": [block("7")], "structuredContent": {"n": 7}}, "7", False),
    "more than declared": (INTEGER, {"content": [block("7")], "structuredContent": {"n": 7, "m": 1}}, "7", False),
    "failure": (INTEGER, {"isError": True, "content": [block("no")]}, MARK + "no", False),
}


@some_ways
@pytest.mark.parametrize("row", MISMATCHES.values(), ids=MISMATCHES)
async def test_fr_095_result_that_does_not_follow_its_schema_is_delivered_and_warned_of(
    row: tuple[Any, dict[str, Any], str, bool], way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    schema, fields, said, is_warned = row
    tools = [tool_entry("act", outputSchema=schema)]
    with caplog.at_level(logging.WARNING, "app"):
        async with open_met({"tools/call": gives(**fields)}, way=way, tools=tools, answers=[*ONE, *ONE]) as it:
            run = await it.run()
    assert is_whole(run, it)
    assert told(it, 2) == [said, said]
    warnings = [record for record in caplog.records if "output schema" in record.getMessage()]
    assert bool(warnings) is is_warned
    assert all("act" in record.getMessage() and "box" in record.getMessage() for record in warnings)
    assert it.mcp.asked["tools/list"] == 1


ODD_SCHEMAS: dict[str, Any] = {
    "reference to nothing": {"$ref": "#/$defs/none"},
    "reference to elsewhere": {"$ref": "https://a.example/schema.json"},
    "endless": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "no regular expression": {"type": "object", "properties": {"n": {"type": "string", "pattern": "("}}},
    "slow regular expression": {"type": "object", "properties": {"s": {"type": "string", "pattern": "^(a+)+$"}}},
    "unknown type": {"type": "thing"},
    "another draft": {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "exclusiveMinimum": True},
    "false": False,
    "list": [],
}


@pytest.mark.parametrize("schema", ODD_SCHEMAS.values(), ids=ODD_SCHEMAS)
async def test_fr_095_output_schema_that_cannot_be_used_costs_nothing(schema: Any) -> None:
    structure = {"n": "x", "s": "a" * 40 + "!"}
    tools = [tool_entry("act", outputSchema=schema)]
    replies: Replies = {"tools/call": gives(content=[block("fine")], structuredContent=structure)}
    async with open_met(replies, tools=tools) as it:
        with anyio.fail_after(10):
            run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]
    assert output(run)["structured"] == structure


@every_way
async def test_fr_095_text_with_half_a_character_is_delivered_without_it(way: Way) -> None:
    replies: Replies = {"tools/call": gives(content=[block("cut \ud83d")])}
    async with open_met(replies, way=way, mcp_tool_timeout_ms=1000) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["cut \ufffd"]


# FR-098: results that are large

LIMIT = 4000
SIZES = [LIMIT - 1, LIMIT, LIMIT + 1, LIMIT * 3, 1_000_000]
LETTERS = {"ascii": "a", "two bytes": "ä", "three bytes": "語", "four bytes": "\U0001f642"}


def held(content: str) -> tuple[str, int, int, str]:
    """Take a cut text apart: head, characters left out, characters in all, tail."""
    mark = re.search(r"\n\[… ([\d,]+) of ([\d,]+) characters are left out here\.([^\]]*) …\]\n", content)
    assert mark is not None, content[:200]
    assert "filter" in mark[3], "the model is told what to do about it"
    left_out, total = (int(number.replace(",", "")) for number in mark.groups()[:2])
    return content[: mark.start()], left_out, total, content[mark.end() :]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("letter", LETTERS.values(), ids=LETTERS)
@pytest.mark.parametrize("shift", [0, 3])
async def test_fr_098_result_is_cut_at_the_limit_between_characters(letter: str, size: int, shift: int) -> None:
    width = len(letter.encode())
    said = "x" * shift + letter * ((size - shift) // width)
    said += "y" * (size - len(said.encode()))
    async with open_met({"tools/call": gives(content=[block(said)])}, max_model_text_bytes=LIMIT) as it:
        run = await it.run()
    assert is_whole(run, it)
    (content,) = told(it)
    assert len(content.encode()) <= LIMIT
    if size <= LIMIT:
        assert content == said
        assert notices(run, "output_truncated") == []
    else:
        head, left_out, total, tail = held(content)
        assert said.startswith(head)
        assert said.endswith(tail)
        assert min(len(head), len(tail)) > 0
        assert total == len(said) == len(head) + left_out + len(tail)
        assert len(content.encode()) > LIMIT * 0.95
        assert len(notices(run, "output_truncated")) == 1
    if size < 500_000:
        assert output(run)["text"] == said
    assert len(json.dumps(output(run), ensure_ascii=False).encode()) <= 1024 * 1024


LARGE: dict[str, dict[str, Any]] = {
    "many blocks": {"content": [block("line of a log") for _ in range(20_000)]},
    "one line": {"content": [block("x" * 3_000_000)]},
    "structure": {"content": [], "structuredContent": {"rows": [{"n": at, "s": "x" * 90} for at in range(15_000)]}},
    "structure of many parts": {"content": [], "structuredContent": {"rows": list(range(200_000))}},
    "resource": {"content": [{"type": "resource", "resource": {"uri": "log://1", "text": "l\n" * 1_000_000}}]},
    "bytes": {"content": [{"type": "image", "mimeType": "image/png", "data": "iVBO" * 500_000}]},
    "failure": {"isError": True, "content": [block("x" * 2_000_000)]},
    "controls": {"content": [block("\x00\x1b[31m" * 400_000 + "end")]},
}


@pytest.mark.parametrize("way", [LEGACY, MODERN, WAYS["legacy streams"]], ids=["legacy", "modern", "legacy streams"])
@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE)
async def test_fr_098_no_kind_of_result_fills_the_context_or_an_event(fields: dict[str, Any], way: Way) -> None:
    settings: dict[str, Any] = {"max_model_text_bytes": LIMIT, "max_client_result_bytes": 100_000}
    limits: dict[str, Any] = {"max_event_bytes": 8_000_000, "max_reply_bytes": 8_000_000}
    async with open_met({"tools/call": gives(**fields)}, way=way, **settings, **limits) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert all(len(content.encode()) <= LIMIT for content in told(it))
    assert len(it.upstream.asks[1].body) < 30_000
    ends = [event.data for event in run.events if event.name in ("tool/result", "tool/error")]
    assert len(json.dumps(ends, ensure_ascii=False).encode()) <= 110_000


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("way", [LEGACY, MODERN, WAYS["legacy streams"]], ids=["legacy", "modern", "legacy streams"])
async def test_fr_098_reply_beyond_what_is_read_ends_its_call_only(extra: int, way: Way) -> None:
    cap = 200_000

    def call(request: RawRequest) -> bytes:
        if it.mcp.asked["tools/call"] > 1:
            return json_reply(result_of(request, text_result("fine")))
        room = cap - len(json.dumps(result_of(request, text_result(""))))
        if way[1] == "stream":
            room -= extra - 1000 * extra + 100  # a frame has some bytes around its data
        return json_reply(result_of(request, text_result("x" * (room + extra))))

    answers = [*ONE, *ONE]
    async with open_met({"tools/call": call}, way=way, answers=answers, max_reply_bytes=cap, max_event_bytes=cap) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it, 2)[1] == "fine"
    assert codes(run) == ["tool_outcome_unknown"] * extra
    assert it.mcp.asked["tools/call"] == 2


# FR-100: errors without a type

UNTYPED: dict[str, Callable[[RawRequest], bytes]] = {
    "200 error": lambda request: json_reply(failed(request), content_type=None),
    "500 error": lambda request: json_reply(failed(request), 500, content_type=None),
    "400 error": lambda request: json_reply(failed(request), 400, content_type=None),
    "503 error": lambda request: json_reply(failed(request), 503, content_type=None),
    "500 error as text": lambda request: json_reply(failed(request), 500, content_type="text/plain"),
    "500 error without an id": lambda _request: json_reply(failed(None), 500, content_type=None),
    "200 error with an empty type": lambda request: json_reply(failed(request), content_type=""),
    "200 error with data": lambda request: json_reply(
        {**failed(request), "error": {**failed(request)["error"], "data": {"retry": True}}}, content_type=None
    ),
}


def failed(request: RawRequest | None) -> dict[str, Any]:
    id_ = None if request is None else request.id
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": -32000, "message": "broker down"}}


@both_eras
@pytest.mark.parametrize("reply", UNTYPED.values(), ids=UNTYPED)
async def test_fr_100_error_without_a_type_is_read(reply: Reply, way: Way) -> None:
    async with open_met({"tools/call": [reply, gives(content=[block("fine")])]}, way=way, answers=[*ONE, *ONE]) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_failed"]
    assert "broker down" in run.named("tool/error")[0]["message"]
    assert "broker down" in told(it, 2)[0]
    assert told(it, 2)[1] == "fine"
    assert it.mcp.asked["tools/call"] == 2


@both_eras
async def test_fr_100_result_without_a_type_is_read(way: Way) -> None:
    def call(request: RawRequest) -> bytes:
        return json_reply(result_of(request, text_result("fine")), content_type=None)

    async with open_met({"tools/call": call}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]


@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b" \r\n\t"], ids=["mark", "blanks"])
@both_eras
async def test_fr_100_reply_that_begins_with_more_than_json_is_read(before: bytes, method: str, way: Way) -> None:
    cache = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    def reply(request: RawRequest) -> bytes:
        value = {"tools": [tool_entry("act")], **cache} if method == "tools/list" else text_result("fine")
        return http_reply(200, before + json.dumps(result_of(request, value)).encode(), "application/json")

    async with open_met({method: reply}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert told(it) == ["fine"]


@pytest.mark.parametrize("body", [b"broker down", b"", b"[]", b'{"error":"broker down"}', b'{"jsonrpc":"2.0","id":2}'])
@both_eras
async def test_fr_100_what_is_no_json_rpc_is_not_quoted(body: bytes, way: Way) -> None:
    async with open_met({"tools/call": http_reply(200, body, None)}, way=way) as it:
        run = await it.run()
    assert is_whole(run, it)
    assert codes(run) == ["tool_outcome_unknown"]
    assert "broker" not in told(it)[0]
