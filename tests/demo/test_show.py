"""How events look in a terminal."""

import pytest

from app.demo.show import Screen, StreamEvent, event_from_text
from app.domain.jsontypes import JsonObject

WIDTH = 80
INDENT = " " * 21


def token(number: int, text: str, name: str = "stream") -> StreamEvent:
    return StreamEvent(str(number), name, {"type": name, "token": text})


def test_an_event_is_one_line_of_id_name_and_data() -> None:
    event = StreamEvent("1", "status", {"type": "status", "runId": "run_1", "status": "started"})
    assert Screen(WIDTH).show(event) == '   1  status         {"status":"started","runId":"run_1"}\n'


def test_a_line_is_cut_at_the_terminals_width() -> None:
    line = Screen(WIDTH).show(StreamEvent("1", "finalAnswer", {"text": "é" * 500}))
    assert len(line.rstrip("\n")) == WIDTH
    assert line.endswith("…\n")


@pytest.mark.parametrize("width", [-1, 0, 10])
def test_a_tiny_terminal_still_shows_something(width: int) -> None:
    assert "started" in Screen(width).show(StreamEvent("1", "status", {"status": "started"}))


def test_a_call_shows_its_parameters_and_a_result_its_outputs() -> None:
    call: JsonObject = {
        "type": "tool",
        "subtype": "call",
        "uuid": "0123456789abcdef",
        "call": {"name": "clock", "parameters": {"content": "x"}},
        "server": "Demo",
        "tool": "clock",
        "originalId": None,
        "argumentsRaw": '{"content":"x"}',
        "content": "Calling",
    }
    result: JsonObject = {
        "uuid": "0123456789abcdef",
        "result": {"status": "success", "call": call["call"], "outputs": [{"text": "x" * 99}], "display": True},
        "duration": 0.25,
    }
    screen = Screen(94)
    assert screen.show(StreamEvent("6", "tool/call", call)) == (
        '   6  tool/call      {"uuid":"01234567","server":"Demo","call":{"name":"clock","parameters":{…\n'
    )
    assert screen.show(StreamEvent("7", "tool/result", result)) == (
        '   7  tool/result    {"uuid":"01234567","duration":0.25,"result":{"outputs":[{"text":"xxxxxxx…\n'
    )


def test_tokens_are_joined_under_the_first_ones_id() -> None:
    screen = Screen(WIDTH)
    shown = [screen.show(token(4, "Hello")), screen.show(token(5, " you"))]
    shown.append(screen.show(StreamEvent("6", "status", {"status": "finished"})))
    assert "".join(shown) == '   4  stream         Hello you\n   6  status         {"status":"finished"}\n'


def test_reasoning_and_text_stand_on_lines_of_their_own() -> None:
    screen = Screen(WIDTH)
    shown = screen.show(token(4, "Hm", "reasoning")) + screen.show(token(5, "Yes")) + screen.end()
    assert shown == "   4  reasoning      Hm\n   5  stream         Yes\n"
    assert screen.end() == ""


def test_running_text_is_wrapped_and_indented() -> None:
    screen = Screen(WIDTH)
    shown = "".join(screen.show(token(number, f" word{number:02}")) for number in range(20))
    lines = shown.split("\n")
    assert len(lines) > 1
    assert all(len(line) <= WIDTH for line in lines)
    assert all(line.startswith(INDENT) and line[len(INDENT)] != " " for line in lines[1:])
    assert shown.split()[2:] == [f"word{number:02}" for number in range(20)]


def test_line_breaks_of_the_text_are_kept() -> None:
    screen = Screen(WIDTH)
    shown = screen.show(token(1, "one:\n- two")) + screen.show(token(2, "\n\nthree"))
    assert shown == f"   1  stream         one:\n{INDENT}- two\n\n{INDENT}three"


def test_a_text_that_ends_its_line_leaves_no_blank_one() -> None:
    screen = Screen(WIDTH)
    shown = screen.show(token(1, "one\n")) + screen.show(StreamEvent("2", "status", {"status": "finished"}))
    assert shown == '   1  stream         one\n   2  status         {"status":"finished"}\n'


def test_nothing_steers_the_terminal() -> None:
    screen = Screen(WIDTH)
    shown = screen.show(token(1, "\x1b[2J\x9b31m\r")) + screen.show(
        StreamEvent("2", "notice", {"message": "\x1b\x9b\x07"})
    )
    assert all(character == "\n" or ord(character) >= 32 for character in shown)
    assert "\x9b" not in shown


def test_colours_are_only_there_when_wanted() -> None:
    event = StreamEvent("1", "tool/error", {"code": "tool_failed"})
    assert "\x1b[" not in Screen(WIDTH).show(event)
    assert "\x1b[31mtool/error" in Screen(WIDTH, colour=True).show(event)
    assert Screen(WIDTH).paint("x", 1) == "x"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null"])
def test_data_that_is_no_object_is_shown_as_empty(text: str) -> None:
    assert event_from_text("1", "odd", text) == StreamEvent("1", "odd", {})
