"""The person at a run: what is asked is told, answered, withdrawn and resolved, once each. Knows no kind of question.

Whatever ends a question, whichever comes first, does so synchronously, and tells it before anybody hears the answer.
While any is open, the run's deadline stands still.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from app.domain.errors import Conflict, NotFound
from app.domain.events import Settler
from app.domain.ports import Emit, Ticket
from app.domain.questions import CANCELLED, InputAnswer, Question
from app.run.deadline import Deadline


class RunPerson:
    """The port `Person` for one run; the answers come from its record."""

    def __init__(self, emit: Emit, deadline: Deadline, *, input_seconds: float) -> None:
        self._emit = emit
        self._deadline = deadline
        self._seconds = input_seconds
        self._open: dict[str, _Asked] = {}
        self._resolved: set[str] = set()
        self._is_closed = False

    def ask(self, question: Question) -> Ticket:
        """Put a question; its request is told before this returns. Once closed, nothing is told and nobody answers."""
        asked = _Asked(question, self._seconds, self._resolve)
        if self._is_closed:
            asked.hear(CANCELLED)
            return asked
        request = question.asked(asked.input_id, _iso_in(self._seconds))
        self._open[asked.input_id] = asked
        self._deadline.pause()
        self._emit(request)
        return asked

    def take(self, input_id: str, answer: InputAnswer) -> None:
        """Answer an open question.

        Raises:
            NotFound: The run has asked no such question.
            Conflict: It is resolved already.
            InvalidRequest: The answer does not fit; the question stays open.
        """
        asked = self._open.get(input_id)
        if asked is not None and asked.is_late:
            asked.expire()
            asked = None
        if asked is not None:
            self._resolve(asked, asked.question.fitted(answer), "caller")
        elif input_id in self._resolved:
            raise Conflict("This question is not open any more.", param="inputId")
        else:
            raise NotFound("The run has asked no such question.", param="inputId")

    def close(self) -> None:
        """The run ends: resolve what is open, and tell nothing of what is asked from now on."""
        self._is_closed = True
        for asked in list(self._open.values()):
            self._resolve(asked, CANCELLED, "cancel")

    def _resolve(self, asked: "_Asked", answer: InputAnswer, by: Settler) -> None:
        if self._open.pop(asked.input_id, None) is None:
            return
        self._resolved.add(asked.input_id)
        self._emit(asked.question.resolved(asked.input_id, answer, by))
        asked.hear(answer)
        self._deadline.resume()


class _Asked:
    """The port `Ticket`."""

    def __init__(
        self, question: Question, seconds: float, resolve: Callable[["_Asked", InputAnswer, Settler], None]
    ) -> None:
        self.input_id = str(uuid4())
        self.question = question
        self._expires = anyio.current_time() + seconds
        self._resolve = resolve
        self._answer = CANCELLED
        self._is_resolved = anyio.Event()

    @property
    def is_late(self) -> bool:
        return anyio.current_time() >= self._expires

    async def answer(self) -> InputAnswer:
        with anyio.CancelScope(deadline=self._expires):
            await self._is_resolved.wait()
        # The end of a run resolves its questions first: whoever is cancelled must not take that for an answer.
        await checkpoint_if_cancelled()
        self.expire()
        return self._answer

    def withdraw(self, by: Settler) -> None:
        self._resolve(self, CANCELLED, by)

    def expire(self) -> None:
        self._resolve(self, CANCELLED, "expiry")

    def hear(self, answer: InputAnswer) -> None:
        self._answer = answer
        self._is_resolved.set()


def _iso_in(seconds: float) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
