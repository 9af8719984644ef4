"""How long a run may take: a clock that stands still while a person is asked, and what it ends."""

import math

import anyio


class Deadline:
    """So many seconds from now on; `scope` is cancelled when they are over."""

    def __init__(self, seconds: float) -> None:
        self._ends = anyio.current_time() + seconds
        self._waits = 0
        self._left = 0.0
        self.scope = anyio.CancelScope(deadline=self._ends)

    def pause(self) -> None:
        """Stop the clock. As often as this is called, `resume` must be, before it runs again."""
        if not self._waits:
            self._left = self._ends - anyio.current_time()
            self.scope.deadline = math.inf
        self._waits += 1

    def resume(self) -> None:
        """Let the clock run, with what was left when it was stopped."""
        self._waits -= 1
        if not self._waits:
            self._ends = anyio.current_time() + self._left
            self.scope.deadline = self._ends
