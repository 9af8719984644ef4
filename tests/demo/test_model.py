"""The scripted endpoint over a socket, as a client of OpenAI's API sees it."""

import json
from collections.abc import AsyncGenerator

import httpx
import pytest
from httpx_sse import aconnect_sse

from app.demo.listen import open_demo_model
from app.demo.script import SIGNATURE
from app.domain.jsontypes import Json, JsonObject

pytestmark = pytest.mark.anyio

TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("clock", "dice", "chart")
]
QUESTION = "Think: what time is it in Tokyo, and roll two dice"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[httpx.AsyncClient]:
    async with open_demo_model() as base_url, httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        yield client


def body(question: str = QUESTION, **more: Json) -> JsonObject:
    return {"model": "scripted-demo", "messages": [{"role": "user", "content": question}], "tools": TOOLS, **more}


async def chunks(client: httpx.AsyncClient, request: JsonObject) -> list[JsonObject]:
    """All chunks of a stream, which must end with `[DONE]`."""
    async with aconnect_sse(client, "POST", "chat/completions", json={**request, "stream": True}) as source:
        source.response.raise_for_status()
        frames = [frame.data async for frame in source.aiter_sse()]
    assert frames[-1] == "[DONE]"
    return [json.loads(frame) for frame in frames[:-1]]


def deltas(stream: list[JsonObject]) -> list[JsonObject]:
    return [chunk["choices"][0]["delta"] for chunk in stream if chunk["choices"]]


def put_together(stream: list[JsonObject]) -> list[tuple[str, Json]]:
    """Name and decoded arguments of each call, from its fragments."""
    calls: dict[int, list[str]] = {}
    for fragment in (part for delta in deltas(stream) for part in delta.get("tool_calls", [])):
        name, arguments = calls.setdefault(fragment["index"], ["", ""])
        function = fragment["function"]
        calls[fragment["index"]] = [name + function.get("name", ""), arguments + function["arguments"]]
    return [(name, json.loads(arguments)) for name, arguments in calls.values()]


async def test_parallel_calls_come_in_small_fragments_with_distinct_ids(model: httpx.AsyncClient) -> None:
    stream = await chunks(model, body())
    assert put_together(stream) == [("clock", {"zone": "Asia/Tokyo"}), ("dice", {"count": 2, "sides": 6})]
    fragments = [part for delta in deltas(stream) for part in delta.get("tool_calls", [])]
    assert len({part["id"] for part in fragments if "id" in part}) == 2
    assert len(fragments) > 4
    assert stream[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert {chunk["model"] for chunk in stream} == {"scripted-demo"}


async def test_reasoning_text_and_calls_come_in_this_order(model: httpx.AsyncClient) -> None:
    kinds = [next(iter(delta), "end") for delta in deltas(await chunks(model, body()))]
    runs = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert runs == ["role", "reasoning_content", "content", "tool_calls", "end"]


async def test_an_answer_streams_word_by_word_and_says_that_it_is_scripted(model: httpx.AsyncClient) -> None:
    stream = await chunks(model, body("Hello"))
    words = [delta["content"] for delta in deltas(stream) if delta.get("content")]
    assert len(words) > 10
    assert "".join(words).endswith(SIGNATURE)
    assert stream[-1]["choices"][0]["finish_reason"] == "stop"


async def test_usage_comes_last_when_asked_for(model: httpx.AsyncClient) -> None:
    plain = await chunks(model, body())
    assert not any(chunk.get("usage") for chunk in plain)
    last = (await chunks(model, body(stream_options={"include_usage": True})))[-1]
    usage = last["usage"]
    assert last["choices"] == []
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len(deltas(plain)) - 1


async def test_a_whole_reply_holds_what_the_stream_holds(model: httpx.AsyncClient) -> None:
    answer = (await model.post("chat/completions", json=body())).json()
    message = answer["choices"][0]["message"]
    stream = await chunks(model, body())
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert calls == put_together(stream)
    assert message["content"] == "".join(delta.get("content") or "" for delta in deltas(stream))
    assert message["reasoning_content"] == "".join(delta.get("reasoning_content", "") for delta in deltas(stream))
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["total_tokens"] > 0


_ALLOWED: list[tuple[JsonObject, list[str]]] = [
    ({}, ["clock", "dice"]),
    ({"parallel_tool_calls": False}, ["clock"]),
    ({"tool_choice": "none"}, []),
    ({"tool_choice": "auto"}, ["clock", "dice"]),
    ({"tool_choice": {"type": "function", "function": {"name": "dice"}}}, ["dice"]),
    ({"tools": []}, []),
    ({"tools": None}, []),
    ({"tools": [None, {"type": "web_search"}, *TOOLS]}, ["clock", "dice"]),
]


@pytest.mark.parametrize(("more", "names"), _ALLOWED)
async def test_only_what_may_be_called_is_called(model: httpx.AsyncClient, more: JsonObject, names: list[str]) -> None:
    assert [name for name, _ in put_together(await chunks(model, body(**more)))] == names


async def test_the_model_list_names_one_model_and_labels_it(model: httpx.AsyncClient) -> None:
    listed = (await model.get("models")).json()
    assert listed["object"] == "list"
    (entry,) = listed["data"]
    assert (entry["id"], entry["object"], entry["owned_by"]) == ("scripted-demo", "model", "toolferry-demo")
    assert "cripted" in entry["description"]


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"\xff", 400, "invalid_request"),
        (b"[" * 100_000, 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'{"model": "scripted-demo"}', 400, "invalid_request"),
        (b'{"model": "scripted-demo", "messages": "hi"}', 400, "invalid_request"),
        (b'{"model": "gpt-5", "messages": []}', 404, "model_not_found"),
        (b'{"messages": []}', 404, "model_not_found"),
    ],
)
async def test_bad_requests_are_refused_in_openais_form(
    model: httpx.AsyncClient, content: bytes, status: int, code: str
) -> None:
    answer = await model.post("chat/completions", content=content)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


async def test_an_error_of_the_body_comes_out_as_it_is_and_the_port_is_closed() -> None:
    base_url = ""
    with pytest.raises(LookupError):
        async with open_demo_model() as base_url:
            raise LookupError
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{base_url}/models")
