"""What the routes reach the rest of the service by; made by main, kept in the application's state."""

import hmac
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Path, Request

from app.domain.errors import NotFound, ShuttingDown, TooManyRuns, Unauthorized
from app.domain.limits import RequestLimits
from app.domain.ports import Catalogue, Servers
from app.domain.principal import Principal
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

    def admit_run(self, principal: Principal) -> None:
        """Make sure that one more run of this caller may start.

        Raises:
            ShuttingDown: The process drains.
            TooManyRuns: As many as allowed are under way.
        """
        if self.is_draining:
            raise ShuttingDown("The service is shutting down and takes no new runs.")
        of_key, own = self.journal.running_of(principal)
        if principal.user is not None and own >= self.limits.runs_per_user:
            raise TooManyRuns(f"{own} runs of this end user are under way, which is all that are allowed at once.")
        if of_key >= self.limits.runs_per_key:
            raise TooManyRuns(f"{of_key} runs are under way, which is all that are allowed at once.")
        if self.journal.is_full_for(principal):
            raise TooManyRuns("The runs under way take all the room there is for their events.")

    def find_run(self, run_id: str, principal: Principal) -> RunLog:
        """Look up a run of the caller's.

        Raises:
            NotFound: There never was one, it has expired, or it is somebody else's, which nobody is told.
        """
        log = self.journal.find(run_id)
        if log is None or log.owner != principal:
            raise NotFound("There is no such run, or it has expired.", param="id")
        return log

    def find_run_to_read(self, run_id: str, principal: Principal | None, read_token: str | None) -> RunLog:
        """Look up a run whose events are to be followed, also by who has nothing but its read token.

        Raises:
            NotFound: As `find_run`.
            Unauthorized: The token is not this run's, or there is no such run.
        """
        if principal is not None:
            return self.find_run(run_id, principal)
        log = self.journal.find(run_id)
        if log is None or not hmac.compare_digest(log.read_token.encode(), (read_token or "").encode()):
            raise Unauthorized("The token does not open this run.", param="token")
        return log


def _doors(request: Request) -> Doors:
    return cast("Doors", request.app.state.doors)


def _principal(request: Request) -> Principal:
    principal: Principal | None = request.state.principal
    if principal is None:
        raise Unauthorized("A valid key is needed: Authorization: Bearer …")
    return principal


Caller = Annotated[Principal, Depends(_principal)]
"""How a route asks whose request it is."""

OpenDoors = Annotated[Doors, Depends(_doors)]
"""How a route asks for them."""

RunId = Annotated[str, Path(description="`run_` and 32 hex digits.")]
"""How a route names a run."""
