import copy
import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from app.domain.jsontypes import JsonObject, is_array, is_object
from app.toolbox.arguments import fitted_arguments
from app.toolbox.schema import repair_schema, schema_refused

OBJECT: JsonObject = {"type": "object", "properties": {}}
ARRAY: JsonObject = {"type": "array", "items": {}}
PAIR: JsonObject = {**ARRAY, "prefixItems": [{}, {}]}
NULL: JsonObject = {"type": "null"}

VALUES: list[tuple[str, Any, Any]] = [
    ("minLength", "5", 5),
    ("minLength", 5.0, 5),
    ("minLength", -1, None),
    ("minLength", 1.5, None),
    ("minLength", True, None),
    ("minLength", "\u0665", None),
    ("maxLength", "many", None),
    ("maximum", "-1.5", -1.5),
    ("maximum", float("inf"), None),
    ("maximum", "9" * 5000, None),
    ("multipleOf", 0, None),
    ("multipleOf", "0.5", 0.5),
    ("exclusiveMinimum", True, None),
    ("exclusiveMaximum", False, None),
    ("uniqueItems", "true", True),
    ("uniqueItems", 1, None),
    ("deprecated", "no", None),
    ("pattern", ["a"], None),
    ("pattern", "(", "("),
    ("format", None, None),
    ("title", 5, None),
    ("description", {"en": "x"}, None),
    ("enum", "a", ["a"]),
    ("enum", None, None),
    ("enum", [], None),
    ("enum", {"A": 1}, None),
    ("enum", [1, 1, True, "1", {"default": None}], [1, True, "1", {"default": None}]),
    ("examples", "a", ["a"]),
    ("required", False, None),
    ("required", "a", ["a"]),
    ("required", ["a", 1, "a", None], ["a"]),
    ("required", {"a": True}, None),
    ("dependentRequired", ["a"], None),
    ("dependentRequired", {"a": "b", "c": None}, {"a": ["b"]}),
    ("patternProperties", [], None),
    ("dependentSchemas", "x", None),
    ("prefixItems", {}, [{}]),
    ("allOf", [], None),
    ("anyOf", {"type": "null"}, [{"type": "null"}]),
    ("oneOf", "string", None),
    ("contentSchema", {"default": None}, {}),
    ("$schema", "http://json-schema.org/draft-07/schema#", None),
    ("$id", "https://x.example/s", None),
    ("id", "https://x.example/s", None),
    ("id", {"x": 1}, {"x": 1}),
    ("$anchor", "a", None),
    ("$dynamicAnchor", "a", None),
    ("$recursiveAnchor", True, None),
    ("$vocabulary", {}, None),
    ("$comment", "x", None),
]
"""Keyword, a value as it is written, and as it must be; None where the keyword goes."""

DEFAULTS: list[Any] = ["a", 1.5, False, [], {}]

WEAKENED: list[JsonObject] = [
    {"$ref": "#/$defs/Gone"},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/Gone"}}, "required": ["a"]},
    {"anyOf": [{"items": {"$ref": "#/$defs/Gone"}}]},
    {"title": "x"},
    {"type": "file", "minLength": 1},
    {"enum": []},
    {"allOf": [False]},
]
"""Schemas of which less is left after repair."""

NESTED: list[tuple[str, Any, Any]] = [
    ("typed stays", {"type": "string", "minLength": 1}, {"type": "string", "minLength": 1}),
    ("a list of types stays", {"type": ["string", "null"]}, {"type": ["string", "null"]}),
    ("null default goes", {"type": "string", "default": None}, {"type": "string"}),
    ("other defaults stay", {"type": "string", "default": ""}, {"type": "string", "default": ""}),
    ("anything stays anything", {}, {}),
    ("only a null default is anything", {"default": None}, {}),
    ("described stays anything", {"description": "x", "title": "X"}, {"description": "x", "title": "X"}),
    ("null type is no type", {"type": None, "description": "x"}, {"description": "x"}),
    ("empty text is no type", {"type": "", "items": {}}, {"items": {}, "type": "array"}),
    ("unknown words are no type", {"type": "file", "title": "x"}, {"title": "x"}),
    ("a list with an unknown word is no type", {"type": ["string", "any"], "title": "x"}, {"title": "x"}),
    (
        "a list with more than words is no type",
        {"type": ["string", {}, None], "properties": {}},
        {"properties": {}, "type": "object"},
    ),
    ("an object is no type", {"type": {"type": "string"}}, {}),
    ("empty list is no type", {"type": [], "items": {}}, {"items": {}, "type": "array"}),
    ("from properties", {"properties": {}}, {"properties": {}, "type": "object"}),
    ("from patterns", {"patternProperties": {}}, {"patternProperties": {}, "properties": {}, "type": "object"}),
    ("from additional", {"additionalProperties": False}, {"additionalProperties": False, **OBJECT}),
    ("open stays open", {"additionalProperties": True}, {"additionalProperties": True, **OBJECT}),
    (
        "from property names",
        {"propertyNames": {"pattern": "^a"}},
        {"propertyNames": {"pattern": "^a", "type": "string"}, **OBJECT},
    ),
    ("from required", {"required": ["a"]}, {"required": ["a"], **OBJECT}),
    ("from a limit of numbers", {"minimum": 1}, {"minimum": 1, "type": "number"}),
    ("from a limit of lists", {"maxItems": 1}, {"maxItems": 1, **ARRAY}),
    ("from a limit of texts", {"minLength": 1}, {"minLength": 1, "type": "string"}),
    ("from a pattern", {"pattern": "a"}, {"pattern": "a", "type": "string"}),
    ("from a format of texts", {"format": "date"}, {"format": "date", "type": "string"}),
    ("not from any format", {"format": "int64"}, {"format": "int64"}),
    *[("not from a default", {"default": value}, {"default": value}) for value in DEFAULTS],
    ("open entries", {"type": "array", "items": {"title": "x"}}, {"type": "array", "items": {"title": "x"}}),
    (
        "open other properties",
        {**OBJECT, "additionalProperties": {"description": "x"}},
        {**OBJECT, "additionalProperties": {"description": "x"}},
    ),
    *[
        (f"from choices {choices}", {"enum": choices}, {"enum": choices, "type": word})
        for choices, word in [
            (["a", "b"], "string"),
            ([1, 2], "integer"),
            ([1, 2.5], "number"),
            ([True], "boolean"),
            ([None], "null"),
        ]
    ],
    ("from choices that are lists", {"enum": [[1]]}, {"enum": [[1]], **ARRAY}),
    ("not from choices of several types", {"enum": [1, "a", None]}, {"enum": [1, "a", None]}),
    ("not from true and 1", {"enum": [1, True]}, {"enum": [1, True]}),
    ("from items", {"items": {"type": "string"}}, {"items": {"type": "string"}, "type": "array"}),
    (
        "from prefix items",
        {"prefixItems": [{"title": "x"}]},
        {"prefixItems": [{"title": "x"}], **ARRAY},
    ),
    ("from contains", {"contains": {}}, {"contains": {}, **ARRAY}),
    ("object before array", {"items": {}, "properties": {}}, {"items": {}, "properties": {}, "type": "object"}),
    *[
        (f"{key} decides", {key: value, "title": "x"}, {key: value, "title": "x"})
        for key, value in {
            "enum": ["a", None],
            "const": None,
            "$ref": "#",
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
        {"anyOf": [{"title": "x"}, {"items": {}, "type": "array"}]},
    ),
    (
        "not, if, then, else are repaired",
        {"if": {"required": ["a"]}, "then": {"default": None}, "else": True},
        {"if": {"required": ["a"], **OBJECT}, "then": {}, "else": {}},
    ),
    (
        "values are no schemas",
        {"enum": [{"default": None}, 1], "default": {"default": None}, "examples": [{"title": "x"}]},
        {"enum": [{"default": None}, 1], "default": {"default": None}, "examples": [{"title": "x"}]},
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
                "default": {"title": "x"},
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
            "anyOf": [False, {"not": {}}, {"type": "object"}],
            "not": False,
        },
        {"type": "object", "properties": {"b": {}}, "required": ["b", "c"], "anyOf": [OBJECT]},
    ),
    ("a list of nothing goes", {"type": "string", "allOf": [False]}, {"type": "string"}),
    (
        "no items are none",
        {"type": "array", "items": False, "contains": True},
        {"type": "array", "items": {}, "maxItems": 0, "contains": {}},
    ),
    (
        "a tuple keeps its places",
        {"type": "array", "prefixItems": [False, {"type": "string"}]},
        {"type": "array", "prefixItems": [{"not": {}}, {"type": "string"}], "items": {}},
    ),
    (
        "a closed tuple is as long as it was",
        {"type": "array", "prefixItems": [{}, {}], "items": False, "maxItems": "5"},
        {"type": "array", "prefixItems": [{}, {}], "items": {}, "maxItems": 2},
    ),
    (
        "a tuple in the old form",
        {"type": "array", "items": [True, False], "additionalItems": {"items": {}}},
        {"type": "array", "prefixItems": [{}, {"not": {}}], "items": {"items": {}, "type": "array"}},
    ),
    ("a closed tuple in the old form", {"items": [{}, {}], "additionalItems": False}, {**PAIR, "maxItems": 2}),
    ("a list of one is for all", {"items": [{"title": "x"}]}, {**ARRAY, "items": {"title": "x"}}),
    ("an empty list is for anything", {"type": "array", "items": []}, ARRAY),
    ("no schema for items is for anything", {"type": "array", "items": None}, ARRAY),
    ("no items to be more than", {"type": "array", "additionalItems": False}, ARRAY),
    ("an array in a list of types", {"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}}),
    ("an object in a list of types", {"type": ["object", "null"]}, {"type": ["object", "null"], "properties": {}}),
    (
        "arrays and objects in branches and items",
        {"anyOf": [{"type": "array"}, {"type": "array", "items": {"type": "object"}}]},
        {"anyOf": [ARRAY, {"type": "array", "items": OBJECT}]},
    ),
    (
        "a definition stays where references find it",
        {"$ref": "#", "$defs": {"No": False, "Any": True, "A": {"items": {}}}, "definitions": {"No": False}},
        {
            "$ref": "#",
            "$defs": {"No": {"not": {}}, "Any": {}, "A": {"items": {}, "type": "array"}},
            "definitions": {"No": {"not": {}}},
        },
    ),
    (
        "a word for a schema",
        {"type": "object", "additionalProperties": "object", "properties": {"a": "string", "b": "strange", "c": None}},
        {
            "type": "object",
            "additionalProperties": OBJECT,
            "properties": {"a": {"type": "string"}, "b": {}, "c": {}},
        },
    ),
    (
        "a strange word for a schema",
        {"type": "object", "additionalProperties": "strange", "anyOf": [None, {"type": "null"}], "not": None},
        {**OBJECT, "anyOf": [{"type": "null"}]},
    ),
    (
        "a boolean in a text",
        {"type": "object", "additionalProperties": "False"},
        {**OBJECT, "additionalProperties": False},
    ),
    (
        "false elsewhere stays",
        {"type": "array", "uniqueItems": False, "x": None},
        {"type": "array", "items": {}, "uniqueItems": False, "x": None},
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
            "properties": {},
            "dependentSchemas": {"a": {"required": ["b"], **OBJECT}},
            "unevaluatedProperties": {"title": "x"},
        },
    ),
    (
        "dependencies in the old form",
        {"type": "object", "dependencies": {"a": ["b", "b"], "c": "d", "e": {"default": None}, "f": None}},
        {**OBJECT, "dependentRequired": {"a": ["b"], "c": ["d"]}, "dependentSchemas": {"e": {}}},
    ),
    *[
        (f"type {given!r} is {meant!r}", {"type": given, "title": "x"}, {"type": meant, "title": "x"})
        for given, meant in [
            ("String", "string"),
            ("INTEGER", "integer"),
            ("int", "integer"),
            ("float", "number"),
            ("bool", "boolean"),
            ("str", "string"),
            ("None", "null"),
            ("string|null", ["string", "null"]),
            ("string | String", "string"),
            (["string", "string", None], ["string", "null"]),
        ]
    ],
    ("any type is none", {"type": "any", "title": "x"}, {"title": "x"}),
    ("any type beside choices is none", {"type": "any", "enum": [1, "a"]}, {"enum": [1, "a"]}),
    ("other words for arrays and objects", {"type": "list", "items": "dict"}, {"type": "array", "items": OBJECT}),
    *[
        (
            f"{key}: {given!r}",
            {"type": "string", key: given},
            {"type": "string", **({} if kept is None else {key: kept})},
        )
        for key, given, kept in VALUES
    ],
    (
        "a limit that excludes itself in the old form",
        {"type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
        {"type": "number", "exclusiveMinimum": 1, "maximum": 9},
    ),
    (
        "what says of itself that it is required",
        {"properties": {"a": {"type": "string", "required": True}, "b": {"required": "false", "type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]},
    ),
    (
        "properties in a list",
        {"type": "object", "properties": ["a", {"name": "b", "type": "int", "required": True}, 5]},
        {"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "required": ["b"]},
    ),
    ("nullable", {"type": "string", "nullable": True}, {"type": ["string", "null"]}),
    ("nullable is no", {"type": "string", "nullable": False}, {"type": "string"}),
    ("nullable choices", {"enum": ["a"], "nullable": True}, {"enum": ["a", None]}),
    ("nullable branches", {"oneOf": [{"type": "string"}], "nullable": True}, {"oneOf": [{"type": "string"}, NULL]}),
    ("nullable reference", {"$ref": "#", "nullable": True}, {"anyOf": [{"$ref": "#"}, NULL]}),
    (
        "nullable parts",
        {"allOf": [{"$ref": "#"}], "nullable": True, "title": "x"},
        {"title": "x", "anyOf": [{"allOf": [{"$ref": "#"}]}, NULL]},
    ),
    (
        "nullable reference beside a type",
        {"$ref": "#", "type": "object", "nullable": True},
        {"anyOf": [{"$ref": "#", **OBJECT}, NULL]},
    ),
    ("nullable constant", {"const": "a", "nullable": True}, {"anyOf": [{"const": "a"}, NULL]}),
    *[(f"what must not hold goes with {sub}", {"type": "string", "not": sub}, {"type": "string"}) for sub in WEAKENED],
    ("what must not hold stays", {"not": {"const": None, "default": None}}, {"not": {"const": None}}),
    ("nothing is allowed", {"properties": {"a": {"not": {}}}}, {**OBJECT, "properties": {"a": {"not": {}}}}),
    (
        "a condition goes with what it refers to",
        {"type": "string", "if": {"$ref": "#/$defs/Gone"}, "then": {"minLength": 1}},
        {"type": "string", "then": {"minLength": 1, "type": "string"}},
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


ROOTS: list[tuple[Any, JsonObject]] = [
    ({}, OBJECT),
    (None, OBJECT),
    (True, OBJECT),
    (False, OBJECT),
    ("object", OBJECT),
    ([{"type": "object"}], OBJECT),
    ({"type": "object"}, OBJECT),
    ({"type": ["object", "null"], "default": None}, OBJECT),
    ({"type": "string"}, OBJECT),
    ({"properties": None}, OBJECT),
    ({"properties": []}, OBJECT),
    ({"properties": ["a"]}, {"type": "object", "properties": {"a": {}}}),
    ({"type": "array", "nullable": True, "anyOf": [{"type": "object"}]}, {**OBJECT, "anyOf": [OBJECT]}),
    (
        {"properties": {"q": {"title": "Q"}}, "required": ["q"]},
        {"type": "object", "properties": {"q": {"title": "Q"}}, "required": ["q"]},
    ),
    (
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
        {**OBJECT, "$ref": "#/$defs/A", "$defs": {"A": OBJECT}},
    ),
    ({"additionalProperties": False}, {**OBJECT, "additionalProperties": False}),
]


@pytest.mark.parametrize(("root", "repaired"), ROOTS)
def test_the_root_is_always_an_object_with_properties(root: Any, repaired: Any) -> None:
    assert repair_schema(root) == repaired


STRING: JsonObject = {"type": "string"}


def referring(reference: str, /, **root: Any) -> JsonObject:
    return {"type": "object", "properties": {"p": {"$ref": reference, "title": "x"}}, **root}


REFERENCES: dict[str, tuple[JsonObject, Any, Any]] = {
    "kept": (referring("#/$defs/A", **{"$defs": {"A": STRING}}), "#/$defs/A", STRING),
    "to definitions": (referring("#/definitions/A", definitions={"A": STRING}), "#/definitions/A", STRING),
    "to the root": (referring("#"), "#", None),
    "to definitions under their other name": (
        referring("#/definitions/A", **{"$defs": {"A": STRING}}),
        "#/$defs/A",
        STRING,
    ),
    "to a property": (
        {"type": "object", "properties": {"q": STRING, "p": {"$ref": "#/properties/q"}}},
        "#/properties/q",
        STRING,
    ),
    "to a branch that moves": (
        {"type": "object", "properties": {"q": {"anyOf": [False, STRING]}, "p": {"$ref": "#/properties/q/anyOf/1"}}},
        "#/properties/q/anyOf/0",
        STRING,
    ),
    "by the document's own address": (
        referring("https://x.example/s#/$defs/A", **{"$id": "https://x.example/s", "$defs": {"A": STRING}}),
        "#/$defs/A",
        STRING,
    ),
    "within a part of its own address": (
        {"properties": {"p": {"$ref": "#/$defs/B/$defs/A"}}, "$defs": {"B": {"$id": "b", "$defs": {"A": STRING}}}},
        "#/$defs/B/$defs/A",
        STRING,
    ),
    "to definitions of the part that was embedded": (
        {"properties": {"o": {"$defs": {"A": STRING}, "properties": {"p": {"$ref": "#/$defs/A"}}}}},
        "#/properties/o/$defs/A",
        STRING,
    ),
    "to where no schemas are kept": (
        referring("#/components/schemas/A", components={"schemas": {"A": {"default": None, "items": {}}}}),
        "#/$defs/A",
        ARRAY,
    ),
    "to what allows nothing": (
        {"type": "object", "properties": {"q": False, "p": {"$ref": "#/properties/q"}}},
        "#/$defs/q",
        {"not": {}},
    ),
    "to what allows anything": (referring("#/$defs/A", **{"$defs": {"A": True}}), "#/$defs/A", {}),
    "to a bare word": (referring("#/$defs/A", **{"$defs": {"A": "string"}}), "#/$defs/A", STRING),
    "with escapes": (referring("#/$defs/a~1b%20c%25", **{"$defs": {"a/b c%": STRING}}), "#/$defs/a~1b%20c%25", STRING),
    "without the escapes": (referring("#/$defs/a%20b", **{"$defs": {"a%20b": STRING}}), "#/$defs/a%2520b", STRING),
    "in the wild": (referring("#/$defs/List<É>", **{"$defs": {"List<É>": STRING}}), "#/$defs/List<É>", STRING),
}


@pytest.mark.parametrize("row", REFERENCES.values(), ids=REFERENCES)
def test_a_reference_leads_where_it_led(row: tuple[JsonObject, str, Any]) -> None:
    written, reference, target = row
    root = repair_schema(written)
    assert schema_refused(written, max_bytes=65_536) is None
    assert [node["$ref"] for node in nodes(root) if "$ref" in node] == [reference]
    assert at(root, reference) == (target if target is not None else root)


@pytest.mark.parametrize("reference", ["#/$defs/a~1b%20c", "#/properties/q/anyOf/0", "#/$defs/A/properties/n"])
def test_arguments_are_fitted_through_whatever_reference_is_left(reference: str) -> None:
    number: JsonObject = {"type": "integer"}
    definitions: JsonObject = {"a/b c": number, "A": {"type": "object", "properties": {"n": number}}}
    root: JsonObject = {
        "type": "object",
        "properties": {"p": {"$ref": reference}, "q": {"anyOf": [number]}, "r": {"$ref": "#"}},
        "$defs": definitions,
    }
    repaired = repair_schema(root)
    assert repaired["properties"]["p"] == {"$ref": reference}
    assert fitted_arguments({"p": "5", "r": {"p": "6"}}, repaired) == {"p": 5, "r": {"p": 6}}


DANGLING = [
    "#/$defs/B",
    "#/$defs/A/0",
    "#/properties/p/default",
    "#/required/0",
    "#b",
    "b",
    "#/$defs/~2",
    "http://[",
    "é",
]


@pytest.mark.parametrize("reference", DANGLING)
def test_a_reference_that_leads_nowhere_is_not_kept(reference: str) -> None:
    ref: JsonObject = {"$ref": reference, "default": "am"}
    places: JsonObject = {"p": ref, "q": {"type": "array", "items": {"$ref": reference}}, "r": {"anyOf": [ref, NULL]}}
    root = repair_schema({"properties": places, "$defs": {"A": STRING}, "required": ["p"]})
    assert [node for node in nodes(root) if "$ref" in node] == []
    assert root["properties"] == {"p": {"default": "am"}, "q": ARRAY, "r": {"anyOf": [{"default": "am"}, NULL]}}


@pytest.mark.parametrize("keyword", ["$dynamicRef", "$recursiveRef"])
def test_references_of_other_kinds_are_not_kept(keyword: str) -> None:
    root: JsonObject = {"properties": {"p": {keyword: "#a", "title": "x"}}, "$defs": {"A": {"$dynamicAnchor": "a"}}}
    assert repair_schema(root) == {"type": "object", "properties": {"p": {"title": "x"}}, "$defs": {"A": {}}}


def test_what_must_not_hold_stays_the_same_from_then_on() -> None:
    once = repair_schema({"$defs": {"B": {"allOf": [{"not": {"$ref": "#/properties/a"}}, {"not": "true"}]}}})
    assert repair_schema(once) == once
    assert once["$defs"] == {"B": {"allOf": [{}]}}


def test_a_reference_into_what_went_leads_to_what_was_there() -> None:
    lost: JsonObject = {"items": {"$ref": "#/gone"}, "properties": {"a": STRING}}
    root = repair_schema({"properties": {"p": {"not": lost}, "q": {"$ref": "#/properties/p/not/properties/a"}}})
    assert root["properties"] == {"p": {}, "q": {"$ref": "#/$defs/a"}}
    assert root["$defs"] == {"a": STRING}


def test_a_property_may_be_called_like_a_reference() -> None:
    root: JsonObject = {"type": "object", "properties": {"$ref": STRING, "$id": STRING, "$defs": STRING}}
    assert repair_schema(root) == root


def nodes(schema: Any) -> list[JsonObject]:
    """All objects of a schema, data as well."""
    inner: list[Any] = []
    if is_object(schema):
        inner = list(schema.values())
    elif is_array(schema):
        inner = schema
    return [*([schema] if is_object(schema) else []), *(node for value in inner for node in nodes(value))]


def at(root: Any, reference: str) -> Any:
    found = root
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if is_array(found) else found[name]
    return found


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


@pytest.mark.parametrize("sub", ["string", "list", {"type": "array"}, {"type": "string", "nullable": True}])
def test_what_is_filled_in_is_bounded_and_stays_the_same(sub: Any) -> None:
    once = repair_schema({"properties": {f"p{number}": sub for number in range(3_000)}})
    assert repair_schema(once) == once
    assert json.dumps(once).count("type") < 2100


def test_references_without_end_end() -> None:
    refs: JsonObject = {f"p{number}": {"$ref": f"#/x/p{number + 1}"} for number in range(3000)}
    once = repair_schema({"$ref": "#/x/p0", "x": refs})
    assert repair_schema(once) == once
    assert len(once["$defs"]) <= 2000


def test_a_schema_within_the_limits_loses_nothing() -> None:
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1900)}}
    deep = nested(15)
    for schema in (wide, deep):
        assert schema_refused(schema, max_bytes=65_536) is None
    assert repair_schema(wide) == wide
    assert json.dumps(repair_schema(deep)).count('"p"') == 15


KEYWORDS = [
    *("type", "properties", "items", "prefixItems", "anyOf", "allOf", "oneOf", "not"),
    *("if", "then", "else", "$defs", "definitions", "default", "enum", "const"),
    *(
        "$ref",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "contains",
        "dependentSchemas",
        "dependentRequired",
    ),
    *(
        "dependencies",
        "unevaluatedItems",
        "title",
        "description",
        "minLength",
        "maximum",
        "exclusiveMinimum",
        "multipleOf",
    ),
    *("uniqueItems", "pattern", "format", "examples", "nullable", "$id", "id", "$anchor"),
    *("$dynamicRef", "$recursiveRef", "$comment", "$schema", "additionalItems", "contentSchema"),
]
NAMES = st.sampled_from(["a", "b", "type", "$ref", " %/~x"])
POINTERS = st.sampled_from(
    ["#", "#/$defs/a", "#/definitions/b", "#/properties/a/items/0", "#a", "http://x/s#/$defs/a", "a", "#/x", "#/enum/0"]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["string", "Object", "array", "any", "5", "true", "("])
    | st.text(max_size=3)
)
JSON = st.recursive(
    LEAVES | POINTERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYWORDS) | NAMES, inner, max_size=5),
    max_leaves=25,
)
TYPES = st.sampled_from(["string", "object", "array", "null", ["string", "null"], ["array", "object"]])


def schema_shaped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(["properties", "$defs", "definitions", "patternProperties", "dependentSchemas"], named),
        **dict.fromkeys(["anyOf", "oneOf", "allOf", "prefixItems"], many),
        **dict.fromkeys(["not", "if", "then", "additionalProperties", "additionalItems"], inner),
        "type": TYPES,
        "items": inner | many,
        "$ref": POINTERS,
        "required": st.lists(NAMES, max_size=3) | st.just(True),
        "enum": st.lists(LEAVES, max_size=3),
        "nullable": st.booleans(),
        "$id": st.sampled_from(["http://x/s", "a"]),
        "$anchor": st.just("a"),
    }
    return st.fixed_dictionaries({}, optional=keywords)


SIMPLE = st.fixed_dictionaries({}, optional={"type": TYPES, "$ref": POINTERS, "title": st.just("x")})
SCHEMAS = st.recursive(SIMPLE | st.booleans(), schema_shaped, max_leaves=10)


@given(JSON | SCHEMAS)
def test_any_json_is_repaired_once_and_for_all(schema: Any) -> None:
    before = copy.deepcopy(schema)
    once = repair_schema(schema)
    assert json.dumps(schema) == json.dumps(before)
    assert json.dumps(repair_schema(once)) == json.dumps(once)
    # Which regular expressions can be read is no matter of schemas.
    Draft202012Validator.check_schema(once, format_checker=FormatChecker(()))
    assert once["type"] == "object"
    assert isinstance(once["properties"], dict)
    told = schema_refused(schema, max_bytes=65_536)
    assert told is None or "Ref" in json.dumps(schema) or "$ref" in json.dumps(schema)


@given(SCHEMAS)
def test_all_references_of_a_repaired_schema_lead_to_schemas(schema: Any) -> None:
    once = repair_schema(schema)
    for node in nodes(once):
        if isinstance(node.get("$ref"), str):
            assert isinstance(at(once, node["$ref"]), dict)


DROPPED: list[tuple[Any, str | None]] = [
    ({}, None),
    (None, None),
    ({"properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#"}, "c": {"$ref": ""}}}, None),
    ({"properties": {"a": {"$ref": "https://x.example/s.json"}}}, "another document"),
    ({"properties": {"a": {"items": [{"anyOf": [{"$ref": "other.json#/A"}]}]}}}, "another document"),
    ({"properties": {"a": {"$dynamicRef": "file:///etc/passwd"}}}, None),
    ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "another document"),
    ({"$id": "https://x.example/s", "properties": {"a": {"$ref": "https://x.example/s#/$defs/A"}}}, None),
    ({"properties": {"default": {"$ref": "//x.example/"}}}, "another document"),
    ({"$defs": {"const": {"not": {"$ref": "a"}}}}, "another document"),
    ({"dependencies": {"a": {"$ref": "x"}, "b": ["c"]}}, "another document"),
    ({"properties": {"$ref": {"type": "string"}}}, None),
    ({"$id": "https://x.example/s", "properties": {"a": {"$ref": "t#/$defs/A"}}}, "another document"),
    ({"properties": {"a": {"$ref": "t#/$defs/A"}}, "$defs": {"T": {"$id": "t"}}}, "another document"),
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
