"""When the conversation has grown longer than the model takes: how tool results are made shorter. Pure.

The newest results go first: they are what was not there when the model last answered. Beginning and end of a result
are kept, and the model is told how much is missing between them.
"""

import re
from collections.abc import Sequence

from app.domain.messages import Message

_FLOOR_CHARACTERS = 1000
"""A result is not made shorter than this."""
_NOTICE_CHARACTERS = 200
"""About what the notice itself takes; less than that is not worth a cut."""
_HALF = 0.5
_MARGIN = 0.1
"""Tokens are no characters, and the next answer needs room."""
_SMALLEST_WINDOW = 256
_NUMBER = re.compile(r"(?<![\w.-])(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?![\w-])")


def excess_from_error(text: str) -> float:
    """Tell how much of a conversation must go, as a part of it: by the numbers in the endpoint's words, else half.

    The two largest numbers are taken for the length that was sent and the length that is allowed. `text` may begin with
    the status, as our errors do.
    """
    words = text.partition(": ")[2] or text
    numbers = sorted({int(re.sub("[,_]", "", found)) for found in _NUMBER.findall(words) if len(found) < 12})
    if len(numbers) < 2 or numbers[-2] < _SMALLEST_WINDOW:
        return _HALF
    excess = 1 - numbers[-2] / numbers[-1] + _MARGIN
    return min(excess, 0.95)


def with_shorter_results(messages: Sequence[Message], excess: float) -> tuple[Message, ...]:
    """Shorten tool messages, the newest first, until `excess` of all text is gone or nothing more can be.

    Messages that need no change come back as they are.
    """
    left = excess * sum(len(content) for message in messages if isinstance(content := message.get("content"), str))
    shorter = list(messages)
    for at in range(len(shorter) - 1, -1, -1):
        content = shorter[at].get("content")
        if left < _NOTICE_CHARACTERS or shorter[at].get("role") != "tool" or not isinstance(content, str):
            continue
        text = _shortened(content, max(_FLOOR_CHARACTERS, int(len(content) - left - _NOTICE_CHARACTERS)))
        if len(text) < len(content):
            left -= len(content) - len(text)
            shorter[at] = {**shorter[at], "content": text}
    return tuple(shorter)


def _shortened(text: str, length: int) -> str:
    head, tail = length * 2 // 3, length // 3
    notice = (
        f"\n[… {len(text) - head - tail} characters were left out here, because the conversation is longer than the "
        "model takes. Ask for a smaller part if it is needed. …]\n"
    )
    return text[:head] + notice + text[len(text) - tail :]
