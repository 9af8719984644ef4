"""What trouble of the endpoint comes to, and what of it may be said."""

import json
from typing import Any

import pytest

from app.domain.errors import (
    ContextLengthExceeded,
    RunError,
    UpstreamAuth,
    UpstreamFailed,
    UpstreamRateLimited,
    UpstreamRefused,
)
from app.upstream.faults import MAX_QUOTE_CHARACTERS, Scrub, failure_from_status


def failed(
    status: int, body: Any = None, content_type: str = "application/json", scrub: Scrub | None = None
) -> RunError:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return failure_from_status(status, raw, content_type, scrub or Scrub())


STATUSES: list[tuple[int, type[RunError]]] = [
    (400, UpstreamRefused),
    (401, UpstreamAuth),
    (402, UpstreamRefused),
    (403, UpstreamAuth),
    (404, UpstreamRefused),
    (413, UpstreamRefused),
    (422, UpstreamRefused),
    (429, UpstreamRateLimited),
    (499, UpstreamRefused),
    (500, UpstreamFailed),
    (502, UpstreamFailed),
    (503, UpstreamFailed),
    (529, UpstreamFailed),
    (304, UpstreamFailed),
]


@pytest.mark.parametrize(("status", "kind"), STATUSES)
def test_a_status_has_its_error(status: int, kind: type[RunError]) -> None:
    assert type(failed(status, {"error": {"message": "no"}})) is kind
    assert str(failed(status, {"error": {"message": "no"}})) == f"The model endpoint answered {status}: no"


BODIES: dict[str, tuple[Any, str]] = {
    "OpenAI's form": ({"error": {"message": "boom", "code": None}}, "boom"),
    "text": ({"error": "boom"}, "boom"),
    "detail": ({"detail": "boom"}, "boom"),
    "list of details": ({"detail": [{"loc": ["body"], "msg": "boom"}]}, "boom"),
    "message": ({"object": "error", "message": "boom"}, "boom"),
    "message beside a word": ({"error": "invalid_request", "message": "boom"}, "boom"),
    "description": ({"error": {"error_description": "boom"}}, "boom"),
    "list": ([{"error": {"message": "boom"}}], "boom"),
    "JSON text": ('"boom"', "boom"),
    "plain text": ("boom", "boom"),
}


@pytest.mark.parametrize(("body", "words"), BODIES.values(), ids=BODIES.keys())
def test_the_providers_words_are_found(body: Any, words: str) -> None:
    assert str(failed(500, body)) == f"The model endpoint answered 500: {words}"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("<html><h1>boom</h1></html>", "text/html; charset=utf-8"),
        ("boom", "text/html"),
        ("\n<!doctype html>boom", "text/plain"),
        ("", "text/plain"),
        ("{}", "application/json"),
        ("[]", "application/json"),
        ("null", "application/json"),
        ('{"error": {"message": ""}}', "application/json"),
        ('{"error": {"message": {"x": 1}}}', "application/json"),
        ("[" * 100_000, "application/json"),
    ],
)
def test_without_usable_words_the_status_is_told(body: str, content_type: str) -> None:
    told = str(failed(502, body, content_type))
    assert told.startswith("The model endpoint answered 502")
    assert "boom" not in told
    assert "<" not in told


def test_an_unknown_status_is_told_by_its_number() -> None:
    assert str(failed(599, "")) == "The model endpoint answered 599."


TOO_LONG: list[tuple[int, dict[str, Any]]] = [
    (400, {"message": "no", "code": "context_length_exceeded"}),
    (400, {"message": "no", "type": "exceed_context_size_error"}),
    (413, {"message": "no", "code": "tokens_limit_reached"}),
    (500, {"message": "no", "code": "context_window_exceeded"}),
    (
        400,
        {"message": "This model's maximum context length is 8192 tokens. Your messages resulted in 9000 tokens."},
    ),
    (400, {"message": "request (20030 tokens) exceeds the available context size (4096 tokens), try increasing it"}),
    (400, {"message": "prompt is too long: 200031 tokens > 199999 maximum"}),
    (400, {"message": "Input is too long for requested model."}),
    (400, {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."}),
    (400, {"message": "Requested tokens (9000) exceed context window of 4096"}),
    (422, {"message": "Input validation error: `inputs` must have less than 1024 tokens. Given: 5000"}),
    (422, {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000"}),
    (400, {"message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"}),
    (400, {"message": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
    (400, {"message": "prompt token count of 70000 exceeds the limit of 64000"}),
    (400, {"message": "Your request exceeded model token limit: 8192"}),
    (400, {"message": "the number of tokens to keep from the initial prompt is greater than the context length"}),
    (413, {"message": "prompt 90000, window 65536"}),
    (400, {"message": "Range of input length should be [1, 30720]"}),
    (400, {"message": "Please reduce the length of the messages: too many tokens"}),
]
NOT_TOO_LONG: list[tuple[int, dict[str, Any], type[RunError]]] = [
    (
        400,
        {"message": "max_tokens is too large: 100000. This model supports at most 4096 completion tokens."},
        UpstreamRefused,
    ),
    (
        400,
        {"message": "Invalid 'tools[0].function.name': string too long. Expected a maximum length of 64."},
        UpstreamRefused,
    ),
    (
        400,
        {"message": "Invalid 'messages': array too long. Expected an array with maximum length 2048."},
        UpstreamRefused,
    ),
    (400, {"message": "Invalid JSON payload: unexpected token at line 1"}, UpstreamRefused),
    (400, {"message": "tools: at most 128 entries"}, UpstreamRefused),
    (413, {"message": "Request Entity Too Large"}, UpstreamRefused),
    (
        413,
        {
            "message": "Request too large for model x on tokens per minute (TPM): Limit 6000, Requested 9000",
            "code": "rate_limit_exceeded",
        },
        UpstreamRateLimited,
    ),
    (429, {"message": "input tokens per minute exceed the limit of 30000"}, UpstreamRateLimited),
    (404, {"message": "no model with that context length"}, UpstreamRefused),
    (500, {"message": "the prompt is too long"}, UpstreamFailed),
]


@pytest.mark.parametrize(("status", "error"), TOO_LONG, ids=lambda value: str(value)[:60])
def test_a_conversation_that_is_too_long_is_told_apart(status: int, error: dict[str, Any]) -> None:
    assert type(failed(status, {"error": error})) is ContextLengthExceeded


@pytest.mark.parametrize(("status", "error", "kind"), NOT_TOO_LONG, ids=lambda value: str(value)[:60])
def test_other_limits_are_no_long_conversation(status: int, error: dict[str, Any], kind: type[RunError]) -> None:
    assert type(failed(status, {"error": error})) is kind


SCRUB = Scrub(secrets=("hunter2-hunter2", "x"), host="llm.corp.example")
SAID: dict[str, tuple[str, str]] = {
    "plain": ("a < b and c > d", "a < b and c > d"),
    "the key": ("bad key hunter2-hunter2!", "bad key [redacted]!"),
    "a key of the usual form": (
        "Incorrect API key provided: sk-proj-12ab******yz.",
        "Incorrect API key provided: [redacted]",
    ),
    "a bearer": ("got Authorization: Bearer abc.def", "got Authorization: [redacted]"),
    "a named key": ("api_key=abcdef, sorry", "[redacted], sorry"),
    "a short key blanks nothing": ("next text", "next text"),
    "an address": ("see http://10.0.0.7:8000/v1?key=1 or 10.0.0.7:8000", "see [address] or [address]"),
    "the endpoint": ("cannot reach LLM.corp.example:8443 now", "cannot reach [address] now"),
    "markup": ("<p>no <b>way</b></p><script>alert(1)</script>", "no way"),
    "open markup": ("<img src=x onerror=1", "img src=x onerror=1"),
    "control characters": ("a\x1b[31mb\x00c\u202ed\r\n\te", "a [31mb c d e"),
    "a lone surrogate": ("a\ud800", "a\ufffd"),
}


@pytest.mark.parametrize(("said", "told"), SAID.values(), ids=SAID.keys())
def test_words_are_cleaned_for_the_caller(said: str, told: str) -> None:
    assert SCRUB(said) == told


def test_a_host_without_a_dot_is_hidden_with_its_port_only() -> None:
    assert Scrub(host="scripted")("scripted words from scripted:8000") == "scripted words from [address]"


def test_words_are_capped() -> None:
    told = Scrub()("word " * 10_000)
    assert len(told) <= MAX_QUOTE_CHARACTERS
    assert told.endswith("word…")
