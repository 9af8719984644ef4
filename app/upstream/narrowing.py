"""One schema instead of another: merged, one of many types, one object of branches, without some keywords. Pure.

Knows single schemas and those directly in them; references and depth are the business of `schemas.py`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from app.domain.jsontypes import Json, JsonObject, is_array, is_object

COMBINATORS = frozenset({"anyOf", "oneOf", "allOf", "not", "if", "then", "else"})
_WORDS = ("string", "integer", "number", "boolean", "object", "array", "null")
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "nullable"}
)
"""Keywords that do not say which values are allowed."""
_OWNERS = {
    **dict.fromkeys(("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType"), "string"),
    "contentSchema": "string",
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("items", "prefixItems", "contains", "minContains", "maxContains", "minItems"), "array"),
    **dict.fromkeys(("maxItems", "uniqueItems", "unevaluatedItems"), "array"),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "propertyNames"), "object"),
    **dict.fromkeys(("required", "minProperties", "maxProperties", "dependentRequired"), "object"),
    **dict.fromkeys(("dependentSchemas", "unevaluatedProperties"), "object"),
}
"""Keywords that mean something for values of one type only."""
CONSTRAINTS = _OWNERS.keys() - {"properties", "required", "additionalProperties", "items", "pattern"}
"""Keywords that only check a value."""
_SHOWN = 200
_ESCAPE = r"\\(?:[dDwWsSnrtfv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^a-zA-Z0-9])"
_CLASS = rf"\[\^?+(?!\])(?:{_ESCAPE}|[^\\\]])+\]"
_REPEATED = r"(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??"
_PIECE = rf"(?:{_ESCAPE}|{_CLASS}|[^\\\[()|^$*+?{{]|\))(?:{_REPEATED})?"
_PATTERN = re.compile(rf"(?:{_PIECE}|\((?:\?(?:[:=!]|<[=!]))?(?!\?)|[|^$]|\\[bB])*+", re.DOTALL)
"""The parts that regular expressions of all kinds have, whatever their order is; linear in time."""
_ATOMS = re.compile(rf"{_ESCAPE}|{_CLASS}", re.DOTALL)
_RANGE = re.compile(rf"({_ESCAPE}|[^\\])(?:-({_ESCAPE}|[^\\]))?", re.DOTALL)
_BOUNDS = re.compile(r"\{([0-9]+),([0-9]+)\}")
_CONTROLS = {r"\n": 10, r"\r": 13, r"\t": 9, r"\f": 12, r"\v": 11}
LEFT_OUT = "More of it is left out here."

TypeLists = Literal["single", "any_of", "nullable"]


def merged(base: JsonObject, over: JsonObject) -> JsonObject:
    """Return one schema with the keywords of both; `over` wins, properties and required names add up."""
    both = {**base, **over}
    for key in ("properties", "items"):
        if is_object(base.get(key)) and is_object(over.get(key)):
            both[key] = {**base[key], **over[key]}
    if "required" in base and "required" in over:
        both["required"] = list(dict.fromkeys(_names(base) + _names(over)))
    return both


def _narrowed(outer: JsonObject, inner: JsonObject) -> JsonObject:
    """Return a schema for what two allow; where it can be one of them only, the inner one, but in the outer's words."""
    return {**merged(outer, inner), **{key: value for key, value in outer.items() if key in ANNOTATIONS}}


def noted(schema: JsonObject, *notes: str) -> JsonObject:
    """Return a schema whose description tells more, a line for each note."""
    told: Json = schema.get("description")
    return {**schema, "description": "\n".join([told, *notes] if isinstance(told, str) and told else notes)}


def shown(text: str) -> str:
    """Return a text as short as a note may be."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def stub_of(schema: JsonObject) -> JsonObject:
    """Return no more than the type of a schema, and what it is for where that is short; a note tells of the rest."""
    words = _type_words(schema) or (["object"] if "properties" in schema else [])
    word = "object" if "object" in words else next((word for word in words if word != "null"), *words[:1] or [None])
    stub: JsonObject = {} if word is None else {"type": word}
    told: Json = schema.get("description")
    if isinstance(told, str) and len(told.removesuffix(f"\n{LEFT_OUT}")) <= _SHOWN:
        stub["description"] = told
    stub = _completed(stub)
    unread = ANNOTATIONS | {"type", "$defs", "definitions"}
    return noted(stub, LEFT_OUT) if any(key not in unread and schema[key] != stub.get(key) for key in schema) else stub


def _completed(schema: JsonObject) -> JsonObject:
    if schema.get("type") == "object":
        schema.setdefault("properties", {})
    if schema.get("type") == "array":
        schema.setdefault("items", {})
    return schema


def _type_words(schema: JsonObject) -> list[str]:
    kind: Json = schema.get("type")
    words = kind if is_array(kind) else [kind]
    known = dict.fromkeys(word for word in words if isinstance(word, str) and word in _WORDS)
    return [word for word in known if word != "integer" or "number" not in known]


def single_typed(schema: JsonObject, how: TypeLists, *, branches: bool) -> JsonObject:
    """Return a schema without a list of types: one that has a single type, or a branch for each.

    Null is forgotten, said by `nullable`, or a branch of its own. Without `branches` the first other type is taken.
    """
    words = _type_words(schema)
    real = _wanted(schema, [word for word in words if word != "null"])
    has_null = "null" in words
    if not real:
        return {**schema, "type": "null"} if has_null else _without(schema, "type")
    if not branches:
        how, real = ("single" if how == "any_of" else how), real[:1]
    if len(real) == 1 and not (has_null and how == "any_of" and "anyOf" not in schema):
        return _completed(_forgetting_null(_only_of(schema, real[0], words), how, has_null=has_null))
    if "anyOf" in schema:
        # Its branches say more of the types than the list does.
        return _without(schema, "type")
    return _branched(schema, real, how, has_null=has_null)


def _wanted(schema: JsonObject, words: list[str]) -> list[str]:
    """Keep the types that the choices are of, where there are choices."""
    choices: Json = [schema["const"]] if "const" in schema else schema.get("enum")
    if not is_array(choices) or not choices:
        return words
    of_choices = [word for word in words if any(_is_of(choice, word) for choice in choices)]
    only_null = all(choice is None for choice in choices) and "null" in _type_words(schema)
    return of_choices or ([] if only_null else words)


def _is_of(value: Json, word: str) -> bool:
    if isinstance(value, bool) or value is None:
        return word == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return word == "number" or (word == "integer" and value == value // 1)
    return word == ("string" if isinstance(value, str) else "array" if is_array(value) else "object")


def _only_of(schema: JsonObject, word: str, words: Sequence[str]) -> JsonObject:
    """Give a schema one of its types; keywords of its others go."""
    others = {_group(other) for other in words} - {_group(word)}
    kept = {key: value for key, value in schema.items() if _OWNERS.get(key) not in others}
    choices: Json = schema.get("enum")
    if is_array(choices) and any(_is_of(choice, word) for choice in choices):
        kept["enum"] = [choice for choice in choices if _is_of(choice, word)]
    return {**kept, "type": word}


def _group(word: str) -> str:
    return "number" if word == "integer" else word


def _forgetting_null(schema: JsonObject, how: TypeLists, *, has_null: bool) -> JsonObject:
    choices: Json = schema.get("enum")
    if has_null and is_array(choices) and None in choices:
        schema = {**schema, "enum": [choice for choice in choices if choice is not None]}
    return {**schema, "nullable": True} if has_null and how == "nullable" else schema


def _branched(schema: JsonObject, words: list[str], how: TypeLists, *, has_null: bool) -> JsonObject:
    groups = {_group(word) for word in words}
    choices: Json = schema.get("enum")
    has_choices = is_array(choices) and any(_is_of(choice, word) for choice in choices for word in words)
    # Most formats are those of texts.
    format_of = "string" if "string" in groups else "number"
    owners = {**_OWNERS, "format": format_of} if format_of in groups else _OWNERS
    outer: JsonObject = {key: value for key, value in schema.items() if owners.get(key) not in groups and key != "type"}
    branches: list[JsonObject] = []
    for word in words:
        branch = {key: value for key, value in schema.items() if owners.get(key) == _group(word)}
        branch["type"] = word
        if is_array(choices) and has_choices:
            branch["enum"] = [choice for choice in choices if _is_of(choice, word)]
        branches.append(_completed(branch))
    if has_choices:
        del outer["enum"]
    if has_null and how == "nullable":
        outer["nullable"] = True
    return {**outer, "anyOf": [*branches, *([{"type": "null"}] if has_null and how == "any_of" else [])]}


def _without(schema: JsonObject, *keys: str) -> JsonObject:
    return {key: value for key, value in schema.items() if key not in keys}


def is_null(schema: JsonObject) -> bool:
    """Tell whether a schema allows null and nothing else."""
    return schema.get("type") in ("null", ["null"]) or schema.get("const", 0) is None or schema.get("enum") == [None]


def says_something(schema: JsonObject) -> bool:
    """Tell whether a schema says what values may be, besides what they may not."""
    return any(key not in ANNOTATIONS and key != "not" for key in schema)


def constants_of(schemas: Sequence[JsonObject]) -> JsonObject | None:
    """Return one schema of several that list their values; None where they are no such schemas."""
    if len(schemas) < 2:
        return None
    choices: dict[str, Json] = {}
    for schema in schemas:
        listed: Json = [schema["const"]] if "const" in schema else schema.get("enum")
        if not is_array(listed) or not ANNOTATIONS.issuperset(_without(schema, "type", "const", "enum")):
            return None
        choices |= {_text(choice): choice for choice in listed}
    kinds = {_text(schema.get("type")) for schema in schemas}
    same: JsonObject = {"type": schemas[0]["type"]} if len(kinds) == 1 and "type" in schemas[0] else {}
    return {**same, "enum": list(choices.values())}


def _text(value: Json) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return str(id(value))


def union_of(schemas: Sequence[JsonObject], *, may_branch: bool) -> JsonObject:
    """Return a schema for what any of several allow; without `may_branch` it may be the first that says something."""
    distinct = list({_text(schema): schema for schema in schemas}.values())
    telling = [schema for schema in distinct if says_something(schema)] or distinct[:1]
    if len(telling) == 1:
        return telling[0]
    return constants_of(telling) or ({"anyOf": telling} if may_branch else telling[0])


def without_places(schema: JsonObject, *, may_branch: bool) -> JsonObject:
    """Let all entries of an array be what those with a place of their own may be."""
    listed: Json = schema["prefixItems"]
    places = [sub for sub in listed if is_object(sub)] if is_array(listed) else []
    said = _without(schema, "prefixItems")
    if not said.get("items") and places:
        said["items"] = union_of(places, may_branch=may_branch)
    return said


def one_object(schema: JsonObject, groups: Mapping[str, Sequence[JsonObject]], *, may_branch: bool) -> JsonObject:
    """Return one object schema of a schema and its branches, which have no branches of their own any more.

    `groups` holds the branches by keyword; `if` stands for what may follow from a condition. Of alternatives only what
    all require is required. Branches that are no objects are lost, which the description tells. Where nothing else says
    that it is an object, and none of its alternatives is one, neither is the result.
    """
    rest = _without(schema, *COMBINATORS, "enum", "const", "discriminator")
    certain = _described(schema)
    alternatives: list[Sequence[JsonObject]] = []
    required = _names(schema)
    lost: dict[str, None] = {}
    for key, branches in groups.items():
        objects = [branch for branch in branches if is_object_schema(branch)]
        lost |= {word: None for branch in branches if not is_object_schema(branch) for word in _kinds(branch)}
        if objects and (key == "allOf" or len(branches) == 1):
            for branch in objects:
                for name, sub in _described(branch).items():
                    certain[name] = _narrowed(certain.get(name, {}), sub)
                required += _names(branch)
                rest = {**_without(branch, "enum", "const", "$defs", "definitions"), **rest}
        elif objects:
            alternatives.append(objects)
            common = set(_names(objects[0])).intersection(*map(_names, objects[1:]))
            required += [name for name in _names(objects[0]) if name in common]
            if all(branch.get("additionalProperties") is False for branch in objects):
                rest.setdefault("additionalProperties", False)
        elif branches and key in {"anyOf", "oneOf"} and not ("type" in schema or certain or alternatives):
            words = [word for branch in branches for word in _type_words(branch)]
            return {"type": list(dict.fromkeys(words))} if words else branches[0]
    rest["type"] = "object"
    rest["properties"] = _properties(certain, alternatives, may_branch=may_branch)
    if required or "required" in rest:
        rest["required"] = list(dict.fromkeys(required))
    return noted(rest, f"Input as {' or '.join(lost)} is left out here.") if lost else rest


def _properties(
    certain: JsonObject, alternatives: Sequence[Sequence[JsonObject]], *, may_branch: bool
) -> dict[str, JsonObject]:
    """Join the properties that are described in any case with those of alternatives.

    Alternatives narrow the former where each of them says something of it: else one of them allows all of it.
    """
    properties: dict[str, JsonObject] = dict(certain)
    others: dict[str, list[JsonObject]] = {}
    for objects in alternatives:
        found: dict[str, list[JsonObject]] = {}
        for branch in objects:
            for name, sub in _described(branch).items():
                found.setdefault(name, []).append(sub)
        for name, subs in found.items():
            if name not in certain:
                others.setdefault(name, []).extend(subs)
            elif len(subs) == len(objects) and all(map(says_something, subs)):
                properties[name] = _narrowed(properties[name], union_of(subs, may_branch=may_branch))
    return properties | {name: union_of(subs, may_branch=may_branch) for name, subs in others.items()}


def _described(schema: JsonObject) -> dict[str, JsonObject]:
    properties: Json = schema.get("properties")
    if not is_object(properties):
        return {}
    return {name: sub if is_object(sub) else {} for name, sub in properties.items()}


def with_required_described(schema: JsonObject) -> JsonObject:
    """Return a schema whose properties have an entry for each name that it requires."""
    properties: Json = schema.get("properties")
    if "required" not in schema or not is_object(properties):
        return schema
    missing: JsonObject = {name: {} for name in _names(schema) if name not in properties}
    return {**schema, "properties": {**properties, **missing}} if missing else schema


def without_null_branch(schema: JsonObject, says_null: Callable[[Json], bool], *, references: bool) -> JsonObject:
    """Return a schema that says by `nullable` what a branch for null said; the same one where it has none.

    A single other branch becomes one with what stands beside it. With `references` one that refers stays a branch,
    since what stands beside a reference is not read by all.
    """
    for key in ("anyOf", "oneOf"):
        branches: Json = schema.get(key)
        real = [each for each in branches if not says_null(each)] if is_array(branches) else []
        if not real or len(real) == len(branches):
            continue
        rest: JsonObject = {**_without(schema, key), "nullable": True}
        only: Json = real[0]
        if len(real) > 1 or not is_object(only) or (references and "$ref" in only):
            return {**rest, key: real}
        is_mergeable = COMBINATORS.isdisjoint(only.keys() & rest.keys())
        return merged(only, rest) if is_mergeable else {**rest, key: real}
    return schema


def without_keywords(schema: JsonObject, without: AbstractSet[str]) -> JsonObject:
    """Say otherwise what keywords say that must not stand, as far as that can be; others of them are left in.

    Constants become choices, `oneOf` becomes `anyOf`, and choices of anything but texts are told by the description.
    """
    said = dict(schema)
    if "const" in without and "const" in said:
        value: Json = said.pop("const")
        said["enum"] = [value]
        said.setdefault("type", next(word for word in _WORDS if _is_of(value, word)))
    if "oneOf" in without and "oneOf" in said:
        branches: Json = said.pop("oneOf")
        if "anyOf" in said:
            parts: Json = said.get("allOf")
            said["allOf"] = [*(parts if is_array(parts) else []), {"anyOf": branches}]
        else:
            said["anyOf"] = branches
    choices: Json = said.get("enum")
    if "enum" in without and is_array(choices) and not all(isinstance(choice, str) for choice in choices):
        del said["enum"]
        said = noted(said, f"One of: {shown(_text(choices)[1:-1])}")
    return said


def _names(schema: JsonObject) -> list[str]:
    required: Json = schema.get("required")
    return [name for name in required if isinstance(name, str)] if is_array(required) else []


def is_object_schema(schema: JsonObject) -> bool:
    """Tell whether a schema allows objects, as far as its own keywords say."""
    if "type" in schema:
        return "object" in _type_words(schema)
    return "const" not in schema and "enum" not in schema


def _kinds(schema: JsonObject) -> list[str]:
    words = [word for word in _type_words(schema) if word != "null"]
    return words or ([] if is_null(schema) else ["a value"])


@lru_cache(maxsize=4096)
def is_readable(pattern: str) -> bool:
    """Tell whether an engine that knows less than a browser's can read a pattern, as many endpoints have one.

    Looks at it letter by letter: to compile what strangers wrote may take seconds.
    """
    if len(pattern) > _SHOWN or not _PATTERN.fullmatch(pattern):
        return False
    for atom in _ATOMS.findall(pattern):
        ranges = _RANGE.findall(atom.removeprefix("[").removeprefix("^")[:-1]) if atom[0] == "[" and "-" in atom else []
        if "[:" in atom or not all(not last or -1 < _code(first) <= _code(last) for first, last in ranges):
            return False
    rest = _ATOMS.sub("", pattern)
    depths = [0, *accumulate((mark == "(") - (mark == ")") for mark in rest)]
    is_counted = all(int(least) <= int(most) for least, most in _BOUNDS.findall(rest))
    return is_counted and min(depths) == depths[-1] == 0


def _code(member: str) -> int:
    """Return the number of the character that a member of a class stands for; -1 where it stands for several."""
    if len(member) == 2 and member[1] in "dDwWsS":
        return -1
    return int(f"0{member[1:].replace('u', 'x')}", 0) if len(member) > 2 else _CONTROLS.get(member, ord(member[-1]))
