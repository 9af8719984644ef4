"""Callers that send without end, drop by drop, or what is no request; that do not read, or leave."""

import asyncio
import contextlib
import json
from typing import Final

import anyio
import pytest

from tests.fakes.hostile import KEY, MIB, SILENCE_SECONDS, Endless, Poured, Victim, open_siege, pour, times
from tests.fakes.mcp_servers import wait_until
from tests.fakes.raw_mcp import HANG, open_raw_mcp
from tests.fakes.upstream import Answer, frame, stream, text

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

MOST_GROWN: Final = 64 * MIB
MOST_TAKEN: Final = 16 * MIB
"""What lies in the buffers of two sockets, and what is read before the limit is noticed."""
MOST: Final = 48 * MIB
HOST: Final = b"Host: localhost\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"
GET: Final = b"GET /v1/models HTTP/1.1\r\n" + HOST
POST: Final = b"POST /v1/runs HTTP/1.1\r\nContent-Type: application/json\r\n" + HOST
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BLOCK: Final = b"x" * 65536

HEADS: Final[dict[str, tuple[bytes, bytes]]] = {
    "a method": (b"", b"G" * 65536),
    "a path": (b"GET /", BLOCK),
    "a query": (b"GET /v1/models?", BLOCK),
    "a name": (GET, BLOCK),
    "a value": (GET + b"A: ", BLOCK),
    "fields": (GET, b"A: b\r\n" * 8192),
    "blank lines": (b"", b"\r\n" * 32768),
    "trailer fields": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"A: b\r\n" * 8192),
    "a trailer's value": (CHUNKED + b"2\r\n{}\r\n0\r\nA: ", BLOCK),
    "a chunk's extension": (CHUNKED + b"2;", BLOCK),
    "requests on one connection": (b"", (GET + b"\r\n") * 512),
    "requests behind one that lasts": (
        POST + b'Content-Length: 47\r\n\r\n{"messages":[{"role":"user","content":"strike"}]',
        b"}" + (GET + b"\r\n") * 512,
    ),
}


@pytest.mark.parametrize("kind", HEADS)
async def test_head_without_end_is_cut_off_while_others_go_on(victim: Victim, kind: str) -> None:
    first, piece = HEADS[kind]
    async with open_siege(victim, lambda _: stream(text("a"), asyncio.Event())) as siege:

        async def strike() -> Poured:
            return await pour(victim.port, first, times(piece, MOST))

        with victim.growth() as growth:
            poured = await siege.withstand(strike)
    assert all(each.is_cut for each in poured)
    assert max(each.sent for each in poured) < MOST_TAKEN
    assert growth.bytes < MOST_GROWN


BODIES: Final[dict[str, tuple[bytes, bytes, bytes]]] = {
    "a body that is announced": (POST + b"Content-Length: 99999999999\r\n\r\n", BLOCK, b"4"),
    "a body in chunks": (CHUNKED, b"10000\r\n" + BLOCK + b"\r\n", b"4"),
    "a body in chunks of one byte": (CHUNKED, b"1\r\n \r\n" * 8192, b"4"),
    "a body that nobody asked for": (GET + b"Content-Length: 99999999999\r\n\r\n", BLOCK, b"200"),
    "a body for a place that is none": (
        CHUNKED.replace(b"/v1/runs", b"/v1/no"),
        b"10000\r\n" + BLOCK + b"\r\n",
        b"404",
    ),
}


async def test_bodies_without_end_are_answered_and_then_cut_off_while_others_go_on(victim: Victim) -> None:
    async with open_siege(victim) as siege:

        async def strike(kind: str) -> None:
            first, piece, status = BODIES[kind]
            poured = await pour(victim.port, first, times(piece, 100_000 * MIB), seconds=4 * SILENCE_SECONDS)
            assert poured.answer.startswith(b"HTTP/1.1 " + status), kind
            assert poured.is_cut, kind

        with victim.growth() as growth:
            async with anyio.create_task_group() as strikes:
                for kind in BODIES:
                    strikes.start_soon(strike, kind)
                await siege.live()
    assert growth.bytes < MOST_GROWN


IDLE: Final[dict[str, tuple[bytes, bytes]]] = {
    "nothing": (b"", b""),
    "half a line": (b"GET /v1/mod", b""),
    "half a head": (GET, b""),
    "half a head, drop by drop": (GET + b"A: ", b"b"),
    "fields, drop by drop": (GET, b"A: b\r\n"),
    "blank lines, drop by drop": (b"", b"\r\n"),
    "half a body": (POST + b"Content-Length: 100\r\n\r\n{", b""),
    "half a body, drop by drop": (POST + b"Content-Length: 10000\r\n\r\n{", b" "),
    "half a chunk, drop by drop": (CHUNKED + b"ffff\r\n{", b" "),
    "a promise of a body": (POST + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n", b""),
    "a request, and half of another": (GET + b"\r\n" + GET, b""),
    "a request, and half of another, drop by drop": (GET + b"\r\n" + GET + b"A: ", b"b"),
}


async def test_two_hundred_connections_that_say_little_end_and_keep_nobody_out(victim: Victim) -> None:
    left = {kind: 200 // len(IDLE) + 1 for kind in IDLE}

    async def idle(kind: str) -> None:
        first, drop = IDLE[kind]
        reader, writer = await asyncio.open_connection("127.0.0.1", victim.port)
        writer.write(first)
        ended = asyncio.create_task(_to_end(reader))
        with contextlib.suppress(ConnectionError):
            while not ended.done():
                writer.write(drop)
                await asyncio.wait([ended], timeout=SILENCE_SECONDS / 20)
        writer.transport.abort()
        left[kind] -= 1

    async with open_siege(victim) as siege:
        with victim.growth() as growth, anyio.move_on_after(4 * SILENCE_SECONDS):
            async with anyio.create_task_group() as idlers:
                for kind, number in dict(left).items():
                    for _ in range(number):
                        idlers.start_soon(idle, kind)
                await siege.live()
    assert {kind for kind, number in left.items() if number} == set()
    assert growth.bytes < MOST_GROWN


async def _to_end(reader: asyncio.StreamReader) -> int:
    read = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            read += len(data)
    return read


ODD: Final[dict[str, tuple[bytes, set[int]]]] = {
    "no number": (b'{"messages":[{"role":"user","content":NaN}]}', {422}),
    "no bounds": (b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}', {422}),
    "half a character": (b'{"messages":[{"role":"user","content":"\\ud800"}]}', {422}),
    "half a character in a name": (b'{"\\ud800":1,"messages":[{"role":"user","content":"x"}]}', {422}),
    "a number without end": (
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":' + b"9" * 100_000 + b"}",
        {400, 422},
    ),
    "deep arrays": (b'{"messages":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", {422}),
    "deep objects": (b'{"messages":' + b'{"a":' * 500_000 + b"1" + b"}" * 500_000 + b"}", {422}),
    "open brackets": (b"[" * 5_000_000, {422}),
    "open quotes": (b'{"a":"' + b'\\"' * 2_000_000, {400}),
    "quotes that alternate with brackets": (b'["]"[' * 1_000_000, {400, 422}),
    "many names": (b"{" + b",".join(b'"%d":1' % number for number in range(500_000)) + b"}", {422}),
    "many messages": (b'{"messages":[' + b",".join([b'{"role":"user","content":""}'] * 200_000) + b"]}", {200, 422}),
    "many things that are no messages": (b'{"messages":[' + b",".join([b"{}"] * 2_000_000) + b"]}", {422}),
    "no text": (b"\xff\xfe{}", {400}),
    "nothing": (b"", {400}),
    "compressed": (b"\x1f\x8b\x08\x00", {400}),
}


@pytest.mark.parametrize("kind", ODD)
async def test_body_that_is_no_honest_json_is_refused_while_others_go_on(victim: Victim, kind: str) -> None:
    body, statuses = ODD[kind]
    headers = {"Content-Type": "application/json"}
    async with open_siege(victim) as siege:

        async def strike() -> int:
            response = await siege.service.client.post("/v1/runs", content=body, headers=headers)
            return response.status_code

        with victim.growth() as growth:
            found = await siege.withstand(strike)
    assert set(found) <= statuses
    assert growth.bytes < 4 * MOST_GROWN


JUNK: Final[dict[str, bytes]] = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length below nothing": POST + b"Content-Length: -1\r\n\r\n",
    "a length that is no number": POST + b"Content-Length: 0x10\r\n\r\n",
    "a chunk that is no number": CHUNKED + b"zz\r\n",
    "a chunk without bounds": CHUNKED + b"ffffffffffffffffff\r\n",
    "folded fields": GET + b"A: b\r\n c\r\n\r\n",
    "a bare line end": GET + b"A: b\nB: c\n\n",
    "a path that is no text": b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n",
    "another protocol": GET + b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "its second version": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "another host's path": b"GET http://elsewhere.example/v1/models HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
}


@pytest.mark.parametrize("kind", JUNK)
async def test_what_is_no_request_is_refused_and_breaks_nothing(victim: Victim, kind: str) -> None:
    logged = victim.log.stat().st_size
    async with open_siege(victim) as siege:
        poured = await pour(victim.port, JUNK[kind], (), seconds=0.3)
        await siege.live()
    status = poured.answer.split(b" ")[1:2]
    assert poured.is_cut or status, poured
    assert not status or status[0][:1] in (b"2", b"4"), poured.answer
    assert "Traceback" not in victim.log.read_text()[logged:]


async def test_reader_that_stops_reading_costs_no_more_than_a_run_may_keep(victim: Victim) -> None:
    """And where it goes on at last, what it missed is not there any more, so its stream ends."""
    tokens = Endless(frame(text("a")), frame(text("x" * 1000)) * 60, most=800)
    body = json.dumps({"messages": [{"role": "user", "content": "strike"}]}).encode()
    request = POST + b"X-End-User: slow\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with open_siege(victim, lambda _: Answer(tokens)) as siege:
        with victim.growth() as growth:
            reader, writer = await asyncio.open_connection("127.0.0.1", victim.port)
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
            await siege.live()
            await wait_until(lambda: tokens.reached == 799, 20)
            await siege.live()
            read = await _to_end(reader)
            writer.transport.abort()
    assert read < 40 * MIB
    assert growth.bytes < 2 * MOST_GROWN


async def test_callers_that_leave_take_their_runs_calls_and_connections_with_them(victim: Victim) -> None:
    async with open_siege(victim) as siege, open_raw_mcp({"tools/call": HANG}) as server:

        async def leave(number: int) -> None:
            servers = [{"name": "box", "url": server.url}]
            messages = [{"role": "user", "content": "call"}]
            headers = {"X-End-User": f"leaver{number}"}
            async with siege.service.streaming(messages=messages, servers=servers, headers=headers):
                await wait_until(lambda: server.asked["tools/call"] == 8, SILENCE_SECONDS)

        async with anyio.create_task_group() as leavers:
            for number in range(8):
                leavers.start_soon(leave, number)
        calls = [request for request in server.requests if request.method == "tools/call"]
        await wait_until(lambda: server.asked["notifications/cancelled"] == len(calls))
        # Where the server was told and does not stop, its answer is given a few more seconds.
        await wait_until(lambda: all(call.closed.is_set() for call in calls), 20)


async def test_storm_of_readers_of_one_run_is_served_without_growth(victim: Victim) -> None:
    async with open_siege(victim) as siege:
        done = await siege.run("live", siege.good.url, user="stormer", resumable=True)
        path = f"/v1/runs/{done.response.headers['X-Run-Id']}/events?after=0"
        request = b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + b"X-End-User: stormer\r\n\r\n"

        async def strike() -> None:
            async def come_and_go() -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", victim.port)
                writer.write(request)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.transport.abort()

            async with anyio.create_task_group() as readers:
                for _ in range(50):
                    readers.start_soon(come_and_go)

        with victim.growth() as growth:
            await siege.withstand(strike, lives=10)
    assert growth.bytes < MOST_GROWN
