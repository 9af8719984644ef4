"""What a run asks of a person, and what it hears. Each kind of question says how it is told and what fits it.

A question is open from its `request` event to its `resolved` event, of which there is exactly one each.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from app.domain.events import Event, InputAction, Settler
from app.domain.jsontypes import JsonObject


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """The body of an input, or what stands for one where nobody answered."""

    action: InputAction
    content: JsonObject | None = field(default=None, repr=False)
    """What was filled in, for an elicitation."""
    arguments: JsonObject | None = field(default=None, repr=False)
    """What the call is made with instead, for an approval."""
    remember: Literal["call", "run"] = "call"
    """Whether the answer holds for this call, or for the tool as long as the run lasts. Approvals only."""
    reason: str | None = None
    """A sentence for the model, for an approval that is refused."""


class Question(Protocol):
    """One question, whatever it is about."""

    def asked(self, input_id: str, expires_at: str) -> Event:
        """Tell that it is open."""
        ...

    def resolved(self, input_id: str, answer: InputAnswer, by: Settler) -> Event:
        """Tell that it is not open any more."""
        ...

    def fitted(self, answer: InputAnswer) -> InputAnswer:
        """Make an answer fit, or say what is wrong with it; then the question stays open.

        Raises:
            InvalidRequest: Names the field.
        """
        ...


CANCELLED = InputAnswer("cancel")
"""What stands for an answer where none came: in time, or before the question was withdrawn."""
