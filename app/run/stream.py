"""Owns a run's deadline, its cancellation and its single ending. Knows nothing of who reads the events."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

import anyio

from app.domain.current import run_id
from app.domain.errors import DeadlineExceeded, FerryError, ShuttingDown
from app.domain.events import Event, Failed, FinalAnswer, Finished, UsageReport
from app.domain.limits import RunLimits
from app.domain.messages import Usage
from app.domain.ports import Person, RunRecord
from app.run.answer import Answer
from app.run.deadline import Deadline
from app.run.person import RunPerson

_log = logging.getLogger(__name__)


Crossing: TypeAlias = Callable[[Person], Awaitable[tuple[Answer, Usage | None]]]
"""What a run does from its first event to its answer; questions go to the person."""


async def carry(record: RunRecord, cross: Crossing, *, limits: RunLimits, caller: str = "") -> None:
    """Carry a run to its end and record exactly one terminal event, whatever happens.

    Cancelling through the record ends the run as `aborted`; a cancellation from outside, when the process stops, ends
    it with `shutting_down`. Questions that are open then are resolved before anything else is told. `caller` is for the
    log: the id of the API key.
    """
    run_id.set(record.run_id)
    begun = anyio.current_time()
    deadline = Deadline(limits.run_seconds)
    person = RunPerson(record.append, deadline, input_seconds=limits.input_seconds)
    ending: list[Event] = [Failed(ShuttingDown.code, "The service was stopped while the run was under way.")]
    try:
        with anyio.CancelScope() as scope:

            def stop() -> None:
                person.close()
                scope.cancel()

            record.on_input(person.take)
            record.on_cancel(stop)
            ending = await _ending(cross, person, deadline, seconds=limits.run_seconds)
        if scope.cancelled_caught:
            ending = [Finished("aborted")]
    finally:
        person.close()
        for event in ending:
            record.append(event)
        record.close()
        last = ending[-1]
        how = last.outcome if isinstance(last, Finished) else last.code if isinstance(last, Failed) else ""
        _log.info("run ended: %s, after %.3f s%s", how, anyio.current_time() - begun, caller and f", key {caller}")


async def _ending(cross: Crossing, person: Person, deadline: Deadline, *, seconds: float) -> list[Event]:
    try:
        with deadline.scope:
            answer, usage = await cross(person)
            told: list[Event] = [] if usage is None else [UsageReport(usage)]
            return [*told, FinalAnswer(answer.text, answer.reason), Finished(answer.outcome)]
    except Exception as error:  # noqa: BLE001  # the single border: whatever is unknown leaves as `internal`
        cause = _cause(error)
        return [Failed(cause.code, str(cause)) if isinstance(cause, FerryError) else _internal(error)]
    return [Failed(DeadlineExceeded.code, f"The run took longer than the {seconds:g} seconds it may take.")]


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
