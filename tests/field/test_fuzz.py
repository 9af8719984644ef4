"""Streams that nobody would send: valid ones, broken at random, through the whole service over real sockets.

Every run has a seed, so a failure is met again by its name. Whatever comes, a run ends as the contract says and leaves
nothing behind; and however a valid stream is cut, the same comes of it.
"""

import asyncio
import itertools
import json
import logging
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
import httpx
import pytest

from app.api.published_events import RunEvent
from app.domain.jsontypes import is_array, is_object
from tests.fakes.mcp_servers import wait_until
from tests.fakes.raw_mcp import RawRequest, json_reply, open_raw_mcp, result_of, text_result, tool_entry
from tests.fakes.service import Event, Run, Service, open_service, operator_server
from tests.fakes.upstream import (
    CUT,
    DONE,
    Answer,
    Cut,
    FakeUpstream,
    Request,
    end,
    frame,
    open_upstream,
    reasoning,
    text,
    usage,
)
from tests.field.serving import TOOLS, is_valid_history
from tests.field.test_streams import END, TIN, ZINC, args, delta, fn, tc
from tests.upstream.test_recorded_streams import ANSWERED

pytestmark = pytest.mark.anyio

RUNS = 160
AT_ONCE = 8
RUN_SECONDS = 10.0
OFFERED = [*TOOLS, tool_entry("get_weather"), tool_entry("add"), tool_entry("time_now")]

Chunks: TypeAlias = list[dict[str, Any]]

WHOLE: dict[str, Chunks] = {
    "text": [text("Caf\u00e9 "), text("\U0001f642 is "), text('open.\n"Now"'), end(), usage(9, 7)],
    "reasoning": [reasoning("Let me "), reasoning("see. \U0001f642"), text("It is noon."), end(), usage(3, 2)],
    "reasoning, other key": [reasoning("Hm ", "reasoning"), reasoning("so", "reasoning"), text("42"), end()],
    "thoughts in the text": [text("<think>Hm, \U0001f914"), text(" so.</think>\n\n"), text("It is <b>7</b>."), end()],
    "a call": [tc(fn("look_up", "", index=0, id="c1", type="function")), tc(args(TIN, index=0)), END, usage(5, 5)],
    "text and calls": [
        text("I look. "),
        tc(fn("look_up", '{"q":', index=0, id="c1"), fn("look_up", '{"q":', index=1, id="c2")),
        tc(args('"t\u00efn \U0001f642"}', index=0)),
        tc(args('"zinc"}', index=1)),
        END,
    ],
    "thoughts and a call": [text("<think>I need "), text("it</think>"), tc(fn("clock", "{}", index=0, id="c1")), END],
    "calls without index": [tc(fn("look_up", TIN, id="c1")), tc(fn("look_up", ZINC, id="c2")), end("stop")],
    "parts": [
        delta(content=[{"type": "thinking", "thinking": "hm"}]),
        delta(content=[{"type": "text", "text": "42"}]),
        end(),
    ],
    "cut by length": [tc(fn("save", '{"path":"a","text":"lorem', index=0, id="c1")), end("length")],
}


def body_of(chunks: Chunks) -> bytes:
    return b"".join(map(frame, chunks)) + DONE


def ascii_body_of(chunks: Chunks) -> bytes:
    """Write half characters too: JSON can, UTF-8 cannot."""
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + DONE


# Breaking a stream


ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    7,
    1e300,
    2**70,
    "",
    " ",
    "\ud83d",
    "\u0000",
    "<think>",
    "</think>",
    "9" * 5000,
    "{}",
    "null",
    "error",
    "length",
    [],
    [None],
    [[]],
    {},
    {"a": {}},
    {"error": {"message": "odd"}},
]
"""Put in the place of any value of a chunk."""

SCRAPS = [
    b"\n\n",
    b"\r",
    b"\r\n",
    b"data: ",
    b"data: [DONE]\n\n",
    b"data: null\n\n",
    b"data: []\n\n",
    b"data: {}\n\n",
    b'data: {"choices":[]}\n\n',
    b'data: {"choices":[{}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"clock"}}]}}]}\n\n',
    b'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n',
    b'data: {"error":{"message":"broke","code":500}}\n\n',
    b"event: error\n",
    b"event: ping\n",
    b": comment\n\n",
    b"id: 7\nretry: 1\n",
    b"<html>",
    b'{"error":"x"}',
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x00",
    b"\xef\xbb\xbf",
    b'"',
    b"\\u",
    b"NaN",
    b"1e999",
    b"[" * 3000,
    b'{"a":' * 2000,
]
"""Put anywhere between the bytes."""


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """List where values stand in a JSON value, as the object or list that holds each and its key there."""
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [value]
    while waiting:
        holder = waiting.pop()
        keys: list[Any] = list(holder) if is_object(holder) else list(range(len(holder)))
        places += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys if is_object(holder[key]) or is_array(holder[key])]
    return places


def copied(chunk: Any) -> Any:
    """Copy a chunk without its envelope, which says nothing."""
    said = {key: value for key, value in chunk.items() if key not in ("id", "object", "created", "model")}
    return json.loads(json.dumps(said))


def with_odd_value(rng: random.Random, chunk: Any) -> Any:
    """Replace, drop or double one value somewhere in a chunk."""
    chunk = copied(chunk)
    holder, key = rng.choice(places_in(chunk) or [({"": 0}, "")])
    kind = rng.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and is_array(holder):
        holder.append(holder[-1])
    else:
        holder[key] = rng.choice(ODD)
    return chunk


def broken_chunks(rng: random.Random, chunks: Chunks) -> Chunks:
    """Break what is said in the chunks, or their order."""
    chunks = list(chunks)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(chunks))
        kind = rng.randrange(8)
        if kind < 5:
            chunks[at] = with_odd_value(rng, chunks[at])
        elif kind == 5 and len(chunks) > 1:
            del chunks[at]
        elif kind == 6:
            chunks.insert(at, rng.choice(chunks))
        else:
            other = rng.randrange(len(chunks))
            chunks[at], chunks[other] = chunks[other], chunks[at]
    return chunks


def broken_bytes(rng: random.Random, body: bytes) -> bytes:
    """Break the bytes themselves."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(body) + 1)
        to = min(len(body), at + rng.choice((1, 1, 2, 9, 80)))
        kind = rng.randrange(6)
        if kind == 0 and at < len(body):
            body = body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :]
        elif kind == 1:
            body = body[:at] + body[to:]
        elif kind == 2:
            body = body[:to] + body[at:]
        elif kind == 3:
            body = body[:at] + body[at:to][::-1] + body[to:]
        elif kind == 4 and rng.random() < 0.3:
            body = body[:at]
        else:
            body = body[:at] + rng.choice(SCRAPS) + body[at:]
    return body


def pieces_of(rng: random.Random, body: bytes, most: int = 12) -> list[bytes]:
    """Cut bytes anywhere; each piece is one write."""
    cuts = sorted(rng.sample(range(1, len(body)), min(rng.randint(0, most), len(body) - 1))) if len(body) > 1 else []
    return [body[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(body)])]


def broken_answer(rng: random.Random) -> Answer:
    """Make one answer that no model gave; now and then a good one, so that rounds go on."""
    kind = rng.randrange(10)
    if kind < 2:
        body = rng.choice(ANSWERED).body
    else:
        chunks = rng.choice(list(WHOLE.values()))
        body = ascii_body_of(broken_chunks(rng, chunks)) if kind < 7 else body_of(chunks)
    if kind in (0, 1, 6, 7, 8):
        body = broken_bytes(rng, body)
    pieces: list[bytes | Cut] = [*pieces_of(rng, body)]
    if rng.random() < 0.15:
        pieces.insert(rng.randint(0, len(pieces)), CUT)
    return Answer(pieces, framing=rng.choice(("chunked", "chunked", "length", "close")))


# The service, once for many runs


@dataclass
class Fuzzed:
    """A service whose model answers each run, by the name of its model, as a test says."""

    service: Service
    upstream: FakeUpstream
    script: dict[str, Callable[[int], Answer]] = field(default_factory=dict[str, Callable[[int], Answer]])
    asked: dict[str, list[Any]] = field(default_factory=lambda: defaultdict[str, list[Any]](list))
    """The bodies of the requests of each run."""
    under_way: list[Request] = field(default_factory=list[Request])
    """Requests whose answer does not end by closing the connection: each ends by being whole, or by our leaving."""

    async def run(self, name: str, answer: Callable[[int], Answer], **body: Any) -> Run:
        """Run once; `answer` gives the answer to each request, counted from 0."""
        self.script[name] = answer
        with anyio.fail_after(RUN_SECONDS):
            return await self.service.run(model=name, **body)


@asynccontextmanager
async def open_fuzzed() -> AsyncGenerator[Fuzzed]:
    def script(request: Request) -> Answer:
        body = request.json
        name = body["model"]
        fuzzed.asked[name].append(body)
        answer = fuzzed.script[name](len(fuzzed.asked[name]) - 1)
        if answer.framing != "close" and CUT not in answer.pieces:
            fuzzed.under_way.append(request)
        return answer

    def call(request: RawRequest) -> bytes:
        return json_reply(result_of(request, text_result(f"ran {request.rpc['params']['name']}")))

    async with open_raw_mcp({"tools/call": call}, tools=OFFERED) as mcp, open_upstream(script) as upstream:
        servers = [operator_server("box", mcp.url)]
        async with open_service(upstream, extra_servers=servers, upstream_backoff_ms=5) as service:
            fuzzed = Fuzzed(service, upstream)
            yield fuzzed


def answered_once(body: bytes) -> Callable[[int], Answer]:
    """Give a body first, then a plain answer."""
    return lambda number: Answer([body if number == 0 else body_of([text("Done."), end()])])


def faults_of(run: Run) -> list[str]:
    """Say how a run's events break what every run promises."""
    last = run.last
    endings = [data for data in run.named("status") if data["status"] in ("finished", "error")]
    calls = Counter(data["uuid"] for data in run.named("tool/call"))
    ends = Counter(event.data["uuid"] for event in run.events if event.name in ("tool/result", "tool/error"))
    answers = run.named("finalAnswer")
    has_answer = last.get("outcome") in ("completed", "exhausted")
    spoken = [at for at, event in enumerate(run.events) if event.name in ("stream", "reasoning", "tool/call")]
    prepared = [at for at, event in enumerate(run.events) if event.data.get("status") == "prepared"]
    checks = {
        "status": run.response.status_code == 200,
        "one ending, at the end": endings == [last],
        "no fault of ours": last.get("code") != "internal",
        "ids": [event.id for event in run.events] == [str(number) for number in range(1, len(run.events) + 1)],
        "started first": run.events[0].data.get("status") == "started",
        "prepared once, before a word": len(prepared) == 1 and all(at > prepared[0] for at in spoken),
        "calls have one end": calls == ends and set(calls.values()) <= {1},
        "answer": len(answers) == has_answer,
        "answer was streamed": all(run.text.endswith(data["text"]) for data in answers),
        "answer is not blank": all(data["text"].strip() for data in answers),
    }
    return [name for name, holds in checks.items() if not holds]


def test_checks_of_a_run_find_what_they_are_for() -> None:
    broken = Run(
        httpx.Response(200), [Event("1", "status", {"status": "started"}), Event("3", "finalAnswer", {"text": ""})]
    )
    assert {"one ending, at the end", "ids", "answer", "answer is not blank"} <= set(faults_of(broken))


# What is checked


async def run_all(scripts: dict[str, Callable[[int], Answer]], **body: Any) -> Counter[str]:
    """Make many runs, some at once, and give how many ended in which way; none may break what every run promises."""
    faults: dict[str, Any] = {}
    outcomes: Counter[str] = Counter()
    limiter = anyio.CapacityLimiter(AT_ONCE)
    async with open_fuzzed() as it:

        async def run_one(name: str) -> None:
            try:
                async with limiter:
                    run = await it.run(name, scripts[name], **body)
                for event in run.events:
                    RunEvent.model_validate(event.data)
            except Exception as error:  # noqa: BLE001  # collected with the name of the run
                faults[name] = repr(error)
                return
            found = faults_of(run)
            found += ["history" for request in it.asked[name] if not is_valid_history(request)]
            if found:
                faults[name] = (found, run.last)
            outcomes[str(run.last.get("outcome") or run.last.get("code"))] += 1

        async with anyio.create_task_group() as group:
            for name in scripts:
                group.start_soon(run_one, name)
        await leaves_nothing(it)
    assert faults == {}
    return outcomes


def random_script(name: str) -> Callable[[int], Answer]:
    rng = random.Random(name)  # noqa: S311  # the name is the seed
    answers = [broken_answer(rng) for _ in range(12)]
    return lambda number: answers[number % 12]


async def test_run_of_a_broken_stream_ends_as_every_run_does_and_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    names = [f"seed-{number}" for number in range(RUNS)]
    outcomes = await run_all({name: random_script(name) for name in names}, max_rounds=3)
    # The streams reach every way to end, else they are broken too little, or too much.
    assert {"completed", "exhausted", "upstream_failed", "upstream_incomplete"} <= set(outcomes), outcomes
    assert [record.getMessage() for record in caplog.records if record.name.startswith("app")] == []


async def test_any_value_in_any_place_of_a_chunk_leaves_the_run_well() -> None:
    calls = [fn("look_up", TIN, index=0, id="c1", type="function")]
    full = delta(reasoning_content="hm", content="I look. ", tool_calls=calls)
    counts = usage(1, 2, prompt_tokens_details={"cached_tokens": 1})
    chunks = [full, counts, END]
    scripts: dict[str, Callable[[int], Answer]] = {}
    for at in (0, 1):
        for place in range(len(places_in(copied(chunks[at])))):
            for number, odd in enumerate(ODD):
                broken = [copied(each) for each in chunks]
                holder, key = places_in(broken[at])[place]
                holder[key] = odd
                scripts[f"chunk {at}, place {place} ({key}), value {number}"] = answered_once(ascii_body_of(broken))
    await run_all(scripts)


async def leaves_nothing(it: Fuzzed) -> None:
    """Wait until no run, no task of one and no request to the model is under way."""
    journal = it.service.app.state.doors.journal
    await wait_until(lambda: journal.running == 0)
    await wait_until(lambda: not [task for task in asyncio.all_tasks() if is_of_a_run(task)])
    await wait_until(
        lambda: all(request.answered.is_set() or request.closed_early.is_set() for request in it.under_way)
    )


def is_of_a_run(task: asyncio.Task[Any]) -> bool:
    return task.get_name().startswith(("run_", "app.run", "app.api")) or "run_asgi" in repr(task.get_coro())


def recut(rng: random.Random, chunk: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Say what one chunk says in several: its text, its reasoning or the arguments of its calls in pieces."""
    choices = chunk["choices"]
    if not choices or choices[0]["finish_reason"]:
        return [chunk]
    said = choices[0]["delta"]
    parts: list[dict[str, Any]] = []
    for key, value in said.items():
        if isinstance(value, str):
            parts += [delta(**{key: piece}) for piece in cut_text(rng, value)]
        elif key == "tool_calls":
            for call in value:
                first, *more = cut_text(rng, call["function"]["arguments"])
                parts.append(tc({**call, "function": {**call["function"], "arguments": first}}))
                named = {name: call[name] for name in ("index", "id") if name in call}
                parts += [tc(args(piece, **named)) for piece in more]
        else:
            parts.append(delta(**{key: value}))
    return parts


def cut_text(rng: random.Random, said: str) -> list[str]:
    """Cut a text anywhere, also inside a character that JSON writes as two."""
    units = said.encode("utf-16-be", "surrogatepass")
    cuts = sorted(rng.randint(0, len(units) // 2) * 2 for _ in range(rng.randint(0, 3)))
    pieces = [units[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(units)])]
    return [piece.decode("utf-16-be", "surrogatepass") for piece in pieces]


VARYING = ("uuid", "duration", "runId", "eta", "model")


def gist(run: Run) -> list[Any]:
    """Join tokens that follow each other, and leave out what differs from run to run."""
    found: list[Any] = []
    for event in run.events:
        data = {key: value for key, value in event.data.items() if key not in VARYING}
        if data.get("code") == "preparing_call":
            continue
        if "token" in data and found and found[-1].get("type") == data["type"] and "token" in found[-1]:
            found[-1]["token"] += data["token"]
        else:
            found.append(data)
    return found


def told_next(it: Fuzzed, name: str) -> list[Any]:
    """What the model was told in the later requests of a run, without the system message, which tells the time."""
    return [request["messages"][1:] for request in it.asked[name][1:]]


@pytest.mark.parametrize("shown", ["separate", "inline"])
async def test_same_comes_of_a_stream_however_it_is_cut_into_chunks_and_reads(shown: str) -> None:
    async with open_fuzzed() as it:
        for kind, chunks in WHOLE.items():
            plain = await it.run(f"{kind}, whole", answered_once(body_of(chunks)), reasoning=shown)
            wanted = gist(plain)
            assert faults_of(plain) == []
            for number in range(6):
                name = f"{kind}, {number}"
                rng = random.Random(name)  # noqa: S311  # the name is the seed
                pieces = [piece for chunk in chunks for piece in recut(rng, chunk)]
                parts = pieces_of(rng, ascii_body_of(pieces), most=40)
                answer = answered_once(b"")
                run = await it.run(
                    name,
                    lambda at, parts=parts, answer=answer: Answer(parts) if at == 0 else answer(at),
                    reasoning=shown,
                )
                assert gist(run) == wanted, name
                assert told_next(it, name) == told_next(it, f"{kind}, whole"), name
        await leaves_nothing(it)
