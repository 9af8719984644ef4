"""Values held against the JSON Schemas of strangers, with bounded effort. Pure.

What counts of a schema is what can be judged safely (`judgeable.py`). The answer says in words of our own what is wrong
and where; it repeats neither the schema nor the value, which may be secret, but for names of properties.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import cached_property
from typing import Any, Protocol, TypeAlias, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import create  # pyright: ignore[reportUnknownVariableType] - one parameter is untyped

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.toolbox.cleaning import shown_name
from app.toolbox.judgeable import LISTS, MAPS, NO_DOCUMENTS, TooMuch, judgeable

_STEPS = 6000
"""Keywords and parts looked at for one value; each takes up to 20 microseconds."""
_DEPTH = 96
"""Keywords within each other, and parts of a value that is compared. Each takes a few frames of Python's stack."""
_NAME_CHARACTERS = 64
_PLACES = 12
_MOST_TOLD = 10**15
_Faults: TypeAlias = Iterator[ValidationError]


class _Judge(Protocol):
    """What is used of the library's validator: a schema, ready to be applied to values."""

    schema: JsonObject

    def iter_errors(self, instance: Json) -> _Faults: ...
    def descend(self, instance: Json, schema: Json, path: str | int | None = None) -> _Faults: ...
    def is_type(self, instance: Json, type: str) -> bool: ...  # noqa: A002 - the library's name


_Keyword: TypeAlias = Callable[[_Judge, Json, Json], _Faults]
"""Takes what the schema says by the keyword, and the value."""


@dataclass(frozen=True)
class SchemaCheck:
    """A schema of 2020-12 to hold values against. It is read once, when the first value comes."""

    schema: JsonObject

    def fault(self, value: Json) -> str | None:
        """Say in a short sentence in which place a value does not follow the schema, and what it must be there.

        As in `items.3.name: must be a string`; without a place where it is the whole value. None where nothing is wrong
        or it cannot be told: without regular expressions, other documents, or more than `_STEPS` steps. Never raises.
        """
        if self._ready is None:
            return None
        judge, is_exact = self._ready
        token = _effort.set(_Effort(is_exact=is_exact))
        try:
            fault = next(judge.iter_errors(value), None)
        except (TooMuch, RecursionError):
            return None
        finally:
            _effort.reset(token)
        return None if fault is None else ": ".join(filter(None, (_place(list(fault.path)), str(fault.args[0]))))

    @cached_property
    def _ready(self) -> "tuple[_Judge, bool] | None":
        """What can be judged of the schema, and whether that is all of it; None where it asks for too much."""
        try:
            plain, is_exact = judgeable(self.schema, _WORDS)
            return _judge(plain, registry=NO_DOCUMENTS), is_exact
        except (TooMuch, RecursionError):
            return None


class _Effort:
    """What one check may still do, and how sure it can be."""

    def __init__(self, *, is_exact: bool) -> None:
        self._left = _STEPS
        self.depth = 0
        self.is_exact = is_exact

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0 or self.depth > _DEPTH:
            raise TooMuch


_effort: ContextVar[_Effort] = ContextVar("effort")


def _counted(key: str, keyword: _Keyword) -> Callable[[_Judge, Json, Json, JsonObject], _Faults]:
    """Make a keyword pay for each time that it is judged, and for what is in it."""

    def counted(judge: _Judge, said: Json, value: Json, _: JsonObject) -> _Faults:
        effort = _effort.get()
        effort.depth += 1
        try:
            parts = len(said) if is_object(said) or is_array(said) else 0
            applied = parts if key in LISTS else min(parts, len(value)) if key in MAPS and is_object(value) else 0
            effort.spend(1 + applied + parts // 16)
            yield from keyword(judge, said, value)
        finally:
            effort.depth -= 1

    return counted


def _of_library(key: str) -> _Keyword:
    """Take over a keyword that names no value and looks no further than the schema is long."""
    judged = cast("Callable[..., _Faults | None]", Draft202012Validator.VALIDATORS[key])
    return lambda judge, said, value: iter(judged(judge, said, value, judge.schema) or ())


def _is_valid(judge: _Judge, value: Json, schema: Json) -> bool:
    return next(judge.descend(value, schema), None) is None


def _type(judge: _Judge, said: Json, value: Json) -> _Faults:
    words = said if is_array(said) else [said]
    if not any(judge.is_type(value, word) for word in words):
        yield _fault_of_type(words)


def _fault_of_type(words: Iterable[str]) -> ValidationError:
    """Name types as in "a string or null"."""
    return ValidationError(f"must be {' or '.join(_ARTICLES.get(word, 'a ') + word for word in words)}")


_ARTICLES: Mapping[str, str] = {"null": "", "integer": "an ", "object": "an ", "array": "an "}


def _enum(_: _Judge, said: Json, value: Json) -> _Faults:
    mark = _mark(value)
    if all(_mark(choice) != mark for choice in said):
        yield ValidationError("must be a value that is allowed" if said else "is not allowed")


def _mark(value: Json, depth: int = 0) -> object:
    """Return what is equal, and hashes the same, for values that JSON Schema takes as equal only."""
    if not is_object(value) and not is_array(value):
        return (value,) if isinstance(value, bool) else value
    _effort.get().spend(1 + len(value))
    if depth > _DEPTH:
        raise TooMuch
    if is_object(value):
        return frozenset((name, _mark(item, depth + 1)) for name, item in value.items())
    return ("", *(_mark(item, depth + 1) for item in value))


def _unique(_: _Judge, said: Json, value: Json) -> _Faults:
    if said and is_array(value):
        _effort.get().spend(len(value) // 16)
        if len({_mark(item) for item in value}) < len(value):
            yield ValidationError("must not have the same entry twice")


def _bound(kind: str, fails: Callable[[Json, Json], bool], words: str) -> _Keyword:
    """Make a keyword of a limit for a type; `words` say what must be, with the limit as `{}`."""

    def bound(judge: _Judge, said: Json, value: Json) -> _Faults:
        if judge.is_type(value, kind) and fails(value, said):
            told = f"{said:.15g}" if abs(said) < _MOST_TOLD else "its limit"
            yield ValidationError(words.format(told))

    return bound


def _is_no_multiple(value: Json, step: Json) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step != 0
    try:
        # As they are written: in binary no price is a multiple of a cent.
        rest = _EXACT.remainder(Decimal(repr(value)), Decimal(repr(step)))
    except (InvalidOperation, ValueError):  # too far apart
        return False
    return bool(rest) and not rest.is_nan()


_EXACT = Context(prec=400)


def _required(_: _Judge, said: Json, value: Json) -> _Faults:
    for name in said if is_object(value) else ():
        if name not in value:
            yield ValidationError("is missing", path=[name])


def _dependent_required(_: _Judge, said: Json, value: Json) -> _Faults:
    for name in said if is_object(value) else ():
        for needed in said[name] if name in value else ():
            if needed not in value:
                yield ValidationError(f"is missing, and needed beside {_shown(name)}", path=[needed])


def _additional(judge: _Judge, said: Json, value: Json) -> _Faults:
    declared: JsonObject = judge.schema.get("properties", {})
    for name in value if is_object(value) else ():
        if name not in declared:
            _effort.get().spend(1)
            yield from judge.descend(value[name], said, path=name)


def _property_names(judge: _Judge, said: Json, value: Json) -> _Faults:
    for name in value if is_object(value) else ():
        _effort.get().spend(1)
        if not _is_valid(judge, name, said):
            yield ValidationError("has a name that is not allowed", path=[name])


def _items(judge: _Judge, said: Json, value: Json) -> _Faults:
    for index in range(len(judge.schema.get("prefixItems", ())), len(value)) if is_array(value) else ():
        _effort.get().spend(1)
        yield from judge.descend(value[index], said, path=index)


def _contains(judge: _Judge, said: Json, value: Json) -> _Faults:
    least, most = judge.schema.get("minContains", 1), judge.schema.get("maxContains")
    if not is_array(value) or (not least and most is None):
        return
    found = 0
    for item in value:
        _effort.get().spend(1)
        found += _is_valid(judge, item, said)
    if found < least:
        yield ValidationError("has too few entries of the kind that it must have")
    elif most is not None and found > most and _effort.get().is_exact:
        yield ValidationError("has too many entries of one kind")


def _any_of(judge: _Judge, said: Json, value: Json) -> _Faults:
    faults: list[ValidationError] = []
    for branch in said:
        fault = next(judge.descend(value, branch), None)
        if fault is None:
            return
        faults.append(fault)
    yield _fault_of_branches(faults)


def _one_of(judge: _Judge, said: Json, value: Json) -> _Faults:
    faults = [next(judge.descend(value, branch), None) for branch in said]
    failed = [fault for fault in faults if fault is not None]
    if len(failed) == len(faults):
        yield _fault_of_branches(failed)
    elif len(failed) < len(faults) - 1 and _effort.get().is_exact:
        yield ValidationError("must fit only one of its alternatives")


def _fault_of_branches(faults: list[ValidationError]) -> ValidationError:
    """Return the fault in the branch that was meant, as far as one came further than all others."""
    if all(fault.validator == "type" and not fault.path for fault in faults):
        said: list[Json] = [fault.validator_value for fault in faults]
        words = [word for entry in said for word in (entry if is_array(entry) else [entry])]
        return _fault_of_type(dict.fromkeys(words))
    # Another type, or another kind below, says that the branch was not meant.
    ranks = [
        (len(fault.path), fault.validator not in (("const", "enum") if fault.path else ("type",))) for fault in faults
    ]
    meant = [fault for fault, rank in zip(faults, ranks, strict=True) if rank == max(ranks)]
    return meant[0] if len(meant) == 1 else ValidationError("fits none of its alternatives")


def _not(judge: _Judge, said: Json, value: Json) -> _Faults:
    if _effort.get().is_exact and _is_valid(judge, value, said):
        yield ValidationError("has a form that is not allowed")


def _if(judge: _Judge, said: Json, value: Json) -> _Faults:
    if _effort.get().is_exact and ("then" in judge.schema or "else" in judge.schema):
        then = judge.schema.get("then" if _is_valid(judge, value, said) else "else", True)
        yield from judge.descend(value, then)


_KEYWORDS: Mapping[str, _Keyword] = {
    **{key: _of_library(key) for key in ("$ref", "allOf", "prefixItems", "properties", "dependentSchemas")},
    "type": _type,
    "enum": _enum,
    "const": lambda judge, said, value: _enum(judge, [said], value),
    "uniqueItems": _unique,
    "minimum": _bound("number", lambda value, said: value < said, "must be at least {}"),
    "maximum": _bound("number", lambda value, said: value > said, "must be at most {}"),
    "exclusiveMinimum": _bound("number", lambda value, said: value <= said, "must be more than {}"),
    "exclusiveMaximum": _bound("number", lambda value, said: value >= said, "must be less than {}"),
    "multipleOf": _bound("number", _is_no_multiple, "must be a multiple of {}"),
    "minLength": _bound("string", lambda value, said: len(value) < said, "must have {} or more characters"),
    "maxLength": _bound("string", lambda value, said: len(value) > said, "must have {} or fewer characters"),
    "minItems": _bound("array", lambda value, said: len(value) < said, "must have {} or more entries"),
    "maxItems": _bound("array", lambda value, said: len(value) > said, "must have {} or fewer entries"),
    "minProperties": _bound("object", lambda value, said: len(value) < said, "must have {} or more properties"),
    "maxProperties": _bound("object", lambda value, said: len(value) > said, "must have {} or fewer properties"),
    "required": _required,
    "dependentRequired": _dependent_required,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "items": _items,
    "contains": _contains,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
}
_WORDS = _KEYWORDS.keys() | {"$defs", "definitions", "then", "else", "minContains", "maxContains"}
_judge = cast(
    "Callable[..., _Judge]",
    create(
        Draft202012Validator.META_SCHEMA,
        {key: cast("Any", _counted(key, keyword)) for key, keyword in _KEYWORDS.items()},
        type_checker=Draft202012Validator.TYPE_CHECKER,
    ),
)


def _place(path: list[str | int]) -> str:
    """Write where something is: names and numbers from the outside in, with a dot between them."""
    shown = [_shown(step) if isinstance(step, str) else str(step) for step in path[:_PLACES]]
    return ".".join(shown if len(path) <= _PLACES else [*shown, "…"])


def _shown(name: str) -> str:
    return shown_name(name, _NAME_CHARACTERS) or "(unnamed)"
