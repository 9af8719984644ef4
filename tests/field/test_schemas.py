"""Tools whose schemas providers refused: each is offered with a schema that all of them take."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.domain.jsontypes import JsonObject
from tests.fakes.raw_mcp import tool_entry
from tests.fakes.upstream import stream
from tests.field.serving import open_field
from tests.field.test_streams import END, fn, tc
from tests.toolbox.test_schema import nodes

pytestmark = pytest.mark.anyio

STRING: JsonObject = {"type": "string"}
OBJECT: JsonObject = {"type": "object", "properties": {}}
SLOT: JsonObject = {"type": "string", "enum": ["am", "pm"]}
TO_SLOT: JsonObject = {"$ref": "#/$defs/Slot"}
TEXT: JsonObject = {"properties": {"text": STRING}, "required": ["text"]}
URL: JsonObject = {"properties": {"url": STRING}, "required": ["url"]}
PATTERN = r"^(?!\.)[\w.]+@x$"
NODE: JsonObject = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}


def kids(items: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {"kids": {"type": "array", "items": items}}}


def with_properties(**properties: Any) -> JsonObject:
    return {"type": "object", "properties": properties}


@dataclass
class Row:
    """What the server lists, what the model is offered, and what the tool is then asked for the arguments."""

    listed: Any
    offered: JsonObject
    arguments: JsonObject


ROWS: dict[str, Row] = {
    "FR-046": Row(
        {**with_properties(slot=TO_SLOT), "$defs": {"Slot": SLOT}}, with_properties(slot=SLOT), {"slot": "am"}
    ),
    "FR-047": Row(
        {**with_properties(slot={"$ref": "#/definitions/Slot"}), "definitions": {"Slot": SLOT}},
        with_properties(slot=SLOT),
        {"slot": "am"},
    ),
    "FR-048": Row(
        {**with_properties(root={"$ref": "#/$defs/N"}), "$defs": {"N": NODE}},
        with_properties(root=kids(kids({**OBJECT, "description": "More of it is left out here."}))),
        {"root": {"kids": [{"kids": []}]}},
    ),
    "FR-049": Row(
        {**with_properties(tag={"type": ["string", "null"]}), "required": ["tag"]},
        {**with_properties(tag=STRING), "required": ["tag"]},
        {"tag": None},
    ),
    "FR-050": Row(with_properties(value=True, never=False), with_properties(value={}), {"value": [1]}),
    "FR-051": Row(
        with_properties(at={"type": "object"}, all={"anyOf": [{"type": "object"}, STRING]}),
        with_properties(at=OBJECT, all={"anyOf": [OBJECT, STRING]}),
        {"at": {"x": 1}},
    ),
    "FR-051 root": Row({"type": "object"}, OBJECT, {}),
    "FR-052": Row({}, OBJECT, {}),
    "FR-052 null": Row(None, OBJECT, {}),
    "FR-053": Row(
        with_properties(ids={"type": "array"}, any={"anyOf": [{"type": "array"}, STRING]}),
        with_properties(ids={"type": "array", "items": {}}, any={"anyOf": [{"type": "array", "items": {}}, STRING]}),
        {"ids": [1]},
    ),
    "FR-054": Row({"type": "object", "anyOf": [TEXT, URL]}, with_properties(text=STRING, url=STRING), {"url": "x:1"}),
    "FR-054 allOf": Row(
        {"type": "object", "allOf": [TEXT, URL]},
        {**with_properties(text=STRING, url=STRING), "required": ["text", "url"]},
        {"text": "a", "url": "x:1"},
    ),
    "FR-055": Row(
        with_properties(to={**STRING, "pattern": PATTERN}, name={**STRING, "pattern": r"\p{L}"}),
        with_properties(to={**STRING, "pattern": PATTERN}, name={**STRING, "description": r"Pattern: \p{L}"}),
        {"to": "a@x"},
    ),
    "FR-056": Row(
        with_properties(n={"type": "integer", "format": "uint64"}, day={**STRING, "format": "date"}),
        with_properties(n={"type": "integer"}, day={**STRING, "format": "date"}),
        {"n": 1},
    ),
    "FR-057": Row(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://x.example/page",
            **OBJECT,
            "additionalProperties": "object",
        },
        {**OBJECT, "additionalProperties": OBJECT},
        {"x": {}},
    ),
    "FR-067": Row(
        {
            **with_properties(when={**TO_SLOT, "description": "preferred half day", "default": "am"}),
            "$defs": {"Slot": {**SLOT, "description": "half day"}},
        },
        with_properties(when={**SLOT, "description": "preferred half day", "default": "am"}),
        {"when": "pm"},
    ),
    "FR-068": Row(
        {"anyOf": [with_properties(id=STRING), STRING]},
        {**with_properties(id=STRING), "description": "Input as string is left out here."},
        {"id": "7"},
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_report_of_a_schema_is_offered_as_all_take_it_and_the_tool_can_be_called(row: Row) -> None:
    tools = [tool_entry("odd", inputSchema=row.listed), tool_entry("clock")]
    call = tc(fn("odd", json.dumps(row.arguments), index=0, id="c1"))
    async with open_field([stream(call, END)], tools=tools) as it:
        run = await it.run()
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in it.request(0)["tools"]}
    assert offered == {"odd": row.offered, "clock": OBJECT}
    Draft202012Validator.check_schema(offered["odd"])
    assert it.executed == [("odd", row.arguments)]
    assert run.answer["text"] == "Done."


async def test_fr_052_tool_without_a_schema_is_offered_without_parameters() -> None:
    tools = [{"name": "regions"}]
    async with open_field([], tools=tools) as it:
        await it.run()
    (tool,) = it.request(0)["tools"]
    assert tool["function"]["parameters"] == OBJECT


MALFORMED: list[JsonObject] = [
    {"properties": {"a": {"type": "Str", "minLength": "1", "enum": "x", "pattern": ["a"], "required": True}}},
    {"properties": [], "required": {}, "additionalProperties": None, "anyOf": []},
    {"properties": {"a": {"items": ["string", {"exclusiveMinimum": True, "minimum": 1}], "uniqueItems": "yes"}}},
    {"properties": {"a": {"$ref": "#/$defs/Gone"}}, "$defs": []},
    {"properties": {"a": {"$ref": "#/components/schemas/A"}}, "components": {"schemas": {"A": {"type": "Foo"}}}},
]


async def test_fr_057_malformed_schemas_never_reach_the_model() -> None:
    tools = [tool_entry(f"t{number}", inputSchema=schema) for number, schema in enumerate(MALFORMED)]
    async with open_field([], tools=tools) as it:
        await it.run()
    offered = [tool["function"]["parameters"] for tool in it.request(0)["tools"]]
    assert len(offered) == len(MALFORMED)
    for parameters in offered:
        Draft202012Validator.check_schema(parameters)
        assert not [node for node in nodes(parameters) if "$ref" in node or "$defs" in node]
