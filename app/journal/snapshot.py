"""A run's snapshot, kept up to date event by event. Pure but for what it collects."""

from collections.abc import Iterator, Sequence
from io import StringIO

from app.domain import events
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import Message

LEFT_OUT = "[left out: the run has more to show than is kept of it]"
"""Stands where something was; it is enough to say so, since the events carried it."""


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
        self._text = StringIO()
        self._reasoning = StringIO()
        self._calls: dict[str, JsonObject] = {}
        self._inputs: dict[str, JsonObject] = {}
        """The open questions."""
        self._resolved: set[str] = set()
        self._messages: list[Message] = []
        self._usage: JsonObject | None = None
        self._between_rounds = False

    def apply(self, event: events.Event) -> None:
        """Take an event into account; tokens first, since there are most of them."""
        if isinstance(event, events.Token):
            if self._between_rounds:
                self._between_rounds = False
                self._write(self._text, "\n\n")
            self._write(self._text, event.token)
        elif isinstance(event, events.ReasoningToken):
            self._write(self._reasoning, event.token)
        elif isinstance(event, events.ToolCalled | events.ToolSucceeded | events.ToolFailed):
            self._apply_call(event)
        elif isinstance(event, events.ApprovalAsked | events.ElicitationAsked | events.InputResolved):
            self._apply_input(event)
        else:
            self._apply_state(event)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Keep messages that the run added to the conversation."""
        for message in messages:
            size = _size(message)
            if self.bytes + size > self._room:
                message = _shortened(message)  # noqa: PLW2901  # what is kept of it
                size = _size(message)
            self._messages.append(message)
            self.bytes += size

    @property
    def awaits_input(self) -> bool:
        """Whether a question to a person is open."""
        return bool(self._inputs)

    def has_resolved(self, input_id: str) -> bool:
        """Tell whether a question was asked, and is not open any more."""
        return input_id in self._resolved

    def data(self, *, last_event_id: int) -> JsonObject:
        """Show it in the form that the API publishes."""
        return {
            **self._data,
            **({"state": "awaiting_input"} if self._inputs else {}),
            "text": self._text.getvalue(),
            "reasoning": self._reasoning.getvalue(),
            "calls": list(self._calls.values()),
            "inputs": list(self._inputs.values()),
            "usage": self._usage,
            "messages": list(self._messages),
            "lastEventId": last_event_id,
        }

    def _write(self, where: StringIO, text: str) -> None:
        if self.bytes < self._room:
            where.write(text)
            self.bytes += len(text)

    def _apply_call(self, event: events.ToolCalled | events.ToolSucceeded | events.ToolFailed) -> None:
        data: Json = event.data()
        if isinstance(event, events.ToolCalled):
            self._between_rounds = self._text.tell() > 0
            kept: JsonObject = {key: data[key] for key in ("uuid", "server", "tool", "call")}
            size = _size(kept)
            if self.bytes + size > self._room:
                kept["call"] = {"name": event.call.name[:64], "parameters": {}}
                size = _size(kept)
            self._calls[event.call.uuid] = kept
            self.bytes += size
        elif event.uuid in self._calls:
            call = self._calls[event.uuid]
            key: str
            end: JsonObject
            short: JsonObject
            call["duration"] = data["duration"]
            if isinstance(event, events.ToolSucceeded):
                key, end, short = "result", data["result"], {"call": call["call"], "outputs": [_NO_OUTPUT]}
            else:
                key, end, short = "error", {"code": event.code, "message": event.message}, {"message": LEFT_OUT}
            size = _size(end)
            if self.bytes + size > self._room:
                # The event had it, and the model had it; here it would grow without bound over the rounds.
                end = {**end, **short}
                size = _size(end)
            call[key] = end
            self.bytes += size

    def _apply_input(self, event: events.ApprovalAsked | events.ElicitationAsked | events.InputResolved) -> None:
        if isinstance(event, events.InputResolved):
            self.bytes -= _size(self._inputs.pop(event.input_id, {}))
            self._resolved.add(event.input_id)
            self.bytes += 2 * _OBJECT_BYTES
            return
        told = event.data()
        open_input: JsonObject = {"kind": told["type"]}
        open_input.update((key, value) for key, value in told.items() if key not in ("type", "subtype"))
        if self.bytes + _size(open_input) > self._room:
            # Whoever answers has the event; here it is enough to see that there is a question, and which.
            if isinstance(event, events.ApprovalAsked):
                call: JsonObject = {"name": event.call_name[:64], "parameters": {"…": LEFT_OUT}}
                open_input.update(call=call, description=LEFT_OUT)
            else:
                open_input["request"] = {"mode": event.request.get("mode"), "message": LEFT_OUT}
        self._inputs[event.input_id] = open_input
        self.bytes += _size(open_input)

    def _apply_state(self, event: events.Event) -> None:
        if isinstance(event, events.Prepared | events.RouterMetadata):
            self._data["model"] = event.model
        elif isinstance(event, events.UsageReport):
            self._usage = events.usage_json(event.usage)
        elif isinstance(event, events.FinalAnswer):
            self._text = StringIO()
            self._text.write(event.text[: self._room])
        elif isinstance(event, events.Finished):
            self._data.update(state="ended", outcome=event.outcome)
        elif isinstance(event, events.Failed):
            self._data.update(state="ended", error={"code": event.code, "message": event.message})


_NO_OUTPUT: JsonObject = {"text": LEFT_OUT, "content": []}


def _shortened(message: Message) -> Message:
    """Keep the form of a message, so that the conversation stays valid, and leave out what makes it large."""
    short: Message = {key: message[key] for key in ("role", "tool_call_id") if key in message}
    short["content"] = LEFT_OUT
    calls: Json = message.get("tool_calls")
    if is_array(calls):
        short["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": "{}"}}
            for call in calls
        ]
    return short


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
