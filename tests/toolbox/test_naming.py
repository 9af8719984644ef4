import re
import subprocess
import sys
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.spec import ServerSpec
from app.toolbox.naming import exposed_names

VALID = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")


def on(server: str, trust: Literal["operator", "user"] = "user") -> ServerSpec:
    return ServerSpec(server, "https://s.example/", trust)


LONG = "list_all_directory_entries_with_sizes_and_modification_dates_recursive"


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([(on("A"), "get-time_2")], ["get-time_2"]),
        ([(on("A"), "album.add/item one")], ["album_add_item_one"]),
        ([(on("A"), "")], ["tool"]),
        ([(on("A"), "天气"), (on("A"), "日本")], ["tool_4d947325", "tool_cf2abf0c"]),
        ([(on("A"), "-"), (on("A"), "..")], ["tool_3973e022", "tool_5ec1f7e7"]),
        ([(on("A"), "2fa"), (on("A"), "_2fa"), (on("A"), "-x"), (on("A"), ".x")], ["_2fa", "_2fa_A", "_-x", "_x"]),
        ([(on("A"), "_x-"), (on("A"), "a日")], ["_x-", "a_"]),
        ([(on("A"), "search"), (on("B"), "search")], ["search", "search_B"]),
        ([(on("A"), "search"), (on("B", "operator"), "search")], ["search_A", "search"]),
        ([(on("A", "operator"), "search"), (on("B", "operator"), "search")], ["search", "search_B"]),
        ([(on("A"), "a.b"), (on("A"), "a_b")], ["a_b", "a_b_A"]),
        ([(on("A"), "a.b"), (on("A"), "a_b"), (on("A"), "a/b")], ["a_b", "a_b_A", "a_b_A_2"]),
        ([(on("My Files"), "x"), (on("My/Files"), "x"), (on("My.Files"), "x")], ["x", "x_My_Files", "x_My_Files_2"]),
        ([(on("A"), "x"), (on("B"), "x"), (on("C"), "x_B")], ["x", "x_B_2", "x_B"]),
        ([(on("A"), "x"), (on("Ä"), "x"), (on(""), "x")], ["x", "x__", "x_server"]),
        ([(on("A"), "n" * 64)], ["n" * 64]),
        (
            [(on("U"), "x_B"), (on("A", "operator"), "x"), (on("B", "operator"), "x"), (on("V"), "x")],
            ["x_B_U", "x", "x_B", "x_V"],
        ),
    ],
)
def test_names(tools: list[tuple[ServerSpec, str]], expected: list[str]) -> None:
    assert exposed_names(tools) == expected


def test_a_name_that_is_too_long_once_it_begins_as_it_must_is_cut() -> None:
    (name,) = exposed_names([(on("A"), "2" + "n" * 63)])
    assert VALID.fullmatch(name)
    assert name.startswith("_2" + "n" * 53)


def test_long_names_that_begin_alike_stay_apart() -> None:
    names = exposed_names([(on("A"), LONG), (on("A"), LONG + "_2"), (on("B"), LONG)])
    assert len(set(names)) == 3
    assert all(VALID.fullmatch(name) and len(name) == 64 and name.startswith(LONG[:55]) for name in names[:2])
    assert exposed_names([(on("A"), LONG + "_2")]) == [names[1]]


NAMES = st.sampled_from(
    ["x", "x_A", "x_A_2", "x.A", "", "_", "天", "日", "-", "2", "n" * 64, "n" * 63 + ".", "n" * 70, "n" * 71]
)
SERVERS = st.builds(on, st.sampled_from(["A", "a b", "A_2", "", "s" * 80]), st.sampled_from(["operator", "user"]))


@given(st.lists(st.tuples(SERVERS, NAMES | st.text(max_size=80)), max_size=40))
def test_names_are_always_valid_distinct_and_the_same(tools: list[tuple[ServerSpec, str]]) -> None:
    names = exposed_names(tools)
    assert len(names) == len(tools)
    assert all(VALID.fullmatch(name) for name in names)
    assert len(set(names)) == len(names)
    assert exposed_names(tools) == names


@given(st.lists(st.tuples(SERVERS, NAMES), max_size=20))
def test_users_tools_never_change_what_operators_tools_are_called(tools: list[tuple[ServerSpec, str]]) -> None:
    operators = [(server, name) for server, name in tools if server.trust == "operator"]
    together = exposed_names(tools)
    kept = [name for name, (server, _) in zip(together, tools, strict=True) if server.trust == "operator"]
    assert exposed_names(operators) == kept


def test_names_are_the_same_in_another_process() -> None:
    code = (
        "from app.domain.spec import ServerSpec as S; from app.toolbox.naming import exposed_names;"
        f"print(exposed_names([(S(n,'','user'),{LONG!r}) for n in ('A','B','C')]))"
    )
    here = exposed_names([(on(name), LONG) for name in ("A", "B", "C")])
    there = {
        subprocess.run(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert there == {str(here)}


def test_many_equal_names_are_named_quickly_and_distinctly() -> None:
    names = exposed_names([(on("A"), "x")] * 5000)
    assert len(set(names)) == 5000
    assert names[-1] == "x_A_4999"
