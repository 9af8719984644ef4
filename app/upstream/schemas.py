"""Valid schemas in the dialect of JSON Schema that an endpoint takes. Pure; knows neither tools nor endpoints.

Whatever the parts of a schema are, and however they refer to each other, the result is bounded. What lies in `enum`,
`const`, `default` or `examples` is data, which is never walked.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Literal, TypeAlias
from urllib.parse import unquote

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.upstream import narrowing
from app.upstream.narrowing import ANNOTATIONS, COMBINATORS, CONSTRAINTS, LEFT_OUT, is_null, is_readable, says_something

MAX_NODES = 2000
"""Sub-schemas in a result; what would come after them is cut to its type."""
MAX_DEPTH = 32
"""Levels of sub-schemas in a result."""
_MAX_INLINED = 32_768
"""Characters that references may bring, roughly; half as many again as the schema has where that is more."""
_ATTEMPTS = ((2, 32, 500), (1, 8, 1500), *((1, reach, MAX_NODES) for reach in (3, 1, 0)))
"""How often a schema may lie in itself, how deep references may lie in each other, and how many sub-schemas they may
bring, tried one after the other: what is too large is cut evenly, instead of at its end only."""
_BRANCHES = 8
"""Levels of branches within branches that are made one object."""

_STANDARD_FORMATS = {
    *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
    *("uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "regex"),
    *("json-pointer", "relative-json-pointer"),
}
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MAPS = _DEFINITIONS | {"properties", "patternProperties", "dependentSchemas", "dependencies"}
"""Keywords that hold schemas by name."""
_TESTS = frozenset({"not", "if"})
"""Keywords that hold a schema which allows less of all where it is weakened."""
_PLACES = _MAPS | {
    *("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else", "contentSchema"),
    *("unevaluatedProperties", "unevaluatedItems", "anyOf", "oneOf", "allOf", "prefixItems"),
}
"""Keywords that hold a schema, or several."""
_KEPT = frozenset({"type", "properties", "items", "required", "description", "$ref"}) | _DEFINITIONS
"""Keywords that every endpoint knows, or that another fact is for."""
_UNREAD = _DEFINITIONS | ANNOTATIONS | {"components", "discriminator", "format"}
"""Keywords without which the same values are allowed."""


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
    without: frozenset[str] = frozenset()
    """Keywords that are not known: said otherwise where that loses nothing, else left out. `enum` means choices of
    anything but texts. Those that no schema can do without stay, and references, for which there is a fact."""


def schema_in_dialect(schema: JsonObject, dialect: SchemaDialect) -> JsonObject:
    """Return a valid schema as an endpoint of this dialect takes it: an object, with `properties`.

    Total and idempotent; the input is not changed, and parts that are fit already are shared with it. Beyond
    `MAX_NODES` and `MAX_DEPTH` only types are left.
    """
    *attempts, last = _ATTEMPTS
    for attempt in attempts:
        with suppress(_TooLarge):
            return _Rewriting(schema, dialect, attempt).root()
    return _Rewriting(schema, dialect, last).root()


_Step: TypeAlias = tuple[JsonObject, tuple[int, ...]]
"""A schema, and the identities of those that references led through to it."""


class _TooLarge(Exception):
    """An attempt makes more than it may."""


class _Rewriting:
    """One attempt to write a schema anew, with what it may still make."""

    def __init__(self, root: JsonObject, dialect: SchemaDialect, attempt: tuple[int, int, int]) -> None:
        self._root = root
        self._dialect = dialect
        self._gone = _gone_keywords(dialect)
        self._unknown = dialect.without - _KEPT
        self._may_branch = dialect.combinators and "anyOf" not in dialect.without
        unknown = frozenset[str]() if self._may_branch else dialect.without & {"anyOf", "oneOf"}
        self._single = unknown if dialect.combinators else COMBINATORS
        self._levels, self._reach, self._left_inlined = attempt
        self._start = 1
        """How many schemas the root's own reference leads through."""
        self._left = MAX_NODES
        self._characters: int | None = None
        self._targets: dict[str, tuple[Json, int]] = {}
        self._is_cut = False
        self._lost = 0
        """What was left out so far, so that the result allows more."""

    def root(self) -> JsonObject:
        dialect = self._dialect
        node, trail = self._inlined(self._root, (id(self._root),), reach=_ATTEMPTS[0][1])
        self._start = len(trail)
        if not (dialect.root_combinators and dialect.combinators):
            node = self._one_object(node, trail, _BRANCHES)
            node, trail = self._inlined(node, trail)
        properties: Json = node.get("properties")
        if node.get("type") != "object" or not is_object(properties):
            node = {**node, "type": "object", "properties": properties if is_object(properties) else {}}
        written = self._schema(node, 0, trail)
        written = narrowing.noted(written, LEFT_OUT) if self._is_cut else written
        return _without_unused(written) if dialect.references else written

    def _schema(self, node: JsonObject, depth: int, trail: tuple[int, ...]) -> JsonObject:
        self._left -= 1
        if len(trail) > self._start:
            self._left_inlined -= 1
            self._check()
        if self._left < 0 or depth > MAX_DEPTH:
            self._check()
            self._lost += 1
            return narrowing.stub_of(node)
        dialect = self._dialect
        if "$ref" in node or (dialect.type_lists == "nullable" and not COMBINATORS.isdisjoint(node)):
            node, trail = self._resolved(node, trail)
        if not self._single.isdisjoint(node):
            node, trail = self._without_combinators(node, trail)
        if "prefixItems" in node and "prefixItems" in self._gone:
            node = narrowing.without_places(node, may_branch=self._may_branch)
        if dialect.type_lists != "keep" and is_array(node.get("type")):
            node = narrowing.single_typed(node, dialect.type_lists, branches=self._may_branch)
        if not self._unknown.isdisjoint(node):
            node = narrowing.without_keywords(node, self._unknown)
            self._lost += "enum" in self._unknown
        if "required" in node:
            node = narrowing.with_required_described(node)
        return self._rewritten(node, depth, trail)

    def _check(self) -> None:
        """Give the attempt up where references bring too much; the last one has none that do."""
        is_full = self._left_inlined < 0 or (self._characters or 0) < 0
        if self._reach and (is_full or (self._left < 0 and self._characters is not None)):
            raise _TooLarge

    def _rewritten(self, node: JsonObject, depth: int, trail: tuple[int, ...]) -> JsonObject:
        """Write the keywords of a schema anew; the same schema where they all stay."""
        changed = False
        written: JsonObject = {}
        for key, value in node.items():
            if key in self._gone and not (key in _DEFINITIONS and self._dialect.references and not depth):
                self._lost += key not in _UNREAD
                changed = True
            elif key in _PLACES:
                lost = self._lost
                new = self._below(key, value, depth + 1, trail)
                changed = changed or new is not value
                if key not in _TESTS or not value or (self._lost == lost and is_object(new) and says_something(new)):
                    written[key] = new
            elif key == "format" and not self._takes_format(value):
                changed = True
            else:
                written[key] = value
        if "pattern" in written or "patternProperties" in node:
            changed = self._settle_patterns(node, written) or changed
        return written if changed else node

    def _below(self, key: str, value: Json, depth: int, trail: tuple[int, ...]) -> Json:
        """Write anew what a keyword holds that keeps schemas; the same value where they all stay."""
        if key in _MAPS and is_object(value):
            entries = {name: self._sub(sub, depth, trail) for name, sub in value.items()}
            return value if all(map(is_, entries.values(), value.values())) else entries
        if is_array(value):
            subs = [self._sub(sub, depth, trail) for sub in value]
            return value if all(map(is_, subs, value)) else subs
        return self._sub(value, depth, trail)

    def _sub(self, value: Json, depth: int, trail: tuple[int, ...]) -> Json:
        return self._schema(value, depth, trail) if is_object(value) and value else value

    def _takes_format(self, value: Json) -> bool:
        formats = self._dialect.formats
        return formats == "all" or (formats == "standard" and isinstance(value, str) and value in _STANDARD_FORMATS)

    def _settle_patterns(self, node: JsonObject, written: JsonObject) -> bool:
        """Move patterns that cannot stand into the description, and tell whether there were some."""
        notes: list[str] = []
        pattern: Json = written.get("pattern")
        if isinstance(pattern, str) and not self._takes_pattern(pattern, "pattern"):
            del written["pattern"]
            notes.append(f"Pattern: {narrowing.shown(pattern)}")
        named: JsonObject = node["patternProperties"] if is_object(node.get("patternProperties")) else {}
        lost = [name for name in named if not self._takes_pattern(name, "patternProperties")]
        if lost:
            kept = {name: sub for name, sub in written.pop("patternProperties", {}).items() if name not in lost}
            written |= {"patternProperties": kept} if kept else {}
            if written.get("additionalProperties") is False:
                del written["additionalProperties"]
            notes += [f"Names of the pattern: {narrowing.shown(name)}" for name in lost[:8]]
        if notes:
            self._lost += 1
            written["description"] = narrowing.noted(written, *notes)["description"]
        return bool(notes)

    def _takes_pattern(self, pattern: str, key: str) -> bool:
        return self._dialect.patterns and key not in self._gone and key not in self._unknown and is_readable(pattern)

    def _is_kept(self, reference: Json) -> bool:
        if not self._dialect.references or not isinstance(reference, str):
            return False
        steps = reference.split("/")
        in_place = reference == "#" or (len(steps) == 3 and steps[0] == "#" and steps[1] in _DEFINITIONS)
        return in_place and is_object(self._target(reference)[0])

    def _inlined(self, node: JsonObject, trail: tuple[int, ...], *, reach: int | None = None) -> _Step:
        """Put what a schema refers to in its place, and whatever that refers to; its own keywords win."""
        most = self._start + (self._reach if reach is None else reach)
        start = len(trail)
        while "$ref" in node:
            target, size = self._target(node["$ref"])
            siblings = {key: value for key, value in node.items() if key != "$ref"} if len(node) > 1 else {}
            if not is_object(target) or id(target) in trail[start:]:  # a circle says nothing more
                self._lost += 1
                node = {"not": {}, **siblings} if target is False else siblings
            elif trail.count(id(target)) >= self._levels or len(trail) >= most:
                self._lost += 1
                node = self._stub(target, siblings)
            else:
                self._pay(size)
                self._left_inlined -= 1
                self._check()
                trail = (*trail, id(target))
                node = narrowing.merged(target, siblings) if siblings else target
        return node, trail

    def _target(self, reference: Json) -> tuple[Json, int]:
        """Find what a reference leads to, and how large that is, once for each."""
        if not isinstance(reference, str):
            return None, 0
        known = self._targets.get(reference)
        if known is None:
            target = _target(self._root, reference)
            known = self._targets[reference] = target, _size(target)
        return known

    def _stub(self, target: JsonObject, siblings: JsonObject) -> JsonObject:
        stub = narrowing.stub_of(target)
        is_cut = str(stub.get("description")).endswith(LEFT_OUT)
        self._pay(len(stub["description"]) + 20 if "description" in stub else 0)
        if (self._characters or 0) < 0:
            # Types alone are hardly longer than references.
            self._characters = 0
            stub.pop("description", None)
            self._is_cut = self._is_cut or is_cut
            return narrowing.merged(stub, siblings)
        node = narrowing.merged(stub, siblings)
        return narrowing.noted(node, LEFT_OUT) if is_cut and "description" in siblings else node

    def _pay(self, characters: int) -> None:
        if self._characters is None:
            self._characters = max(_MAX_INLINED, 3 * _size(self._root) // 2)
        self._characters -= characters

    def _resolved(self, node: JsonObject, trail: tuple[int, ...]) -> _Step:
        """Put what must not be referred to in its place, and say by `nullable` what branches for null say."""
        for _ in range(_BRANCHES):
            if "$ref" in node and not self._is_kept(node["$ref"]):
                node, trail = self._inlined(node, trail)
            known = node
            if self._dialect.type_lists == "nullable":
                node = narrowing.without_null_branch(known, self._is_null, references=self._dialect.references)
            if node is known:
                break
        return node, trail

    def _is_null(self, branch: Json) -> bool:
        for _ in range(_BRANCHES):
            if not is_object(branch) or is_null(branch):
                break
            branch = self._target(branch.get("$ref"))[0]
        return is_object(branch) and is_null(branch)

    def _without_combinators(self, node: JsonObject, trail: tuple[int, ...]) -> _Step:
        """Make one schema of branches: one object where they say more of an object, else the first that says much."""
        self._lost += 1
        for _ in range(_BRANCHES):
            if self._single.isdisjoint(node):
                return node, trail
            if node.get("type") == "object":
                node = self._one_object(node, trail, _BRANCHES)
                continue
            rest = {key: value for key, value in node.items() if key not in self._single and key != "discriminator"}
            for branch in filter(is_object, _listed(node.get("allOf")) if "allOf" in self._single else ()):
                part, trail = self._inlined(branch, trail)
                rest = narrowing.merged(part, rest)
            for key in ("anyOf", "oneOf") if "oneOf" in self._single else ("anyOf",):
                branches = [self._inlined(branch, trail) for branch in _listed(node.get(key)) if is_object(branch)]
                chosen, trail = self._chosen(branches, trail)
                rest = narrowing.merged(chosen, rest)
            node, trail = self._resolved(*self._inlined(rest, trail))
        return {key: value for key, value in node.items() if key not in self._single}, trail

    def _chosen(self, branches: list[_Step], trail: tuple[int, ...]) -> _Step:
        telling = [(branch, its) for branch, its in branches if says_something(branch) and not is_null(branch)]
        constants = narrowing.constants_of([branch for branch, _ in telling])
        if constants is not None:
            return constants, trail
        return telling[0] if telling else ({}, trail)

    def _one_object(self, node: JsonObject, trail: tuple[int, ...], levels: int) -> JsonObject:
        """Make one object of a schema and all branches at its root."""
        node, trail = self._inlined(node, trail)
        is_branch = levels < _BRANCHES
        is_plain = COMBINATORS.isdisjoint(node) and (is_branch or ("enum" not in node and "const" not in node))
        if is_plain or (is_branch and not narrowing.is_object_schema(node)):
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
        return narrowing.one_object(node, flat, may_branch=self._may_branch)


def _listed(value: Json) -> list[Json]:
    return value if is_array(value) else []


def _size(value: Json) -> int:
    try:
        return len(json.dumps(value))
    except (ValueError, RecursionError):
        return _MAX_INLINED


def _without_unused(root: JsonObject) -> JsonObject:
    """Leave out definitions at the root that nothing refers to."""
    kept: JsonObject = {key: value for key, value in root.items() if key not in _DEFINITIONS}
    left: list[Json] = list(kept.values())
    used = {id(root)}
    while left:
        value = left.pop()
        if is_object(value):
            left.extend(value.values())
            target = _target(root, value.get("$ref"))
            if is_object(target) and id(target) not in used:
                used.add(id(target))
                left.append(target)
        elif is_array(value):
            left.extend(value)
    for key, value in root.items():
        entries = {name: sub for name, sub in value.items() if id(sub) in used} if is_object(value) else {}
        if key in _DEFINITIONS and entries:
            kept[key] = entries
    return kept


@lru_cache(maxsize=64)
def _gone_keywords(dialect: SchemaDialect) -> frozenset[str]:
    # Definitions that are still needed are those at the root. Choices of texts stay, and patterns are told.
    gone = (dialect.without - _KEPT - {"enum", "pattern"}) | _DEFINITIONS | {"components"}
    gone |= frozenset() if dialect.references else {"discriminator"}
    return gone if dialect.constraints else gone | CONSTRAINTS


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
