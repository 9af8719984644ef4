"""What a server may ask a person during a call: put to the one who made the call, or declined, and never guessed.

Pushed on the call's own stream or returned as its answer, a question is that call's. Pushed beside the calls of a
connection that serves one run, it is the run's. Anything else is declined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import anyio
from mcp_types import URL_ELICITATION_REQUIRED

from app.domain.events import Notice, Settler
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.ports import Emit, Person, Ticket
from app.toolbox.elicitation import elicitation_from_params, result_from_answer
from app.toolbox.patience import Patience
from app.toolbox.trouble import Trouble

DECLINED: JsonObject = {"action": "decline"}
_ELICIT = "elicitation/create"
_MOST_OPEN = 16
_MOST_ASKED = 20
"""Of one call; what is beyond is declined."""


@dataclass(eq=False, slots=True)
class Inquiry:
    """The questions of one call."""

    person: Person
    emit: Emit
    server: str
    """The server's name, for the person."""
    uuid: str
    """Of the call, as in its events."""
    patience: Patience
    asked: int = 0
    open: "set[_Open]" = field(default_factory=set["_Open"])
    is_over: bool = False

    @property
    def takes_more(self) -> bool:
        return not self.is_over and self.asked < _MOST_ASKED and len(self.open) < _MOST_OPEN

    def end(self, by: Settler) -> None:
        """The call is over: its questions are withdrawn, and later ones declined."""
        self.is_over = True
        for question in list(self.open):
            question.calls.discard(self)
            if not question.calls:
                question.ticket.withdraw(by)


@dataclass(eq=False, slots=True)
class _Open:
    ticket: Ticket
    calls: set[Inquiry]
    """Those it may be for, as long as they are under way."""


async def elicit(params: Json, inquiries: Sequence[Inquiry], *, lost_by: Settler) -> JsonObject:
    """Put a server's question on behalf of the calls it may be for, and return MCP's `ElicitResult`.

    `lost_by` is who takes the question back when this is cancelled.
    """
    calls = [inquiry for inquiry in inquiries if inquiry.takes_more]
    if not calls:
        return DECLINED
    first = calls[0]
    uuid = first.uuid if len(calls) == 1 else None
    question = elicitation_from_params(params, server=first.server, tool_uuid=uuid)
    if isinstance(question, str):
        first.asked += 1
        about = {"server": first.server}
        told = f"The server asked something that is not put to people. {question}"
        first.emit(Notice("question_declined", told, about if uuid is None else {**about, "uuid": uuid}))
        return DECLINED
    held = _Open(first.person.ask(question), set(calls))
    for call in calls:
        call.asked += 1
        call.open.add(held)
        call.patience.pause()
    try:
        return result_from_answer(await held.ticket.answer())
    finally:
        held.ticket.withdraw(lost_by)
        for call in calls:
            call.open.discard(held)
            call.patience.resume()


async def answers_to(requests: Json, inquiry: Inquiry) -> JsonObject:
    """Answer what a modern server wants to know before it goes on (`inputRequests`), side by side.

    Raises:
        Trouble: It asks for what was not offered, or for nothing that can be read.
    """
    asked: JsonObject = {} if requests is None else requests
    if not is_object(asked) or not all(is_object(request) for request in asked.values()):
        raise Trouble("tool_failed", "The tool asks for something in a form that is not MCP.")
    if any(request.get("method") != _ELICIT for request in asked.values()):
        raise Trouble("tool_failed", "The tool asks for something that is not offered here.")
    answers: JsonObject = {}

    async def ask(key: str, params: Json) -> None:
        answers[key] = await elicit(params, [inquiry], lost_by="cancel")

    async with anyio.create_task_group() as tasks:
        for key, request in asked.items():
            tasks.start_soon(ask, key, request.get("params"))
    return {key: answers[key] for key in asked}


async def went_where_it_must(trouble: Trouble, inquiry: Inquiry) -> bool:
    """Ask the person to visit the pages that a server names before it runs a tool; tells whether it was done."""
    data: Json = trouble.data
    pages: Json = data.get("elicitations") if is_object(data) else None
    if trouble.rpc_code != URL_ELICITATION_REQUIRED or not is_array(pages) or not pages:
        return False
    visited: list[bool] = []
    async with anyio.create_task_group() as tasks:

        async def ask(page: Json) -> None:
            answer: Mapping[str, Json] = await elicit(page, [inquiry], lost_by="cancel")
            visited.append(answer.get("action") == "accept")
            if not visited[-1]:
                tasks.cancel_scope.cancel()

        for page in pages[:_MOST_OPEN]:
            tasks.start_soon(ask, page)
    return bool(visited) and all(visited)
