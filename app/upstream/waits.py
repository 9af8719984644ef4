"""How long an endpoint asks to wait before it is asked again: in headers, in fields of the body, in its words. Pure."""

import math
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

import msgspec

from app.domain.jsontypes import Json, is_array, is_object

_READ_CHARACTERS = 4000
_LEVELS = 6
_MOST_PARTS = 32
_SECONDS = frozenset({"retry_after", "retry_after_seconds", "retryafter", "retrydelay", "retry_delay", "retry-after"})
_MILLISECONDS = frozenset({"retry_after_ms", "retryafterms", "retry-after-ms"})
_DURATION = r"(?:\d+(?:\.\d+)?\s*(?:milliseconds?|ms|hours?|minutes?|mins?|seconds?|secs?|[hms])(?![a-z])\s*)+"
_SPOKEN = re.compile(
    rf"(?:try again|retry(?:ing)?|wait|available|resets?|reset)\b[^.\d]{{0,30}}(?P<duration>{_DURATION})", re.IGNORECASE
)
_STEP = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|[hms])", re.IGNORECASE)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def asked_wait(headers: Mapping[str, str], body: bytes, now: float) -> float | None:
    """Read how many seconds an answer asks to wait; None where it does not say, or not in a way that can be read.

    In this order: the headers `retry-after-ms` and `Retry-After` (RFC 9110 section 10.2.3: seconds or an HTTP date), a
    field of the JSON body (`retry_after`, `retryDelay: "7s"`), its words ("try again in 1m30s"). `now` is Unix time.
    """
    told = _from_headers(headers, now)
    if told is not None:
        return told
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        value = body[:_READ_CHARACTERS].decode(errors="replace")
    leaves = list(_leaves("", value, _LEVELS))
    fields = (_from_field(key, leaf) for key, leaf in leaves)
    words = (_from_words(leaf) for _, leaf in leaves)
    return next((seconds for seconds in (*fields, *words) if seconds is not None), None)


def _from_headers(headers: Mapping[str, str], now: float) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _leaves(key: str, value: Json, levels: int) -> Iterator[tuple[str, Json]]:
    """Walk through a value, not far, and give what is no container with the key that it stands under."""
    if is_object(value):
        inner = list(value.items())
    elif is_array(value):
        inner = [(key, item) for item in value]
    else:
        yield key, value
        return
    for name, item in inner[:_MOST_PARTS] if levels > 0 else ():
        yield from _leaves(name, item, levels - 1)


def _from_field(key: str, value: Json) -> float | None:
    word = key.lower()
    if word in _MILLISECONDS:
        milliseconds = _number(value)
        return None if milliseconds is None else milliseconds / 1000
    if word not in _SECONDS:
        return None
    seconds = _number(value)
    return _seconds(value) if seconds is None and isinstance(value, str) else seconds


def _from_words(value: Json) -> float | None:
    found = _SPOKEN.search(value[:_READ_CHARACTERS]) if isinstance(value, str) else None
    return _seconds(found["duration"]) if found else None


def _seconds(duration: str) -> float | None:
    """Read a duration such as `7s`, `1m30s`, `500 ms` or `2 minutes`."""
    steps = _STEP.findall(duration[:_MOST_PARTS])
    if not steps:
        return None
    return sum(
        float(number) * _UNITS["ms" if unit.lower().startswith(("ms", "mil")) else unit[0].lower()]
        for number, unit in steps
    )


def _number(value: Json) -> float | None:
    try:
        seconds = float(value or "")
    except (ValueError, TypeError):
        return None
    return seconds if not isinstance(value, bool) and math.isfinite(seconds) and seconds >= 0 else None
