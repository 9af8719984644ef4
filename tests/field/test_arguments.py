"""Arguments that models write otherwise than the schema says reach the tool as it wants them."""

import json
from typing import Any

import pytest

from tests.fakes.raw_mcp import tool_entry
from tests.fakes.upstream import stream
from tests.field.serving import echoed_calls, open_field
from tests.field.test_streams import END, fn, tc

pytestmark = pytest.mark.anyio

STRING = {"type": "string"}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "FR-065": (
        {"properties": {"tags": {"type": "array"}, "n": {"type": "integer"}}},
        {"tags": '["a","b"]', "n": "5"},
        {"tags": ["a", "b"], "n": 5},
    ),
    "FR-066": (
        {"properties": {"q": STRING, "lang": STRING}, "required": ["q"]},
        {"q": "tin", "lang": None},
        {"q": "tin"},
    ),
    "FR-065 in an optional model": (
        {
            "properties": {"o": {"anyOf": [{"$ref": "#/$defs/O"}, {"type": "null"}]}},
            "$defs": {"O": {"type": "object", "properties": {"n": {"type": "integer"}, "lang": STRING}}},
        },
        {"o": {"n": "5", "lang": None}},
        {"o": {"n": 5}},
    ),
    "FR-065 in one of several shapes": (
        {"anyOf": [{"properties": {"n": {"type": "integer"}}}, {"properties": {"x": STRING}}]},
        {"n": "5", "x": None},
        {"n": 5},
    ),
    "FR-066 where the server takes anything": ({"properties": {"v": {"title": "Value"}}}, {"v": None}, {"v": None}),
    "FR-049": ({"properties": {"tag": {"type": ["string", "null"]}}}, {"tag": None}, {"tag": None}),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_report_of_arguments_ends_as_it_should_and_readers_see_what_was_written(
    row: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
) -> None:
    schema, written, sent = row
    tools = [tool_entry("find", inputSchema={"type": "object", **schema})]
    call = tc(fn("find", json.dumps(written), index=0, id="c1"))
    async with open_field([stream(call, END)], tools=tools) as it:
        run = await it.run()
    assert it.executed == [("find", sent)]
    assert run.named("tool/call")[0]["call"]["parameters"] == written
    assert json.loads(echoed_calls(it.request(1))[0]["function"]["arguments"]) == written
