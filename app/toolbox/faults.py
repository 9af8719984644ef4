"""Why a message got no MCP answer: from an HTTP response or a transport error to a fault. Pure.

Nothing a server sent as a body, and no address, header or text of an exception, gets into a fault. Two things of a
server's are kept: its status, and the challenge of one that wants authorization.
"""

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import httpx2

from app.domain.jsontypes import Json, is_object

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
ENCODED = Fault("foreign", "The server's reply is compressed, which was not asked for.")

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


def fault_of_foreign(response: httpx2.Response) -> Fault:
    """Say that a successful answer is not MCP."""
    media = media_type(response)
    kind = f" of type {media}" if _MEDIA_TYPE.fullmatch(media) else ""
    return Fault("foreign", f"The server answered with something{kind} that is not MCP.", response.status_code)


def media_type(response: httpx2.Response) -> str:
    """Return the media type in lower case and without parameters; empty where there is none."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_encoded(response: httpx2.Response) -> bool:
    """Tell whether a body is compressed. It is not read then: 300 KiB may become 300 MiB."""
    return response.headers.get("content-encoding", "").strip().lower() not in ("", "identity")


def is_answer(body: bytes) -> bool:
    """Tell whether a body is a JSON-RPC result or error."""
    value = _json_or_none(body)
    return is_object(value) and value.get("jsonrpc") == "2.0" and not value.keys().isdisjoint(("result", "error"))


def error_in(body: bytes) -> bytes | None:
    """Return the JSON-RPC error that an error body holds, written anew; None where it holds none."""
    value = _json_or_none(body)
    error: Json = value.get("error") if is_object(value) and value.get("jsonrpc") == "2.0" else None
    if not is_object(error) or type(error.get("code")) is not int or not isinstance(error.get("message"), str):
        return None
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()


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
