"""A conversation's messages as endpoints take them."""

import json
import re
from typing import Any

import pytest

from app.upstream.messages import messages_for_model
from app.upstream.quirks import Quirks, quirks_with

CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def _calling(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
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
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
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
            "content": "",
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
    assert messages_for_model([message], Quirks(), {}) == [expected]
    assert messages_for_model([expected], Quirks(), {}) == [expected]
    assert json.dumps(message) == before


def said(facts: dict[str, Any], *messages: dict[str, Any], thoughts: dict[str, Any] | None = None) -> list[Any]:
    before = json.dumps(messages)
    sent = messages_for_model(messages, quirks_with(Quirks(), facts), thoughts or {})
    assert json.dumps(messages) == before
    return sent


USER = {"role": "user", "content": "Hi"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "noon"}


def calling(content: Any = "", call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": [{**CALL, "id": call_id}], **fields}


@pytest.mark.parametrize("content", ["", None])
@pytest.mark.parametrize(
    ("form", "expected"), [("empty", {"content": ""}), ("null", {"content": None}), ("absent", {})]
)
def test_an_empty_text_beside_calls_is_said_in_the_endpoints_form(content: Any, form: str, expected: Any) -> None:
    (message,) = said({"emptyContent": form}, calling(content))
    assert {key: message[key] for key in message if key == "content"} == expected
    assert said({"emptyContent": form}, calling("One moment."))[0]["content"] == "One moment."


IDS = ["call_8f3a2b", "call_" + "x" * 60, "abcDEF123", "call.1:é", "toolu_01A09q90qw90lq917835lq9"]


@pytest.mark.parametrize(
    ("form", "fits"), [("nine", r"[a-zA-Z0-9]{9}"), ("plain", r"[a-zA-Z0-9_-]{1,40}"), ("any", r"(?s).+")]
)
def test_ids_of_calls_fit_the_endpoint_on_both_sides_and_stay_apart(form: str, fits: str) -> None:
    history = [message for id_ in IDS for message in (calling(call_id=id_), {**RESULT, "tool_call_id": id_})]
    sent = said({"callIds": form}, *history)
    made = [message["tool_calls"][0]["id"] for message in sent[::2]]
    assert made == [message["tool_call_id"] for message in sent[1::2]]
    assert len(set(made)) == len(IDS)
    assert all(re.fullmatch(fits, id_) for id_ in made)
    assert made[2] == "abcDEF123"
    assert said({"callIds": form}, *history[:2])[0]["tool_calls"][0]["id"] == made[0]


@pytest.mark.parametrize(
    ("fact", "given", "expected"),
    [
        ("given", {}, None),
        ("given", {"name": "x"}, "x"),
        ("required", {}, "clock"),
        ("required", {"name": "x"}, "x"),
        ("required", {"tool_call_id": "c9"}, "unknown_tool"),
        ("refused", {"name": "x"}, None),
    ],
)
def test_tool_messages_have_a_name_where_it_is_wanted(fact: str, given: dict[str, Any], expected: str | None) -> None:
    assert said({"toolName": fact}, calling(), {**RESULT, **given})[1].get("name") == expected


THOUGHT = {"reasoning_content": "so", "reasoning_details": [{"text": "so", "signature": "c2ln"}]}


def test_reasoning_is_given_back_where_the_endpoint_wants_it() -> None:
    asked = (USER, calling(), RESULT)
    assert said({}, *asked, thoughts={"c1": THOUGHT}) == list(asked)
    for fact in ("echo", "required"):
        assert said({"reasoning": fact}, *asked, thoughts={"c1": THOUGHT})[1] == {**calling(), **THOUGHT}
    assert said({"reasoning": "refused"}, *asked, thoughts={"c1": THOUGHT}) == list(asked)


def test_reasoning_of_the_callers_own_messages_passes_unless_it_is_refused() -> None:
    for fact in ("given", "echo", "required"):
        assert said({"reasoning": fact}, calling(reasoning_content="mine"))[0]["reasoning_content"] == "mine"
    assert "reasoning_content" not in said({"reasoning": "refused"}, calling(reasoning_content="mine"))[0]


def test_where_reasoning_is_required_no_message_with_calls_is_without() -> None:
    first, second = said({"reasoning": "required"}, calling(), calling(call_id="c2", reasoning="hm"))
    assert first["reasoning_content"] == ""
    assert second["reasoning_content"] == "hm"
    assert "reasoning_content" not in said({"reasoning": "required"}, {"role": "assistant", "content": "Hi"})[0]


def test_a_thought_from_the_text_stands_before_it_again_byte_for_byte() -> None:
    thought = {"content": "<think>\nhm</think>\n\n"}
    (message,) = said({"reasoning": "echo"}, calling("One moment."), thoughts={"c1": thought})
    assert message["content"] == "<think>\nhm</think>\n\nOne moment."


def test_content_of_text_parts_is_one_text_where_parts_are_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert said({"contentParts": False}, {"role": "user", "content": parts})[0]["content"] == "a\nb"
    assert said({}, {"role": "user", "content": parts})[0]["content"] == parts


def test_images_are_words_where_the_model_cannot_see() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Look:"}, IMAGE]}
    assert said({}, message) == [message]
    (sent,) = said({"images": False}, message)
    assert [part["type"] for part in sent["content"]] == ["text", "text"]
    assert "aGk=" not in json.dumps(sent)
    (flat,) = said({"images": False, "contentParts": False}, message)
    assert flat["content"].startswith("Look:\n[")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], [{"role": "user", "content": "Be brief.\n\nHi"}]),
        (
            [{"role": "user", "content": [IMAGE]}],
            [{"role": "user", "content": [{"type": "text", "text": "Be brief."}, IMAGE]}],
        ),
        ([], [{"role": "user", "content": "Be brief."}]),
    ],
)
def test_the_system_text_stands_before_the_question_where_there_is_no_such_role(messages: Any, expected: Any) -> None:
    system = {"role": "system", "content": "Be brief."}
    assert said({"systemRole": False}, system, *messages) == expected
    assert said({}, system, *messages) == [system, *messages]
    assert said({"systemRole": False}, *messages) == messages
