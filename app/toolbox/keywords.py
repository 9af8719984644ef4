"""Keywords of JSON Schema as strangers write them, in the words of 2020-12. Pure.

Knows single keywords and what other versions, and OpenAPI, say otherwise; where schemas lie in each other is the
business of `schema.py`.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Final

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.toolbox.cleaning import clean_text

_OLD = frozenset({"items", "additionalItems", "dependencies", "exclusiveMinimum", "exclusiveMaximum", "nullable"})
"""Keywords that mean something else in other versions of JSON Schema, or are gone from it."""
_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_WORDS = {word: word for word in _TYPES} | {
    **dict.fromkeys(("str", "text", "date", "datetime", "date-time", "uuid", "url", "uri"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("dict", "map", "record", "struct"), "object"),
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    "bool": "boolean",
    **dict.fromkeys(("none", "nil", "undefined"), "null"),
}
"""Type words as people write them, in small letters."""
BOOLEANS = {"true": True, "false": False}
_NUMERAL = re.compile(r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?")
GONE: Final = object()
"""Stands for a keyword, or a schema, that goes."""
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format"}
)
_OF_DOCUMENTS = ("$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment")
UNREAD = ANNOTATIONS.union(_OF_DOCUMENTS, {"id"})
"""Keywords without which the same values are allowed."""
_WHOLE = frozenset({"$ref", "allOf", "const"})
"""Keywords that decide together with those beside them, so that null is an alternative to all of them."""


def modernized(node: JsonObject) -> JsonObject:
    """Write what other versions of JSON Schema, and OpenAPI, say otherwise in the words of 2020-12; changes a copy."""
    if is_array(node.get("properties")):
        node = {**node, "properties": _properties_from_list(node["properties"])}
    if not _OLD & node.keys():
        return node
    node = dict(node)
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if node.get(exclusive) is True and plain in node:
            node[exclusive] = node.pop(plain)
    _split_dependencies(node)
    _settle_items(node)
    if node.pop("nullable", None) is True:
        _allow_null(node)
    return node


def _properties_from_list(entries: list[Json]) -> JsonObject:
    properties: JsonObject = {name: {} for name in entries if isinstance(name, str)}
    for entry in filter(is_object, entries):
        if isinstance(entry.get("name"), str):
            properties[entry["name"]] = {key: value for key, value in entry.items() if key != "name"}
    return properties


def _split_dependencies(node: JsonObject) -> None:
    needs: Json = node.pop("dependencies", None)
    for name, need in needs.items() if is_object(needs) else ():
        key = "dependentSchemas" if is_object(need) or isinstance(need, bool) else "dependentRequired"
        known: Json = node.get(key)
        node[key] = {**(known if is_object(known) else {}), name: need}


def _settle_items(node: JsonObject) -> None:
    items, rest = node.get("items"), node.pop("additionalItems", GONE)
    if is_array(items):
        del node["items"]
        # A list of one is mostly meant for all; as a tuple it would say nothing of the others anyway.
        if len(items) == 1 and rest is GONE and "prefixItems" not in node:
            node["items"] = items[0]
        elif items:
            node.setdefault("prefixItems", items)
            node |= {} if rest is GONE else {"items": rest}
    if node.get("items") is False:
        del node["items"]
        first: Json = node.get("prefixItems")
        most, places = _count(node.get("maxItems")), len(first) if is_array(first) else 0
        node["maxItems"] = places if most is GONE else min(most, places)


def _allow_null(node: JsonObject) -> None:
    if not _WHOLE.isdisjoint(node):
        rest = [key for key in node if key not in UNREAD and key not in {"$defs", "definitions"}]
        node["anyOf"] = [{key: node.pop(key) for key in rest}, {"type": "null"}]
        return
    for key, null in (("anyOf", {"type": "null"}), ("oneOf", {"type": "null"}), ("type", "null"), ("enum", None)):
        known: Json = node.get(key)
        if known:
            node[key] = [*(known if is_array(known) else [known]), null]
            return


def is_schema(value: Json) -> bool:
    """Tell whether a value can be read as a schema: an object, a boolean or, as a slip, a bare type word."""
    return is_object(value) or isinstance(value, bool) or (isinstance(value, str) and _types(value) is not GONE)


def _types(value: Json) -> Json:
    if isinstance(value, str):
        if value in _TYPES:
            return value
        words = [_WORDS.get(word.strip().lower()) for word in value[:80].split("|")]
    else:
        # A bare null beside words is the type of that name.
        spoken = ["null" if word is None else word for word in value] if is_array(value) else []
        words = [_WORDS.get(word.lower()) if isinstance(word, str) else None for word in spoken]
    if not words or None in words:
        return GONE
    unique: list[Json] = list(dict.fromkeys(words))
    return unique[0] if isinstance(value, str) and len(unique) == 1 else unique


def type_of_all(values: list[Json]) -> str | None:
    """Return the type that all values have; None where they have several."""
    words = {_type_of(value) for value in values}
    if words == {"integer", "number"}:
        return "number"
    return words.pop() if len(words) == 1 else None


def _type_of(value: Json) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    return "string" if isinstance(value, str) else "array" if is_array(value) else "object"


def _number(value: Json) -> Json:
    if isinstance(value, str) and _NUMERAL.fullmatch(value):
        value = json.loads(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return GONE
    return value if isinstance(value, int) or math.isfinite(value) else GONE


def _count(value: Json) -> Json:
    number = _number(value)
    return int(number) if number is not GONE and number >= 0 and number == int(number) else GONE


def _step(value: Json) -> Json:
    number = _number(value)
    return number if number is not GONE and number > 0 else GONE


def _text(value: Json) -> Json:
    return value if isinstance(value, str) else GONE


def _words_of_people(value: Json) -> Json:
    return clean_text(value) if isinstance(value, str) else GONE


def _switch(value: Json) -> Json:
    value = BOOLEANS.get(value.lower()) if isinstance(value, str) else value
    return value if isinstance(value, bool) else GONE


def _names(value: Json) -> Json:
    if isinstance(value, str):
        return GONE if value.lower() in BOOLEANS else [value]
    return list(dict.fromkeys(name for name in value if isinstance(name, str))) if is_array(value) else GONE


def _names_by_name(value: Json) -> Json:
    if not is_object(value):
        return GONE
    named = {name: _names(names) for name, names in value.items()}
    return {name: names for name, names in named.items() if names is not GONE}


def _choices(value: Json) -> Json:
    if not is_array(value):
        return GONE if value is None or is_object(value) else [value]
    # By type as well: 1 and true are equal here, in JSON they are not.
    seen: set[tuple[str, Json]] = set()
    unique: list[Json] = []
    for item in value:
        mark = (type(item).__name__, id(item) if is_object(item) or is_array(item) else item)
        if mark not in seen:
            seen.add(mark)
            unique.append(item)
    return unique or GONE


def _examples(value: Json) -> Json:
    return value if is_array(value) else [value]


FIXES: dict[str, Callable[[Json], Json]] = {
    **dict.fromkeys((*_OF_DOCUMENTS, "$dynamicRef", "$recursiveRef"), lambda _: GONE),
    "id": lambda value: GONE if isinstance(value, str) else value,
    "default": lambda value: GONE if value is None else value,
    **dict.fromkeys(("title", "description"), _words_of_people),
    **dict.fromkeys(("format", "pattern", "$ref"), _text),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _text),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _switch),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), _count),
    **dict.fromkeys(("minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    "multipleOf": _step,
    "type": _types,
    "enum": _choices,
    "examples": _examples,
    "required": _names,
    "dependentRequired": _names_by_name,
}
"""Keywords that hold no schemas: their value as it must be, or that the keyword goes."""
