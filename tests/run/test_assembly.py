"""Fragments of calls, as providers send them, become the calls that were meant."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import CallFragment
from app.run.assembly import CallAssembly

F = CallFragment
TIN = '{"q":"tin"}'
ZINC = '{"q":"zinc"}'

ROWS = {
    "whole": ([F(0, "c1", "look", TIN)], [("look", TIN)]),
    "in pieces": ([F(0, "c1", "look", '{"q":'), F(0, None, None, '"tin"}')], [("look", TIN)]),
    "no index at all": ([F(None, "c1", "look", ""), F(None, None, None, TIN)], [("look", TIN)]),
    "no index, two ids": ([F(None, "c1", "look", TIN), F(None, "c2", "look", ZINC)], [("look", TIN), ("look", ZINC)]),
    "no index, id repeated": ([F(None, "c1", "look", '{"q":'), F(None, "c1", None, '"tin"}')], [("look", TIN)]),
    "index always 0, other ids": (
        [F(0, "c1", "look", TIN), F(0, "c2", "clock", "{}")],
        [("look", TIN), ("clock", "{}")],
    ),
    "index but no id": ([F(0, None, "clock", ""), F(0, None, None, "{}")], [("clock", "{}")]),
    "index always 0, no ids": ([F(0, None, "look", TIN), F(0, None, "clock", "{}")], [("look", TIN), ("clock", "{}")]),
    "neither index nor id": (
        [F(None, None, "look", TIN), F(None, None, "clock", "{}")],
        [("look", TIN), ("clock", "{}")],
    ),
    "neither, same tool": ([F(None, None, "look", TIN), F(None, None, "look", ZINC)], [("look", TIN), ("look", ZINC)]),
    "empty id and name later": ([F(0, "c1", "look", ""), F(0, "", "", TIN)], [("look", TIN)]),
    "name repeated": ([F(0, "c1", "look", '{"q":'), F(0, "c1", "look", '"tin"}')], [("look", TIN)]),
    "name in pieces": ([F(0, "c1", "lo", ""), F(0, None, "ok", TIN)], [("look", TIN)]),
    "name growing": ([F(0, "c1", "lo", ""), F(0, None, "look", TIN)], [("look", TIN)]),
    "index with holes": ([F(1, "c1", "look", TIN), F(4, "c2", "clock", "{}")], [("look", TIN), ("clock", "{}")]),
    "interleaved": (
        [
            F(0, "c1", "look", '{"q":'),
            F(1, "c2", "look", '{"q":'),
            F(0, None, None, '"tin"}'),
            F(1, None, None, '"zinc"}'),
        ],
        [("look", TIN), ("look", ZINC)],
    ),
    "flushed once more": ([F(0, "c1", "look", TIN), F(0, None, None, TIN)], [("look", TIN)]),
    "flushed once more with its name": ([F(0, None, "look", TIN), F(0, None, "look", TIN)], [("look", TIN)]),
    "same id, two indices": ([F(0, "c1", "look", TIN), F(1, "c1", "look", ZINC)], [("look", TIN), ("look", ZINC)]),
    "empty placeholder": ([F(0, "c0", None, ""), F(1, "c1", "look", TIN)], [("look", TIN)]),
    "back to an earlier call after an id took its index": (
        [F(0, "c1", "look", TIN), F(0, "c2", "look", '{"q":'), F(0, None, None, '"zinc"}')],
        [("look", TIN), ("look", ZINC)],
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_calls_are_the_ones_meant(row: tuple[list[CallFragment], list[tuple[str, str]]]) -> None:
    fragments, wanted = row
    assembly = CallAssembly()
    for fragment in fragments:
        assembly.add(fragment)
    calls = assembly.calls("tool_calls", taken_ids=())
    assert [(call.name, call.arguments_raw) for call in calls] == wanted
    assert all(call.fault is None for call in calls)
    assert len({call.id for call in calls}) == len(calls)


@given(st.lists(st.integers(min_value=1, max_value=len(TIN) - 1), max_size=5))
def test_any_split_of_the_arguments_gives_the_same_call(cuts: list[int]) -> None:
    edges = [0, *sorted(set(cuts)), len(TIN)]
    pieces = [TIN[start:end] for start, end in itertools.pairwise(edges)]
    assembly = CallAssembly()
    for number, piece in enumerate(pieces):
        assembly.add(F(0, "c1" if number == 0 else None, "look" if number == 0 else None, piece))
    (call,) = assembly.calls("tool_calls", taken_ids=())
    assert call.arguments == {"q": "tin"}


def test_ids_that_the_conversation_has_are_not_given_again() -> None:
    assembly = CallAssembly()
    assembly.add(F(0, "call_0", "look", TIN))
    (call,) = assembly.calls("tool_calls", taken_ids={"call_0"})
    assert call.id != "call_0"
    assert call.original_id == "call_0"


@pytest.mark.parametrize(("levels", "is_usable"), [(60, True), (70, False), (960, False), (5000, False)])
def test_arguments_that_nest_too_deep_are_a_fault(levels: int, is_usable: bool) -> None:
    assembly = CallAssembly()
    assembly.add(F(0, "c1", "look", '{"a":' + "[" * levels + "]" * levels + "}"))
    (call,) = assembly.calls("tool_calls", taken_ids=())
    assert (call.fault is None) is is_usable


@pytest.mark.parametrize("raw", ['{"a":"\ud800"}', '{"a":"\\ud800"}', '{"a":' + "[" * 100_000])
def test_arguments_that_no_json_text_can_carry_are_a_fault_or_are_made_text(raw: str) -> None:
    assembly = CallAssembly()
    assembly.add(F(0, "c1", "look", raw))
    (call,) = assembly.calls("tool_calls", taken_ids=())
    call.arguments_raw.encode()
    assert call.fault is not None or call.arguments == {"a": "\ufffd"}


@pytest.mark.parametrize(
    ("finish", "arguments", "is_executed"),
    [
        ("stop", "", True),
        (None, " ", True),
        ("tool_calls", TIN, True),
        ("a word of its own", TIN, True),
        ("a word of its own", "", False),
        ("length", TIN, False),
        ("content_filter", TIN, False),
        ("content_filter", "", False),
        ("abort", "", False),
        ("cancelled", "{}", False),
    ],
)
def test_calls_are_executed_only_when_they_were_completely_received(
    finish: str | None, arguments: str, is_executed: bool
) -> None:
    assembly = CallAssembly()
    assembly.add(F(0, "c1", "look", arguments))
    (call,) = assembly.calls(finish, taken_ids=())
    assert (call.fault is None) is is_executed


def test_calls_that_become_whole_before_anyone_asks_are_not_under_way() -> None:
    assembly = CallAssembly()
    for fragment in (
        F(0, "c1", "look", '{"q":'),
        F(1, "c2", "clock", "{}"),
        F(0, None, None, "1}"),
        F(2, "c3", "a", "{"),
    ):
        assembly.add(fragment)
    told = assembly.under_way({"look", "clock"})
    calls = assembly.calls("tool_calls", taken_ids=())
    assert told == [(calls[2].uuid, "a")]
    assert assembly.under_way({"look", "clock"}) == []
    assert len({call.uuid for call in calls}) == 3
