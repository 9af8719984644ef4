import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.jsontypes import JsonObject
from app.toolbox.schema import repair_schema, schema_refused

NESTED: list[tuple[str, Any, Any]] = [
    ("typed stays", {"type": "string", "minLength": 1}, {"type": "string", "minLength": 1}),
    ("a list of types stays", {"type": ["string", "null"]}, {"type": ["string", "null"]}),
    ("null default goes", {"type": "string", "default": None}, {"type": "string"}),
    ("other defaults stay", {"type": "string", "default": ""}, {"type": "string", "default": ""}),
    ("anything stays anything", {}, {}),
    ("only a null default is anything", {"default": None}, {}),
    ("described is a string", {"description": "x"}, {"description": "x", "type": "string"}),
    ("null type is no type", {"type": None, "description": "x"}, {"description": "x", "type": "string"}),
    ("empty text is no type", {"type": "", "items": {}}, {"items": {}, "type": "array"}),
    ("unknown words are no type", {"type": "str", "title": "x"}, {"title": "x", "type": "string"}),
    ("a list with an unknown word is no type", {"type": ["string", "any"], "enum": ["a"]}, {"enum": ["a"]}),
    (
        "a list with more than words is no type",
        {"type": ["string", {}, None], "properties": {}},
        {"properties": {}, "type": "object"},
    ),
    ("an object is no type", {"type": {"type": "string"}}, {}),
    ("empty list is no type", {"type": [], "items": {}}, {"items": {}, "type": "array"}),
    ("from properties", {"properties": {}}, {"properties": {}, "type": "object"}),
    ("from patterns", {"patternProperties": {}}, {"patternProperties": {}, "type": "object"}),
    ("from additional", {"additionalProperties": False}, {"additionalProperties": False, "type": "object"}),
    ("open stays open", {"additionalProperties": True}, {"additionalProperties": True, "type": "object"}),
    (
        "from property names",
        {"propertyNames": {"pattern": "^a"}},
        {"propertyNames": {"pattern": "^a", "type": "string"}, "type": "object"},
    ),
    ("from required", {"required": ["a"]}, {"required": ["a"], "type": "object"}),
    (
        "old boolean required tells nothing",
        {"required": True, "title": "x"},
        {"required": True, "title": "x", "type": "string"},
    ),
    ("from items", {"items": {"type": "string"}}, {"items": {"type": "string"}, "type": "array"}),
    (
        "from prefix items",
        {"prefixItems": [{"title": "x"}]},
        {"prefixItems": [{"title": "x", "type": "string"}], "type": "array"},
    ),
    ("from contains", {"contains": {}}, {"contains": {}, "type": "array"}),
    ("object before array", {"items": {}, "properties": {}}, {"items": {}, "properties": {}, "type": "object"}),
    *[
        (f"{key} decides", {key: value, "title": "x"}, {key: value, "title": "x"})
        for key, value in {
            "enum": ["a", None],
            "const": None,
            "$ref": "#/$defs/A",
            "$dynamicRef": "#A",
            "$recursiveRef": "#",
            "if": {"type": "string"},
            "anyOf": [{"type": "string"}],
            "oneOf": [{"type": "string"}],
            "allOf": [{"type": "string"}],
            "not": {"type": "string"},
        }.items()
    ],
    (
        "branches are repaired",
        {"anyOf": [{"title": "x"}, {"items": {}}]},
        {"anyOf": [{"title": "x", "type": "string"}, {"items": {}, "type": "array"}]},
    ),
    (
        "not, if, then, else are repaired",
        {"if": {"required": ["a"]}, "then": {"default": None}, "else": True},
        {"if": {"required": ["a"], "type": "object"}, "then": {}, "else": {}},
    ),
    (
        "values are no schemas",
        {"enum": [{"default": None}], "default": {"default": None}, "examples": [{"title": "x"}]},
        {"enum": [{"default": None}], "default": {"default": None}, "examples": [{"title": "x"}]},
    ),
    (
        "properties may be called like keywords",
        {
            "type": "object",
            "properties": {"default": {"title": "x"}, "type": {"default": None, "items": {}}, "enum": True},
        },
        {
            "type": "object",
            "properties": {
                "default": {"title": "x", "type": "string"},
                "type": {"items": {}, "type": "array"},
                "enum": {},
            },
        },
    ),
    (
        "what allows nothing goes",
        {
            "type": "object",
            "properties": {"a": False, "b": True},
            "required": ["a", "b", "c"],
            "anyOf": [False, {"type": "object"}],
            "not": False,
        },
        {"type": "object", "properties": {"b": {}}, "required": ["b", "c"], "anyOf": [{"type": "object"}]},
    ),
    ("a list of nothing goes", {"type": "string", "allOf": [False]}, {"type": "string"}),
    (
        "items: false goes, true is anything",
        {"type": "array", "items": False, "contains": True},
        {"type": "array", "contains": {}},
    ),
    (
        "a tuple keeps its places",
        {"type": "array", "prefixItems": [False, {"type": "string"}], "items": [True, False]},
        {"type": "array", "prefixItems": [{"not": {}}, {"type": "string"}], "items": [{}, {"not": {}}]},
    ),
    (
        "a definition stays where references find it",
        {"$ref": "#/$defs/No", "$defs": {"No": False, "Any": True, "A": {"items": {}}}, "definitions": {"No": False}},
        {
            "$ref": "#/$defs/No",
            "$defs": {"No": {"not": {}}, "Any": {}, "A": {"items": {}, "type": "array"}},
            "definitions": {"No": {"not": {}}},
        },
    ),
    (
        "a word for a schema",
        {"type": "object", "additionalProperties": "object", "properties": {"a": "string", "b": "strange", "c": None}},
        {
            "type": "object",
            "additionalProperties": {"type": "object"},
            "properties": {"a": {"type": "string"}, "b": {}, "c": {}},
        },
    ),
    (
        "false elsewhere stays",
        {"type": "array", "uniqueItems": False, "x": None},
        {"type": "array", "uniqueItems": False, "x": None},
    ),
    (
        "dependent and unevaluated",
        {
            "type": "object",
            "dependentSchemas": {"a": {"default": None, "required": ["b"]}},
            "unevaluatedProperties": {"title": "x"},
        },
        {
            "type": "object",
            "dependentSchemas": {"a": {"required": ["b"], "type": "object"}},
            "unevaluatedProperties": {"title": "x", "type": "string"},
        },
    ),
]


def holding(place: str, inner: Any) -> JsonObject:
    """Build a root that needs no repair round a sub-schema."""
    if place == "definition":
        return {"type": "object", "properties": {}, "$defs": {"p": {"anyOf": [inner]}}}
    held: JsonObject = {"type": "array", "items": inner}
    return {"type": "object", "properties": {"p": inner if place == "property" else held}}


@pytest.mark.parametrize(("given_schema", "repaired"), [row[1:] for row in NESTED], ids=[row[0] for row in NESTED])
def test_a_sub_schema_is_repaired(given_schema: Any, repaired: Any) -> None:
    for place in ("property", "items", "definition"):
        result = repair_schema(holding(place, given_schema))
        assert json.dumps(result, sort_keys=True) == json.dumps(holding(place, repaired), sort_keys=True)


EMPTY: JsonObject = {"type": "object", "properties": {}}


ROOTS: list[tuple[Any, JsonObject]] = [
    ({}, EMPTY),
    (None, EMPTY),
    (True, EMPTY),
    (False, EMPTY),
    ("object", EMPTY),
    ([{"type": "object"}], EMPTY),
    ({"type": "object"}, EMPTY),
    ({"type": ["object", "null"], "default": None}, EMPTY),
    ({"type": "string"}, EMPTY),
    ({"properties": None}, EMPTY),
    ({"properties": ["a"]}, EMPTY),
    (
        {"properties": {"q": {"title": "Q"}}, "required": ["q"]},
        {"type": "object", "properties": {"q": {"title": "Q", "type": "string"}}, "required": ["q"]},
    ),
    (
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
        {**EMPTY, "$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
    ),
    ({"additionalProperties": False}, {**EMPTY, "additionalProperties": False}),
]


@pytest.mark.parametrize(("root", "repaired"), ROOTS)
def test_the_root_is_always_an_object_with_properties(root: Any, repaired: Any) -> None:
    assert repair_schema(root) == repaired


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"properties": {"p": schema}}
    return schema


def test_a_bottomless_schema_ends_and_stays_the_same_from_then_on() -> None:
    once = repair_schema(nested(10_000))
    assert repair_schema(once) == once
    assert 20 < json.dumps(once).count('"p"') < 40


def test_a_wide_schema_is_bounded() -> None:
    once = repair_schema({"properties": {f"p{number}": {"title": "x"} for number in range(10_000)}})
    assert repair_schema(once) == once
    assert json.dumps(once).count("title") <= 2000


def test_a_schema_within_the_limits_loses_nothing() -> None:
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1900)}}
    deep = nested(15)
    for schema in (wide, deep):
        assert schema_refused(schema, max_bytes=65_536) is None
    assert repair_schema(wide) == wide
    assert json.dumps(repair_schema(deep)).count('"p"') == 15


KEYS = st.sampled_from(
    [
        *("type", "properties", "items", "prefixItems", "anyOf", "allOf"),
        *("oneOf", "not", "if", "then", "else", "$defs"),
        *("definitions", "default", "enum", "const", "$ref", "required"),
        *(
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "contains",
            "dependentSchemas",
            "unevaluatedItems",
        ),
        *("title",),
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["string", "object", "#/$defs/a", "http://x/"])
    | st.text(max_size=3)
)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.sampled_from(["a", "type"]), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(JSON)
def test_any_json_is_repaired_once_and_for_all(schema: Any) -> None:
    before = copy.deepcopy(schema)
    once = repair_schema(schema)
    assert json.dumps(schema) == json.dumps(before)
    assert repair_schema(once) == once
    assert json.dumps(repair_schema(once)) == json.dumps(once)
    assert once["type"] == "object"
    assert isinstance(once["properties"], dict)
    told = schema_refused(schema, max_bytes=65_536)
    assert told is None or "$ref" in json.dumps(schema)


DROPPED: list[tuple[Any, str | None]] = [
    ({}, None),
    (None, None),
    ({"properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#"}, "c": {"$ref": ""}}}, None),
    ({"properties": {"a": {"$ref": "https://x.example/s.json"}}}, "another document"),
    ({"properties": {"a": {"items": [{"anyOf": [{"$ref": "other.json#/A"}]}]}}}, "another document"),
    ({"properties": {"a": {"$dynamicRef": "file:///etc/passwd"}}}, "another document"),
    ({"properties": {"default": {"$ref": "//x.example/"}}}, "another document"),
    ({"$defs": {"const": {"not": {"$ref": "a"}}}}, "another document"),
    ({"dependencies": {"a": {"$ref": "x"}, "b": ["c"]}}, "another document"),
    ({"properties": {"$ref": {"type": "string"}}}, None),
    ({"enum": [{"$ref": "https://x.example/"}], "default": {"$ref": "https://x.example/"}}, None),
    (nested(16), "deeper"),
    (nested(10_000), "deeper"),
    ({"properties": {f"p{number}": {} for number in range(2000)}}, "parts"),
    ({"enum": [1] * 60_000}, "parts"),
    ({"enum": [1] * 30_000}, None),
    ({"description": "x" * 65_518}, None),
    ({"description": "x" * 65_536}, "65536 bytes"),
    ({"description": "é" * 32_768}, "65536 bytes"),
    ({"enum": ["\ud800"]}, None),
]


@pytest.mark.parametrize(("schema", "reason"), DROPPED)
def test_what_must_be_dropped_is_told_with_its_reason(schema: Any, reason: str | None) -> None:
    told = schema_refused(schema, max_bytes=65_536)
    if reason is None:
        assert told is None
    else:
        assert told is not None
        assert reason in told
        assert "example" not in told
