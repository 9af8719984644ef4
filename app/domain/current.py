"""Which run the current task works for: set once where a run is carried, inherited by every task it starts."""

from contextvars import ContextVar

run_id: ContextVar[str | None] = ContextVar("run_id", default=None)
