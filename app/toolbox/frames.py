"""Event streams of MCP servers, and JSON of theirs, as the SDK can read them. Sans-I/O: bytes in, bytes out.

The SDK ends a request, or the whole connection with all its callers, for one odd event: half a character, a message
that is none, a number without bounds. So what it cannot read is left out here, and what can be mended is: servers cut
texts inside of characters, begin with a byte order mark, and answer what nobody asked.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from app.domain.jsontypes import Json, JsonObject, is_object
from app.domain.wire import json_from_value

_MARK = b"\xef\xbb\xbf"
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""One escape of a pair that makes a character, without the other."""
_FREE = frozenset(("notifications/cancelled", "notifications/subscriptions/acknowledged"))
_HEARD = _FREE | {"notifications/tools/list_changed"}
"""Notifications that say something to us, beside progress; what servers log is not among them."""
_SHORTEST_RETRY_MS, _LONGEST_RETRY_MS = 100, 30_000
_LONGEST_ID = 512


_MESSAGE_BYTES = 4096
"""So many bytes count as a message, however few messages they are."""


class Budget:
    """How many messages nobody asked for a server may send: so many at once, then so many a second."""

    def __init__(self, burst: float, a_second: float, clock: Callable[[], float]) -> None:
        self._burst = self._left = burst
        self._a_second = a_second
        self._clock = clock
        self._at = clock()

    def allow(self, messages: float) -> None:
        """Have room for so many, about what was asked for."""
        self._left = max(self._left, messages)

    def takes(self, messages: float) -> bool:
        """Take some; tells whether there was room for them."""
        now = self._clock()
        if self._left < self._burst:
            self._left = min(self._burst, self._left + (now - self._at) * self._a_second)
        self._at = now
        self._left = max(self._left - messages, -1.0)
        return self._left >= 0


@dataclass(frozen=True, slots=True)
class Budgets:
    """Those of one connection."""

    unasked: Budget
    """Messages on its own stream."""
    questions: Budget
    """Requests of the server and changes of its tools, on any stream: each costs us a message."""


class _Message(msgspec.Struct):
    """A JSON-RPC message of any kind, by its outer shape. What is inside stays as it is."""

    jsonrpc: Json = None
    id: Json = None
    method: Json = None
    params: msgspec.Raw = msgspec.Raw(b"{}")  # immutable
    result: msgspec.Raw = msgspec.Raw(b"")  # immutable
    error: Json = None


_decode = msgspec.json.Decoder(_Message).decode


def clean_json(body: bytes) -> bytes:
    """Mend the text of JSON: no byte order mark, valid UTF-8, no half characters. What is fine comes back as it is."""
    body = body.removeprefix(_MARK)
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            body = body.decode(errors="replace").encode()
    if not _HALF.search(body):
        return body
    try:
        return json_from_value(json.loads(body))
    except (ValueError, RecursionError):
        return body


class Frames:
    """One event stream on its way."""

    def __init__(self, limit: int, budgets: Budgets, *, request_id: Json = None, is_asked: bool = True) -> None:
        """Take events of at most `limit` bytes; a longer one goes on as it is, for the SDK to refuse.

        `request_id` is that of the request which the stream answers; answers to others are left out then. What is not
        asked for is bounded in number.
        """
        self.is_flood = False
        """There was more than a server may say that nobody asked."""
        self._budgets = budgets
        self._is_asked_for = is_asked
        self._limit = limit
        self._request_id = None if request_id is None else str(request_id)
        self._buffer = bytearray()
        self._looked_at = 0
        self._is_first = True
        self._has_cr = False
        self._is_passed_on = False

    def take(self, chunk: bytes) -> bytes:
        """Return what the SDK may read of the stream so far and has not been given yet."""
        if not self._is_asked_for and not self._budgets.unasked.takes(len(chunk) / _MESSAGE_BYTES):
            self.is_flood = True
        if self._is_passed_on:
            return chunk
        self._buffer += self._with_plain_lines(chunk)
        taken = b"".join(self._events())
        if len(self._buffer) > self._limit:
            self._is_passed_on = True
            return taken + bytes(self._buffer)
        return taken

    def rest(self) -> bytes:
        """The stream has ended: return its last event, where only the blank line after it is missing."""
        frame, self._buffer = bytes(self._buffer), bytearray()
        return b"" if self._is_passed_on or not frame.strip() else self._cleaned(frame.rstrip(b"\n"))

    def _with_plain_lines(self, chunk: bytes) -> bytes:
        if self._is_first:
            self._is_first = False
            chunk = chunk.removeprefix(_MARK)
        if self._has_cr:
            chunk = b"\r" + chunk
        self._has_cr = chunk.endswith(b"\r")  # which may be half of a line's end
        if self._has_cr:
            chunk = chunk[:-1]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk

    def _events(self) -> Iterator[bytes]:
        while (end := self._buffer.find(b"\n\n", self._looked_at)) >= 0:
            frame = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            self._looked_at = 0
            if not self._is_asked_for and not self._budgets.unasked.takes(1):
                self.is_flood = True
                return
            yield self._cleaned(frame)
        self._looked_at = max(len(self._buffer) - 1, 0)

    def _cleaned(self, frame: bytes) -> bytes:
        """Write one event anew."""
        event, head, data = b"message", b"", list[bytes]()
        for line in frame.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value or event
            elif name == b"id" and len(value) <= _LONGEST_ID and value.isascii() and value.decode().isprintable():
                head += b"id: %b\n" % value
            elif name == b"retry" and value.isdigit() and int(value[:9]) <= _LONGEST_RETRY_MS:
                head += b"retry: %d\n" % max(int(value[:9]), _SHORTEST_RETRY_MS)
        if event == b"endpoint":
            return frame + b"\n\n"
        message = self._readable(clean_json(b"\n".join(data))) if event == b"message" else None
        if message is None:
            return head and head + b"\n"
        return head + b"event: message\ndata: " + message.replace(b"\n", b"\ndata: ") + b"\n\n"

    def _readable(self, message: bytes) -> bytes | None:
        """Return a message as the SDK can read it; None where that cannot be, or it answers what was not asked."""
        try:
            found = _decode(message)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return message if _is_lenient(message) else None
        if found.method == "notifications/progress" and _is_object(found.params):
            return _progress(bytes(found.params))
        return message if found.jsonrpc == "2.0" and self._is_message(found) else None

    def _is_message(self, found: _Message) -> bool:
        is_id = isinstance(found.id, str | int) and not isinstance(found.id, bool)
        if found.method is not None:
            is_called = isinstance(found.method, str) and _is_object(found.params)
            is_heard = found.method in _HEARD if found.id is None else is_id
            return is_called and is_heard and (found.method in _FREE or self._budgets.questions.takes(1))
        error: Json = found.error
        if error is not None:
            is_error = is_object(error) and type(error.get("code")) is int and isinstance(error.get("message"), str)
            return is_error and (found.id is None or (is_id and self._is_asked(found.id)))
        return is_id and _is_object(found.result) and self._is_asked(found.id)

    def _is_asked(self, message_id: Json) -> bool:
        return self._request_id is None or str(message_id) == self._request_id


def _is_object(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


def _progress(params: bytes) -> bytes | None:
    """Write a progress notification anew, with numbers that can be counted with."""
    try:
        told: JsonObject = json.loads(params)
    except (ValueError, RecursionError):
        return None
    token: Json = told.get("progressToken")
    if isinstance(token, float) and token.is_integer():
        told["progressToken"] = int(token)  # some write all numbers with a point
    if _finite(told.get("progress")) is None:
        return None
    if _finite(told.get("total")) is None:
        told.pop("total", None)
    return json_from_value({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})


def _finite(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _is_lenient(message: bytes) -> bool:
    """Tell whether it is JSON with numbers that JSON does not know, which the SDK reads."""
    try:
        return isinstance(json.loads(message), dict)
    except (ValueError, RecursionError):
        return False
