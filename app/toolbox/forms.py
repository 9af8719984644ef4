"""The forms that servers put to people: a requested schema → what any frontend can render, and answers that fit it.

Pure. Servers let generators write such schemas, so what surely is one of MCP's kinds of field is read as one, and what
is shown is written anew in the plain shape of MCP 2025-11-25. What cannot be asked for, or deceives, is refused with a
sentence. A stranger's pattern is never run, nor a reference followed out of the schema.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeAlias

from app.domain.errors import InvalidRequest
from app.domain.jsontypes import Json, JsonObject, is_array, is_object, is_small
from app.toolbox.cleaning import clean_text
from app.toolbox.keywords import FIXES, GONE, modernized
from app.toolbox.lookalikes import (
    EXAMPLES,
    Format,
    asks_for_secret,
    deceive,
    distinct_titles,
    fault_of_names,
    looks_like,
    number_from,
    shown_choices,
    visible_line,
    visible_passage,
    visible_text,
)

_MAX_FIELDS, _MAX_CHOICES, _MAX_KEYWORDS, _MAX_HOPS = 64, 256, 64, 8
"""Hops are references and lonely alternatives, on the way to what a field is."""
_MAX_NAME, _MAX_TITLE, _MAX_DESCRIPTION, _MAX_VALUE, _MAX_TEXT = 128, 200, 2000, 1000, 10_000
"""In characters; the last two of what is chosen and of what is written."""
_BRANCHES = ("anyOf", "oneOf", "allOf")
_SIGNS = {
    "array": {"items"},
    "object": {"properties", "allOf"},
    "number": {"minimum", "maximum"},
}  # where no type is named


class _Refused(Exception):
    """The form is put to nobody. `str()` says why, after "it"."""


class _Unfit(Exception):
    """An answer does not fit. `str()` says why, after the field's name."""


@dataclass(frozen=True, slots=True)
class _Text:
    least: int = 0
    most: int | None = None
    format: Format | None = None

    def shown(self) -> JsonObject:
        least = self.least or None
        return _without_none({"type": "string", "minLength": least, "maxLength": self.most, "format": self.format})

    def read(self, value: Json) -> Json:
        if not isinstance(value, str):
            raise _Unfit("must be a text")
        text = clean_text(value).strip() if self.format else clean_text(value)
        most = _MAX_TEXT if self.most is None else self.most
        if not self.least <= len(text) <= most:
            raise _Unfit(f"must have {self.least} to {most} characters")
        if self.format and not looks_like(text, self.format):
            raise _Unfit(f"must be {EXAMPLES[self.format]}")
        return text


@dataclass(frozen=True, slots=True)
class _Number:
    whole: bool
    least: float | None = None
    most: float | None = None
    above: bool = False
    below: bool = False
    """The limit itself does not fit."""

    def shown(self) -> JsonObject:
        kind = "integer" if self.whole else "number"
        return _without_none({"type": kind, "minimum": self.least, "maximum": self.most})

    def read(self, value: Json) -> Json:
        number = number_from(value)
        if self.whole and isinstance(number, float):
            number = number_from(int(number)) if number.is_integer() else None
        if number is None:
            raise _Unfit(f"must be a {'whole ' if self.whole else ''}number of usual size")
        if self.least is not None and (number < self.least or (self.above and number == self.least)):
            raise _Unfit(f"must be {'more than' if self.above else 'at least'} {self.least}")
        if self.most is not None and (number > self.most or (self.below and number == self.most)):
            raise _Unfit(f"must be {'less than' if self.below else 'at most'} {self.most}")
        return number


@dataclass(frozen=True, slots=True)
class _Truth:
    def shown(self) -> JsonObject:
        return {"type": "boolean"}

    def read(self, value: Json) -> Json:
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.strip().lower())
        if not isinstance(value, bool):
            raise _Unfit("must be true or false")
        return value


_Titles: TypeAlias = Mapping[str, str]  # what can be chosen, and what that is called


@dataclass(frozen=True, slots=True)
class _Choice:
    titles: _Titles

    def shown(self) -> JsonObject:
        return {"type": "string", **shown_choices(self.titles, "oneOf")}

    def read(self, value: Json) -> Json:
        if not isinstance(value, str) or value not in self.titles:
            raise _Unfit("must be one of the choices")
        return value


@dataclass(frozen=True, slots=True)
class _Choices:
    titles: _Titles
    least: int = 0
    most: int | None = None

    def shown(self) -> JsonObject:
        items = shown_choices(self.titles, "anyOf")
        return _without_none({"type": "array", "items": items, "minItems": self.least or None, "maxItems": self.most})

    def read(self, value: Json) -> Json:
        given: list[Json] = value if is_array(value) else [value]
        chosen = list(dict.fromkeys(map(_Choice(self.titles).read, given)))
        most = len(self.titles) if self.most is None else self.most
        if not self.least <= len(chosen) <= most:
            raise _Unfit(f"must have {self.least} to {most} of the choices")
        return chosen


_Kind: TypeAlias = _Text | _Number | _Truth | _Choice | _Choices


@dataclass(frozen=True, slots=True)
class _Field:
    kind: _Kind
    required: bool
    title: str | None
    description: str | None
    default: Json = None
    """As the server gets it; None where there is none."""

    def shown(self) -> JsonObject:
        about: JsonObject = {"title": self.title, "description": self.description, "default": self.default}
        return {**self.kind.shown(), **_without_none(about)}

    def answered(self, value: Json) -> Json:
        """Return what goes to the server, None for nothing; raises `_Unfit`."""
        value = self._filled_in(value)
        answer: Json = self.default if value is None else self.kind.read(value)
        if answer is None and self.required:
            raise _Unfit("is required")
        return answer

    def _filled_in(self, value: Json) -> Json:
        """Return what a person filled in; None where a field was left empty, as HTML forms send that."""
        if not isinstance(value, str):
            is_left = value == [] and isinstance(self.kind, _Choices) and self.kind.least and self.default is None
            return None if is_left else value
        text = clean_text(value)
        if not isinstance(self.kind, _Text) or self.kind.format:
            return text if text.strip() else None
        # An empty text is an answer where one is required, and where a person took the default out.
        is_meant = not self.kind.least and (self.required or self.default is not None)
        return text if text or is_meant else None


@dataclass(frozen=True, slots=True)
class Form:
    """What a server wants to know, as it may be shown."""

    shown: JsonObject
    """A `requestedSchema` in MCP's plain shape."""
    _fields: Mapping[str, _Field]

    def fitted(self, content: JsonObject) -> JsonObject:
        """Return the answers as the server gets them, with defaults for what is left out; what fits stays as it is.

        Raises:
            InvalidRequest: `param` is `content.<field>`.
        """
        for name in content:
            if name not in self._fields:
                param = f"content.{visible_line(name, _MAX_NAME) or ''}"
                raise InvalidRequest("The form has no such field.", param=param)
        fitted: JsonObject = {}
        for name, field in self._fields.items():
            try:
                answer = field.answered(content.get(name))
            except _Unfit as unfit:
                raise InvalidRequest(f"The field {name!r} {unfit}.", param=f"content.{name}") from None
            if answer is not None:
                fitted[name] = answer
        return fitted


def form_from_schema(schema: Json) -> Form | str:
    """Read a `requestedSchema`; None is a form without fields. A `str` is why it is put to nobody, a sentence."""
    try:
        fields = _fields_from(_plain({} if schema is None else schema, schema))
    except _Refused as refusal:
        return f"It {refusal}."
    shown: JsonObject = {"type": "object", "properties": {name: field.shown() for name, field in fields.items()}}
    required = [name for name, field in fields.items() if field.required]
    return Form({**shown, "required": required} if required else shown, fields)


def _fields_from(root: JsonObject) -> dict[str, _Field]:
    properties: Json = root.get("properties", {})
    is_readable = "properties" in root or root.keys().isdisjoint(_BRANCHES)
    if not is_object(properties) or not is_readable or _types(root) - {"object"}:
        raise _Refused("describes no form")
    if len(properties) > _MAX_FIELDS or not is_small(root, characters=1_000_000, parts=100_000):
        raise _Refused(f"asks for more than {_MAX_FIELDS} things at once, or says too much of them")
    nodes = {name: node for name, node in properties.items() if node is not None}
    if (fault := fault_of_names(nodes, _MAX_NAME)) is not None:
        raise _Refused(fault)
    names = frozenset[str](_fixed(root, "required") or ())
    fields: dict[str, _Field] = {}
    for name, node in nodes.items():
        try:
            fields[name] = _field(name, _plain(node, root), root, required=name in names)
        except _Refused as refusal:
            raise _Refused(f"has a field {name!r} that {refusal}") from None
    return fields


def _field(name: str, node: JsonObject, root: JsonObject, *, required: bool) -> _Field:
    kind = _kind(node, root)
    title = visible_line(node.get("title"), _MAX_TITLE)
    # What is chosen from the server's own list is no secret from the server.
    labels = (name, title or "", str(_fixed(node, "format"))[:_MAX_TITLE])
    if isinstance(kind, _Text | _Number) and any(map(asks_for_secret, labels)):
        raise _Refused("asks for a secret in a form")
    field = _Field(kind, required, title, visible_passage(node.get("description"), _MAX_DESCRIPTION))
    default: Json = node.get("default")
    with suppress(_Unfit):
        if default is not None and is_small(default, characters=_MAX_TEXT, parts=1024):
            return replace(field, default=kind.read(visible_text(default) if isinstance(default, str) else default))
    return field


def _plain(node: Json, root: Json) -> JsonObject:
    """Follow references and lonely alternatives to what is asked for, in a copy. Null counts as absent."""
    for _ in range(_MAX_HOPS):
        if not is_object(node) or len(node) > _MAX_KEYWORDS:
            raise _Refused("is nothing that a form can hold")
        node = modernized({key: value for key, value in node.items() if value is not None})
        further = _target(root, node.pop("$ref")) if "$ref" in node else _lonely_branch(node)
        if further is None:
            return node
        node = {**further, **node}
    raise _Refused("is nested too deep")


def _target(root: Json, reference: Json) -> JsonObject:
    steps = reference.split("/", _MAX_HOPS) if isinstance(reference, str) else [""]
    for step in steps[1:]:
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if is_object(root) else None
    if not is_object(root) or steps[0] != "#":
        raise _Refused("refers to something that is not there")
    return root


def _lonely_branch(node: JsonObject) -> JsonObject | None:
    """Take out the one thing that is allowed beside null. A choice of one stays a choice."""
    for word in _BRANCHES:
        branches = _real_branches(node, word)
        if len(branches) == 1 and is_object(branches[0]) and "const" not in branches[0]:
            del node[word]
            return branches[0]
    return None


def _real_branches(node: JsonObject, word: str) -> list[Json]:
    branches: Json = node.get(word)
    some = branches[: _MAX_CHOICES + 2] if is_array(branches) else []
    return [branch for branch in some if not (is_object(branch) and _fixed(branch, "type") == "null")]


def _kind(node: JsonObject, root: JsonObject) -> _Kind:
    types = _types(node)
    titles = _titles(node) if types.isdisjoint({"boolean", "array", "object"}) else None
    if titles is not None:
        return _Choice(titles)
    for branch in (*_real_branches(node, "anyOf"), *_real_branches(node, "oneOf")):
        types |= _types(branch) if is_object(branch) else set()
    types = types or {kind for kind, signs in _SIGNS.items() if not signs.isdisjoint(node)} or {"string"}
    if "string" in types:
        return _text(node)
    if types & {"number", "integer"}:
        return _number(node, whole="number" not in types)
    if "boolean" in types:
        return _Truth()
    if "array" in types:
        return _choices(node, root)
    raise _Refused("is nothing that a form can hold")


def _text(node: JsonObject) -> _Text:
    form: Json = _fixed(node, "format")
    return _Text(*_counts(node, "Length", _MAX_TEXT), form if form in EXAMPLES else None)


def _counts(node: JsonObject, what: str, room: int) -> tuple[int, int | None]:
    least, most = _fixed(node, f"min{what}") or 0, _fixed(node, f"max{what}")
    if least > min(room, room if most is None else most):
        raise _Refused("has limits that no answer fits")
    return least, None if most is None else min(most, room)


def _number(node: JsonObject, *, whole: bool) -> _Number:
    lower, above = _bound(node, "minimum", 1)
    upper, below = _bound(node, "maximum", -1)
    if whole and lower is not None:
        lower, above = number_from(math.floor(lower) + 1 if above else math.ceil(lower)), False
    if whole and upper is not None:
        upper, below = number_from(math.ceil(upper) - 1 if below else math.floor(upper)), False
    if lower is not None and upper is not None and (lower > upper or (lower == upper and (above or below))):
        raise _Refused("has limits that no answer fits")
    return _Number(whole, lower, upper, above, below)


def _bound(node: JsonObject, word: str, sign: int) -> tuple[float | None, bool]:
    """Return the narrower of both ways to write a limit, and whether it excludes the limit itself."""
    both = ((_fixed(node, word), False), (_fixed(node, f"exclusive{word.capitalize()}"), True))
    sides = [(limit, is_open) for limit, is_open in both if number_from(limit) is not None]
    return max(sides, key=lambda side: (sign * side[0], side[1]), default=(None, False))


def _choices(node: JsonObject, root: JsonObject) -> _Choices:
    titles = _titles(_plain(node.get("items"), root))
    if titles is None:
        raise _Refused("asks for a list of anything")
    return _Choices(titles, *_counts(node, "Items", len(titles)))


def _titles(node: JsonObject) -> _Titles | None:
    """Read what can be chosen; None where that is not limited. Null and blanks are no choices but an empty field."""
    if (listed := _listed(node)) is None:
        return None
    titles: dict[str, str] = {}
    for value, title in listed:
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        if not isinstance(value, str) or len(value) > _MAX_VALUE or visible_text(value) != value:
            raise _Refused("has a choice that is no text, or one that cannot be shown")
        titles.setdefault(value, visible_line(title, _MAX_TITLE) or value)
    if not 0 < len(titles) <= _MAX_CHOICES:
        raise _Refused(f"has nothing to choose from, or more than {_MAX_CHOICES} choices")
    told = distinct_titles(titles)
    if deceive(list(told.values())):
        raise _Refused("has choices that are written with letters of others")
    return told


def _listed(node: JsonObject) -> list[tuple[Json, Json]] | None:
    """Return what is listed to choose from, each with its title."""
    enum: Json = node.get("enum", node.get("const"))
    if enum is not None:
        values: list[Json] = enum[: _MAX_CHOICES + 2] if is_array(enum) else [enum]
        names: Json = node.get("enumNames")
        return list(zip_longest(values, names[: len(values)] if is_array(names) else ()))
    branches = [*_real_branches(node, "oneOf"), *_real_branches(node, "anyOf")]
    listed = [(branch["const"], branch.get("title")) for branch in branches if is_object(branch) and "const" in branch]
    return listed if listed and len(listed) == len(branches) else None


def _fixed(node: JsonObject, word: str) -> Json:
    """Return a keyword's value as it must be; None where it has none."""
    value = FIXES[word](node[word]) if word in node else GONE
    return None if value is GONE else value


def _types(node: JsonObject) -> set[str]:
    types: Json = _fixed(node, "type") or ()
    return ({types} if isinstance(types, str) else set(types)) - {"null"}


def _without_none(node: JsonObject) -> JsonObject:
    return {key: value for key, value in node.items() if value is not None}
