"""Tool schemas as strangers write them, made fit for providers. Pure; never fetches, resolves or runs anything.

`schema_refused` first, `repair_schema` on what passes. Both walk only where JSON Schema keeps schemas: a property may
be called `default` or `type`, and what lies in `enum`, `const`, `default` or `examples` is data.
"""

import json
from collections.abc import Iterator
from typing import Final

from app.domain.jsontypes import Json, JsonObject, is_array, is_object

MAX_DEPTH = 32
MAX_NODES = 2000
"""Objects and arrays, in a tool's whole schema."""
_MAX_VALUES = 50_000
"""Of any kind, in a tool's whole schema."""

_BRANCH_LISTS = frozenset({"anyOf", "oneOf", "allOf"})
_LISTS = _BRANCH_LISTS | {"prefixItems", "items"}
"""Keywords that hold an array of schemas; `items` did up to 2019-09."""
_LIMITS = frozenset({"additionalProperties", "unevaluatedProperties", "additionalItems", "unevaluatedItems"})
"""Keywords where a boolean is the usual way to say open or closed, and stays."""
_SINGLES = _LIMITS | {"items", "not", "if", "then", "else", "contains", "propertyNames"}
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = _DEFINITIONS | {"properties", "patternProperties", "dependentSchemas"}
_DECIDERS = ("enum", "const", "$ref", "$dynamicRef", "$recursiveRef", "anyOf", "oneOf", "allOf", "not", "if")
"""Keywords that say what a value may be, so that no type is guessed beside them."""
_OF_OBJECTS = ("properties", "patternProperties", "additionalProperties", "propertyNames")
_OF_ARRAYS = ("items", "prefixItems", "contains")
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_GONE: Final = object()


def schema_refused(schema: Json, *, max_bytes: int) -> str | None:
    """Say why a tool with this input schema must be dropped, in a sentence; None where it need not be.

    `max_bytes` is the limit of the schema as compact JSON in UTF-8.
    """
    if count_nodes(schema) > MAX_NODES:
        return f"Its schema is nested deeper than {MAX_DEPTH} levels or has more than {MAX_NODES} parts."
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode(errors="surrogatepass")) > max_bytes:
        return f"Its schema is larger than {max_bytes} bytes."
    if is_object(schema) and _has_foreign_reference(schema):
        return "Its schema refers to another document, which is never fetched."
    return None


def repair_schema(schema: Json) -> JsonObject:
    """Return a schema that says the same and is shaped as providers want it.

    The root is an object schema with `properties`. Below, `default: null` is dropped, a missing type is inferred unless
    another keyword decides, and boolean sub-schemas become objects or go. Total, idempotent, and the input is not
    changed (parts that need no repair are shared with it). What lies below `MAX_DEPTH` or after the first `MAX_NODES`
    sub-schemas becomes `{}`; `schema_refused` reports such schemas before.
    """
    root = _Repair().schema(schema, 0) if is_object(schema) else {}
    properties = root.get("properties")
    return {**root, "type": "object", "properties": properties if is_object(properties) else {}}


class _Repair:
    """One walk through a schema, with what it may still visit."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def schema(self, node: JsonObject, depth: int) -> JsonObject:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            return {}
        keywords = {key: self._keyword(key, value, depth) for key, value in node.items()}
        repaired: JsonObject = {key: value for key, value in keywords.items() if value is not _GONE}
        _forget_required(node, repaired)
        return _with_type(repaired)

    def _keyword(self, key: str, value: Json, depth: int) -> Json:
        """Repair what a keyword holds, or say that the keyword goes."""
        if key == "default" and value is None:
            return _GONE
        if key in _MAPS and is_object(value):
            entries = {name: self._sub(sub, depth, keep=key in _DEFINITIONS) for name, sub in value.items()}
            return {name: sub for name, sub in entries.items() if sub is not _GONE}
        if key in _LISTS and is_array(value):
            # An entry of a tuple means its place, and a definition may be referred to: what allows nothing stays there.
            subs = [self._sub(sub, depth, keep=key not in _BRANCH_LISTS) for sub in value]
            return [sub for sub in subs if sub is not _GONE] or _GONE
        if key not in _SINGLES or (key in _LIMITS and isinstance(value, bool)):
            return value
        return self._sub(value, depth, keep=False)

    def _sub(self, value: Json, depth: int, *, keep: bool) -> Json:
        """Repair a sub-schema. One that allows nothing goes, or is written as an object where it must be kept."""
        if is_object(value):
            return self.schema(value, depth + 1)
        if value is False:
            return {"not": {}} if keep else _GONE
        # A bare type word is a frequent slip; anything else that is no schema says nothing.
        return {"type": value} if isinstance(value, str) and value in _TYPES else {}


def _forget_required(node: JsonObject, repaired: JsonObject) -> None:
    """Names of properties that were dropped must not stay required: nobody could satisfy that."""
    before, after, required = node.get("properties"), repaired.get("properties"), repaired.get("required")
    if is_object(before) and is_object(after) and is_array(required) and len(before) > len(after):
        repaired["required"] = [
            name for name in required if not isinstance(name, str) or name in after or name not in before
        ]


def _with_type(node: JsonObject) -> JsonObject:
    if _is_type(node.get("type")):
        return node
    node = {key: value for key, value in node.items() if key != "type"}
    if not node or any(key in node for key in _DECIDERS):
        return node
    if any(key in node for key in _OF_OBJECTS) or is_array(node.get("required")):
        return {**node, "type": "object"}
    return {**node, "type": "array" if any(key in node for key in _OF_ARRAYS) else "string"}


def _is_type(value: Json) -> bool:
    words: list[Json] = value if is_array(value) else [value]
    return bool(words) and all(isinstance(word, str) and word in _TYPES for word in words)


def count_nodes(schema: Json) -> int:
    """Count objects and arrays; a number over `MAX_NODES` means too many, too deep, or too many values in them.

    Goes level by level, without recursion, and ends at the first limit that is passed.
    """
    level: list[Json] = [schema]
    nodes = values = 0
    for _ in range(MAX_DEPTH + 1):
        containers = [value for value in level if is_object(value) or is_array(value)]
        nodes += len(containers)
        values += len(level)
        if nodes > MAX_NODES or values > _MAX_VALUES:
            break
        if not containers:
            return nodes
        level = [inner for value in containers for inner in (value.values() if is_object(value) else value)]
    return MAX_NODES + 1


def _has_foreign_reference(schema: JsonObject) -> bool:
    references = (schema.get(key) for key in ("$ref", "$dynamicRef", "$recursiveRef"))
    if any(isinstance(reference, str) and reference[:1] not in {"", "#"} for reference in references):
        return True
    return any(_has_foreign_reference(sub) for sub in _subschemas(schema))


def _subschemas(schema: JsonObject) -> Iterator[JsonObject]:
    for key, value in schema.items():
        if (key in _MAPS or key == "dependencies") and is_object(value):
            yield from filter(is_object, value.values())
        elif key in _LISTS and is_array(value):
            yield from filter(is_object, value)
        elif key in _SINGLES and is_object(value):
            yield value
