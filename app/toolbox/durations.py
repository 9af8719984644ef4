"""What earlier calls of a tool took, and how much of a running one is left. Knows keys, names and seconds only."""

import math
from collections import deque
from statistics import median_low

from cachetools import LRUCache

_REMEMBERED = 15
"""Calls of a tool. The median follows a lasting change after half of them, and one in three may be freaks."""
_TOOLS = 4096
_LEAST_FRACTION = 0.02
_LEAST_SECONDS = 0.5
"""Below them progress alone says nothing: some tell their first step when they begin it, others are slow to begin."""
_HASTE = 3
"""How soon what is done says more than earlier calls did: at a fraction of 0.2 it is about even."""
_EARLY = 0.05
"""Up to this share of the expected time, progress counts for as much less as it is early."""
_MOST_SECONDS = 86_400.0


class Durations:
    """Seconds that the last successful calls of each tool took; the tools that were used last are remembered."""

    def __init__(self) -> None:
        self._taken: LRUCache[tuple[bytes, str], deque[float]] = LRUCache(_TOOLS)

    def note(self, key: bytes, tool: str, seconds: float) -> None:
        """Learn from a call that succeeded. `key` stands for the server, and for whoever learns from each other."""
        if not math.isfinite(seconds) or seconds < 0:
            return
        taken = self._taken.get((key, tool))
        if taken is None:
            taken = self._taken[key, tool] = deque(maxlen=_REMEMBERED)
        taken.append(seconds)

    def expected(self, key: bytes, tool: str) -> float | None:
        """Return how many seconds a call takes, from one earlier call on; None where there was none.

        It is what one of them really took: of two the shorter, since first calls are slow.
        """
        taken = self._taken.get((key, tool))
        return median_low(taken) if taken else None


def remaining_seconds(*, elapsed: float, fraction: float | None, expected: float | None) -> float | None:
    """Return how many seconds of a call are left, never negative and always finite; None where that cannot be told.

    `fraction` is how much of it is done, above 0 and up to 1; None where that is unknown. `expected` is what the whole
    call was expected to take. Others than such numbers count as unknown.
    """
    if not math.isfinite(elapsed) or elapsed < 0:
        return None
    if expected is not None and not (math.isfinite(expected) and expected > 0):
        expected = None
    if fraction is None or not 0 < fraction <= 1:
        left = 0.0 if expected is None else expected - elapsed
        return _told(left) if left > 0 else None
    if fraction == 1:
        return 0.0
    if elapsed == 0:
        return None if expected is None else _told(expected)
    if expected is None:
        is_early = fraction < _LEAST_FRACTION or elapsed < _LEAST_SECONDS
        return None if is_early else _told(elapsed / fraction - elapsed)
    # Both are wrong by factors, so they are blended as such. A call that takes longer than was expected proves that
    # wrong; what is left of it then is that it is not over.
    trust = (1 - (1 - fraction) ** _HASTE) * min(1.0, elapsed / expected / _EARLY)
    total = trust * (math.log(elapsed) - math.log(fraction)) + (1 - trust) * math.log(max(expected, elapsed))
    return _told(max(0.0, math.exp(min(total, 700.0)) - elapsed))


def _told(seconds: float) -> float | None:
    """Say nothing rather than more than a day: no call is waited for that long."""
    return seconds if seconds <= _MOST_SECONDS else None
