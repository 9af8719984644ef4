"""What a stream means: content, reasoning, calls, choices and counts in all the shapes that providers send."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, TextDelta, Thought, Usage
from app.upstream.chunks import ChunkDecoder
from app.upstream.deltas import finish_word
from tests.fakes.upstream import call, chunk, end, sse, text, usage

STOP = Finish("stop")
HI = [TextDelta("Hi"), STOP]


def decode(*pieces: bytes) -> tuple[list[Delta], ChunkDecoder]:
    decoder = ChunkDecoder()
    deltas = [delta for piece in pieces for delta in decoder.feed(piece)] + decoder.finish()
    return deltas, decoder


def deltas_of(*chunks: Any) -> list[Delta]:
    """Decode a whole stream and leave the finish reason out."""
    deltas, decoder = decode(sse(*chunks, end("stop")))
    assert decoder.fault is None
    deltas = [*filter(lambda delta: not isinstance(delta, Thought), deltas)]
    assert deltas.pop(-1 if not isinstance(deltas[-1], Usage) else -2) == STOP
    return deltas


def fragments_of(*chunks: Any) -> list[tuple[int | None, str | None, str | None, str]]:
    found = deltas_of(*chunks)
    return [(item.index, item.id, item.name, item.arguments) for item in found if isinstance(item, CallFragment)]


CONTENTS: dict[str, tuple[Any, list[Delta]]] = {
    "text": ("Hi", [TextDelta("Hi")]),
    "empty": ("", []),
    "null": (None, []),
    "parts": ([{"type": "text", "text": "4"}, {"type": "text", "text": "2"}], [TextDelta("4"), TextDelta("2")]),
    "bare texts": (["4", "2"], [TextDelta("4"), TextDelta("2")]),
    "one part": ({"type": "text", "text": "42"}, [TextDelta("42")]),
    "a part without a type": ([{"text": "42"}], [TextDelta("42")]),
    "output text": ([{"type": "output_text", "text": "42"}], [TextDelta("42")]),
    "thinking in parts": ([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}], [ReasoningDelta("hm")]),
    "thinking as text": ([{"type": "thinking", "thinking": "hm"}], [ReasoningDelta("hm")]),
    "reasoning as text": ([{"type": "reasoning", "text": "hm"}], [ReasoningDelta("hm")]),
    "a reference": ([{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "42"}], [TextDelta("42")]),
    "a number": (7, []),
}


@pytest.mark.parametrize(("content", "expected"), CONTENTS.values(), ids=CONTENTS.keys())
def test_content_is_read_in_every_shape(content: Any, expected: Sequence[Delta]) -> None:
    assert deltas_of(chunk({"content": content})) == expected


REASONINGS: dict[str, tuple[dict[str, Any], list[Delta]]] = {
    "reasoning": ({"reasoning": "so"}, [ReasoningDelta("so")]),
    "reasoning_content": ({"reasoning_content": "so"}, [ReasoningDelta("so")]),
    "details": ({"reasoning_details": [{"type": "reasoning.text", "text": "so"}]}, [ReasoningDelta("so")]),
    "details in pieces": ({"reasoning_details": [{"text": "s"}, {"summary": "o"}]}, [ReasoningDelta("so")]),
    "the same under two keys": (
        {"reasoning": "so", "reasoning_details": [{"type": "reasoning.text", "text": "so"}]},
        [ReasoningDelta("so")],
    ),
    "the same under three": (
        {"reasoning": "so", "reasoning_content": "so", "reasoning_details": [{"text": "so"}]},
        [ReasoningDelta("so")],
    ),
    "encrypted details": ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, []),
    "before the text of the same delta": (
        {"content": "42", "reasoning": "so"},
        [ReasoningDelta("so"), TextDelta("42")],
    ),
    "empty and null": ({"reasoning": "", "reasoning_content": None, "reasoning_details": []}, []),
}


@pytest.mark.parametrize(("delta", "expected"), REASONINGS.values(), ids=REASONINGS.keys())
def test_reasoning_is_heard_once_under_each_of_its_names(delta: dict[str, Any], expected: Sequence[Delta]) -> None:
    assert deltas_of(chunk(delta)) == expected


def test_a_refusal_is_text() -> None:
    assert deltas_of(chunk({"content": None, "refusal": "I will not."})) == [TextDelta("I will not.")]


def _tools(*calls: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(calls)})


CALLS: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "whole": (call(0, "c1", "f", "{}"), [(0, "c1", "f", "{}")]),
    "no index": (_tools({"id": "c1", "function": {"name": "f", "arguments": ""}}), [(None, "c1", "f", "")]),
    "null index": (_tools({"index": None, "function": {"arguments": "x"}}), [(None, None, None, "x")]),
    "index as text": (_tools({"index": "1", "function": {"arguments": "x"}}), [(1, None, None, "x")]),
    "empty id and name": (
        _tools({"index": 0, "id": "", "type": None, "function": {"name": None, "arguments": "x"}}),
        [(0, None, None, "x")],
    ),
    "null id, empty name": (
        _tools({"index": 0, "id": None, "function": {"name": "", "arguments": "x"}}),
        [(0, None, None, "x")],
    ),
    "id as number": (_tools({"index": 0, "id": 7, "function": {"name": "f"}}), [(0, "7", "f", "")]),
    "arguments null": (
        _tools({"index": 0, "id": "c1", "function": {"name": "f", "arguments": None}}),
        [(0, "c1", "f", "")],
    ),
    "arguments an object": (
        _tools({"index": 0, "id": "c1", "function": {"name": "f", "arguments": {"q": "é"}}}),
        [(0, "c1", "f", '{"q": "é"}')],
    ),
    "two in one delta": (
        _tools({"index": 0, "id": "a", "function": {"name": "f"}}, {"index": 1, "id": "b", "function": {"name": "g"}}),
        [(0, "a", "f", ""), (1, "b", "g", "")],
    ),
    "one object instead of a list": (
        chunk({"tool_calls": {"id": "a", "function": {"name": "f", "arguments": "{}"}}}),
        [(None, "a", "f", "{}")],
    ),
    "no wrapping function": (_tools({"id": "a", "name": "f", "arguments": "{}"}), [(None, "a", "f", "{}")]),
    "empty list": (chunk({"content": "Hi", "tool_calls": []}), []),
    "null list": (chunk({"content": "Hi", "tool_calls": None}), []),
    "entries with nothing in them": (_tools({}, None, {"index": 0, "function": {}}, 5), []),
    "older function_call": (chunk({"function_call": {"name": "f", "arguments": "{"}}), [(0, None, "f", "{")]),
    "both forms of one call": (
        chunk(
            {
                "function_call": {"name": "f", "arguments": "{}"},
                "tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}],
            }
        ),
        [(0, "c1", "f", "{}")],
    ),
}


@pytest.mark.parametrize(("piece", "expected"), CALLS.values(), ids=CALLS.keys())
def test_calls_are_read_in_every_shape(piece: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    assert fragments_of(piece) == expected


def test_unknown_fields_of_a_call_are_kept() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    (fragment,) = deltas_of(call(0, "c1", "clock", "{}", extra_content=signed, note=None))
    assert isinstance(fragment, CallFragment)
    assert fragment.extra == {"extra_content": signed}


CHOICES: dict[str, tuple[list[Any], Sequence[Delta]]] = {
    "usage with no choices": ([text("Hi"), end(), usage(4, 1)], [*HI, Usage(4, 1, 5)]),
    "usage with null choices": (
        [text("Hi"), end(), chunk(choices=None, usage={"prompt_tokens": 4})],
        [*HI, Usage(4, 0, 4)],
    ),
    "usage without the key": ([text("Hi"), end(), {"usage": {"completion_tokens": 4}}], [*HI, Usage(0, 4, 4)]),
    "usage in the choice": (
        [text("Hi"), {"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 1}}]}],
        [*HI, Usage(1, 0, 1)],
    ),
    "usage that grows with each chunk": (
        [
            {**text("Hi"), "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
            {**end(), "usage": {"completion_tokens": 2}},
        ],
        [*HI, Usage(9, 2, 11)],
    ),
    "details of usage": (
        [text("Hi"), end(), usage(1, 2, completion_tokens_details={"reasoning_tokens": 1}, prompt_tokens_details=None)],
        [*HI, Usage(1, 2, 3, reasoning_tokens=1)],
    ),
    "counts that are none": (
        [
            text("Hi"),
            end(),
            chunk(choices=[], usage={"prompt_tokens": None, "completion_tokens": "x", "total_tokens": -1}),
        ],
        [*HI, Usage()],
    ),
    "filter results first, a choice without delta last": (
        [{"choices": [], "prompt_filter_results": [{}]}, text("Hi"), end(), {"choices": [{"finish_reason": None}]}],
        HI,
    ),
    "null delta": ([text("Hi"), {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}], HI),
    "finish reason with the last text": ([chunk({"content": "Hi"}, "stop")], HI),
    "finish reason said twice": ([text("Hi"), end("stop"), end("stop")], HI),
    "text after the finish reason": ([end("stop"), text("Hi")], [STOP, TextDelta("Hi")]),
    "only choice 0 is heard": (
        [{"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]}, text("Hi"), end()],
        HI,
    ),
    "null index of a choice": ([{"choices": [{"index": None, "delta": {"content": "Hi"}}]}, end()], HI),
    "one choice as an object": ([{"choices": {"delta": {"content": "Hi"}}}, end()], HI),
    "a choice that is none": ([{"choices": [None, {"delta": {"content": "Hi"}}]}, end()], HI),
    "message instead of delta": ([{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}], HI),
    "messages piece by piece": (
        [{"choices": [{"message": {"content": piece}}]} for piece in "Hi"] + [end()],
        [TextDelta("H"), TextDelta("i"), STOP],
    ),
    "message that repeats the deltas": (
        [text("Hi"), {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}],
        HI,
    ),
    "delta that is a text": ([{"choices": [{"delta": "Hi"}]}, end()], HI),
    "empty error": ([{**text("Hi"), "error": None}, {**end(), "error": {}}], HI),
}


@pytest.mark.parametrize(("chunks", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_choices_and_counts_are_read_in_every_shape(chunks: list[Any], expected: Sequence[Delta]) -> None:
    deltas, decoder = decode(sse(*chunks))
    assert deltas == expected
    assert decoder.fault is None


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("sensitive", "content_filter"),
        ("SAFETY", "content_filter"),
        ("end_turn", "stop"),
        ("tool_use", "tool_calls"),
        ("insufficient_system_resource", "abort"),
        ("network_error", "abort"),
        ("MALFORMED_FUNCTION_CALL", "abort"),
        ("server_error", "abort"),
        ("pause_turn", "abort"),
        ("timeout", "abort"),
        ("overloaded", "abort"),
        ("abort", "abort"),
        ("stop", "stop"),
        ("something_new", "something_new"),
    ],
)
def test_finish_reason_is_said_in_the_usual_word_where_there_is_one(reason: str, word: str) -> None:
    assert finish_word(reason) == word
    assert Finish(word) in decode(sse(text("Hi"), end(reason)))[0]
