"""Conversations as callers send them become ones that a provider takes, and lose nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.run.history import NO_RESULT, valid_history

USER = {"role": "user", "content": "go on"}


def asks(*ids: str, **fields: Any) -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def gives(id_: str, content: str = "r", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content, **fields}


UNCHANGED: list[list[dict[str, Any]]] = [
    [],
    [USER],
    [USER, asks("a", "b"), gives("a"), gives("b"), {"role": "assistant", "content": "x", "refusal": None}],
    [asks("a"), gives("a"), asks("b"), gives("b"), USER],
    [asks("a", extra_content={"x": 1}), gives("a", name="f")],
    [{"role": "assistant", "content": "x", "tool_calls": []}],
    [{"role": "assistant", "content": "x", "tool_calls": None}],
]


@pytest.mark.parametrize("messages", UNCHANGED)
def test_valid_history_is_left_as_it_is(messages: list[dict[str, Any]]) -> None:
    assert list(valid_history(messages)) == messages


def test_call_without_a_result_is_answered_with_a_placeholder() -> None:
    assert valid_history([asks("a", "b"), gives("b"), USER]) == (
        asks("a", "b"),
        gives("a", NO_RESULT),
        gives("b"),
        USER,
    )


def test_results_stand_right_after_their_calls_in_call_order() -> None:
    assert valid_history([asks("a", "b"), USER, gives("b", "2"), gives("a", "1")]) == (
        asks("a", "b"),
        gives("a", "1"),
        gives("b", "2"),
        USER,
    )


def test_result_without_a_call_gets_one_and_is_kept() -> None:
    call, result, user = valid_history([gives("x", "kept", name="f"), USER])
    assert call["tool_calls"][0]["function"]["name"] == "f"
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "x"
    assert (result["content"], user) == ("kept", USER)


def test_ids_that_come_again_are_told_apart_and_keep_their_results() -> None:
    first, one, second, two = valid_history([asks("a"), gives("a", "1"), asks("a"), gives("a", "2")])
    assert first["tool_calls"][0]["id"] == one["tool_call_id"] == "a"
    assert second["tool_calls"][0]["id"] == two["tool_call_id"] != "a"
    assert (one["content"], two["content"]) == ("1", "2")


def test_second_result_of_a_call_is_kept_as_one_of_its_own() -> None:
    told = valid_history([asks("a"), gives("a", "1"), gives("a", "2")])
    assert [message["content"] for message in told if message["role"] == "tool"] == ["1", "2"]


IDS = st.sampled_from(["a", "b", "c", ""])
MESSAGES = st.lists(
    st.one_of(
        st.just(USER),
        st.lists(IDS, min_size=1, max_size=3).map(lambda ids: asks(*ids)),
        st.builds(gives, IDS, st.text()),
    ),
    max_size=8,
)


@given(MESSAGES)
def test_any_history_becomes_valid_and_loses_no_result(messages: list[dict[str, Any]]) -> None:
    told = list(valid_history(messages))
    calls = [call["id"] for message in told for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in told if message["role"] == "tool"]
    assert calls == results
    assert len(set(calls)) == len(calls)
    given_ = sorted(message["content"] for message in messages if message["role"] == "tool")
    kept = sorted(m["content"] for m in told if m["role"] == "tool" and m["content"] != NO_RESULT)
    assert kept == given_
    assert list(valid_history(told)) == told
    expected: list[str] = []
    for message in told:
        if message["role"] == "tool":
            assert message["tool_call_id"] == expected.pop(0)
        else:
            assert expected == []
            expected = [call["id"] for call in message.get("tool_calls") or ()]
