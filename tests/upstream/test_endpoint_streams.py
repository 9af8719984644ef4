"""A streamed answer over real sockets: its endings, its labels and its silences."""

import asyncio
import gzip
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.domain.errors import (
    DeadlineExceeded,
    UpstreamIncomplete,
)
from app.domain.messages import Delta, Finish, TextDelta, Usage
from app.domain.ports import Ask
from tests.fakes.upstream import (
    CUT,
    DONE,
    Answer,
    end,
    frame,
    json_answer,
    sse,
    stream,
    text,
    usage,
)
from tests.upstream.asking import GOOD, HI, QUICK, Asked, ask, ask_once, model_of, serving

pytestmark = pytest.mark.anyio

# Endings


async def test_counts_that_follow_the_finish_reason_are_heard() -> None:
    gate = asyncio.Event()
    async with serving([stream(text("Hi"), end(), gate, usage(4, 1))]) as (_, endpoint):

        def open_gate(asked: Asked) -> bool:
            if Finish("stop") in asked.deltas:
                gate.set()
            return False

        asked = await ask(endpoint, until=open_gate)
    assert asked.deltas == [*HI, Usage(4, 1, 5)]


HANGING = {
    "after [DONE]": (text("Hi"), end(), DONE),
    "after the finish reason": (text("Hi"), end()),
}


@pytest.mark.parametrize("chunks", HANGING.values(), ids=HANGING.keys())
async def test_an_end_that_does_not_come_is_not_awaited_long(chunks: tuple[Any, ...]) -> None:
    with anyio.fail_after(5):
        asked = await ask_once([stream(*chunks, asyncio.Event(), done=False)])
    assert asked.error is None
    assert asked.deltas == HI


async def test_comments_after_the_end_do_not_draw_it_out() -> None:
    ticks = [asyncio.Event() for _ in range(20)]
    for position, tick in enumerate(ticks):
        asyncio.get_running_loop().call_later(0.5 * position, tick.set)
    comments = [item for tick in ticks for item in (tick, b": ping\n\n")]
    with anyio.fail_after(5):
        asked = await ask_once([stream(text("Hi"), end(), *comments, done=False)])
    assert asked.deltas == HI


@pytest.mark.parametrize("tail", [(end(), CUT), (end(), DONE, CUT), (DONE, CUT)], ids=["finish", "both", "done"])
async def test_a_connection_lost_after_the_end_loses_nothing(tail: tuple[Any, ...]) -> None:
    asked = await ask_once([stream(text("Hi"), *tail, done=False)])
    assert asked.error is None
    assert asked.deltas[0] == TextDelta("Hi")


async def test_what_came_in_an_unfinished_line_is_kept_when_the_connection_is_lost() -> None:
    asked = await ask_once([stream(frame(text("Hi"))[:-2], CUT)])
    assert asked.deltas == [TextDelta("Hi")]
    assert isinstance(asked.error, UpstreamIncomplete)


async def test_a_whole_body_instead_of_a_stream_is_heard() -> None:
    whole = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    assert (await ask_once([json_answer(whole)])).deltas == [*HI, Usage(1, 0, 1)]


MISLABELLED = ["application/json", "text/plain; charset=utf-8", "application/octet-stream", "TEXT/Event-Stream", ""]


@pytest.mark.parametrize("content_type", MISLABELLED)
async def test_a_stream_under_another_label_is_heard(content_type: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    assert (await ask_once([Answer([sse(text("Hi"), end())], headers=headers)])).deltas == HI


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_the_end_of_the_body_may_show_in_any_way(framing: Any) -> None:
    assert (await ask_once([Answer([sse(text("Hi"), end())], framing=framing)])).deltas == HI


async def test_a_compressed_stream_is_unpacked() -> None:
    packed = Answer([gzip.compress(sse(text("Hi"), end()))], headers={"Content-Encoding": "gzip"})
    async with serving([packed]) as (upstream, endpoint):
        assert (await ask(endpoint)).deltas == HI
        assert upstream.asks[0].headers["accept-encoding"] == "identity"


# Silence


async def test_silence_before_the_first_byte_is_a_deadline() -> None:
    async with serving([Answer([asyncio.Event()])], replace(QUICK, idle_seconds=0.1)) as (upstream, endpoint):
        asked = await ask(endpoint)
        assert isinstance(asked.error, DeadlineExceeded)
        assert asked.told == []
        await upstream.wait_for(lambda up: up.closed_early.is_set(), timeout_seconds=1)


async def test_silence_in_the_middle_is_a_deadline() -> None:
    async with serving([stream(text("Hi"), asyncio.Event())], replace(QUICK, idle_seconds=0.1)) as (upstream, endpoint):
        asked = await ask(endpoint)
        assert asked.deltas == [TextDelta("Hi")]
        assert isinstance(asked.error, DeadlineExceeded)
        await upstream.wait_for(lambda up: up.closed_early.is_set(), timeout_seconds=1)


async def test_a_reader_that_takes_its_time_is_no_silence() -> None:
    async with serving([GOOD], replace(QUICK, idle_seconds=0.05)) as (upstream, endpoint):
        model = model_of(endpoint)
        heard: list[Delta] = []
        async with model.stream(Ask([]), lambda _: None) as batches:
            await upstream.wait_for(lambda up: up.asks[0].answered.is_set())
            with anyio.move_on_after(0.2):
                await anyio.sleep_forever()
            async for batch in batches:
                heard += batch
        assert heard == HI
