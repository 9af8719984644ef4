"""Schemas of strangers, of which only what can be judged safely is left: no patterns, no other documents. Pure."""

from collections.abc import Collection
from contextlib import suppress

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.toolbox.keywords import FIXES, GONE, modernized

_MOST_SCHEMAS = 4000
_DEPTH = 96
NO_DOCUMENTS: Registry[Json] = Registry()
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
MAPS = frozenset({"properties", "dependentSchemas", "$defs", "definitions"})
_SINGLES = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"})
_UNJUDGED = frozenset(
    {"pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"}
)


class TooMuch(Exception):
    """The schema or the value asks for more work than this is worth."""


def judgeable(schema: JsonObject, words: Collection[str]) -> tuple[JsonObject, bool]:
    """Return what of a schema of 2020-12 can be judged with keywords `words`, and whether that is all of it.

    What is left refers to nothing but itself.

    Raises:
        TooMuch: More than `_MOST_SCHEMAS` schemas within it, or `_DEPTH` within each other.
        RecursionError: The same, met sooner.
    """
    reading = _Reading(words)
    return reading.root(schema), reading.is_exact


class _Reading:
    """One walk through a schema, which makes of it what can be judged."""

    def __init__(self, words: Collection[str]) -> None:
        self._words = words
        self.is_exact = True
        """Nothing of the schema was left out: what it forbids is known as well as what it allows."""
        self._left = _MOST_SCHEMAS
        self._references: list[JsonObject] = []
        self._made: dict[int, JsonObject] = {}
        """All schemas made, by identity."""

    def root(self, schema: JsonObject) -> JsonObject:
        own: Json = schema.get("$id")
        address = own.removesuffix("#") if isinstance(own, str) else ""
        root = self._read_object(schema, 0)
        self._made[id(root)] = root
        lookup = NO_DOCUMENTS.resolver_with_root(DRAFT202012.create_resource(root)).lookup
        for node in self._references:
            node["$ref"] = node["$ref"].removeprefix(address) or "#"
            target: Json = None
            with suppress(Unresolvable, ValueError, TypeError):
                target = lookup(node["$ref"]).contents if node["$ref"][:2] in ("#", "#/") else None
            if target is not True and id(target) not in self._made:
                del node["$ref"]
                self.is_exact = False
        return root

    def _read(self, node: Json, depth: int) -> Json:
        """Read a sub-schema. What is none, or allows everything, is `True`."""
        made: JsonObject = {}
        if is_object(node) and not isinstance(node.get("$id"), str):
            made = self._read_object(node, depth)
        elif node is False:
            # The library would write out the value that is forbidden.
            made = {"enum": []}
        elif node is not True:
            # It is no schema; or it has an address, and what it refers to is looked up from there.
            self.is_exact = False
        self._made[id(made)] = made
        return made or True

    def _read_object(self, node: JsonObject, depth: int) -> JsonObject:
        self._left -= 1
        if depth > _DEPTH or self._left < 0:
            raise TooMuch
        made: JsonObject = {}
        node = modernized(node)
        for key, value in node.items():
            if key in self._words:
                made[key] = self._keyword(key, value, depth + 1)
            if key in _UNJUDGED or made.get(key) is GONE:
                made.pop(key, None)
                self.is_exact = False
        if "patternProperties" in node:
            made.pop("additionalProperties", None)
        if "$ref" in made:
            self._references.append(made)
        return made

    def _keyword(self, key: str, value: Json, depth: int) -> Json:
        if key in LISTS:
            return [self._read(sub, depth) for sub in value] if is_array(value) and value else GONE
        if key in MAPS:
            return {name: self._read(sub, depth) for name, sub in value.items()} if is_object(value) else GONE
        if key in _SINGLES:
            return self._read(value, depth) if is_object(value) or isinstance(value, bool) else GONE
        return FIXES[key](value) if key in FIXES else value
