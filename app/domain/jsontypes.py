"""JSON as Python sees it, and the looks that tell its shapes apart. Knows nothing of what the JSON means."""

from typing import Any, TypeAlias, TypeGuard

Json: TypeAlias = Any
"""Any JSON value: None, bool, int, float, str, list or dict. Nothing is known of it until it was looked at."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object. Treated as frozen once it was handed on: change a copy."""


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Tell whether a JSON value is an object; JSON has no other keys than strings."""
    return isinstance(value, dict)


def is_deeper(value: Json, levels: int) -> bool:
    """Tell whether a JSON value nests deeper than so many levels; looks no deeper than that."""
    if is_object(value):
        return levels <= 0 or any(is_deeper(item, levels - 1) for item in value.values())
    if is_array(value):
        return levels <= 0 or any(is_deeper(item, levels - 1) for item in value)
    return False


def is_small(value: Json, *, characters: int = 16_384, parts: int = 200) -> bool:
    """Tell whether a value has little text and few parts in all; looks at no more of it than that."""
    left = [value]
    while left:
        item = left.pop()
        parts -= 1
        if is_object(item):
            left.extend(item.values())
            parts -= len(item)
        elif is_array(item):
            left.extend(item)
            parts -= len(item)
        elif isinstance(item, str):
            characters -= len(item)
        if parts < 0 or characters < 0:
            return False
    return True


def is_array(value: object) -> TypeGuard[list[Json]]:
    """Tell whether a JSON value is an array."""
    return isinstance(value, list)
