"""One schema instead of several: merged, one of many types, one object of branches. Pure.

Knows single schemas and those directly in them; references, and how deep a schema goes, are the business of
`schemas.py`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from app.domain.jsontypes import Json, JsonObject, is_array, is_object

COMBINATORS = frozenset({"anyOf", "oneOf", "allOf", "not", "if", "then", "else"})
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "nullable"}
)
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
_SHORT_DESCRIPTION = 200

TypeLists = Literal["single", "any_of", "nullable"]


def merged(base: JsonObject, over: JsonObject) -> JsonObject:
    """Return one schema with the keywords of both; `over` wins, properties and required names add up."""
    both = {**base, **over}
    for key in ("properties", "required", "items"):
        if key in base and key in over:
            both[key] = _together(base[key], over[key])
    return both


def _together(base: Json, over: Json) -> Json:
    if is_object(base) and is_object(over) and not over:
        return base
    if is_array(base) and is_array(over):
        return [*base, *(name for name in over if name not in base)]
    return {**base, **over} if is_object(base) and is_object(over) else over


def stub_of(schema: JsonObject) -> JsonObject:
    """Return no more than the type of a schema, and what it is for where that is short."""
    words = _type_words(schema) or (["object"] if "properties" in schema else [])
    word = "object" if "object" in words else next((word for word in words if word != "null"), *words[:1] or [None])
    stub: JsonObject = {} if word is None else {"type": word}
    told: Json = schema.get("description")
    if isinstance(told, str) and len(told) <= _SHORT_DESCRIPTION:
        stub["description"] = told
    return _completed(stub)


def _completed(schema: JsonObject) -> JsonObject:
    if schema.get("type") == "object":
        schema.setdefault("properties", {})
    if schema.get("type") == "array":
        schema.setdefault("items", {})
    return schema


def _type_words(schema: JsonObject) -> list[str]:
    kind: Json = schema.get("type")
    words = kind if is_array(kind) else [kind]
    known = dict.fromkeys(word for word in words if isinstance(word, str) and word in _TYPES)
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
    return any(key not in _ANNOTATIONS and key != "not" for key in schema)


def constants_of(schemas: Sequence[JsonObject]) -> JsonObject | None:
    """Return one schema of several that list their values; None where they are no such schemas."""
    if len(schemas) < 2:
        return None
    choices: dict[str, Json] = {}
    for schema in schemas:
        listed: Json = [schema["const"]] if "const" in schema else schema.get("enum")
        if not is_array(listed) or not _ANNOTATIONS.issuperset(_without(schema, "type", "const", "enum")):
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


def one_object(schema: JsonObject, groups: Mapping[str, Sequence[JsonObject]], *, may_branch: bool) -> JsonObject:
    """Return one object schema of a schema and its branches, which have no branches of their own any more.

    `groups` holds the branches by keyword; `if` stands for what may follow from a condition. Of alternatives only what
    all require is required. Branches that are no objects are lost, which the description tells. Where nothing else says
    that it is an object, and none of its alternatives is one, neither is the result.
    """
    rest = _without(schema, *COMBINATORS, "enum", "const")
    found: dict[str, list[JsonObject]] = {}
    required = _names(schema)
    _collect(found, schema)
    lost: dict[str, None] = {}
    for key, branches in groups.items():
        objects = [branch for branch in branches if is_object_schema(branch)]
        lost |= {word: None for branch in branches if not is_object_schema(branch) for word in _kinds(branch)}
        for branch in objects:
            _collect(found, branch)
        if objects and (key == "allOf" or len(branches) == 1):
            for branch in objects:
                required += _names(branch)
                rest = {**_without(branch, "enum", "const", "$defs", "definitions"), **rest}
        elif objects:
            required += [name for name in _names(objects[0]) if all(name in _names(branch) for branch in objects)]
            if all(branch.get("additionalProperties") is False for branch in objects):
                rest.setdefault("additionalProperties", False)
        elif branches and key in {"anyOf", "oneOf"} and "type" not in schema and not found:
            words = [word for branch in branches for word in _type_words(branch)]
            return {"type": list(dict.fromkeys(words))} if words else branches[0]
    rest["type"] = "object"
    rest["properties"] = {name: union_of(subs, may_branch=may_branch) for name, subs in found.items()}
    if required or "required" in rest:
        rest["required"] = list(dict.fromkeys(required))
    if lost:
        note = f"Input as {' or '.join(lost)} is left out here."
        told: Json = rest.get("description")
        rest["description"] = f"{told}\n{note}" if isinstance(told, str) and told else note
    return rest


def _collect(found: dict[str, list[JsonObject]], schema: JsonObject) -> None:
    properties: Json = schema.get("properties")
    for name, sub in properties.items() if is_object(properties) else ():
        found.setdefault(name, []).append(sub if is_object(sub) else {})


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
