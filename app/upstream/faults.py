"""Trouble of the model endpoint becomes an error of ours: the tables and the wording. Pure.

The texts are for the caller: status, the provider's own words cleaned and capped, never an address, a header or a
key. HTML pages are named, not quoted. Knows nothing of how the trouble came in.

```
401 403              UpstreamAuth
429                  UpstreamRateLimited
other 4xx            UpstreamRefused, or ContextLengthExceeded where code, type or words say so
5xx, anything else   UpstreamFailed
error in the stream  UpstreamFailed, or one of the above where its code or type says so
```
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from app.domain.errors import (
    ContextLengthExceeded,
    RunError,
    UpstreamAuth,
    UpstreamFailed,
    UpstreamRateLimited,
    UpstreamRefused,
)
from app.domain.jsontypes import Json, JsonObject, is_array, is_object

MAX_QUOTE_CHARACTERS = 300
_READ_CHARACTERS = 4_000  # more of a message cannot matter to a quote, and bounds what the patterns work on
_QUOTED_MESSAGE = re.compile(r"['\"]message['\"]: *(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')")
_OF_ONE_REQUEST = re.compile(
    r"\b(?:line|column|col|position|pos|offset|char(?:acter)?|byte):? \d+"
    r"|\b(?:[0-9a-f]{8,}(?:-[0-9a-f]{4,})*|\d{8,})\b"
    r"|\b(?:req|request|trace|chatcmpl|id)[_:#. -]{1,3}(?=[\w-]*\d)[\w-]{6,}",
    re.IGNORECASE,
)
_MOST_PLACES = 16
_PLACE_LEVELS = 6
_SHORTEST_SECRET = 4  # a shorter "key", such as a dummy `x`, would blank out ordinary words

_SCRIPT = re.compile(r"<(script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"</?[a-z!?][^<>]*>|<(?=[a-z/!?])", re.IGNORECASE)
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>)\]}]+", re.IGNORECASE)
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
_CREDENTIAL = re.compile(
    r"\bbearer\s+[^\s\"',;]+"
    r"|\b(?:sk|pk|rk|hf|gsk|xai|ghp)[-_][\w*.-]{4,}"
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]*"
    r"|\bapi[ _-]?key[\"']?\s*[=:]\s*[\"']?[^\s\"',;]+",
    re.IGNORECASE,
)

_CONTEXT_CODE = re.compile(r"context_?(?:length|size|window)|(?:prompt|input)_too_(?:long|large)|tokens?_limit_")
_CONTEXT_WORDS = re.compile(
    r"context[ _-]?(?:length|size|window|limit)"
    r"|\b(?:prompt|input|conversation|messages?)\b[^.]{0,20} too (?:long|large)\b"
    r"|\btoo many (?:input |prompt )?tokens\b"
    r"|\b(?:prompt|input|request(?:ed)?|messages?|model)\b.{0,60}\btokens?\b.{0,60}"
    r"(?:exceed|larger|greater|longer|limit|<=|>|less than|window)"
    r"|\b(?:exceed\w*|maximum|limit|less than)\b.{0,60}\b(?:(?:prompt|input|model) (?:tokens?|length)|prompt length)\b"
    r"|`?inputs`?.{0,40}\b(?:less than|at most)\b.{0,20}\btokens\b"
    r"|\brange of input length\b|\bprompt \d+, window \d+",
)
_NOT_CONTEXT_WORDS = re.compile(
    r"\bper (?:second|minute|hour|day|month)\b|\brate limit|\b(?:array|string) too long\b",
)
_RATE_CODE = re.compile(r"\b429\b|rate_?limit|quota|too_many_requests|resource_exhausted")
_AUTH_CODE = re.compile(r"\b40[13]\b|api_?key|authenticat|unauthori[sz]ed|permission|forbidden")
_TOO_LONG_STATUSES = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class Scrub:
    """Cleans a stranger's words for the caller. Knows what must not show up in them."""

    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Keys that were sent along; endpoints like to quote them."""
    host: str = field(default="", repr=False)
    """The endpoint's own host name."""

    def __call__(self, text: str) -> str:
        """Return one line without markup, control characters, addresses and keys, of at most 300 characters."""
        for secret in self.secrets:
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "[redacted]")
        text = _TAG.sub(" ", _SCRIPT.sub(" ", text[:_READ_CHARACTERS]))
        text = _SURROGATE.sub("\ufffd", _UNSEEN.sub(" ", text))
        text = _ADDRESS.sub("[address]", _URL.sub("[address]", _CREDENTIAL.sub("[redacted]", text)))
        if self.host:
            # A name without a dot may be an ordinary word; with its port it is not.
            port = r"(?::\d+)?" if "." in self.host else r":\d+"
            text = re.sub(re.escape(self.host) + port, "[address]", text, flags=re.IGNORECASE)
        text = " ".join(text.split())
        return text if len(text) <= MAX_QUOTE_CHARACTERS else text[: MAX_QUOTE_CHARACTERS - 1].rstrip() + "…"


class Complaint(NamedTuple):
    """What the provider says is wrong, uncleaned."""

    message: str
    code: str
    """Its code and type, lower case, with a space between."""
    places: tuple[str, ...] = ()
    """What it points at, as paths into the request: `tools[1].function.parameters`, `body.stream_options`."""

    @property
    def gist(self) -> str:
        """What makes it the same complaint when it comes again: all but what names one request and places in it."""
        return _OF_ONE_REQUEST.sub("#", " ".join((self.message[:_READ_CHARACTERS], *self.places)))


def complaint_from_json(value: Json) -> Complaint:
    """Find the provider's words in an error body or an error event, whichever of the usual shapes it has."""
    if is_array(value):
        value = value[0] if value else None
    if is_object(value) and (is_object(value.get("error")) or isinstance(value.get("error"), str)):
        inner = value["error"]
        value = inner if is_object(inner) else {**value, "message": value.get("message") or inner}
    if not is_object(value):
        return Complaint(value if isinstance(value, str) else "", "")
    words = (value.get(key) for key in ("code", "type", "status"))
    code = " ".join(str(word) for word in words if word).lower()
    return _with_quoted(Complaint(_message_of(value), code, tuple(_places(value, _PLACE_LEVELS))), value)


def _with_quoted(complaint: Complaint, value: JsonObject) -> Complaint:
    """Read what a router quotes of the endpoint behind it: in `metadata.raw`, or within its own words."""
    metadata: Json = value.get("metadata")
    raw: Json = metadata.get("raw") if is_object(metadata) else None
    message = f"{complaint.message} {raw}" if isinstance(raw, str) else complaint.message
    message = message[:_READ_CHARACTERS]
    at = message.find("{")
    if at < 0:
        return complaint._replace(message=message)
    inner: Complaint | None = None
    try:
        quoted = json.JSONDecoder().raw_decode(message[at:])[0]
        inner = complaint_from_json(quoted) if is_object(quoted) else None
    except (ValueError, RecursionError):
        found = _QUOTED_MESSAGE.search(message)
        inner = Complaint(found[1][1:-1], "") if found else None
    if inner is None or not inner.message:
        return complaint._replace(message=message)
    told = f"{message[:at]}{inner.message}"
    return Complaint(told, f"{complaint.code} {inner.code}".strip(), (*complaint.places, *inner.places))


def _places(value: Json, levels: int) -> Iterator[str]:
    """Find `param` (OpenAI's word) and `loc` (that of validation errors) in an error body."""
    if levels <= 0:
        return
    if is_array(value):
        for item in value[:_MOST_PLACES]:
            yield from _places(item, levels - 1)
    elif is_object(value):
        for key in ("param", "loc", "field"):
            place = value.get(key)
            if is_array(place):
                place = ".".join(str(step) for step in place[:_MOST_PLACES] if isinstance(step, str | int))
            if isinstance(place, str) and place:
                yield place[:_READ_CHARACTERS]
        for key in ("error", "message", "detail", "details", "errors", "fieldViolations"):
            yield from _places(value.get(key), levels - 1)


def _message_of(value: Json) -> str:
    for key in ("message", "detail", "error_description", "msg", "error"):
        found = value.get(key)
        if is_object(found) and is_array(found.get("detail")):
            found = found["detail"]
        if is_array(found):  # a list of validation errors: the first one is enough
            found = found[0] if found else None
        if is_object(found):
            found = found.get("message") or found.get("msg")
        if isinstance(found, str) and found.strip():
            return found
    return ""


def failure_from_status(status: int, body: bytes, content_type: str, scrub: Scrub) -> RunError:
    """Tell what an HTTP answer other than a success comes to."""
    complaint = complaint_from_body(body, content_type)
    quoted = scrub(complaint.message)
    text = f"The model endpoint answered {status}: {quoted}" if quoted else f"The model endpoint {_said(status)}."
    if status in (401, 403):
        return UpstreamAuth(text)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return UpstreamRateLimited(text)
    if _CONTEXT_CODE.search(complaint.code) or (status in _TOO_LONG_STATUSES and _speaks_of_context(complaint)):
        return ContextLengthExceeded(text)
    if 400 <= status < 500:
        return UpstreamRateLimited(text) if _RATE_CODE.search(complaint.code) else UpstreamRefused(text)
    return UpstreamFailed(text)


def failure_from_event(value: Json, scrub: Scrub) -> RunError:
    """Tell what an error object (or text) inside a stream comes to."""
    complaint = complaint_from_json(value)
    quoted = scrub(complaint.message)
    text = f"The model endpoint reported an error: {quoted}" if quoted else "The model endpoint reported an error."
    if _CONTEXT_CODE.search(complaint.code) or _speaks_of_context(complaint):
        return ContextLengthExceeded(text)
    if _RATE_CODE.search(complaint.code):
        return UpstreamRateLimited(text)
    return UpstreamAuth(text) if _AUTH_CODE.search(complaint.code) else UpstreamFailed(text)


def complaint_from_body(body: bytes, content_type: str) -> Complaint:
    """Find the provider's words in the body of an answer; a page has none."""
    try:
        return complaint_from_json(msgspec.json.decode(body))
    except (msgspec.MsgspecError, RecursionError):
        text = body[: 4 * _READ_CHARACTERS].decode(errors="replace").strip()
    is_page = "html" in content_type or text.startswith("<")
    return Complaint("" if is_page else text, "")


def _said(status: int) -> str:
    try:
        return f"answered {status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return f"answered {status}"


def _speaks_of_context(complaint: Complaint) -> bool:
    words = complaint.message[:_READ_CHARACTERS].lower()
    if _RATE_CODE.search(complaint.code) or _NOT_CONTEXT_WORDS.search(words):
        return False
    return bool(_CONTEXT_WORDS.search(words))
