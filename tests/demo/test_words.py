"""Which calls a question asks for."""

import pytest

from app.demo.words import wanted_calls
from app.domain.jsontypes import JsonObject

ROLL = "Rolled 3 dice with 6 sides: 4, 5, 6 (total 15)"


def clock(*zones: str) -> list[tuple[str, JsonObject]]:
    return [("clock", {"zone": zone}) for zone in zones]


def dice(count: int, sides: int = 6) -> list[tuple[str, JsonObject]]:
    return [("dice", {"count": count, "sides": sides})]


def countdown(seconds: int) -> list[tuple[str, JsonObject]]:
    return [("countdown", {"seconds": seconds})]


def chart(*values: float) -> list[tuple[str, JsonObject]]:
    return [("chart", {"values": list(values)})]


def ask(question: str) -> list[tuple[str, JsonObject]]:
    return [("ask", {"question": question})]


_ROWS: list[tuple[str, list[tuple[str, JsonObject]]]] = [
    ("What time is it in Tokyo?", clock("Asia/Tokyo")),
    ("what TIME is it in paris and NEW YORK", clock("Europe/Paris", "America/New_York")),
    ("How late is it in São Paulo?", clock("America/Sao_Paulo")),
    ("What time is it?", clock("UTC")),
    ("The time in Tokyo, and then the time in Tokyo", clock("Asia/Tokyo")),
    ("time in America/Argentina/Buenos_Aires please", clock("America/Argentina/Buenos_Aires")),
    ("time in Europe/Paris and London", clock("Europe/Paris", "Europe/London")),
    ("time in Mars/Base", clock("Mars/Base")),
    ("Tell me about Paris", []),
    ("Several times I went to Rome", []),
    ("roll a die", dice(1)),
    ("Roll two dice", dice(2)),
    ("roll the dice", dice(1)),
    ("Roll 3d6", dice(3)),
    ("d20!", dice(1, 20)),
    ("roll 2d8 and 1d4", dice(2, 8) + dice(1, 4)),
    ("roll three 20-sided dice", dice(3, 20)),
    ("roll 4 dice with twelve sides", dice(4, 12)),
    ("roll 4 dice with 12 sides", dice(4, 12)),
    ("roll 0d6", dice(0)),
    ("count down from 3", countdown(3)),
    ("Countdown 5", countdown(5)),
    ("a countdown of ten seconds", countdown(10)),
    ("count-down please", countdown(3)),
    ("count down from 100000", countdown(100000)),
    ("counting sheep", []),
    ("chart 3, 5, 8", chart(3, 5, 8)),
    ("Draw a bar chart of the values: 1.5, -2 and 7.", chart(1.5, -2, 7)),
    ("draw 4; 2; 9 as a chart", chart(4, 2, 9)),
    ("plot 3 5 8", chart(3, 5, 8)),
    ("chart of 3, 5, 8 and 2d6", dice(2) + chart(3, 5, 8)),
    ("Draw a chart", chart(3, 5, 8)),
    ("make it fail", [("fail", {})]),
    ("call the failing tool", [("fail", {})]),
    ("Ask me which colour I like.", ask("Which colour I like?")),
    ("Please ask the user: your name?", ask("Your name?")),
    ("ask me", [("ask", {})]),
    ("I have a task for you", []),
    ("", []),
    ("Qwertz uiop 1 2 3", []),
    (
        "What time is it in Tokyo and Paris, roll two dice, count down from 3 and draw a chart of 3, 5, 8.",
        clock("Asia/Tokyo", "Europe/Paris") + dice(2) + countdown(3) + chart(3, 5, 8),
    ),
]


@pytest.mark.parametrize(("question", "calls"), _ROWS)
def test_calls_and_arguments_are_read_from_the_words(question: str, calls: list[tuple[str, JsonObject]]) -> None:
    assert wanted_calls(question, []) == calls


def test_a_chart_of_the_dice_waits_for_the_roll() -> None:
    question = "Roll 3d6 and draw a chart of the result"
    assert wanted_calls(question, []) == dice(3)
    assert wanted_calls(question, ["Error: no dice today"]) == dice(3)
    assert wanted_calls(question, [ROLL]) == dice(3) + chart(4, 5, 6)
