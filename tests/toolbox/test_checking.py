import json
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry

from app.domain.jsontypes import Json, JsonObject
from app.toolbox.checking import SchemaCheck
from app.toolbox.schema import repair_schema

TEXT: JsonObject = {"type": "string"}
WHOLE: JsonObject = {"type": "integer"}
NULL: JsonObject = {"type": "null"}


def fault_of_value(value: Json, schema: JsonObject) -> str | None:
    return SchemaCheck(schema).fault(value)


FAULTS: list[tuple[Json, Any, str]] = [
    (1, TEXT, "must be a string"),
    (True, WHOLE, "must be an integer"),
    ("1", {"type": ["number", "null"]}, "must be a number or null"),
    (1, {"type": ["boolean", "array", "object"]}, "must be a boolean or an array or an object"),
    (3, {"enum": [1, 2]}, "must be a value that is allowed"),
    (1, {"enum": [True, "1", [1]]}, "must be a value that is allowed"),
    ([1], {"const": [True]}, "must be a value that is allowed"),
    (1, {"minimum": 2}, "must be at least 2"),
    (1.5, {"maximum": 0.1}, "must be at most 0.1"),
    (2, {"exclusiveMinimum": 2}, "must be more than 2"),
    (2, {"exclusiveMaximum": 2}, "must be less than 2"),
    (2, {"minimum": 10**4000}, "must be at least its limit"),
    (5, {"multipleOf": 2}, "must be a multiple of 2"),
    (0.35, {"multipleOf": 0.1}, "must be a multiple of 0.1"),
    ("", {"minLength": 1}, "must have 1 or more characters"),
    ("ab", {"maxLength": 1}, "must have 1 or fewer characters"),
    ([], {"minItems": 1}, "must have 1 or more entries"),
    ([1, 2], {"maxItems": 1}, "must have 1 or fewer entries"),
    ({}, {"minProperties": 1}, "must have 1 or more properties"),
    ({"a": 1}, {"maxProperties": 0}, "must have 0 or fewer properties"),
    ([{"a": [1]}, {"a": [1.0]}], {"uniqueItems": True}, "must not have the same entry twice"),
    ({}, {"required": ["a"]}, "a: is missing"),
    ({"a": 1}, {"dependentRequired": {"a": ["b"]}}, "b: is missing, and needed beside a"),
    ({"a": 1}, {"dependentSchemas": {"a": {"required": ["b"]}}}, "b: is missing"),
    ({"a": 1}, {"properties": {"a": TEXT}}, "a: must be a string"),
    ({"a": 1}, {"properties": {"a": False}}, "a: is not allowed"),
    ({"a": 1, "b": 2}, {"properties": {"a": {}}, "additionalProperties": False}, "b: is not allowed"),
    ({"b": 2}, {"additionalProperties": TEXT}, "b: must be a string"),
    ({"long": 2}, {"propertyNames": {"maxLength": 3}}, "long: has a name that is not allowed"),
    (["a", 1], {"items": TEXT}, "1: must be a string"),
    (["a", "b"], {"prefixItems": [TEXT], "items": WHOLE}, "1: must be an integer"),
    ([1], {"prefixItems": [TEXT]}, "0: must be a string"),
    ([1], {"contains": TEXT}, "has too few entries of the kind that it must have"),
    ([1, 1], {"contains": WHOLE, "maxContains": 1}, "has too many entries of one kind"),
    ("a", {"allOf": [TEXT, {"minLength": 2}]}, "must have 2 or more characters"),
    (1, {"not": WHOLE}, "has a form that is not allowed"),
    (1, {"not": {}}, "has a form that is not allowed"),
    (1, {"oneOf": [WHOLE, {"type": "number"}]}, "must fit only one of its alternatives"),
    (1, {"if": WHOLE, "then": {"minimum": 2}}, "must be at least 2"),
    ("", {"if": WHOLE, "else": {"minLength": 2}}, "must have 2 or more characters"),
    (1, {"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": TEXT}}, "must be a string"),
    (
        1,
        {"$ref": "https://x.example/s#/$defs/a", "$id": "https://x.example/s", "$defs": {"a": TEXT}},
        "must be a string",
    ),
    ({"a": {"a": {"a": 1}}}, {"type": "object", "properties": {"a": {"$ref": "#"}}}, "a.a.a: must be an object"),
    # The alternative that was meant is the one that came furthest.
    (1, {"anyOf": [TEXT, {"type": ["null", "array"]}]}, "must be a string or null or an array"),
    ("", {"anyOf": [NULL, {"type": "string", "minLength": 1}]}, "must have 1 or more characters"),
    ("x", {"anyOf": [{"enum": ["a"]}, NULL]}, "must be a value that is allowed"),
    ("x", {"anyOf": [{"const": "a"}, {"const": "b"}]}, "fits none of its alternatives"),
    ({}, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "fits none of its alternatives"),
    (
        {"kind": "b", "n": "1"},
        {
            "oneOf": [
                {"properties": {"kind": {"const": "a"}}},
                {"properties": {"kind": {"const": "b"}, "n": WHOLE}},
            ]
        },
        "n: must be an integer",
    ),
    # As servers write it.
    (1, {"type": "str"}, "must be a string"),
    (["a", 1], {"items": [TEXT, TEXT]}, "1: must be a string"),
    (2, {"minimum": 2, "exclusiveMinimum": True}, "must be more than 2"),
    (
        {"items": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": 4}]},
        {"properties": {"items": {"items": {"properties": {"name": TEXT}}}}},
        "items.3.name: must be a string",
    ),
]


@pytest.mark.parametrize(("value", "schema", "fault"), FAULTS, ids=lambda item: json.dumps(item)[:50])
def test_fault_is_named_with_its_place(value: Json, schema: JsonObject, fault: str) -> None:
    assert fault_of_value(value, schema) == fault


FINE: list[tuple[Json, Any]] = [
    ({"anything": [1]}, {}),
    (5.0, WHOLE),
    (None, {"type": "string", "nullable": True}),
    (19.99, {"multipleOf": 0.01}),
    (1e308, {"multipleOf": 0.01}),
    (float("nan"), {"multipleOf": 0.5}),
    ([1, True, "1", [1], [True], {"a": 1}, {"a": True}], {"uniqueItems": True}),
    ({"a": 1}, {"dependentRequired": {"b": ["c"]}}),
    ([], {"contains": TEXT, "minContains": 0}),
    # What is not judged.
    ("b", {"pattern": "^a$"}),
    ("b", {"format": "date"}),
    ({"b": 1}, {"patternProperties": {"^a": {}}, "additionalProperties": False}),
    ({"a": 1}, {"patternProperties": {"a": TEXT}}),
    ({"b": 1}, {"unevaluatedProperties": False}),
    ([1], {"unevaluatedItems": False}),
    (1, {"$dynamicRef": "#"}),
    # What leads nowhere.
    (1, {"$ref": "#/$defs/none"}),
    (1, {"$ref": "#anchor"}),
    (1, {"$ref": "https://json-schema.org/draft/2020-12/schema"}),
    (1, {"$ref": "file:///etc/passwd"}),
    (1, {"$ref": "http://["}),
    (1, {"$ref": "#/allOf/x", "allOf": [{}]}),
    (1, {"$ref": "#/enum/0", "enum": [1]}),
    (1, {"$ref": "#/properties", "properties": {"type": {"$schema": "http://json-schema.org/draft-07/schema#"}}}),
    (1, {"$ref": "#"}),
    (1, {"allOf": [{"$id": "https://x.example/s", "$ref": "#/$defs/a"}], "$defs": {"a": TEXT}}),
    # What is forbidden cannot be told where something is left out.
    ("a", {"not": {"pattern": "b"}}),
    ("a", {"not": {"$ref": "https://x.example/s"}}),
    ("a", {"oneOf": [{"pattern": "b"}, TEXT]}),
    ("a", {"if": {"pattern": "b"}, "then": False}),
    (["a"], {"contains": {"pattern": "b"}, "maxContains": 0}),
    # What is no schema.
    ({"a": 1}, {"type": 5}),
    ({"a": 1}, {"type": ["strange"]}),
    ({"a": 1}, {"properties": [], "required": "true", "additionalProperties": "no", "enum": {"a": 1}}),
    ({"a": 1}, {"properties": {"a": 5}, "allOf": {}, "anyOf": [], "items": 1, "not": None, "$defs": [1]}),
    ({"a": 1}, {"minProperties": "many", "maxProperties": -1, "required": [1], "$ref": 5, "$id": 5, "$schema": []}),
]


@pytest.mark.parametrize(("value", "schema"), FINE, ids=repr)
def test_what_is_fine_or_cannot_be_told_is_no_fault(value: Json, schema: JsonObject) -> None:
    assert fault_of_value(value, schema) is None


def test_neither_values_nor_the_schema_are_repeated() -> None:
    for value in ("sk-secret", ["sk-secret"], {"k": "sk-secret"}):
        for keyword, said in (("type", "null"), ("enum", ["from-schema"]), ("const", "from-schema"), ("not", {"a": 1})):
            schema: JsonObject = {keyword: said, "title": "from-schema", "description": "from-schema"}
            fault = fault_of_value(value, {"anyOf": [schema, schema]})
            assert fault is not None
            assert "secret" not in fault
            assert "from-schema" not in fault


def test_names_are_cleaned_and_capped() -> None:
    name = "a\u202e\n\x1b[31mb" + "x" * 500
    fault = fault_of_value({name: 1, "": 2}, {"additionalProperties": TEXT})
    assert fault is not None
    assert fault.startswith("a")
    assert fault.endswith("x…: must be a string")
    assert fault.isprintable()
    assert len(fault) < 100
    assert fault_of_value({"": 2}, {"additionalProperties": TEXT}) == "(unnamed): must be a string"


def test_a_long_path_is_cut() -> None:
    value: Json = 1
    schema: JsonObject = TEXT
    for _ in range(20):
        value, schema = {"p": value}, {"properties": {"p": schema}}
    assert fault_of_value(value, schema) == f"{'p.' * 12}…: must be a string"


def doubling(keyword: str) -> JsonObject:
    steps: JsonObject = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(18)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, "d18": TEXT}}


def nested(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


def deep_schema(levels: int) -> JsonObject:
    schema: JsonObject = TEXT
    for _ in range(levels):
        schema = {"items": schema}
    return schema


MANY = 100_000
WIDE: JsonObject = {f"p{number}": number for number in range(1900)}
OPEN: JsonObject = {name: {"$defs": {}} for name in WIDE}
BOMBS: list[tuple[str, Json, Any]] = [
    ("references that double", "a", doubling("allOf")),
    ("alternatives that double", 1, doubling("anyOf")),
    ("exclusive alternatives that double", 1, doubling("oneOf")),
    ("many entries", list(range(MANY)), {"items": WHOLE}),
    ("many entries that may be anything", list(range(MANY)), {"items": {"$defs": {"a": {}}}}),
    ("many different entries", list(range(MANY)), {"uniqueItems": True}),
    ("many names", {str(number): 1 for number in range(MANY)}, {"propertyNames": {"minLength": 1}}),
    ("many properties", {str(number): 1 for number in range(MANY)}, {"additionalProperties": WHOLE}),
    ("many to look for one in", list(range(MANY)), {"contains": TEXT}),
    ("wide objects in many places", [WIDE] * 3000, {"items": {"properties": OPEN}}),
    ("wide requirements in many places", [WIDE] * 30_000, {"items": {"required": list(WIDE)}}),
    ("many branches in many places", [1] * 3000, {"items": {"allOf": [{"$defs": {}}] * 1900}}),
    ("large constants in many places", [WIDE] * 3000, {"items": {"const": WIDE}}),
    ("large values that are forbidden", [["x" * 100] * 10_000] * 30, {"items": {"anyOf": [*[False] * 999, True]}}),
    ("a deep value", nested(500), {"type": "array", "items": {"$ref": "#"}}),
    ("a deep value to compare", nested(500), {"const": nested(500)}),
    ("a deep schema", nested(2000), deep_schema(2000)),
    ("a wide schema", {}, {"$defs": {str(number): {"type": "string"} for number in range(MANY)}}),
    ("a reference to itself", 1, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
]


def effort(work: Callable[[], object]) -> float:
    """The least CPU time of two, in seconds; for comparing with that of other work."""
    times: list[float] = []
    for _ in range(2):
        began = process_time()
        work()
        times.append(process_time() - began)
    return min(times)


@pytest.mark.parametrize(("value", "schema"), [row[1:] for row in BOMBS], ids=[row[0] for row in BOMBS])
def test_too_much_work_ends_early_and_is_no_fault(value: Json, schema: JsonObject) -> None:
    assert fault_of_value(value, schema) is None
    usual: JsonObject = {"properties": {f"p{number}": TEXT for number in range(20)}}
    arguments: JsonObject = {f"p{number}": "x" for number in range(20)}
    hundred = effort(lambda: [fault_of_value(arguments, usual) for _ in range(100)])
    assert effort(lambda: fault_of_value(value, schema)) < 20 * hundred


def test_what_is_large_but_not_too_large_is_judged() -> None:
    row: JsonObject = {"id": 1, "name": "x", "tags": ["a"], "open": True}
    schema: JsonObject = {
        "items": {
            "type": "object",
            "properties": {"id": WHOLE, "name": TEXT, "tags": {"items": TEXT}, "open": {"type": "boolean"}},
            "required": ["id"],
        }
    }
    assert fault_of_value([row] * 200, schema) is None
    assert fault_of_value([*[row] * 200, {**row, "tags": [1]}], schema) == "200.tags.0: must be a string"


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "", "a", "ab"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
NUMBERS = st.integers(0, 3)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"])
NAME_LISTS = st.lists(NAMES, max_size=2, unique=True)


def schemas_over(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    lists, maps = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    keywords: dict[str, st.SearchStrategy[Json]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "uniqueItems": st.booleans(),
        "multipleOf": st.integers(1, 3),
        "required": NAME_LISTS,
        "dependentRequired": st.dictionaries(NAMES, NAME_LISTS, max_size=2),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), NUMBERS),
        **dict.fromkeys(("minContains", "maxContains"), NUMBERS),
        **dict.fromkeys(("additionalProperties", "propertyNames", "items", "contains"), inner),
        **dict.fromkeys(("not", "if", "then", "else"), inner),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), lists),
        **dict.fromkeys(("properties", "dependentSchemas"), maps),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: keywords[key] for key in keys}))


PLAIN: st.SearchStrategy[Json] = st.sampled_from([True, False, {}, TEXT, WHOLE, {"const": 1}, {"required": ["a"]}])
SCHEMAS = schemas_over(schemas_over(schemas_over(PLAIN) | PLAIN) | PLAIN)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, SCHEMAS, PLAIN, PLAIN)
def test_what_can_be_judged_is_judged_as_the_standard_says(
    value: Json, schema: Json, first: Json, second: Json
) -> None:
    whole: JsonObject = {**schema, "$defs": {"a": first, "b": second}}
    judge = Draft202012Validator(whole, registry=Registry())
    is_valid: bool = judge.is_valid(value)  # pyright: ignore[reportUnknownMemberType] - one parameter is untyped
    assert (fault_of_value(value, whole) is None) == is_valid


KEYWORDS = [
    *(str(key) for key in Draft202012Validator.VALIDATORS),
    *("then", "else", "$defs", "definitions", "minContains", "maxContains", "$id", "$schema", "$anchor"),
    *("nullable", "dependencies", "additionalItems"),
]
WILD_LEAVES = (
    LEAVES
    | st.floats()
    | st.integers(min_value=10**30)
    | st.sampled_from(["string", "object", "#", "#/$defs/a", "#/properties/a", "#a", "x#y", "(", "\ud800"])
)
WILD = st.recursive(
    WILD_LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS) | NAMES, inner, max_size=4),
    max_leaves=15,
)
WILD_SCHEMAS = st.dictionaries(st.sampled_from(KEYWORDS), WILD, max_size=5)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WILD, WILD_SCHEMAS)
def test_nothing_raises_and_the_schema_is_not_changed(value: Json, schema: JsonObject) -> None:
    before = repr((value, schema))
    fault = fault_of_value(value, schema)
    assert fault is None or 0 < len(fault) < 1000
    assert repr((value, schema)) == before
    fault_of_value(value, repair_schema(schema))
