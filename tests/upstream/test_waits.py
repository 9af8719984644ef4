"""What endpoints ask to wait, wherever they say it."""

import json
from email.utils import formatdate
from typing import Any

import pytest

from app.upstream.waits import asked_wait

NOW = 1_800_000_000.0
WAITS: dict[str, tuple[dict[str, str], float | None]] = {
    "nothing": ({}, None),
    "seconds": ({"retry-after": "2"}, 2.0),
    "part of a second": ({"retry-after": "0.5"}, 0.5),
    "now": ({"retry-after": "0"}, 0.0),
    "milliseconds": ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    "a date": ({"retry-after": formatdate(NOW + 7, usegmt=True)}, 7.0),
    "a date gone by": ({"retry-after": formatdate(NOW - 7, usegmt=True)}, 0.0),
    "words": ({"retry-after": "soon"}, None),
    "blank": ({"retry-after": " "}, None),
    "less than nothing": ({"retry-after": "-1"}, None),
    "for ever": ({"retry-after": "inf"}, None),
    "no number": ({"retry-after": "nan"}, None),
}


@pytest.mark.parametrize(("headers", "seconds"), WAITS.values(), ids=WAITS.keys())
def test_what_the_endpoint_asks_to_wait_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_wait(headers, b"", NOW) == seconds


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


BODIES: dict[str, tuple[Any, float | None]] = {
    "seconds in words": (error("Rate limit reached. Please try again in 7.66s. Visit …"), 7.66),
    "milliseconds in words": (error("Please try again in 354ms"), 0.354),
    "minutes and seconds": (error("Please try again in 1m30.5s."), 90.5),
    "an hour": (error("quota resets in 1h0m0s"), 3600.0),
    "spelled out": (error("Please retry after 20 seconds."), 20.0),
    "a field": (error("slow down", retry_after=2), 2.0),
    "a field at the top": ({"message": "slow down", "retryAfter": "3"}, 3.0),
    "a field in milliseconds": (error("slow down", retry_after_ms=250), 0.25),
    "a duration in a detail": (
        [{"error": {"code": 429, "details": [{"@type": "x"}, {"@type": "RetryInfo", "retryDelay": "41s"}]}}],
        41.0,
    ),
    "headers told in the body": (error("busy", metadata={"headers": {"Retry-After": "5"}}), 5.0),
    "a field before the words": (error("Please try again in 9s", retry_after=2), 2.0),
    "no time": (error("Rate limit: 30 requests per 1m. Try later."), None),
    "a strange field": (error("busy", retry_after=None, retry_after_ms=True), None),
    "less than nothing": (error("busy", retry_after=-2), None),
    "a number that is none": (error("try again in 9.9.9s"), None),
    "plain text": ("Too busy, retry in 2 s", 2.0),
}


@pytest.mark.parametrize(("body", "seconds"), BODIES.values(), ids=BODIES.keys())
def test_a_wait_in_the_body_is_read(body: Any, seconds: float | None) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    assert asked_wait({}, raw, NOW) == pytest.approx(seconds)


def test_the_header_goes_before_the_body() -> None:
    assert asked_wait({"retry-after": "1"}, b'{"retry_after": 9}', NOW) == 1


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"[" * 10_000, b'{"retry_after": 1e999}', b"try again in " + b"1" * 9000]
)
def test_any_bytes_are_no_wait_and_no_error(body: bytes) -> None:
    assert asked_wait({}, body, NOW) is None
