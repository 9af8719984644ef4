"""A call that is still being written is told of once, under the uuid that it will have."""

from collections.abc import Sequence

import pytest

from app.domain.events import Event, Notice, Token
from app.domain.messages import CallFragment, Delta, Finish, TextDelta, Tool, ToolSpec
from app.domain.ports import Ask
from app.run.listen import Ears
from tests.fakes.ports import Scripted, ScriptedModel

pytestmark = pytest.mark.anyio

F = CallFragment
TOOLS = [Tool(ToolSpec(name, "", {"type": "object"}), "box", name) for name in ("save", "save_all", "look")]


async def heard(reply: Scripted, *, tools: Sequence[Tool] = TOOLS) -> tuple[list[Event], list[str]]:
    """Hear a reply whose deltas come one by one; gives what was told, and the uuids of the calls."""
    told: list[Event] = []
    ears = Ears(ScriptedModel(reply), told.append)
    calls = (await ears.hear_reply(Ask([], tools))).calls
    return told, [call.uuid for call in calls]


# By case: the deltas, and the names that are told.
ROWS: dict[str, tuple[list[Delta], list[str]]] = {
    "name first": ([F(0, "c1", "look", ""), F(0, None, None, '{"q":'), F(0, None, None, "1}")], ["look"]),
    "name with the beginning of the arguments": ([F(0, "c1", "look", '{"q"'), F(0, None, None, ":1}")], ["look"]),
    "whole at once": ([F(0, "c1", "look", "{}")], []),
    "name that may still grow": ([F(0, "c1", "save", ""), F(0, None, "_all", ""), F(0, None, None, "{")], ["save_all"]),
    "name that did not grow": ([F(0, "c1", "save", ""), F(0, None, None, "{")], ["save"]),
    "name in pieces": ([F(0, "c1", "lo", ""), F(0, None, "ok", ""), F(0, None, None, "{}")], ["look"]),
    "name of no tool": ([F(0, "c1", "fetch", ""), F(0, None, None, "{")], ["fetch"]),
    "arguments before the name": ([F(0, "c1", None, '{"a"'), F(0, None, "look", ":1")], ["look"]),
    "no name yet": ([F(0, "c1", "lo", ""), F(1, "c2", None, "")], []),
    "name on every fragment": (
        [F(0, "c1", "look", "{"), F(0, "c1", "look", '"a":1'), F(0, "c1", "look", "}")],
        ["look"],
    ),
    "side by side": (
        [F(0, "c1", "look", "{"), F(1, "c2", "look", "{"), F(0, None, None, "}"), F(1, None, None, "}")],
        ["look", "look"],
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_call_is_told_of_once_when_its_name_is_known(row: tuple[list[Delta], list[str]]) -> None:
    deltas, names = row
    told, uuids = await heard([*deltas, Finish("tool_calls")])
    about = [dict(event.about) for event in told if isinstance(event, Notice)]
    assert about == [{"uuid": uuid, "name": name} for uuid, name in zip(uuids, names, strict=False)]
    assert {event.code for event in told if isinstance(event, Notice)} <= {"preparing_call"}


async def test_call_is_told_of_before_the_rest_of_it_has_come_and_after_what_was_said() -> None:
    told, (uuid,) = await heard(
        [TextDelta("I look."), F(0, "c1", "look", ""), TextDelta("Wait."), Finish("tool_calls")]
    )
    notice = Notice("preparing_call", "The model is writing a call of look.", {"uuid": uuid, "name": "look"})
    assert told == [Token("I look."), notice]


async def test_nothing_is_told_where_no_tool_was_offered() -> None:
    told, _ = await heard([F(0, "c1", "look", "{"), F(0, None, None, "}")], tools=())
    assert told == []
