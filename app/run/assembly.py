"""Fragments of tool calls become calls. Sans-I/O: knows neither the provider's stream nor how calls are executed.

Providers disagree on what names a fragment: an index, an id, both, or neither; they repeat names and ids, leave them
empty, or flush everything once more at the end. The rules, in order: an index routes the fragment, but the same index
with another id opens a new call; without an index an id does, and a fragment with neither belongs to the call opened
last, unless it names a tool and that call is already whole.

A call that is still being written can be told of before it is whole, once its name is known.
"""

import json
import re
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from app.domain.jsontypes import Json, JsonObject, is_deeper, is_object
from app.domain.messages import CallFragment, ToolCall
from app.domain.wire import writable

CUT_OFF = {
    "length": "The reply hit the length limit, so make a smaller call: it was cut off",
    "content_filter": "The provider's content filter ended the reply",
    "abort": "The provider stopped the reply",
    "cancelled": "The provider stopped the reply",
}
"""Finish reasons after which nothing of a reply's calls was completely received, and how the model is told."""
_WHOLE = (None, "stop", "tool_calls")
_NO_OBJECT = (
    "The arguments are not a JSON object, so the call was not executed. Send it again with valid JSON arguments."
)
_MAX_DEPTH = 64
_FENCE = re.compile(r"^```[a-zA-Z0-9_-]*\s*")


@dataclass(slots=True)
class _Slot:
    index: int | None
    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list[str])
    length: int = 0
    extra: JsonObject = field(default_factory=dict[str, Json])
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    is_told: bool = False
    """Told of, or whole before it could be: there is nothing to tell of it any more."""

    def add(self, fragment: CallFragment) -> None:
        if fragment.id and not self.id:
            self.id = fragment.id
        if fragment.name:
            self.name = _joined_name(self.name, fragment.name)
        if fragment.extra:
            self.extra.update(fragment.extra)
        arguments = fragment.arguments
        if arguments and not self._repeats(arguments):
            self.parts.append(arguments)
            self.length += len(arguments)

    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def is_whole(self) -> bool:
        # The last character first: a provider may repeat the name with each of thousands of fragments.
        return self.text().rstrip()[-1:] == "}" and is_object(_strict_json(self.text()))

    def has_name(self, offered: Collection[str]) -> bool:
        """Tell whether the name is all there: arguments have begun, or it is a tool's and no longer one's beginning."""
        name = self.name
        if not name or self.parts:
            return bool(name)
        return name in offered and not any(other != name and other.startswith(name) for other in offered)

    def _repeats(self, arguments: str) -> bool:
        return len(arguments) == self.length and arguments == self.text() and self.is_whole()


class CallAssembly:
    """Takes fragments as they come, gives calls at the end, in order of first appearance."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._grown: list[_Slot] = []  # since someone last asked what is under way, of those not told yet

    def __bool__(self) -> bool:
        """Tell whether a call has begun."""
        return bool(self._slots)

    def add(self, fragment: CallFragment) -> None:
        """Put a fragment where it belongs."""
        slot = self._slot_for(fragment)
        if slot is None:
            slot = _Slot(fragment.index)
            self._slots.append(slot)
            if fragment.index is not None:
                self._by_index[fragment.index] = slot
        slot.add(fragment)
        if not slot.is_told and (not self._grown or self._grown[-1] is not slot):
            self._grown.append(slot)

    def under_way(self, offered: Collection[str]) -> list[tuple[str, str]]:
        """Give uuid and name of each call that has got its name and is not whole yet; each call once at most.

        Args:
            offered: The names of the tools that the model was shown; a provider may send a name in pieces.
        """
        grown, self._grown = self._grown, []
        told: list[tuple[str, str]] = []
        for slot in grown:
            if not slot.is_told and slot.has_name(offered):
                slot.is_told = True
                if not slot.is_whole():
                    told.append((slot.uuid, slot.name))
        return told

    def calls(self, finish_reason: str | None, *, taken_ids: Iterable[str]) -> tuple[ToolCall, ...]:
        """Finish the calls.

        Args:
            finish_reason: Why the model stopped; some reasons mean that nothing was completely received.
            taken_ids: Ids that the conversation uses already; a call never gets one of them.
        """
        taken = set(taken_ids)
        calls: list[ToolCall] = []
        for slot in self._slots:
            if not slot.name and not slot.text().strip():
                continue
            call_id = slot.id if slot.id and slot.id not in taken else f"call_{uuid.uuid4().hex[:24]}"
            taken.add(call_id)
            calls.append(_call_from_slot(slot, call_id, finish_reason))
        return tuple(calls)

    def _slot_for(self, fragment: CallFragment) -> _Slot | None:
        if fragment.index is not None:
            slot = self._by_index.get(fragment.index)
            is_other = slot is not None and bool(fragment.id) and bool(slot.id) and fragment.id != slot.id
            return None if is_other or (slot is not None and _starts_anew(slot, fragment)) else slot
        if fragment.id:
            return next((slot for slot in self._slots if slot.id == fragment.id), None)
        last = self._slots[-1] if self._slots else None
        return None if last is None or _starts_anew(last, fragment) else last


def arguments_from_text(text: str) -> JsonObject | None:
    """Decode a call's arguments: blank means none; a fence or a sentence around a whole object is taken off.

    Returns None where no single JSON object is to be had.
    """
    text = text.strip()
    if not text:
        return {}
    value = _strict_json(text)
    if isinstance(value, str):
        value = _strict_json(value)
    elif value is _INVALID:
        value = _unwrapped(text)
    if value is None:
        return {}
    return value if is_object(value) and not is_deeper(value, _MAX_DEPTH) and _is_text(value) else None


_INVALID = object()


def _strict_json(text: str) -> Json:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return _INVALID
    return value


def _is_text(value: Json) -> bool:
    """Tell whether a value can be written again: an escape may hide half a surrogate pair, 1e999 is infinite."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> Json:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _unwrapped(text: str) -> Json:
    text = _FENCE.sub("", text)
    if not text.startswith("{"):
        return _INVALID
    try:
        value, end = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text)
    except (ValueError, RecursionError):
        return _INVALID
    return _INVALID if "{" in text[end:] else value


def _joined_name(known: str, more: str) -> str:
    """Set a name once; a provider that streams it in pieces, or in growing ones, is followed."""
    if not known or more.startswith(known):
        return more
    return known if known.endswith(more) else known + more


def _starts_anew(slot: _Slot, fragment: CallFragment) -> bool:
    """Tell whether a nameable fragment without an id of its own begins a further call."""
    if fragment.id or not fragment.name or not slot.name or not slot.parts:
        return False
    return slot.is_whole() and (fragment.name, fragment.arguments) != (slot.name, slot.text())


def _call_from_slot(slot: _Slot, call_id: str, finish_reason: str | None) -> ToolCall:
    raw = writable(slot.text())
    arguments = arguments_from_text(raw)
    fault = _NO_OBJECT if arguments is None else None
    if finish_reason in CUT_OFF or (finish_reason not in _WHOLE and not raw.strip()):
        # Blank arguments mean none only where the model has said that it is done.
        why = CUT_OFF.get(finish_reason or "", f"The reply ended early ({finish_reason})")
        fault = f"{why} before this call was complete, so it was not executed."
    return ToolCall(
        uuid=slot.uuid,
        id=call_id,
        name=slot.name,
        arguments_raw=raw,
        arguments=arguments,
        fault=fault,
        original_id=slot.id or None,
        extra=slot.extra,
    )
