"""Tool schemas as strangers write them, made valid. Pure; never fetches or runs anything.

`schema_refused` first, `repair_schema` on what passes. Both walk only where JSON Schema keeps schemas: a property may
be called `default` or `type`, and what lies in `enum`, `const`, `default` or `examples` is data.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeAlias
from urllib.parse import quote, unquote

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.toolbox.keywords import ANNOTATIONS, BOOLEANS, FIXES, GONE, UNREAD, is_schema, modernized, type_of_all

MAX_DEPTH = 32
MAX_NODES = 2000
"""Objects and arrays, in a tool's whole schema."""
_MAX_VALUES = 50_000
"""Of any kind, in a tool's whole schema."""
_MAX_SCOPES = 16
"""Sub-schemas with definitions of their own where a reference is looked up that leads nowhere from the root."""

_Path: TypeAlias = tuple[str, ...]

_BRANCH_LISTS = frozenset({"anyOf", "oneOf", "allOf"})
_LISTS = _BRANCH_LISTS | {"prefixItems", "items"}
"""Keywords that hold an array of schemas; `items` did up to 2019-09."""
_LIMITS = frozenset({"additionalProperties", "unevaluatedProperties", "unevaluatedItems"})
"""Keywords where a boolean is the usual way to say open or closed, and stays."""
_SINGLES = _LIMITS | {"items", "not", "if", "then", "else", "contains", "propertyNames", "contentSchema"}
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = _DEFINITIONS | {"properties", "patternProperties", "dependentSchemas"}
_DECIDERS = ("enum", "const", "$ref", "anyOf", "oneOf", "allOf", "not", "if")
"""Keywords that say what a value may be, so that no type is guessed beside them."""
_SIGNS = {
    "object": ("properties", "patternProperties", "additionalProperties", "propertyNames", "required", "minProperties"),
    "array": ("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType"),
}
_TEXT_FORMATS = frozenset({"date-time", "date", "time", "email", "hostname", "ipv4", "ipv6", "uri", "url", "uuid"})
_TESTS = frozenset({"not", "if"})
"""Keywords that hold a schema which allows less of all where it is weakened."""
_NOTHING: JsonObject = {"not": {}}
"""Allows nothing, as generators write it for what may be absent."""
_TWINS: Mapping[str, str] = {"definitions": "$defs", "$defs": "definitions"}
"""A name of the place of definitions, and the one that it has in other versions of JSON Schema."""


def schema_refused(schema: Json, *, max_bytes: int) -> str | None:
    """Say why a tool with this input schema must be dropped, in a sentence; None where it need not be.

    `max_bytes` is the limit of the schema as compact JSON in UTF-8.
    """
    if count_nodes(schema) > MAX_NODES:
        return f"Its schema is nested deeper than {MAX_DEPTH} levels or has more than {MAX_NODES} parts."
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode(errors="surrogatepass")) > max_bytes:
        return f"Its schema is larger than {max_bytes} bytes."
    if '"$ref":' in text and is_object(schema) and _Document(schema).has_foreign_reference:
        return "Its schema refers to another document, which is never fetched."
    return None


def repair_schema(schema: Json) -> JsonObject:
    """Return a schema that says the same, is valid by JSON Schema 2020-12, and is shaped as providers want it.

    The root is an object schema; objects have `properties`, arrays `items`. Slips and older versions of JSON Schema
    become what was surely meant, keywords that make no sense go, as do `default: null` and what only describes the
    document. A missing type is added where all choices have it, or where a keyword means something for it only; what
    gives no such sign stays open. Boolean sub-schemas become objects or go. Each reference leads to a schema within the
    document. What must not hold, or is a condition, goes where less of it would be left. Total, idempotent, and the
    input is not changed. What lies below `MAX_DEPTH` or after the first `MAX_NODES` sub-schemas becomes `{}`;
    `schema_refused` reports such schemas before.
    """
    said: JsonObject = schema if is_object(schema) else {}
    document = {key: value for key, value in said.items() if key != "nullable"} | {"type": "object"}
    return _Repair(document).root()


class _Repair:
    """One walk through a schema, with what it may still visit."""

    def __init__(self, document: JsonObject) -> None:
        self._written = document
        self._left = MAX_NODES
        self._made: dict[_Path, JsonObject] = {}
        """Repaired schemas, by where they were in the document."""
        self._references: list[tuple[JsonObject, _Path]] = []
        """Repaired schemas that refer to others, and where those were."""
        self._lost = 0
        """What was dropped so far, so that the result allows more."""

    @cached_property
    def _document(self) -> "_Document":
        """Made where something refers to something only: most schemas have no reference."""
        return _Document(self._written)

    def root(self) -> JsonObject:
        root = self._made[()] = self._schema(self._written, (), 0)
        for _, target in self._references:  # grows while it is read
            if target not in self._made:
                self._keep_as_definition(root, target)
        places = {id(node): path for path, node in _places(root)} if self._references else {}
        for node, target in self._references:
            place = places.get(id(self._made[target]))
            if place is None:
                del node["$ref"]
                _settle_type(node)
            elif node["$ref"][:2] not in {"#", "#/"} or _steps(unquote(node["$ref"])) != place:
                node["$ref"] = _pointer(place)
        return root

    def _keep_as_definition(self, root: JsonObject, target: _Path) -> None:
        """Make a schema of what a reference leads to where JSON Schema keeps none, or where nothing could stay."""
        definitions: JsonObject = root.setdefault("$defs", {})
        name = target[-1]
        while name in definitions:
            name += "_"
        definitions[name] = {}
        definitions[name] = self._sub(self._document.at(target), target, 0, keep=True)

    def _schema(self, node: JsonObject, path: _Path, depth: int) -> JsonObject:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            self._lost += 1
            return {}
        node = modernized(node)
        repaired: JsonObject = {}
        for key, value in node.items():
            fixed = self._keyword(key, value, (*path, key), depth)
            if fixed is not GONE:
                repaired[key] = fixed
            elif key not in UNREAD:
                self._lost += 1
        _settle_required(node, repaired)
        if "$ref" in repaired:
            target = self._document.target(repaired["$ref"], path)
            if target is None:
                del repaired["$ref"]
                self._lost += 1
            else:
                self._references.append((repaired, target))
        _settle_type(repaired)
        return repaired

    def _keyword(self, key: str, value: Json, path: _Path, depth: int) -> Json:
        """Repair what a keyword holds, or say that the keyword goes."""
        fix = FIXES.get(key)
        if fix is not None:
            return fix(value)
        if key in _MAPS:
            if not is_object(value):
                return GONE
            keep = key in _DEFINITIONS
            entries = {name: self._sub(sub, (*path, name), depth, keep=keep) for name, sub in value.items()}
            kept = {name: sub for name, sub in entries.items() if sub is not GONE}
            self._lost += len(kept) < len(entries)
            return kept
        if key in _LISTS and key != "items":
            return self._list(key, [value] if is_object(value) else value, path, depth)
        return self._single(key, value, path, depth) if key in _SINGLES else value

    def _list(self, key: str, value: Json, path: _Path, depth: int) -> Json:
        if not is_array(value):
            return GONE
        # An entry of a tuple means its place: what allows nothing or is no schema stays there.
        keep = key not in _BRANCH_LISTS
        subs: list[Json] = []
        for index, sub in enumerate(value):
            place = (*path, str(index))
            made = self._sub(sub, place, depth, keep=keep) if keep or is_schema(sub) else GONE
            if made is GONE or (made == _NOTHING and not keep):
                self._lost += key == "allOf"
                self._made.pop(place, None)
            else:
                subs.append(made)
        return subs or GONE

    def _single(self, key: str, value: Json, path: _Path, depth: int) -> Json:
        if isinstance(value, str):
            value = BOOLEANS.get(value.lower(), value)
        if not is_schema(value) or (key in _LIMITS and isinstance(value, bool)):
            return value if isinstance(value, bool) else GONE
        return (self._test if key in _TESTS else self._sub)(value, path, depth, keep=False)

    def _test(self, value: Json, path: _Path, depth: int, *, keep: bool) -> Json:
        """Repair what must not hold, or is a condition: it goes where less of it is left, which would forbid more."""
        made, references, lost = len(self._made), len(self._references), self._lost
        sub = self._sub(value, path, depth, keep=keep)
        says_less = self._lost > lost or (is_object(sub) and sub.keys() <= ANNOTATIONS)
        if not value or value is True or not says_less:
            return sub
        while len(self._made) > made:
            self._made.popitem()
        del self._references[references:]
        return GONE

    def _sub(self, value: Json, path: _Path, depth: int, *, keep: bool) -> Json:
        """Repair a sub-schema. One that allows nothing goes, or is written as an object where it must be kept."""
        if value is False:
            if not keep:
                return GONE
            value = {"not": {}}
        elif isinstance(value, str) and is_schema(value):
            value = {"type": value}
        made = self._made[path] = self._schema(value, path, depth + 1) if is_object(value) and value else {}
        return made


def _settle_required(node: JsonObject, repaired: JsonObject) -> None:
    """Require what says so of itself, as in the oldest schemas, and never what was dropped: nobody could satisfy it."""
    before, after, names = node.get("properties"), repaired.get("properties"), repaired.get("required", [])
    if not is_object(before) or not is_object(after):
        return
    kept = [name for name in names if name in after or name not in before]
    own = [name for name in after if is_object(before[name]) and before[name].get("required") in (True, "true")]
    if len(kept) < len(names) or own:
        repaired["required"] = list(dict.fromkeys(kept + own))


def _settle_type(node: JsonObject) -> None:
    """Give a schema its type where its keywords tell one, and what each type needs."""
    if "type" not in node:
        word = type_of_all(node["enum"]) if "enum" in node else None
        if word is None and not any(key in node for key in _DECIDERS):
            signs = (word for word, keywords in _SIGNS.items() if any(key in node for key in keywords))
            word = next(signs, "string" if node.get("format") in _TEXT_FORMATS else None)
        if word is not None:
            node["type"] = word
    kind: Json = node.get("type")
    if kind == "object" or (is_array(kind) and "object" in kind):
        node.setdefault("properties", {})
    if kind == "array" or (is_array(kind) and "array" in kind):
        node.setdefault("items", {})


class _Document:
    """A schema as it was written: where its references lead."""

    def __init__(self, root: JsonObject) -> None:
        self.root = root
        self.has_foreign_reference = False
        own: Json = root.get("$id")
        self._address = own if isinstance(own, str) and not own.startswith("#") else ""
        self._scopes: list[_Path] = []
        left: list[tuple[JsonObject, _Path]] = [(root, ())]
        for _ in range(MAX_NODES):
            if not left:
                break
            node, path = left.pop()
            reference: Json = node.get("$ref")
            if isinstance(reference, str) and self._local(reference)[:1] not in {"", "#"}:
                self.has_foreign_reference = True
            if path and len(self._scopes) < _MAX_SCOPES and not _DEFINITIONS.isdisjoint(node):
                self._scopes.append(path)
            if len(path) < 2 * MAX_DEPTH:
                left += [(sub, path + steps) for steps, sub in _subschemas(node)]

    def _local(self, reference: str) -> str:
        return reference.removeprefix(self._address)

    def target(self, reference: str, path: _Path) -> _Path | None:
        """Return where the schema is that the one at `path` refers to; None where the document has none."""
        local = self._local(reference)
        if local not in {"", "#"} and not local.startswith("#/"):
            return None
        # Embedded as it was, a schema still refers to definitions of its own as if it were the root.
        around = [scope for scope in self._scopes if path[: len(scope)] == scope]
        for scope in ((), *reversed(around)):
            for spelling in (unquote(local), local):
                target = self._follow(scope, spelling)
                if target is not None:
                    return target
        return None

    def _follow(self, start: _Path, pointer: str) -> _Path | None:
        found, path = self.at(start), start
        for step in _steps(pointer):
            name = step if not is_object(found) or step in found else _TWINS.get(step, step)
            found, path = _below(found, name), (*path, name)
        return path if is_schema(found) else None

    def at(self, path: _Path) -> Json:
        found: Json = self.root
        for step in path:
            found = _below(found, step)
        return found


def _below(value: Json, step: str) -> Json:
    if is_object(value):
        return value.get(step)
    is_index = is_array(value) and step.isdecimal() and len(step) < 6 and int(step) < len(value)
    return value[int(step)] if is_index else None


def _pointer(path: _Path) -> str:
    pointer = "/".join(("#", *(step.replace("~", "~0").replace("/", "~1") for step in path)))
    try:
        return quote(pointer, safe="#/$~")
    except UnicodeEncodeError:
        return pointer


def _steps(pointer: str) -> _Path:
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def _places(root: JsonObject) -> Iterator[tuple[_Path, JsonObject]]:
    left: list[tuple[_Path, JsonObject]] = [((), root)]
    while left:
        path, node = left.pop()
        yield path, node
        left += [(path + steps, sub) for steps, sub in _subschemas(node)]


def _subschemas(schema: JsonObject) -> Iterator[tuple[_Path, JsonObject]]:
    for key, value in schema.items():
        if (key in _MAPS or key == "dependencies") and is_object(value):
            yield from (((key, name), sub) for name, sub in value.items() if is_object(sub))
        elif key in _LISTS and is_array(value):
            yield from (((key, str(index)), sub) for index, sub in enumerate(value) if is_object(sub))
        elif key in _SINGLES and is_object(value):
            yield (key,), value


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
