"""What the fields of a chunk mean: content, reasoning, calls and counts in their many shapes → deltas. Pure.

Everything is any JSON until it was looked at; what has no meaning here is no delta, never an exception.
"""

import json
import math
from collections.abc import Iterator

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import CallFragment, Delta, ReasoningDelta, TextDelta, Usage

_KNOWN_CALL_FIELDS = frozenset({"index", "id", "type", "function", "name", "arguments"})
_TEXT_KEYS = ("text", "content", "summary", "thinking", "reasoning", "refusal", "value")
_LONGEST_INDEX = 9
_REASONING_KINDS = ("thinking", "reasoning", "thought")


_FINISH_WORDS = {
    **dict.fromkeys(("max_tokens", "max_length", "max_output_tokens", "model_length"), "length"),
    "model_context_window_exceeded": "length",
    **dict.fromkeys(("safety", "recitation", "content_filtered", "refusal", "sensitive"), "content_filter"),
    **dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence", "completed"), "stop"),
    **dict.fromkeys(("tool_use", "tool_call", "function_call"), "tool_calls"),
    **dict.fromkeys(("aborted", "insufficient_system_resource", "network_error", "server_error"), "abort"),
    **dict.fromkeys(("timeout", "overloaded", "pause_turn", "malformed_function_call"), "abort"),
    **dict.fromkeys(("canceled",), "cancelled"),
}
"""Words of other APIs that compatible servers let through."""


def finish_word(reason: str) -> str:
    """Say a finish reason in OpenAI's words where it has one for it."""
    word = reason.lower()
    return _FINISH_WORDS.get(word, word)


def text_of(value: Json) -> str:
    """Read the text out of a string, a typed part, or a list of either; "" where there is none."""
    if isinstance(value, str):
        return value
    if is_array(value):
        return "".join(map(_part_text, value))
    return _part_text(value)


def _part_text(part: Json) -> str:
    if isinstance(part, str):
        return part
    if is_object(part):
        for key in _TEXT_KEYS:
            found = part.get(key)
            if isinstance(found, str):
                return found
            if is_array(found):
                return "".join(item if isinstance(item, str) else _leaf_text(item) for item in found)
            if is_object(found):
                return _leaf_text(found)
    return ""


def _leaf_text(value: Json) -> str:
    if not is_object(value):
        return ""
    return next((found for key in _TEXT_KEYS if isinstance(found := value.get(key), str)), "")


def content_deltas(content: Json) -> Iterator[Delta]:
    """Read content that is no plain string: typed parts, of which text is text and thinking is reasoning."""
    for part in content if is_array(content) else [content]:
        text = _part_text(part)
        if not text:
            continue
        kind = part.get("type") if is_object(part) else None
        thinks = isinstance(kind, str) and any(word in kind for word in _REASONING_KINDS)
        yield ReasoningDelta(text) if thinks else TextDelta(text)


def reasoning_deltas(*values: Json) -> Iterator[ReasoningDelta]:
    """Read the reasoning of one delta from its several keys; keys that hold the same text are one."""
    texts = [text_of(value) for value in values]
    for text in dict.fromkeys(texts):
        if text:
            yield ReasoningDelta(text)


def call_deltas(tool_calls: Json, function_call: Json) -> Iterator[CallFragment]:
    """Read call fragments; the older `function_call` only where there are no `tool_calls`."""
    calls = [tool_calls] if is_object(tool_calls) else tool_calls
    if is_array(calls) and calls:
        for call in calls:
            fragment = _fragment(call) if is_object(call) else None
            if fragment is not None:
                yield fragment
    elif is_object(function_call):
        fragment = _fragment({"index": 0, "function": function_call})
        if fragment is not None:
            yield fragment


def _fragment(call: JsonObject) -> CallFragment | None:
    function = call.get("function")
    named = function if is_object(function) else call
    call_id, name = call.get("id"), named.get("name")
    arguments = named.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False) if arguments else ""
    extra = {key: value for key, value in call.items() if key not in _KNOWN_CALL_FIELDS and value is not None}
    identity = str(call_id) if isinstance(call_id, str | int) and call_id != "" else None
    if not (identity or name or arguments or extra):
        return None
    return CallFragment(
        index=_index(call.get("index")),
        id=identity,
        name=name if isinstance(name, str) and name else None,
        arguments=arguments,
        extra=extra or None,
    )


def _index(value: Json) -> int | None:
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_INDEX else None


def merged_usage(so_far: Usage | None, value: Json) -> Usage | None:
    """Read token counts and keep the larger of each: they only grow within a stream, or come in parts."""
    if not is_object(value):
        return so_far
    prompt = _count(value, "prompt_tokens") or _count(value, "input_tokens")
    completion = _count(value, "completion_tokens") or _count(value, "output_tokens")
    cached = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    reasoned = value.get("completion_tokens_details") or value.get("output_tokens_details")
    before = so_far or Usage()
    prompt, completion = max(prompt, before.prompt_tokens), max(completion, before.completion_tokens)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=max(_count(value, "total_tokens"), before.total_tokens, prompt + completion),
        cached_tokens=max(_count(cached, "cached_tokens"), before.cached_tokens),
        reasoning_tokens=max(_count(reasoned, "reasoning_tokens"), before.reasoning_tokens),
    )


def _count(value: Json, key: str) -> int:
    number = value.get(key) if is_object(value) else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return 0
    return max(0, int(number))
