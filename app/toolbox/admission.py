"""May we connect there? Decided from text, policy and DNS answers that the caller looked up; does no I/O itself.

`judge_server` comes first and needs no look-up: what it refuses is a `rejected` server. Where it asks for addresses,
the caller resolves `lookup_name` and gives all answers to `judge_answers`, which says what may be dialled. Whether just
that is dialled is the caller's part; a name may lead elsewhere by the time it is looked up again.
Who put the server there decides, never its name or address.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

from app.domain.spec import ServerSpec, Trust
from app.toolbox.addresses import Refused, UrlParts, reach_from_address, split_url
from app.toolbox.headers import fault_of_headers


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows beyond the defaults."""

    allow_insecure_urls: bool = False
    """`MCP_ALLOW_INSECURE_URLS`: servers from requests may be `localhost`, loopback and RFC 1918, over http too."""
    max_headers: int = 32
    """`TOOLFERRY_MAX_SERVER_HEADERS`."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A server that may be connected to, as far as its text tells. Its origin is (scheme, host, port)."""

    scheme: Literal["http", "https"]
    host: str
    """In lower case; an IPv6 address in its short form, without brackets."""
    port: int
    trust: Trust
    addresses_needed: bool
    """The host is a name; False where it is an address that has been judged and can be dialled as it is."""
    plain_http_public: bool = False
    """The operator sends this server's secrets in clear text over the internet, on purpose."""

    @property
    def lookup_name(self) -> str:
        """What to ask the resolver: absolute for servers from requests, so that no search list applies."""
        absolute = self.addresses_needed and self.trust == "user" and self.host != "localhost"
        return f"{self.host}." if absolute else self.host


def judge_server(server: ServerSpec, policy: Policy) -> Admitted | Refused:
    """Decide from the URL's text, the headers and the policy alone."""
    parts = split_url(server.url)
    if isinstance(parts, Refused):
        return parts
    fault = fault_of_headers(server.headers, policy.max_headers)
    if fault is not None:
        return Refused("headers_refused", fault)
    admitted = Admitted(
        scheme=parts.scheme,
        host=parts.host,
        port=parts.port,
        trust=server.trust,
        addresses_needed=not parts.literal,
        plain_http_public=server.trust == "operator" and server.allow_plain_http_public,
    )
    if parts.literal:
        return _refusal_of_address(admitted, parts.host, policy) or admitted
    if server.trust == "user":
        return _refusal_of_name(parts, policy) or admitted
    return admitted


def judge_answers(admitted: Admitted, addresses: Sequence[str], policy: Policy) -> tuple[str, ...] | Refused:
    """Vet all answers to the look-up: the addresses that may be dialled, in order, or a refusal when ANY is bad.

    Dialling only the good ones of a mixed answer would make the outcome depend on their order.
    """
    if not addresses:
        return Refused("no_address", "The host has no address.")
    for address in addresses:
        refusal = _refusal_of_address(admitted, address, policy)
        if refusal is not None:
            return refusal
    return tuple(dict.fromkeys(str(ip_address(address)) for address in addresses))


def _refusal_of_address(admitted: Admitted, address: str, policy: Policy) -> Refused | None:
    reach = reach_from_address(address)
    if admitted.trust == "operator":
        if reach == "never":
            return Refused("address_refused", "The server's address is one that is never connected to.")
        if reach == "public" and admitted.scheme == "http" and not admitted.plain_http_public:
            return Refused("scheme_refused", "Plain http goes only to addresses that are not public; use https.")
        return None
    if policy.allow_insecure_urls and reach in {"loopback", "private"}:
        return None
    if reach != "public":
        return Refused("address_refused", "The server's address is not a public one.")
    return _refusal_of_public(admitted.scheme, admitted.port)


def _refusal_of_name(parts: UrlParts, policy: Policy) -> Refused | None:
    if policy.allow_insecure_urls and parts.host == "localhost":
        return None
    if "." not in parts.host or f".{parts.host}".endswith(_LOCAL_SUFFIXES):
        return Refused("host_refused", "The server's name is not one of the public internet.")
    if policy.allow_insecure_urls:
        # The name may lead to a private address, where http and any port are fine: its answers decide.
        return None
    return _refusal_of_public(parts.scheme, parts.port)


def _refusal_of_public(scheme: str, port: int) -> Refused | None:
    if scheme != "https":
        return Refused("scheme_refused", "Only https addresses are allowed.")
    if (port < 1024 and port != 443) or port in _OTHER_PROTOCOLS:
        return Refused("port_refused", "The port is not one that MCP servers may use.")
    return None


_LOCAL_SUFFIXES = tuple(
    f".{name}"
    for name in (
        # RFC 6761, 6762, 7686, 8375, 9476: resolved on the spot, by other means than DNS, or not at all
        *("localhost", "local", "arpa", "onion", "invalid", "test", "alt"),
        # never delegated, and what the hosts files and routers of private networks use
        *("localdomain", "localdomain4", "localdomain6", "localnet", "internal", "intranet", "private", "corp"),
        *("home", "lan", "mail", "domain", "workgroup", "i2p", "metadata.goog"),
    )
)

_OTHER_PROTOCOLS = frozenset(
    (1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080)
)
"""Ports from 1024 up that browsers refuse to speak HTTP to (the Fetch standard's list)."""
