"""Asks servers again whose tools have changed during a run: bursts once, and in time for the next round."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from app.toolbox.berth import Berth

_BURST_SECONDS = 0.05
"""Changes that come within this time are one."""
_QUICK = 20
_SLOW_SECONDS = 1.0
"""After so many renewals in a run a server is asked no more often than this: it may change its list without end."""


class Renewals:
    """The lists of one run that are being asked for again."""

    def __init__(self, tasks: anyio.abc.TaskGroup, renew: Callable[[Berth], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._renew = renew
        self._changed: dict[Berth, bool] = {}
        """Those that are being asked, and whether they have changed since they were."""
        self._counts: dict[Berth, int] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self.has_ended = False
        """Nobody wants to know any more."""
        self._news = anyio.Event()

    def begin(self, berth: Berth) -> None:
        """Ask a server again, soon; where it is being asked already, once more after that."""
        is_under_way = berth in self._changed
        self._changed[berth] = True
        if not is_under_way:
            self._tasks.start_soon(self._run, berth)

    async def done(self, seconds: float) -> None:
        """Wait until no server is being asked, for so long at most."""
        with anyio.move_on_after(seconds):
            while self._changed:
                await self._news.wait()

    def end(self) -> None:
        """Ask no more."""
        self.has_ended = True
        for scope in self._scopes:
            scope.cancel()

    async def _run(self, berth: Berth) -> None:
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                while self._changed[berth] and not self.has_ended:
                    count = self._counts[berth] = self._counts.get(berth, 0) + 1
                    await anyio.sleep(_BURST_SECONDS if count <= _QUICK else _SLOW_SECONDS)
                    self._changed[berth] = False
                    await self._renew(berth)
        finally:
            self._scopes.discard(scope)
            del self._changed[berth]
            news, self._news = self._news, anyio.Event()
            news.set()
