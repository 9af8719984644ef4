"""An event becomes JSON bytes here, once; journal and API pass the bytes on.

Token events are the hot path: a template around an escaped string costs a tenth of building and dumping a dict.
"""

import json
import math
from json.encoder import encode_basestring

from app.domain.events import Event, ReasoningToken, Token
from app.domain.jsontypes import Json, is_array, is_object

_DUMPS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def json_from_event(event: Event) -> bytes:
    """Encode an event's data as one line of UTF-8 JSON, non-ASCII as is.

    Lone surrogates, which UTF-8 cannot carry, become U+FFFD; numbers that JSON does not know become null.
    """
    if isinstance(event, Token):
        text = '{"type":"stream","token":' + encode_basestring(event.token) + "}"
    elif isinstance(event, ReasoningToken):
        text = '{"type":"reasoning","subtype":"stream","token":' + encode_basestring(event.token) + "}"
    else:
        return json_from_value(event.data())
    return _utf8(text)


def json_from_value(value: Json) -> bytes:
    """Encode any JSON value as one line of UTF-8, under the same rules."""
    try:
        return _utf8(_DUMPS(value))
    except ValueError:
        return _utf8(_DUMPS(_finite(value)))


def writable(text: str) -> str:
    """Make a text writable as UTF-8: surrogates that stand side by side become their character, others U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return writable(text).encode()


def _finite(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_object(value):
        return {key: _finite(item) for key, item in value.items()}
    if is_array(value):
        return [_finite(item) for item in value]
    return value
