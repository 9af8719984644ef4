"""Asks servers again whose tools have changed during a run: bursts once, and in time for the next round."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import anyio.abc

from app.toolbox.berth import Berth
from app.toolbox.frames import Budget

_BURST_SECONDS = 0.05
"""Changes that come within this time are one."""
_QUICK, _QUICK_A_SECOND = 20, 0.2
_SLOW_SECONDS = 1.0
"""After so many renewals in a row a server is asked no more often than this, and no round waits for it any more: it may
change its list without end."""


@dataclass(eq=False, slots=True)
class _Renewal:
    """One server being asked again."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    has_changed: bool = True
    """Since it was asked last."""
    is_asking: bool = False
    is_slow: bool = False
    answers: int = 0


class Renewals:
    """The lists of one run that are being asked for again."""

    def __init__(self, tasks: anyio.abc.TaskGroup, renew: Callable[[Berth], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._renew = renew
        self._under_way: dict[Berth, _Renewal] = {}
        self._budgets: dict[Berth, Budget] = {}
        self.has_ended = False
        """Nobody wants to know any more."""
        self._news = anyio.Event()

    def begin(self, berth: Berth) -> None:
        """Ask a server again, soon; where it is being asked already, once more after that."""
        renewal = self._under_way.get(berth)
        if renewal is not None:
            renewal.has_changed = True
        elif not self.has_ended:
            renewal = self._under_way[berth] = _Renewal()
            self._tasks.start_soon(self._run, berth, renewal)

    async def done(self, seconds: float) -> None:
        """Wait, for so long at most, until what has changed before now is asked for."""
        due = {
            renewal: renewal.answers + 1 + (renewal.is_asking and renewal.has_changed)
            for renewal in self._under_way.values()
            if not renewal.is_slow
        }
        with anyio.move_on_after(seconds):
            while any(renewal.answers < due.get(renewal, 0) for renewal in self._under_way.values()):
                await self._news.wait()

    def end(self) -> None:
        """Ask no more."""
        self.has_ended = True
        for renewal in self._under_way.values():
            renewal.scope.cancel()

    async def _run(self, berth: Berth, renewal: _Renewal) -> None:
        try:
            with renewal.scope:
                while renewal.has_changed and not self.has_ended:
                    renewal.is_slow = not self._budget(berth).takes(1)
                    await anyio.sleep(_SLOW_SECONDS if renewal.is_slow else _BURST_SECONDS)
                    renewal.has_changed, renewal.is_asking = False, True
                    await self._renew(berth)
                    renewal.is_asking = False
                    renewal.answers += 1
                    self._tell()
        finally:
            del self._under_way[berth]
            self._tell()

    def _budget(self, berth: Berth) -> Budget:
        return self._budgets.setdefault(berth, Budget(_QUICK, _QUICK_A_SECOND, anyio.current_time))

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
