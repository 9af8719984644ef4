"""Event streams of MCP servers, and JSON of theirs, as the SDK can read them. Sans-I/O: bytes in, bytes out.

The SDK ends a request, or the whole connection with all its callers, for one odd event: half a character, a message
that is none, a number without bounds. So what it cannot read is left out here, and what can be mended is: servers cut
texts inside of characters, begin with a byte order mark, and answer what nobody asked.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from app.domain.jsontypes import Json, JsonObject, is_object
from app.domain.wire import json_from_value
from app.toolbox.echoes import without

_MARK = b"\xef\xbb\xbf"
_HALF = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
"""One escape of a pair that makes a character, without the other. Begins with what is rare, so that it is quick."""
_FREE = frozenset(("notifications/cancelled", "notifications/subscriptions/acknowledged"))
_HEARD = _FREE | {"notifications/tools/list_changed"}
"""Notifications that say something to us, beside progress; what servers log is not among them."""
_SHORTEST_RETRY_MS, _LONGEST_RETRY_MS, _LONGEST_PLAUSIBLE_MS = 100, 30_000, 3_600_000
_NULL = msgspec.Raw(b"null")
_LONGEST_ID = 512
_MOST_MENDED_BYTES = 1024 * 1024
"""Of JSON with half characters; it takes long to be written anew."""
_MOST_EVENTS = 65_536
"""In a stream that answers a request. An event costs the same whether anything of it is heard or not."""
_MESSAGE_BYTES = 4096
"""So many bytes count as a message, however few messages they are."""


class Budget:
    """How many messages nobody asked for a server may send: so many at once, then so many a second."""

    def __init__(self, burst: float, a_second: float, clock: Callable[[], float]) -> None:
        self._burst = self._left = burst
        self._a_second = a_second
        self._clock = clock
        self._at = clock()

    def takes(self, messages: float) -> bool:
        """Take so many where there is room for them; tells whether there was."""
        now = self._clock()
        if self._left < self._burst:
            self._left = min(self._burst, self._left + (now - self._at) * self._a_second)
        self._at = now
        if self._left < messages:
            return False
        self._left -= messages
        return True


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
    if not _HALF.search(body) or len(body) > _MOST_MENDED_BYTES:
        return body
    try:
        return json_from_value(json.loads(body))
    except (ValueError, RecursionError):
        return body


class Frames:
    """One event stream on its way."""

    def __init__(
        self,
        limit: int,
        budgets: Budgets,
        *,
        request_id: Json = None,
        is_asked: bool = True,
        has_endpoint: bool = False,
        credentials: Sequence[bytes] = (),
    ) -> None:
        """Take events of at most `limit` bytes; a longer one is to end the stream.

        `request_id` is that of the request which the stream answers; answers to others are left out then. What is not
        asked for is bounded in number. `has_endpoint`: the stream begins with where to post to, as the old transport's.
        `credentials` are ours, and taken out.
        """
        self.is_flood = False
        """There was more than a server may say that nobody asked."""
        self.is_too_large = False
        self._limit = limit
        self._budgets = budgets
        self._request_id = None if request_id is None else str(request_id)
        self._is_asked_for = is_asked
        self._has_endpoint = has_endpoint
        self._credentials = credentials
        self._line = bytearray()
        self._is_first = True
        self._is_after_cr = False
        self._event: list[bytes] = []
        self._size = 0
        self._events_left = _MOST_EVENTS

    def take(self, chunk: bytes) -> bytes:
        """Return what the SDK may read of the stream so far and has not been given yet."""
        if not self._is_asked_for and not self._budgets.unasked.takes(len(chunk) / _MESSAGE_BYTES):
            self.is_flood = True
        return b"".join(self._events(chunk))

    def rest(self) -> bytes:
        """The stream has ended: return its last event, where only the end of it is missing."""
        self._add(bytes(self._line))
        self._line.clear()
        return self._written(is_last=True)

    def _events(self, chunk: bytes) -> Iterator[bytes]:
        for line in self._lines(chunk):
            if line:
                self._add(line)
            elif self._event:
                if not self._may_take_event():
                    return
                yield self._written()

    def _may_take_event(self) -> bool:
        if self._is_asked_for:
            self._events_left -= 1
            self.is_too_large |= self._events_left < 0
        elif not self._budgets.unasked.takes(1):
            self.is_flood = True
        return not (self.is_too_large or self.is_flood)

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        """Split at CR, LF and CRLF. A CR ends its line at once: what follows it may be long in coming."""
        if self._is_after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._is_after_cr = False
        if chunk:
            self._is_after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not (end or self._line or self._event):  # blank lines between events, of which there may be millions
                self._is_first = False
                continue
            line = bytes(self._line + end)
            self._line.clear()
            yield line.removeprefix(_MARK) if self._is_first else line
            self._is_first = False
        self._line += rest
        self.is_too_large |= len(self._line) > self._limit

    def _add(self, line: bytes) -> None:
        if line and not line.startswith(b":"):
            self._event.append(line)
            self._size += len(line)
            self.is_too_large |= self._size > self._limit

    def _written(self, *, is_last: bool = False) -> bytes:
        """Write the event anew. The last of a stream may be half of one: then nothing of it counts."""
        event, head, data = b"", b"", list[bytes]()
        for line in self._event:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value
            elif name == b"id" and len(value) <= _LONGEST_ID and value.isascii() and value.decode().isprintable():
                head += b"id: %b\n" % value
            elif name == b"retry" and value.isdigit() and int(value[:9]) <= _LONGEST_PLAUSIBLE_MS:
                head += b"retry: %d\n" % min(max(int(value[:9]), _SHORTEST_RETRY_MS), _LONGEST_RETRY_MS)
        self._event, self._size = [], 0
        if event == b"endpoint" and self._has_endpoint and len(data) == 1:
            self._has_endpoint = False
            return b"event: endpoint\ndata: %b\n\n" % data[0]
        message = (
            self._readable(without(clean_json(b"\n".join(data)), self._credentials))
            if event in (b"", b"message")
            else None
        )
        if message is not None:
            return head + b"event: message\ndata: " + message.replace(b"\n", b"\ndata: ") + b"\n\n"
        return b"" if is_last or not head else head + b"\n"

    def _readable(self, message: bytes) -> bytes | None:
        """Return a message as the SDK can read it; None where that cannot be, or it answers what was not asked."""
        try:
            found = _decode(message)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            written = _strictly(message)
            return None if written is None else self._readable(written)
        if found.method == "notifications/progress" and _is_object(found.params):
            return _progress(bytes(found.params))
        return message if found.jsonrpc == "2.0" and self._is_message(found) else None

    def _is_message(self, found: _Message) -> bool:
        is_id = isinstance(found.id, str | int) and not isinstance(found.id, bool)
        if found.method is not None:
            is_called = isinstance(found.method, str) and (_is_object(found.params) or found.params == _NULL)
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


def _strictly(message: bytes) -> bytes | None:
    """Write JSON anew that has numbers which JSON does not know; None where it is no object."""
    try:
        value: Json = json.loads(message)
    except (ValueError, RecursionError):
        return None
    written = json_from_value(value) if is_object(value) else message
    return None if written == message else written
