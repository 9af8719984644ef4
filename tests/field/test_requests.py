"""What providers refuse in requests: what the model is asked must be what they all take."""

from typing import Any

import pytest

from tests.fakes.upstream import failure, reasoning, stream
from tests.field.serving import echoed_calls, is_valid_history, open_field, tool_messages
from tests.field.test_streams import CLOCK, END, fn, tc

pytestmark = pytest.mark.anyio

CALL = tc(fn("clock", "{}", index=0, id="c1"))


async def test_fr_036_nothing_about_tools_is_sent_where_there_are_none() -> None:
    async with open_field([stream(CALL, END)]) as it:
        await it.run(max_rounds=1, parallel_tool_calls=False)
        await it.run(server_names=[], parallel_tool_calls=False, tool_choice="auto")
    first, closing, plain = (request.json for request in it.upstream.asks)
    assert first["parallel_tool_calls"] is False
    for request in (closing, plain):
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(request)


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


async def test_fr_043_unknown_fields_of_a_call_are_echoed_on_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    async with open_field([stream(tc(fn("clock", "{}", index=0, id="c1", extra_content=extra)), END)]) as it:
        await it.run()
    assert echoed_calls(it.request(1))[0]["extra_content"] == extra


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
