"""MCP servers whose handshake, tool list or schemas ask for more work than they are worth."""

import json
from itertools import count
from typing import Any, Final

import pytest

from tests.fakes.hostile import MIB, Siege, Tally, Victim, open_siege, pouring
from tests.fakes.raw_mcp import (
    RawMcp,
    RawRequest,
    Reply,
    http_reply,
    json_reply,
    open_raw_mcp,
    result,
    result_of,
    text_result,
    tool_entry,
)
from tests.fakes.service import Run
from tests.hostile.floods import FLOODS

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

MOST_GROWN: Final = 96 * MIB
EVIL: Final = "a" * 40 + "!"
"""Takes a matcher of `(a+)+$` longer than anyone lives."""


async def strike_list(siege: Siege, server: RawMcp) -> Run:
    run = await siege.run("list", server.url)
    assert run.last["outcome"] == "completed", run.events
    assert run.text == "Done.", run.events
    return run


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
@pytest.mark.parametrize("flood", ["a JSON body", "one line of an event stream", "chunks of one byte", "header fields"])
async def test_server_that_says_hello_without_end_is_left_out_of_the_run(
    victim: Victim, flood: str, method: str
) -> None:
    tally = Tally()
    async with open_siege(victim) as siege, open_raw_mcp({method: pouring(tally, *FLOODS[flood])}) as server:
        with victim.growth() as growth:
            runs = await siege.withstand(lambda: strike_list(siege, server))
    for run in runs:
        (told,) = run.named("server")
        assert (told["state"], told["code"]) == ("unavailable", "server_unreachable")
    assert tally.most < 40 * MIB
    assert growth.bytes < MOST_GROWN


def nested(levels: int) -> bytes:
    """Write a schema of properties within properties, which Python's own writer could not."""
    return b'{"type":"object","properties":{"a":' * levels + b"{}" + b"}}" * levels


def listing(tools: bytes) -> Reply:
    """Reply with a tool list that is written already."""
    return lambda request: http_reply(
        200, b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[%b]}}' % (request.id, tools), "application/json"
    )


def schema_of(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string"}}, **fields}


def doubling(depth: int) -> dict[str, Any]:
    """Build a schema that refers to the next one twice, and so on: 2^depth ways to its end."""
    definitions: dict[str, Any] = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(depth)
    }
    definitions[f"d{depth}"] = {"type": "object"}
    return {"type": "object", "$defs": definitions, "allOf": [{"$ref": "#/$defs/d0"}]}


def branching(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"const": 1}
    for _ in range(depth):
        schema = {"anyOf": [{"not": schema}, {"oneOf": [schema, {"const": 2}]}]}
    return schema


SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "a pattern that never ends": schema_of(properties={"a": {"type": "string", "pattern": "^(a+)+$"}}),
    "a pattern of names that never ends": schema_of(patternProperties={"^(a+)+$": {}}, additionalProperties=False),
    "references that double": doubling(30),
    "a reference to itself": {"type": "object", "allOf": [{"$ref": "#"}]},
    "references in a circle": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/y"}] * 2}, "y": {"anyOf": [{"$ref": "#/$defs/x"}] * 2}},
    },
    "branches that double": schema_of(properties={"a": branching(6)}),
    "a multiple that is far away": schema_of(properties={"a": {"type": "number", "multipleOf": 1e-300}}),
    "as many values as fit": schema_of(properties={"a": {"enum": [f"{number}" for number in range(6000)]}}),
    "as many properties as fit": schema_of(properties={f"p{number}": {} for number in range(1900)}),
}


@pytest.mark.parametrize("kind", SCHEMAS)
async def test_schema_that_is_hard_to_judge_costs_others_nothing(victim: Victim, kind: str) -> None:
    """Arguments and results are held against it, so both directions are tried."""
    tools = [tool_entry("echo", inputSchema=SCHEMAS[kind], outputSchema=SCHEMAS[kind])]
    called = {**text_result("x"), "structuredContent": {"a": EVIL, "aaaa!": [EVIL] * 100}}
    arguments = json.dumps({"a": EVIL, EVIL: EVIL})
    async with (
        open_siege(victim, arguments=arguments) as siege,
        open_raw_mcp({"tools/call": result(called)}, tools=tools) as server,
    ):
        with victim.growth() as growth:
            runs = await siege.withstand(lambda: strike_list(siege, server))
    for run in runs:
        assert run.names.count("tool/result") + run.names.count("tool/error") == 1, run.events
    assert growth.bytes < MOST_GROWN


LISTS: Final[dict[str, bytes]] = {
    "nested without end": b'{"name":"echo","inputSchema":%b}' % nested(10_000),
    "nested too deep": b'{"name":"echo","inputSchema":%b}' % nested(100),
    "40,000 tools": b",".join(b'{"name":"t%d","inputSchema":{"type":"object"}}' % number for number in range(40_000)),
    "20,000 tools": b",".join(b'{"name":"t%d","inputSchema":{"type":"object"}}' % number for number in range(20_000)),
    "20,000 tools of one name": b",".join([b'{"name":"echo","inputSchema":{}}'] * 20_000),
    "a million things that are no tools": b",".join([b"{}"] * 1_000_000),
    "brackets": b"[" * 1_000_000,
    "a number that is too long": b'{"name":"echo","inputSchema":{"maximum":%b}}' % (b"9" * 1_000_000),
    "a name that is too long": b'{"name":"%b"}' % (b"x" * 3_000_000),
    "a description that is too long": b'{"name":"echo","description":"%b"}' % (b"\\u202e" * 500_000),
    "names that hardly differ": b",".join(
        b'{"name":"%b%d"}' % (b"\xe2\x80\x8b" * 500, number) for number in range(2000)
    ),
}


READ: Final = {
    "20,000 tools": 256,
    "20,000 tools of one name": 1,
    "a name that is too long": 0,
    "a description that is too long": 1,
    "names that hardly differ": 0,
}
"""How many tools are left of a list. All others are no lists to anyone."""


@pytest.mark.parametrize("kind", LISTS)
async def test_list_that_is_hard_to_read_costs_others_nothing(victim: Victim, kind: str) -> None:
    async with open_siege(victim) as siege, open_raw_mcp({"tools/list": listing(LISTS[kind])}) as server:
        with victim.growth() as growth:
            runs = await siege.withstand(lambda: strike_list(siege, server))
    for run in runs:
        (told,) = run.named("server")
        assert (told["state"], len(told["tools"])) == (("ready", READ[kind]) if kind in READ else ("unavailable", 0))
    assert growth.bytes < 2 * MOST_GROWN


@pytest.mark.parametrize("cursor", ["same", "c{}", "x" * 100_000 + "{}"])
async def test_list_with_pages_without_end_is_read_for_a_few(victim: Victim, cursor: str) -> None:
    numbers = count()

    def page(request: RawRequest) -> bytes:
        number = next(numbers)
        tools = [tool_entry(f"t{number}")]
        return json_reply(result_of(request, {"tools": tools, "nextCursor": cursor.format(number)}))

    async with open_siege(victim) as siege, open_raw_mcp({"tools/list": page}) as server:
        run = await strike_list(siege, server)
        await siege.live()
    (told,) = run.named("server")
    assert told["state"] == "ready", told
    assert server.asked["tools/list"] <= 20


async def test_references_to_other_places_are_never_followed(victim: Victim) -> None:
    async with open_siege(victim) as siege, open_raw_mcp() as elsewhere:
        place = elsewhere.url
        schemas: list[dict[str, Any]] = [
            schema_of(properties={"a": {"$ref": place}}),
            schema_of(**{"$ref": f"{place}#/x"}),
            schema_of(**{"$schema": place, "$id": place, "$dynamicRef": "#x"}),
            schema_of(**{"$id": f"{place}/", "allOf": [{"$ref": "other.json"}]}),
            schema_of(properties={"a": {"$ref": "file:///etc/passwd"}}),
        ]
        tools = [
            tool_entry(f"t{number}", inputSchema=schema, outputSchema=schema, icons=[{"src": f"{place}/icon.png"}])
            for number, schema in enumerate(schemas)
        ]
        called = {**text_result("x"), "structuredContent": {"a": EVIL}}
        async with open_raw_mcp({"tools/call": result(called)}, tools=tools) as server:
            for _ in range(2):
                await strike_list(siege, server)
    assert elsewhere.open_connections == 0
    assert not elsewhere.requests
