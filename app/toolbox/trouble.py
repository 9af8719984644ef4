"""The one exception between the modules of this room: a server that cannot be used, or a call that has no result.

Its text may be shown: no address, no header, no foreign body. What a server says in a proper MCP error is passed on,
cleaned and capped, and without the secrets that we sent there.
"""

from urllib.parse import parse_qsl, urlsplit

from mcp import MCPError
from mcp_types import INVALID_REQUEST, PARSE_ERROR

from app.domain.spec import ServerSpec
from app.toolbox.egress import Exchange
from app.toolbox.faults import Fault
from app.toolbox.results import clean_text

_MESSAGE_CHARACTERS = 2000
_SHORTEST_SECRET = 6
"""Shorter words of a header, like `Bearer` or a team's number, are no secrets and would mask half the text."""


class Trouble(Exception):
    """What went wrong: one of the call codes and a sentence for people."""

    def __init__(
        self, code: str, reason: str, *, fault: Fault | None = None, again: bool = False, rpc_code: int | None = None
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.again = again
        """Nothing was executed for sure, and a new connection may do better."""
        self.wants_auth = fault is not None and fault.kind == "auth"
        self.challenge = fault.challenge if fault is not None else None
        self.rpc_code = rpc_code


def masked(text: str, server: ServerSpec) -> str:
    """Take out the words of the server's headers and query that may be secrets, in case it says them back."""
    words = [word for value in server.headers.values() for word in value.reveal().split() if word.lower() != "bearer"]
    words += [value for _, value in parse_qsl(urlsplit(server.url).query)]
    for word in words:
        if len(word) >= _SHORTEST_SECRET:
            text = text.replace(word, "…")
    return text


def trouble_from_fault(fault: Fault, server: ServerSpec) -> Trouble:
    """Say what a fault means for the call that met it."""
    if fault.kind == "unreachable":
        return Trouble("server_unreachable", fault.reason, fault=fault, again=True)
    if fault.kind == "gone":
        return Trouble("connection_lost", fault.reason, fault=fault, again=True)
    if fault.kind == "lost" or fault.status in (502, 503, 504):
        return Trouble("tool_outcome_unknown", fault.reason, fault=fault)
    if fault.challenge:
        challenge = masked(clean_text(fault.challenge)[0][:_MESSAGE_CHARACTERS], server)
        fault = Fault(fault.kind, fault.reason, fault.status, challenge)
    return Trouble("tool_failed", fault.reason, fault=fault)


def trouble_from_error(error: MCPError, exchange: Exchange, server: ServerSpec) -> Trouble:
    """Say what an error in place of a result means. The SDK's own errors are told by what the exchange saw."""
    if exchange.fault is not None:
        return trouble_from_fault(exchange.fault, server)
    return _trouble_seen(exchange, error) or _trouble_said(error, server)


def _trouble_seen(exchange: Exchange, error: MCPError) -> Trouble | None:
    status = exchange.status or 0
    if exchange.broke_off:
        return Trouble("connection_lost", "The connection broke off before the answer came.")
    if not exchange.attempted:
        return Trouble("connection_lost", "The connection was lost.", again=True)
    if 300 <= status < 400:
        return Trouble("server_unreachable", "The server sends the request to another place, which is not followed.")
    if status == 202 and error.code == INVALID_REQUEST:
        return Trouble("tool_outcome_unknown", "The server took the request and did not answer it.")
    return None


def _trouble_said(error: MCPError, server: ServerSpec) -> Trouble:
    if error.code == PARSE_ERROR:  # the SDK's, with the unreadable text in it
        return Trouble("tool_failed", "The server's answer cannot be read.")
    said = masked(clean_text(error.message)[0].strip()[:_MESSAGE_CHARACTERS], server)
    return Trouble("tool_failed", said or "The server reported an error.", rpc_code=error.code)
