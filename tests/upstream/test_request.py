"""What is sent to the endpoint."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.domain.messages import Tool, ToolSpec
from app.domain.ports import Ask, ModelFacts
from app.domain.spec import RunSpec
from app.upstream.quirks import Quirks, quirks_with
from app.upstream.request import body_from_ask, encodable, fitted_schemas, offered_tools, tool_digest
from app.upstream.schemas import schema_in_dialect

USER = {"role": "user", "content": "Hi"}
CLOCK = Tool(ToolSpec("clock", "Tells the time.", {"type": "object", "properties": {}}), "box", "clock")


def built(facts: ModelFacts, ask: Ask, quirks: Quirks, **spec: Any) -> dict[str, Any]:
    schemas = [schema_in_dialect(tool.spec.parameters, quirks.schema) for tool in ask.tools]
    return body_from_ask(facts, ask, RunSpec(messages=(), **spec), quirks, schemas=schemas)


def body(ask: Ask | None = None, defaults: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return built(ModelFacts("m", parameters=defaults or {}), ask or Ask([USER]), Quirks(), **spec)


def test_without_tools_nothing_about_tools_is_sent() -> None:
    sent = body(Ask([USER], tool_choice="none"), parallel_tool_calls=False, parameters={"tools": []})
    assert sent == {"model": "m", "messages": [USER], "stream": True, "stream_options": {"include_usage": True}}


def test_tools_are_sent_as_functions_with_the_choice() -> None:
    sent = body(Ask([USER], [CLOCK], "required"), parallel_tool_calls=False)
    function = {"name": "clock", "description": "Tells the time.", "parameters": CLOCK.spec.parameters}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == "required"
    assert sent["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body(Ask([USER], [CLOCK]))


def test_a_provider_is_appended_to_the_model() -> None:
    assert body(provider="fast")["model"] == "m:fast"


PARAMETERS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {"temperature": 0.2}, {"temperature": 0.2}),
    ({"temperature": 0.9, "top_p": 1}, {"temperature": 0}, {"temperature": 0, "top_p": 1}),
    ({"temperature": 0.9}, {"temperature": None}, {"temperature": 0.9}),
    ({"stop": None}, {"seed": None}, {}),
    ({"max_tokens": 9}, {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
    ({"max_completion_tokens": 9}, {"max_tokens": 5}, {"max_tokens": 5}),
    ({}, {"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    ({"stream": False, "model": "x", "messages": []}, {"stream_options": {}}, {}),
]


@pytest.mark.parametrize(("defaults", "parameters", "expected"), PARAMETERS)
def test_the_callers_parameters_go_before_the_models(
    defaults: dict[str, Any], parameters: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert body(defaults=defaults, parameters=parameters) == {**body(), **expected}


REQUESTS = [
    path for path in sorted((Path(__file__).parent / "streams").glob("*.req.json")) if "notjson" not in path.name
]


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.name.removesuffix(".req.json"))
def test_histories_that_real_servers_refused_are_put_right(path: Path) -> None:
    recorded = json.loads(path.read_text())
    for message in body(Ask(recorded.get("messages", [])))["messages"]:
        assert "content" in message
        assert message["role"] != "tool" or isinstance(message["content"], str)
        for call in message.get("tool_calls", []):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_what_json_cannot_carry_is_replaced() -> None:
    sent = encodable({"messages": [{"role": "user", "content": "a\ud800b", "score": float("nan")}]})
    assert sent == {"messages": [{"role": "user", "content": "a\ufffdb", "score": None}]}


# What an endpoint takes


def asked(facts: dict[str, Any], ask: Ask | None = None, **spec: Any) -> dict[str, Any]:
    return built(ModelFacts("m"), ask or Ask([USER], [CLOCK]), quirks_with(Quirks(), facts), **spec)


NAMED = {"type": "function", "function": {"name": "clock"}}
LOST = {"type": "function", "function": {"name": "gone"}}
JSON_ONLY = {"response_format": {"type": "json_object"}}


def test_what_an_endpoint_refuses_is_left_out() -> None:
    sent = asked({"leaveOut": ["stream_options", "parallel_tool_calls", "seed"]}, parallel_tool_calls=True)
    assert not {"stream_options", "parallel_tool_calls", "seed"} & set(sent)


@pytest.mark.parametrize(
    ("fact", "choice", "expected"),
    [
        ("any", "auto", "auto"),
        ("any", "required", "required"),
        ("any", NAMED, NAMED),
        ("any", LOST, "auto"),
        ("auto", "required", "auto"),
        ("auto", NAMED, "auto"),
        ("absent", "required", None),
    ],
)
def test_the_choice_is_one_that_the_endpoint_takes_and_names_a_tool_that_is_sent(
    fact: str, choice: Any, expected: Any
) -> None:
    assert asked({"toolChoice": fact}, Ask([USER], [CLOCK], choice)).get("tool_choice") == expected


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_the_answer_goes_by_the_name_that_the_endpoint_knows(limit: str) -> None:
    for given in ("max_tokens", "max_completion_tokens"):
        sent = asked({"outputLimit": limit}, parameters={given: 7})
        assert {name: sent[name] for name in sent if name.startswith("max_")} == {limit: 7}


def test_a_response_format_waits_for_the_request_without_tools_where_it_must() -> None:
    facts = {"responseFormat": "without_tools"}
    assert "response_format" not in asked(facts, parameters=JSON_ONLY)
    assert asked(facts, Ask([USER]), parameters=JSON_ONLY)["response_format"] == JSON_ONLY["response_format"]
    assert asked({}, parameters=JSON_ONLY)["response_format"] == JSON_ONLY["response_format"]


def test_a_description_is_cut_visibly_at_the_endpoints_limit() -> None:
    long = Tool(ToolSpec("find", "x" * 3500, {"type": "object"}), "box", "find")
    (sent,) = asked({"descriptionCharacters": 1024}, Ask([USER], [long]))["tools"]
    description = sent["function"]["description"]
    assert len(description) == 1024
    assert description.endswith("x […]")


@pytest.mark.anyio
async def test_a_schema_is_fitted_to_the_dialect_and_once_only() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string", "pattern": "^x$"}}}
    tool = Tool(ToolSpec("mail", "Mails.", schema), "box", "mail")
    facts = {"schema": {"patterns": False}}
    dialect = quirks_with(Quirks(), facts).schema
    (first,), (second,) = [await fitted_schemas([tool], dialect) for _ in range(2)]
    assert first == asked(facts, Ask([USER], [tool]))["tools"][0]["function"]["parameters"]
    assert "pattern" not in first["properties"]["to"]
    assert first is second
    assert "pattern" in asked({}, Ask([USER], [tool]))["tools"][0]["function"]["parameters"]["properties"]["to"]


def tools_of(**counts: int) -> list[Tool]:
    return [
        Tool(ToolSpec(f"{server}_{number}", "x", {}), server, str(number))
        for server, count in counts.items()
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("counts", "limit", "shares"),
    [
        ({"a": 50, "b": 50, "c": 50}, 128, {"a": 42, "b": 43, "c": 43}),
        ({"a": 200, "b": 3}, 128, {"a": 125, "b": 3}),
        ({"a": 3, "b": 200, "c": 90}, 128, {"a": 3, "b": 63, "c": 62}),
        ({"a": 128}, 128, {"a": 128}),
        ({"a": 1, "b": 1}, 1, {"a": 0, "b": 1}),
    ],
)
def test_too_many_tools_are_shared_out_fairly_and_in_order(
    counts: dict[str, int], limit: int, shares: dict[str, int]
) -> None:
    tools = tools_of(**counts)
    offered = offered_tools(tools, quirks_with(Quirks(), {"maxTools": limit}))
    assert {server: sum(tool.server == server for tool in offered) for server in counts} == shares
    assert [tool for tool in tools if tool in offered] == offered
    for server in counts:
        assert [int(tool.name) for tool in offered if tool.server == server] == list(range(shares[server]))


def test_what_was_offered_stays_when_others_join_and_the_named_one_is_always_there() -> None:
    quirks = quirks_with(Quirks(), {"maxTools": 4})
    few = offered_tools(tools_of(a=9), quirks)
    many = tools_of(a=9, b=9)
    assert offered_tools(many, quirks, kept={tool.spec.name for tool in few}) == few
    assert [tool.spec.name for tool in offered_tools(many, quirks)] == ["a_0", "a_1", "b_0", "b_1"]
    named = offered_tools(many, quirks, named="b_8", kept={tool.spec.name for tool in few})
    assert [tool.spec.name for tool in named] == ["a_0", "a_1", "a_2", "b_8"]
    shrunk = quirks_with(quirks, {"maxTools": 2})
    assert [tool.spec.name for tool in offered_tools(many, shrunk, kept={"a_0", "a_1", "a_2"})] == ["a_0", "b_0"]


def test_a_refused_tool_is_not_offered_until_it_is_another() -> None:
    tools = tools_of(a=2)
    quirks = replace(Quirks(), refused_tools=(tool_digest(tools[0]),))
    assert offered_tools(tools, quirks) == tools[1:]
    other = replace(tools[0], spec=replace(tools[0].spec, description="y"))
    assert offered_tools([other], quirks) == [other]


def test_a_model_without_tools_is_offered_none() -> None:
    assert offered_tools(tools_of(a=2), quirks_with(Quirks(), {"tools": False})) == []
