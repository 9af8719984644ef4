"""How long a call is waited for: so much silence, and so much in all. Knows no connection.

Time in which a person is asked does not count: the clocks stand still meanwhile. A call may take several attempts and
rounds; each waits in a scope of its own, all by the same clocks.
"""

import asyncio
import math

import anyio


class Patience:
    """The clocks of one call, running from now on."""

    def __init__(self, *, silence_seconds: float, total_seconds: float) -> None:
        self.silence_seconds = silence_seconds
        self.total_seconds = total_seconds
        # Progress asks for the time in a callback of the loop's, where anyio need not know which loop that is.
        self._now = asyncio.get_running_loop().time
        self._begun = self._heard = self._now()
        self._pauses = 0
        self._paused_at = 0.0
        self._paused_seconds = 0.0
        self._scope: anyio.CancelScope | None = None

    @property
    def elapsed_seconds(self) -> float:
        """How long the call has been under way, without the time in which a person was asked."""
        now = self._paused_at if self._pauses else self._now()
        return now - self._begun - self._paused_seconds

    @property
    def is_used_up(self) -> bool:
        """Whether the time in all is over, and not only that of silence."""
        return self.elapsed_seconds >= self.total_seconds

    def attempt(self) -> anyio.CancelScope:
        """Begin to wait for an answer: in the scope that this returns, which ends when patience does."""
        self._scope = anyio.CancelScope()
        self.hear()
        return self._scope

    def hear(self) -> None:
        """There was a sign of life."""
        self._heard = self._now()
        self._set_deadline()

    def pause(self) -> None:
        """Stop the clocks. As often as this is called, `resume` must be, before they run again."""
        if not self._pauses:
            self._paused_at = self._now()
        self._pauses += 1
        self._set_deadline()

    def resume(self) -> None:
        """Let the clocks run; the silence begins anew."""
        self._pauses -= 1
        if not self._pauses:
            self._paused_seconds += self._now() - self._paused_at
        self.hear()

    def _set_deadline(self) -> None:
        if self._scope is not None:
            latest = self._begun + self._paused_seconds + self.total_seconds
            self._scope.deadline = math.inf if self._pauses else min(self._heard + self.silence_seconds, latest)
