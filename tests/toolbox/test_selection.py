import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.selection import fold_name, merge_servers, servers_from_json, tool_allowed

WEATHER = ServerSpec(
    "Weather", "https://weather.example/mcp", "operator", headers={"X-Key": Secret("k")}, timeout_seconds=30
)
SEARCH = ServerSpec("Search", "https://search.example/mcp", "operator")


def asked(name: str, url: str, **rest: Any) -> ServerSpec:
    return ServerSpec(name, url, "user", **rest)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Weather", " weather\t"),
        ("WEATHER", "weather"),
        ("Straße", "STRASSE"),
        ("\uff37eather", "Weather"),
        ("ﬁnder", "FINDER"),
    ],
)
def test_names_that_look_the_same_fold_the_same(left: str, right: str) -> None:
    assert fold_name(left) == fold_name(right)


@pytest.mark.parametrize("name", ["Weather ", "ǅ", "\u03d2̈", "ﬀ ", "İ"])
def test_folding_twice_is_folding_once(name: str) -> None:
    assert fold_name(fold_name(name)) == fold_name(name)


MERGES: list[tuple[str, list[ServerSpec], list[ServerSpec]]] = [
    ("nothing asked", [], [WEATHER, SEARCH]),
    (
        "a new server comes last",
        [asked("Mail", "https://mail.example/")],
        [WEATHER, SEARCH, asked("Mail", "https://mail.example/")],
    ),
    ("same name, same address, no headers selects", [asked(" weather ", WEATHER.url)], [WEATHER, SEARCH]),
    (
        "another address replaces the whole entry in its place",
        [asked("WEATHER", "https://other.example/mcp")],
        [asked("WEATHER", "https://other.example/mcp"), SEARCH],
    ),
    (
        "own headers replace the whole entry",
        [asked("Weather", WEATHER.url, headers={"X-Own": Secret("o")})],
        [asked("Weather", WEATHER.url, headers={"X-Own": Secret("o")}), SEARCH],
    ),
    (
        "the same address under another name inherits nothing",
        [asked("Copy", WEATHER.url)],
        [WEATHER, SEARCH, asked("Copy", WEATHER.url)],
    ),
    (
        "of two with one name the later counts, in the place of the first",
        [asked("A", "https://a1.example/"), asked("B", "https://b.example/"), asked("a", "https://a2.example/")],
        [WEATHER, SEARCH, asked("a", "https://a2.example/"), asked("B", "https://b.example/")],
    ),
]


@pytest.mark.parametrize(("requested", "expected"), [row[1:] for row in MERGES], ids=[row[0] for row in MERGES])
def test_merging(requested: list[ServerSpec], expected: list[ServerSpec]) -> None:
    assert merge_servers([WEATHER, SEARCH], requested, None) == tuple(expected)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ["Weather", "Search", "Mail"]),
        ([], []),
        (["\uff2d\uff21\uff29\uff2c", "weather"], ["Weather", "Mail"]),
        (["unknown"], []),
    ],
)
def test_selection_by_name_keeps_the_order_of_servers(names: Sequence[str] | None, expected: list[str]) -> None:
    merged = merge_servers([WEATHER, SEARCH], [asked("Mail", "https://mail.example/")], names)
    assert [server.name for server in merged] == expected


def test_selecting_may_narrow_the_operators_server_but_never_widen_it() -> None:
    base = replace(WEATHER, allowed_tools=("get_*", "list_*"), blocked_tools=("get_secret",))
    wish = asked(
        "Weather",
        WEATHER.url,
        allowed_tools=("*_now", "delete_*"),
        blocked_tools=("list_now",),
        timeout_seconds=600,
        required=True,
    )
    (merged,) = merge_servers([base], [wish], None)
    tools = ["get_now", "get_secret", "list_now", "list_all", "delete_now", "x_now"]
    assert [tool for tool in tools if tool_allowed(merged, tool)] == ["get_now"]
    assert (merged.trust, merged.headers, merged.timeout_seconds, merged.required) == (
        "operator",
        base.headers,
        30,
        True,
    )


@pytest.mark.parametrize(
    ("base", "wish", "changed"),
    [
        ({}, {}, {}),
        ({}, {"allowed_tools": ("a",)}, {"also_allowed": ("a",)}),
        ({"blocked_tools": ("a",)}, {"blocked_tools": ("b",)}, {"blocked_tools": ("a", "b")}),
        ({}, {"timeout_seconds": 10}, {"timeout_seconds": 10}),
        ({}, {"timeout_seconds": 90}, {"timeout_seconds": 30}),
        ({"timeout_seconds": None}, {"timeout_seconds": 90}, {"timeout_seconds": 90}),
        ({}, {"required": True}, {"required": True}),
        ({"required": True}, {"timeout_seconds": 10}, {"required": True, "timeout_seconds": 10}),
        ({"protocol": "legacy"}, {"protocol": "modern"}, {}),
        ({}, {"allow_plain_http_public": True}, {}),
    ],
)
def test_each_wish_of_a_selecting_request_changes_one_thing(
    base: dict[str, Any], wish: dict[str, Any], changed: dict[str, Any]
) -> None:
    known = replace(WEATHER, **base)
    (merged,) = merge_servers([known], [asked("weather", WEATHER.url, **wish)], None)
    expected = {field.name: getattr(known, field.name) for field in fields(known)} | changed
    assert {name: getattr(merged, name) for name in expected} == expected


def test_selecting_with_no_tool_allowed_leaves_none() -> None:
    (merged,) = merge_servers([WEATHER], [asked("Weather", WEATHER.url, allowed_tools=())], None)
    assert not tool_allowed(merged, "get_now")


@pytest.mark.parametrize(
    ("allowed", "blocked", "name", "expected"),
    [
        (None, (), "anything", True),
        ((), (), "anything", False),
        (("get*",), (), "get_now", True),
        (("get*",), (), "Get_now", False),
        (("get*",), (), "forget", False),
        (("get_?",), (), "get_1", True),
        (("get_?",), (), "get_12", False),
        (("*",), ("get*",), "get_now", False),
        (("get_now",), ("get_now",), "get_now", False),
        (("[ab]",), (), "a", False),
        (("[ab]",), (), "[ab]", True),
        (("a.b",), (), "axb", False),
        (("a\\?",), (), "a\\b", True),
        (("a*b*c",), (), "a-b-b-c", True),
        (("a*b*c",), (), "a-c-b", False),
        (("*a*a",), (), "a", False),
        (("*",), (), "line\nbreak", True),
        (("",), (), "", True),
    ],
)
def test_wildcards(allowed: tuple[str, ...] | None, blocked: tuple[str, ...], name: str, expected: bool) -> None:
    server = asked("S", "https://s.example/", allowed_tools=allowed, blocked_tools=blocked)
    assert tool_allowed(server, name) is expected


@pytest.mark.timeout(5)
def test_a_hostile_pattern_is_matched_in_no_time() -> None:
    server = asked("S", "https://s.example/", allowed_tools=("*a" * 40 + "*b",))
    assert not tool_allowed(server, "a" * 4000)


def test_entries_are_read_with_all_their_keys() -> None:
    text = json.dumps(
        [
            {
                "name": "Weather",
                "url": "https://weather.example/mcp?key=1",
                "headers": {"X-Key": "k"},
                "allowed_tools": ["get*"],
                "blocked_tools": ["get_secret"],
                "timeout_ms": 1500,
                "protocol": "legacy",
                "required": True,
                "session": "shared",
                "allow_plain_http_public": True,
            },
            {"name": "Search", "url": "https://search.example/mcp", "headers": None, "timeout_ms": None},
        ]
    )
    full = ServerSpec(
        "Weather",
        "https://weather.example/mcp?key=1",
        "operator",
        headers={"X-Key": Secret("k")},
        allowed_tools=("get*",),
        blocked_tools=("get_secret",),
        timeout_seconds=1.5,
        protocol="legacy",
        required=True,
        session="shared",
        allow_plain_http_public=True,
    )
    assert servers_from_json(text) == ((full, SEARCH), ())


GOOD = {"name": "Good", "url": "https://good.example/mcp"}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"url": "https://x.example/?marker"}, ["number 1", "name"]),
        ({"name": " ", "url": "https://x.example/?marker"}, ["number 1", "name"]),
        ({"name": 7, "url": "https://x.example/?marker"}, ["number 1", "name"]),
        ({"name": "Bad"}, ["'Bad'", "url"]),
        ({"name": "Bad", "url": ["marker"]}, ["'Bad'", "url"]),
        ({"name": "Bad", "url": ""}, ["'Bad'", "url"]),
        ({"name": "Bad" * 100, "url": ""}, ["'" + ("Bad" * 22)[:64] + "'", "url"]),
        ({"name": "Bad", "url": "https://x.example/", "timeout_ms": "marker"}, ["'Bad'", "timeout_ms"]),
        ({"name": "Bad", "url": "https://x.example/?marker", "headers": {"X-Marker": 5}}, ["'Bad'", "headers"]),
        ({"name": "Bad", "url": "https://x.example/", "headers": ["marker"]}, ["'Bad'", "headers"]),
        ({"name": "Bad", "url": "https://x.example/", "allowed_tools": "marker"}, ["'Bad'", "allowed_tools"]),
        ({"name": "Bad", "url": "https://x.example/", "blocked_tools": [1]}, ["'Bad'", "blocked_tools"]),
        ({"name": "Bad", "url": "https://x.example/", "timeout_ms": 0}, ["'Bad'", "timeout_ms"]),
        ({"name": "Bad", "url": "https://x.example/", "timeout_ms": True}, ["'Bad'", "timeout_ms"]),
        ({"name": "Bad", "url": "https://x.example/", "timeout_ms": 10**400}, ["'Bad'", "timeout_ms"]),
        ({"name": "Bad", "url": "https://x.example/", "timeout_ms": float("nan")}, ["'Bad'", "timeout_ms"]),
        ({"name": "Bad", "url": "https://x.example/", "protocol": "marker"}, ["'Bad'", "protocol"]),
        ({"name": "Bad", "url": "https://x.example/", "session": "marker"}, ["'Bad'", "session"]),
        ({"name": "Bad", "url": "https://x.example/", "required": "marker"}, ["'Bad'", "required"]),
        ({"name": "Bad\n\x1b[31m", "protocol": 1}, ["'Bad\\n\\x1b[31m'", "url", "protocol"]),
        ("marker", ["number 1", "object"]),
        (None, ["number 1", "object"]),
    ],
)
def test_a_bad_entry_costs_itself_only(entry: object, told: list[str]) -> None:
    servers, (warning,) = servers_from_json(json.dumps([entry, GOOD]))
    assert [server.name for server in servers] == ["Good"]
    assert all(part in warning for part in told)
    assert "marker" not in warning.lower()


def test_unknown_keys_are_ignored_and_named() -> None:
    servers, (warning,) = servers_from_json(json.dumps([{**GOOD, "sessions": "marker", "command": "marker"}]))
    assert len(servers) == 1
    assert "'sessions'" in warning
    assert "'command'" in warning
    assert "marker" not in warning


def test_of_two_entries_with_one_name_the_first_stays() -> None:
    servers, (warning,) = servers_from_json(json.dumps([GOOD, {"name": " \uff27OOD", "url": "https://other.example/"}]))
    assert [server.url for server in servers] == [GOOD["url"]]
    assert "same name" in warning


@pytest.mark.parametrize("text", ["", "  \n", "[]"])
def test_no_servers(text: str) -> None:
    assert servers_from_json(text) == ((), ())


@pytest.mark.parametrize("text", ["[marker", '{"marker": 1}', "null", '"marker"', "[" * 100_000, "[{'marker'}]"])
def test_what_is_no_list_stops_the_start_and_is_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r"^It (is|must)") as caught:
        servers_from_json(text)
    assert "marker" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
