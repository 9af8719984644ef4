"""What is sent to the endpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.domain.messages import ToolSpec
from app.domain.ports import Ask
from app.domain.spec import RunSpec
from app.upstream.request import body_from_ask, encodable, message_for_model

USER = {"role": "user", "content": "Hi"}
CLOCK = ToolSpec("clock", "Tells the time.", {"type": "object", "properties": {}})
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def body(ask: Ask | None = None, defaults: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return body_from_ask("m", ask or Ask([USER]), RunSpec(messages=(), **spec), defaults or {})


def test_without_tools_nothing_about_tools_is_sent() -> None:
    sent = body(Ask([USER], tool_choice="none"), parallel_tool_calls=False, parameters={"tools": []})
    assert sent == {"model": "m", "messages": [USER], "stream": True, "stream_options": {"include_usage": True}}


def test_tools_are_sent_as_functions_with_the_choice() -> None:
    sent = body(Ask([USER], [CLOCK], "required"), parallel_tool_calls=False)
    function = {"name": "clock", "description": "Tells the time.", "parameters": CLOCK.parameters}
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


def _calling(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}],
    }


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
MESSAGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "user, with images": ({"role": "user", "content": [IMAGE]}, {"role": "user", "content": [IMAGE]}),
    "system, unknown fields": (
        {"role": "system", "content": "x", "cache": 1},
        {"role": "system", "content": "x", "cache": 1},
    ),
    "assistant without content": (
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ),
    "assistant with null content": (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**CALL, "extra_content": {"x": 1}}],
            "reasoning_content": "r",
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**CALL, "extra_content": {"x": 1}}],
            "reasoning_content": "r",
        },
    ),
    "assistant with no calls": (
        {"role": "assistant", "content": "Hi", "tool_calls": []},
        {"role": "assistant", "content": "Hi"},
    ),
    "assistant with null calls": (
        {"role": "assistant", "content": "Hi", "tool_calls": None},
        {"role": "assistant", "content": "Hi"},
    ),
    "arguments an object": (_calling({"q": "é"}), _calling('{"q": "é"}')),
    "arguments as they should be": (_calling('{ "q": 1 }'), _calling('{ "q": 1 }')),
    "arguments blank": (_calling(" "), _calling("{}")),
    "arguments null": (_calling(None), _calling("{}")),
    "arguments cut": (_calling('{"q": "Par'), _calling("{}")),
    "arguments no object": (_calling("[1]"), _calling("{}")),
    "arguments too deep": (_calling("[" * 100_000), _calling("{}")),
    "tool text": (
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ),
    "tool parts": (
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}, IMAGE, "b", 7]},
        {"role": "tool", "tool_call_id": "c1", "content": "a\n[image_url]\nb\n7"},
    ),
    "tool null": ({"role": "tool", "content": None}, {"role": "tool", "content": ""}),
    "tool without content": ({"role": "tool"}, {"role": "tool", "content": ""}),
    "tool object": ({"role": "tool", "content": {"celsius": 21}}, {"role": "tool", "content": '{"celsius": 21}'}),
}


@pytest.mark.parametrize(("message", "expected"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages_take_the_form_that_endpoints_take(message: dict[str, Any], expected: dict[str, Any]) -> None:
    before = json.dumps(message)
    assert message_for_model(message) == expected
    assert message_for_model(expected) == expected
    assert json.dumps(message) == before


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
