"""What is told of a call beside its result."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.domain.errors import CALL_CODES
from app.domain.events import Event, Notice
from app.domain.jsontypes import JsonObject
from app.domain.limits import RunLimits
from app.domain.messages import Progress, Reply, ToolCall, ToolOutcome
from app.run.act import Hands
from tests.fakes.ports import ScriptedToolbox

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

TO_MODEL = "The model was given a shortened result: 7 characters were left out."
TO_READER = "The result is too large to be shown whole: some of it was left out."


@pytest.mark.parametrize("code", [None, "tool_failed"])
@pytest.mark.parametrize(
    ("omitted", "is_cut", "told"),
    [
        (0, False, []),
        (7, False, [TO_MODEL]),
        (0, True, [TO_READER]),
        (7, True, [f"{TO_MODEL} {TO_READER}"]),
    ],
)
async def test_result_that_is_cut_is_told_once_with_who_misses_what(
    omitted: int, code: str | None, told: list[str], *, is_cut: bool
) -> None:
    async def tool(_arguments: JsonObject, _on_progress: Callable[[Progress], None]) -> ToolOutcome:
        return ToolOutcome("x", error_code=code, omitted_characters=omitted, is_cut_for_reader=is_cut)

    events: list[Event] = []
    hands = Hands(ScriptedToolbox({"get": tool}), events.append, RunLimits())
    call = ToolCall("u", "c", "get", "{}", {})
    await hands.answer_calls(Reply("", "", (call,), "tool_calls"))
    notices = [event for event in events if isinstance(event, Notice)]
    assert [(notice.code, notice.message, notice.about) for notice in notices] == [
        ("output_truncated", message, {"uuid": "u"}) for message in told
    ]


def test_every_code_that_a_call_can_fail_with_is_in_the_closed_list() -> None:
    made = re.compile(r'(?:Trouble|_failed|_refusal)\(\s*"([a-z_]+)"')
    sources = [path.read_text() for room in ("run", "toolbox") for path in (ROOT / "app" / room).glob("*.py")]
    codes = {code for source in sources for code in made.findall(source)}
    assert {"tool_failed", "tool_unknown", "tool_timeout", "server_unreachable"} <= codes
    assert codes <= CALL_CODES
