import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.jsontypes import JsonObject
from app.toolbox.repairs import repairs_between
from app.toolbox.schema import repair_schema, schema_refused

TEXT: JsonObject = {"type": "string"}


def told(schema: JsonObject) -> list[str]:
    return repairs_between(schema, repair_schema(schema))


def with_property(schema: Any) -> JsonObject:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("schema", "lines"),
    [
        (with_property(TEXT), []),
        ({}, ["type: added", "properties: added"]),
        ({"type": "object"}, ["properties: added"]),
        ({**with_property(TEXT), "$schema": "http://json-schema.org/draft-07/schema#"}, ["$schema: removed"]),
        (with_property({"minLength": 1}), ["properties.a: type added"]),
        (with_property({"type": "string", "enum": ["x", "x"]}), ["properties.a.enum: changed"]),
        (with_property({"type": "str"}), ["properties.a.type: changed"]),
        (with_property("string"), ["properties.a: changed"]),
        (with_property(True), ["properties.a: changed"]),
        (with_property(False), ["properties.a: removed"]),
        (with_property({"type": "array"}), ["properties.a: items added"]),
        (with_property({**TEXT, "default": None}), ["properties.a.default: removed"]),
        (with_property({**TEXT, "nullable": True}), ["properties.a.type: changed", "properties.a.nullable: removed"]),
        (with_property({"$ref": "#/nowhere"}), ["properties.a.$ref: removed"]),
        (
            with_property({"anyOf": [TEXT, {"type": "int"}, {"type": "null"}]}),
            ["properties.a.anyOf.1.type: changed"],
        ),
        (with_property({"anyOf": [TEXT, False]}), ["properties.a.anyOf: changed"]),
        ({**with_property(TEXT), "additionalProperties": "object"}, ["additionalProperties: changed"]),
        ({"type": "object", "properties": {"default": TEXT, "$schema": TEXT, "type": TEXT}}, []),
        (
            {"type": "object", "properties": {"type": {**TEXT, "minLength": "1"}}},
            ["properties.type.minLength: changed"],
        ),
        (with_property({"type": "string", "default": {"type": "int"}}), []),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_each_place_that_was_changed_is_told(schema: JsonObject, lines: list[str]) -> None:
    assert told(schema) == lines


def test_formalities_come_after_what_matters() -> None:
    schema = {"$schema": "x", "$id": "y", "type": "object", "properties": {"a": True, "b": {"type": "int"}}}
    assert told(schema) == ["properties.b.type: changed", "$schema: removed", "$id: removed", "properties.a: changed"]


def test_twenty_are_told_and_the_others_counted() -> None:
    lines = told({"type": "object", "properties": {f"p{number}": {"type": "int"} for number in range(30)}})
    assert lines[19:] == ["properties.p19.type: changed", "and 10 more"]
    assert len(told({"type": "object", "properties": {f"p{number}": {"type": "int"} for number in range(20)}})) == 20


def test_names_are_cleaned_and_capped_and_values_are_not_told() -> None:
    name = "a\u202e\n\x1b[31mb" + "x" * 500
    line = told({"type": "object", "properties": {name: {"type": "sk-secret", "enum": "sk-secret"}, "": {"type": 1}}})
    assert line[0].startswith("properties.a")
    assert len(line[0]) < 100
    assert "properties.(unnamed).type: removed" in line
    text = "".join(line)
    assert text.isprintable()
    assert "secret" not in text


def test_a_deep_place_is_told_by_its_ends() -> None:
    schema: JsonObject = {"type": "str"}
    for _ in range(20):
        schema = {"type": "object", "properties": {"p": schema}}
    (line,) = told(schema)
    assert line == "properties.p.properties.p.properties.p.properties.p.properties.p.properties.….type: changed"


def test_effort_is_bounded() -> None:
    wide = {"type": "object", "properties": {f"p{number}": {"type": "int"} for number in range(50_000)}}
    lines = repairs_between(wide, {**wide, "properties": {name: dict(TEXT) for name in wide["properties"]}})
    assert 9_000 < int(lines[-1].split()[1]) < 10_000
    deep: JsonObject = {}
    for _ in range(5000):
        deep = {"not": deep}
    assert repairs_between(deep, {**deep, "title": "x"}) == ["title: added"]


KEYS = st.sampled_from(
    ["type", "properties", "items", "enum", "anyOf", "not", "$ref", "$defs", "default", "required", "$schema", "a"]
)
LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["string", "int", "#/$defs/a", ""])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_something_is_told_exactly_where_something_was_changed(schema: JsonObject) -> None:
    if schema_refused(schema, max_bytes=10_000) is None:
        repaired = repair_schema(schema)
        assert bool(repairs_between(schema, repaired)) == (schema != repaired)
        assert repairs_between(repaired, repaired) == []
