"""Progress of one call on its way to the caller: never backwards, latest wins, at most so many a second."""

import asyncio
import math
from collections.abc import Callable

from app.domain.messages import Progress
from app.toolbox.results import clean_text

INTERVAL_SECONDS = 0.1
"""10 a second; 20,000 notifications would cost 2.4 s of CPU downstream."""
_MESSAGE_CHARACTERS = 1000


class ProgressGate:
    """Passes progress on. What comes too fast is held back until its turn, and only the latest is kept."""

    def __init__(self, pass_on: Callable[[Progress], None]) -> None:
        self._pass_on = pass_on
        self._loop = asyncio.get_running_loop()
        self._highest = -math.inf
        self._message: str | None = None
        self._held: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def offer(self, progress: float, total: float | None, message: str | None) -> None:
        """Take what the server said; nonsense, and what says nothing new, is dropped."""
        stands_still = progress == self._highest and message == self._message
        if self._is_closed or not math.isfinite(progress) or progress < self._highest or stands_still:
            return
        self._highest, self._message = progress, message
        shown = None if message is None else clean_text(message)[0][:_MESSAGE_CHARACTERS]
        self._held = Progress(progress, total if total is not None and math.isfinite(total) else None, shown)
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
        held, self._held = self._held, None
        if held is not None:
            self._pass_on(held)
        return held is not None
