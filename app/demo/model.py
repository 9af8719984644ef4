"""The scripted model's wire: OpenAI's chat completions and model list over HTTP. What it says, `script` decides."""

import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.demo.script import SIGNATURE, PlannedCall, Turn, next_turn
from app.domain.jsontypes import Json, JsonObject, is_array, is_object

MODEL_ID = "scripted-demo"
_OWNER = "toolferry-demo"
_CREATED = 1767225600  # 2026-01-01; a script has no training date to name
_DELTA_SECONDS = 0.01
_ARGUMENT_CHARACTERS = 8  # of a call's arguments in one delta


def create_demo_model() -> Starlette:
    """Make the endpoint's application: `POST /v1/chat/completions` and `GET /v1/models`."""
    return Starlette(
        routes=[
            Route("/v1/models", _list_models, methods=["GET"]),
            Route("/v1/chat/completions", _complete, methods=["POST"]),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Completion:
    """One reply on the wire, streamed or whole."""

    turn: Turn
    prompt_tokens: int
    id: str
    created: int
    call_ids: tuple[str, ...]

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.turn.calls else "stop"

    def deltas(self) -> Iterator[JsonObject]:
        yield {"role": "assistant", "content": ""}
        for word in _words(self.turn.reasoning):
            yield {"reasoning_content": word}
        for word in _words(self.turn.text):
            yield {"content": word}
        for index, (call_id, call) in enumerate(zip(self.call_ids, self.turn.calls, strict=True)):
            yield {"tool_calls": [{"index": index, **_call_json(call_id, call, arguments="")}]}
            text = json.dumps(call.arguments)
            for start in range(0, len(text), _ARGUMENT_CHARACTERS):
                part = {"arguments": text[start : start + _ARGUMENT_CHARACTERS]}
                yield {"tool_calls": [{"index": index, "function": part}]}

    def chunk(self, choices: Sequence[Json], **more: Json) -> bytes:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": MODEL_ID}
        data = json.dumps({**head, "choices": choices, **more}, ensure_ascii=False)
        return f"data: {data}\n\n".encode()

    def usage(self) -> JsonObject:
        """Count deltas as tokens, as the script knows no others."""
        completion_tokens = sum(1 for _ in self.deltas())
        total = self.prompt_tokens + completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": total,
        }

    async def stream(self, *, with_usage: bool) -> AsyncIterator[bytes]:
        for delta in self.deltas():
            yield self.chunk([{"index": 0, "delta": delta, "finish_reason": None}])
            await anyio.sleep(_DELTA_SECONDS)
        yield self.chunk([{"index": 0, "delta": {}, "finish_reason": self.finish_reason}])
        if with_usage:
            yield self.chunk([], usage=self.usage())
        yield b"data: [DONE]\n\n"

    def whole(self) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": self.turn.text}
        if self.turn.reasoning:
            message["reasoning_content"] = self.turn.reasoning
        if self.turn.calls:
            message["tool_calls"] = [
                _call_json(call_id, call, arguments=json.dumps(call.arguments))
                for call_id, call in zip(self.call_ids, self.turn.calls, strict=True)
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        head = {"id": self.id, "object": "chat.completion", "created": self.created, "model": MODEL_ID}
        return {**head, "choices": [choice], "usage": self.usage()}


async def _list_models(_: Request) -> Response:
    model = {"id": MODEL_ID, "object": "model", "created": _CREATED, "owned_by": _OWNER, "description": SIGNATURE}
    return JSONResponse({"object": "list", "data": [model]})


async def _complete(request: Request) -> Response:
    try:
        body: Json = await request.json()
    except (ValueError, RecursionError):
        return _refusal(400, "The body is not JSON.", code="invalid_request")
    if not is_object(body) or not is_array(body.get("messages")):
        return _refusal(400, "The body needs a list of messages.", code="invalid_request")
    if body.get("model") != MODEL_ID:
        return _refusal(404, f"The only model here is the scripted one, {MODEL_ID}.", code="model_not_found")
    messages: list[Json] = body["messages"]
    turn = next_turn(messages, _tool_names(body), parallel=body.get("parallel_tool_calls") is not False)
    completion = _Completion(
        turn,
        prompt_tokens=len(_words(json.dumps(messages))),
        id=f"chatcmpl-scripted-{uuid.uuid4().hex}",
        created=int(time.time()),
        call_ids=tuple(f"call_{uuid.uuid4().hex[:24]}" for _ in turn.calls),
    )
    if body.get("stream") is not True:
        return JSONResponse(completion.whole())
    options: Json = body.get("stream_options")
    with_usage = is_object(options) and options.get("include_usage") is True
    return StreamingResponse(completion.stream(with_usage=with_usage), media_type="text/event-stream")


def _tool_names(body: JsonObject) -> list[str]:
    """Names of the tools that may be called now, after `tool_choice`."""
    choice: Json = body.get("tool_choice")
    if choice == "none":
        return []
    tools: Json = body.get("tools")
    functions: list[Json] = [tool.get("function") for tool in tools if is_object(tool)] if is_array(tools) else []
    names = [str(function.get("name")) for function in functions if is_object(function)]
    chosen: Json = choice.get("function") if is_object(choice) else None
    return [name for name in names if name == chosen.get("name")] if is_object(chosen) else names


def _call_json(call_id: str, call: PlannedCall, *, arguments: str) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def _refusal(status: int, message: str, *, code: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status)
