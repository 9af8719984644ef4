"""Takes from the texts of strangers the characters that nobody sees, which hide instructions from people. Pure."""

import re

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_FORMAT = (
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef"
)
"""Unicode's Cf, the unassigned ones between its tag characters, and the variants of ideographs, which carry bytes."""
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0e"
"""Letters, marks and variants that show nothing."""
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_SURROGATE = "\ud800-\udfff"

_UNSEEN = re.compile(f"[{_CONTROL}{_FORMAT}]")
_UNPAIRED = re.compile(f"[{_SURROGATE}]")
_UNFIT_TO_DESCRIBE = re.compile(f"[{_CONTROL}{_FORMAT}{_BLANK}{_PRIVATE}{_SURROGATE}]")
_HIDING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u180e\u200b\u202a-\u202e\u2060-\u206f\ufff9-\ufffb\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
)
"""What no honest text has: beside it there are carriage returns, soft hyphens, joiners of emoji, marks of direction."""
_PIECE_CHARACTERS = 65_536
"""A long text is cleaned in pieces, so that a thread that does it lets others go on: nothing runs beside a pattern."""


def clean_text(text: str) -> str:
    """Return a name or description without unseen, private-use and unpaired characters."""
    return _substituted(_UNFIT_TO_DESCRIBE, "", text)


def clean_result(text: str) -> str:
    """Return a text of a result without unseen characters, and with a mark in place of unpaired ones."""
    return _substituted(_UNPAIRED, "\ufffd", _substituted(_UNSEEN, "", text))


def hidden_in(text: str) -> int:
    """Count the characters of a text that hide something from people."""
    return len(text) - len(_substituted(_HIDING, "", text))


def shown_name(name: str, characters: int) -> str:
    """Make a name fit to be shown on one line; a longer one keeps its beginning. Empty if nothing of it can be seen."""
    shown = " ".join(clean_text(name[:characters]).split())
    return f"{shown}…" if len(name) > characters else shown


def _substituted(pattern: re.Pattern[str], by: str, text: str) -> str:
    """Replace single characters."""
    if len(text) <= _PIECE_CHARACTERS and text.isascii() and text.isprintable():
        return text
    pieces = range(0, len(text), _PIECE_CHARACTERS)
    return "".join(pattern.sub(by, text[start : start + _PIECE_CHARACTERS]) for start in pieces)
