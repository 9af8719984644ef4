"""Valid schemas in the dialect of JSON Schema that an endpoint takes. Pure; knows neither tools nor endpoints.

Whatever the parts of a schema are, and however they refer to each other, the result is bounded. What lies in `enum`,
`const`, `default` or `examples` is data, which is never walked.
"""

import json
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Literal
from urllib.parse import unquote

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.upstream.narrowing import (
    COMBINATORS,
    constants_of,
    is_null,
    is_object_schema,
    merged,
    one_object,
    says_something,
    single_typed,
    stub_of,
    union_of,
)

MAX_NODES = 2000
"""Sub-schemas in a result; what would come after them is cut to its type."""
MAX_DEPTH = 32
"""Levels of sub-schemas in a result."""
_MAX_INLINED = 65_536
"""Characters of data and names that come from references, roughly."""
_ATTEMPTS: tuple[tuple[int, int, int], ...] = (
    (2, 32, 500),
    (1, 32, MAX_NODES),
    (1, 3, MAX_NODES),
    (1, 1, MAX_NODES),
    (1, 0, MAX_NODES),
)
"""How often a schema may lie in itself, how deep references may lie in each other, and how many sub-schemas that may
make, tried one after the other: what is too large is cut evenly, instead of at its end only."""
_LONGEST_PATTERN = 500
_SHOWN_PATTERN = 200
_BRANCHES = 8
"""Levels of branches within branches that are made one object."""

_STANDARD_FORMATS = frozenset(
    {"date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri"}
    | {
        "uri-reference",
        "iri",
        "iri-reference",
        "uri-template",
        "uuid",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    }
)
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = _DEFINITIONS | {"properties", "patternProperties", "dependentSchemas", "dependencies"}
"""Keywords that hold schemas by name."""
_PLACES = _MAPS | {
    *("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else", "contentSchema"),
    *("unevaluatedProperties", "unevaluatedItems", "anyOf", "oneOf", "allOf", "prefixItems"),
}
"""Keywords that hold a schema, or several."""
_CONSTRAINTS = frozenset(
    {"minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"}
    | {"minProperties", "maxProperties", "propertyNames", "patternProperties", "dependentRequired", "dependentSchemas"}
    | {"unevaluatedProperties", "contentEncoding", "contentMediaType", "contentSchema", "prefixItems"}
)


@dataclass(frozen=True, slots=True)
class SchemaDialect:
    """What of JSON Schema an endpoint takes. The defaults are what all are known to take."""

    references: bool = False
    """References to definitions are kept; else, and where they lead elsewhere, what they lead to stands in their place.
    A schema that refers to itself is expanded a few times and then cut to its type."""
    type_lists: Literal["keep", "single", "any_of", "nullable"] = "single"
    """What becomes of a list of types. Null in it: kept, forgotten, a branch, or `nullable`. Several others: kept, or a
    branch for each."""
    root_combinators: bool = False
    """anyOf, oneOf, allOf, not, if and enum may stand at the root; else its branches are made one object."""
    patterns: bool = True
    """Regular expressions may stand; else, and where not every engine can read them, the description tells them."""
    formats: Literal["all", "standard", "none"] = "standard"
    """Which values of `format` may stand; standard are those of JSON Schema itself."""
    constraints: bool = True
    """Keywords that check a value, and that no type needs, may stand."""
    combinators: bool = True
    """anyOf, oneOf, allOf, not and if may stand below the root; else the first branch that says something does."""


def schema_in_dialect(schema: JsonObject, dialect: SchemaDialect) -> JsonObject:
    """Return a valid schema as an endpoint of this dialect takes it: an object, with `properties`.

    Total and idempotent; the input is not changed, and parts that are fit already are shared with it. Beyond
    `MAX_NODES` and `MAX_DEPTH` only types are left.
    """
    *attempts, last = _ATTEMPTS
    for levels, reach, limit in attempts:
        try:
            return _Rewriting(schema, dialect, levels=levels, reach=reach, limit=limit, cuts=False).root()
        except _TooLarge:
            continue
    levels, reach, limit = last
    return _Rewriting(schema, dialect, levels=levels, reach=reach, limit=limit, cuts=True).root()


class _TooLarge(Exception):
    """An attempt makes more than it may."""


class _Rewriting:
    """One attempt to write a schema anew, with what it may still make."""

    def __init__(
        self, root: JsonObject, dialect: SchemaDialect, *, levels: int, reach: int, limit: int, cuts: bool
    ) -> None:
        self._root = root
        self._dialect = dialect
        self._levels = levels
        self._reach = reach
        self._left = limit
        self._left_branches = limit
        self._left_characters = _MAX_INLINED
        self._cuts = cuts
        self._sizes: dict[int, int] = {}
        self._gone = _gone_keywords(dialect)

    def root(self) -> JsonObject:
        dialect, node, trail = self._dialect, self._root, (id(self._root),)
        if not (dialect.root_combinators and dialect.combinators):
            node = self._one_object(node, trail, _BRANCHES)
        node, trail = self._inlined(node, trail)
        properties: Json = node.get("properties")
        if node.get("type") != "object" or not is_object(properties):
            node = {**node, "type": "object", "properties": properties if is_object(properties) else {}}
        return self._schema(node, 0, trail)

    def _schema(self, node: JsonObject, depth: int, trail: tuple[int, ...]) -> JsonObject:
        self._left -= 1
        if self._left < 0 and not self._cuts:
            raise _TooLarge
        if self._left < 0 or depth > MAX_DEPTH:
            return stub_of(node)
        dialect = self._dialect
        if "$ref" in node and not self._is_kept(node["$ref"]):
            node, trail = self._inlined(node, trail)
        if not dialect.combinators and not COMBINATORS.isdisjoint(node):
            node, trail = self._without_combinators(node, trail)
        if not dialect.constraints and "prefixItems" in node:
            node = self._without_places(node)
        if dialect.type_lists != "keep" and is_array(node.get("type")):
            node = single_typed(node, dialect.type_lists, branches=dialect.combinators)
        return self._rewritten(node, depth, trail)

    def _rewritten(self, node: JsonObject, depth: int, trail: tuple[int, ...]) -> JsonObject:
        """Write the keywords of a schema anew; the same schema where they all stay."""
        changed = False
        written: JsonObject = {}
        for key, value in node.items():
            if key in self._gone and not (key in _DEFINITIONS and self._dialect.references and not depth):
                changed = True
                continue
            if key in _PLACES:
                new = written[key] = self._below(key, value, depth + 1, trail)
                changed = changed or new is not value
            elif key == "format" and not self._takes_format(value):
                changed = True
            else:
                written[key] = value
                if len(trail) > 1:
                    self._pay(value)
        if "pattern" in written or "patternProperties" in node:
            changed = self._settle_patterns(node, written) or changed
        return written if changed else node

    def _below(self, key: str, value: Json, depth: int, trail: tuple[int, ...]) -> Json:
        """Write anew what a keyword holds that keeps schemas; the same value where they all stay."""
        if key in _MAPS:
            if not is_object(value):
                return value
            if len(trail) > 1:
                self._pay_characters(sum(map(len, value)))
            entries = {name: self._sub(sub, depth, trail) for name, sub in value.items()}
            return value if all(map(is_, entries.values(), value.values())) else entries
        if is_array(value):
            subs = [self._sub(sub, depth, trail) for sub in value]
            return value if all(map(is_, subs, value)) else subs
        return self._sub(value, depth, trail)

    def _sub(self, value: Json, depth: int, trail: tuple[int, ...]) -> Json:
        return self._schema(value, depth, trail) if is_object(value) else value

    def _takes_format(self, value: Json) -> bool:
        formats = self._dialect.formats
        return formats == "all" or (formats == "standard" and isinstance(value, str) and value in _STANDARD_FORMATS)

    def _settle_patterns(self, node: JsonObject, written: JsonObject) -> bool:
        """Move patterns that cannot stand into the description, and tell whether there were some."""
        notes: list[str] = []
        pattern: Json = written.get("pattern")
        if isinstance(pattern, str) and not self._takes_pattern(pattern):
            del written["pattern"]
            notes.append(f"Pattern: {_shown(pattern)}")
        named: Json = node.get("patternProperties")
        lost = [name for name in named if not self._takes_names(name)] if is_object(named) else []
        if is_object(named) and lost:
            kept = {name: sub for name, sub in written.pop("patternProperties", {}).items() if name not in lost}
            written |= {"patternProperties": kept} if kept else {}
            if written.get("additionalProperties") is False:
                del written["additionalProperties"]
            notes += [f"Names of the pattern: {_shown(name)}" for name in lost[:8]]
        if notes:
            told: Json = written.get("description")
            written["description"] = "\n".join([told, *notes] if isinstance(told, str) and told else notes)
        return bool(notes)

    def _takes_pattern(self, pattern: str) -> bool:
        return self._dialect.patterns and _is_readable(pattern)

    def _takes_names(self, pattern: str) -> bool:
        return self._dialect.constraints and self._takes_pattern(pattern)

    def _is_kept(self, reference: Json) -> bool:
        if not self._dialect.references or not isinstance(reference, str):
            return False
        steps = reference.split("/")
        in_place = reference == "#" or (len(steps) == 3 and steps[0] == "#" and steps[1] in _DEFINITIONS)
        return in_place and is_object(_target(self._root, reference))

    def _inlined(self, node: JsonObject, trail: tuple[int, ...]) -> tuple[JsonObject, tuple[int, ...]]:
        """Put what a schema refers to in its place, and whatever that refers to; its own keywords win."""
        while "$ref" in node:
            target = _target(self._root, node["$ref"])
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            if not is_object(target):
                node = {"not": {}, **siblings} if target is False else siblings
            elif trail.count(id(target)) >= self._levels or len(trail) > self._reach:
                node = merged(stub_of(target), siblings)
            else:
                trail = (*trail, id(target))
                node = merged(target, siblings)
        return node, trail

    def _without_combinators(self, node: JsonObject, trail: tuple[int, ...]) -> tuple[JsonObject, tuple[int, ...]]:
        """Make one schema of branches: one object where they say more of an object, else the first that says much."""
        for _ in range(_BRANCHES):
            if COMBINATORS.isdisjoint(node):
                return node, trail
            if node.get("type") == "object":
                node = self._one_object(node, trail, _BRANCHES)
                continue
            rest = {key: value for key, value in node.items() if key not in COMBINATORS}
            for branch in filter(is_object, _listed(node.get("allOf"))):
                part, trail = self._inlined(branch, trail)
                rest = merged(part, rest)
            for key in ("anyOf", "oneOf"):
                branches = [self._inlined(branch, trail) for branch in _listed(node.get(key)) if is_object(branch)]
                chosen, trail = self._chosen(branches, trail)
                rest = merged(chosen, rest)
            node, trail = self._inlined(rest, trail)
        return {key: value for key, value in node.items() if key not in COMBINATORS}, trail

    def _chosen(
        self, branches: list[tuple[JsonObject, tuple[int, ...]]], trail: tuple[int, ...]
    ) -> tuple[JsonObject, tuple[int, ...]]:
        telling = [(branch, its) for branch, its in branches if says_something(branch) and not is_null(branch)]
        also_null: JsonObject = {}
        if self._dialect.type_lists == "nullable" and any(is_null(branch) for branch, _ in branches):
            also_null = {"nullable": True}
        constants = constants_of([branch for branch, _ in telling])
        if constants is not None:
            return {**constants, **also_null}, trail
        chosen, its = telling[0] if telling else ({}, trail)
        return {**chosen, **also_null}, its

    def _one_object(self, node: JsonObject, trail: tuple[int, ...], levels: int) -> JsonObject:
        """Make one object of a schema and all branches at its root."""
        self._left_branches -= 1
        if self._left_branches < 0 and not self._cuts:
            raise _TooLarge
        node, trail = self._inlined(node, trail)
        is_branch = levels < _BRANCHES
        if COMBINATORS.isdisjoint(node) and (is_branch or ("enum" not in node and "const" not in node)):
            return node
        if is_branch and not is_object_schema(node):
            return node
        flat = {
            key: [self._one_object(branch, trail, levels - 1) for branch in _listed(node.get(key)) if is_object(branch)]
            for key in ("allOf", "anyOf", "oneOf")
            if levels
        }
        conditional = [node[key] for key in ("then", "else") if levels and is_object(node.get(key))]
        flat["if"] = [self._one_object(branch, trail, levels - 1) for branch in conditional]
        if len(conditional) == 1:
            flat["if"].append({"type": "object"})
        return one_object(node, flat, may_branch=self._dialect.combinators)

    def _without_places(self, node: JsonObject) -> JsonObject:
        """Let all entries of an array be what those with a place of their own may be."""
        places = [sub for sub in _listed(node["prefixItems"]) if is_object(sub)]
        node = {key: value for key, value in node.items() if key != "prefixItems"}
        if not node.get("items") and places:
            node["items"] = union_of(places, may_branch=self._dialect.combinators)
        return node

    def _pay(self, value: Json) -> None:
        """Take the size of data from what references may still bring."""
        if isinstance(value, str):
            self._pay_characters(len(value))
        elif is_object(value) or is_array(value):
            size = self._sizes.get(id(value))
            if size is None:
                size = self._sizes[id(value)] = _size(value)
            self._pay_characters(size)

    def _pay_characters(self, count: int) -> None:
        self._left_characters -= count
        if self._left_characters < 0 and not self._cuts:
            raise _TooLarge


def _listed(value: Json) -> list[Json]:
    return value if is_array(value) else []


def _size(value: Json) -> int:
    try:
        return len(json.dumps(value))
    except (ValueError, RecursionError):
        return _MAX_INLINED


def _shown(pattern: str) -> str:
    return pattern if len(pattern) <= _SHOWN_PATTERN else f"{pattern[:_SHOWN_PATTERN]}…"


@lru_cache(maxsize=64)
def _gone_keywords(dialect: SchemaDialect) -> frozenset[str]:
    # Definitions that are still needed are those at the root.
    return _DEFINITIONS if dialect.constraints else _DEFINITIONS | _CONSTRAINTS


@lru_cache(maxsize=4096)
def _is_readable(pattern: str) -> bool:
    """Tell whether an engine that knows less than a browser's can read a pattern, as many endpoints have one."""
    if len(pattern) > _LONGEST_PATTERN:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            return False
    return True


def _target(root: JsonObject, reference: Json) -> Json:
    """Return what a reference leads to within the document; None where that is nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Json = root
    for step in unquote(reference).split("/")[1:]:
        if is_object(found):
            found = found.get(step.replace("~1", "/").replace("~0", "~"))
        else:
            is_index = is_array(found) and step.isdecimal() and len(step) < 6 and int(step) < len(found)
            found = found[int(step)] if is_index else None
    return found
