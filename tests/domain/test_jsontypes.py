"""How large and how deep a value is, told without walking all of it."""

import pytest

from app.domain.jsontypes import Json, is_deeper, is_small

ROWS: list[tuple[Json, bool]] = [
    ({"content": [{"type": "text", "text": "x" * 16_000}]}, True),
    ({"content": [{"type": "text", "text": "x" * 17_000}]}, False),
    ({"content": [{"text": "x" * 9_000}, {"text": "x" * 9_000}]}, False),
    ([[] for _ in range(50)], True),
    ([[] for _ in range(300)], False),
    ({str(n): n for n in range(300)}, False),
    ([[[[]]] for _ in range(80)], False),
    (None, True),
    (7, True),
]


@pytest.mark.parametrize(("value", "expected"), ROWS)
def test_small_values_are_small(value: Json, expected: bool) -> None:
    assert is_small(value) is expected


@pytest.mark.parametrize(("levels", "expected"), [(1, True), (2, True), (3, False)])
def test_depth_counts_objects_and_arrays(levels: int, expected: bool) -> None:
    assert is_deeper({"a": [{"b": 1}, "[[[["]}, levels) is expected
