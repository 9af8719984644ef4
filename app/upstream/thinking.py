"""Takes `<think>…</think>` out of the beginning of an answer: some models think aloud in their text. Sans-I/O.

Only at the very beginning, so that prose which speaks of the tag is left alone; the tag may be split over deltas in any
way, and one thought may follow another. A thought that is not closed stays a thought. Where reasoning came in a field
of its own, a tag that only closes it is dropped, and so is a thought that comes in one piece and says the same.
"""

from typing import Literal

from app.domain.messages import ReasoningDelta, TextDelta

_OPEN, _CLOSE = "<think>", "</think>"


class ThoughtSplitter:
    """Splits one reply's text. Once it `is_done` all that follows is text, and need not be asked about."""

    __slots__ = ("_heard", "_held", "_place", "_raw", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._heard: list[str] = []  # reasoning that came in a field of its own
        self._raw: list[str] = []  # all that was taken out of the text, and what stood around it
        self._place: Literal["before", "behind_stray", "within", "closed"] = "before"
        self._held: str = ""  # what may still become a tag

    def hear(self, thought: str) -> None:
        """Take a piece of reasoning that came in a field of its own."""
        if not self.is_done:
            self._heard.append(thought)

    def split(self, text: str) -> list[TextDelta | ReasoningDelta]:
        """Take a piece of the reply and give what is known of it."""
        if self.is_done:
            return [TextDelta(text)]
        self._raw.append(text)
        text, self._held = self._held + text, ""
        found: list[TextDelta | ReasoningDelta] = []
        has_begun = False  # a thought, in this piece
        while text:
            if self._place == "within":
                text = self._think(text, found, may_be_known=has_begun)
                continue
            if self._place != "before":
                text = text.lstrip("\n")
            start = text.lstrip()
            may_close = self._place == "before" and bool(self._heard)
            if start.startswith(_OPEN):
                self._place, text, has_begun = "within", start.removeprefix(_OPEN), True
            elif may_close and start.startswith(_CLOSE):
                self._place, text = "behind_stray", start.removeprefix(_CLOSE)
                self._raw = [text]
            elif _OPEN.startswith(start) or (may_close and _CLOSE.startswith(start)):
                self._held = text
                break
            else:
                self._end_before(text)
                found.append(TextDelta(text))
                break
        return found

    @property
    def raw(self) -> str:
        """What was taken out of the beginning of the text so far, byte for byte; empty where there was no thought."""
        return "".join(self._raw) if self._place in ("within", "closed") else ""

    def rest(self) -> list[TextDelta | ReasoningDelta]:
        """What follows is no text, or nothing: give what was held back."""
        held, self._held = self._held, ""
        is_thought = self._place == "within"
        self._end_before("" if is_thought else held)
        if not held:
            return []
        return [ReasoningDelta(held) if is_thought else TextDelta(held)]

    def _think(self, text: str, found: list[TextDelta | ReasoningDelta], *, may_be_known: bool) -> str:
        """Take text that begins within a thought; return what follows that."""
        thought, closing, rest = text.partition(_CLOSE)
        if closing:
            self._place = "closed"
        elif kept := _half_tag(text):
            thought, self._held = thought[:-kept], thought[-kept:]
        is_known = may_be_known and bool(closing) and thought.strip() == "".join(self._heard).strip()
        if thought and not is_known:
            found.append(ReasoningDelta(thought))
        return rest

    def _end_before(self, text: str) -> None:
        """Take no more out of the text: this, with which it ended, is the first that stays."""
        self.is_done = True
        raw = "".join(self._raw)
        self._raw = [raw[: len(raw) - len(text)]]


def _half_tag(text: str) -> int:
    """Tell how many characters at the end may be the beginning of the closing tag."""
    return next((size for size in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:size])), 0)
