"""A model endpoint that answers without end, drop by drop, or with more than anyone asked for."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.fakes.hostile import MIB, Endless, Victim, open_siege
from tests.fakes.service import Run, open_service
from tests.fakes.upstream import Answer, call, chunk, end, frame, open_upstream, reasoning, text

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

MOST_GROWN: Final = 160 * MIB
MOST_TAKEN: Final = 160 * MIB
"""Twice the 64 MiB of a whole answer, and what lies in the buffers of two sockets."""
STREAM: Final = {"Content-Type": "text/event-stream"}
JSON: Final = {"Content-Type": "application/json"}
FIRST: Final = frame(text("a"))


def many(value: Any, times: int = 400) -> bytes:
    return frame(value) * times


FLOODS: Final[dict[str, tuple[int, Mapping[str, str], bytes, bytes]]] = {
    "tokens": (200, STREAM, FIRST, many(text("token "))),
    "one token": (200, STREAM, FIRST, frame(text("x" * 65536))),
    "thoughts": (200, STREAM, FIRST, many(reasoning("thought "))),
    "arguments": (200, STREAM, frame(call(0, "c1", "echo", "{")), many(call(0, None, None, "1234567890"))),
    "calls": (200, STREAM, FIRST, b"".join(frame(call(number, f"c{number}", "echo", "{}")) for number in range(400))),
    "usage": (200, STREAM, FIRST, many(chunk(choices=[], usage={"prompt_tokens": 1}))),
    "what comes after the end": (200, STREAM, frame(end()), many(text("more"))),
    "a line": (200, STREAM, b"data: ", b"x" * 65536),
    "lines of one event": (200, STREAM, b"data: {\n", b"data: 1,\n" * 8192),
    "comments": (200, STREAM, FIRST, b": still here\n" * 4096),
    "blank lines": (200, STREAM, FIRST, b"\n" * 65536),
    "chunks that cannot be read": (200, STREAM, FIRST, b"data: {{\n\n" * 4096),
    "a JSON body": (200, JSON, b'{"choices":[{"message":{"content":"', b"x" * 65536),
    "a text": (200, {"Content-Type": "text/plain"}, b"", b"x" * 65536),
    "a refusal": (400, JSON, b'{"error":{"message":"', b"x" * 65536),
    "an error": (500, JSON, b'{"error":{"message":"', b"x" * 65536),
    "a challenge": (401, {"Content-Type": "text/html"}, b"<p>", b"x" * 65536),
}


LONG: Final = ("tokens", "thoughts", "arguments", "calls", "usage", "comments", "blank lines", "lines of one event")
"""Their 64 MiB take seconds to be read: as small as they are, they cost the most."""


@pytest.mark.parametrize(
    "flood", [pytest.param(flood, marks=pytest.mark.soak if flood in LONG else ()) for flood in FLOODS]
)
async def test_model_that_answers_without_end_fails_the_run_while_others_go_on(victim: Victim, flood: str) -> None:
    status, headers, head, piece = FLOODS[flood]
    floods: list[Endless] = []

    def answer(_: object) -> Answer:
        floods.append(Endless(head, piece, most=400 * MIB // len(piece)))
        return Answer(floods[-1], status, headers)

    async with open_siege(victim, answer) as siege:

        async def strike() -> Run:
            return await siege.run("strike", siege.good.url)

        with victim.growth() as growth:
            runs = await siege.withstand(strike, lives=1)
    for run in runs:
        assert run.last["status"] == "error" or flood == "what comes after the end", run.last
    assert max(flood.reached for flood in floods) * len(piece) < MOST_TAKEN
    assert growth.bytes < MOST_GROWN


async def test_deadline_ends_a_run_whose_model_never_pauses() -> None:
    _, headers, head, piece = FLOODS["comments"]
    floods = Endless(head, piece)
    async with open_upstream([Answer(floods, headers=headers)]) as model:
        async with open_service(model, run_timeout_ms=200) as service:
            run = await service.run()
        await model.wait_for(lambda model: not model.open_connections)
    assert run.last["code"] == "deadline_exceeded"


async def test_list_of_models_without_end_is_given_up() -> None:
    blanks = Endless(b'{"data":[', b" " * 65536, most=400 * MIB // 65536)
    async with open_upstream([], models_script=[Answer(blanks, headers=JSON)]) as model, open_service(model) as service:
        response = await service.client.get("/v1/models")
        await model.wait_for(lambda model: not model.open_connections)
    assert response.json()["data"] == []
    assert blanks.reached * 65536 < MOST_TAKEN
