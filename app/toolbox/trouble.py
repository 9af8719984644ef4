"""The one exception between the modules of this room: a server that cannot be used, or a call that has no result.

Its text may be shown: no address, no header, no foreign body. What a server says in a proper MCP error is passed on,
cleaned and capped, and without the secrets that we sent there.

The code says what may have happened, in either era and over either transport alike:

- `server_unreachable`: nothing was sent, or it was sent on to a place that is not dialled; nothing ran.
- `connection_lost`: nothing ran, for sure: the request was not sent any more, or the server does not know the session.
- `tool_failed`: the server said so, in an MCP error or by an HTTP status.
- `tool_timeout`: it was silent for too long.
- `tool_outcome_unknown`: the request was sent, and no answer came that can be read; or a gateway answered in its place.
"""

import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR

from app.domain.jsontypes import Json
from app.domain.secrets import words_from_secret
from app.domain.spec import ServerSpec
from app.toolbox.cleaning import clean_text
from app.toolbox.faults import Exchange, Fault

_MESSAGE_CHARACTERS = 2000
_SHORTEST_SECRET = 6
"""Shorter words of a header, like `Bearer` or a team's number, are no secrets and would mask half the text."""
_MADE_UP = ("SSE stream ", "Failed to parse ")
"""How the SDK's sentences begin where an event stream holds no answer that it can use."""


class Trouble(Exception):
    """What went wrong: one of the call codes and a sentence for people."""

    def __init__(
        self,
        code: str,
        reason: str,
        *,
        fault: Fault | None = None,
        again: bool = False,
        rpc_code: int | None = None,
        data: Json = None,
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.again = again
        """Nothing was executed for sure, and a new connection may do better."""
        self.wants_auth = fault is not None and fault.kind == "auth"
        self.challenge = fault.challenge if fault is not None else None
        self.is_busy = fault is not None and fault.status in (429, 503)
        self.rpc_code = rpc_code
        self.data = data
        """What came with the server's error, as it came."""


_QUERY = re.compile(r"(?<=://)([^\s\"?]*)\?[^\s\"]*")


def masked(text: str, server: ServerSpec) -> str:
    """Take out the words of the server's headers and query that may be secrets, in case it says them back."""
    secrets = sorted(set(_secrets(server)), key=len, reverse=True)  # one may begin with another
    if not secrets:
        return text
    return re.sub("|".join(re.escape(secret) for secret in secrets), "…", text, flags=re.IGNORECASE)


def _secrets(server: ServerSpec) -> Iterator[str]:
    for value in server.headers.values():
        yield from words_from_secret(value)
        for word in re.split(r"[\s;,]+", value.reveal()):
            yield from (part for part in (word, word.partition("=")[2]) if _may_be_secret(part))
    for pair in re.split("[&;]", urlsplit(server.url).query):
        raw = pair.partition("=")[2] or pair
        for word in (unquote(raw), unquote_plus(raw)):
            yield from (form for form in (raw, word, quote(word, safe=""), quote_plus(word)) if _may_be_secret(form))


def _may_be_secret(word: str) -> bool:
    return len(word) >= _SHORTEST_SECRET and word.lower() != "bearer"


def said(text: str, server: ServerSpec) -> str:
    """Make a server's word fit to be shown: cleaned, without our secrets, and then capped, so that none is cut."""
    return masked(clean_text(text[: 8 * _MESSAGE_CHARACTERS]).strip(), server)[:_MESSAGE_CHARACTERS]


def trouble_from_fault(fault: Fault, server: ServerSpec) -> Trouble:
    """Say what a fault means for the call that met it."""
    if fault.kind == "unreachable":
        return Trouble("server_unreachable", fault.reason, fault=fault, again=True)
    if fault.kind == "gone":
        return Trouble("connection_lost", fault.reason, fault=fault, again=True)
    if fault.kind in ("lost", "foreign") or (fault.status is not None and (fault.status >= 500 or fault.status == 408)):
        # Behind a server error or a gateway's there may be a tool that ran.
        return Trouble("tool_outcome_unknown", fault.reason, fault=fault)
    if fault.challenge:
        challenge = _QUERY.sub(r"\1", said(fault.challenge, server))
        fault = Fault(fault.kind, fault.reason, fault.status, challenge)
    return Trouble("tool_failed", fault.reason, fault=fault)


def trouble_from_loss(*, was_sent: bool) -> Trouble:
    """Say what the end of its connection means for a call."""
    if was_sent:
        return Trouble("tool_outcome_unknown", "The connection was lost before the answer came.")
    return Trouble("connection_lost", "The connection was lost.", again=True)


def trouble_from_silence(seconds: float) -> Trouble:
    """Say that a call was waited for in vain."""
    return Trouble("tool_timeout", f"The server gave no sign of life for {seconds:g} seconds.")


def trouble_from_handshake(error: Exception, exchange: Exchange, server: ServerSpec) -> Trouble:
    """Say why a server cannot be talked to at all."""
    if isinstance(error, MCPError):
        return trouble_from_error(error, exchange, server)
    if isinstance(error, TimeoutError):
        return Trouble("server_unreachable", "The server did not answer in time.")
    return Trouble("server_unreachable", "The server's handshake is not that of an MCP server.")


def trouble_from_error(error: MCPError, exchange: Exchange, server: ServerSpec) -> Trouble:
    """Say what an error in place of a result means. The SDK's own errors are told by what the exchange saw."""
    if exchange.fault is not None:
        return trouble_from_fault(exchange.fault, server)
    if not exchange.is_said:
        made_up = _trouble_seen(exchange, error)
        if made_up is not None:
            return made_up
    reason = said(error.message, server) or "The server reported an error."
    return Trouble("tool_failed", reason, rpc_code=error.code, data=error.error.data)


def _trouble_seen(exchange: Exchange, error: MCPError) -> Trouble | None:
    status = exchange.status or 0
    if exchange.broke_off:
        return Trouble("tool_outcome_unknown", "The connection broke off before the answer came.")
    if not exchange.attempted or (error.code == CONNECTION_CLOSED and error.message == "Connection closed"):
        return trouble_from_loss(was_sent=exchange.attempted)
    if 300 <= status < 400:
        return Trouble("server_unreachable", "The server sends the request to another place, which is not followed.")
    if status == 202 and error.code == INVALID_REQUEST:
        return Trouble("tool_outcome_unknown", "The server took the request and did not answer it.")
    if error.code in (PARSE_ERROR, CONNECTION_CLOSED) and error.message.startswith(_MADE_UP):
        return Trouble("tool_outcome_unknown", "The server's answer is too large or cannot be read.")
    return None
