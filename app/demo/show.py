"""How a run's event stream looks in a terminal: one line per event, tokens as running text. Pure: events in, text out.

Data is shortened for the eye; whoever wants all of it reads the stream itself.
"""

import json
from dataclasses import dataclass
from typing import Final

from app.domain.jsontypes import Json, JsonObject, is_object

_ID_COLUMNS: Final = 4
_NAME_COLUMNS: Final = 14
_INDENT: Final = _ID_COLUMNS + _NAME_COLUMNS + 3
_NARROWEST: Final = 60
_UUID_CHARACTERS: Final = 8
_RUNNING_TEXT: Final = ("stream", "reasoning")
_KEYS: Final = ("uuid", "status", "name", "server", "call", "duration")  # go first
_LEFT_OUT: Final = ("type", "subtype")  # the event's name says it
# What was streamed before, and second forms of what is shown.
_LEFT_OUT_OF: Final = {"tool/call": ("content", "reasoning", "argumentsRaw", "originalId", "tool")}
# What comes from tools and models must not steer the terminal.
_HARMLESS: Final = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code != ord("\n")}
_COLOURS: Final = {"tool/result": 32, "finalAnswer": 32, "tool/error": 31, "server": 36, "status": 36}
_OTHER_COLOUR: Final = 34


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a run."""

    id: str
    name: str
    data: JsonObject


def event_from_text(event_id: str, name: str, text: str) -> StreamEvent:
    """Read an event's data; what is no JSON object is shown as `{}`."""
    try:
        data: Json = json.loads(text)
    except ValueError:
        data = None
    return StreamEvent(event_id, name, data if is_object(data) else {})


@dataclass(slots=True)
class Screen:
    """Turns events into text for a terminal of `width` columns; remembers where a running text stands."""

    width: int
    colour: bool = False
    _running: str = ""
    _column: int = 0  # 0 where a new line has not been begun

    def __post_init__(self) -> None:
        self.width = max(self.width, _NARROWEST)

    def show(self, event: StreamEvent) -> str:
        """Return what to write next: a whole line, or a piece of one that goes on."""
        token: Json = event.data.get("token")
        if event.name in _RUNNING_TEXT and isinstance(token, str):
            start = "" if event.name == self._running else self.end() + self._label(event)
            self._running = event.name
            return start + self._flow(token.translate(_HARMLESS))
        data = _dumped(_gist(event)).translate(_HARMLESS)
        room = self.width - _INDENT
        return f"{self.end()}{self._label(event)}{data if len(data) <= room else data[: room - 1] + '…'}\n"

    def end(self) -> str:
        """Return what ends a running text: nothing where there is none."""
        end = "\n" if self._running and self._column else ""
        self._running = ""
        return end

    def paint(self, text: str, code: int) -> str:
        """Colour a text (SGR code) where colours are wanted."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def _label(self, event: StreamEvent) -> str:
        self._column = _INDENT
        colour = 31 if event.data.get("status") == "error" else _COLOURS.get(event.name, _OTHER_COLOUR)
        number = self.paint(f"{event.id:>{_ID_COLUMNS}}", 2)
        return f"{number}  {self.paint(f'{event.name:<{_NAME_COLUMNS}}', colour)} "

    def _flow(self, token: str) -> str:
        """Write a token, in a new line where it no longer fits; lines are indented under the event's data."""
        pieces = token.split("\n")
        shown = [self._fitted(pieces[0])]
        for piece in pieces[1:]:
            self._column = 0
            shown.append("\n" + self._fitted(piece))
        return "".join(shown)

    def _fitted(self, piece: str) -> str:
        start = ""
        if self._column > _INDENT and self._column + len(piece) > self.width:
            self._column, piece, start = 0, piece.lstrip(" "), "\n"
        if piece and self._column == 0:
            self._column, start = _INDENT, start + " " * _INDENT
        self._column += len(piece)
        return start + piece


def _gist(event: StreamEvent) -> JsonObject:
    """Leave out what is said already, cut ids, and order the rest so that trimming hurts least."""
    left_out = (*_LEFT_OUT, *_LEFT_OUT_OF.get(event.name, ()))
    kept = {key: value for key, value in event.data.items() if key not in left_out and value is not None}
    uuid, result = kept.get("uuid"), kept.get("result")
    if isinstance(uuid, str):
        kept["uuid"] = uuid[:_UUID_CHARACTERS]
    if is_object(result):
        kept["result"] = {"outputs": result.get("outputs")}
    ranks = {key: rank for rank, key in enumerate(_KEYS)}
    return dict(sorted(kept.items(), key=lambda item: (ranks.get(item[0], len(ranks)), len(_dumped(item[1])))))


def _dumped(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
