import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.toolbox.durations import Durations, remaining_seconds

KEY = b"server"


def learned(*seconds: float) -> float | None:
    durations = Durations()
    for taken in seconds:
        durations.note(KEY, "tool", taken)
    return durations.expected(KEY, "tool")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((), None),
        ((3.0,), 3.0),
        ((60.0, 1.0), 1.0),
        ((1.0, 2.0, 3.0), 2.0),
        ((1.0, 2.0, 1000.0), 2.0),
        ((0.0,), 0.0),
        ((math.nan, math.inf, -1.0), None),
        ((2.0, math.nan, math.inf, -1.0), 2.0),
    ],
)
def test_expected_is_what_a_call_in_the_middle_took(seconds: tuple[float, ...], expected: float | None) -> None:
    assert learned(*seconds) == expected


def test_a_third_of_freaks_changes_nothing() -> None:
    assert learned(*[1.0, 600.0, 1.0] * 5) == 1.0
    assert learned(*[1.0, 0.001, 1.0] * 5) == 1.0


@pytest.mark.parametrize(("before", "after"), [(1.0, 30.0), (30.0, 1.0)])
def test_eight_calls_are_enough_after_a_lasting_change(before: float, after: float) -> None:
    assert learned(*[before] * 100, *[after] * 7) == before
    assert learned(*[before] * 100, *[after] * 8) == after


def test_tools_and_keys_do_not_learn_from_each_other() -> None:
    durations = Durations()
    durations.note(KEY, "tool", 1.0)
    assert durations.expected(KEY, "other") is None
    assert durations.expected(b"other", "tool") is None


def test_tools_that_were_used_last_are_remembered() -> None:
    durations = Durations()
    for number in range(4096):
        durations.note(KEY, f"tool_{number}", number)
    assert durations.expected(KEY, "tool_0") == 0
    durations.note(KEY, "one_more", 5.0)
    assert durations.expected(KEY, "tool_0") == 0
    assert durations.expected(KEY, "tool_1") is None
    assert durations.expected(KEY, "one_more") == 5.0


@pytest.mark.parametrize(
    ("elapsed", "fraction", "expected", "left"),
    [
        (0.0, None, 2.0, 2.0),
        (1.5, None, 2.0, 0.5),
        (2.0, None, 2.0, None),
        (9.0, None, 2.0, None),
        (1.0, None, None, None),
        (1.0, 0.25, None, 3.0),
        (1.0, 1.0, None, 0.0),
        (9.0, 1.0, 2.0, 0.0),
        (0.0, 0.25, 2.0, 2.0),
        (0.4, 0.25, None, None),
        (0.4, 1.0, None, 0.0),
        (0.0, 0.25, None, None),
        (1.0, 0.001, None, None),
        # What is no fraction, or no time, counts as unknown.
        (1.0, 0.0, 3.0, 2.0),
        (1.0, -0.5, 3.0, 2.0),
        (1.0, 1.5, 3.0, 2.0),
        (1.0, math.nan, 3.0, 2.0),
        (1.0, 0.5, math.nan, 1.0),
        (1.0, 0.5, 0.0, 1.0),
        (1.0, 0.5, -3.0, 1.0),
        (1.0, 0.5, math.inf, 1.0),
        (math.nan, 0.5, 3.0, None),
        (-1.0, 0.5, 3.0, None),
        (math.inf, 0.5, 3.0, None),
        (80_000.0, 0.1, None, None),
    ],
)
def test_what_is_left(elapsed: float, fraction: float | None, expected: float | None, left: float | None) -> None:
    assert remaining_seconds(elapsed=elapsed, fraction=fraction, expected=expected) == pytest.approx(left)


@pytest.mark.parametrize("elapsed", [0.001, 0.1, 0.5, 1.0, 1.9])
def test_an_early_sliver_does_not_outweigh_what_was_learned(elapsed: float) -> None:
    left = remaining_seconds(elapsed=elapsed, fraction=0.001, expected=2.0)
    assert left == pytest.approx(2.0 - elapsed, abs=0.1)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_first_step_that_is_told_at_once_does_not_outweigh_what_was_learned(fraction: float) -> None:
    left = remaining_seconds(elapsed=0.01, fraction=fraction, expected=10.0)
    assert left == pytest.approx(10.0, abs=1.5)


def linear(share: float) -> float:
    return share


def slow_start(share: float) -> float:
    """Half of the time for the first tenth."""
    return share / 5 if share < 0.5 else 0.1 + (share - 0.5) * 1.8


def fast_start(share: float) -> float:
    """Half of all in the first tenth of the time."""
    return share * 5 if share < 0.1 else 0.5 + (share - 0.1) / 1.8


@pytest.mark.parametrize(
    ("pace", "learned", "from_tenth", "from_half"),
    [
        (linear, 1.0, 0.001, 0.001),
        (linear, None, 0.001, 0.001),
        (linear, 3.0, 1.5, 0.15),
        (linear, 1 / 3, 0.6, 0.09),
        (slow_start, 1.0, 0.65, 0.65),
        (slow_start, 3.0, 2.5, 2.5),
        (slow_start, None, 4.01, 4.01),
        (fast_start, 1.0, 0.76, 0.31),
        (fast_start, 3.0, 0.64, 0.29),
    ],
)
def test_error_is_bounded_in_shares_of_the_whole_call(
    pace: Callable[[float], float], learned: float | None, *, from_tenth: float, from_half: float
) -> None:
    errors: dict[float, float] = {}
    for total in (6.0, 60.0, 600.0):
        for percent in range(10, 100):
            share = percent / 100
            expected = None if learned is None else learned * total
            left = remaining_seconds(elapsed=total * share, fraction=pace(share), expected=expected)
            assert left is not None
            errors[share] = abs(left - total * (1 - share)) / total
        assert max(errors.values()) <= from_tenth
        assert max(error for share, error in errors.items() if share >= 0.5) <= from_half


def test_what_was_learned_halves_the_error_of_a_slow_start_and_more() -> None:
    errors = [
        abs((remaining_seconds(elapsed=4.0, fraction=slow_start(0.4), expected=expected) or math.inf) - 6.0)
        for expected in (10.0, None)
    ]
    assert errors[0] < errors[1] / 2


ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(elapsed=ANY, fraction=st.none() | ANY | st.floats(0, 1), expected=st.none() | ANY)
def test_it_is_never_negative_and_always_finite(elapsed: float, fraction: float | None, expected: float | None) -> None:
    left = remaining_seconds(elapsed=elapsed, fraction=fraction, expected=expected)
    assert left is None or 0 <= left <= 86_400


@given(st.floats(0.01, 1000), st.floats(0.02, 0.99), st.floats(0.01, 1000))
def test_it_lies_between_the_projection_and_what_was_learned(elapsed: float, fraction: float, expected: float) -> None:
    left = remaining_seconds(elapsed=elapsed, fraction=fraction, expected=expected)
    bounds = sorted([elapsed / fraction - elapsed, max(expected - elapsed, 0.0)])
    assert left is not None
    assert bounds[0] - 1e-6 <= left <= bounds[1] * (1 + 1e-9) + 1e-6
