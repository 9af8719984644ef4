"""MCP servers that answer a call slowly, in disguise, again and again, or with what is not theirs to tell."""

import gzip
import json
import zlib
from collections.abc import Sequence
from typing import Any, Final

import anyio
import pytest

from tests.fakes.hostile import MIB, SILENCE_SECONDS, Tally, Victim, as_chunk, head_of, open_siege, pouring
from tests.fakes.raw_mcp import (
    HANG,
    RawRequest,
    Reply,
    http_reply,
    json_reply,
    open_raw_mcp,
    progress_of,
    result_of,
    sse_frame,
    sse_reply,
    text_result,
    tool_entry,
)
from tests.fakes.service import Run

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

MOST_GROWN: Final = 96 * MIB
STREAM: Final = "text/event-stream"
MARK: Final = "zebra-73112"


def bomb(coding: str) -> bytes:
    """Pack 300 MiB of blanks into 300 KiB, or into far less where that is packed once more."""
    packer, block = zlib.compressobj(wbits=15 if coding == "deflate" else 31), b" " * MIB
    packed = b"".join(packer.compress(block) for _ in range(300)) + packer.flush()
    return gzip.compress(packed) if "," in coding else packed


BOMBS: Final = {coding: bomb(coding) for coding in ("gzip", "gzip, gzip", "deflate")}


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("media_type", ["application/json", STREAM])
@pytest.mark.parametrize("coding", BOMBS)
async def test_compressed_answer_is_not_unpacked(victim: Victim, coding: str, media_type: str, status: int) -> None:
    packed = http_reply(status, BOMBS[coding], media_type, Content_Encoding=coding)
    async with open_siege(victim) as siege, open_raw_mcp({"tools/call": packed}) as server:
        with victim.growth() as growth:
            outcomes = await siege.withstand(lambda: siege.strike(server.url))
    assert {code for code, _ in outcomes} == {"tool_outcome_unknown"}
    assert all("compressed" in message for _, message in outcomes)
    assert growth.bytes < 32 * MIB


DRIPS: Final[dict[str, tuple[bytes, bytes]]] = {
    "blanks": (head_of(), as_chunk(b" ")),
    "comments": (head_of(STREAM), as_chunk(b":\n")),
    "a line": (head_of(STREAM), as_chunk(b"x")),
    "header fields": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
    "provisional answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "a status line": (b"HTTP/1.1 200 ", b"x"),
}


async def test_call_that_is_answered_drop_by_drop_ends_in_time(victim: Victim) -> None:
    tally = Tally()

    async with open_siege(victim) as siege, anyio.create_task_group() as strikes:

        async def struck(name: str) -> None:
            drip = pouring(tally, *DRIPS[name], pause=SILENCE_SECONDS / 20)
            async with open_raw_mcp({"tools/call": drip}) as server:
                code, _ = await siege.strike(server.url)
                assert code == "tool_timeout", name

        for name in DRIPS:
            strikes.start_soon(struck, name)
        await siege.live()


async def test_progress_by_the_thousand_reaches_the_reader_in_small_numbers(victim: Victim) -> None:
    async def flood(request: RawRequest) -> bytes:
        await request.write(sse_reply([], end=False))
        for step in range(0, 10_000, 100):
            frames = [sse_frame(progress_of(request, step + number, message=MARK)) for number in range(100)]
            await request.write(b"".join(frames))
        await request.write(sse_frame(result_of(request, text_result("done"))) + b"0\r\n\r\n")
        return b""

    async with open_siege(victim) as siege, open_raw_mcp({"tools/call": flood}) as server:

        async def struck() -> Run:
            return await siege.run("call", server.url)

        with victim.growth() as growth:
            runs = await siege.withstand(struck)
    for run in runs:
        assert run.names.count("tool/result") == 1
        assert run.names.count("tool/progress") < 200
    assert growth.bytes < MOST_GROWN


RETRIES: Final = (b"0", b"-1", b"9" * 400, b"1e9", b"\xd9\xa3", b"")


@pytest.mark.parametrize("event_id", [b"", b"id: 7\n"])
async def test_stream_that_breaks_off_is_not_asked_for_in_a_storm(victim: Victim, event_id: bytes) -> None:
    """Neither of a call nor of the connection, however soon the server wants to be asked again."""
    async with open_siege(victim) as siege, anyio.create_task_group() as strikes:

        async def struck(retry: bytes) -> None:
            broken = head_of(STREAM) + as_chunk(event_id + b"retry: " + retry + b"\n\n") + b"0\r\n\r\n"
            async with open_raw_mcp({"tools/call": broken, "GET": broken}) as server:
                code, _ = await siege.strike(server.url)
                assert code in ("tool_outcome_unknown", "tool_timeout")
                await siege.live()
                assert server.asked["GET"] < 20

        for retry in RETRIES:
            strikes.start_soon(struck, retry)


FOREIGN: Final[dict[str, Any]] = {
    "of another service": {"status": "ok", "data": {"key": MARK}},
    "of another protocol": {"jsonrpc": "1.0", "id": 1, "result": {"key": MARK}},
    "a list": [MARK] * 3,
    "a text": MARK,
    "half a message": {"jsonrpc": "2.0", "id": MARK, "result": MARK},
    "an error in another form": {"jsonrpc": "2.0", "error": MARK, "message": MARK},
    "an error without a code": {"jsonrpc": "2.0", "id": 3, "error": {"code": MARK, "message": MARK}},
}


STATUSES: Final = (200, 202, 400, 403, 404, 500, 503)


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
async def test_answer_of_something_else_is_told_to_nobody(victim: Victim, method: str) -> None:
    logged = victim.log.stat().st_size
    async with open_siege(victim) as siege, anyio.create_task_group() as strikes:

        async def struck(*answers: bytes) -> None:
            replies: dict[str, Sequence[Reply]] = {method: answers}
            async with open_raw_mcp(replies) as server:
                for _ in answers:
                    run = await siege.run("call", server.url)
                    assert MARK not in json.dumps([event.data for event in run.events]), run.events
                listed = await siege.check(server.url)
                assert listed.status_code == 200
                assert MARK not in listed.text + str(listed.headers)

        for value in FOREIGN.values():
            strikes.start_soon(struck, *(json_reply(value, status, X_Mark=MARK) for status in STATUSES))
            strikes.start_soon(struck, json_reply(value, 200, "text/plain", WWW_Mark=MARK))
            strikes.start_soon(struck, sse_reply([value], event_id=MARK))
    assert all(MARK not in json.dumps(ask.json) for ask in siege.model.asks)
    assert MARK not in victim.log.read_text()[logged:]


RESULTS: Final[dict[str, bytes]] = {
    "nested": b'{"content":[],"structuredContent":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    "brackets": b'{"content":' + b"[" * 1_000_000,
    "numbers without bounds": b'{"content":[],"structuredContent":{"a":[' + b",".join([b"1e999"] * 1000) + b"]}}",
    "a number that is too long": b'{"content":[],"structuredContent":{"a":' + b"9" * 1_000_000 + b"}}",
    "half characters": b'{"content":[{"type":"text","text":"' + b"\\ud83d" * 500_000 + b'"}]}',
    "blocks": b'{"content":[' + b",".join([b'{"type":"text","text":""}'] * 30_000) + b"]}",
    "pictures": b'{"content":['
    + b",".join([b'{"type":"image","mimeType":"image/png","data":"AAAA"}'] * 20_000)
    + b"]}",
    "more blocks": b'{"content":[' + b",".join([b'{"type":"text","text":""}'] * 100_000) + b"]}",
    "a text full of JSON": b'{"content":[{"type":"text","text":"' + b'{\\"a\\":[]},' * 200_000 + b'"}]}',
    "objects": b'{"content":[],"structuredContent":{"a":[' + b",".join([b"{}"] * 1_000_000) + b"]}}",
    "names": b'{"content":[],"structuredContent":{'
    + b",".join(b'"%d":0' % number for number in range(250_000))
    + b"}}",
    "one long word": b'{"content":[{"type":"text","text":"' + b"\\u202e" * 600_000 + b'"}]}',
}


@pytest.mark.parametrize("kind", RESULTS)
async def test_result_that_is_hard_to_read_costs_others_nothing(victim: Victim, kind: str) -> None:
    def odd(request: RawRequest) -> bytes:
        return http_reply(
            200, b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request.id, RESULTS[kind]), "application/json"
        )

    tools = [tool_entry("echo", outputSchema={"type": "object", "properties": {"a": {"type": "array"}}})]
    async with open_siege(victim) as siege, open_raw_mcp({"tools/call": odd}, tools=tools) as server:

        async def struck() -> Run:
            return await siege.run("call", server.url)

        with victim.growth() as growth:
            runs = await siege.withstand(struck)
    for run in runs:
        assert run.names.count("tool/result") + run.names.count("tool/error") == 1, run.events
        assert run.last["outcome"] == "completed"
    assert growth.bytes < 3 * MOST_GROWN


PLACES: Final = ("http://127.0.0.1:9/mcp", "//127.0.0.1:9/mcp", "", "http://[::1", None)


async def test_server_of_the_old_transport_that_names_no_place_of_its_own_is_given_up(victim: Victim) -> None:
    """And so is one that never names any."""
    async with open_siege(victim) as siege, anyio.create_task_group() as strikes:

        async def struck(place: str | None) -> None:
            named = f": {place}\n\n" if place is None else f"event: endpoint\ndata: {place}\n\n"

            async def greet(request: RawRequest) -> str:
                await request.write(head_of(STREAM) + as_chunk(named.encode()))
                return HANG

            no = http_reply(405)
            async with open_raw_mcp({"initialize": no, "server/discover": no, "GET": greet}) as server:
                run = await siege.run("call", server.url)
            (told,) = run.named("server")
            assert (told["state"], told["code"]) == ("unavailable", "server_unreachable")
            assert run.last["outcome"] == "completed"

        for place in PLACES:
            strikes.start_soon(struck, place)
