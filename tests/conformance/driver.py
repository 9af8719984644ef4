"""One run of the real service against the server of one scenario, as a command that the conformance suite starts.

    python -m tests.conformance.driver http://localhost:1234/mcp

The service runs in this process, behind its own socket, and its model is scripted: it calls every tool that it is
offered once, all in one round, and then says that it is done. A server that asks a person gets `accept` with the form
left empty. What came is printed, and the exit code is 0 when the run completed and every call has its result.
The suite gives the arguments of some calls in its environment; all others are made from the tools' schemas. One tool
wants to be shown its neighbour's schema as it was written: models get it repaired, `/v1/servers/check` tells both.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from tests.fakes.service import Event, Service, events, open_service
from tests.fakes.upstream import Answer, Request, call, end, open_upstream, stream, text

LONGEST_RUN_SECONDS: Final = 30
"""The suite waits longer; it ends a shell and not what runs in it, so this process must end by itself."""

SERVES_NO_CALLS: Final = {"json-schema-ref-no-deref"}
"""Scenarios whose servers list tools and refuse to call them."""

WANTS_KEPT_SCHEMAS: Final = {"json-schema-2020-12-preservation"}
SERVER: Final = "Conformance"

_PLAUSIBLE: Final[JsonObject] = {
    "string": "text",
    "integer": 2,
    "number": 1.5,
    "boolean": True,
    "null": None,
    "array": [],
    "object": {},
}


def scenario() -> str | None:
    """Name the scenario that this process is started for."""
    return os.environ.get("MCP_CONFORMANCE_SCENARIO")


def plausible(schema: Json, root: JsonObject) -> Json:
    """Make a value that fits a plain schema: each property filled in, the first of several choices."""
    if not is_object(schema):
        return "text"
    if "$ref" in schema:
        return plausible(_pointed_at(schema["$ref"], root), root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if is_object(schema.get("properties")):
        return {name: plausible(part, root) for name, part in schema["properties"].items()}
    kind = schema.get("type", "string")
    return _PLAUSIBLE[kind[0] if is_array(kind) else kind]


def _pointed_at(reference: str, root: JsonObject) -> Json:
    """Follow a reference within the schema; one to elsewhere leads to a schema that says nothing."""
    if not reference.startswith("#/"):
        return {}
    place: Json = root
    for name in reference.removeprefix("#/").split("/"):
        place = place[name]
    return place


def given_arguments() -> list[tuple[str, JsonObject]]:
    """Read which calls the scenario wants, as (tool, arguments)."""
    context: Json = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return [(wanted["name"], wanted["arguments"]) for wanted in context.get("toolCalls", [])]


def calls_of_all(tools: Sequence[JsonObject], kept: Mapping[str, JsonObject]) -> list[tuple[str, JsonObject]]:
    """Tell which calls the model makes of the tools that it is offered, as (name, arguments)."""
    offered: dict[str, JsonObject] = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    wanted = [(name, arguments) for name, arguments in given_arguments() if name in offered]
    named = {name for name, _ in wanted}
    rest = {name: plausible(schema, schema) for name, schema in offered.items() if name not in named}
    if "json_schema_echo" in rest:
        rest["json_schema_echo"] = {"schema": kept["json_schema_2020_12_tool"]}
    return [*wanted, *rest.items()]


def answer(request: Request, kept: Mapping[str, JsonObject]) -> Answer:
    """Be the model: call all tools, then end."""
    asked = request.json
    if not asked.get("tools") or any(message["role"] == "tool" for message in asked["messages"]):
        return stream(text("Done."), end())
    calls = enumerate(calls_of_all(asked["tools"], kept))
    pieces = [call(index, f"call_{index}", name, json.dumps(arguments)) for index, (name, arguments) in calls]
    return stream(*pieces, end("tool_calls"))


async def kept_schemas(service: Service, url: str) -> dict[str, JsonObject]:
    """Look up the schemas of a server's tools as it wrote them, by the tools' names."""
    checked = await service.client.post("/v1/servers/check", json={"name": SERVER, "url": url})
    return {tool["name"]: tool["inputSchema"] for tool in checked.json()["tools"]}


def is_good(seen: list[Event]) -> bool:
    """Tell whether the server was reached, the run completed, and no call failed that could succeed."""
    states = [event.data["state"] for event in seen if event.name == "server"]
    failed = [event for event in seen if event.name == "tool/error"]
    is_complete = states[-1:] == ["ready"] and seen[-1].data.get("outcome") == "completed"
    return is_complete and (not failed or scenario() in SERVES_NO_CALLS)


async def drive(url: str) -> int:
    """Send one run through the service; returns the exit code."""
    seen: list[Event] = []
    kept: dict[str, JsonObject] = {}
    body = {"servers": [{"name": SERVER, "url": url, "required": True}], "interactive": True}
    async with (
        open_upstream(lambda request: answer(request, kept)) as upstream,
        open_service(upstream, mcp_allow_insecure_urls=True) as service,
    ):
        if scenario() in WANTS_KEPT_SCHEMAS:
            kept |= await kept_schemas(service, url)
        async with service.streaming(**body) as (response, source):
            async for event in events(source):
                seen.append(event)
                sys.stdout.write(f"{event.name} {json.dumps(event.data)}\n")
                if event.name == "elicitation" and event.data["subtype"] == "request":
                    inputs = f"/v1/runs/{response.headers['x-run-id']}/inputs/{event.data['inputId']}"
                    answered = await service.client.post(inputs, json={"action": "accept", "content": {}})
                    answered.raise_for_status()
    return 0 if is_good(seen) else 1


async def main() -> int:
    """Drive one run within its time."""
    with anyio.fail_after(LONGEST_RUN_SECONDS):
        return await drive(sys.argv[1])


if __name__ == "__main__":
    sys.exit(anyio.run(main))
