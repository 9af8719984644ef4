"""Makes what a caller sends as the conversation so far valid: one violation makes every later request fail. Pure.

Callers cut histories, lose results of stopped runs, and join conversations in which ids come twice. So: each call is
answered exactly once, right after the message that made it; ids are unique; a result without a call gets the call that
it lacks, so that nothing that was said is lost and results stay results.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from uuid import uuid4

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import Message

NO_RESULT = "[The call has no result: it was stopped, or its result was lost.]"
_FORGOTTEN = "unknown_tool"


def valid_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with their calls and results in order; valid ones come back as they are."""
    return tuple(_Repair(messages).repaired())


class _Repair:
    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._taken: set[str] = set()
        self._used: set[int] = set()
        """Positions of the results that have found their call."""
        # Positions by id, in order: a search for each call would make long histories cost their square.
        self._asked: dict[Json, list[int]] = {}
        self._given: dict[Json, list[int]] = {}
        for position, message in enumerate(messages):
            for call in _calls(message):
                self._asked.setdefault(_key(call.get("id")), []).append(position)
            if message.get("role") == "tool":
                self._given.setdefault(_key(message.get("tool_call_id")), []).append(position)

    def repaired(self) -> Iterator[Message]:
        for position, message in enumerate(self._messages):
            calls = _calls(message)
            if message.get("role") == "tool":
                if position not in self._used:
                    yield from self._with_call(message)
            elif calls:
                ids = [self._free_id(call) for call in calls]
                renamed = [{**call, "id": id_} for call, id_ in zip(calls, ids, strict=True)]
                yield message if renamed == message["tool_calls"] else {**message, "tool_calls": renamed}
                for call, id_ in zip(calls, ids, strict=True):
                    yield self._result(position, call, id_)
            else:
                yield message

    def _result(self, position: int, call: JsonObject, call_id: str) -> Message:
        """Find the result of a call: the first unused one that names it, before the id is given to another call."""
        wanted = _key(call.get("id"))
        asked_again = _first_after(position, self._asked.get(wanted, []), len(self._messages))
        results = self._given.get(wanted, [])
        at = bisect_right(results, position)
        if at == len(results) or results[at] >= asked_again:
            return {"role": "tool", "tool_call_id": call_id, "content": NO_RESULT}
        found = results.pop(at)
        self._used.add(found)
        message = self._messages[found]
        return message if call_id == wanted else {**message, "tool_call_id": call_id}

    def _with_call(self, result: Message) -> Iterator[Message]:
        """Give a result the call that it lacks."""
        call_id = self._free_id({"id": result.get("tool_call_id")})
        name: Json = result.get("name")
        function = {"name": name if isinstance(name, str) and name else _FORGOTTEN, "arguments": "{}"}
        call = {"id": call_id, "type": "function", "function": function}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {**result, "tool_call_id": call_id}

    def _free_id(self, call: JsonObject) -> str:
        wanted: Json = call.get("id")
        call_id = (
            wanted if isinstance(wanted, str) and wanted and wanted not in self._taken else f"call_{uuid4().hex[:24]}"
        )
        self._taken.add(call_id)
        return call_id


def _calls(message: Message) -> list[JsonObject]:
    calls: Json = message.get("tool_calls")
    is_made = message.get("role") == "assistant" and is_array(calls)
    return [call for call in calls if is_object(call)] if is_made else []


def _key(call_id: Json) -> str | None:
    return call_id if isinstance(call_id, str) else None


def _first_after(position: int, positions: list[int], otherwise: int) -> int:
    at = bisect_right(positions, position)
    return positions[at] if at < len(positions) else otherwise
