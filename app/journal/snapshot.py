"""A run's snapshot, kept up to date event by event. Pure but for what it collects."""

from collections.abc import Sequence

from app.domain import events
from app.domain.jsontypes import Json, JsonObject
from app.domain.messages import Message


class Snapshot:
    """Everything a late reader wants to know of a run, without its events."""

    def __init__(self, *, run_id: str, created_at: str) -> None:
        self._data: JsonObject = {
            "id": run_id,
            "object": "run",
            "state": "running",
            "outcome": None,
            "model": None,
            "createdAt": created_at,
        }
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[str, JsonObject] = {}
        self._messages: list[Message] = []
        self._usage: JsonObject | None = None
        self._between_rounds = False

    def apply(self, event: events.Event) -> None:
        """Take an event into account; tokens first, since there are most of them."""
        if isinstance(event, events.Token):
            if self._between_rounds:
                self._between_rounds = False
                self._texts.append("\n\n")
            self._texts.append(event.token)
        elif isinstance(event, events.ReasoningToken):
            self._thoughts.append(event.token)
        elif isinstance(event, events.ToolCalled | events.ToolSucceeded | events.ToolFailed):
            self._apply_call(event)
        else:
            self._apply_state(event)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Keep messages that the run added to the conversation."""
        self._messages.extend(messages)

    def data(self, *, last_event_id: int) -> JsonObject:
        """Show it in the form of CONTRACT section 1."""
        return {
            **self._data,
            "text": "".join(self._texts),
            "reasoning": "".join(self._thoughts),
            "calls": list(self._calls.values()),
            "inputs": [],
            "usage": self._usage,
            "messages": list(self._messages),
            "lastEventId": last_event_id,
        }

    def _apply_call(self, event: events.ToolCalled | events.ToolSucceeded | events.ToolFailed) -> None:
        data: Json = event.data()
        if isinstance(event, events.ToolCalled):
            self._between_rounds = bool(self._texts)
            kept = ("uuid", "server", "tool", "call")
            self._calls[event.call.uuid] = {key: data[key] for key in kept}
        elif event.uuid in self._calls:
            call = self._calls[event.uuid]
            call["duration"] = data["duration"]
            if isinstance(event, events.ToolSucceeded):
                call["result"] = data["result"]
            else:
                call["error"] = {"code": event.code, "message": event.message}

    def _apply_state(self, event: events.Event) -> None:
        if isinstance(event, events.Prepared):
            self._data["model"] = event.model
        elif isinstance(event, events.UsageReport):
            self._usage = events.usage_json(event.usage)
        elif isinstance(event, events.FinalAnswer):
            self._texts = [event.text]
        elif isinstance(event, events.Finished):
            self._data.update(state="ended", outcome=event.outcome)
        elif isinstance(event, events.Failed):
            self._data.update(state="ended", error={"code": event.code, "message": event.message})
