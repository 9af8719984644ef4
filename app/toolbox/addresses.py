"""Reads addresses: a URL as text, and how far away an IP address is. Knows nothing of who asks or what is allowed.

A URL is judged on its raw characters, before any parser sees it: one canonical spelling, everything else is refused and
not repaired. The address table is our own: `ipaddress.is_global` takes several metadata, multicast and translated
addresses for public ones.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, TypeAlias

RefusalCode: TypeAlias = Literal[
    "bad_url",
    "scheme_refused",
    "host_refused",
    "port_refused",
    "address_refused",
    "headers_refused",
    "servers_off",
    "no_address",
    "dns_busy",
    "unreachable",
]
"""The last three come of looking up and dialling, the others of what is written."""

Network: TypeAlias = IPv4Network | IPv6Network

Reach: TypeAlias = Literal["public", "loopback", "private", "internal", "never"]
"""`private` is RFC 1918; `internal` the rest that only an operator may reach (carrier-grade NAT, unique local);
`never` what is no destination for anyone: metadata, link-local, unspecified, multicast, reserved, documentation."""

MAX_URL_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a server is not connected to."""

    code: RefusalCode
    reason: str
    """A sentence for people; never repeats the URL or a header value."""


@dataclass(frozen=True, slots=True)
class UrlParts:
    """What an accepted URL says. `host` is in lower case, an IPv6 address in its short form and without brackets."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    literal: bool
    """The host is an IP address."""
    path: str
    query: str | None
    """What follows the first `?`, undecoded; None where there is none."""


_TEXT = re.compile(r"[!-~]+")
_URL = re.compile(r"(?P<scheme>[A-Za-z]+)://(?P<authority>[^/?]+)(?P<path>/[^?]*)?(?:\?(?P<query>.*))?")
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?",
)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label like this makes the whole host an IPv4 address for a WHATWG parser."""


def split_url(url: str) -> UrlParts | Refused:
    """Take a URL apart, or say why its text is not accepted."""
    match = _URL.fullmatch(url)
    fault = _fault_of_text(url, match)
    if fault is not None or match is None:
        return Refused("bad_url", fault or "The address is not a URL of the form https://host/path.")
    scheme = match["scheme"].lower()
    if scheme not in {"http", "https"}:
        return Refused("scheme_refused", "Only http and https addresses can be MCP servers.")
    authority = _AUTHORITY.fullmatch(match["authority"])
    host = _host(authority["v6"], authority["name"]) if authority else None
    port = int((authority and authority["port"]) or (443 if scheme == "https" else 80))
    if host is None or not 0 < port < 65536:
        return Refused("bad_url", "The host or port of the address is not written in an accepted form.")
    return UrlParts(
        scheme="https" if scheme == "https" else "http",
        host=host[0],
        port=port,
        literal=host[1],
        path=match["path"] or "/",
        query=match["query"],
    )


def origin_of(url: str) -> str:
    """Return a URL without its path and query."""
    match = _URL.fullmatch(url)
    return f"{match['scheme']}://{match['authority']}".lower() if match else url


def _fault_of_text(url: str, match: re.Match[str] | None) -> str | None:
    if len(url) > MAX_URL_CHARACTERS:
        return f"The address is longer than {MAX_URL_CHARACTERS} characters."
    if not _TEXT.fullmatch(url) or "\\" in url:
        return "The address is empty or holds spaces, backslashes, control or non-ASCII characters."
    if "#" in url:
        return "The address must not hold a fragment."
    if match is not None and "@" in match["authority"]:
        return "The address must not hold a user name or password; put credentials into headers."
    return None


def _host(v6: str | None, name: str | None) -> tuple[str, bool] | None:
    """Return the canonical host and whether it is an IP address; None where it is neither address nor name."""
    try:
        if v6 is not None:
            return str(IPv6Address(v6)), True
        host = (name or "").lower()
        labels = host.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return str(IPv4Address(host)), True
    except ValueError:
        return None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        return None
    return host, False


def _table(*rows: tuple[str, Reach]) -> tuple[tuple[int, int, Reach], ...]:
    entries: list[tuple[int, int, Reach]] = []
    for cidr, reach in rows:
        network = ip_network(cidr)
        entries.append((int(network.network_address), int(network.netmask), reach))
    return tuple(entries)


_IPV4 = _table(
    ("100.100.100.200/32", "never"),  # cloud metadata inside carrier-grade NAT
    ("168.63.129.16/32", "never"),  # cloud platform endpoint in public space
    ("0.0.0.0/8", "never"),  # this network; reaches this host
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "internal"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "never"),  # link-local, most cloud metadata
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "never"),  # protocol assignments, one of them a metadata address
    ("192.0.2.0/24", "never"),  # documentation
    ("192.88.99.0/24", "never"),  # 6to4 relays
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "never"),  # benchmarking
    ("198.51.100.0/24", "never"),  # documentation
    ("203.0.113.0/24", "never"),  # documentation
    ("224.0.0.0/4", "never"),  # multicast
    ("240.0.0.0/4", "never"),  # reserved, broadcast
)
"""A deny-list: what is not in it is public. The first matching row counts."""

_IPV6 = _table(
    ("::1/128", "loopback"),
    ("2001::/23", "never"),  # Teredo, benchmarking, ORCHID, protocol anycast
    ("2001:db8::/32", "never"),  # documentation
    ("2002::/16", "never"),  # 6to4
    ("3fff::/20", "never"),  # documentation
    ("2000::/3", "public"),
    ("fd00:ec2::/32", "never"),  # a cloud's metadata, time and credential endpoints
    ("fd20:ce::254/128", "never"),  # cloud metadata
    ("fd00:c1::a9fe:a9fe/128", "never"),  # cloud metadata
    ("fd00:42::42/128", "never"),  # cloud metadata
    ("fc00::/7", "internal"),
)
"""An allow-list: what is not in it is never a destination."""

_NAT64 = int(IPv6Address("64:ff9b::")) >> 32


def reach_from_address(address: str) -> Reach:
    """Tell how far away an IP address is; text that is no plain address, or has a zone, is `never`."""
    parsed = _plain_address(address)
    if parsed is None:
        return "never"
    # IPv6-only clusters reach all of IPv4 through NAT64; the address inside is the destination.
    parsed = _translated(parsed) or parsed
    if isinstance(parsed, IPv4Address):
        return _look_up(int(parsed), _IPV4) or "public"
    return _look_up(int(parsed), _IPV6) or "never"


def is_within(address: str, networks: Iterable[Network]) -> bool:
    """Tell whether an IP address, or the IPv4 one that it stands for, is in one of the networks."""
    parsed = _plain_address(address)
    if parsed is None:
        return False
    forms = (parsed, _translated(parsed) or parsed)
    return any(form in network for network in networks for form in forms if form.version == network.version)


def is_never_reached(network: Network) -> bool:
    """Tell whether no address of a network is a destination for anyone."""
    first, last = int(network.network_address), int(network.broadcast_address)
    table = _IPV4 if isinstance(network, IPv4Network) else _IPV6
    for base, mask, reach in table:
        if reach == "never" and first & mask == base == last & mask:
            return True
        if reach != "never" and (first & mask == base or base & int(network.netmask) == first):
            return False
    return isinstance(network, IPv6Network)


def _plain_address(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return None if isinstance(parsed, IPv6Address) and parsed.scope_id is not None else parsed


def _translated(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    is_nat64 = isinstance(address, IPv6Address) and int(address) >> 32 == _NAT64
    return IPv4Address(int(address) & 0xFFFFFFFF) if is_nat64 else None


def _look_up(number: int, table: tuple[tuple[int, int, Reach], ...]) -> Reach | None:
    return next((reach for base, mask, reach in table if number & mask == base), None)
