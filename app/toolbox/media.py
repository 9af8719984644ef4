"""What results hold that is no text, told in one line: pictures, sounds, files, bytes written as text. Pure."""

import re

from app.domain.jsontypes import Json, is_array, is_object

_BASE64 = re.compile(r"(?:[A-Za-z0-9+/_-]{60,}+\r?\n)*+[A-Za-z0-9+/_-]++={0,2}\s*")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_LONG_DATA_CHARACTERS = 2048
"""Shorter words of that kind may be tokens and cursors, which the model has to hand back."""


def is_media(value: Json) -> bool:
    """Tell whether a value holds pictures, sounds and files and says nothing else."""
    if is_array(value):
        return all(map(is_media, value))
    if not is_object(value):
        return False
    if value.get("type") in ("image", "audio", "resource", "resource_link"):
        return True
    return bool(value) and all(map(is_media, value.values()))


def without_media(value: Json) -> Json:
    """Put notes where bytes are written as text: no model can read them, and they would fill all its room."""
    if isinstance(value, str):
        return _data_note(value) if _is_data(value) else value
    if is_array(value):
        return [without_media(item) for item in value]
    if not is_object(value):
        return value
    is_media = value.get("type") in ("image", "audio") or isinstance(value.get("mimeType") or value.get("uri"), str)
    return {
        key: _data_note(item) if is_media and key in ("data", "blob") and isinstance(item, str) else without_media(item)
        for key, item in value.items()
    }


def _is_data(text: str) -> bool:
    if len(text) < _LONG_DATA_CHARACTERS:
        return False
    # Of one case only: a sequence of letters that means something, or a number in hexadecimal.
    is_mixed = not text.isupper() and not text.islower()
    return _DATA_URL.match(text) is not None or (is_mixed and _BASE64.fullmatch(text) is not None)


def _data_note(data: str) -> str:
    return note("data", amount(data_size(data)))


def data_size(data: str) -> int:
    """Return how many bytes a text in base64 stands for."""
    return max(len(data) * 3 // 4 - data[-2:].count("="), 0)


def note(kind: str, *facts: Json) -> str:
    """Write one line about something. Each fact is a stranger's, so it is kept to one line and a sane length."""
    shown = [" ".join(fact[:2000].split())[:500] for fact in facts if isinstance(fact, str) and fact.strip()]
    return f"[{kind}: {', '.join(shown)}]" if shown else f"[{kind}]"


def amount(size: int) -> str:
    """Write a number of bytes for people and models."""
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 1024:.1f} KiB" if size < 1024**2 else f"{size / 1024**2:.1f} MiB"
