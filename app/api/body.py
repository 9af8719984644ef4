"""Reads a JSON body within limits, before anything else looks at it: size while it streams, depth, odd values.

A large body is looked at in a worker thread, so that no other stream waits for it.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from fastapi import Request
from pydantic import BaseModel

from app.api.schemas import parse
from app.domain.errors import BodyTooLarge, BodyTooSlow, InvalidRequest, MalformedRequest, WrongMediaType
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.limits import RequestLimits

_Model = TypeVar("_Model", bound=BaseModel)

_LARGE_BYTES = 256 * 1024
# Possessive, and with a string that does not end taken too: otherwise each of its quotes would be tried anew.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+\\?"?', re.DOTALL)
_MOST_STRINGS, _MOST_VALUES = 200_000, 200_000
"""What a body may hold. Each costs as much as hundreds of bytes of text, and nobody gets a turn while it is parsed."""
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_JSON_KIND = re.compile(r"application/(?:[a-z0-9.-]+\+)?json")
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Body:
    """A body that is a JSON object."""

    raw: bytes
    json: JsonObject


async def read_body(request: Request, limits: RequestLimits) -> Body:
    """Read and parse the body.

    Raises:
        WrongMediaType: It is not declared as JSON: a page of anywhere could have sent it without being asked.
        BodyTooLarge: It is over the limit; what is over is not read.
        BodyTooSlow: It takes too long to come.
        MalformedRequest: It is not JSON.
        InvalidRequest: It is no object, nests too deeply, or holds what JSON cannot carry (NaN, half a surrogate pair).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not _JSON_KIND.fullmatch(kind):
        raise WrongMediaType("The body must come as JSON: content-type: application/json.", param="Content-Type")
    try:
        with anyio.fail_after(limits.body_seconds):
            raw = await _read(request, limits.body_bytes)
    except TimeoutError:
        raise BodyTooSlow(f"The body did not come within {limits.body_seconds:g} s.") from None
    if len(raw) > _LARGE_BYTES:
        return await anyio.to_thread.run_sync(body_from_bytes, raw, limits.json_depth)
    return body_from_bytes(raw, limits.json_depth)


async def parse_body(model: type[_Model], body: Body) -> _Model:
    """Validate a body; raises InvalidRequest as `schemas.parse` does."""
    if len(body.raw) > _LARGE_BYTES:
        return await anyio.to_thread.run_sync(parse, model, body.json)
    return parse(model, body.json)


def body_from_bytes(raw: bytes, depth: int) -> Body:
    """Parse a body that was read, under the same rules."""
    if not raw.strip():
        raise MalformedRequest("The body is empty; a JSON object is expected.")
    if raw.count(b'"') - raw.count(b'\\"') > 2 * _MOST_STRINGS:
        raise InvalidRequest("The body holds too many values.")
    structure = _STRINGS.sub(b"", raw)
    if structure.count(b",") > _MOST_VALUES:
        raise InvalidRequest("The body holds too many values.")
    if _is_deeper(structure, depth):
        raise InvalidRequest(f"The body nests deeper than {depth} levels.")
    try:
        value: Json = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = _leniently(raw)
    if not is_object(value):
        raise InvalidRequest("The body must be a JSON object.")
    return Body(raw, value)


def _leniently(raw: bytes) -> Json:
    """Parse what the strict decoder refuses, to tell what is no JSON from a value that cannot be used."""
    try:
        value: Json = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise MalformedRequest("The body is not JSON: it is not valid UTF-8.") from None
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise MalformedRequest(f"The body is not JSON{where}.") from None
    odd = _odd_value(value)
    if odd is not None:
        path = ".".join(reversed(odd)) or "body"
        raise InvalidRequest(f"{path}: not a value that JSON can carry.", param=path)
    return value


async def _read(request: Request, limit: int) -> bytes:
    too_large = BodyTooLarge(f"The body is larger than the {limit} bytes allowed.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _is_deeper(structure: bytes, levels: int) -> bool:
    """Tell how deep brackets nest without parsing, since a parser would recurse as deep.

    Innermost pairs are taken away, level by level, each in one sweep.
    """
    brackets = structure.translate(_ONE_KIND, _NO_BRACKETS)
    too_deep = b"[" * (levels + 1)
    for _ in range(levels):
        if not brackets or too_deep in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets or too_deep in brackets


def _odd_value(value: Json) -> list[str] | None:
    """Find the first value that JSON cannot carry: its path, the innermost key first."""
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    if isinstance(value, str):
        return None if _is_text(value) else []
    pairs: list[tuple[object, Json]] = []
    if is_object(value):
        if not all(map(_is_text, value)):
            return []
        pairs = list(value.items())
    elif is_array(value):
        pairs = list(enumerate(value))
    for key, item in pairs:
        odd = _odd_value(item)
        if odd is not None:
            return [*odd, str(key)]
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
