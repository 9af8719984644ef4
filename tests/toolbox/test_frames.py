"""Event streams and JSON of servers on their way to the SDK: what is mended, what is left out, and what is bounded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import jsonrpc_message_adapter

from app.toolbox.frames import Budget, Budgets, Frames, clean_json

RESULT: Any = {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}
PING: Any = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
CHANGED: Any = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
ODD: Any = {"odd": 1}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def budgets(clock: Clock | None = None, *, unasked: int = 5, questions: int = 5) -> Budgets:
    at = clock or Clock()
    return Budgets(Budget(unasked, 1, at), Budget(questions, 1, at))


def frames(
    request_id: Any = None, *, limit: int = 10_000, is_asked: bool = True, has_endpoint: bool = False, **more: Any
) -> Frames:
    return Frames(limit, budgets(**more), request_id=request_id, is_asked=is_asked, has_endpoint=has_endpoint)


def event(message: Any, *fields: str) -> bytes:
    data = message if isinstance(message, str) else json.dumps(message)
    return "".join(f"{line}\n" for line in (*fields, f"data: {data}", "")).encode()


def messages(stream: bytes) -> list[Any]:
    """Read what the SDK would be given."""
    lines = stream.decode().split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def passed(frames: Frames, stream: bytes) -> list[Any]:
    return messages(frames.take(stream) + frames.rest())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_events_are_read_whatever_ends_their_lines(end: str, mark: str) -> None:
    stream = (mark + event(RESULT, ": hello", "event: message", "id: e1").decode().replace("\n", end)).encode()
    reader = frames(7)
    whole = reader.take(stream) + reader.rest()
    assert messages(whole) == [RESULT]
    assert b"id: e1\n" in whole


@given(st.data())
def test_stream_is_the_same_however_it_is_cut(data: st.DataObject) -> None:
    stream = "".join(
        event(message, "id: 1").decode().replace("\n", data.draw(st.sampled_from(["\n", "\r\n", "\r"])))
        for message in (PING, CHANGED, ODD, RESULT)
    ).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, out = frames(7), b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        out += reader.take(stream[start:end])
    assert messages(out + reader.rest()) == [PING, CHANGED, RESULT]


@pytest.mark.parametrize(
    "odd",
    [
        "{}",
        "ping",
        "[]",
        "null",
        "5",
        '"text"',
        '{"type":"ping"}',
        json.dumps({**RESULT, "id": 8}),
        json.dumps({**RESULT, "id": None}),
        json.dumps({**RESULT, "id": True}),
        json.dumps({**RESULT, "result": "fine"}),
        json.dumps({"jsonrpc": "2.0", "id": 7, "error": {"code": "x", "message": "m"}}),
        json.dumps({"jsonrpc": "2.0", "id": 7, "error": "broken"}),
        json.dumps({**PING, "params": []}),
        json.dumps({**PING, "id": None, "method": 5}),
        json.dumps({"jsonrpc": "1.0", "id": 7, "result": {}}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "a log line"}}),
        '{"jsonrpc": "2.0", "id": 7, "result": {"content": [}',
        "[" * 5000,
    ],
)
def test_what_is_no_message_to_us_is_left_out_and_the_answer_after_it_is_read(odd: str) -> None:
    assert passed(frames(7), event(odd) + event(RESULT)) == [RESULT]


@pytest.mark.parametrize("answered", [7, "7"])
def test_answer_with_the_id_in_another_type_is_the_answer(answered: Any) -> None:
    assert passed(frames(7), event({**RESULT, "id": answered})) == [{**RESULT, "id": answered}]


def test_error_without_an_id_is_an_answer() -> None:
    told = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "cannot read it"}}
    assert passed(frames(7), event(told)) == [told]


@pytest.mark.parametrize(
    ("params", "read"),
    [
        ({"progressToken": 1, "progress": 2}, {"progressToken": 1, "progress": 2}),
        ({"progressToken": 1.0, "progress": 2}, {"progressToken": 1, "progress": 2}),
        ({"progressToken": 1, "progress": 2, "total": 10**400}, {"progressToken": 1, "progress": 2}),
        ({"progressToken": 1, "progress": 2, "total": "many"}, {"progressToken": 1, "progress": 2}),
        ({"progressToken": 1, "progress": 10**400}, None),
        ({"progressToken": 1, "progress": True}, None),
        ({"progressToken": 1}, None),
    ],
)
def test_progress_has_numbers_that_can_be_counted_with(params: Any, read: Any) -> None:
    got = passed(frames(7), event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
    assert [message["params"] for message in got] == ([] if read is None else [read])


@pytest.mark.parametrize(
    ("retry", "told"),
    [
        ("500", 500),
        ("0", 100),
        ("9" * 400, None),
        ("60000", 30_000),
        ("-5", None),
        ("1_0", None),
        ("soon", None),
        ("1.5", None),
    ],
)
def test_time_to_come_back_is_a_sane_one_or_none(retry: str, told: int | None) -> None:
    out = frames(7).take(event(RESULT, f"retry: {retry}"))
    assert (b"retry:" in out) == (told is not None)
    assert told is None or f"retry: {told}\n".encode() in out


def test_event_that_only_numbers_the_stream_goes_on() -> None:
    assert frames(7).take(b"id: e1\ndata:\n\n") == b"id: e1\n\n"
    assert frames(7).take("id: é\ndata:\n\n".encode()) == b""


def test_endpoint_is_taken_once_and_over_the_old_transport_only() -> None:
    endpoint = b"event: endpoint\nretry: -5\ndata: /messages?x=1\n\n"
    reader = frames(has_endpoint=True)
    assert reader.take(endpoint) == b"event: endpoint\ndata: /messages?x=1\n\n"
    assert reader.take(endpoint) == b""
    assert frames().take(endpoint) == b""
    assert messages(frames(7).take(b"event: endpoint\nevent:\ndata: {}\n\n")) == []


def test_numbers_that_json_does_not_know_hide_nothing() -> None:
    for hidden in ('{"jsonrpc":"2.0","id":"srv-4","result":{"a":NaN}}', '{"jsonrpc":"2.0","id":7,"result":5,"a":NaN}'):
        assert passed(frames(7), event(hidden)) == []
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":%s,"x":NaN}}'
    assert passed(frames(7), event(progress % ("9" * 400))) == []
    assert passed(frames(7), event('{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}')) == [
        {"jsonrpc": "2.0", "id": 7, "result": {"a": None}}
    ]


def test_null_params_are_none() -> None:
    for message in (PING, CHANGED):
        assert passed(frames(7), event({**message, "params": None})) == [{**message, "params": None}]


def test_event_that_is_cut_off_leaves_nothing_behind() -> None:
    reader = frames(7)
    assert reader.take(b"id: e1\ndata:\n\n") == b"id: e1\n\n"
    assert reader.take(event(RESULT, "id: e2", "retry: 500")[:40]) + reader.rest() == b""


def test_byte_order_mark_may_be_cut() -> None:
    stream, reader = b"\xef\xbb\xbf" + event(RESULT), frames(7)
    assert messages(b"".join(reader.take(stream[at : at + 1]) for at in range(len(stream)))) == [RESULT]


def test_line_that_ends_with_a_carriage_return_ends_at_once() -> None:
    assert messages(frames(7).take(event(RESULT).replace(b"\n", b"\r"))) == [RESULT]


def test_last_event_needs_no_blank_line() -> None:
    assert passed(frames(7), event(RESULT).rstrip(b"\n")) == [RESULT]


@pytest.mark.parametrize("piece", [b"data: " + b"a" * 60 + b"\n", b"a" * 60, b"data: a\n"])
def test_event_that_is_too_large_is_told(piece: bytes) -> None:
    reader = frames(7, limit=1000)
    for _ in range(200):
        reader.take(piece)
    assert reader.is_too_large


def test_comments_take_no_room() -> None:
    reader = frames(7, limit=1000)
    for _ in range(200):
        reader.take(b": a comment that says nothing\n")
    assert not reader.is_too_large
    assert messages(reader.take(event(RESULT))) == [RESULT]


HALVES = ['"cut \\ud83d"', '"\\ude00 cut"', '{"a": ["\\uD83D\\uD83D\\uDE00"]}', '"\\ud83dx\\ude00"']


@pytest.mark.parametrize("text", HALVES)
def test_half_a_character_becomes_a_mark(text: str) -> None:
    cleaned = clean_json(text.encode())
    assert "\ufffd" in cleaned.decode()
    json.loads(cleaned)


@pytest.mark.parametrize("text", ['"\\ud83d\\ude00"', '{"a": 1}', '"ä"', '"\\\\u0041"', ""])
def test_what_is_fine_stays_as_it_is(text: str) -> None:
    assert clean_json(text.encode()) == text.encode()


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", b'"caf\xe9"', b'"\xff\xfe"'])
def test_text_is_made_valid(body: bytes) -> None:
    json.loads(clean_json(body))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=True) | st.integers() | st.text(), st.lists, max_leaves=8
    )
)
def test_whatever_goes_on_is_a_message_that_the_sdk_reads(value: Any) -> None:
    for message in (
        {"jsonrpc": "2.0", "id": 7, "result": {"a": value}},
        {"jsonrpc": "2.0", "id": value, "method": "x"},
    ):
        out = frames(7).take(event(json.dumps(message)))
        for line in out.splitlines():
            if line.startswith(b"data: "):
                jsonrpc_message_adapter.validate_json(line.removeprefix(b"data: "), by_name=False)


# What nobody asked for


def test_flood_on_the_connections_own_stream_is_told_and_ends_it() -> None:
    reader = frames(is_asked=False, unasked=5)
    reader.take(event(CHANGED) * 4)
    assert not reader.is_flood
    reader.take(event(CHANGED) * 4)
    assert reader.is_flood


def test_flood_is_counted_wherever_it_is_cut_and_however_empty_it_is() -> None:
    for piece in (b"da", b": comment\n", b"\n"):
        reader = frames(is_asked=False, unasked=5)
        for _ in range(40_000):
            reader.take(piece)
            if reader.is_flood:
                break
        assert reader.is_flood


def test_room_for_what_is_unasked_comes_back_with_time() -> None:
    clock = Clock()
    all_of_them = budgets(clock, unasked=5)
    reader = Frames(10_000, all_of_them, is_asked=False)
    reader.take(event(CHANGED) * 4)
    clock.now = 10.0
    reader.take(event(CHANGED) * 4)
    assert not reader.is_flood


def test_answer_to_a_call_may_tell_its_progress_as_often_as_it_likes() -> None:
    progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 7, "progress": 1}}
    reader = frames(7, unasked=5)
    assert len(messages(reader.take(event(progress) * 100))) == 100
    assert not reader.is_flood


def test_what_is_not_let_through_costs_no_room() -> None:
    clock = Clock()
    budget = Budget(5, 1, clock)
    assert sum(budget.takes(1) for _ in range(100)) == 5
    clock.now = 3.0
    assert sum(budget.takes(1) for _ in range(100)) == 3


def test_requests_of_a_server_are_heard_so_often_only() -> None:
    assert len(passed(frames(7, questions=5), event(PING) * 50 + event(RESULT))) == 6
