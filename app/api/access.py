"""Who may call: what the operator allows, as the gate and the key check apply it. Pure."""

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass

from app.api.keys import ApiKey

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]@/?#\s]+)(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@\s]+)")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Access:
    """What the operator allows."""

    needs_key: bool = True
    """`TOOLFERRY_AUTH`."""
    keys: tuple[ApiKey, ...] = ()
    hosts: tuple[str, ...] = _LOOPBACK_NAMES
    """`TOOLFERRY_ALLOWED_HOSTS`: in lower case, `name` for any port or `name:port`."""
    origins: tuple[str, ...] = ()
    """`TOOLFERRY_CORS_ORIGINS`: as browsers write them."""

    def is_own_host(self, host: str) -> bool:
        """Tell whether a `Host` header names this service."""
        match = _HOST.fullmatch(host.lower())
        return match is not None and bool({match["name"], match[0]} & set(self.hosts))

    def is_welcome(self, origin: str, *, scheme: str, host: str) -> bool:
        """Tell whether a page of this origin may call: one that is listed, or that came from this service itself."""
        asked = _plain_origin(origin)
        return origin in self.origins or (asked is not None and asked == _plain_origin(f"{scheme}://{host}"))


def access_to(
    listener: str, *, needs_key: bool, keys: tuple[ApiKey, ...], hosts: tuple[str, ...], origins: tuple[str, ...]
) -> Access:
    """Make what holds for a listener at an address or a name.

    Raises:
        ValueError: It would be open to others; the message names the setting.
    """
    is_local = is_loopback(listener)
    if not needs_key and keys:
        raise ValueError("TOOLFERRY_AUTH: none does not go with keys; leave out TOOLFERRY_API_KEYS, or this")
    if not needs_key and not is_local:
        raise ValueError("TOOLFERRY_AUTH: none is only for a service that listens on loopback")
    if needs_key and not keys and not is_local:
        raise ValueError("TOOLFERRY_API_KEYS: is needed; `toolferry key NAME` makes a key and its entry")
    if not hosts and not is_local:
        needed = "is needed where others than this machine can call: the names by which they reach the service"
        raise ValueError(f"TOOLFERRY_ALLOWED_HOSTS: {needed}")
    own = f"[{listener}]" if ":" in listener else listener.lower()
    local = (*_LOOPBACK_NAMES, own) if is_local else ()
    return Access(needs_key=needs_key, keys=keys, hosts=(*hosts, *local), origins=origins)


def _plain_origin(origin: str) -> tuple[str, str, str] | None:
    """Take an origin apart, with its default port written out; None where it is none."""
    match = _ORIGIN.fullmatch(origin.lower())
    host = _HOST.fullmatch(match[2]) if match else None
    if match is None or host is None:
        return None
    return match[1], host["name"], host["port"] or _DEFAULT_PORTS[match[1]]


def hosts_from_text(text: str) -> tuple[str, ...]:
    """Read host names, separated by commas.

    Raises:
        ValueError: One is not of the form `name`, `name:port` or `[address]`; the message quotes nothing of it.
    """
    hosts = _listed(text)
    for position, host in enumerate(hosts, start=1):
        if not _HOST.fullmatch(host) or "*" in host or not host.isascii():
            raise ValueError(f"entry {position} is no host name: give names as in a URL, without scheme and path")
    return tuple(host.removesuffix(":443").removesuffix(":80") for host in hosts)


def origins_from_text(text: str) -> tuple[str, ...]:
    """Read origins, separated by commas.

    Raises:
        ValueError: One is not of the form `https://name` or `https://name:port`; `*` is none.
    """
    origins = _listed(text)
    for position, origin in enumerate(origins, start=1):
        if _plain_origin(origin) is None or "*" in origin or not origin.isascii():
            raise ValueError(f"entry {position} is no origin: give exact ones such as https://chat.example.com")
    # Browsers leave default ports out.
    return tuple(origin.removesuffix(":443" if origin.startswith("https:") else ":80") for origin in origins)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.strip().lower() for entry in text.split(",") if entry.strip()))


def is_loopback(host: str, names: Collection[str] = ("localhost",)) -> bool:
    """Tell whether a listener at this address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in names
