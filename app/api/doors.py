"""What the routes reach the rest of the service by; made by main, kept in the application's state."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Path, Request

from app.domain.errors import NotFound, ShuttingDown, TooManyRuns
from app.domain.limits import RequestLimits
from app.domain.ports import Catalogue, Servers
from app.ferry import Ferry
from app.journal.memory import MemoryJournal, RunLog


@dataclass(slots=True)
class Doors:
    """The open service. `is_draining` is the one thing that changes: from then on no run is taken."""

    ferry: Ferry
    journal: MemoryJournal
    catalogue: Catalogue
    servers: Servers
    limits: RequestLimits
    heartbeat_seconds: float
    is_draining: bool = False

    def admit_run(self) -> None:
        """Make sure that one more run may start.

        Raises:
            ShuttingDown: The process drains.
            TooManyRuns: As many as allowed are under way.
        """
        if self.is_draining:
            raise ShuttingDown("The service is shutting down and takes no new runs.")
        if self.journal.running >= self.limits.runs:
            raise TooManyRuns(f"{self.limits.runs} runs are under way, which is all that are allowed at once.")
        if self.journal.is_full:
            raise TooManyRuns("The runs under way take all the room there is for their events.")

    def find_run(self, run_id: str) -> RunLog:
        """Look up a run.

        Raises:
            NotFound: There never was one, or it has expired.
        """
        log = self.journal.find(run_id)
        if log is None:
            raise NotFound("There is no such run, or it has expired.", param="id")
        return log


def _doors(request: Request) -> Doors:
    return cast("Doors", request.app.state.doors)


OpenDoors = Annotated[Doors, Depends(_doors)]
"""How a route asks for them."""

RunId = Annotated[str, Path(description="`run_` and 32 hex digits.")]
"""How a route names a run."""
