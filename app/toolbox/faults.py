"""What became of a message: from an HTTP response or a transport error to an answer, another place, or a fault. Pure.

Nothing a server sent as a body, and no address, header or text of an exception, gets into a fault. Two things of a
server's are kept: its status, and the challenge of one that wants authorization.
"""

import json
import math
import re
import ssl
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

import httpx2
import msgspec
from anyio import CancelScope, current_time
from mcp_types import INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION, URL_ELICITATION_REQUIRED

from app.domain.jsontypes import Json, JsonObject, is_deeper, is_object

FaultKind: TypeAlias = Literal["unreachable", "lost", "auth", "gone", "status", "foreign"]
"""`unreachable`: nothing was sent. `lost`: sent, no answer. `auth`: 401, or 403 with a challenge. `gone`: the server
does not know the session. `status`: another HTTP error. `foreign`: an answer that is not MCP, or too large."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no answer. `reason` is a sentence for people."""

    kind: FaultKind
    reason: str
    status: int | None = None
    challenge: str | None = None
    """`WWW-Authenticate`; only with `auth`, and empty where a 401 came without."""


_TAKE_UPS = 3


@dataclass(slots=True)
class Exchange:
    """One request on its way: how long its answer may be silent, and what became of it on the level of HTTP."""

    read_seconds: float | None
    """None where silence is no fault."""
    on_fault: Callable[[], None] | None = None
    """Called where the answer would come on another stream, so that nobody waits for it."""
    attempted: bool = False
    status: int | None = None
    fault: Fault | None = None
    broke_off: bool = False
    """An event stream began to answer and ended."""
    is_undispatched: bool = False
    """The transport refused the message before anything could run."""
    is_said: bool = False
    """The error is the server's own word and not the SDK's."""
    ends_at: float = math.inf
    """When its answer, if it still comes, is cut: nobody waits for it any more."""
    wait: CancelScope | None = None
    """The wait for its answer, while there is one."""
    inquiry: object = None
    """Whom the server may ask on the stream that answers it (an `Inquiry`)."""
    is_asked: bool = False
    """Somebody waits for its answer; not the handshake, in whose context the connection's own stream is read."""
    request_id: Json = None
    """Of the message that was sent last."""
    taken_up_after: str | None = None
    take_ups: int = 0
    """How often its answer was taken up after the same event, where its stream broke off."""

    def may_be_taken_up(self, event_id: str) -> bool:
        """Tell whether to go on with an answer that broke off: a few times, and anew once something new has come."""
        self.take_ups = self.take_ups + 1 if event_id == self.taken_up_after else 1
        self.taken_up_after = event_id
        return self.take_ups <= _TAKE_UPS and current_time() <= self.ends_at

    def end_within(self, seconds: float) -> None:
        """Nobody waits for its answer any more: what is under way may go on for so long."""
        self.ends_at = current_time() + seconds
        if self.wait is not None:
            self.wait.deadline = self.ends_at


under_way: ContextVar[Exchange | None] = ContextVar("under_way", default=None)
"""The exchange of the request that this context sends. The SDK posts in its sender's context."""


TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError)
"""All that sending may raise: `ValueError` for header values, `RuntimeError` for streams that were closed meanwhile."""

_REASONS: Mapping[type[Exception], Fault] = {
    httpx2.ConnectTimeout: Fault("unreachable", "The server did not accept the connection in time."),
    httpx2.ConnectError: Fault("unreachable", "The server does not accept connections."),
    httpx2.PoolTimeout: Fault("unreachable", "Too many requests to the server are under way."),
    httpx2.UnsupportedProtocol: Fault("unreachable", "The server's address cannot be used."),
    httpx2.ReadTimeout: Fault("lost", "The server did not answer in time."),
}
"""What is not in here was lost on the way: it may have been received, and it may have been executed."""

TOO_LARGE = Fault("foreign", "The server's reply is too large.")
UNHEARD = Fault("lost", "The server did not answer, and nobody waits for it any more.")
UNREADABLE = Fault("lost", "The server's answer cannot be read.")
ENCODED = Fault("foreign", "The server's reply is compressed, which was not asked for.")

_STRANGER = re.compile(
    rb"protocol.?version|session.?id\b|session\W+(was\W+|is\W+)?not\W+found|(unknown|no such|invalid|missing) session"
    rb"|not (yet )?(been )?initiali[sz]ed",
    re.IGNORECASE,
)
"""What transports say when they refuse a message that is not of their version or session."""
_STRANGER_BYTES = 2000
_DATA_BYTES = 4096
_DATA_DEPTH = 16

_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,32}/[a-z0-9.+-]{1,64}")


def fault_of_error(error: Exception) -> Fault:
    """Say what a transport error means."""
    fault = _REASONS.get(type(error), Fault("lost", "The connection broke off before the server answered."))
    if isinstance(error, httpx2.ConnectError) and _is_tls(error):
        return Fault("unreachable", "No trusted TLS connection to the server can be made.")
    return fault


def fault_of_status(response: httpx2.Response, *, had_session: bool) -> Fault:
    """Say what an HTTP error status means, for a request that named a session or did not."""
    status = response.status_code
    challenge = response.headers.get("www-authenticate")
    if status == 401 or (status == 403 and challenge is not None):
        return Fault("auth", "The server wants authorization.", status, challenge or "")
    if status == 404 and had_session:
        return Fault("gone", "The server has forgotten the session.", status)
    wait = response.headers.get("retry-after", "")
    hint = f" and asks to wait {int(wait)} seconds" if re.fullmatch(r"[0-9]{1,6}", wait) else ""
    return Fault("status", f"The server answered with HTTP status {status}{hint}.", status)


def is_undispatched(status: int, body: bytes, answer: JsonObject | None, request_id: Json) -> bool:
    """Tell whether an HTTP error comes from the transport, before anything that could run a tool saw the message.

    A 404 or 405 without a JSON-RPC error does: there is no such place or session. Others must speak of the version or
    the session, and must not answer our request: a tool may say such words too, after it has run.
    """
    if answer is None:
        return status in (404, 405) or (status == 400 and _speaks_of_us(body))
    error: Json = answer.get("error")
    if not is_object(error):
        return False
    is_ours = answer.get("id") is not None and is_answer_to(answer, str(request_id))
    if is_ours and error["code"] not in (INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION):
        return False
    return status in (400, 404) and _speaks_of_us(body)


def _speaks_of_us(body: bytes) -> bool:
    return _STRANGER.search(body[:_STRANGER_BYTES]) is not None


def fault_of_foreign(response: httpx2.Response) -> Fault:
    """Say that a successful answer is not MCP."""
    media = media_type(response)
    kind = f" of type {media}" if _MEDIA_TYPE.fullmatch(media) else ""
    return Fault("foreign", f"The server answered with something{kind} that is not MCP.", response.status_code)


def request_elsewhere(request: httpx2.Request, response: httpx2.Response) -> httpx2.Request | None:
    """Return the request that a redirect asks for; None where it would leave the origin or lose its method.

    To https on the same host is no other origin, where both ports are the usual ones.
    """
    if not response.has_redirect_location or (request.method != "GET" and response.status_code not in (307, 308)):
        return None
    try:
        url = request.url.join(response.headers["location"])
    except httpx2.InvalidURL:
        return None
    origins = [(place.scheme, place.host, place.port) for place in (request.url, url)]
    if origins[0] != origins[1] and origins != [("http", url.host, None), ("https", url.host, None)]:
        return None
    return httpx2.Request(
        request.method, url, headers=request.headers, content=request.content, extensions=request.extensions
    )


def media_type(response: httpx2.Response) -> str:
    """Return the media type in lower case and without parameters; empty where there is none."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_encoded(response: httpx2.Response) -> bool:
    """Tell whether a body is compressed. It is not read then: 300 KiB may become 300 MiB."""
    return response.headers.get("content-encoding", "").strip().lower() not in ("", "identity")


class Sent(msgspec.Struct):
    """What is looked at of a message of ours. A request has a method and an id, a notification no id."""

    id: Json = None
    method: str = ""

    @property
    def is_request(self) -> bool:
        return bool(self.method) and self.id is not None


class _Error(msgspec.Struct):
    code: Json = None
    message: Json = None
    data: msgspec.Raw = msgspec.Raw(b"null")  # immutable


class _Envelope(msgspec.Struct):
    """A JSON-RPC answer. Result and data stay as they are: they may be megabytes, and the SDK decodes them anyway."""

    jsonrpc: Json = None
    id: Json = None
    result: msgspec.Raw = msgspec.Raw(b"")  # immutable
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Envelope).decode
sent_message = msgspec.json.Decoder(Sent).decode
"""Reads a message that the SDK wrote."""


def answer_in(body: bytes) -> JsonObject | None:
    """Return the JSON-RPC result or error that a body holds, without the result's content; None where it holds none."""
    try:
        envelope = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        value = _json_or_none(body)  # more lenient, as the SDK is: numbers and texts that JSON does not know
    else:
        is_object_text = bytes(memoryview(envelope.result)[:1]) == b"{"
        result: Json = {} if is_object_text else None
        error: Json = None if envelope.error is None else _error_json(envelope.error)
        value = {"jsonrpc": envelope.jsonrpc, "id": envelope.id, "result": result, "error": error}
    if not is_object(value) or value.get("jsonrpc") != "2.0":
        return None
    error = value.get("error")
    if is_object(error):
        return value if type(error.get("code")) is int and isinstance(error.get("message"), str) else None
    return value if is_object(value.get("result")) else None


def _error_json(error: _Error) -> JsonObject:
    found: JsonObject = {"code": error.code, "message": error.message}
    if len(memoryview(error.data)) <= _DATA_BYTES:
        found["data"] = _json_or_none(bytes(error.data))
    return found


def error_in(answer: JsonObject | None) -> bytes | None:
    """Write the error of an answer anew, for whatever request it answers; None where there is none.

    Its data comes along only where it is read: the SDK gives up on what nests deep, and the message with it.
    """
    error: Json = None if answer is None else answer.get("error")
    if not is_object(error):
        return None
    told = {key: error[key] for key in ("code", "message")}
    is_read = error["code"] in (UNSUPPORTED_PROTOCOL_VERSION, URL_ELICITATION_REQUIRED)
    if is_read and "data" in error and not is_deeper(error["data"], _DATA_DEPTH):
        told["data"] = error["data"]
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": told}).encode()


def is_answer_to(answer: JsonObject, request_id: str) -> bool:
    """Tell whether an answer is that of a request. An error may lack the id, where the server could not read it."""
    answered: Json = answer.get("id")
    if answered is None:
        return is_object(answer.get("error"))
    return not isinstance(answered, bool) and str(answered) == request_id


def _json_or_none(body: bytes) -> Json:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
