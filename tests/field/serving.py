"""The whole service between a byte-exact upstream and a byte-exact MCP server that offers what the reports speak of."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.raw_mcp import RawMcp, RawRequest, json_reply, open_raw_mcp, result_of, text_result, tool_entry
from tests.fakes.service import Run, Service, open_service, operator_server
from tests.fakes.upstream import Answer, FakeUpstream, Request, Script, end, open_upstream, stream, text

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [
    tool_entry("look_up", inputSchema=QUERY),
    tool_entry("clock"),
    tool_entry("save", inputSchema={"type": "object", "properties": {"path": {}, "text": {}}}),
]


@dataclass
class Field:
    """What a run did and what it met."""

    service: Service
    upstream: FakeUpstream
    mcp: RawMcp
    executed: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    """Tools as the server was asked to run them, in the order of their arrival."""

    def request(self, number: int) -> Any:
        """The body of a request to the model; 1 is the second."""
        return self.upstream.asks[number].json

    async def run(self, **body: Any) -> Run:
        return await self.service.run(model="m", **body)


@asynccontextmanager
async def open_field(
    answers: Script,
    *,
    tools: Sequence[Any] = TOOLS,
    result: Any = None,
    **settings: Any,
) -> AsyncGenerator[Field]:
    """Serve `answers` one by one, after the last one the model says "Done."; or answer as a function says."""
    left: list[Answer] = [] if callable(answers) else list(answers)

    def script(request: Request) -> Answer:
        if callable(answers):
            return answers(request)
        return left.pop(0) if left else stream(text("Done."), end())

    executed: list[tuple[str, Any]] = []

    def call(request: RawRequest) -> bytes:
        params = request.rpc["params"]
        executed.append((params["name"], params.get("arguments")))
        return json_reply(result_of(request, result or text_result(f"ran {params['name']}")))

    async with open_raw_mcp({"tools/call": call}, tools=tools) as mcp, open_upstream(script) as upstream:
        servers = [operator_server("box", mcp.url)]
        async with open_service(upstream, extra_servers=servers, upstream_backoff_ms=5, **settings) as service:
            yield Field(service, upstream, mcp, executed)


def tool_messages(request: Any) -> list[Any]:
    return [message for message in request["messages"] if message["role"] == "tool"]


def echoed_calls(request: Any) -> list[Any]:
    return [call for message in request["messages"] for call in message.get("tool_calls") or ()]


def is_valid_history(request: Any) -> bool:
    """Each call answered exactly once, ids unique, arguments JSON objects, one system message first, tool texts."""
    calls = echoed_calls(request)
    ids = [call["id"] for call in calls]
    answered = [message["tool_call_id"] for message in tool_messages(request)]
    roles = [message["role"] for message in request["messages"]]
    return (
        len(set(ids)) == len(ids)
        and ids == answered
        and all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
        and all(isinstance(message["content"], str) for message in tool_messages(request))
        and "system" not in roles[1:]
    )
