"""What the model is told first."""

from collections.abc import Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from app.domain.jsontypes import JsonObject
from app.domain.messages import Tool, ToolSpec
from app.journal.memory import MemoryJournal, Options
from app.run.images import images_from_messages
from app.run.prompt import tool_prompt
from app.run.talk import Talk, call_ids, opening, with_tool_prompt
from tests.fakes.ports import ScriptedToolbox, says

TOOLS = [ToolSpec("look_up", "", {}), ToolSpec("clock", "", {})]
LATE_EVENING = datetime(2026, 3, 31, 20, 0, tzinfo=UTC)


def test_prompt_names_the_tools_and_the_users_date_time_and_zone() -> None:
    prompt = tool_prompt(TOOLS, now=LATE_EVENING, zone=ZoneInfo("Asia/Kolkata"))
    assert "look_up, clock" in prompt
    assert "Wednesday, 1 April 2026, 01:30 (IST, UTC+05:30)" in prompt
    assert "the year 2026" in prompt
    assert "image_1" not in prompt


def test_prompt_without_a_zone_says_that_it_is_utc() -> None:
    prompt = tool_prompt(TOOLS, now=LATE_EVENING, zone=None)
    assert "Tuesday, 31 March 2026, 20:00 (UTC, UTC+00:00) in UTC; the user's time zone is not known" in prompt


def test_year_in_the_prompt_is_the_users() -> None:
    new_year = datetime(2026, 12, 31, 23, 0, tzinfo=UTC)
    assert "the year 2027" in tool_prompt(TOOLS, now=new_year, zone=ZoneInfo("Asia/Tokyo"))


@pytest.mark.parametrize(("count", "named"), [(1, "called image_1 in"), (3, "called image_1 to image_3 in")])
def test_prompt_explains_image_names_when_there_are_images(count: int, named: str) -> None:
    assert named in tool_prompt(TOOLS, now=LATE_EVENING, zone=None, image_count=count)


def test_there_is_exactly_one_system_message_and_it_comes_first() -> None:
    messages: list[JsonObject] = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
        {"role": "assistant", "content": "hello", "refusal": None},
    ]
    said = with_tool_prompt(opening(messages, preprompt="PRE"), before="", now="TOOLS")
    assert said[0] == {"role": "system", "content": "TOOLS\n\nPRE\n\nbe brief\n\nbe kind"}
    assert said[1:] == (messages[0], messages[3])


@pytest.mark.parametrize("preprompt", ["PRE", None])
def test_tool_prompt_is_put_first_changed_and_taken_away_again(preprompt: str | None) -> None:
    plain = opening([{"role": "user", "content": "hi"}], preprompt=preprompt)
    rest = f"\n\n{preprompt}" if preprompt else ""
    first = with_tool_prompt(plain, before="", now="TOOLS: a.")
    assert first == ({"role": "system", "content": f"TOOLS: a.{rest}"}, {"role": "user", "content": "hi"})
    second = with_tool_prompt(first, before="TOOLS: a.", now="TOOLS: a, b.")
    assert second[0] == {"role": "system", "content": f"TOOLS: a, b.{rest}"}
    assert with_tool_prompt(second, before="TOOLS: a, b.", now="") == plain


def test_prompt_follows_the_tools_and_stays_while_they_stay() -> None:
    toolbox = ScriptedToolbox({"a": says("1")})
    written: list[str] = []

    def prompt(tools: Sequence[Tool], choice: str | JsonObject) -> str:
        written.append(f"{', '.join(tool.name for tool in tools)} ({choice})")
        return f"You have {', '.join(tool.name for tool in tools)}." if tools else ""

    talk = Talk(({"role": "user", "content": "hi"},), MemoryJournal(Options()).open("run_1"), toolbox, prompt=prompt)
    first, again = talk.question(), talk.nudge("go on")
    assert first.messages[0] == {"role": "system", "content": "You have a."}
    assert again.messages[0] is first.messages[0]
    toolbox.functions["b"] = says("2")
    later = talk.question()
    assert later.messages[0]["content"] == later.tool_prompt == "You have a, b."
    assert [tool.name for tool in later.tools] == ["a", "b"]
    assert talk.closing_question("end").messages[0]["content"] == "You have a, b."
    toolbox.functions.clear()
    assert talk.question().messages == ({"role": "user", "content": "hi"},)
    assert written[0] == "a (auto)"


def test_nothing_to_say_means_no_system_message() -> None:
    assert opening([{"role": "user", "content": "hi"}], preprompt=" ") == ({"role": "user", "content": "hi"},)


def test_images_are_counted_over_the_users_messages_in_order() -> None:
    messages: list[JsonObject] = [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:1"}}, {"type": "text", "text": "x"}],
        },
        {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "data:no"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "data:2"}, {"type": "image_url"}]},
        {"role": "user", "content": "plain"},
    ]
    assert images_from_messages(messages) == ("data:1", "data:2")


def test_call_ids_are_found_wherever_they_are() -> None:
    messages: list[JsonObject] = [
        {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": 7}, "odd"]},
        {"role": "assistant", "tool_calls": None},
        {"role": "assistant", "tool_calls": [{"id": "b"}]},
    ]
    assert call_ids(messages) == {"a", "b"}
