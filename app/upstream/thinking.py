"""Takes `<think>…</think>` out of the beginning of an answer: some models think aloud in their text. Sans-I/O.

Only at the very beginning, so that prose which speaks of the tag is left alone; the tag may be split over deltas in any
way. A thought that is not closed stays a thought.
"""

from typing import Literal

from app.domain.messages import ReasoningDelta, TextDelta

_OPEN, _CLOSE = "<think>", "</think>"


class ThoughtSplitter:
    """Splits one reply's text. Once it `is_done` all that follows is text, and need not be asked about."""

    __slots__ = ("_held", "_place", "_raw", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._raw: list[str] = []  # all that was taken out of the text, and what stood around it
        self._place: Literal["before", "within", "closed", "after"] = "before"
        self._held: str = ""  # what may still become a tag

    def split(self, text: str) -> list[TextDelta | ReasoningDelta]:
        """Take a piece of the reply and give what is known of it."""
        if self.is_done:
            return [TextDelta(text)]
        self._raw.append(text)
        text, self._held = self._held + text, ""
        found: list[TextDelta | ReasoningDelta] = []
        if self._place == "before":
            start = text.lstrip()
            if start.startswith(_OPEN):
                self._place, text = "within", start.removeprefix(_OPEN)
            elif _OPEN.startswith(start):
                self._held = text
                return found
            else:
                self._place = "after"
        if self._place == "within":
            thought, closing, rest = text.partition(_CLOSE)
            kept = 0 if closing else _half_tag(text)
            thought, self._held = thought[: len(thought) - kept], text[len(text) - kept :] if kept else ""
            if thought:
                found.append(ReasoningDelta(thought))
            if not closing:
                return found
            self._place, text = "closed", rest
        if self._place == "closed":
            text = text.lstrip("\n")
        if text:
            self.is_done = True
            raw = "".join(self._raw) if self._place == "closed" else ""
            self._raw = [raw[: len(raw) - len(text)]]
            found.append(TextDelta(text))
        return found

    @property
    def raw(self) -> str:
        """What was taken out of the beginning of the text so far, byte for byte; empty where there was no thought."""
        return "".join(self._raw) if self._place in ("within", "closed") else ""

    def rest(self) -> list[TextDelta | ReasoningDelta]:
        """What follows is no text, or nothing: give what was held back."""
        held, self._held = self._held, ""
        self.is_done = True
        if not held:
            return []
        return [ReasoningDelta(held) if self._place == "within" else TextDelta(held)]


def _half_tag(text: str) -> int:
    """Tell how many characters at the end may be the beginning of the closing tag."""
    return next((size for size in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:size])), 0)
