"""A real MCP server, built with the SDK, whose tools show what a run can meet. Knows nothing of models or of Toolferry.

A clock and dice (plain results), a countdown (progress), a chart (an image), one that always fails, and one that asks
the user. Both protocol eras are served over Streamable HTTP at `MCP_PATH`.
"""

import random
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import anyio
from mcp.server.mcpserver import (
    AcceptedElicitation,
    Context,
    Elicit,
    ElicitationResult,
    Image,
    MCPServer,
    Resolve,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field
from starlette.applications import Starlette

from app.demo.picture import png_from_values

MCP_PATH = "/mcp"
TOOL_NAMES = ("clock", "dice", "countdown", "chart", "fail", "ask")

_HARMLESS = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
_REPEATABLE = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_ASKING = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=True)


class Roll(BaseModel):
    """What the dice showed."""

    rolls: list[int] = Field(description="One number per die")
    sides: int
    total: int


class UserAnswer(BaseModel):
    """The form that the user is shown."""

    answer: str = Field(description="Your answer", max_length=500)


async def clock(
    zone: Annotated[str, Field(description='An IANA time zone such as "Europe/Paris"', max_length=64)] = "UTC",
) -> str:
    """Tell the current date and time in a time zone."""
    try:
        now = datetime.now(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        # OSError: a name that is a directory of the zone database, such as "Europe".
        raise ToolError(f"{zone!r} is no IANA time zone. Examples: Europe/Paris, Asia/Tokyo, UTC.") from error
    offset = now.isoformat(timespec="seconds")[19:]
    return f"{now:%A}, {now.day} {now:%B %Y, %H:%M:%S} in {zone} (UTC{offset})"


async def dice(
    count: Annotated[int, Field(description="How many dice", ge=1, le=100)] = 1,
    sides: Annotated[int, Field(description="Sides of each die", ge=2, le=1000)] = 6,
) -> Annotated[CallToolResult, Roll]:
    """Roll dice and add them up."""
    rolls = [random.randint(1, sides) for _ in range(count)]
    roll = Roll(rolls=rolls, sides=sides, total=sum(rolls))
    name = "die" if count == 1 else "dice"
    text = f"Rolled {count} {name} with {sides} sides: {', '.join(map(str, rolls))} (total {roll.total})"
    return CallToolResult(content=[TextContent(text=text)], structured_content=roll.model_dump())


async def countdown(
    ctx: Context,
    seconds: Annotated[int, Field(description="How long to count", ge=1, le=60)] = 3,
) -> str:
    """Count down to zero, one step a second, reporting progress at each step."""
    for passed in range(seconds):
        await ctx.report_progress(passed, seconds, f"{seconds - passed} …")
        await anyio.sleep(1)
    await ctx.report_progress(seconds, seconds, "Lift-off")
    return f"Counted down from {seconds} to 0"


async def chart(
    values: Annotated[
        list[Annotated[float, Field(allow_inf_nan=False)]],
        Field(description="One number per bar", min_length=1, max_length=50),
    ],
) -> list[str | Image]:
    """Draw a bar chart of some numbers, as a small PNG image."""
    return [
        f"A bar chart of {', '.join(f'{value:g}' for value in values)}",
        Image(data=png_from_values(values), format="png"),
    ]


async def fail() -> str:
    """Fail, always: for seeing what a failing tool looks like."""
    raise ToolError("this tool always fails, so that you can see how a failure is reported")


async def _put_question(question: str, ctx: Context) -> Elicit[UserAnswer]:
    declared = ctx.client_capabilities
    elicitation = declared.elicitation if declared else None
    # A bare `elicitation: {}` means forms; a client that opens URLs only cannot show one.
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        raise ToolError("there is nobody to ask: this client cannot show a question to its user (no form elicitation)")
    return Elicit(question, UserAnswer)


async def ask(
    outcome: Annotated[ElicitationResult[UserAnswer], Resolve(_put_question)],
    question: Annotated[
        str, Field(description="The question, as the user shall read it", min_length=1, max_length=500)
    ] = "What is your favourite colour?",
) -> str:
    """Ask the user a question and return the answer."""
    if isinstance(outcome, AcceptedElicitation):
        return f"Asked {question!r}, the user answered: {outcome.data.answer}"
    return f"Asked {question!r}, the user {'declined to answer' if outcome.action == 'decline' else 'gave no answer'}"


def create_demo_server() -> Starlette:
    """Make the MCP server's application. One per listener: it can be started once only."""
    server = MCPServer(
        "toolferry-demo",
        title="Toolferry demo tools",
        instructions="Small tools for trying things out. None of them changes anything.",
        log_level="WARNING",
    )
    server.add_tool(clock, title="Clock", annotations=_HARMLESS, structured_output=False)
    server.add_tool(dice, title="Dice", annotations=_HARMLESS)
    server.add_tool(countdown, title="Countdown", annotations=_REPEATABLE, structured_output=False)
    server.add_tool(chart, title="Bar chart", annotations=_REPEATABLE)
    server.add_tool(fail, title="Always fails", annotations=_REPEATABLE, structured_output=False)
    server.add_tool(ask, title="Ask the user", annotations=_ASKING, structured_output=False)
    return server.streamable_http_app(streamable_http_path=MCP_PATH)
