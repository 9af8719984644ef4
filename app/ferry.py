"""One crossing: open the toolbox, make the model ready, start the loop. Knows the rooms by their ports only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import anyio.abc

from app.domain.events import Notice, Prepared, Started
from app.domain.jsontypes import JsonObject, is_object
from app.domain.limits import RunLimits
from app.domain.messages import Tool, Usage
from app.domain.ports import Catalogue, ChatModel, Emit, ModelFacts, Person, RunRecord, Servers, Toolbox
from app.domain.spec import RunSpec
from app.run.act import Hands
from app.run.answer import Answer
from app.run.approval import Approvals
from app.run.images import images_from_messages
from app.run.listen import Ears
from app.run.loop import run_loop
from app.run.prompt import tool_prompt
from app.run.stream import carry
from app.run.talk import Talk, opening


@dataclass(frozen=True, slots=True)
class Ferry:
    """Takes runs across. The task group owns their tasks and outlives every request."""

    catalogue: Catalogue
    servers: Servers
    limits: RunLimits
    tasks: anyio.abc.TaskGroup

    def depart(self, spec: RunSpec, facts: ModelFacts, record: RunRecord) -> None:
        """Start a run; event 1 is recorded before anything is awaited."""
        record.append(Started(record.run_id, record.read_token if spec.principal.key else None))

        async def cross(person: Person) -> tuple[Answer, Usage | None]:
            return await self._cross(spec, facts, record, person=person)

        self.tasks.start_soon(
            lambda: carry(record, cross, limits=self.limits, caller=spec.principal.key), name=record.run_id
        )

    async def _cross(
        self, spec: RunSpec, facts: ModelFacts, record: RunRecord, *, person: Person
    ) -> tuple[Answer, Usage | None]:
        """Fill what the loop needs, and run it."""
        offered, why_not = _tools_wanted(spec, facts)
        async with self.servers.open_box(offered, record.append, person) as toolbox:
            if not toolbox.tools and why_not is None:
                why_not = "no_tools" if toolbox.has_servers else "no_servers"
            record.append(Prepared(facts.id, "not_applicable" if why_not else "active", why_not))
            model = self.catalogue.open(facts, spec)
            ears = Ears(model, record.append, spec.reasoning, self.limits.reasoning_as_answer)
            images = images_from_messages(spec.messages)
            is_hidden = spec.reasoning == "hidden"
            approvals = Approvals(spec.approval, person, toolbox)
            hands = Hands(toolbox, record.append, self.limits, images, hides_reasoning=is_hidden, approvals=approvals)
            choice = "auto" if why_not else _choice(spec.tool_choice, toolbox, record.append)
            talk = Talk(
                opening(spec.messages, preprompt=spec.preprompt),
                record,
                toolbox,
                tool_choice=choice,
                prompt=_prompt(model, spec, image_count=len(images)),
                keeps_reasoning=facts.preserves_reasoning and not is_hidden,
                shows_pictures=facts.multimodal is True,
            )
            return await run_loop(talk, ears, hands, max_rounds=spec.max_rounds), ears.usage


def _tools_wanted(spec: RunSpec, facts: ModelFacts) -> tuple[RunSpec, str | None]:
    """Decide, before any server is asked, whether tools come into it; without them no server is selected."""
    if spec.tool_choice == "none":
        return replace(spec, server_names=()), "tool_choice_none"
    if not facts.supports_tools and not spec.force_tools:
        why_not = "model_without_tools" if facts.route is None else "route_without_tools"
        return replace(spec, server_names=()), why_not
    return spec, None


def _prompt(model: ChatModel, spec: RunSpec, *, image_count: int) -> Callable[[Sequence[Tool], str | JsonObject], str]:
    """Make what writes the tool prompt: it names what the model is offered of the tools, with the day the run began."""
    zone = ZoneInfo(spec.timezone) if spec.timezone else None
    now = datetime.now(UTC)

    def prompt(tools: Sequence[Tool], choice: str | JsonObject) -> str:
        offered = [tool.spec for tool in model.offered(tools, choice)]
        return tool_prompt(offered, now=now, zone=zone, image_count=image_count) if offered else ""

    return prompt


def _choice(choice: str | JsonObject, toolbox: Toolbox, emit: Emit) -> str | JsonObject:
    """Let a forced choice name a tool as its server does; the model knows it by its exposed name.

    One that no tool has leaves the choice to the model: its server may only be down.
    """
    if not is_object(choice) or not is_object(choice.get("function")):
        return choice
    name = choice["function"].get("name")
    tool = toolbox.find(name) or next((tool for tool in toolbox.tools if tool.name == name), None)
    if tool is None:
        emit(Notice("tool_choice_dropped", "tool_choice names a tool that is not offered; the model chooses."))
        return "auto"
    return {**choice, "function": {"name": tool.spec.name}}
