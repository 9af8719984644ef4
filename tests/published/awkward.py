# pyright: basic, reportMissingImports=false
"""A FastMCP server with tools of every kind: structured results, media, progress, failures, questions, list changes.

usage: awkward.py PORT http|sse [stateless]

Runs in the environment of `fastmcp.txt`, not in ours.
"""

import base64
import os
import sys

import anyio
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import Tool
from fastmcp.utilities.types import Audio, Image
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ResourceLink,
    ToolListChangedNotification,
)
from pydantic import BaseModel

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x44\xac\0\0\x88\x58\1\0\2\0\x10\0data\0\0\0\0"

TALLY = {"started": 0, "finished": 0, "cancelled": 0}

server = FastMCP("awkward", instructions="Tools of every kind.", version="1.0")


class Weather(BaseModel):
    city: str
    celsius: float
    tags: list[str]


class Name(BaseModel):
    name: str


@server.tool(annotations={"readOnlyHint": True, "title": "Adder"})
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False})
def weather(city: str) -> Weather:
    """Tell the weather, as structured data."""
    return Weather(city=city, celsius=21.5, tags=["sunny"])


@server.tool
def picture() -> Image:
    """Draw one pixel."""
    return Image(data=PNG, format="png")


@server.tool
def mixed() -> list:
    """Give a block of each type."""
    link = ResourceLink(type="resource_link", uri="awkward://doc/1", name="doc 1", mime_type="text/plain")
    return ["some text", Image(data=PNG, format="png"), Audio(data=WAV, format="wav"), link]


@server.tool
async def steps(ctx: Context, count: int = 3) -> str:
    """Work in steps and tell of each."""
    for step in range(1, count + 1):
        await ctx.report_progress(step, count, f"step {step} of {count}")
        await ctx.info(f"log line {step}")
        await anyio.sleep(0.15)
    return f"finished {count} steps"


@server.tool
async def slow(seconds: float) -> str:
    """Work in silence."""
    TALLY["started"] += 1
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        TALLY["cancelled"] += 1
        raise
    TALLY["finished"] += 1
    return f"slept {seconds}"


@server.tool(annotations={"readOnlyHint": True})
def tally() -> dict[str, int]:
    """Tell what became of the calls of `slow`."""
    return TALLY


@server.tool
def fails() -> str:
    """Fail as tools do."""
    raise ToolError("it broke")


@server.tool
def crashes() -> str:
    """Fail as programs do."""
    raise ZeroDivisionError("internal detail")


@server.tool
async def ask(ctx: Context) -> str:
    """Ask a person while the call runs, as the handshake era does."""
    answer = await ctx.elicit("Who are you?", response_type=Name)
    return f"hello {answer.data.name}" if answer.action == "accept" else f"you chose {answer.action}"


@server.tool
def ask_rounds(ctx: Context) -> str | InputRequiredResult:
    """Answer with a question and be called again, as the modern era does."""
    reply = (ctx.input_responses or {}).get("who")
    if reply is None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        question = ElicitRequest(params=ElicitRequestFormParams(message="Who are you?", requested_schema=schema))
        return InputRequiredResult(input_requests={"who": question}, request_state="round-1")
    return f"{reply.action} {(reply.content or {}).get('name')} {ctx.request_state}"


@server.tool
async def grow(ctx: Context, name: str) -> str:
    """Add a tool and say that the list has changed."""

    def grown() -> str:
        return f"I am {name}"

    server.add_tool(Tool.from_function(grown, name=name))
    await ctx.send_notification(ToolListChangedNotification())
    return f"there is {name} now"


@server.tool(annotations={"readOnlyHint": True})
def environment() -> list[str]:
    """Tell the names of the environment's variables."""
    return sorted(os.environ)


if __name__ == "__main__":
    port, transport, *more = sys.argv[1:]
    stateless = {"stateless_http": True} if "stateless" in more else {}
    server.run(
        transport=transport, host="127.0.0.1", port=int(port), show_banner=False, log_level="warning", **stateless
    )
