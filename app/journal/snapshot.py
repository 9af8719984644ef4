"""A run's snapshot, kept up to date event by event. Pure but for what it collects."""

from collections.abc import Iterator, Sequence

from app.domain import events
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import Message

_CALL_BYTES = 400
_LEFT_OUT = "[left out: the run's results are too large to be kept; the events carried them]"


class Snapshot:
    """Everything a late reader wants to know of a run, without its events."""

    def __init__(self, *, run_id: str, created_at: str, room: int) -> None:
        """Show a run that has just begun. `room` is in bytes: what is over of texts and results is left out."""
        self.bytes = 0
        """What is held, about."""
        self._room = room
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
            if self.bytes < self._room:
                if self._between_rounds:
                    self._between_rounds = False
                    self._texts.append("\n\n")
                self._texts.append(event.token)
                self.bytes += len(event.token)
        elif isinstance(event, events.ReasoningToken):
            if self.bytes < self._room:
                self._thoughts.append(event.token)
                self.bytes += len(event.token)
        elif isinstance(event, events.ToolCalled | events.ToolSucceeded | events.ToolFailed):
            self._apply_call(event)
        else:
            self._apply_state(event)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Keep messages that the run added to the conversation."""
        self._messages.extend(messages)
        self.bytes += sum(_size(message) for message in messages)

    def data(self, *, last_event_id: int) -> JsonObject:
        """Show it in the form that the API publishes."""
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
            self.bytes += len(event.call.arguments_raw) + _CALL_BYTES
        elif event.uuid in self._calls:
            call = self._calls[event.uuid]
            call["duration"] = data["duration"]
            if isinstance(event, events.ToolSucceeded):
                call["result"] = data["result"]
                size = sum(_size(output) for output in event.outputs)
                if self.bytes + size > self._room:
                    # The event has it, and the model had it; here it would grow without bound over the rounds.
                    call["result"] = {**data["result"], "outputs": [{"text": _LEFT_OUT, "content": []}]}
                else:
                    self.bytes += size
            else:
                call["error"] = {"code": event.code, "message": event.message}

    def _apply_state(self, event: events.Event) -> None:
        if isinstance(event, events.Prepared):
            self._data["model"] = event.model
        elif isinstance(event, events.UsageReport):
            self._usage = events.usage_json(event.usage)
        elif isinstance(event, events.FinalAnswer):
            self._texts = [event.text[: self._room]]
        elif isinstance(event, events.Finished):
            self._data.update(state="ended", outcome=event.outcome)
        elif isinstance(event, events.Failed):
            self._data.update(state="ended", error={"code": event.code, "message": event.message})


def _size(value: JsonObject) -> int:
    """Tell about how many bytes an object takes as JSON, without writing it."""
    return sum(len(text) for text in _texts(value)) + _OBJECT_BYTES


_OBJECT_BYTES = 60


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif is_object(value):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif is_array(value):
        for item in value:
            yield from _texts(item)
