"""What of JSON Schema an endpoint takes is what it gets, and it means the same as far as that can be said."""

import copy
import json
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app.domain.jsontypes import JsonObject
from app.toolbox.schema import repair_schema
from app.upstream.schemas import MAX_NODES, SchemaDialect, schema_in_dialect
from tests.toolbox.test_schema import JSON, SCHEMAS, at, nodes

USUAL = SchemaDialect()
REFERRING = SchemaDialect(references=True)
KEEPING = SchemaDialect(type_lists="keep")
BRANCHING = SchemaDialect(type_lists="any_of")
NULLABLE = SchemaDialect(type_lists="nullable")
POOR = SchemaDialect(patterns=False, formats="none", constraints=False, combinators=False)
WITHOUT = SchemaDialect(without=frozenset({"const", "oneOf", "enum", "additionalProperties", "title", "default"}))
POOR_NULLABLE = replace(POOR, type_lists="nullable")

STRING: JsonObject = {"type": "string"}
NUMBER: JsonObject = {"type": "number"}
NULL: JsonObject = {"type": "null"}
MORE: JsonObject = {"description": "More of it is left out here."}
OBJECT: JsonObject = {"type": "object", "properties": {}}
ARRAY: JsonObject = {"type": "array", "items": {}}
SLOT: JsonObject = {"type": "string", "enum": ["am", "pm"], "description": "half day"}
TO_SLOT: JsonObject = {"$ref": "#/$defs/Slot"}
DEFINITIONS: JsonObject = {
    "Slot": SLOT,
    "Alias": TO_SLOT,
    "MaySlot": {"anyOf": [TO_SLOT, {"type": "null"}]},
    "Loop": {"$ref": "#/$defs/Loop", "description": "d"},
    "a/b %": NUMBER,
    "Nothing": NULL,
    "ToNothing": {"$ref": "#/$defs/Nothing"},
    "Any": True,
    "No": False,
    "Person": {"type": "object", "properties": {"name": STRING}, "required": ["name"]},
    "List": {"type": "array", "items": {"anyOf": [STRING, {"$ref": "#/$defs/List"}]}},
}
LIST: JsonObject = {"type": ["string", "null"]}


def given_p(inner: JsonObject, **root: Any) -> JsonObject:
    return {"type": "object", "properties": {"p": inner}, "required": ["p"], **root}


PROPERTIES: dict[str, tuple[SchemaDialect, JsonObject, JsonObject]] = {
    "reference inlined": (USUAL, TO_SLOT, SLOT),
    "reference in items": (USUAL, {"type": "array", "items": TO_SLOT}, {"type": "array", "items": SLOT}),
    "reference in a branch": (USUAL, {"anyOf": [TO_SLOT, NULL]}, {"anyOf": [SLOT, NULL]}),
    "reference to a reference": (USUAL, {"$ref": "#/$defs/Alias"}, SLOT),
    "reference with escapes": (USUAL, {"$ref": "#/$defs/a~1b%20%25"}, NUMBER),
    "reference to anything": (USUAL, {"$ref": "#/$defs/Any", "title": "x"}, {"title": "x"}),
    "reference to nothing": (USUAL, {"$ref": "#/$defs/No"}, {"not": {}}),
    "reference that leads nowhere": (USUAL, {"$ref": "#/$defs/Nope", "title": "x"}, {"title": "x"}),
    "reference to itself alone": (USUAL, {"$ref": "#/$defs/Loop", "title": "x"}, {"description": "d", "title": "x"}),
    "siblings win": (
        USUAL,
        {**TO_SLOT, "description": "preferred half day", "default": "am"},
        {**SLOT, "description": "preferred half day", "default": "am"},
    ),
    "siblings add properties": (
        USUAL,
        {"$ref": "#/$defs/Person", "properties": {"age": NUMBER}, "required": ["age"]},
        {"type": "object", "properties": {"name": STRING, "age": NUMBER}, "required": ["name", "age"]},
    ),
    "siblings without properties take none away": (
        USUAL,
        {"$ref": "#/$defs/Person", "type": "object", "properties": {}},
        DEFINITIONS["Person"],
    ),
    "recursion is expanded and cut to its type": (
        USUAL,
        {"$ref": "#/$defs/List"},
        {
            "type": "array",
            "items": {"anyOf": [STRING, {"type": "array", "items": {"anyOf": [STRING, {**ARRAY, **MORE}]}}]},
        },
    ),
    "one type and null": (USUAL, {**LIST, "title": "x"}, {"type": "string", "title": "x"}),
    "one type in a list": (USUAL, {"type": ["string"]}, STRING),
    "null alone in a list": (USUAL, {"type": ["null"]}, NULL),
    "choices with null": (USUAL, {**LIST, "enum": ["a", None]}, {"type": "string", "enum": ["a"]}),
    "choices of null only": (USUAL, {**LIST, "enum": [None]}, {"type": "null", "enum": [None]}),
    "null as a constant": (USUAL, {**LIST, "const": None}, {"type": "null", "const": None}),
    "choices without a type": (USUAL, {"enum": ["a", None]}, {"enum": ["a", None]}),
    "several types": (
        USUAL,
        {"type": ["string", "number", "array", "null"], "minLength": 1, "minimum": 2, "items": STRING, "title": "x"},
        {
            "title": "x",
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "number", "minimum": 2},
                {"type": "array", "items": STRING},
            ],
        },
    ),
    "several types and choices": (
        USUAL,
        {"type": ["string", "integer", "boolean"], "enum": ["a", 1, "b"]},
        {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "integer", "enum": [1]}]},
    ),
    "a constant decides": (USUAL, {"type": ["string", "integer"], "const": 1}, {"type": "integer", "const": 1}),
    "whole numbers are numbers": (USUAL, {"type": ["integer", "number"]}, NUMBER),
    "a format of texts": (
        USUAL,
        {"type": ["integer", "string"], "format": "date"},
        {"anyOf": [{"type": "integer"}, {"type": "string", "format": "date"}]},
    ),
    "arrays and objects are whole in branches": (USUAL, {"type": ["array", "object"]}, {"anyOf": [ARRAY, OBJECT]}),
    "branches say more than a list of types": (
        USUAL,
        {"type": ["string", "number"], "anyOf": [STRING, NUMBER]},
        {"anyOf": [STRING, NUMBER]},
    ),
    "lists kept": (KEEPING, {**LIST, "enum": ["a", None]}, {**LIST, "enum": ["a", None]}),
    "null as a branch": (
        BRANCHING,
        {**LIST, "minLength": 1, "enum": ["a", None], "title": "x"},
        {"title": "x", "anyOf": [{"type": "string", "minLength": 1, "enum": ["a"]}, NULL]},
    ),
    "several types and null as branches": (
        BRANCHING,
        {"type": ["string", "number", "null"]},
        {"anyOf": [STRING, NUMBER, NULL]},
    ),
    "nullable": (NULLABLE, {**LIST, "enum": ["a", None]}, {"type": "string", "enum": ["a"], "nullable": True}),
    "nullable and several": (
        NULLABLE,
        {"type": ["string", "number", "null"]},
        {"anyOf": [STRING, NUMBER], "nullable": True},
    ),
    "patterns kept": (USUAL, {**STRING, "pattern": r"^(?!\.)[\w.]+@x$"}, {**STRING, "pattern": r"^(?!\.)[\w.]+@x$"}),
    "patterns told": (
        SchemaDialect(patterns=False),
        {**STRING, "description": "Who", "pattern": r"^\w+$"},
        {**STRING, "description": "Who\nPattern: ^\\w+$"},
    ),
    "patterns that few can read": (
        USUAL,
        {**STRING, "pattern": r"^\p{L}+$"},
        {**STRING, "description": r"Pattern: ^\p{L}+$"},
    ),
    "endless patterns": (
        USUAL,
        {**STRING, "pattern": "a" * 9999},
        {**STRING, "description": f"Pattern: {'a' * 200}…"},
    ),
    "patterns of names": (
        SchemaDialect(patterns=False),
        {**OBJECT, "patternProperties": {"^x-": STRING}, "additionalProperties": False},
        {**OBJECT, "description": "Names of the pattern: ^x-"},
    ),
    "patterns of names that few can read": (
        USUAL,
        {**OBJECT, "patternProperties": {"^x-": LIST, "(": STRING}},
        {**OBJECT, "patternProperties": {"^x-": STRING}, "description": "Names of the pattern: ("},
    ),
    "standard formats": (USUAL, {**STRING, "format": "date-time"}, {**STRING, "format": "date-time"}),
    "formats of vendors": (USUAL, {"type": "integer", "format": "uint64"}, {"type": "integer"}),
    "all formats": (SchemaDialect(formats="all"), {**STRING, "format": "x"}, {**STRING, "format": "x"}),
    "no formats": (SchemaDialect(formats="none"), {**STRING, "format": "date"}, STRING),
    "no constraints": (
        SchemaDialect(constraints=False),
        {**ARRAY, "minItems": 1, "items": {**STRING, "minLength": 1, "pattern": "a"}, "contains": {}},
        {**ARRAY, "items": {**STRING, "pattern": "a"}},
    ),
    "no constraints, so no places": (
        SchemaDialect(constraints=False),
        {**ARRAY, "prefixItems": [STRING, LIST, {**NUMBER, "minimum": 1}]},
        {**ARRAY, "items": {"anyOf": [STRING, STRING, NUMBER]}},
    ),
    "nested combinators are left alone": (
        USUAL,
        {"oneOf": [STRING, {"allOf": [NUMBER, {"not": {"const": 1}}]}]},
        {"oneOf": [STRING, {"allOf": [NUMBER, {"not": {"const": 1}}]}]},
    ),
    "the first branch that says something": (
        POOR,
        {"description": "d", "anyOf": [NULL, {"title": "x"}, {"not": {}}, {**NUMBER, "description": "n"}, STRING]},
        {**NUMBER, "description": "d"},
    ),
    "null among branches": (POOR_NULLABLE, {"anyOf": [STRING, NULL]}, {**STRING, "nullable": True}),
    "branches that are choices": (
        POOR,
        {"oneOf": [{"const": "a", "title": "A"}, {"enum": ["b", "a"]}, NULL]},
        {"enum": ["a", "b"]},
    ),
    "parts that all hold": (
        POOR,
        {"allOf": [{"$ref": "#/$defs/Person"}, {**OBJECT, "properties": {"age": NUMBER}, "required": ["age"]}]},
        {"type": "object", "properties": {"age": NUMBER, "name": STRING}, "required": ["age", "name"]},
    ),
    "branches of an object": (
        POOR,
        {"type": "object", "properties": {"a": STRING}, "anyOf": [{**OBJECT, "required": ["a"]}, OBJECT]},
        {"type": "object", "properties": {"a": STRING}},
    ),
    "branches within branches": (POOR, {"anyOf": [{"oneOf": [NULL, {"$ref": "#/$defs/Alias"}]}]}, SLOT),
    "several types without branches": (
        POOR,
        {"type": ["null", "array", "string"], "items": STRING, "pattern": "a"},
        {"type": "array", "items": STRING},
    ),
    "choices of several types without branches": (
        POOR,
        {"type": ["string", "integer"], "enum": ["a", 1]},
        {"type": "string", "enum": ["a"]},
    ),
    "nullable by a branch": (
        NULLABLE,
        {"anyOf": [{**STRING, "minLength": 1, "title": "y"}, NULL], "title": "x"},
        {**STRING, "minLength": 1, "title": "x", "nullable": True},
    ),
    "nullable by a branch, and several": (
        NULLABLE,
        {"oneOf": [STRING, NULL, NUMBER], "title": "x"},
        {"title": "x", "nullable": True, "oneOf": [STRING, NUMBER]},
    ),
    "nullable by a branch of what a branch refers to": (
        NULLABLE,
        {"anyOf": [{"$ref": "#/$defs/MaySlot"}, NULL]},
        {**SLOT, "nullable": True},
    ),
    "nullable by a reference": (
        NULLABLE,
        {"anyOf": [TO_SLOT, {"$ref": "#/$defs/Nothing"}]},
        {**SLOT, "nullable": True},
    ),
    "nullable by a reference to a reference, and several": (
        NULLABLE,
        {"anyOf": [STRING, NUMBER, {"$ref": "#/$defs/ToNothing"}]},
        {"anyOf": [STRING, NUMBER], "nullable": True},
    ),
    "nullable by a branch, beside other branches": (
        NULLABLE,
        {"anyOf": [{"oneOf": [STRING]}, NULL], "oneOf": [NUMBER]},
        {"oneOf": [NUMBER], "nullable": True, "anyOf": [{"oneOf": [STRING]}]},
    ),
    "only null in branches": (NULLABLE, {"anyOf": [NULL]}, {"anyOf": [NULL]}),
    "null stays a branch": (KEEPING, {"anyOf": [STRING, NULL]}, {"anyOf": [STRING, NULL]}),
    "a constant is a choice": (WITHOUT, {"const": "a"}, {**STRING, "enum": ["a"]}),
    "a constant number is told": (WITHOUT, {"const": 5}, {"type": "integer", "description": "One of: 5"}),
    "choices of numbers are told": (
        WITHOUT,
        {"type": "integer", "description": "n", "enum": [1, 2, 3]},
        {"type": "integer", "description": "n\nOne of: 1, 2, 3"},
    ),
    "choices of texts stay": (WITHOUT, SLOT, SLOT),
    "endless choices are told in part": (
        WITHOUT,
        {"type": "integer", "enum": [1] * 999},
        {"type": "integer", "description": f"One of: {'1, ' * 66}1,…"},
    ),
    "one of several is any of them": (WITHOUT, {"oneOf": [STRING, NUMBER]}, {"anyOf": [STRING, NUMBER]}),
    "one of several, and any of others": (
        WITHOUT,
        {"oneOf": [STRING, NUMBER], "anyOf": [STRING, OBJECT]},
        {"anyOf": [STRING, OBJECT], "allOf": [{"anyOf": [STRING, NUMBER]}]},
    ),
    "unknown keywords": (
        WITHOUT,
        {"type": "object", "properties": {"title": STRING}, "default": {"title": "x"}, "additionalProperties": {}},
        {"type": "object", "properties": {"title": STRING}},
    ),
    "what cannot be missed": (
        SchemaDialect(without=frozenset({"type", "properties", "items", "required", "description"})),
        {**ARRAY, "description": "d", "items": DEFINITIONS["Person"]},
        {**ARRAY, "description": "d", "items": DEFINITIONS["Person"]},
    ),
    "unknown patterns are told": (
        SchemaDialect(without=frozenset({"pattern"})),
        {**STRING, "pattern": "a"},
        {**STRING, "description": "Pattern: a"},
    ),
    "unknown patterns of names are told": (
        SchemaDialect(without=frozenset({"patternProperties"})),
        {**OBJECT, "patternProperties": {"a": {}}, "additionalProperties": False},
        {**OBJECT, "description": "Names of the pattern: a"},
    ),
    "unknown branches are not made": (
        SchemaDialect(without=frozenset({"anyOf"})),
        {"type": ["string", "number"]},
        STRING,
    ),
    "of unknown branches the first that says something stands": (
        SchemaDialect(without=frozenset({"anyOf"})),
        {"anyOf": [{"title": "x"}, TO_SLOT, NUMBER, NULL], "default": None},
        {**SLOT, "default": None},
    ),
    "also where others would become those": (
        SchemaDialect(without=frozenset({"anyOf", "oneOf"})),
        {"title": "x", "oneOf": [NULL, STRING]},
        {**STRING, "title": "x"},
    ),
    "branches of the known kind stay": (
        SchemaDialect(without=frozenset({"anyOf"})),
        {"oneOf": [STRING, NUMBER], "anyOf": [{"minLength": 1}]},
        {"oneOf": [STRING, NUMBER], "minLength": 1},
    ),
    "unknown branches of an object": (
        SchemaDialect(without=frozenset({"anyOf"})),
        {**OBJECT, "anyOf": [{**OBJECT, "properties": {"a": STRING}}, {**OBJECT, "properties": {"b": NUMBER}}]},
        {"type": "object", "properties": {"a": STRING, "b": NUMBER}},
    ),
    "a not of unknown branches": (
        SchemaDialect(without=frozenset({"anyOf"})),
        {**STRING, "not": {"anyOf": [{"const": "a"}, {"const": "b"}]}},
        STRING,
    ),
    "unknown places": (
        SchemaDialect(without=frozenset({"prefixItems"})),
        {**ARRAY, "prefixItems": [STRING, STRING]},
        {"type": "array", "items": STRING},
    ),
    "a not of what was cut": (USUAL, {**OBJECT, "not": {"$ref": "#/$defs/List"}}, OBJECT),
    "a not of what is not known": (
        SchemaDialect(constraints=False),
        {**STRING, "not": {**STRING, "minLength": 5}},
        STRING,
    ),
    "a not of anything": (USUAL, {**STRING, "not": {"$ref": "#/$defs/Any"}}, STRING),
    "a not of a constant": (WITHOUT, {**NUMBER, "not": {"const": 5}}, NUMBER),
    "a not that stays": (USUAL, {**STRING, "not": TO_SLOT}, {**STRING, "not": SLOT}),
    "a condition of which less is left": (
        SchemaDialect(constraints=False),
        {**STRING, "if": {**STRING, "minLength": 5}, "then": SLOT},
        {**STRING, "then": SLOT},
    ),
    "no not, no if": (POOR, {**STRING, "not": {"const": "a"}, "if": {}, "then": {"const": "b"}}, STRING),
}


@pytest.mark.parametrize("row", PROPERTIES.values(), ids=PROPERTIES)
def test_a_property_is_said_in_the_dialect(row: tuple[SchemaDialect, JsonObject, JsonObject]) -> None:
    dialect, written, said = row
    assert schema_in_dialect(given_p(written, **{"$defs": DEFINITIONS}), dialect) == given_p(said)


A: JsonObject = {"type": "object", "properties": {"a": STRING}, "required": ["a"]}
B: JsonObject = {"type": "object", "properties": {"b": NUMBER}, "required": ["b"]}
AB: JsonObject = {"type": "object", "properties": {"a": STRING, "b": NUMBER}}
CLOSED: JsonObject = {"additionalProperties": False}
OF_KIND: list[JsonObject] = [
    {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in ("x", "y")
]


def to(name: object) -> JsonObject:
    return {"$ref": f"#/$defs/{name}"}


MANY: JsonObject = {f"p{number}": to("A") for number in range(900)}
SOME: JsonObject = {f"p{number}": to("A") for number in range(60)}

ROOTS: dict[str, tuple[SchemaDialect, JsonObject, JsonObject]] = {
    "nothing to do": (USUAL, AB, AB),
    "no more than an object": (USUAL, {}, OBJECT),
    "one of two": (USUAL, {**OBJECT, "anyOf": [A, B]}, AB),
    "its own are required": (
        USUAL,
        {**OBJECT, "required": ["c"], "oneOf": [{**A, "required": ["a", "d"]}, {**B, "required": ["d"]}]},
        {"type": "object", "properties": {"a": STRING, "b": NUMBER, "c": {}, "d": {}}, "required": ["c", "d"]},
    ),
    "all of two": (
        USUAL,
        {**OBJECT, "allOf": [A, {**B, "description": "d"}]},
        {**AB, "required": ["a", "b"], "description": "d"},
    ),
    "one of one": (USUAL, {**OBJECT, "anyOf": [{**A, **CLOSED}]}, {**A, **CLOSED}),
    "closed where all are": (USUAL, {**OBJECT, "anyOf": [{**A, **CLOSED}, {**B, **CLOSED}]}, {**AB, **CLOSED}),
    "open where one is": (USUAL, {**OBJECT, "anyOf": [{**A, **CLOSED}, B]}, AB),
    "branches by reference": (
        USUAL,
        {**OBJECT, "anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}},
        AB,
    ),
    "branches within branches": (USUAL, {**OBJECT, "anyOf": [{"allOf": [A, B]}, {"oneOf": [A, B]}]}, AB),
    "root by reference": (USUAL, {**OBJECT, "$ref": "#/$defs/A", "$defs": {"A": A}}, A),
    "root by its own reference": (USUAL, {**A, "$ref": "#"}, A),
    "root by reference, of which the definition is not needed any more": (
        REFERRING,
        {**OBJECT, "$ref": "#/$defs/A", "$defs": {"A": A}},
        A,
    ),
    "definitions that nothing refers to": (
        REFERRING,
        {"$ref": "#/$defs/A", "$defs": {"A": given_p(TO_SLOT), "Slot": SLOT, "X": {"$ref": "#/$defs/Y"}, "Y": STRING}},
        given_p(TO_SLOT, **{"$defs": {"Slot": SLOT}}),
    ),
    "a root that only refers, in a large schema": (
        USUAL,
        {"$ref": "#/$defs/R", "$defs": {"R": {"type": "object", "properties": SOME}, "A": {**OBJECT, "x": "y" * 999}}},
        {"type": "object", "properties": {name: {**OBJECT, **MORE} for name in SOME}},
    ),
    "what is said of a property in two parts": (
        USUAL,
        {**OBJECT, "allOf": [given_p({"type": "integer", "minimum": 1}), given_p({"type": "integer", "maximum": 9})]},
        given_p({"type": "integer", "minimum": 1, "maximum": 9}),
    ),
    "a property of the root that each alternative narrows": (
        USUAL,
        {**given_p({**STRING, "description": "m"}), "oneOf": [given_p({"const": "get"}), given_p({"const": "list"})]},
        given_p({**STRING, "description": "m", "enum": ["get", "list"]}),
    ),
    "a property of the root that one alternative only requires": (
        USUAL,
        {"type": "object", "properties": {"p": STRING}, "anyOf": [given_p({}), given_p({"enum": ["a"]})]},
        given_p(STRING),
    ),
    "a property of the root that one alternative does not know": (
        USUAL,
        {**OBJECT, "properties": {"a": STRING}, "anyOf": [{**A, "properties": {"a": {"const": "x"}}}, B]},
        AB,
    ),
    "a property of a part that each alternative narrows": (
        USUAL,
        {**OBJECT, "allOf": [given_p(STRING)], "anyOf": [given_p({"minLength": 1})] * 2},
        given_p({**STRING, "minLength": 1}),
    ),
    "what tells alternatives apart by definitions": (
        USUAL,
        {**OBJECT, "oneOf": OF_KIND, "discriminator": {"propertyName": "kind", "mapping": {"x": "#/$defs/X"}}},
        {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}}, "required": ["kind"]},
    ),
    "components": (USUAL, {**AB, "components": {"schemas": {"A": A}}}, AB),
    "unknown keywords at the root": (WITHOUT, {**AB, "title": "x", "additionalProperties": False}, AB),
    "what is required and not described": (
        USUAL,
        {**A, "required": ["a", "b"]},
        {"type": "object", "properties": {"a": STRING, "b": {}}, "required": ["a", "b"]},
    ),
    "the same property twice": (USUAL, {**OBJECT, "anyOf": [A, {**B, **A}]}, A),
    "different properties of a name": (
        USUAL,
        {**OBJECT, "oneOf": [A, {"type": "object", "properties": {"a": NUMBER}}, {**OBJECT, "properties": {"a": {}}}]},
        {"type": "object", "properties": {"a": {"anyOf": [STRING, NUMBER]}}},
    ),
    "choices of a name": (
        USUAL,
        {**OBJECT, "oneOf": OF_KIND},
        {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}}, "required": ["kind"]},
    ),
    "a branch that is no object": (
        USUAL,
        {**OBJECT, "description": "Fetch.", "anyOf": [A, STRING, NULL, {"type": ["array", "string"]}]},
        {**A, "description": "Fetch.\nInput as string or array is left out here."},
    ),
    "branches of a branch that are no objects": (
        USUAL,
        {**OBJECT, "anyOf": [A, {"oneOf": [STRING, NUMBER]}, {"oneOf": [{"const": 1}]}]},
        {**A, "description": "Input as string or number or a value is left out here."},
    ),
    "a branch of values": (
        USUAL,
        {**OBJECT, "anyOf": [{"const": "all"}]},
        {**OBJECT, "description": "Input as a value is left out here."},
    ),
    "a condition": (USUAL, {**AB, "if": A, "then": B, "else": {**A, "required": []}}, AB),
    "a condition without else": (USUAL, {**AB, "if": A, "then": B}, AB),
    "what a root must not say": (USUAL, {**AB, "not": A, "enum": [{}], "const": {}}, AB),
    "branches may stand": (
        SchemaDialect(root_combinators=True),
        {**OBJECT, "anyOf": [A, {**B, "properties": {"b": {"type": ["number", "null"]}}}]},
        {**OBJECT, "anyOf": [A, B]},
    ),
    "branches may stand, but none below": (
        SchemaDialect(root_combinators=True, combinators=False),
        {**OBJECT, "anyOf": [A, B]},
        AB,
    ),
    "references kept": (
        REFERRING,
        given_p(TO_SLOT, **{"$defs": {"Slot": LIST}}),
        given_p(TO_SLOT, **{"$defs": {"Slot": STRING}}),
    ),
    "references kept in definitions": (
        REFERRING,
        given_p({"$ref": "#/definitions/A"}, definitions={"A": {"items": {"$ref": "#/definitions/A"}}}),
        given_p({"$ref": "#/definitions/A"}, definitions={"A": {"items": {"$ref": "#/definitions/A"}}}),
    ),
    "references to the root kept": (REFERRING, given_p({"$ref": "#"}), given_p({"$ref": "#"})),
    "references to the root": (USUAL, given_p({"$ref": "#"}), given_p(given_p({**OBJECT, **MORE}))),
    "references to elsewhere": (
        REFERRING,
        {"type": "object", "properties": {"p": LIST, "q": {"$ref": "#/properties/p"}, "r": {"$ref": "#/$defs/X"}}},
        {"type": "object", "properties": {"p": STRING, "q": STRING, "r": {}}},
    ),
    "names like keywords": (
        POOR,
        {"type": "object", "properties": {"$ref": STRING, "type": A, "$defs": STRING, "pattern": STRING, "anyOf": B}},
        {"type": "object", "properties": {"$ref": STRING, "type": A, "$defs": STRING, "pattern": STRING, "anyOf": B}},
    ),
    "data like schemas": (
        POOR,
        given_p({**OBJECT, "default": {"$ref": "#", "pattern": "a"}, "examples": [{"anyOf": [{}]}]}),
        given_p({**OBJECT, "default": {"$ref": "#", "pattern": "a"}, "examples": [{"anyOf": [{}]}]}),
    ),
}


@pytest.mark.parametrize("row", ROOTS.values(), ids=ROOTS)
def test_a_root_is_said_in_the_dialect(row: tuple[SchemaDialect, JsonObject, JsonObject]) -> None:
    dialect, written, said = row
    assert schema_in_dialect(written, dialect) == said


READABLE = [
    r"^(?!\.)[\w.]+@x$",
    r"^[a-zA-Z0-9._%+-]+@[a-z.-]+\.[a-z]{2,}$",
    r"^\d{4}-\d{2}-\d{2}(?:T[^\s]*Z?)?$",
    r"^(\([0-9]{3}\))?[0-9]{3,9}?$",
    r"(?<=a)b|(?<!c)d",
    r"^[-a-z]|[\w-]|[^\x00-\x1f\u0041]$",
    r"\$\{[^}]*\}",
    r"a{2,5}b{3,3}c{4,}[{5,2}]\{5,2}",
    r"[\x30-\x41\t-\n\u0030-\u0041*-\-0-\x39-]",
    "",
]
UNREADABLE = [
    *(r"\p{L}", r"\P{L}", r"\u{1F600}", r"\cA", r"\k<a>", r"\A", r"(a)\1"),
    *("(?<name>a)", "(?P<name>a)", "(?i)a", "(?i:a)", "(?>a)", "(?#a)"),
    *("a{5,2}", r"[\x41-\x30]", r"[\n-\t]", r"[\u0041-0]", r"[a-\x30]", r"[b-\-]", r"[^0\v-\t]", r"[\x30-\d]"),
    *("[^]", "[]", "[a", "[[:alpha:]]", "[z-a]", r"[\w-.]", r"[.-\w]"),
    *("(", ")", ")(", "(()", "\\", "*a", "(+)", "a|?", "^*", "a++", "a**", "a{2}{3}", "a{1001}", "{,2}"),
    "a" * 201,
]


@pytest.mark.parametrize("pattern", READABLE)
def test_a_pattern_that_all_can_read_stays(pattern: str) -> None:
    fit = given_p({**STRING, "pattern": pattern})
    assert schema_in_dialect(fit, USUAL) is fit
    re.compile(pattern)


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_a_pattern_that_some_cannot_read_is_told(pattern: str) -> None:
    said = schema_in_dialect(given_p({**STRING, "pattern": pattern}), USUAL)
    assert said["properties"]["p"].keys() == {"type", "description"}
    assert said["properties"]["p"]["description"].startswith(f"Pattern: {pattern[:200]}")


@given(st.text(st.sampled_from(r"ab-[]^(?:=!)|$*+{1,2}\dw.x/é"), max_size=12))
def test_a_pattern_that_stays_can_be_read(pattern: str) -> None:
    said = schema_in_dialect(given_p({**STRING, "pattern": pattern}), USUAL)
    if "pattern" in said["properties"]["p"] and "(?<" not in pattern:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)


def effort(work: Callable[[], object]) -> float:
    """The least CPU time of three, in seconds; for comparing with that of other work."""
    times: list[float] = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def test_patterns_are_never_built() -> None:
    slow = "(?i:" + "[\x00-\uffff]" * 98 + ")"
    many: JsonObject = {f"p{number}": {**STRING, "pattern": slow + str(number)} for number in range(50)}
    nested: JsonObject = {
        f"q{number}": {**STRING, "pattern": "(" * 99 + str(number) + "[" * 90} for number in range(900)
    }
    tame: JsonObject = {name: {**STRING, "pattern": "x" * len(sub["pattern"])} for name, sub in (many | nested).items()}
    said = schema_in_dialect({"type": "object", "properties": many | nested}, USUAL)
    usual = effort(lambda: schema_in_dialect({"type": "object", "properties": tame}, USUAL))
    # Building them takes thousands of times as long as reading them once.
    assert effort(lambda: schema_in_dialect({"type": "object", "properties": many | nested}, USUAL)) < 50 * usual
    assert "pattern" not in {key for sub in said["properties"].values() for key in sub}


def test_what_is_fit_already_is_shared() -> None:
    inner: JsonObject = {**OBJECT, "properties": {"x": STRING}}
    fit = given_p(inner)
    assert schema_in_dialect(fit, USUAL) is fit
    assert schema_in_dialect({**fit, "$defs": {}}, USUAL)["properties"] is fit["properties"]


def laughs(keyword: str) -> JsonObject:
    """Ten references in each of thirty definitions."""

    def definition(number: int) -> JsonObject:
        below = [to(number + 1)] * 10
        if keyword == "properties":
            return {"type": "object", "properties": {f"p{place}": sub for place, sub in enumerate(below)}}
        return {keyword: below}

    return {"$defs": {str(number): definition(number) for number in range(30)}}


CROWD: JsonObject = {
    str(number): {"type": "object", "properties": {str(other): to(other) for other in range(20)}}
    for number in range(20)
}

LONG_ARRAY: JsonObject = {"type": "array", "items": {"enum": ["x" * 900]}}

HOSTILE: dict[str, JsonObject] = {
    "objects in objects": {**laughs("properties"), "properties": {"p": to(0)}},
    **{f"{key} at the root": {**laughs(key), key: [to(0)] * 3} for key in ("anyOf", "allOf", "oneOf")},
    **{f"{key} below": {**laughs(key), "properties": {"p": {key: [to(0)] * 3}}} for key in ("anyOf", "allOf")},
    "all know all": {"$defs": CROWD, "properties": {"p": to(0)}},
    "a long text": {"$defs": {"A": {"type": "string", "description": "x" * 40_000}}, "properties": MANY},
    "many choices": {"$defs": {"A": {"type": "string", "enum": [str(n) for n in range(8000)]}}, "properties": MANY},
    "long names": {"$defs": {"A": {"type": "object", "properties": {"x" * 40_000: {}}}}, "properties": MANY},
    "a ring": {"$defs": {str(n): to((n + 1) % 99) for n in range(99)}, "properties": {"p": to(0)}},
    "a ring at the root": {"$ref": "#/$defs/0", "$defs": {str(n): to((n + 1) % 99) for n in range(99)}},
    "all know all at the root": {"$defs": CROWD, "properties": {name: to(name) for name in CROWD}},
    "a chain of many": {
        "$defs": {str(number): to(number + 1) for number in range(900)},
        "properties": {f"p{number}": to(number) for number in range(900)},
    },
    "many alternatives": {"$defs": {"A": A}, "properties": {"p": {"oneOf": [to("A")] * 1000}}},
    "many alternatives at the root": {"oneOf": [given_p({"const": number}) for number in range(450)]},
    "long descriptions": {"$defs": {"A": {**LONG_ARRAY, "description": "x" * 200}}, "properties": MANY},
    "many names that are required": {"required": [f"n{number}" for number in range(4000)]},
    "many types": {"properties": {f"p{n}": {"type": ["string", "number", "object"]} for n in range(1900)}},
}


@pytest.mark.parametrize("dialect", [USUAL, REFERRING, POOR, BRANCHING, NULLABLE, WITHOUT])
@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_stays_small(schema: JsonObject, dialect: SchemaDialect) -> None:
    repaired = repair_schema(schema)
    said = schema_in_dialect(repaired, dialect)
    assert len(json.dumps(said)) < max(49_152, 4 * len(json.dumps(repaired)))
    assert len(nodes(said)) < 5 * MAX_NODES
    assert schema_in_dialect(said, dialect) == said
    assert dialect.references or "$ref" not in json.dumps(said)


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_takes_little_work(schema: JsonObject) -> None:
    repaired = repair_schema(schema)
    # Repair is one walk; a few attempts of the dialect may take a few.
    assert effort(lambda: schema_in_dialect(repaired, USUAL)) < 12 * effort(lambda: repair_schema(schema))


LEAF: JsonObject = {"type": "object", "properties": {f"text{number}": STRING for number in range(5)}}
BODY: JsonObject = {
    "Body": {"type": "object", "properties": {f"m{number}": to(f"M{number}") for number in range(9)}},
    **{
        f"M{number}": {"type": "object", "properties": {f"l{other}": to(f"L{other}") for other in range(9)}}
        for number in range(9)
    },
    **{f"L{number}": LEAF for number in range(9)},
}


def test_what_does_not_refer_to_itself_stays_whole() -> None:
    said = schema_in_dialect(given_p(to("Body"), **{"$defs": BODY}), USUAL)
    middle: JsonObject = {"type": "object", "properties": {f"l{number}": LEAF for number in range(9)}}
    assert said == given_p({"type": "object", "properties": {f"m{number}": middle for number in range(9)}})


def test_what_was_cut_is_told() -> None:
    large: JsonObject = {"type": "object", "properties": {"x": {"enum": ["x" * 900]}}, "description": "large"}
    mentions: JsonObject = {**SOME, "own": {**to("A"), "description": "mine"}, "text": to("T")}
    definitions = {"A": large, "T": {**STRING, "title": "t"}}
    said = schema_in_dialect({"type": "object", "properties": mentions, "$defs": definitions}, USUAL)
    assert said["properties"] == {
        **{name: {**OBJECT, "description": f"large\n{MORE['description']}"} for name in SOME},
        "own": {**OBJECT, "description": f"mine\n{MORE['description']}"},
        "text": STRING,
    }


def test_the_root_tells_of_what_was_cut_where_there_are_too_many() -> None:
    said = schema_in_dialect({**HOSTILE["long descriptions"], "type": "object", "description": "d"}, USUAL)
    assert said["description"] == f"d\n{MORE['description']}"
    assert ARRAY in said["properties"].values()


def test_what_lies_too_deep_is_told_once() -> None:
    deep = STRING
    for _ in range(40):
        deep = {"type": "object", "properties": {"p": deep}, "description": "x" * 200}
    said = schema_in_dialect(deep, USUAL)
    assert json.dumps(said).count(MORE["description"]) == 1
    assert schema_in_dialect(said, USUAL) == said


def test_what_is_too_large_is_cut_evenly() -> None:
    said = schema_in_dialect(repair_schema(HOSTILE["all know all"]), USUAL)
    (person,) = said["properties"].values()
    assert set(person["properties"]) == {str(number) for number in range(20)}
    assert all(sub["type"] == "object" for sub in person["properties"].values())


@pytest.mark.parametrize("key", ["properties", "items", "anyOf", "allOf"])
def test_a_bottomless_schema_ends(key: str) -> None:
    deep: JsonObject = {"type": "string"}
    for _ in range(10_000):
        deep = {key: {"p": deep} if key == "properties" else deep if key == "items" else [deep]}
    for dialect in (USUAL, POOR):
        said = schema_in_dialect(deep, dialect)
        assert len(nodes(said)) < 200
        assert schema_in_dialect(said, dialect) == said


DIALECTS = st.builds(
    SchemaDialect,
    references=st.booleans(),
    type_lists=st.sampled_from(["keep", "single", "any_of", "nullable"]),
    root_combinators=st.booleans(),
    patterns=st.booleans(),
    formats=st.sampled_from(["all", "standard", "none"]),
    constraints=st.booleans(),
    combinators=st.booleans(),
    without=st.frozensets(
        st.sampled_from(
            ["const", "enum", "oneOf", "anyOf", "allOf", "not", "title", "default", "pattern", "prefixItems"]
        )
    ),
)


@given(SCHEMAS, DIALECTS)
def test_any_repaired_schema_is_said_once_and_for_all(schema: Any, dialect: SchemaDialect) -> None:
    repaired = repair_schema(schema)
    before = copy.deepcopy(repaired)
    said = schema_in_dialect(repaired, dialect)
    assert json.dumps(repaired) == json.dumps(before)
    assert json.dumps(schema_in_dialect(said, dialect)) == json.dumps(said)
    Draft202012Validator.check_schema(said)
    assert said["type"] == "object"
    referring = [node["$ref"] for node in nodes(said) if isinstance(node.get("$ref"), str)]
    assert dialect.references or not referring
    assert all(isinstance(at(said, reference), dict) for reference in referring)
    if not dialect.combinators:
        names = {"anyOf", "oneOf", "allOf", "not", "if", "then", "else"}
        assert not [node for node in nodes(said) if names & node.keys()]
    if dialect.type_lists != "keep":
        assert not [node for node in nodes(said) if isinstance(node.get("type"), list)]


@given(st.dictionaries(st.text(max_size=3), JSON) | SCHEMAS.filter(lambda schema: isinstance(schema, dict)), DIALECTS)
def test_any_object_is_survived(schema: Any, dialect: SchemaDialect) -> None:
    before = copy.deepcopy(schema)
    said = schema_in_dialect(schema, dialect)
    assert json.dumps(schema) == json.dumps(before)
    assert said["type"] == "object"
    assert isinstance(said["properties"], dict)
