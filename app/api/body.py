"""Reads a JSON body within limits, before anything else looks at it: size while it streams, depth, odd values."""

import json
import math
from dataclasses import dataclass

from fastapi import Request

from app.domain.errors import BodyTooLarge, InvalidRequest, MalformedRequest
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.limits import RequestLimits


@dataclass(frozen=True, slots=True)
class Body:
    """A body that is a JSON object."""

    raw: bytes
    json: JsonObject


async def read_body(request: Request, limits: RequestLimits) -> Body:
    """Read and parse the body.

    Raises:
        BodyTooLarge: It is over the limit; what is over is not read.
        MalformedRequest: It is not JSON.
        InvalidRequest: It is no object, nests too deeply, or holds what JSON cannot carry (NaN, half a surrogate pair).
    """
    raw = await _read(request, limits.body_bytes)
    if not raw.strip():
        raise MalformedRequest("The body is empty; a JSON object is expected.")
    if _depth(raw) > limits.json_depth:
        raise InvalidRequest(f"The body nests deeper than {limits.json_depth} levels.")
    try:
        value: Json = json.loads(raw)
    except UnicodeDecodeError:
        raise MalformedRequest("The body is not JSON: it is not valid UTF-8.") from None
    except ValueError as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise MalformedRequest(f"The body is not JSON{where}.") from None
    if not is_object(value):
        raise InvalidRequest("The body must be a JSON object.")
    odd = _odd_value(value, "")
    if odd is not None:
        raise InvalidRequest(f"{odd}: not a value that JSON can carry.", param=odd)
    return Body(raw, value)


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


def _depth(raw: bytes) -> int:
    """Find how deep brackets nest, without parsing: a parser would recurse as deep."""
    deepest = depth = 0
    for part in _outside_strings(raw):
        if b"[" in part or b"{" in part or b"]" in part or b"}" in part:
            for byte in part:
                if byte in b"[{":
                    depth += 1
                    deepest = max(deepest, depth)
                elif byte in b"]}":
                    depth -= 1
    return deepest


def _outside_strings(raw: bytes) -> list[bytes]:
    """Split at quotes, after taking out the escaped ones; every second part lies outside of strings."""
    return raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]


def _odd_value(value: Json, path: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, str):
        return None if value.isascii() or _is_text(value) else path
    pairs: list[tuple[object, Json]] = []
    if is_object(value):
        if any(not _is_text(key) for key in value):
            return path or "body"
        pairs = list(value.items())
    elif is_array(value):
        pairs = list(enumerate(value))
    for key, item in pairs:
        odd = _odd_value(item, f"{path}.{key}" if path else str(key))
        if odd is not None:
            return odd
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
