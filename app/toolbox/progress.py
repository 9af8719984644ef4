"""Progress of one call on its way to the caller: never backwards, latest wins, at most so many a second.

Each tells how much time is left, where what was learned of the tool or the progress itself says so.
"""

import asyncio
import math
from collections.abc import Callable

from app.domain.messages import Progress
from app.toolbox.cleaning import clean_text
from app.toolbox.durations import remaining_seconds

INTERVAL_SECONDS = 0.1
"""10 a second; 20,000 notifications would cost 2.4 s of CPU downstream."""
_MESSAGE_CHARACTERS = 1000
_READ_CHARACTERS = 4 * _MESSAGE_CHARACTERS


class ProgressGate:
    """Passes progress on. What comes too fast is held back until its turn, and only the latest is kept."""

    def __init__(
        self,
        pass_on: Callable[[Progress], None],
        *,
        expected: float | None = None,
        elapsed: Callable[[], float] | None = None,
    ) -> None:
        """Begin with nothing heard.

        `expected` is how many seconds the call was expected to take. `elapsed` tells how many it has taken, without
        those in which it waited for a person; without it no time is told.
        """
        self._pass_on = pass_on
        self._expected = expected
        self._elapsed = elapsed
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        """As the server said it."""
        self._is_news = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def offer(self, progress: float, total: float | None, message: str | None) -> None:
        """Take what the server said; nonsense, and what says nothing new, is dropped."""
        before = self._latest
        if self._is_closed or not _is_finite(progress) or (before is not None and progress < before.progress):
            return
        # A total that is none yet, or is passed already, would make a share of nothing, or more than all.
        total = total if total is not None and _is_finite(total) and 0 < total >= progress else None
        latest = Progress(progress, total, message)
        if latest == before:
            return
        self._latest, self._is_news = latest, True
        if self._timer is None:
            self._deliver()

    def close(self) -> None:
        """Pass on what is held back, and nothing from now on."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._flush()

    def _deliver(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_SECONDS, self._deliver) if self._flush() else None

    def _flush(self) -> bool:
        latest, is_news, self._is_news = self._latest, self._is_news, False
        if latest is None or not is_news:
            return False
        shown = None if latest.message is None else clean_text(latest.message[:_READ_CHARACTERS])[:_MESSAGE_CHARACTERS]
        self._pass_on(latest._replace(message=shown, eta=self._eta(latest)))
        return True

    def _eta(self, latest: Progress) -> float | None:
        if self._elapsed is None:
            return None
        fraction = None
        if latest.total is not None and 0 < latest.progress <= latest.total:
            # A sliver of a total can be too small for a float.
            fraction = latest.progress / latest.total or None
        return remaining_seconds(elapsed=self._elapsed(), fraction=fraction, expected=self._expected)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float can hold
        return False
