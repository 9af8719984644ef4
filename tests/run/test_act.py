"""What is told of a call beside its result."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.domain.errors import CALL_CODES
from app.domain.events import Event, Notice, ToolEta, ToolProgress
from app.domain.jsontypes import JsonObject
from app.domain.limits import RunLimits
from app.domain.messages import Progress, Reply, ToolCall, ToolOutcome
from app.run.act import Hands
from tests.fakes.ports import ScriptedToolbox, says

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


async def test_calls_are_told_what_the_toolbox_expects_and_the_box_may_settle_before_the_next_round() -> None:
    events: list[Event] = []
    toolbox = ScriptedToolbox({"look_up": says("1")})

    async def tool(_arguments: JsonObject, on_progress: Callable[[Progress], None]) -> ToolOutcome:
        assert toolbox.settled == 0
        on_progress(Progress(1, 2, eta=1.5))
        return ToolOutcome("x")

    toolbox.functions["get"] = tool
    hands = Hands(toolbox, events.append, RunLimits())
    calls = tuple(ToolCall(f"u{at}", f"c{at}", name, "{}", {}) for at, name in enumerate(("get", "look_up", "nobody")))
    await hands.answer_calls(Reply("", "", calls, "tool_calls"))
    etas = [(event.uuid, event.eta) for event in events if isinstance(event, ToolEta)]
    assert etas == [("u0", 3.0), ("u1", 7.0), ("u2", 10.0)]
    assert [(event.uuid, event.eta) for event in events if isinstance(event, ToolProgress)] == [("u0", 1.5)]
    assert toolbox.uuids == ["u0", "u1"]
    assert toolbox.settled == 1


def test_every_code_that_a_call_can_fail_with_is_in_the_closed_list() -> None:
    made = re.compile(r'(?:(?:Trouble|_failed|_refusal)\(\s*|error_code=)"([a-z_]+)"')
    sources = [path.read_text() for room in ("run", "toolbox") for path in (ROOT / "app" / room).glob("*.py")]
    codes = {code for source in sources for code in made.findall(source)}
    assert {"tool_failed", "tool_unknown", "tool_timeout", "server_unreachable", "approval_declined"} <= codes
    assert codes <= CALL_CODES
