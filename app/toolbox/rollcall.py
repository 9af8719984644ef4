"""Asks all servers of a run side by side, and knows when there is enough to begin with. Knows no names and no calls.

A server that takes long does not hold up the others: after a while the run begins with those that have answered, and
the late one joins when it has.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio

from app.domain.spec import ServerSpec
from app.toolbox.offers import Offer

_log = logging.getLogger(__name__)


class RollCall:
    """The servers of one run, being asked. `tell` is called with each answer as it comes."""

    def __init__(
        self,
        servers: Sequence[ServerSpec],
        ask: Callable[[ServerSpec], Awaitable[Offer]],
        tell: Callable[[Offer], None],
    ) -> None:
        self._servers = servers
        self._ask_server = ask
        self._tell = tell
        self._answers: dict[int, Offer] = {}
        self._news = anyio.Event()
        self._scope = anyio.CancelScope()
        self._is_dismissed = False

    @property
    def answers(self) -> list[Offer]:
        """What has come so far, in the servers' order."""
        return [self._answers[position] for position in sorted(self._answers)]

    @property
    def missing(self) -> list[ServerSpec]:
        """The servers that have not answered."""
        return [server for position, server in enumerate(self._servers) if position not in self._answers]

    async def run(self) -> None:
        """Ask them all; ends with the last answer, or when it is dismissed. Raises nothing but cancellation."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                for position, server in enumerate(self._servers):
                    tasks.start_soon(self._ask, position, server)

    def dismiss(self, *, goes_on: bool) -> None:
        """Nobody waits for answers any more; where it goes on, servers are still asked, for whoever asks next."""
        self._is_dismissed = True
        if not goes_on:
            self._scope.cancel()

    async def enough(self, wait_seconds: float) -> None:
        """Wait for all; after `wait_seconds` only for those that are required, or for the first with tools."""
        with anyio.move_on_after(wait_seconds):
            while self.missing:
                await self._news.wait()
        while self.missing and not self._suffices():
            await self._news.wait()

    def _suffices(self) -> bool:
        return any(offer.tools for offer in self._answers.values()) and not any(s.required for s in self.missing)

    async def _ask(self, position: int, server: ServerSpec) -> None:
        try:
            offer = await self._ask_server(server)
        except Exception:  # noqa: BLE001 - one server must not take the others with it; logged with its traceback
            _log.exception("A server could not be asked for a reason that nobody thought of.")
            offer = Offer(server, "unavailable", code="server_unreachable", message="The server cannot be reached.")
        if self._is_dismissed:
            return  # it had its answer in the moment in which it was dismissed
        self._answers[position] = offer
        self._tell(offer)
        news, self._news = self._news, anyio.Event()
        news.set()
