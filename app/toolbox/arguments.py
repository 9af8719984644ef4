"""Arguments as models write them, fitted to a tool's schema. Pure; what the schema allows as it is stays as it is.

Models write numbers, lists and objects as texts, and fill optional parameters with null or nothing; servers refuse
both. A text is read as JSON only where the schema forbids a text and the value it holds is allowed; a null or an empty
text is left out only where the parameter is optional and the schema forbids it. Unknown keys pass.
"""

import json
from collections.abc import Iterator
from urllib.parse import unquote

from app.domain.jsontypes import Json, JsonObject, is_array, is_object

_DEPTH = 16
_OF_PYTHON = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}


def fitted_arguments(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the arguments that the tool gets; `schema` is its input schema, as the server wrote it or repaired."""
    return _object(arguments, schema, schema, _DEPTH)


def _object(value: JsonObject, schema: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    properties: Json = schema.get("properties")
    if not is_object(properties) or depth <= 0:
        return value
    required: Json = schema.get("required")
    names = required if is_array(required) else ()
    fitted: JsonObject = {}
    for name, item in value.items():
        below = _resolved(properties.get(name), root)
        if below is None:
            fitted[name] = item
        elif item in (None, "") and name not in names and not _allows(item, below, root):
            continue
        else:
            fitted[name] = _value(item, below, root, depth - 1)
    return fitted


def _value(value: Json, schema: JsonObject, root: JsonObject, depth: int) -> Json:
    if isinstance(value, str) and not _allows(value, schema, root):
        value = _read(value, schema, root)
    if is_object(value):
        return _object(value, schema, root, depth)
    items = _resolved(schema.get("items"), root)
    if is_array(value) and items is not None and depth > 0:
        return [_value(item, items, root, depth - 1) for item in value]
    return value


def _read(text: str, schema: JsonObject, root: JsonObject) -> Json:
    """Read a text as the value that it stands for, where that is one the schema allows."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and value.is_integer() and not _allows(value, schema, root):
        value = int(value)
    return value if not isinstance(value, str) and _allows(value, schema, root) else text


def _allows(value: Json, schema: JsonObject, root: JsonObject) -> bool:
    """Tell whether a schema allows values of this one's type; what is not said is allowed."""
    types = _types(schema, root, _DEPTH)
    if types is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _OF_PYTHON[type(value)] in types
    return "number" in types or ("integer" in types and isinstance(value, int))


def _types(schema: JsonObject, root: JsonObject, depth: int) -> frozenset[str] | None:
    """Collect the types that a schema allows; None where it says nothing of them."""
    found: frozenset[str] | None = None
    for types in _statements(schema, root, depth):
        found = types if found is None else found & types
    return found


def _statements(schema: JsonObject, root: JsonObject, depth: int) -> Iterator[frozenset[str]]:
    kind: Json = schema.get("type")
    words = [kind] if isinstance(kind, str) else kind if is_array(kind) else []
    if words:
        also_null = ("null",) if schema.get("nullable") is True else ()
        yield frozenset([*(word for word in words if isinstance(word, str)), *also_null])
    choices: Json = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if is_array(choices) and choices:
        yield frozenset(_type_of(choice) for choice in choices)
    for keyword in ("anyOf", "oneOf"):
        branches: Json = schema.get(keyword)
        if is_array(branches) and branches and depth > 0:
            resolved = [_resolved(branch, root) for branch in branches]
            types = [None if branch is None else _types(branch, root, depth - 1) for branch in resolved]
            known = [each for each in types if each is not None]
            if len(known) == len(types):
                yield frozenset().union(*known)


def _type_of(value: Json) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _OF_PYTHON[type(value)]
    return "integer" if isinstance(value, int) else "number"


def _resolved(schema: Json, root: JsonObject) -> JsonObject | None:
    """Follow references within the document, a few steps; None where there is no schema, or none that can be found."""
    for _ in range(_DEPTH):
        if not is_object(schema):
            return None
        reference: Json = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        if not reference.startswith("#"):
            return None
        schema = _at(reference, root)
    return None


def _at(pointer: str, root: JsonObject) -> Json:
    found: Json = root
    for step in unquote(pointer).split("/")[1:]:
        if is_object(found):
            found = found.get(step.replace("~1", "/").replace("~0", "~"))
        else:
            is_index = is_array(found) and step.isdecimal() and len(step) < 6 and int(step) < len(found)
            found = found[int(step)] if is_index else None
    return found
