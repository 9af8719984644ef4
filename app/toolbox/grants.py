"""What an operator writes about where servers may be, and what they are reached through: texts become values. Pure.

Every function raises `ValueError` with a phrase that says which entry is wrong and quotes nothing of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_network
from typing import Literal, TypeVar
from urllib.parse import unquote

from app.domain.secrets import Secret
from app.toolbox.addresses import Network, UrlParts, is_never_reached, split_url

_WIDEST_V4, _WIDEST_V6 = 8, 7

_Some = TypeVar("_Some")


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """An HTTP proxy that all connections to MCP servers go through."""

    scheme: Literal["http", "https"]
    """How the proxy itself is spoken to."""
    host: str
    port: int
    credentials: tuple[Secret, Secret] | None = None
    """User name and password, either of which may be a token."""


def hosts_from_text(text: str) -> tuple[str, ...]:
    """Read host names, separated by commas: exact ones, or `.example.com` for all below it.

    Raises:
        ValueError: One is no name or address as it stands in a URL.
    """
    return _each(text, _host)


def nets_from_text(text: str) -> tuple[Network, ...]:
    """Read networks such as `10.20.0.0/16` or `fd12::/32`, separated by commas; a lone address is a network of one.

    Raises:
        ValueError: One is no network, or has bits behind its prefix.
    """
    return _each(text, _net)


def granted_nets_from_text(text: str) -> tuple[Network, ...]:
    """Read networks that requests may reach besides public addresses.

    Raises:
        ValueError: As `nets_from_text`; or one is never connected to, or too wide to be meant.
    """
    return _each(text, _granted_net)


def ports_from_text(text: str) -> tuple[tuple[int, int], ...]:
    """Read ports such as `443,1024-65535`.

    Raises:
        ValueError: One is no port or range of ports, or there are none.
    """
    ports = _each(text, _ports)
    if not ports:
        raise ValueError("holds no port")
    return ports


def proxy_from_text(text: str) -> EgressProxy:
    """Read the URL of a proxy such as `http://user:password@proxy.example:3128`.

    Raises:
        ValueError: It is no such URL.
    """
    scheme, _, rest = text.strip().partition("://")
    userinfo, at, place = rest.removesuffix("/").rpartition("@")
    parts = split_url(f"{scheme}://{place}")
    if not isinstance(parts, UrlParts) or parts.path != "/" or parts.query is not None:
        raise ValueError("is no proxy: give http://host:port or https://host:port, with user:password@ where it asks")
    credentials: tuple[Secret, Secret] | None = None
    if at:
        user, _, password = userinfo.partition(":")
        credentials = Secret(unquote(user)), Secret(unquote(password))
    return EgressProxy(parts.scheme, parts.host, parts.port, credentials)


def _each(text: str, read: Callable[[str], _Some]) -> tuple[_Some, ...]:
    found: list[_Some] = []
    entries = [entry.strip() for entry in text.split(",")]
    for position, entry in enumerate(filter(None, entries), start=1):
        try:
            found.append(read(entry))
        except ValueError as error:
            raise ValueError(f"entry {position} {error}") from None
    return tuple(dict.fromkeys(found))


def _host(entry: str) -> str:
    is_suffix = entry.startswith(".")
    bare = entry.removeprefix(".")
    parts = split_url(f"https://[{bare}]/" if ":" in bare else f"https://{bare}/")
    # No port and no path, which the same text would be in a URL.
    if not isinstance(parts, UrlParts) or set(bare) & set("/?@[]") or (is_suffix and parts.literal):
        raise ValueError("is no host: give a name or an address as in a URL, or .name for all names below it")
    return f"{'.' * is_suffix}{parts.host}"


def _net(entry: str) -> Network:
    try:
        net = ip_network(entry)
    except ValueError:
        raise ValueError("is no network: give its first address and prefix, such as 10.20.0.0/16") from None
    if isinstance(net, IPv6Network) and net.network_address.scope_id is not None:
        raise ValueError("has a zone, which no network has")
    return net


def _granted_net(entry: str) -> Network:
    net = _net(entry)
    widest = _WIDEST_V6 if isinstance(net, IPv6Network) else _WIDEST_V4
    if net.prefixlen < widest:
        raise ValueError(f"is wider than /{widest}")
    if is_never_reached(net):
        raise ValueError("is a network that is never connected to")
    return net


def _ports(entry: str) -> tuple[int, int]:
    first, dash, last = entry.partition("-")
    numbers = [text.strip() for text in ((first, last) if dash else (first, first))]
    if not all(text.isascii() and text.isdigit() and len(text) <= 5 for text in numbers):
        raise ValueError("is no port: give 443, or a range such as 1024-65535")
    low, high = map(int, numbers)
    if not 0 < low <= high < 65536:
        raise ValueError("is no port from 1 to 65535, or its range runs backwards")
    return low, high
