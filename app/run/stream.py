"""Owns a run's deadline, its cancellation and its single ending. Knows nothing of who reads the events."""

import logging
from collections.abc import Awaitable, Callable
from typing import cast

import anyio

from app.domain.current import run_id
from app.domain.errors import DeadlineExceeded, FerryError, ShuttingDown
from app.domain.events import Event, Failed, FinalAnswer, Finished, UsageReport
from app.domain.messages import Usage
from app.domain.ports import RunRecord
from app.run.answer import Answer

_log = logging.getLogger(__name__)


async def carry(
    record: RunRecord,
    cross: Callable[[], Awaitable[tuple[Answer, Usage | None]]],
    *,
    run_seconds: float,
) -> None:
    """Carry a run to its end and record exactly one terminal event, whatever happens.

    Cancelling through the record ends the run as `aborted`; a cancellation from outside, when the process stops, ends
    it with `shutting_down`.
    """
    run_id.set(record.run_id)
    begun = anyio.current_time()
    ending: list[Event] = [Failed(ShuttingDown.code, "The service was stopped while the run was under way.")]
    try:
        with anyio.CancelScope() as scope:
            record.on_cancel(scope.cancel)
            ending = await _ending(cross, run_seconds)
        if scope.cancelled_caught:
            ending = [Finished("aborted")]
    finally:
        for event in ending:
            record.append(event)
        record.close()
        last = ending[-1]
        how = last.outcome if isinstance(last, Finished) else last.code if isinstance(last, Failed) else ""
        _log.info("run ended: %s, after %.3f s", how, anyio.current_time() - begun)


async def _ending(cross: Callable[[], Awaitable[tuple[Answer, Usage | None]]], run_seconds: float) -> list[Event]:
    try:
        with anyio.move_on_after(run_seconds):
            answer, usage = await cross()
            told: list[Event] = [] if usage is None else [UsageReport(usage)]
            return [*told, FinalAnswer(answer.text, answer.reason), Finished(answer.outcome)]
    except Exception as error:  # noqa: BLE001  # the single border: whatever is unknown leaves as `internal`
        cause = _cause(error)
        return [Failed(cause.code, str(cause)) if isinstance(cause, FerryError) else _internal(error)]
    return [Failed(DeadlineExceeded.code, f"The run took longer than the {run_seconds:g} seconds it may take.")]


def _cause(error: Exception) -> Exception:
    """Take the error out of the groups that task groups on its way have put around it."""
    cause = error
    while isinstance(cause, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", cause)
        if len(group.exceptions) != 1:
            return group
        cause = group.exceptions[0]
    return cause


def _internal(error: Exception) -> Failed:
    _log.error("a run broke", exc_info=error)
    return Failed(FerryError.code, "The run failed because of a fault in this service.")
