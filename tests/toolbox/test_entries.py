import sys
from typing import Any

import pytest

from app.domain.jsontypes import JsonObject
from app.toolbox.entries import MAX_LISTED_NODES, ListedTool, listed_tools
from tests.fakes.raw_mcp import tool_entry

WIDE: JsonObject = {"type": "object", "properties": {f"p{number}": {} for number in range(1990)}}


def listed(*entries: Any, limit: int = 256, has_more: bool = False) -> list[ListedTool]:
    return listed_tools(entries, modern=True, schema_bytes=65_536, limit=limit, has_more=has_more)


def reasons(tools: list[ListedTool]) -> list[tuple[str, str]]:
    return [(tool.name, tool.refused) for tool in tools if tool.refused is not None]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"description": " Find\u200b it "}, "Find it"),
        ({"description": None, "title": "Finder"}, "Finder"),
        ({"description": "\u200b", "title": "Finder"}, "Finder"),
        ({"description": 5, "title": [], "annotations": {"title": "Find"}}, "Find"),
        ({"description": "", "annotations": {"title": 5}}, "The tool t."),
        ({"description": "x" * 4096}, "x" * 4096),
    ],
)
def test_each_tool_has_a_description(fields: JsonObject, told: str) -> None:
    (tool,) = listed(tool_entry("t", **fields))
    assert tool.description == told


def test_a_long_description_is_cut_on_a_character_and_marked() -> None:
    (tool,) = listed(tool_entry("t", description="é" * 5000))
    assert 4090 <= len(tool.description.encode()) <= 4096
    assert tool.description.endswith("é […]")


def test_hints_are_those_that_say_yes_or_no() -> None:
    claims = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": "yes", "openWorldHint": None, "x": True}
    (tool,) = listed(tool_entry("t", annotations=claims))
    assert tool.hints == {"readOnlyHint": True, "destructiveHint": False}


NAMES: list[tuple[str, str]] = [
    ("a\r\nX-Evil: 1", "a X-Evil: 1"),
    ("a\u202eb\u0000c", "abc"),
    (" a\u2028b\u2029c\x85\td ", "a b c d"),
    ("a\ud800b\ue000", "ab"),
    ("天气", "天气"),
    ("n" * 128, "n" * 128),
]


@pytest.mark.parametrize(("name", "shown"), NAMES)
def test_a_name_is_clean_for_people_and_as_it_was_for_the_server(name: str, shown: str) -> None:
    (tool,) = listed(tool_entry(name, description=""))
    assert (tool.name, tool.wire_name, tool.refused) == (shown, name, None)
    assert tool.description == f"The tool {shown}."


@pytest.mark.parametrize("length", [129, 200_000])
def test_a_name_that_is_too_long_is_refused_by_its_beginning(length: int) -> None:
    assert reasons(listed(tool_entry("n" * length))) == [("n" * 128 + "…", "Its name is longer than 128 characters.")]


def test_a_tool_that_is_a_task_only_is_refused_by_name() -> None:
    tools = listed(tool_entry("a"), tool_entry("b", execution={"taskSupport": "required"}))
    assert reasons(tools) == [("b", "It can be called as a task only, which is not supported.")]


def test_what_has_no_name_of_its_own_is_counted_by_cause() -> None:
    nameless: list[Any] = [{}, {"name": ""}, {"name": 5}, {"name": "\u200b\n"}, "odd", None]
    tools = listed(tool_entry("a"), *nameless, tool_entry("a"), tool_entry("a\u200b"), tool_entry("b"))
    assert [tool.name for tool in tools if tool.refused is None] == ["a", "b"]
    assert reasons(tools) == [
        ("", "Entries of the tool list that have no name, left out: 6."),
        ("", "Entries of the tool list with the name of an earlier one, left out: 2."),
    ]


@pytest.mark.parametrize(("count", "has_more"), [(8, False), (9, False), (300, True), (8, True)])
def test_what_is_beyond_the_limit_is_told(count: int, *, has_more: bool) -> None:
    tools = listed(*[tool_entry(f"t{number}") for number in range(count)], limit=8, has_more=has_more)
    assert [tool.name for tool in tools if tool.refused is None] == [f"t{number}" for number in range(8)]
    told = [reason for _, reason in reasons(tools)]
    beyond = [f"Entries of the tool list beyond the first 8 tools, left out: {count - 8}."] if count > 8 else []
    assert told == beyond + ["The tool list goes on after what was read; the rest is left out."] * has_more


def test_schemas_of_one_server_share_a_budget_and_small_ones_still_get_in() -> None:

    entries = [tool_entry(f"t{number}", inputSchema=WIDE) for number in range(100)]
    tools = listed(*entries, tool_entry("small"))
    offered = [tool.name for tool in tools if tool.refused is None]
    assert offered == [f"t{number}" for number in range(MAX_LISTED_NODES // 1992)] + ["small"]
    refused = reasons(tools)
    assert len(refused) == 101 - len(offered)
    assert {reason for _, reason in refused} == {"The schemas of its server have more than 50000 parts in all."}


def test_work_for_a_list_does_not_grow_with_its_parts() -> None:

    icons = [{"src": "x:1"}] * 10_000
    entries = [tool_entry(f"t{number}", inputSchema=WIDE, icons=icons, outputSchema=WIDE) for number in range(256)]
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        del frame, arg
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert len(listed(*entries)) == 256
    finally:
        sys.setprofile(None)
    assert calls < 5_000_000
