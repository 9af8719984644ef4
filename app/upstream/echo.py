"""What a model thought, kept in the fields it came in, for endpoints that want it back. Sans-I/O.

Text is joined byte for byte. `reasoning_details` are blocks, streamed in pieces that share an index: their texts are
joined, other values (a signature) are set, and nothing that is not known is lost.
"""

from app.domain.jsontypes import Json, JsonObject, is_array, is_object

_TEXT_FIELDS = ("reasoning_content", "reasoning")
_JOINED = ("text", "summary", "data")


class ThoughtKeeper:
    """Keeps the reasoning of one reply."""

    __slots__ = ("_blocks", "_texts")

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._blocks: list[JsonObject] = []

    def keep(self, reasoning_content: Json, reasoning: Json, reasoning_details: Json) -> None:
        """Take the reasoning of one chunk."""
        for name, value in zip(_TEXT_FIELDS, (reasoning_content, reasoning), strict=True):
            if isinstance(value, str) and value:
                self._texts.setdefault(name, []).append(value)
        if is_array(reasoning_details):
            for piece in reasoning_details:
                if is_object(piece):
                    self._keep_block(piece)

    def fields(self, raw_thought: str) -> JsonObject:
        """Return the fields of a message that give it back; empty where there was none.

        `raw_thought` stood before the text of the answer, tags and all. It becomes `content`, to stand there again.
        """
        found: JsonObject = {"content": raw_thought} if raw_thought else {}
        found |= {name: "".join(parts) for name, parts in self._texts.items()}
        if self._blocks:
            found["reasoning_details"] = [
                {key: "".join(value) if is_array(value) and key in _JOINED else value for key, value in block.items()}
                for block in self._blocks
            ]
        return found

    def _keep_block(self, piece: JsonObject) -> None:
        last = self._blocks[-1] if self._blocks else None
        is_same = last is not None and all(last.get(key) == piece.get(key) for key in ("type", "index"))
        if last is None or not is_same or (piece.get("id") and piece.get("id") != last.get("id")):
            last = dict[str, Json]()
            self._blocks.append(last)
        for key, value in piece.items():
            if key in _JOINED and isinstance(value, str):
                parts = last.setdefault(key, [])
                if is_array(parts):
                    parts.append(value)
            elif value is not None or key not in last:
                last[key] = value
