"""What servers ask people is shown in MCP's words, or declined with a reason; pages are judged and never opened."""

from typing import Any

import pytest
from mcp_types import ElicitResult
from mcp_types._v2025_11_25 import ElicitRequestFormParams
from mcp_types._v2026_07_28 import ElicitRequestFormParams as ModernFormParams

from app.domain.errors import InvalidRequest
from app.domain.events import ElicitationAsked, InputAction, InputResolved
from app.domain.questions import CANCELLED, InputAnswer, Question
from app.toolbox.elicitation import Elicitation, elicitation_from_params, result_from_answer

Json = dict[str, Any]

NAME: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORM: Json = {"mode": "form", "message": "Who are you?", "requestedSchema": NAME}
PAGE: Json = {
    "mode": "url",
    "message": "Please sign in",
    "url": "https://mcp.example.com/consent?id=1",
    "elicitationId": "e1",
}


def put(params: Any) -> Elicitation:
    question = elicitation_from_params(params, server="Weather", tool_uuid="u1")
    assert isinstance(question, Elicitation), question
    return question


def refused(params: Any) -> bool:
    reason = elicitation_from_params(params, server="Weather", tool_uuid=None)
    return isinstance(reason, str) and reason.startswith("It ") and reason.endswith(".")


def test_a_form_is_asked_with_its_schema_and_the_call_it_belongs_to() -> None:
    question: Question = put(FORM)
    assert question.asked("i1", "2026-01-31T09:30:00Z") == ElicitationAsked(
        input_id="i1",
        server="Weather",
        request={"mode": "form", "message": "Who are you?", "requestedSchema": NAME},
        expires_at="2026-01-31T09:30:00Z",
        tool_uuid="u1",
    )


def test_a_page_is_asked_with_its_host_and_without_the_servers_own_id() -> None:
    assert put(PAGE).request == {
        "mode": "url",
        "message": "Please sign in",
        "url": "https://mcp.example.com/consent?id=1",
        "host": "mcp.example.com",
    }


def test_the_end_of_a_question_tells_action_and_who_ended_it() -> None:
    assert put(FORM).resolved("i1", CANCELLED, "expiry") == InputResolved("elicitation", "i1", "cancel", "expiry")


SHOWN_AS = {
    "no mode is a form": ({"message": "sure?", "requestedSchema": NAME}, "form"),
    "no schema is a confirmation": ({"message": "sure?"}, "form"),
    "null counts as absent": ({"mode": None, "message": "sure?", "requestedSchema": None, "url": None}, "form"),
    "no mode, but a page": ({"message": "go", "url": PAGE["url"]}, "url"),
    "what else MCP has beside it": ({**FORM, "_meta": {"a": 1}, "task": {"ttl": 1}}, "form"),
}


@pytest.mark.parametrize(("params", "mode"), SHOWN_AS.values(), ids=SHOWN_AS.keys())
def test_params_of_either_era_are_read(params: Json, mode: str) -> None:
    assert put(params).request["mode"] == mode


@pytest.mark.parametrize("model", [ElicitRequestFormParams, ModernFormParams])
def test_what_is_shown_is_what_mcp_calls_a_form(
    model: type[ElicitRequestFormParams] | type[ModernFormParams],
) -> None:
    model.model_validate(put({"message": "sure?"}).request)
    model.model_validate(put(FORM).request)


ODD: dict[str, Any] = {
    "nothing": None,
    "a text": "sure?",
    "a list": [FORM],
    "an unknown mode": {**FORM, "mode": "voice"},
    "a mode that is no text": {**FORM, "mode": {"form": True}},
    "a schema that is a list": {**FORM, "requestedSchema": [NAME]},
    "a secret": {**FORM, "requestedSchema": {"type": "object", "properties": {"password": {"type": "string"}}}},
    "a page without an address": {"mode": "url", "message": "go"},
    "an address that is no text": {**PAGE, "url": [PAGE["url"]]},
}


@pytest.mark.parametrize("params", ODD.values(), ids=ODD.keys())
def test_what_cannot_be_asked_is_declined_with_a_sentence(params: Any) -> None:
    assert refused(params)


MESSAGES: dict[str, tuple[Any, str]] = {
    "hidden characters go": ("a\u202eb\u200bc\U000e0041d\x1b[31m\ud800", "abcd[31m"),
    "lines stay": ("one\n\ttwo", "one\n\ttwo"),
    "a long one is cut": ("x" * 5000, "x" * 1999 + "…"),
    "none": (None, "The server does not say what for."),
    "nothing to see": ("\u3164\u200b \n", "The server does not say what for."),
    "no text": (["a"], "The server does not say what for."),
}


@pytest.mark.parametrize(("message", "shown"), MESSAGES.values(), ids=MESSAGES.keys())
@pytest.mark.parametrize("params", [FORM, PAGE], ids=["form", "url"])
def test_a_message_is_cleaned_and_capped(params: Json, message: Any, shown: str) -> None:
    assert put({**params, "message": message}).request["message"] == shown


PAGES: dict[str, str] = {
    "https://mcp.example.com/consent?id=1": "mcp.example.com",
    "https://App.Example.com/#/consent/1": "app.example.com",
    "https://example.org:8443/x": "example.org",
    "https://xn--pple-43d.com/": "xn--pple-43d.com",
    "https://192.175.48.6/": "192.175.48.6",
    "https://[2606:4700::1111]/": "[2606:4700::1111]",
    "https://example.org/" + "a" * 2028: "example.org",
}


@pytest.mark.parametrize(("url", "host"), PAGES.items(), ids=range(len(PAGES)))
def test_a_page_of_the_public_internet_is_shown_as_it_came_with_its_host(url: str, host: str) -> None:
    request = put({**PAGE, "url": url}).request
    assert (request["url"], request["host"]) == (url, host)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "http://example.org/login",
        "https://user:pw@example.org/",
        "https://example.org@evil.example.com/",
        "https:/example.org/",
        "//example.org/",
        "/login",
        "",
        "data:text/html,hi",
        "file:///etc/passwd",
        "https://",
        "https://localhost/",
        "https://intranet/",
        "https://printer.local/",
        "https://127.0.0.1/",
        "https://10.0.0.5/",
        "https://169.254.169.254/",
        "https://2130706433/",
        "https://[::1]/",
        "https://example.org:22/",
        "https://ex\u0430mple.org/",
        "https://example.org/\u202e",
        "https://example.org/a\nb",
        " https://example.org/",
        "https://example.org/#\u200b",
        "https://example.org/#a b",
        'https://example.org/"onclick="x',
        "https://example.org/#<b>",
        "https://example.org\\@evil.example.com/",
        "https://ex%61mple.org/",
        "https://example.org/" + "a" * 2029,
        "https://example.org/#" + "a" * 2028,
        "https://example.org/\ud800",
    ],
    ids=ascii,
)
def test_another_address_is_not_shown(url: str) -> None:
    assert refused({**PAGE, "url": url})


ANSWERS: dict[str, tuple[Json, InputAnswer, Json]] = {
    "a form": (FORM, InputAnswer("accept", content={"name": "Ann"}), {"action": "accept", "content": {"name": "Ann"}}),
    "a confirmation": ({"message": "sure?"}, InputAnswer("accept"), {"action": "accept", "content": {}}),
    "a form declined": (FORM, InputAnswer("decline", content={"name": 5}), {"action": "decline"}),
    "a form put away": (FORM, InputAnswer("cancel", content={"x": 1}), {"action": "cancel"}),
    "a page": (PAGE, InputAnswer("accept"), {"action": "accept"}),
    "a page with nothing": (PAGE, InputAnswer("accept", content={}), {"action": "accept"}),
    "a page declined": (PAGE, InputAnswer("decline", content={"x": 1}), {"action": "decline"}),
}


@pytest.mark.parametrize(("params", "answer", "result"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_reaches_the_server_in_mcps_words(params: Json, answer: InputAnswer, result: Json) -> None:
    told = result_from_answer(put(params).fitted(answer))
    assert told == result
    ElicitResult.model_validate(told)


MISFITS: dict[str, tuple[Json, InputAnswer, str]] = {
    "a field is missing": (FORM, InputAnswer("accept"), "content.name"),
    "a field is unknown": (FORM, InputAnswer("accept", content={"name": "Ann", "x": 1}), "content.x"),
    "a confirmation has no fields": ({"message": "sure?"}, InputAnswer("accept", content={"x": 1}), "content.x"),
    "a page takes no content": (PAGE, InputAnswer("accept", content={"x": 1}), "content"),
    "arguments": (FORM, InputAnswer("accept", arguments={}), "arguments"),
    "arguments with a decline": (PAGE, InputAnswer("decline", arguments={"a": 1}), "arguments"),
    "remembered": (FORM, InputAnswer("accept", content={"name": "Ann"}, remember="run"), "remember"),
}


@pytest.mark.parametrize(("params", "answer", "param"), MISFITS.values(), ids=MISFITS.keys())
def test_an_answer_that_does_not_fit_names_the_field(params: Json, answer: InputAnswer, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        put(params).fitted(answer)
    assert caught.value.param == param


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_content_never_leaves_without_an_accept(action: InputAction) -> None:
    assert result_from_answer(InputAnswer(action, content={"name": "Ann"})) == {"action": action}
