"""Arguments as models write them, fitted to a tool's schema. Pure; what the schema allows as it is stays as it is.

Models write numbers, lists and objects as texts, and fill optional parameters with null or nothing; servers refuse
both. A text is read as JSON only where the schema forbids it and allows what it holds; a null or an empty text is left
out only where the parameter is optional and the schema forbids it. Unknown keys pass, and the keys of a map stay.

Knows which schemas speak of a value. Where branches do, a property's schema is that of the branches which have it.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import TypeAlias
from urllib.parse import unquote

from app.domain.jsontypes import Json, JsonObject, is_array, is_deeper, is_object
from app.toolbox.keywords import FIXES, GONE, is_schema, modernized

_DEPTH = 16
_VISITS = 4000
"""Schemas looked at for one call. A call that is changed is gone through twice."""
_CHEAP = 64
"""Entries of a list or an object that cost no more than a visit."""
_PLACES = 16
"""Places of a tuple that have schemas of their own."""
_SCOPES = 16
_READ_DEPTH = 64
_EXACT = 2**53
_READ_KEYWORDS = ("type", "enum", "minLength", "required")
_ANYTHING: JsonObject = {}
_NOTHING: JsonObject = {"not": {}}
_TWINS = {"definitions": "$defs", "$defs": "definitions"}
_OF_PYTHON = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}

_Key: TypeAlias = str | int
"""The name of a property or the place in an array."""


def fitted_arguments(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the arguments that the tool gets; `schema` is its input schema, as the server wrote it.

    Total, and idempotent unless the schema asks for more than `_VISITS` looks at its parts: then the properties that
    were not reached stay as they are.
    """
    fitting = _Fitting(schema)
    before, fitted = None, dict(arguments)
    with suppress(_TooMuch):
        # Once more after a change, since a value that was read may say which branch of the schema is meant.
        while fitted != before:
            before = dict(fitted)
            fitting.fit(fitted, schema, _DEPTH)
    return fitted


class _TooMuch(Exception):
    """The schema asks for more work than a call is worth."""


@dataclass(frozen=True, slots=True)
class _Flat:
    """A schema with what it refers to and all of its `allOf`."""

    parts: list[JsonObject] = field(default_factory=list[JsonObject])
    """Each holds."""
    choices: list[list[Json]] = field(default_factory=list[list[Json]])
    """Of each, one branch holds."""


@dataclass(frozen=True, slots=True)
class _Below:
    """What a schema says of the values within one object or array."""

    schemas: dict[_Key, Json]
    declared: set[_Key]
    """Properties by name, so no keys of a map."""
    required: set[_Key]


class _Fitting:
    """One call's walk through its schema. What is remembered by its identity is kept while the walk lasts."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._address = str(root.get("$id", "")).removesuffix("#")
        self._left = _VISITS
        self._opened: dict[int, tuple[Json, JsonObject]] = {}
        self._flats: dict[int, _Flat] = {}
        self._joined: dict[tuple[_Key, ...], JsonObject] = {}
        self._verdicts: dict[tuple[int, str], bool] = {}
        self._choices: dict[int, list[str]] = {}
        self._targets: dict[str, Json] = {}
        self._values: dict[str, Json] = {}
        self._sizes: dict[int, tuple[Json, int]] = {}

    def fit(self, value: JsonObject, schema: Json, depth: int) -> JsonObject:
        """Fit the properties of an object in place, at the root small ones first, while the work is not too much."""
        below = self._below(schema, value, list(value), _DEPTH)
        names = [name for name in value if name in below.schemas]
        for name in sorted(names, key=lambda name: self._size(value[name])) if depth == _DEPTH else names:
            item, sub = value[name], below.schemas[name]
            is_optional = name in below.declared and name not in below.required
            if item not in (None, "") or not is_optional or self._takes(item, sub):
                value[name] = self._fitted(item, sub, depth - 1)
            else:
                del value[name]
        return value

    def _fitted_array(self, value: list[Json], schema: Json, depth: int) -> list[Json]:
        schemas = self._below(schema, value, range(min(len(value), _PLACES + 1)), _DEPTH).schemas
        return [
            self._fitted(item, schemas[min(index, _PLACES)], depth - 1) if min(index, _PLACES) in schemas else item
            for index, item in enumerate(value)
        ]

    def _fitted(self, value: Json, schema: Json, depth: int) -> Json:
        value = self._read(value, schema)
        if depth > 0 and is_object(value):
            return self.fit(dict(value), schema, depth)
        if depth > 0 and is_array(value):
            return self._fitted_array(value, schema, depth)
        return value

    def _read(self, text: Json, schema: Json) -> Json:
        """Return the value that a text stands for, where the schema allows that one and not the text."""
        if not isinstance(text, str) or self._verdict("texts", schema, _takes_texts) or self._takes(text, schema):
            return text
        if text not in self._values:
            self._spend(len(text) // 4)
            self._values[text] = _value_from_text(text)
        value = self._values[text]
        return value if not isinstance(value, str) and self._takes(value, schema) else text

    def _takes(self, value: Json, schema: Json) -> bool:
        """Tell whether a schema allows a value, as far as it can be told without a look into the value."""

        def check(part: JsonObject) -> bool:
            choices = (part["const"], *part.get("enum", ())) if "const" in part else part.get("enum", ())
            alike = [each for each in choices if not isinstance(each, str) and type(each) is type(value)]
            self._spend(len(choices) + len(alike) * (self._size(value) if alike else 0))
            return _allows(part, value)

        if value is None or value == "":
            return self._verdict(repr(value), schema, check)
        return self._holds(schema, check, _DEPTH)

    def _agrees(self, branch: Json, value: JsonObject) -> bool:
        """Tell whether what a branch says of properties with given choices goes with what those are."""

        def check(part: JsonObject) -> bool:
            for name in self._choosers(part):
                # Nothing was chosen by null or an empty text; both may be left out.
                item, sub = value.get(name), part["properties"][name]
                if item not in (None, "") and not self._takes(self._read(item, sub), sub):
                    return False
            return True

        return self._holds(branch, check, _DEPTH)

    def _choosers(self, part: JsonObject) -> list[str]:
        """Return the names of the properties that have given choices."""
        if id(part) not in self._choices:
            properties: Json = part.get("properties")
            self._choices[id(part)] = [
                name
                for name, sub in (properties.items() if is_object(properties) else ())
                if any("enum" in each or "const" in each for each in self._flat(sub).parts)
            ]
        return self._choices[id(part)]

    def _verdict(self, question: str, schema: Json, check: Callable[[JsonObject], bool]) -> bool:
        """Answer a question that has one answer for each schema."""
        key = (id(schema), question)
        if key not in self._verdicts:
            self._verdicts[key] = self._holds(schema, check, _DEPTH)
        return self._verdicts[key]

    def _holds(self, schema: Json, check: Callable[[JsonObject], bool], depth: int) -> bool:
        """Tell whether a check passes all parts of a schema, and of each choice a branch; what is deeper passes."""
        if depth <= 0:
            return True
        flat = self._flat(schema)
        return all(check(part) for part in flat.parts) and all(
            any(self._holds(branch, check, depth - 1) for branch in branches) for branches in flat.choices
        )

    def _below(self, schema: Json, value: JsonObject | list[Json], keys: Sequence[_Key], depth: int) -> _Below:
        """Collect what is said of these properties or places of a value."""
        flat = self._flat(schema)
        found: dict[_Key, list[Json]] = {}
        declared: set[_Key] = set()
        required: set[_Key] = set()
        for part in flat.parts:
            names: list[str] = part.get("required", [])
            self._spend(len(keys) + len(names))
            declared.update(key for key in keys if _is_declared(part, key))
            required.update(names, (key for key in keys if _is_required_by_itself(part, key)))
            for key in keys:
                sub = _sub(part, key)
                if sub is not None:
                    found.setdefault(key, []).append(sub)
        for branches in flat.choices if depth > 0 else ():
            belows = [self._below(branch, value, keys, depth - 1) for branch in self._meant(branches, value)]
            declared.update(*(below.declared for below in belows))
            required |= set[_Key].intersection(*(below.required for below in belows)) if belows else set()
            for key in keys:
                subs = [below.schemas[key] for below in belows if key in below.schemas]
                if subs:
                    found.setdefault(key, []).append(self._join("anyOf", subs))
        return _Below({key: self._join("allOf", subs) for key, subs in found.items()}, declared, required)

    def _meant(self, branches: list[Json], value: JsonObject | list[Json]) -> list[Json]:
        """Return the branches that a value may be meant for: of its type and, if there are such, with its choices."""
        possible = [branch for branch in branches if self._takes(value, branch)]
        if len(possible) < 2 or not is_object(value):
            return possible
        return [branch for branch in possible if self._agrees(branch, value)] or possible

    def _join(self, word: str, schemas: list[Json]) -> Json:
        """Return one schema that says what several do; the same one for the same ones."""
        unique = {id(schema): schema for schema in schemas}
        if len(unique) == 1:
            return schemas[0]
        return self._joined.setdefault((word, *unique), {word: list(unique.values())})

    def _flat(self, schema: Json) -> _Flat:
        self._spend()
        if id(schema) in self._flats:
            return self._flats[id(schema)]
        flat = self._flats[id(schema)] = _Flat()
        left: list[Json] = [schema]
        seen: set[int] = set()
        while left:
            node = left.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            self._spend()
            part = self._open(node)
            flat.parts.append(part)
            reference, parts = part.get("$ref"), part.get("allOf")
            if isinstance(reference, str):
                left.append(self._target(reference))
            left += parts if is_array(parts) else [parts] if is_object(parts) else []
            flat.choices.extend(part[word] for word in ("anyOf", "oneOf") if is_array(part.get(word)) and part[word])
        return flat

    def _size(self, value: Json) -> int:
        """Count the values in a value, and the characters of its texts, once for each."""
        if id(value) not in self._sizes:
            size, left = 0, [value]
            while left:
                item = left.pop()
                size += len(item) if isinstance(item, str) else 1
                left += item.values() if is_object(item) else item if is_array(item) else ()
            self._sizes[id(value)] = value, size
        return self._sizes[id(value)][1]

    def _open(self, schema: Json) -> JsonObject:
        if id(schema) not in self._opened:
            self._opened[id(schema)] = (schema, _part_from_schema(schema))
        return self._opened[id(schema)][1]

    def _target(self, reference: str) -> Json:
        """Return the schema that a reference leads to; one that allows anything where none can be found."""
        if reference not in self._targets:
            local = reference.removeprefix(self._address)
            is_pointer = local in {"", "#"} or local.startswith("#/")
            found = _at(local, self._root) if is_pointer else None
            if found is None and is_pointer:
                # Embedded as it was, a schema still refers to its own definitions as if it were the root.
                targets = [target for scope in self._scopes if (target := _at(local, scope)) is not None]
                found = targets[0] if targets and all(target == targets[0] for target in targets) else None
            self._targets[reference] = found if is_schema(found) else _ANYTHING
        return self._targets[reference]

    @cached_property
    def _scopes(self) -> list[JsonObject]:
        """The first schemas within the root that have definitions of their own."""
        scopes: list[JsonObject] = []
        left: list[Json] = [self._root]
        for _ in range(_VISITS):
            if not left or len(scopes) == _SCOPES:
                break
            node = left.pop()
            if is_object(node) and not _TWINS.keys().isdisjoint(node):
                scopes.append(node)
            inner = node.values() if is_object(node) else node if is_array(node) else ()
            left += [each for each in inner if is_object(each) or is_array(each)]
        return scopes

    def _spend(self, entries: int = _CHEAP) -> None:
        self._left -= entries // _CHEAP
        if self._left < 0:
            raise _TooMuch


def _part_from_schema(schema: Json) -> JsonObject:
    """Write a schema in the words that are asked for here; what is no schema says nothing."""
    if schema is False:
        return _NOTHING
    if isinstance(schema, str) and is_schema(schema):
        schema = {"type": schema}
    if not is_object(schema):
        return _ANYTHING
    if schema.get("nullable") is True:
        return {"anyOf": [{key: said for key, said in schema.items() if key != "nullable"}, {"type": "null"}]}
    node = modernized(schema)
    fixed = {key: FIXES[key](node[key]) for key in _READ_KEYWORDS if key in node}
    return {key: fixed.get(key, said) for key, said in node.items() if fixed.get(key) is not GONE}


def _sub(part: JsonObject, key: _Key) -> Json:
    """Return what a schema says of a property or a place by itself; None where it says nothing."""
    if isinstance(key, int):
        tuple_: Json = part.get("prefixItems")
        if is_array(tuple_) and key < len(tuple_):
            return tuple_[key] if key < _PLACES else None
        return part.get("items")
    if _is_declared(part, key):
        return part["properties"][key]
    rest: Json = part.get("additionalProperties")
    if part.get("patternProperties"):
        return None
    return rest if is_object(rest) else _ANYTHING if rest is True else None


def _is_declared(part: JsonObject, key: _Key) -> bool:
    properties: Json = part.get("properties")
    return is_object(properties) and key in properties


def _is_required_by_itself(part: JsonObject, key: _Key) -> bool:
    """Tell whether a property says of itself that it is required, as in the oldest schemas."""
    sub: Json = part["properties"][key] if _is_declared(part, key) else None
    return is_object(sub) and sub.get("required") in (True, "true")


def _allows(part: JsonObject, value: Json) -> bool:
    """Tell whether a schema by itself allows a value, by its type, its choices and the length of a text."""
    return (
        not (part.get("not") == {} or part.get("not") is True)
        and ("const" not in part or _is_same(value, part["const"]))
        and ("enum" not in part or any(_is_same(value, choice) for choice in part["enum"]))
        and ("type" not in part or _is_of_type(value, part["type"]))
        and not (isinstance(value, str) and len(value) < part.get("minLength", 0))
    )


def _takes_texts(part: JsonObject) -> bool:
    """Tell whether a schema by itself allows any text."""
    is_bounded = any(key in part for key in ("not", "const", "enum", "minLength"))
    return not is_bounded and ("type" not in part or _is_of_type("", part["type"]))


def _is_of_type(value: Json, types: str | list[str]) -> bool:
    words = [types] if isinstance(types, str) else types
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _OF_PYTHON[type(value)] in words
    return "number" in words or ("integer" in words and (isinstance(value, int) or value.is_integer()))


def _is_same(value: Json, other: Json) -> bool:
    """Tell whether JSON values are equal; in Python, 1 is true as well."""
    return isinstance(value, bool) is isinstance(other, bool) and value == other


def _value_from_text(text: str) -> Json:
    """Return the JSON that a text holds; the text where it holds none, or what cannot be written again."""
    try:
        value: Json = json.loads(text)
        # An escape may hide half a surrogate pair, 1e999 is infinite.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if isinstance(value, float) and value.is_integer():
            if abs(value) < _EXACT:
                return int(value)
            # The nearest float may be another whole number than the one that was written.
            return value if Decimal(text) == Decimal(repr(value)) else text
    except (ValueError, RecursionError):
        return text
    return text if is_deeper(value, _READ_DEPTH) else value


def _at(pointer: str, root: JsonObject) -> Json:
    for spelling in (unquote(pointer), pointer):
        found: Json = root
        for step in spelling.split("/")[1:]:
            found = _step(found, step.replace("~1", "/").replace("~0", "~"))
        if found is not None:
            return found
    return None


def _step(found: Json, step: str) -> Json:
    if is_object(found):
        return found[step] if step in found else found.get(_TWINS.get(step, step))
    is_index = is_array(found) and step.isdecimal() and len(step) < 6 and int(step) < len(found)
    return found[int(step)] if is_index else None
