"""What providers refuse in requests: what the model is asked must be what they all take."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.raw_mcp import open_raw_mcp, tool_entry
from tests.fakes.service import Run, open_service, operator_server
from tests.fakes.upstream import Answer, Request, end, failure, open_upstream, reasoning, stream, text
from tests.field.serving import TOOLS, Field, echoed_calls, is_valid_history, open_field, tool_messages
from tests.field.test_streams import CLOCK, END, delta, fn, tc

pytestmark = pytest.mark.anyio

CALL = tc(fn("clock", "{}", index=0, id="c1"))


DONE = stream(text("Done."), end())


def text_of(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "resultType": "complete"}


def refusing(complaint: Answer, refuses: Callable[[Any], bool]) -> Callable[[Request], Answer]:
    """Answer as an endpoint that complains of requests of one kind, and otherwise calls the clock once."""

    def script(request: Request) -> Answer:
        if refuses(request.json):
            return complaint
        return DONE if tool_messages(request.json) else stream(CALL, END)

    return script


def said(run: Run) -> list[str]:
    return [data["code"] for data in run.named("notice")]


async def test_fr_035_refused_field_is_left_out_at_once_and_for_good() -> None:
    complaint = failure(400, "unknown field stream_options", param="stream_options")
    async with open_field(refusing(complaint, lambda body: "stream_options" in body)) as it:
        first, second = await it.run(), await it.run()
    assert first.answer["text"] == second.answer["text"] == "Done."
    assert ["stream_options" in request.json for request in it.upstream.asks] == [True, *[False] * 4]
    assert said(first) == ["request_adapted"]
    assert "stream_options" in first.named("notice")[0]["message"]
    assert said(second) == []
    assert it.executed == [*CLOCK, *CLOCK]


async def test_fr_035_complaint_that_stays_ends_the_run_and_nothing_is_sent_twice() -> None:
    async with open_field(lambda _: failure(400, "unknown field stream_options", param="stream_options")) as it:
        run = await it.run()
    bodies = [json.dumps(request.json) for request in it.upstream.asks]
    assert len(bodies) == len(set(bodies)) == 2
    assert (run.last["status"], run.last["code"]) == ("error", "upstream_refused")
    assert "unknown field stream_options" in run.last["message"]


async def test_fr_035_what_did_not_help_is_not_remembered() -> None:
    complaint = "unknown field stream_options (request {}-7f3e81b2c9)"
    answers = [failure(400, complaint.format(number)) for number in (1, 2)]
    async with open_field(answers) as it:
        first, second = await it.run(), await it.run()
    assert (first.last["code"], second.answer["text"]) == ("upstream_refused", "Done.")
    assert ["stream_options" in request.json for request in it.upstream.asks] == [True, False, True]


async def test_fr_035_what_helped_is_remembered_also_where_the_run_failed_for_another_reason() -> None:
    answers = [failure(400, "unknown field stream_options"), failure(400, "the account is closed")]
    async with open_field(answers) as it:
        first, second = await it.run(), await it.run()
    assert (first.last["code"], second.answer["text"]) == ("upstream_refused", "Done.")
    assert ["stream_options" in request.json for request in it.upstream.asks] == [True, False, False]


async def test_fr_035_two_complaints_of_one_endpoint_are_both_met() -> None:
    def script(request: Request) -> Answer:
        for name in ("stream_options", "parallel_tool_calls"):
            if name in request.json:
                return failure(422, f"unknown field {name}", param=name)
        return DONE

    async with open_field(script) as it:
        run = await it.run(parallel_tool_calls=True)
    assert run.answer["text"] == "Done."
    assert said(run) == ["request_adapted", "request_adapted"]


async def test_fr_036_nothing_about_tools_is_sent_where_there_are_none() -> None:
    async with open_field([stream(CALL, END)]) as it:
        await it.run(max_rounds=1, parallel_tool_calls=False)
        await it.run(server_names=[], parallel_tool_calls=False, tool_choice="auto")
    first, closing, plain = (request.json for request in it.upstream.asks)
    assert first["parallel_tool_calls"] is False
    for request in (closing, plain):
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(request)


def empty_content(body: Any) -> list[Any]:
    return [message.get("content", "absent") for message in body["messages"] if message.get("tool_calls")]


@pytest.mark.parametrize("wanted", ["", None, "absent"])
async def test_fr_037_empty_content_is_said_in_the_form_that_the_endpoint_takes(wanted: str | None) -> None:
    def refuses(body: Any) -> bool:
        return any(content != wanted for content in empty_content(body))

    async with open_field(refusing(failure(400, "content has a wrong type"), refuses)) as it:
        first, second = await it.run(), await it.run()
    assert first.answer["text"] == second.answer["text"] == "Done."
    assert it.executed == [*CLOCK, *CLOCK]
    assert [empty_content(request.json) for request in it.upstream.asks[-1:]] == [[wanted]]
    assert said(second) == []


async def test_fr_037_form_can_be_set_for_a_model() -> None:
    models = json.dumps([{"id": "m", "quirks": {"emptyContent": "null"}}])
    async with open_field([stream(CALL, END)], models=models) as it:
        run = await it.run()
    assert empty_content(it.request(1)) == [None]
    assert said(run) == []


async def test_fr_038_ids_are_mapped_on_both_sides_and_events_keep_the_original() -> None:
    def refuses(body: Any) -> bool:
        return any(not re.fullmatch("[a-zA-Z0-9]{9}", call["id"]) for call in echoed_calls(body))

    history = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [fn("clock", "{}", id="call_8f3a2b", type="function")]},
        {"role": "tool", "tool_call_id": "call_8f3a2b", "content": "noon"},
        {"role": "user", "content": "And now?"},
    ]
    async with open_field([failure(400, "id format: nine letters or digits"), stream(CALL, END)]) as it:
        run = await it.run(messages=history)
    assert all(is_valid_history(request.json) for request in it.upstream.asks)
    assert [refuses(request.json) for request in it.upstream.asks] == [True, False, False]
    assert run.named("tool/call")[0]["originalId"] == "c1"
    assert run.answer["text"] == "Done."


PICTURE = {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "resultType": "complete"}


def pictures(body: Any) -> list[int]:
    """The places of messages that hold a picture."""
    return [at for at, message in enumerate(body["messages"]) if "data:image/png" in json.dumps(message)]


async def snapshot(it: Field, run: Run) -> Any:
    run_id = run.status("started")["runId"]
    return (await it.service.client.get(f"/v1/runs/{run_id}")).json()


@pytest.mark.parametrize(("multimodal", "expected"), [(True, [5]), (False, []), (None, [])])
async def test_fr_039_images_go_to_a_model_that_takes_them_after_all_results_of_the_round(
    multimodal: bool | None, expected: list[int]
) -> None:
    models = json.dumps([{"id": "m", "multimodal": multimodal}])
    two = tc(fn("clock", "{}", index=0, id="c1"), fn("clock", '{"a":1}', index=1, id="c2"))
    async with open_field([stream(two, END)], result=PICTURE, models=models) as it:
        run = await it.run()
        ended = await snapshot(it, run)
    assert pictures(it.request(1)) == expected
    assert is_valid_history(it.request(1))
    assert [message["role"] for message in it.request(1)["messages"]][2:5] == ["assistant", "tool", "tool"]
    assert [message["role"] for message in ended["messages"]] == ["assistant", "tool", "tool", "assistant"]


async def test_fr_039_images_of_the_caller_are_words_for_a_model_that_takes_none() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    models = json.dumps([{"id": "m", "multimodal": False}])
    async with open_field([], models=models) as it:
        run = await it.run(messages=[{"role": "user", "content": [{"type": "text", "text": "Look"}, image]}])
    assert pictures(it.request(0)) == []
    assert said(run) == ["images_left_out"]


async def test_fr_039_image_of_a_tool_is_a_text_in_the_tool_message() -> None:
    image = {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "resultType": "complete"}
    async with open_field([stream(CALL, END)], result=image) as it:
        await it.run()
    (message,) = tool_messages(it.request(1))
    assert isinstance(message["content"], str)
    assert "image/png" in message["content"]
    assert "aGk=" not in message["content"]


async def test_fr_040_there_is_one_system_message_and_it_is_the_first() -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "system", "content": "tool hints"},
    ]
    async with open_field([]) as it:
        await it.run(messages=messages)
    said = it.request(0)["messages"]
    assert [message["role"] for message in said] == ["system", "user"]
    assert said[0]["content"].endswith("a\n\ntool hints")


LOST: list[list[dict[str, Any]]] = [
    [{"role": "assistant", "content": None, "tool_calls": [fn("f", "{}", id="c1", type="function")]}],
    [{"role": "tool", "tool_call_id": "c9", "content": "an orphan"}],
    [
        {"role": "assistant", "content": "", "tool_calls": [fn("f", "{bad", id="c1", type="function")]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "parts"}]},
    ],
]


@pytest.mark.parametrize("history", LOST)
async def test_fr_041_history_with_holes_is_made_whole(history: list[dict[str, Any]]) -> None:
    async with open_field([stream(CALL, END)]) as it:
        await it.run(messages=[*history, {"role": "user", "content": "go on"}])
    assert all(is_valid_history(request.json) for request in it.upstream.asks)
    assert it.executed == CLOCK
    given = [message["content"] for message in history if message["role"] == "tool"]
    kept = [message["content"] for message in tool_messages(it.request(0))]
    assert all((text if isinstance(text, str) else "parts") in kept for text in given)


async def test_fr_041_ids_of_the_history_are_not_given_again() -> None:
    history = [
        {"role": "assistant", "content": None, "tool_calls": [fn("clock", "{}", id="c1", type="function")]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    async with open_field([stream(CALL, END)]) as it:
        run = await it.run(messages=[*history, {"role": "user", "content": "and now?"}])
    ids = [call["id"] for call in echoed_calls(it.request(1))]
    assert ids[0] == "c1"
    assert len(set(ids)) == 2
    assert run.named("tool/call")[0]["originalId"] == "c1"


THOUGHTS: list[tuple[list[Any], dict[str, Any]]] = [
    ([reasoning("need "), reasoning("the time")], {"reasoning_content": "need the time"}),
    ([delta(reasoning="so\n")], {"reasoning": "so\n"}),
    (
        [
            delta(reasoning="a", reasoning_details=[{"type": "reasoning.text", "text": "a", "index": 0}]),
            delta(reasoning="b", reasoning_details=[{"type": "reasoning.text", "text": "b", "index": 0}]),
            delta(reasoning_details=[{"type": "reasoning.text", "signature": "c2ln", "index": 0}]),
        ],
        {
            "reasoning": "ab",
            "reasoning_details": [{"type": "reasoning.text", "text": "ab", "index": 0, "signature": "c2ln"}],
        },
    ),
    ([text("<think>\nhm"), text("</think>\n\n")], {"content": "<think>\nhm</think>\n\n"}),
    (
        [delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])],
        {"reasoning_content": "hm"},
    ),
]


@pytest.mark.parametrize(("chunks", "fields"), THOUGHTS)
async def test_fr_042_reasoning_is_echoed_byte_for_byte_where_it_is_wanted_and_nowhere_else(
    chunks: list[Any], fields: dict[str, Any]
) -> None:
    models = json.dumps([{"id": "wants", "quirks": {"reasoning": "echo"}}, {"id": "plain"}])
    async with open_field([stream(*chunks, CALL, END)], models=models) as it:
        await it.service.run(model="wants")
    assert it.request(1)["messages"][2].items() >= fields.items()
    async with open_field([stream(*chunks, CALL, END)], models=models) as it:
        await it.service.run(model="plain")
    assert not {"reasoning", "reasoning_content", "reasoning_details"} & set(it.request(1)["messages"][2])
    assert it.request(1)["messages"][2]["content"] == ""


async def test_fr_042_endpoint_that_demands_its_reasoning_gets_it() -> None:
    def script(request: Request) -> Answer:
        if not tool_messages(request.json):
            return stream(reasoning("need the time"), CALL, END)
        (asked,) = (message for message in request.json["messages"] if message.get("tool_calls"))
        missing = failure(400, "Missing `reasoning_content` field in the assistant message")
        return DONE if "reasoning_content" in asked else missing

    async with open_field(script) as it:
        run = await it.run(reasoning="hidden")
        ended = await snapshot(it, run)
    assert run.answer["text"] == "Done."
    assert it.executed == CLOCK
    assert it.request(2)["messages"][2]["reasoning_content"] == "need the time"
    assert "need the time" not in json.dumps([ended, *(event.data for event in run.events)])


async def test_fr_042_reasoning_of_a_model_that_preserves_it_is_part_of_the_conversation() -> None:
    models = json.dumps([{"id": "m", "preservesReasoning": True}])
    answers = [stream(reasoning("r1"), CALL, END), stream(reasoning("r2"), text("Noon."), end())]
    user = {"role": "user", "content": "Time?"}
    async with open_field(answers, models=models) as it:
        ended = await snapshot(it, await it.run())
        await it.run(messages=[user, *ended["messages"], user])
    assert it.request(1)["messages"][2]["reasoning_content"] == "r1"
    kept = [message.get("reasoning_content") for message in it.request(2)["messages"] if message["role"] == "assistant"]
    assert kept == ["r1", "r2"]
    assert ended["messages"][-1]["content"] == "Noon."


async def test_fr_043_unknown_fields_of_a_call_are_echoed_on_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    async with open_field([stream(tc(fn("clock", "{}", index=0, id="c1", extra_content=extra)), END)]) as it:
        await it.run()
    assert echoed_calls(it.request(1))[0]["extra_content"] == extra


LOG = "line of a log\n" * 4000
FULL = failure(400, "prompt 90000, window 65536", code="context_length_exceeded")


async def test_fr_044_newest_results_are_shortened_once_and_the_model_is_told() -> None:
    async with open_field([stream(CALL, END), FULL], result=text_of(LOG)) as it:
        run = await it.run()
    assert run.answer["text"] == "Done."
    assert it.executed == CLOCK
    assert said(run) == ["context_shortened"]
    (before,), (after,) = (tool_messages(request.json) for request in it.upstream.asks[1:])
    assert len(after["content"]) < 0.7 * len(before["content"])
    assert after["content"].startswith("line of a log")
    assert after["content"].endswith("line of a log\n")
    assert "left out" in after["content"]
    assert is_valid_history(it.request(2))


async def test_fr_044_conversation_that_stays_too_long_is_a_clear_error_that_keeps_what_was_said() -> None:
    async with open_field([stream(text("Let me see."), CALL, END), FULL, FULL], result=text_of(LOG)) as it:
        run = await it.run()
    assert (run.last["status"], run.last["code"]) == ("error", "context_length_exceeded")
    assert len(it.upstream.asks) == 3
    assert run.text == "Let me see."
    assert len(run.named("tool/result")) == 1


async def test_fr_044_with_nothing_to_shorten_the_error_comes_at_once() -> None:
    async with open_field([FULL]) as it:
        run = await it.run()
    assert run.last["code"] == "context_length_exceeded"
    assert len(it.upstream.asks) == 1


async def test_fr_044_newest_result_goes_first() -> None:
    other = tc(fn("clock", '{"a":1}', index=0, id="c2"))
    async with open_field([stream(CALL, END), stream(other, END), FULL], result=text_of(LOG)) as it:
        await it.run()
    first, second = (len(message["content"]) for message in tool_messages(it.request(3)))
    assert first >= 0.99 * len(LOG)
    assert second <= 0.75 * len(LOG)


async def test_fr_045_wait_that_the_body_asks_for_is_waited() -> None:
    async with open_field([stream(CALL, END), failure(429, "Rate limit reached. Please try again in 12ms.")]) as it:
        run = await it.run()
    assert [data["delay"] for data in run.named("status") if data["status"] == "retrying"] == [0.012]
    assert it.executed == CLOCK
    assert run.answer["text"] == "Done."


def parameters(body: Any, name: str) -> Any:
    return next(tool["function"]["parameters"] for tool in body["tools"] if tool["function"]["name"] == name)


MAIL: dict[str, Any] = {"type": "object", "properties": {"to": {"type": "string", "pattern": "^(?!\\.)[\\w.]+@x$"}}}


async def test_fr_055_patterns_that_cannot_be_compiled_are_left_out_and_the_rule_is_told() -> None:
    tools = [*TOOLS, tool_entry("mail", inputSchema=MAIL)]
    complaint = failure(400, "grammar could not be built")
    async with open_field(refusing(complaint, lambda body: '"pattern"' in json.dumps(body)), tools=tools) as it:
        first, second = await it.run(), await it.run()
    assert first.answer["text"] == second.answer["text"] == "Done."
    to = parameters(it.request(1), "mail")["properties"]["to"]
    assert "pattern" not in to
    assert MAIL["properties"]["to"]["pattern"] in to["description"]
    assert (said(first), said(second)) == (["schema_adapted"], [])


async def test_fr_055_patterns_can_be_left_out_from_the_start() -> None:
    models = json.dumps([{"id": "m", "quirks": {"schema": {"patterns": False}}}])
    async with open_field([], tools=[tool_entry("mail", inputSchema=MAIL)], models=models) as it:
        await it.run()
    assert "pattern" not in parameters(it.request(0), "mail")["properties"]["to"]


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"param": "tools[0].function.parameters"}, "bad schema"),
    ({}, "bad schema for function 'look_up'"),
    ({"param": None}, "Invalid schema for function 'look_up': In context=('properties', 'q'), unknown keyword"),
]


@pytest.mark.parametrize(("fields", "message"), NAMED)
async def test_fr_058_refused_tool_is_left_out_by_name_and_the_chat_goes_on(fields: Any, message: str) -> None:
    def refuses(body: Any) -> bool:
        return any(tool["function"]["name"] == "look_up" for tool in body.get("tools", ()))

    async with open_field(refusing(failure(400, message, **fields), refuses)) as it:
        first, second = await it.run(), await it.run()
    assert first.answer["text"] == second.answer["text"] == "Done."
    for run in (first, second):
        (notice,) = run.named("notice")
        assert (notice["code"], notice["server"], notice["tool"]) == ("tool_dropped", "box", "look_up")
    assert message in first.named("notice")[0]["message"]
    named = [re.findall(r"look_up|clock", request.json["messages"][0]["content"]) for request in it.upstream.asks]
    assert named == [["look_up", "clock"], *[["clock"]] * 4]
    assert len(it.upstream.asks) == 5
    assert [tool["function"]["name"] for tool in it.request(1)["tools"]] == ["clock", "save"]


async def test_fr_058_several_bad_tools_are_left_out_one_after_the_other() -> None:
    bad = {"look_up", "save"}

    def script(request: Request) -> Answer:
        for at, tool in enumerate(request.json["tools"]):
            if tool["function"]["name"] in bad:
                return failure(400, "schema error", param=f"tools[{at}].function.parameters")
        return DONE

    async with open_field(script) as it:
        run = await it.run()
    assert run.answer["text"] == "Done."
    assert {data["tool"] for data in run.named("notice")} == bad


async def test_fr_058_a_tool_that_moved_into_the_place_of_a_bad_one_is_another_tool() -> None:
    tools = [tool_entry(f"t{number}") for number in range(12)]

    def script(request: Request) -> Answer:
        bad = [at for at, tool in enumerate(request.json["tools"]) if tool["function"]["name"] != "t11"]
        return failure(400, "schema error", param=f"tools[{bad[0]}].function.parameters") if bad else DONE

    async with open_field(script, tools=tools) as it:
        run = await it.run()
    assert run.answer["text"] == "Done."
    assert len(it.upstream.asks) == 12
    assert said(run) == ["tool_dropped"] * 11


async def test_fr_058_model_that_takes_no_tools_answers_without_and_is_not_offered_them_again() -> None:
    def script(request: Request) -> Answer:
        return failure(400, "m does not support tools") if "tools" in request.json else DONE

    async with open_field(script) as it:
        first, second = await it.run(), await it.run()
    assert said(first) == ["tools_refused"]
    assert first.answer["text"] == second.answer["text"] == "Done."
    assert "look_up" in it.request(0)["messages"][0]["content"]
    assert [message["role"] for message in it.request(1)["messages"]] == ["user"]
    assert second.status("prepared")["reason"] == "model_without_tools"
    assert ["tools" in request.json for request in it.upstream.asks] == [True, False, False]


async def test_fr_063_long_description_is_cut_visibly_where_the_endpoint_refuses_it() -> None:
    tools = [tool_entry("clock"), tool_entry("find", description="x" * 3500)]

    def longest(body: Any) -> int:
        return max(len(tool["function"]["description"]) for tool in body["tools"])

    complaint = failure(400, "over 1024", param="tools[1].function.description")
    async with open_field(refusing(complaint, lambda body: longest(body) > 1024), tools=tools) as it:
        first, second = await it.run(), await it.run()
    assert [longest(request.json) for request in it.upstream.asks] == [3500, *[1024] * 4]
    assert it.request(1)["tools"][1]["function"]["description"].endswith("…]")
    assert (said(first), said(second)) == (["description_cut"], [])


async def test_fr_063_limit_can_be_set_and_a_tool_without_description_has_one() -> None:
    models = json.dumps([{"id": "m", "quirks": {"descriptionCharacters": 100}}])
    tools = [tool_entry("find", description="x" * 3500), tool_entry("clock", description="")]
    async with open_field([], tools=tools, models=models) as it:
        await it.run()
    first, second = (tool["function"]["description"] for tool in it.request(0)["tools"])
    assert len(first) == 100
    assert second.strip()


@pytest.mark.parametrize("limit", [None, 12, 64])
async def test_fr_064_too_many_tools_are_left_out_fairly_and_the_user_learns_how_many(limit: int | None) -> None:
    def script(request: Request) -> Answer:
        count = len(request.json["tools"])
        return failure(400, f"at most {limit} entries", param="tools") if limit and count > limit else DONE

    def listing(letter: str) -> list[Any]:
        return [tool_entry(f"{letter}{number:02}") for number in range(50)]

    async with (
        open_raw_mcp(tools=listing("a")) as one,
        open_raw_mcp(tools=listing("b")) as two,
        open_raw_mcp(tools=listing("c")) as three,
        open_upstream(script) as upstream,
    ):
        servers = [operator_server(name, mcp.url) for name, mcp in (("a", one), ("b", two), ("c", three))]
        async with open_service(upstream, extra_servers=servers) as service:
            first, second = await service.run(model="m"), await service.run(model="m")
    names = [[tool["function"]["name"] for tool in request.json["tools"]] for request in upstream.asks]
    offered = names[-1]
    assert len(offered) == (limit or 128)
    shares = [sum(name.startswith(letter) for name in offered) for letter in "abc"]
    assert max(shares) - min(shares) <= 1
    assert offered == sorted(offered)
    assert names[-2] == offered
    assert said(first)[0] == said(second)[0] == "tools_left_out"
    assert second.named("notice")[0]["leftOut"] == 150 - len(offered)
    system = upstream.asks[-1].json["messages"][0]["content"]
    assert all(f" {name}" in system for name in offered)
    assert "a49" not in system


async def test_fr_045_short_wait_in_the_middle_of_a_run_is_waited_and_tools_do_not_run_again() -> None:
    async with open_field([stream(CALL, END), failure(429, "slow down", {"Retry-After": "0.01"})]) as it:
        run = await it.run()
    assert it.executed == CLOCK
    assert [data["delay"] for data in run.named("status") if data["status"] == "retrying"] == [0.01]
    assert run.answer["text"] == "Done."


async def test_reasoning_is_no_part_of_what_the_model_is_told_it_said() -> None:
    async with open_field([stream(reasoning("need the time"), CALL, END)]) as it:
        await it.run(reasoning="inline")
    assert it.request(1)["messages"][2]["content"] == ""


TAGGED = '<tool_call>{"name":"clock","arguments":{}}</tool_call>'


async def test_fr_103_call_written_into_the_closing_answer_is_told() -> None:
    async with open_field([stream(CALL, END), stream(text(TAGGED), end())]) as it:
        run = await it.run(max_rounds=1)
    assert it.executed == CLOCK
    assert said(run) == ["round_limit", "written_call"]


async def test_fr_103_endpoint_that_wants_tools_beside_old_calls_gets_their_names_for_the_closing_answer() -> None:
    def script(request: Request) -> Answer:
        if not echoed_calls(request.json):
            return stream(CALL, END)
        missing = failure(400, "This model doesn't support tool calling without `tools=` param specified")
        return DONE if "tools" in request.json else missing

    async with open_field(script) as it:
        run = await it.run(max_rounds=1)
    assert (run.answer["text"], run.answer["reason"]) == ("Done.", "rounds")
    closing = it.request(2)
    assert [tool["function"]["name"] for tool in closing["tools"]] == ["clock"]
    assert closing["tool_choice"] == "none"


async def test_fr_064_named_tool_is_offered_also_where_there_are_too_many() -> None:
    tools = [tool_entry(f"t{number}") for number in range(20)]
    models = json.dumps([{"id": "m", "quirks": {"maxTools": 5}}])
    choice = {"type": "function", "function": {"name": "t17"}}
    async with open_field([], tools=tools, models=models) as it:
        await it.run(tool_choice=choice)
    assert [tool["function"]["name"] for tool in it.request(0)["tools"]] == ["t0", "t1", "t2", "t3", "t17"]
    assert it.request(0)["tool_choice"] == choice


async def test_what_is_left_out_of_a_request_is_told_in_later_runs_too() -> None:
    def script(request: Request) -> Answer:
        return failure(400, "Unknown parameter: 'seed'.", param="seed") if "seed" in request.json else DONE

    async with open_field(script) as it:
        runs = [await it.run(seed=7), await it.run(seed=7), await it.run()]
    assert [said(run) for run in runs] == [["request_adapted"], ["request_adapted"], []]
    assert "seed" in runs[1].named("notice")[0]["message"]


async def test_tools_that_are_forced_are_sent_in_spite_of_what_is_known() -> None:
    models = json.dumps([{"id": "m", "quirks": {"tools": False}}])
    async with open_field([], models=models) as it:
        plain, forced = await it.run(), await it.run(force_tools=True)
    assert plain.status("prepared")["reason"] == "model_without_tools"
    assert forced.status("prepared")["tools"] == "active"
    assert ["tools" in request.json for request in it.upstream.asks] == [False, True]


async def test_names_in_the_callers_history_are_in_the_form_that_endpoints_take() -> None:
    history = [
        {"role": "assistant", "content": "", "tool_calls": [fn("My server.get time", "{}", id="c1", type="function")]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "user", "content": "And now?"},
    ]
    async with open_field([]) as it:
        await it.run(messages=history)
    assert echoed_calls(it.request(0))[0]["function"]["name"] == "My_server_get_time"


async def test_thought_that_was_not_closed_does_not_take_our_words_into_the_conversation() -> None:
    models = json.dumps([{"id": "m", "preservesReasoning": True}])
    async with open_field([stream(text("<think>the answer"), end("length"))], models=models) as it:
        run = await it.run()
        ended = await snapshot(it, run)
    content = ended["messages"][-1]["content"]
    assert content == f"<think>the answer</think>\n\n{run.answer['text']}"
