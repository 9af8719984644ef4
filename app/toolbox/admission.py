"""May we connect there? Decided from text, policy and DNS answers that the caller looked up; does no I/O itself.

`judge_server` comes first and needs no look-up: what it refuses is a `rejected` server. Where it asks for addresses,
who dials resolves `lookup_name` and gives all answers to `judge_answers`, which says what may be dialled; nothing else
is. Who put the server there decides, never its name or address.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, TypeAlias

from app.domain.spec import ServerSpec, Trust
from app.toolbox.addresses import Network, Refused, UrlParts, is_within, reach_from_address, split_url
from app.toolbox.headers import fault_of_headers

UserServers: TypeAlias = Literal["off", "listed", "public"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows beyond the defaults, and what not."""

    allow_insecure_urls: bool = False
    """`MCP_ALLOW_INSECURE_URLS`: servers from requests may be `localhost`, loopback and RFC 1918, over http too."""
    max_headers: int = 32
    """`TOOLFERRY_MAX_SERVER_HEADERS`."""
    user_servers: UserServers = "public"
    """`TOOLFERRY_USER_SERVERS`: what servers requests may bring; `listed` lets none in where there are no hosts."""
    user_hosts: tuple[str, ...] = ()
    """`TOOLFERRY_USER_SERVER_HOSTS`: names in lower case, `.name` for all below it. Where there are some, a request may
    bring no other; that grants nothing which is refused otherwise."""
    user_nets: tuple[Network, ...] = ()
    """`TOOLFERRY_USER_SERVER_NETS`: what requests may reach besides public addresses, over http too and on any port."""
    user_ports: tuple[tuple[int, int], ...] = ((443, 443), (1024, 65535))
    """`TOOLFERRY_USER_SERVER_PORTS`: of public addresses; from and to, both included."""
    deny_nets: tuple[Network, ...] = ()
    """`TOOLFERRY_DENY_NETS`: for nobody, whatever else allows them."""
    deny_hosts: tuple[str, ...] = ()
    """`TOOLFERRY_DENY_HOSTS`: for nobody; written as `user_hosts`."""


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
    refusal = _refusal_of_host(parts.host, server.trust, policy)
    if refusal is not None:
        return refusal
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


def may_be_ourselves(admitted: Admitted, address: str, policy: Policy) -> bool:
    """Tell whether a vetted address may turn out to be one of this machine.

    A public or a granted one may not: at our own address there may be what trusts this machine.
    """
    return admitted.trust == "operator" or policy.allow_insecure_urls or reach_from_address(address) == "loopback"


def _refusal_of_host(host: str, trust: Trust, policy: Policy) -> Refused | None:
    if _is_among(host, policy.deny_hosts):
        return Refused("host_refused", "Servers of this name are not connected to.")
    if trust == "operator":
        return None
    if policy.user_servers == "off":
        return Refused("servers_off", "Only servers that the operator has set up can be used.")
    if (policy.user_hosts or policy.user_servers == "listed") and not _is_among(host, policy.user_hosts):
        return Refused("host_refused", "The server is not among those that the operator allows.")
    return None


def _is_among(host: str, names: Sequence[str]) -> bool:
    return any(host.endswith(name) if name.startswith(".") else host == name for name in names)


def _refusal_of_address(admitted: Admitted, address: str, policy: Policy) -> Refused | None:
    reach = reach_from_address(address)
    if reach == "never" or is_within(address, policy.deny_nets):
        return Refused("address_refused", "The server's address is one that is never connected to.")
    if admitted.trust == "operator":
        if reach == "public" and admitted.scheme == "http" and not admitted.plain_http_public:
            return Refused("scheme_refused", "Plain http goes only to addresses that are not public; use https.")
        return None
    is_local = policy.allow_insecure_urls and reach in {"loopback", "private"}
    if is_local or is_within(address, policy.user_nets):
        return None
    if reach != "public":
        return Refused("address_refused", "The server's address is not a public one.")
    return _refusal_of_public(admitted.scheme, admitted.port, policy)


def _refusal_of_name(parts: UrlParts, policy: Policy) -> Refused | None:
    if policy.allow_insecure_urls and parts.host == "localhost":
        return None
    if "." not in parts.host or f".{parts.host}".endswith(_LOCAL_SUFFIXES):
        return Refused("host_refused", "The server's name is not one of the public internet.")
    if policy.allow_insecure_urls or policy.user_nets:
        # The name may lead to a private address, where http and any port are fine: its answers decide.
        return None
    return _refusal_of_public(parts.scheme, parts.port, policy)


def _refusal_of_public(scheme: str, port: int, policy: Policy) -> Refused | None:
    if scheme != "https":
        return Refused("scheme_refused", "Only https addresses are allowed.")
    if port in _OTHER_PROTOCOLS or not any(first <= port <= last for first, last in policy.user_ports):
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
    (
        *(1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104),
        *(109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515),
        *(526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995),
        *(1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566),
        *(6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080),
    )
)
"""Ports that browsers refuse to speak HTTP to (the Fetch standard's list), whatever ports are allowed."""
