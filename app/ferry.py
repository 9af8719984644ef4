"""One crossing: open the toolbox, make the model ready, start the loop. Knows the rooms by their ports only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import anyio.abc

from app.domain.events import Notice, Prepared, Started
from app.domain.jsontypes import JsonObject, is_object
from app.domain.limits import RunLimits
from app.domain.messages import Tool, Usage
from app.domain.ports import Catalogue, Emit, ModelFacts, RunRecord, Servers, Toolbox
from app.domain.spec import RunSpec
from app.run.act import Hands
from app.run.answer import Answer
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
        record.append(Started(record.run_id))

        async def cross() -> tuple[Answer, Usage | None]:
            return await self._cross(spec, facts, record)

        self.tasks.start_soon(lambda: carry(record, cross, run_seconds=self.limits.run_seconds), name=record.run_id)

    async def _cross(self, spec: RunSpec, facts: ModelFacts, record: RunRecord) -> tuple[Answer, Usage | None]:
        """Fill what the loop needs, and run it."""
        offered, why_not = _tools_wanted(spec, facts)
        async with self.servers.open_box(offered, record.append) as toolbox:
            if not toolbox.tools and why_not is None:
                why_not = "no_tools" if toolbox.has_servers else "no_servers"
            record.append(Prepared(facts.id, "not_applicable" if why_not else "active", why_not))
            model = self.catalogue.open(facts, spec)
            ears = Ears(model, record.append, spec.reasoning, self.limits.reasoning_as_answer)
            images = images_from_messages(spec.messages)
            is_hidden = spec.reasoning == "hidden"
            hands = Hands(toolbox, record.append, self.limits, images, hides_reasoning=is_hidden)
            choice = "auto" if why_not else _choice(spec.tool_choice, toolbox, record.append)
            offered = model.offered(toolbox.tools, choice)
            prompt = None if why_not else _prompt(offered, spec, image_count=len(images))
            talk = Talk(
                opening(spec.messages, tool_prompt=prompt, preprompt=spec.preprompt),
                record,
                toolbox,
                tool_choice=choice,
                tool_prompt=prompt or "",
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


def _prompt(tools: Sequence[Tool], spec: RunSpec, *, image_count: int) -> str | None:
    zone = ZoneInfo(spec.timezone) if spec.timezone else None
    specs = [tool.spec for tool in tools]
    return tool_prompt(specs, now=datetime.now(UTC), zone=zone, image_count=image_count)


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
