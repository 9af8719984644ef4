"""What an operator writes about where servers may be."""

from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.toolbox.addresses import is_never_reached, reach_from_address
from app.toolbox.grants import (
    granted_nets_from_text,
    hosts_from_text,
    nets_from_text,
    ports_from_text,
    proxy_from_text,
)

READ: list[tuple[Callable[[str], Any], str, Any]] = [
    (hosts_from_text, "", ()),
    (hosts_from_text, " , ", ()),
    (hosts_from_text, "MCP.Example.com, .tools.example.org,mcp.example.com", ("mcp.example.com", ".tools.example.org")),
    (hosts_from_text, "10.20.0.5,2620:004F:8000::6", ("10.20.0.5", "2620:4f:8000::6")),
    (hosts_from_text, "xn--bcher-kva.example,localhost", ("xn--bcher-kva.example", "localhost")),
    (nets_from_text, "", ()),
    (nets_from_text, "10.20.0.0/16, fd12::/32", (ip_network("10.20.0.0/16"), ip_network("fd12::/32"))),
    (nets_from_text, "192.175.48.6", (ip_network("192.175.48.6/32"),)),
    (nets_from_text, "0.0.0.0/0,169.254.0.0/16", (ip_network("0.0.0.0/0"), ip_network("169.254.0.0/16"))),
    (granted_nets_from_text, "10.0.0.0/8", (ip_network("10.0.0.0/8"),)),
    (granted_nets_from_text, "100.64.0.0/10", (ip_network("100.64.0.0/10"),)),
    (granted_nets_from_text, "fc00::/7,127.0.0.1,::1", tuple(map(ip_network, ("fc00::/7", "127.0.0.1", "::1")))),
    (ports_from_text, "443,1024-65535", ((443, 443), (1024, 65535))),
    (ports_from_text, " 8443 , 1 - 65535 ", ((8443, 8443), (1, 65535))),
]


@pytest.mark.parametrize(("read", "text", "value"), READ)
def test_what_is_written_properly_is_read(read: Callable[[str], Any], text: str, value: object) -> None:
    assert read(text) == value


MARKER = "marker-zz"
WRONG: list[tuple[Callable[[str], Any], str]] = [
    *[
        (hosts_from_text, entry)
        for entry in (
            *("https://a.example", "a.example:443", "a.example/x", "a.example?", "*.example.com", "a_b@c", "a..b", "."),
            *(
                "..a.example",
                ".10.0.0.1",
                "127.1",
                "0x7f.1",
                "bücher.example",
                "a example",
                "[::1]",
                "fe80::1%eth0",
                MARKER + "!",
            ),
        )
    ],
    *[
        (nets_from_text, entry)
        for entry in (
            MARKER,
            "10.20.0.5/16",
            "10.0.0.0/33",
            "10.0.0.0/8/8",
            "010.0.0.0/8",
            "fe80::1%eth0",
            "::ffff:1/x",
            "*",
        )
    ],
    *[
        (granted_nets_from_text, entry)
        for entry in (
            *("0.0.0.0/0", "10.0.0.0/7", "::/0", "2000::/3", "fc00::/6", "128.0.0.0/1"),
            *(
                "169.254.0.0/16",
                "169.254.169.254",
                "0.0.0.0/8",
                "0.0.0.0",
                "224.0.0.0/8",
                "239.1.1.1",
                "255.255.255.255",
            ),
            *("100.100.100.200", "168.63.129.16", "192.0.0.0/24", "198.18.0.0/16", "fe80::/10", "ff00::/8", "ff02::1"),
            *("::", "::ffff:0:0/96", "::ffff:10.0.0.1", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "fec0::/10"),
            *("fd00:ec2::/32", "fd00:ec2::254", "4000::/8", "2001::/23", "3fff::/20", MARKER),
        )
    ],
    *[
        (ports_from_text, entry)
        for entry in (
            "",
            ",",
            "0",
            "65536",
            "443-",
            "-443",
            "1024-443",
            "1-2-3",
            "https",
            "\uff14\uff14\uff13",
            "+443",
            "4_43",
            MARKER,
        )
    ],
    *[
        (proxy_from_text, entry)
        for entry in (
            *("", "proxy.example:3128", "socks5://proxy.example:1080", "http://", "http://proxy.example/path", MARKER),
            *("http://proxy.example/?q", "http://proxy.example:0", "http://proxy.example#x", "ftp://proxy.example"),
            *("http://user:marker-zz@", "http://user:marker-zz@exa mple:3128"),
        )
    ],
]


@pytest.mark.parametrize(("read", "text"), WRONG)
def test_what_is_written_wrongly_is_refused_without_quoting_it(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"^(entry|is no|holds)") as refused:
        read(
            text
            if read is proxy_from_text or not text.strip(",")
            else f"443,{text}"
            if read is ports_from_text
            else text
        )
    assert MARKER not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_entry_that_is_wrong_is_told_by_its_place() -> None:
    with pytest.raises(ValueError, match=r"^entry 3 is wider than /8$"):
        granted_nets_from_text("10.0.0.0/8, ,172.16.0.0/12,0.0.0.0/1")


def test_proxy_is_read_with_its_credentials_and_shows_none() -> None:
    proxy = proxy_from_text("http://jo%40x:marker%2Dzz@Proxy.Example:3128/")
    assert (proxy.scheme, proxy.host, proxy.port) == ("http", "proxy.example", 3128)
    assert proxy.credentials is not None
    assert [part.reveal() for part in proxy.credentials] == ["jo@x", MARKER]
    assert MARKER not in repr(proxy)
    bare = proxy_from_text("https://[::1]")
    assert (bare.scheme, bare.host, bare.port, bare.credentials) == ("https", "::1", 443, None)


def fault(read: Callable[[str], object], text: str) -> str | None:
    try:
        read(text)
    except ValueError as error:
        return str(error)
    return None


@given(st.text())
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    for read in (hosts_from_text, nets_from_text, granted_nets_from_text, ports_from_text, proxy_from_text):
        assert (fault(read, text) or "entry").startswith(("entry", "is no", "holds"))


@given(st.ip_addresses(), st.integers(0, 40))
def test_network_that_is_never_reached_holds_no_address_that_is(address: Any, size: int) -> None:
    prefix = max(address.max_prefixlen - size, 7)
    network = ip_network((address, prefix), strict=False)
    if is_never_reached(network) and not str(network).startswith("64:ff9b:"):
        assert reach_from_address(str(address)) == "never"
        assert reach_from_address(str(network.broadcast_address)) == "never"
    if prefix == address.max_prefixlen and not str(address).startswith("64:ff9b:"):
        assert is_never_reached(network) == (reach_from_address(str(address)) == "never")
