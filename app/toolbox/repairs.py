"""What was changed in a tool's schema before models get to see it, told to whoever wrote the server. Pure.

Compares a schema as it was written with the one that is used; how the one becomes the other is the business of
`schema.py`.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.toolbox.cleaning import shown_name

_MOST_LINES = 20
_VISITS = 10_000
"""Places compared; a schema that is offered mostly has fewer."""
_DEPTH = 80
_NAME_CHARACTERS = 64
_MOST_NAMES = 12

_Path: TypeAlias = tuple[str, ...]

_DATA = frozenset({"enum", "const", "default", "examples", "required", "type"})
"""Keywords whose value is compared as a whole."""
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired"})
"""Keywords that hold names of the server's own, and no keywords."""
_OF_DOCUMENTS = frozenset(
    {"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment"}
)
_FILLED_IN = frozenset({"properties", "items"})
"""Keywords that are added empty, since some providers want them."""


class _Repair(NamedTuple):
    line: str
    is_formal: bool = False
    """The same values are allowed with it and without."""


def repairs_between(written: JsonObject, repaired: JsonObject) -> list[str]:
    """Tell where a schema was changed: a line for each place, at most 20, then how many more there are.

    As in `properties.when: type added`, `properties.a.enum: changed`, `$schema: removed`. Mere formalities come last.
    Both are such as `schema_refused` lets pass, so they are no deeper than it allows.
    """
    repairs = list(_Comparison().objects((), written, repaired, has_names=False))
    lines = [repair.line for is_formal in (False, True) for repair in repairs if repair.is_formal is is_formal]
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"and {more} more"] if more > 0 else lines


class _Comparison:
    """One walk through both schemas, with the places that it may still visit."""

    def __init__(self) -> None:
        self._left = _VISITS

    def objects(self, path: _Path, written: JsonObject, used: JsonObject, *, has_names: bool) -> Iterator[_Repair]:
        """Compare two schemas, or two maps of schemas by name."""
        for key, value in written.items():
            place = (*path, key)
            if key not in used:
                is_remark = not has_names and (key in _OF_DOCUMENTS or (key == "default" and value is None))
                yield _Repair(f"{_told(place)}: removed", is_remark)
            elif key in _DATA and not has_names:
                yield from _changed(place, value, used[key])
            else:
                yield from self._values(place, value, used[key], has_names=key in _MAPS and not has_names)
        for key, value in used.items():
            if key not in written:
                is_filled_in = not has_names and key in _FILLED_IN and value == {}
                told = (
                    f"{_told((*path, key))}: added"
                    if has_names or not path
                    else f"{_told(path)}: {_cleaned(key)} added"
                )
                yield _Repair(told, is_filled_in)

    def _values(self, path: _Path, written: Json, used: Json, *, has_names: bool) -> Iterator[_Repair]:
        self._left -= 1
        if self._left < 0 or len(path) > _DEPTH:
            return
        if is_object(written) and is_object(used):
            yield from self.objects(path, written, used, has_names=has_names)
        elif is_array(written) and is_array(used) and len(written) == len(used):
            for index, (before, after) in enumerate(zip(written, used, strict=True)):
                yield from self._values((*path, str(index)), before, after, has_names=False)
        else:
            yield from _changed(path, written, used)


def _changed(path: _Path, written: Json, used: Json) -> Iterator[_Repair]:
    if written != used:
        yield _Repair(f"{_told(path)}: changed", is_formal=written is True and used == {})


def _told(path: _Path) -> str:
    names = [_cleaned(name) for name in path]
    return ".".join(names if len(names) <= _MOST_NAMES else [*names[: _MOST_NAMES - 1], "…", names[-1]])


def _cleaned(name: str) -> str:
    return shown_name(name, _NAME_CHARACTERS) or "(unnamed)"
