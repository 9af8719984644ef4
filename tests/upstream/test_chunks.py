"""A stream is read whole however it is framed and cut, and its ending is told apart."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import (
    ContextLengthExceeded,
    RunError,
    UpstreamAuth,
    UpstreamFailed,
    UpstreamIncomplete,
    UpstreamRateLimited,
)
from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, TextDelta, Thought, Usage
from app.upstream.chunks import MAX_FRAME_BYTES, ChunkDecoder
from app.upstream.faults import Scrub
from tests.fakes.upstream import DONE, call, chunk, end, frame, reasoning, sse, text, usage

STOP = Finish("stop")
HI = [TextDelta("Hi"), STOP]


def decode(*pieces: bytes) -> tuple[list[Delta], ChunkDecoder]:
    decoder = ChunkDecoder()
    deltas = [delta for piece in pieces for delta in decoder.feed(piece)] + decoder.finish()
    return deltas, decoder


ONE_CHUNK = json.dumps(text("Hi")).encode()
END_CHUNK = json.dumps(end()).encode()

FRAMINGS = {
    "lines end with LF": b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n",
    "lines end with CRLF": b"data: %b\r\n\r\ndata: %b\r\n\r\ndata: [DONE]\r\n\r\n",
    "lines end with CR": b"data: %b\r\rdata: %b\r\rdata: [DONE]\r\r",
    "no space after data:": b"data:%b\n\ndata:%b\n\ndata:[DONE]\n\n",
    "comments before, between and after": b": hello\n\n:\n\ndata: %b\n\n: PROCESSING\n\ndata: %b\n\n:\n",
    "other fields": b"retry: 1\nid: 7\nevent: message\ndata: %b\nid: 8\n\nevent: x\ndata: %b\n\n",
    "a byte order mark": b"\xef\xbb\xbfdata: %b\n\ndata: %b\n\n",
    "no blank lines": b"data: %b\ndata: %b\ndata: [DONE]\n",
    "no line end at the end": b"data: %b\n\ndata: %b",
    "[DONE] without a line end": b"data: %b\n\ndata: %b\n\ndata: [DONE]",
    "no [DONE]": b"data: %b\n\ndata: %b\n\n",
    "blanks before it": b"\n\n\r\n  \ndata: %b\n\ndata: %b\n\n",
    "no prefix at all": b"%b\n%b\n",
    "more after [DONE]": b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\ndata: {bad\n\ndata: " + ONE_CHUNK + b"\n\n",
    "a bad chunk between": b'data: %b\n\ndata: {"choices": [{\n\ndata: %b\n\n',
    "a bad chunk between, no blank lines": b"data: %b\ndata: {bad\ndata: %b\n",
    "data that is no object": b'data: 7\n\ndata: null\n\ndata: %b\n\ndata: "x"\n\ndata: %b\n\n',
    "an event that is no chunk": b'data: {"type": "ping"}\n\ndata: %b\n\ndata: %b\n\n',
}


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS.keys())
def test_the_framing_does_not_matter(framing: bytes) -> None:
    body = framing % (ONE_CHUNK, END_CHUNK)
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        deltas, decoder = decode(*pieces)
        assert deltas == HI
        assert decoder.fault is None


def test_data_over_several_lines_is_one_chunk() -> None:
    lines = json.dumps(text("Hi"), indent=1).encode().splitlines()
    body = b"".join(b"data: " + line + b"\r\n" for line in lines) + b"\r\n"
    for pieces in (
        [body, sse(end())],
        [body[:200], body[200:], sse(end())],
        [bytes([byte]) for byte in body + sse(end())],
    ):
        assert decode(*pieces)[0] == HI


def test_a_character_split_over_reads_is_whole() -> None:
    body = 'data:{"choices":[{"delta":{"content":"café"}}]}\r\n\r\n'.encode()
    at = body.index(b"\xc3") + 1
    assert decode(body[:at], body[at:])[0] == [TextDelta("café")]


def test_each_read_gives_what_it_brought() -> None:
    decoder = ChunkDecoder()
    assert decoder.feed(frame(text("a")) + frame(text("b"))[:-1]) == [TextDelta("a"), TextDelta("b")]
    assert decoder.feed(b"\n" + frame(text("c"))) == [TextDelta("c")]
    assert not decoder.is_finished
    assert decoder.feed(frame(end("length"))) == [Finish("length")]
    assert decoder.is_finished
    assert not decoder.is_over
    assert decoder.feed(frame(usage(4, 1)) + DONE) == [Usage(4, 1, 5)]
    assert decoder.is_over


MIXED = sse(
    chunk({"role": "assistant", "content": None}),
    reasoning("so…", "reasoning"),
    text("Grüße 🎲"),
    call(0, "c1", "look_up", '{"q":'),
    call(0, None, None, '"tin"}'),
    end("tool_calls"),
    usage(9, 4, prompt_tokens_details={"cached_tokens": 3}),
)
VARIANTS = [MIXED, MIXED.replace(b"\n", b"\r\n"), MIXED.replace(b"\n", b"\r"), MIXED.replace(b"data: ", b": x\ndata:")]


@given(st.sampled_from(VARIANTS), st.lists(st.integers(0, max(map(len, VARIANTS)))))
def test_any_cut_gives_the_same_deltas(body: bytes, places: list[int]) -> None:
    cuts = sorted(place for place in places if place <= len(body))
    pieces = [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    deltas, decoder = decode(*pieces)
    assert deltas == [
        ReasoningDelta("so…"),
        TextDelta("Grüße 🎲"),
        CallFragment(0, "c1", "look_up", '{"q":'),
        CallFragment(0, None, None, '"tin"}'),
        Finish("tool_calls"),
        Usage(9, 4, 13, cached_tokens=3),
        Thought({"reasoning": "so…"}),
    ]
    assert decoder.fault is None


@given(st.lists(st.binary(max_size=200)))
def test_no_bytes_make_the_decoder_raise(pieces: list[bytes]) -> None:
    deltas, decoder = decode(*pieces)
    assert deltas == []
    assert isinstance(decoder.fault, RunError)


KEYS = re.findall(
    r"\w+",
    """
    choices delta message index finish_reason usage prompt_tokens prompt_tokens_details content type text thinking
    reasoning reasoning_details tool_calls function_call function name arguments id extra
    """,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_odd_types_cost_their_chunk_at_most(delta: Any, whole: Any) -> None:
    deltas, decoder = decode(sse(chunk(delta), {"choices": whole}, whole, text("Hi"), done=False))
    assert TextDelta("Hi") in deltas
    assert all(isinstance(item.text, str) for item in deltas if isinstance(item, TextDelta | ReasoningDelta))
    assert decoder.fault is None or isinstance(decoder.fault, UpstreamIncomplete)


def test_a_lone_surrogate_is_read_leniently() -> None:
    deltas, decoder = decode(b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n', sse(end()))
    assert deltas == [TextDelta("a\ud83d"), STOP]
    assert decoder.skipped == 0


def test_a_chunk_that_cannot_be_read_is_counted() -> None:
    _, decoder = decode(frame(text("Hi")), b"data: {bad\n\ndata: {worse\n\n", sse(end()))
    assert decoder.skipped == 2


def test_bytes_that_are_no_text_do_not_end_the_stream() -> None:
    deltas, _ = decode(b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n', sse(end()))
    assert deltas == [TextDelta("a\ufffd"), STOP]


BODY = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
CALLING = {
    "choices": [
        {"message": {"content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]}}
    ]
}
BODIES: dict[str, tuple[bytes, Sequence[Delta]]] = {
    "compact": (json.dumps(BODY).encode(), HI),
    "indented": (json.dumps(BODY, indent=2).encode(), HI),
    "after blanks and a mark": (b"\xef\xbb\xbf\n  " + json.dumps(BODY, indent=2).encode() + b"\n", HI),
    "without a finish reason": (json.dumps(CALLING).encode(), [CallFragment(None, "c1", "f", "{}")]),
}


@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=BODIES.keys())
def test_a_body_that_is_no_stream_is_one_chunk(body: bytes, expected: Sequence[Delta]) -> None:
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        deltas, decoder = decode(*pieces)
        assert deltas == expected
        assert decoder.fault is None


ERRORS: dict[str, tuple[bytes, type[RunError], str]] = {
    "object": (sse({"error": {"message": "boom", "code": 500}}), UpstreamFailed, "boom"),
    "text": (sse({"error": "boom"}), UpstreamFailed, "boom"),
    "event: error": (b'event: error\ndata: {"message": "boom"}\n\n', UpstreamFailed, "boom"),
    "event: error with text": (b"event: error\ndata: boom\n\n", UpstreamFailed, "boom"),
    "no prefix": (b": hi\n\n" + b'{"error": {"message": "boom"}}\n', UpstreamFailed, "boom"),
    "object named error": (sse({"object": "error", "message": "boom", "code": 400}), UpstreamFailed, "boom"),
    "type named error": (sse({"type": "error", "error": {"message": "boom"}}), UpstreamFailed, "boom"),
    "in the choice": (
        sse({"choices": [{"delta": {}, "error": {"message": "boom"}, "finish_reason": "error"}]}),
        UpstreamFailed,
        "boom",
    ),
    "finish reason": (sse(end("error")), UpstreamFailed, "reported an error"),
    "quota by code": (sse({"error": {"message": "quota used up", "code": 429}}), UpstreamRateLimited, "quota used up"),
    "quota by type": (sse({"error": {"message": "slow", "type": "rate_limit_error"}}), UpstreamRateLimited, "slow"),
    "context by code": (
        sse({"error": {"message": "no", "code": "context_length_exceeded"}}),
        ContextLengthExceeded,
        "no",
    ),
    "context by words": (
        sse({"error": {"message": "This model's maximum context length is 8 tokens."}}),
        ContextLengthExceeded,
        "maximum context length",
    ),
    "key": (sse({"error": {"message": "who?", "code": "invalid_api_key"}}), UpstreamAuth, "who?"),
    "body": (json.dumps({"error": {"message": "boom"}}).encode(), UpstreamFailed, "boom"),
    "indented body": (json.dumps({"error": {"message": "boom"}}, indent=2).encode(), UpstreamFailed, "boom"),
    "body that is a list": (json.dumps([{"error": {"message": "boom"}}], indent=2).encode(), UpstreamFailed, "boom"),
    "body with a detail": (b'{"detail": "boom"}', UpstreamFailed, "boom"),
    "in the last line, cut": (b'data: {"error": {"message": "boom"}}', UpstreamFailed, "boom"),
}


@pytest.mark.parametrize(("body", "kind", "words"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_in_the_stream_is_told_with_the_providers_words(body: bytes, kind: type[RunError], words: str) -> None:
    _, decoder = decode(body)
    assert type(decoder.fault) is kind
    assert words in str(decoder.fault)


def test_text_before_an_error_in_the_same_read_is_kept() -> None:
    decoder = ChunkDecoder()
    assert decoder.feed(sse(text("Hi"), {"error": "boom"}, text("no"))) == [TextDelta("Hi")]
    assert isinstance(decoder.fault, UpstreamFailed)
    assert decoder.is_over
    assert decoder.feed(sse(text("no"))) == []


def test_an_error_never_shows_the_key() -> None:
    decoder = ChunkDecoder(Scrub(secrets=("open sesame",)))
    decoder.feed(sse({"error": "the key <b>open sesame</b> is wrong"}))
    assert str(decoder.fault) == "The model endpoint reported an error: the key [redacted] is wrong"


ENDINGS: dict[str, tuple[bytes, type[RunError] | None]] = {
    "[DONE] without a finish reason": (sse(text("Hi")), None),
    "finish reason without [DONE]": (sse(text("Hi"), end(), done=False), None),
    "an answer of nothing": (sse(end()), None),
    "cut in the text": (sse(text("Hi"), done=False), UpstreamIncomplete),
    "cut in a chunk": (frame(text("Hi")) + frame(end())[:20], UpstreamIncomplete),
    "cut after the role": (sse(chunk({"role": "assistant"}), done=False), UpstreamIncomplete),
    "messages piece by piece, cut": (sse({"choices": [{"message": {"content": "H"}}]}, done=False), UpstreamIncomplete),
    "no bytes": (b"", UpstreamFailed),
    "comments only": (b": ping\n\n: ping\n\n", UpstreamFailed),
    "[DONE] only": (DONE, UpstreamFailed),
    "usage only": (sse(usage(1, 0)), UpstreamFailed),
    "nothing readable": (b"data: {x\n\ndata: {y\n\ndata: [DONE]\n\n", UpstreamFailed),
    "a page": (b"<!doctype html><html>sign in</html>", UpstreamFailed),
    "plain words": (b"Internal Server Error", UpstreamFailed),
    "half a body": (b'{"choices": [{"message": {"content": "Hi', UpstreamFailed),
    "JSON of another kind": (b"[1, 2]", UpstreamFailed),
}


@pytest.mark.parametrize(("body", "kind"), ENDINGS.values(), ids=ENDINGS.keys())
def test_the_ending_is_told_apart(body: bytes, kind: type[RunError] | None) -> None:
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        _, decoder = decode(*pieces)
        assert (None if decoder.fault is None else type(decoder.fault)) is kind


ENDLESS = {
    "a line": b"x" * 65536,
    "an event": b"data: {" + b"x" * 65529 + b"\n",
    "a body": b"[" + b"x" * 65534 + b"\n",
}


@pytest.mark.parametrize("piece", ENDLESS.values(), ids=ENDLESS.keys())
def test_an_event_without_end_is_bounded(piece: bytes) -> None:
    decoder = ChunkDecoder()
    reads = 0
    while decoder.fault is None:
        decoder.feed(piece)
        reads += 1
        assert reads <= MAX_FRAME_BYTES // len(piece) + 2
    assert isinstance(decoder.fault, UpstreamFailed)
    assert reads >= MAX_FRAME_BYTES // len(piece)
    # What was kept is let go.
    assert not decoder._partial
    assert not decoder._data
    assert not decoder._body


def test_a_long_stream_is_not_an_event_without_end() -> None:
    decoder = ChunkDecoder()
    pieces = frame(text("x" * 60_000))
    for _ in range(2 * MAX_FRAME_BYTES // len(pieces)):
        for at in range(0, len(pieces), 1 + len(pieces) // 3):
            decoder.feed(pieces[at : at + 1 + len(pieces) // 3])
    assert decoder.fault is None
