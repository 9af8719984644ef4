"""What is said of questions to a person in the OpenAPI document is what is sent."""

from typing import Any

import pytest

from app.api.published import RunSnapshot
from app.api.published_events import RunEvent
from app.domain.events import ApprovalAsked, ElicitationAsked, Event, InputResolved, ToolProgress
from app.domain.messages import Tool, ToolSpec
from app.journal.memory import MemoryJournal, Options

EXPIRES = "2026-01-01T00:00:00.000Z"
TOOL = Tool(ToolSpec("save", "Saves.", {}), "box", "save", {"destructiveHint": True})
FORM: Any = {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
PAGE: Any = {"mode": "url", "message": "Sign in.", "url": "https://a.example/x", "host": "a.example"}

EVENTS: dict[str, Event] = {
    "approval": ApprovalAsked("i", "u", "save", {"path": "a"}, TOOL, EXPIRES),
    "form": ElicitationAsked("i", "box", FORM, EXPIRES, "u"),
    "form of no call": ElicitationAsked("i", "box", FORM, EXPIRES),
    "page": ElicitationAsked("i", "box", PAGE, EXPIRES, "u"),
    "approval resolved": InputResolved("approval", "i", "decline", "expiry"),
    "elicitation resolved": InputResolved("elicitation", "i", "cancel", "server"),
    "progress with an eta": ToolProgress("u", 1.0, 2.0, "half", 1.5),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_event_is_described_and_so_is_what_the_snapshot_makes_of_it(event: Event) -> None:
    RunEvent.model_validate(event.data())
    log = MemoryJournal(Options()).open("run_1")
    log.append(event)
    RunSnapshot.model_validate(log.snapshot())
