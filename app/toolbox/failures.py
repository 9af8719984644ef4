"""How often somebody may name servers that are not there: enough for mistakes, too little to search a network with.

An attempt counts while it is under way and, where it fails, for a while after. Knows keys and time, nothing of servers.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from cachetools import LRUCache

_REMEMBERED = 4096
_MOST_COUNTED = 256
"""Failures of one key that are kept; more than any budget has."""


@dataclass(slots=True)
class Attempt:
    """One try. It counts as a failure where it was not called off and ends without `succeed`."""

    has_succeeded: bool = False

    def succeed(self) -> None:
        self.has_succeeded = True


@dataclass(slots=True)
class _Count:
    failed_at: deque[float] = field(default_factory=lambda: deque[float](maxlen=_MOST_COUNTED))
    under_way: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)


class FailureBudget:
    """Of each key, so many failures in so many seconds. Attempts beyond that are not made."""

    def __init__(
        self, failures: int = 10, seconds: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._seconds = seconds
        self._clock = clock
        self._counts: LRUCache[Hashable, _Count] = LRUCache(_REMEMBERED)

    @asynccontextmanager
    async def attempt(self, key: Hashable) -> AsyncGenerator[Attempt | None]:
        """Try once, as soon as attempts of the same key that are under way leave room; None where failures take it all.

        One that is called off has failed: it has looked where it wanted to all the same.
        """
        count = self._counts.setdefault(key, _Count())
        while self._recent_failures(count) + count.under_way >= self._failures:
            if not count.under_way:
                yield None
                return
            await count.changed.wait()
        count.under_way += 1
        attempt = Attempt()
        try:
            yield attempt
        finally:
            if not attempt.has_succeeded:
                count.failed_at.append(self._clock())
            count.under_way -= 1
            count.changed.set()
            count.changed = anyio.Event()

    def fail(self, key: Hashable) -> None:
        """Count a failure that no attempt was made for."""
        self._counts.setdefault(key, _Count()).failed_at.append(self._clock())

    def _recent_failures(self, count: _Count) -> int:
        while count.failed_at and self._clock() - count.failed_at[0] >= self._seconds:
            count.failed_at.popleft()
        return len(count.failed_at)
