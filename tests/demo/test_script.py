"""What the demo model replies to a conversation."""

import json

import pytest

from app.demo.script import SIGNATURE, PlannedCall, Turn, next_turn
from app.domain.jsontypes import Json, JsonObject

ALL = ("clock", "dice", "countdown", "chart", "fail", "ask")


def user(text: Json) -> JsonObject:
    return {"role": "user", "content": text}


def called(*calls: tuple[str, str, JsonObject]) -> JsonObject:
    """An assistant message: id, name and arguments of each call."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for call_id, name, arguments in calls
        ],
    }


def result(call_id: str, text: Json) -> JsonObject:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_several_tools_of_one_question_are_called_in_one_turn() -> None:
    turn = next_turn([user("Time in Tokyo and Paris, and roll two dice")], ALL)
    assert turn.calls == (
        PlannedCall("clock", {"zone": "Asia/Tokyo"}),
        PlannedCall("clock", {"zone": "Europe/Paris"}),
        PlannedCall("dice", {"count": 2, "sides": 6}),
    )
    assert "Scripted" in turn.text


def test_without_parallel_calls_each_turn_makes_the_next_one() -> None:
    question = user("Time in Tokyo and Paris")
    first = next_turn([question], ALL, parallel=False)
    assert [call.arguments for call in first.calls] == [{"zone": "Asia/Tokyo"}]
    so_far = [question, called(("a", "clock", {"zone": "Asia/Tokyo"})), result("a", "noon")]
    second = next_turn(so_far, ALL, parallel=False)
    assert [call.arguments for call in second.calls] == [{"zone": "Europe/Paris"}]
    so_far += [called(("b", "clock", {"zone": "Europe/Paris"})), result("b", "four")]
    assert next_turn(so_far, ALL, parallel=False).calls == ()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["dice"], "dice"),
        (["dice_Demo"], "dice_Demo"),
        (["dice-2", "clock"], "dice-2"),
        (["dice_Demo", "dice"], "dice"),
        (["dicey"], None),
        (["my_dice"], None),
    ],
)
def test_a_tool_is_found_by_the_beginning_of_its_name(names: list[str], expected: str | None) -> None:
    turn = next_turn([user("roll 2d6")], names)
    assert [call.name for call in turn.calls] == ([] if expected is None else [expected])


def test_a_suffixed_call_is_not_made_again_and_its_result_is_told() -> None:
    talk = [user("roll 2d6"), called(("a", "dice_Demo", {"count": 2, "sides": 6})), result("a", "Rolled: 1, 2")]
    turn = next_turn(talk, ["dice_Demo"])
    assert turn.calls == ()
    assert "- dice_Demo: Rolled: 1, 2" in turn.text


def test_a_dependent_call_follows_its_result() -> None:
    talk = [
        user("Roll 2d6 and chart it"),
        called(("a", "dice", {"count": 2, "sides": 6})),
        result("a", "Rolled 2 dice with 6 sides: 3, 6 (total 9)"),
    ]
    assert next_turn(talk, ALL).calls == (PlannedCall("chart", {"values": [3, 6]}),)


def test_the_answer_names_results_and_owns_up_to_failures() -> None:
    talk = [
        user("Time in Mars/Base, and count down from 1"),
        called(("a", "clock", {"zone": "Mars/Base"}), ("b", "countdown", {"seconds": 1})),
        result("a", "Error: no such zone"),
        result("b", [{"type": "text", "text": "Counted\ndown"}]),
    ]
    text = next_turn(talk, ALL).text
    assert "- clock did not work: Error: no such zone\n- countdown: Counted down\n" in text
    assert text.endswith(SIGNATURE)


def test_nothing_huge_is_quoted() -> None:
    talk = [user("roll 1d6"), called(("a", "dice", {"count": 1, "sides": 6})), result("a", "x" * 100_000)]
    assert len(next_turn(talk, ALL).text) < 500


def test_only_the_last_question_counts() -> None:
    talk = [
        user("roll 1d6"),
        called(("a", "dice", {"count": 1, "sides": 6})),
        result("a", "Rolled"),
        {"role": "assistant", "content": "There."},
        user("roll 1d6"),
    ]
    assert next_turn(talk, ALL).calls == (PlannedCall("dice", {"count": 1, "sides": 6}),)


def test_a_closing_request_without_tools_is_answered_from_the_results() -> None:
    talk = [
        user("roll 1d6"),
        called(("a", "dice", {"count": 1, "sides": 6})),
        result("a", "Rolled a four"),
        user("Answer now from what you have."),
    ]
    assert "- dice: Rolled a four" in next_turn(talk, ()).text


@pytest.mark.parametrize(
    ("question", "names", "said"),
    [
        ("Hello there", ALL, "Hello!"),
        ("Good morning!", (), "Hello!"),
        ("Qwertz?", ALL, "Roll 3d6 (dice)"),
        ("Qwertz?", ("chart",), "Draw a chart of 3, 5, 8 (chart)"),
        ("Qwertz?", (), "No tool may be called in this request"),
        ("Qwertz?", ("weather",), "None of the tools on offer is one that I know."),
        ("roll 3d6", (), "I would call dice for this, but no such tool may be called now."),
        ("roll 3d6", ("clock",), "I would call dice"),
    ],
)
def test_without_a_call_the_reply_says_what_can_be_asked(question: str, names: tuple[str, ...], said: str) -> None:
    turn = next_turn([user(question)], names)
    assert turn.calls == ()
    assert said in turn.text
    assert turn.text.endswith(SIGNATURE)


def test_unknown_words_list_only_tools_on_offer() -> None:
    assert "(dice)" not in next_turn([user("Qwertz?")], ("chart",)).text


def test_think_brings_reasoning_in_every_turn() -> None:
    question = user("Think, then roll 1d6")
    assert "dice" in next_turn([question], ALL).reasoning
    talk = [question, called(("a", "dice", {"count": 1, "sides": 6})), result("a", "Rolled")]
    assert next_turn(talk, ALL).reasoning
    assert not next_turn([user("roll 1d6")], ALL).reasoning


def test_parts_of_a_question_are_read_and_images_passed_over() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "roll 1d6"}]
    assert [call.name for call in next_turn([user(parts)], ALL).calls] == ["dice"]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [None, 3, "x", []],
        [{"role": "system", "content": "be nice"}],
        [user(None)],
        [user(3)],
        [user("Qwertz"), {"role": "assistant", "tool_calls": [None, {"id": 1}, {"function": {"arguments": "{"}}]}],
        [user("Qwertz"), called(("a", "x", {})), result("b", None)],
    ],
)
def test_odd_conversations_get_an_ordinary_answer(messages: list[Json]) -> None:
    turn = next_turn(messages, ALL)
    assert isinstance(turn, Turn)
    assert turn.calls == ()
    assert turn.text.endswith(SIGNATURE)
