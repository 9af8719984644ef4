"""A conversation's messages in the form that an endpoint takes. Pure; knows facts about endpoints, not endpoints.

Put right everywhere: an assistant message has the key `content` unless that is refused, its calls have arguments that
are the text of a JSON object, the content of a tool message is one text. Whose system text comes first is the loop's
business.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import Message
from app.upstream.quirks import Quirks

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
"""What providers call the reasoning of a message."""

_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_NINE_ID = re.compile(r"[a-zA-Z0-9]{9}")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NO_PICTURE = "[An image stood here, which this model cannot see.]"


def messages_for_model(
    messages: Sequence[Message], quirks: Quirks, thoughts: Mapping[str, JsonObject]
) -> list[Message]:
    """Write messages as the endpoint takes them; `thoughts` as in `Ask`. The input is not changed."""
    if not quirks.blank_messages:
        messages = [message for message in messages if not _is_blank(message)]
    sent = [_message(message, quirks, thoughts) for message in messages]
    if quirks.tool_name == "required":
        sent = _with_tool_names(sent)
    if quirks.call_ids != "any":
        sent = _with_fitting_ids(sent, quirks)
    return sent if quirks.system_role else _without_system(sent)


def with_tools_named(messages: Sequence[Message], prompt: str, names: Collection[str]) -> Sequence[Message]:
    """Let the tool prompt, with which the system message begins, name no tool that is not sent.

    Without any tool it goes: it would have the model make calls up.
    """
    first = messages[0] if messages else {}
    content: Json = first.get("content")
    if not (prompt and first.get("role") == "system" and isinstance(content, str) and content.startswith(prompt)):
        return messages
    rest = content.removeprefix(prompt)
    if names:
        head, listed, tail = _listing(prompt)
        kept = [name for name in listed if name in names]
        return (
            messages
            if kept == listed
            else [{**first, "content": f"{head}{', '.join(kept)}{tail}{rest}"}, *messages[1:]]
        )
    return [{**first, "content": rest.lstrip()}, *messages[1:]] if rest.strip() else messages[1:]


def _listing(prompt: str) -> tuple[str, list[str], str]:
    """Take a tool prompt apart: `… tools: a, b.` and what follows."""
    line, _, rest = prompt.partition("\n")
    head, colon, names = line.partition(": ")
    return head + colon, names.removesuffix(".").split(", "), f".\n{rest}"


def _is_blank(message: Message) -> bool:
    return message.get("role") == "assistant" and not message.get("content") and not message.get("tool_calls")


def _message(message: Message, quirks: Quirks, thoughts: Mapping[str, JsonObject]) -> Message:
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        return _assistant(message, quirks, thoughts)
    if role == "tool":
        sent = message if isinstance(content, str) else {**message, "content": _flat_text(content)}
        return _without(sent, ("name",)) if quirks.tool_name == "refused" else sent
    return _with_content(message, content, quirks)


def _with_content(message: Message, content: Json, quirks: Quirks) -> Message:
    if not is_array(content):
        return message
    if not quirks.images and any(map(_is_picture, content)):
        content = [{"type": "text", "text": _NO_PICTURE} if _is_picture(part) else part for part in content]
    if not quirks.content_parts and all(is_object(part) and isinstance(part.get("text"), str) for part in content):
        return {**message, "content": "\n".join(part["text"] for part in content)}
    return message if content is message["content"] else {**message, "content": content}


def _is_picture(part: Json) -> bool:
    return is_object(part) and part.get("type") == "image_url"


def _assistant(message: Message, quirks: Quirks, thoughts: Mapping[str, JsonObject]) -> Message:
    sent = {**_with_content(message, message.get("content"), quirks)}
    sent.setdefault("content", None)
    calls = sent.pop("tool_calls", None)
    if quirks.reasoning == "refused":
        sent = _without(sent, REASONING_FIELDS)
    if not (is_array(calls) and calls):
        return sent
    if quirks.reasoning in ("echo", "required"):
        first_id: Json = calls[0].get("id") if is_object(calls[0]) else None
        _think(sent, thoughts.get(first_id, {}) if isinstance(first_id, str) else {}, quirks)
    if not sent["content"] and quirks.empty_content == "absent":
        del sent["content"]
    elif not sent["content"]:
        sent["content"] = None if quirks.empty_content == "null" else ""
    sent["tool_calls"] = [_call(call) if is_object(call) else call for call in calls]
    return sent


def _think(message: Message, thought: JsonObject, quirks: Quirks) -> None:
    """Give a message its reasoning back, in the fields that it came in."""
    for key, value in thought.items():
        if key == "content":
            if isinstance(message["content"], str | None):
                message["content"] = value + (message["content"] or "")
        elif key not in message:
            message[key] = value
    if quirks.reasoning == "required" and "reasoning_content" not in message and "content" not in thought:
        reasoning: Json = message.get("reasoning")
        message["reasoning_content"] = reasoning if isinstance(reasoning, str) else ""


def _without(message: Message, keys: Sequence[str]) -> Message:
    return {key: value for key, value in message.items() if key not in keys}


def _call(call: JsonObject) -> JsonObject:
    function = call.get("function")
    if not is_object(function):
        return call
    name: Json = function.get("name")
    fit = _UNFIT.sub("_", name)[:64] if isinstance(name, str) else name
    return {**call, "function": {**function, "name": fit, "arguments": arguments_text(function.get("arguments"))}}


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


# What concerns several messages at once


def names_of_calls(messages: Sequence[Message]) -> list[str]:
    """List the tools that a conversation calls, each once, as they are sent."""
    names = [call["function"].get("name") for message in messages for call in _calls(message)]
    return list(dict.fromkeys(_UNFIT.sub("_", name)[:64] for name in names if isinstance(name, str)))


def _with_tool_names(messages: Sequence[Message]) -> list[Message]:
    names = {call.get("id"): call["function"].get("name") for message in messages for call in _calls(message)}
    return [
        {**message, "name": names.get(message.get("tool_call_id")) or "unknown_tool"}
        if message.get("role") == "tool" and not message.get("name")
        else message
        for message in messages
    ]


def _calls(message: Message) -> list[JsonObject]:
    calls: Json = message.get("tool_calls")
    return [call for call in calls if is_object(call) and is_object(call.get("function"))] if is_array(calls) else []


def _with_fitting_ids(messages: Sequence[Message], quirks: Quirks) -> list[Message]:
    """Rename calls on both sides of each pair. The same conversation gets the same ids in every round."""
    fits = _NINE_ID if quirks.call_ids == "nine" else _PLAIN_ID
    given = [call["id"] for message in messages for call in _calls(message) if isinstance(call.get("id"), str)]
    taken = {call_id for call_id in given if fits.fullmatch(call_id)}
    ids: dict[Json, str] = {call_id: call_id for call_id in taken}
    for call_id in given:
        if call_id not in ids:
            ids[call_id] = _fresh_id(call_id, taken, quirks)
            taken.add(ids[call_id])
    return [_renamed(message, ids) for message in messages]


def _fresh_id(call_id: str, taken: set[str], quirks: Quirks) -> str:
    number = int.from_bytes(sha256(call_id.encode(errors="surrogatepass")).digest())
    while True:
        rest, digits = number, ""
        while len(digits) < 9:
            rest, digit = divmod(rest, len(_DIGITS))
            digits += _DIGITS[digit]
        fresh = digits if quirks.call_ids == "nine" else f"call_{digits}"
        if fresh not in taken:
            return fresh
        number += 1


def _renamed(message: Message, ids: Mapping[Json, str]) -> Message:
    if message.get("role") == "tool" and message.get("tool_call_id") in ids:
        return {**message, "tool_call_id": ids[message["tool_call_id"]]}
    calls = message.get("tool_calls")
    if not is_array(calls):
        return message
    renamed = [{**call, "id": ids[call["id"]]} if is_object(call) and call.get("id") in ids else call for call in calls]
    return {**message, "tool_calls": renamed}


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Say what the system says in front of the first user message."""
    said = [_flat_text(message.get("content")) for message in messages if message.get("role") == "system"]
    rest = [message for message in messages if message.get("role") != "system"]
    if not said:
        return rest
    system = "\n\n".join(said)
    at = next((at for at, message in enumerate(rest) if message.get("role") == "user"), None)
    if at is None:
        return [{"role": "user", "content": system}, *rest]
    content = rest[at].get("content")
    said_first = [{"type": "text", "text": system}, *content] if is_array(content) else f"{system}\n\n{content}"
    return [*rest[:at], {**rest[at], "content": said_first}, *rest[at + 1 :]]
