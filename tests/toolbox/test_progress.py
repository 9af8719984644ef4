import math
from typing import Any

import pytest

from app.domain.messages import Progress
from app.toolbox.progress import ProgressGate
from tests.fakes.mcp_servers import wait_until

pytestmark = pytest.mark.anyio

BEGUN = (0, None, None)


def told(*offers: tuple[Any, Any, Any], expected: float | None = None, elapsed: float | None = None) -> list[Progress]:
    """Say things to a gate, each of which is passed on if it is news."""
    seen: list[Progress] = []
    for count in range(1, len(offers) + 1):
        before: list[Progress] = []
        clock = None if elapsed is None else (lambda: elapsed)
        gate = ProgressGate(before.append, expected=expected, elapsed=clock)
        for offer in offers[:count]:
            gate.offer(*offer)
        gate.close()
        if not seen or before[-1] != seen[-1]:
            seen += before[-1:]
    return seen


@pytest.mark.parametrize(
    ("offers", "seen"),
    [
        ([(1, 4, "one")], [Progress(1, 4, "one")]),
        ([(1, None, None), (2, None, None)], [Progress(1), Progress(2)]),
        ([(2, None, None), (1, None, None)], [Progress(2)]),
        ([(2, None, None), (1, 4, "late"), (2, 4, "now")], [Progress(2), Progress(2, 4, "now")]),
        ([(1, None, "a"), (1, None, "a")], [Progress(1, None, "a")]),
        ([(1, None, "a"), (1, None, "b")], [Progress(1, None, "a"), Progress(1, None, "b")]),
        ([(1, None, None), (1, 4, None)], [Progress(1), Progress(1, 4)]),
        ([(1, 4, None), (2, 8, None), (3, None, None)], [Progress(1, 4), Progress(2, 8), Progress(3)]),
        ([(5, 4, None)], [Progress(5)]),
        ([(0, 0, None)], [Progress(0)]),
        ([(-2, -1, None)], [Progress(-2)]),
        ([(-2, 4, None), (0, 4, None)], [Progress(-2, 4), Progress(0, 4)]),
        ([(1, math.nan, None)], [Progress(1)]),
        ([(1, math.inf, None)], [Progress(1)]),
        ([(1, 10**400, None)], [Progress(1)]),
        ([(1e308, 1.7e308, None)], [Progress(1e308, 1.7e308)]),
        (
            [BEGUN, (math.nan, 4, "x"), (math.inf, 4, "x"), (10**400, None, None), (1, 2, None)],
            [Progress(0), Progress(1, 2)],
        ),
        ([(0, None, "\u202eon\u200be\x1b")], [Progress(0, None, "one")]),
        ([(0, None, "x" * 100_000)], [Progress(0, None, "x" * 1000)]),
    ],
    ids=str,
)
async def test_what_is_passed_on(offers: list[tuple[Any, Any, Any]], seen: list[Progress]) -> None:
    assert told(*offers) == seen


@pytest.mark.parametrize(
    ("offer", "expected", "elapsed", "eta"),
    [
        ((1, 4, None), None, 2.0, 6.0),
        ((4, 4, None), None, 2.0, 0.0),
        ((1, 4, None), None, None, None),
        ((1, None, None), None, 2.0, None),
        ((1, None, None), 5.0, 2.0, 3.0),
        ((1, None, None), 5.0, 7.0, None),
        ((0, 4, None), None, 2.0, None),
        ((0, 4, None), 5.0, 2.0, 3.0),
        ((5, 4, None), 5.0, 2.0, 3.0),
        ((1, 0, None), None, 2.0, None),
        ((-1, 4, None), 5.0, 2.0, 3.0),
        ((5e-324, 1e308, None), 5.0, 2.0, 3.0),
        ((1, 1000, None), 2.0, 0.1, 1.92),
        ((1, 1000, None), None, 0.1, None),
    ],
)
async def test_time_that_is_left_is_told_where_it_can_be(
    offer: tuple[Any, Any, Any], expected: float | None, elapsed: float | None, eta: float | None
) -> None:
    (seen,) = told(offer, expected=expected, elapsed=elapsed)
    assert seen.eta == (None if eta is None else pytest.approx(eta, rel=0.01))


async def test_time_in_which_a_person_was_asked_does_not_count() -> None:
    active = [1.0, 1.0, 2.0]
    seen: list[Progress] = []
    gate = ProgressGate(seen.append, elapsed=lambda: active.pop(0))
    for step in (1, 2, 3):
        gate.offer(step, 4, None)
        await wait_until(lambda step=step: seen[-1].progress == step)
    gate.close()
    assert [step.eta for step in seen] == pytest.approx([3.0, 1.0, 2 / 3])


async def test_first_is_passed_on_at_once_and_of_a_flood_the_latest() -> None:
    seen: list[Progress] = []
    gate = ProgressGate(seen.append)
    for step in range(10_000):
        gate.offer(step, None, None)
    assert [step.progress for step in seen] == [0]
    await wait_until(lambda: len(seen) > 1)
    assert seen[1].progress == 9999
    gate.close()
    assert len(seen) == 2


async def test_last_state_is_passed_on_at_the_end_and_nothing_after_it() -> None:
    seen: list[Progress] = []
    gate = ProgressGate(seen.append)
    for step in (1, 2, 3):
        gate.offer(step, None, None)
    gate.close()
    gate.offer(4, None, None)
    gate.close()
    assert [step.progress for step in seen] == [1, 3]
