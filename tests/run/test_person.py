"""Questions to a person: each is told, answered and resolved once, whatever comes first, and stops the run's clock."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import anyio
import pytest

from app.domain.errors import Conflict, InvalidRequest, NotFound
from app.domain.events import ElicitationAsked, Event, InputResolved
from app.domain.ports import Ticket
from app.domain.questions import CANCELLED, InputAnswer
from app.run.deadline import Deadline
from app.run.person import RunPerson
from tests.fakes.ports import Riddle

pytestmark = pytest.mark.anyio

YES = InputAnswer("accept", {"x": 1})


@dataclass
class Desk:
    """A person, and what was told."""

    seconds: float = 60.0
    events: list[Event] = field(default_factory=list[Event])
    deadline: Deadline = field(default_factory=lambda: Deadline(60.0))

    def __post_init__(self) -> None:
        self.person = RunPerson(self.events.append, self.deadline, input_seconds=self.seconds)

    def ask(self) -> tuple[Ticket, str]:
        ticket = self.person.ask(Riddle())
        request = self.events[-1]
        assert isinstance(request, ElicitationAsked)
        return ticket, request.input_id

    @property
    def resolved(self) -> list[tuple[str, str, str]]:
        return [(event.input_id, event.action, event.by) for event in self.events if isinstance(event, InputResolved)]


async def test_question_is_told_before_anything_waits_with_an_id_and_when_it_expires() -> None:
    desk = Desk(seconds=90.0)
    before = datetime.now(UTC)
    _, input_id = desk.ask()
    (request,) = desk.events
    assert isinstance(request, ElicitationAsked)
    assert UUID(input_id).version == 4
    assert request.expires_at.endswith("Z")
    assert len(request.expires_at) == len("2026-01-01T00:00:00.000Z")
    expires = datetime.fromisoformat(request.expires_at)
    assert before + timedelta(seconds=89.99) <= expires <= datetime.now(UTC) + timedelta(seconds=90)


async def test_answer_that_fits_resolves_the_question_and_reaches_whoever_asked() -> None:
    desk = Desk()
    ticket, input_id = desk.ask()
    desk.person.take(input_id, YES)
    assert desk.resolved == [(input_id, "accept", "caller")]
    assert await ticket.answer() == InputAnswer("accept", {"x": 1, "fitted": True})
    assert await ticket.answer() == InputAnswer("accept", {"x": 1, "fitted": True})


async def test_answer_that_does_not_fit_leaves_the_question_open() -> None:
    desk = Desk()
    _, input_id = desk.ask()
    with pytest.raises(InvalidRequest):
        desk.person.take(input_id, replace(YES, reason="because"))
    assert desk.resolved == []
    desk.person.take(input_id, YES)
    assert desk.resolved == [(input_id, "accept", "caller")]


async def test_second_answer_is_a_conflict_and_one_to_nothing_is_not_found() -> None:
    desk = Desk()
    _, input_id = desk.ask()
    desk.person.take(input_id, YES)
    with pytest.raises(Conflict):
        desk.person.take(input_id, YES)
    with pytest.raises(NotFound):
        desk.person.take("00000000-0000-4000-8000-000000000000", YES)
    assert len(desk.resolved) == 1


async def test_question_without_an_answer_expires() -> None:
    desk = Desk(seconds=0.01)
    ticket, input_id = desk.ask()
    with anyio.fail_after(5):
        assert await ticket.answer() is CANCELLED
    assert desk.resolved == [(input_id, "cancel", "expiry")]
    with pytest.raises(Conflict):
        desk.person.take(input_id, YES)


async def test_answer_that_comes_after_the_expiry_is_late_even_if_nobody_has_noticed() -> None:
    desk = Desk(seconds=0.0)
    ticket, input_id = desk.ask()
    with pytest.raises(Conflict):
        desk.person.take(input_id, YES)
    assert desk.resolved == [(input_id, "cancel", "expiry")]
    assert await ticket.answer() is CANCELLED


async def test_question_that_is_withdrawn_wakes_whoever_waits() -> None:
    desk = Desk()
    ticket, input_id = desk.ask()
    heard: list[InputAnswer] = []

    async def wait() -> None:
        heard.append(await ticket.answer())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            ticket.withdraw("server")
            ticket.withdraw("cancel")
    assert heard == [CANCELLED]
    assert desk.resolved == [(input_id, "cancel", "server")]


async def test_end_of_the_run_resolves_what_is_open_and_tells_nothing_of_what_is_asked_later() -> None:
    desk = Desk()
    first, first_id = desk.ask()
    _, second_id = desk.ask()
    desk.person.close()
    assert desk.resolved == [(first_id, "cancel", "cancel"), (second_id, "cancel", "cancel")]
    told = list(desk.events)
    late = desk.person.ask(Riddle())
    with anyio.fail_after(5):
        assert await late.answer() is CANCELLED
        assert await first.answer() is CANCELLED
    late.withdraw("server")
    desk.person.close()
    assert desk.events == told


async def test_whoever_is_cancelled_does_not_hear_an_answer_that_came_with_it() -> None:
    desk = Desk()
    ticket, _ = desk.ask()
    heard: list[InputAnswer] = []

    async def wait() -> None:
        heard.append(await ticket.answer())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            desk.person.close()
            group.cancel_scope.cancel()
    assert heard == []


ENDS: dict[str, Callable[[Desk, Ticket, str], None]] = {
    "answer": lambda desk, _ticket, input_id: desk.person.take(input_id, YES),
    "withdrawal": lambda _desk, ticket, _id: ticket.withdraw("server"),
    "end": lambda desk, _ticket, _id: desk.person.close(),
}


@pytest.mark.parametrize("order", list(itertools.permutations(ENDS)), ids="-".join)
@pytest.mark.parametrize("seconds", [60.0, 0.0], ids=["in time", "expired"])
async def test_question_is_resolved_once_whatever_comes_first(order: tuple[str, ...], seconds: float) -> None:
    desk = Desk(seconds=seconds)
    ticket, input_id = desk.ask()
    heard: list[InputAnswer] = []

    async def wait() -> None:
        heard.append(await ticket.answer())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            for end in order:
                try:
                    ENDS[end](desk, ticket, input_id)
                except Conflict:
                    assert end == "answer"
    (resolved,) = desk.resolved
    assert (heard[0].action, resolved[0]) == (resolved[1], input_id)
    assert desk.deadline.scope.deadline < math.inf


# The deadline


async def test_clock_stands_still_until_the_last_of_several_questions_is_resolved() -> None:
    desk = Desk()
    before = desk.deadline.scope.deadline
    first, _ = desk.ask()
    second, _ = desk.ask()
    assert desk.deadline.scope.deadline == math.inf
    second.withdraw("server")
    assert desk.deadline.scope.deadline == math.inf
    first.withdraw("server")
    assert before <= desk.deadline.scope.deadline < math.inf


async def test_time_that_was_left_is_left_after_the_wait() -> None:
    deadline = Deadline(100.0)
    now = anyio.current_time()
    for _ in range(1000):
        deadline.pause()
        deadline.resume()
    assert deadline.scope.deadline - now >= 100.0 - 0.001
    assert deadline.scope.deadline - anyio.current_time() <= 100.0


async def test_run_whose_time_is_up_may_still_wait_and_ends_right_after() -> None:
    deadline = Deadline(0.0)
    deadline.pause()
    waited = False
    with anyio.fail_after(5):
        with deadline.scope:
            await anyio.wait_all_tasks_blocked()
            waited = True
            deadline.resume()
            await anyio.sleep_forever()
    assert waited
    assert deadline.scope.cancelled_caught
