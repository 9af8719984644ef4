"""A conversation becomes the body of a chat-completions request. Pure.

What is known to be refused everywhere is put right here: keys about tools where none are offered, list content of tool
messages, arguments that are no JSON object. Whose system text comes first is the loop's business, not this one's.
"""

import json
from collections.abc import Mapping

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import Message, ToolSpec
from app.domain.ports import Ask
from app.domain.spec import RunSpec
from app.domain.wire import json_from_value

_ONE_OF = ({"max_tokens", "max_completion_tokens"},)
"""Parameters that stand for each other: a default gives way to the caller's word for it."""


def body_from_ask(model: str, ask: Ask, spec: RunSpec, defaults: Mapping[str, Json]) -> JsonObject:
    """Build the request body; `defaults` are the model's own parameters, which the caller's go before.

    Parameters that are null are left out. Tools, and anything about them, are sent only when there are some.
    """
    said = {name: value for name, value in spec.parameters.items() if value is not None}
    taken = set(said).union(*(group for group in _ONE_OF if group & set(said)))
    body: JsonObject = {name: value for name, value in defaults.items() if value is not None and name not in taken}
    body |= said
    body["model"] = f"{model}:{spec.provider}" if spec.provider else model
    body["messages"] = [message_for_model(message) for message in ask.messages]
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        body.pop(name, None)
    if ask.tools:
        body["tools"] = [_tool(spec_) for spec_ in ask.tools]
        body["tool_choice"] = ask.tool_choice
        if spec.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = spec.parallel_tool_calls
    return body


def _tool(spec: ToolSpec) -> JsonObject:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def message_for_model(message: Message) -> Message:
    """Put a message into the form that endpoints take; other roles than assistant and tool pass unchanged.

    An assistant message always has the key `content`, and its calls have arguments that are the text of a JSON object.
    The content of a tool message is one text.
    """
    role = message.get("role")
    if role == "tool" and not isinstance(message.get("content"), str):
        return {**message, "content": _flat_text(message.get("content"))}
    if role != "assistant":
        return message
    sent = {**message, "content": message.get("content")}
    calls = sent.pop("tool_calls", None)
    if is_array(calls) and calls:
        sent["tool_calls"] = [_call(call) if is_object(call) else call for call in calls]
    return sent


def _call(call: JsonObject) -> JsonObject:
    function = call.get("function")
    if not is_object(function):
        return call
    return {**call, "function": {**function, "arguments": arguments_text(function.get("arguments"))}}


def arguments_text(arguments: Json) -> str:
    """Return arguments as the text of a JSON object: some endpoints parse the history and fail on anything else."""
    if is_object(arguments):
        return json.dumps(arguments, ensure_ascii=False)
    try:
        return arguments if is_object(json.loads(arguments)) else "{}"
    except (ValueError, TypeError, RecursionError):
        return "{}"


def _flat_text(content: Json) -> str:
    if content is None:
        return ""
    parts = content if is_array(content) else [content]
    return "\n".join(map(_part_text, parts))


def _part_text(part: Json) -> str:
    if isinstance(part, str):
        return part
    if is_object(part):
        text = part.get("text")
        if isinstance(text, str):
            return text
        kind = part.get("type")
        if isinstance(kind, str):
            return f"[{kind}]"
    return json.dumps(part, ensure_ascii=False)


def encodable(body: JsonObject) -> JsonObject:
    """Return a copy without what UTF-8 or JSON cannot carry: lone surrogates, numbers that are not finite."""
    return json.loads(json_from_value(body))
