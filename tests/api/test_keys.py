"""API keys and what the operator allows: read, made, recognised."""

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.access import Access, hosts_from_text, is_loopback, origins_from_text
from app.api.keys import entry_from_key, find_key, keys_from_text, new_key

KEY = new_key()
ENTRY = entry_from_key("chat", KEY)
DIGEST = ENTRY.partition(":")[2]


def test_a_new_key_opens_with_its_entry_and_no_other_does() -> None:
    entries = keys_from_text(f"{entry_from_key('other', new_key())}, {ENTRY} ,{entry_from_key('t', new_key())}")
    found = find_key(entries, KEY.encode())
    assert found is not None
    assert (found.id, found.is_trusted) == ("chat", False)
    assert find_key(entries, new_key().encode()) is None
    assert len({new_key() for _ in range(100)}) == 100
    assert KEY not in ENTRY


@pytest.mark.parametrize(
    "near",
    [
        pytest.param(near, id=str(number))
        for number, near in enumerate(
            ("", KEY[:-1], KEY + "x", KEY.upper(), " " + KEY, DIGEST, ENTRY, "chat", "chat:" + KEY, KEY[3:])
        )
    ],
)
def test_what_is_nearly_a_key_opens_nothing(near: str) -> None:
    assert find_key(keys_from_text(ENTRY), near.encode()) is None


def test_trust_is_what_the_entry_says() -> None:
    (key,) = keys_from_text(entry_from_key("front", KEY, is_trusted=True))
    assert key.is_trusted
    assert keys_from_text(f" , {ENTRY},, ") == keys_from_text(ENTRY)
    assert keys_from_text("") == ()


BAD_ENTRIES = [
    f"chat:{sha256(b'').hexdigest()}",
    f"{ENTRY},other:{DIGEST}:trusted",
    "chat",
    "chat:",
    f":{DIGEST}",
    f"chat:{DIGEST[:-1]}",
    f"chat:{DIGEST}0",
    f"chat:{DIGEST}:Trusted",
    f"chat:{DIGEST}:trusted:more",
    f"chat :{DIGEST}",
    f"ch/at:{DIGEST}",
    f"{'x' * 65}:{DIGEST}",
    f"chat:{KEY}",
    f"{ENTRY};{ENTRY}",
    f"{ENTRY},{ENTRY}",
]


@pytest.mark.parametrize("text", BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
def test_an_entry_that_cannot_be_used_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r"entry \d") as raised:
        keys_from_text(text)
    assert KEY not in str(raised.value)
    assert DIGEST not in str(raised.value)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a:b", "a,b"])
def test_a_name_that_no_entry_can_have_makes_no_key(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        entry_from_key(name, KEY)


ACCESS = Access(hosts=("chat.example.com", "one.example:8443", "[::1]"), origins=("https://page.example",))


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("chat.example.com", True),
        ("CHAT.example.com:9000", True),
        ("one.example:8443", True),
        ("[::1]:80", True),
        ("one.example", False),
        ("one.example:8444", False),
        ("evil.example", False),
        ("chat.example.com.evil.example", False),
        ("xchat.example.com", False),
        ("chat.example.com.", False),
        ("chat.example.com:99999999", False),
        ("chat.example.com@evil.example", False),
        ("chat.example.com/x", False),
        ("", False),
        ("::1", False),
        (" chat.example.com", False),
    ],
)
def test_only_names_that_are_listed_are_own_hosts(host: str, is_own: bool) -> None:
    assert ACCESS.is_own_host(host) is is_own


@pytest.mark.parametrize(
    ("origin", "is_welcome"),
    [
        ("https://page.example", True),
        ("https://page.example:443", False),
        ("https://PAGE.example", False),
        ("http://page.example", False),
        ("https://sub.page.example", False),
        ("https://page.example.evil.example", False),
        ("http://chat.example.com:8000", True),
        ("http://chat.example.com", False),
        ("https://chat.example.com:8000", False),
        ("null", False),
        ("", False),
        ("file://", False),
        ("http://", False),
    ],
)
def test_pages_are_welcome_that_are_listed_or_from_here(origin: str, is_welcome: bool) -> None:
    assert ACCESS.is_welcome(origin, scheme="http", host="chat.example.com:8000") is is_welcome


def test_a_default_port_may_be_said_or_not() -> None:
    assert ACCESS.is_welcome("http://chat.example.com", scheme="http", host="chat.example.com:80")
    assert ACCESS.is_welcome("https://chat.example.com", scheme="https", host="chat.example.com")
    assert not ACCESS.is_welcome("null", scheme="null", host="")


@pytest.mark.parametrize("text", ["*", "*.example.com", "http://x", "a/b", "a,b c", "[::1", "a@b", "a:123456"])
def test_host_lists_that_cannot_be_meant_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"entry \d"):
        hosts_from_text(text)


@pytest.mark.parametrize("text", ["*", "https://*.x.example", "x.example", "https://x.example/path", "null", "ftp://x"])
def test_origin_lists_that_cannot_be_meant_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"entry \d"):
        origins_from_text(text)


def test_lists_are_read_in_small_letters_and_once() -> None:
    assert hosts_from_text(" A.example , a.example,b.example:80 ") == ("a.example", "b.example")
    assert hosts_from_text("b.example:8443,c.example:443") == ("b.example:8443", "c.example")
    assert origins_from_text("HTTPS://A.example:443,http://b.example:80") == ("https://a.example", "http://b.example")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("LOCALHOST", True)]
    + [(other, False) for other in ("0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example.com")],
)
def test_loopback_is_told_from_the_rest(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@given(st.text())
def test_no_text_is_read_as_anything_but_entries_or_an_error(text: str) -> None:
    try:
        keys = keys_from_text(text)
    except ValueError as error:
        assert re.match(r"entry \d+", str(error))  # noqa: PT017 - either way is fine
    else:
        assert all(len(key.digest) == 32 for key in keys)
