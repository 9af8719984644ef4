"""Tool calls that a model wrote into its text become calls. Sans-I/O; stands between the decoder and the loop.

- A written call is one only as a whole: from its marker to the end of the reply there are only complete blocks and
  white space, all of them call offered tools, and the reply has no real call. All else stays text, as it was written.
- Text before a marker is passed on at once. From the marker on it is held, but only while it can still become a call,
  and no more than `MAX_HELD` characters of it; what else the reply brings meanwhile waits behind it.
- Tags that are only spoken of and code blocks are left alone. Where a call has begun and then is none, nothing after it
  is run, so that no reply is run in part. Calls are still looked for, to tell that they were not run.

Every character is read once, however the text is cut. Which model writes which form is not known here.
"""

import json
import re
from collections.abc import Collection, Generator, Sequence
from typing import TypeAlias, TypeVar

from app.domain.jsontypes import Json, JsonObject, is_object
from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, TextDelta

MAX_HELD = 64 * 1024
"""Characters of text, and of reasoning behind it, that are held back at most."""
_MAX_READ = 4 * MAX_HELD  # of a block that is not held

_FUNCTION, _ANNOUNCED = "<function=", "[TOOL_CALLS]"
_MARKERS = ("<tool_call>", "<tool_calls>", "<function_call>", _FUNCTION, _ANNOUNCED)
_BEGINNINGS = frozenset(marker[:size] for marker in _MARKERS for size in range(1, len(marker)))
_LONGEST = max(map(len, _MARKERS))
_SIGN = re.compile(r"[<\[]|`+")
_FENCE_WORDS = ("", "json", "JSON", "tool", "tool_call", "tool_calls", "tool_code", "function_call")
_CALL_KEYS = ("name", "arguments", "parameters", "id", "type", "function")
_EXACT_KEYS = ({"name", "arguments"}, {"name", "parameters"})
_BLANK = " \t\r\n"
_OUTLINE = '{}[]",:+-.0123456789eEaflnrstu' + _BLANK  # what JSON has outside of strings

_T = TypeVar("_T")
_Steps: TypeAlias = Generator[None, None, _T]
"""Yields where it needs more text."""


class WrittenCalls:
    """Filters the deltas of one reply; `names` are the tools that its request offered."""

    __slots__ = ("_blocks", "_fence", "_has_run", "_held", "_last", "_may_run", "_names", "_ticks", "left_as_text")

    def __init__(self, names: Collection[str]) -> None:
        self.left_as_text: str | None = None
        """After the end: an offered tool, a written call of which was not run."""
        self._names = frozenset(names)
        self._may_run = True  # else blocks are read only to be told, and nothing is held
        self._has_run = False
        self._blocks: _Blocks | None = None
        self._held: list[Delta] = []
        self._last = ""  # the last text that was not empty
        self._fence = 0  # how many backticks opened the code block in which the text stands
        self._ticks = 0  # how many backticks, from the beginning of a line, `_last` ends with; counted in code blocks

    def take(self, batch: Sequence[Delta]) -> Sequence[Delta]:
        """Give what may be passed on: the batch itself where nothing is held or changed. This is once per token."""
        if self._blocks is None:
            last = self._last
            for delta in batch:
                if isinstance(delta, TextDelta):
                    text = delta.text
                    if "<" in text or "[" in text or "`" in text:
                        break
                    last = text or last
                elif not isinstance(delta, ReasoningDelta):
                    break
            else:
                self._last = last
                return batch
        was_held, given = bool(self._held), list[Delta]()
        for delta in batch:
            self._take_one(delta, given)
        return given if was_held or self._held or self._has_run else batch

    def rest(self, *, is_whole: bool = True) -> Sequence[Delta]:
        """Take the end of the reply and give what is held: calls where it is whole and they are, else text."""
        blocks, held, self._held = self._blocks, self._held, []
        if blocks is not None and blocks.is_complete and self._may_run and is_whole:
            self._blocks, self._has_run = None, True
            held = [delta for delta in held if not isinstance(delta, TextDelta)]
            held += [CallFragment(index, None, *call) for index, call in enumerate(blocks.calls)]
        elif blocks is not None:
            self._lose(blocks)
        self._may_run = False
        return held

    def _take_one(self, delta: Delta, given: list[Delta]) -> None:
        if isinstance(delta, TextDelta):
            self._hear(delta.text, given)
            return
        if isinstance(delta, CallFragment):
            self._give_up(given)
        elif isinstance(delta, Finish):
            given += self.rest()
        if self._held and self._blocks is not None:
            self._held.append(delta)
            self._blocks.size += len(delta.text) if isinstance(delta, ReasoningDelta) else 0
            if self._blocks.size > MAX_HELD:
                self._give_up(given)
        else:
            given.append(delta)

    def _hear(self, text: str, given: list[Delta]) -> None:
        at = sent = 0
        while at < len(text):
            blocks = self._blocks
            if blocks is None:
                at = self._sign_from(text, at)
                if at == len(text):
                    break
                before = text[at - 1] if at else self._last[-1:]
                blocks = self._blocks = _Blocks(self._names, is_quoted=before == "`")
                if self._may_run and sent < at:
                    given.append(TextDelta(text[sent:at]))
                    sent = at
            room = (MAX_HELD if self._may_run else _MAX_READ) - blocks.size
            at = blocks.read(text, at, min(len(text), at + room))
            if not blocks.is_prose and at == len(text):
                break
            given += self._held
            self._held = []
            if self._may_run and sent < at:
                given.append(TextDelta(text[sent:at]))
                sent = at
            if blocks.is_prose or not self._may_run:
                self._lose(blocks)
            self._may_run = self._may_run and blocks.is_prose
        if sent < len(text):
            is_held = self._may_run and self._blocks is not None
            (self._held if is_held else given).append(TextDelta(text[sent:]))
        self._last = text or self._last

    def _give_up(self, given: list[Delta]) -> None:
        self._may_run = False
        given += self._held
        self._held = []

    def _lose(self, blocks: "_Blocks") -> None:
        self._blocks = None
        self._fence, self._ticks = blocks.fence, 0
        if blocks.is_quoted:
            return
        self.left_as_text = self.left_as_text or blocks.named
        self._may_run = self._may_run and not blocks.is_begun and not blocks.next_marker
        if blocks.next_marker:
            self._blocks = _Blocks(self._names, is_quoted=False)
            self._blocks.read(blocks.next_marker, 0, len(blocks.next_marker))

    def _sign_from(self, text: str, at: int) -> int:
        """Find what may be a marker or the fence of a call; the length of the text where there is none."""
        for found in _SIGN.finditer(text, at):
            start, size, is_cut = found.start(), len(found[0]), found.end() == len(text)
            before = text[start - 1] if start else self._last[-1:]
            if found[0][0] != "`":
                near = text[start : start + _LONGEST]
                if not self._fence and (near.startswith(_MARKERS) or near in _BEGINNINGS):
                    return start
            elif not self._fence:
                if before in ("", "\n"):
                    return start
            else:
                run = self._ticks if start == 0 and before == "`" else 0
                size = size + run if run or before == "\n" else 0
                self._ticks = size if is_cut else 0
                self._fence = 0 if size >= self._fence else self._fence
        return len(text)


class _Prose(ValueError):
    """What is read can become a call no more."""


class _Blocks:
    """Reads blocks of calls with white space between them, in whatever pieces they come."""

    def __init__(self, names: Collection[str], *, is_quoted: bool) -> None:
        self.calls: list[tuple[str, str]] = []  # name, arguments
        self.named: str | None = None  # the first offered tool of which a whole call was read
        self.size = 0
        self.is_quoted = is_quoted
        self.is_prose = False
        self.is_begun = False  # this is more than a tag that is spoken of, though it may call nothing that is offered
        self.is_complete = False  # what was read so far are whole calls
        self.fence = 0  # how many backticks opened the code block that is being read
        self.next_marker = ""  # where it is prose: what it ended with, if another marker may begin so
        self._names = names
        self._text, self._at, self._end = "", 0, 0
        self._blank = ""  # the white space just before
        self._steps = self._read_blocks()

    def read(self, text: str, at: int, end: int) -> int:
        """Read a part of a text; return where reading ended, which is before the part's end only if it `is_prose`."""
        self._text, self._at, self._end = text, at, end
        try:
            next(self._steps)
        except (ValueError, RecursionError):  # also of JSON that is none
            self.is_prose = True
        self.size += self._at - at
        return self._at

    # Forms

    def _read_blocks(self) -> _Steps[None]:
        character = yield from self._peek()
        while True:
            if character == "`":
                yield from self._read_fence()
            else:
                marker = yield from self._read_literal(*_MARKERS)
                if marker == _FUNCTION:
                    yield from self._read_function()
                elif marker == _ANNOUNCED:
                    yield from self._read_announced()
                else:
                    yield from self._read_tagged("</" + marker[1:])
            self.is_begun = self.is_complete = True
            character = yield from self._skip_blank()
            self.is_complete = False
            self.is_quoted = self.is_quoted and character == "`"
            if character == "`" and self._blank != "\n":
                raise _Prose

    def _read_fence(self) -> _Steps[None]:
        size = 0
        while (yield from self._peek()) == "`":
            size += 1
            self._at += 1
        if size < 3:
            raise _Prose
        self.fence = size
        yield from self._read_word(_FENCE_WORDS, _BLANK)
        while (character := (yield from self._peek())) != "\n":
            if character not in _BLANK:
                raise _Prose
            self._at += 1
        yield from self._skip_blank()
        yield from self._read_calls(is_fenced=True)
        yield from self._skip_blank()
        yield from self._read_literal("`" * size)
        self.fence = 0

    def _read_tagged(self, closing: str) -> _Steps[None]:
        if (yield from self._skip_blank()) != "<":
            yield from self._read_calls()
            yield from self._skip_blank()
            yield from self._read_literal(closing)
            return
        tag = yield from self._read_literal(_FUNCTION)
        while tag == _FUNCTION:
            yield from self._read_function()
            yield from self._skip_blank()
            tag = yield from self._read_literal(_FUNCTION, closing)

    def _read_function(self) -> _Steps[None]:
        self.is_begun = True
        name = yield from self._read_word(self._names, ">")
        self._at += 1
        arguments: JsonObject = {}
        if (yield from self._skip_blank()) == "{":
            arguments = yield from self._read_object()
            yield from self._skip_blank()
            yield from self._read_literal("</function>")
        else:
            while (yield from self._read_literal("<parameter=", "</function>")) == "<parameter=":
                key = yield from self._read_until(">")
                value = yield from self._read_until("</parameter>")
                arguments[key] = value.removeprefix("\n").removesuffix("\n")
                yield from self._skip_blank()
        self._add(name, arguments)

    def _read_announced(self) -> _Steps[None]:
        self.is_begun = True
        if (yield from self._skip_blank()) in "{[":
            yield from self._read_calls()
            return
        name = yield from self._read_word(self._names, "{[" + _BLANK)
        if (yield from self._skip_blank()) == "[":
            yield from self._read_literal("[ARGS]")
            yield from self._skip_blank()
        self._add(name, (yield from self._read_object()))

    def _read_calls(self, *, is_fenced: bool = False) -> _Steps[None]:
        """Read a call as an object, or a list of such."""
        character = yield from self._peek()
        self.is_begun = self.is_begun or (character in "{[" and not is_fenced)
        if character != "[":
            yield from self._read_call(is_fenced=is_fenced)
            return
        while character != "]":
            self._at += 1
            yield from self._skip_blank()
            yield from self._read_call(is_fenced=is_fenced)
            character = yield from self._skip_blank()
            if character not in ",]":
                raise _Prose
        self._at += 1

    def _read_call(self, *, is_fenced: bool) -> _Steps[None]:
        item: JsonObject = yield from self._read_object(self._names, _CALL_KEYS if is_fenced else ())
        function: Json = item.get("function")
        call: JsonObject = function if is_object(function) else item
        own, outer = call.keys() - {"id", "type"}, item.keys() - {"id", "type"}
        if is_fenced and (own not in _EXACT_KEYS or (call is not item and outer != {"function"})):
            raise _Prose
        self._add(call.get("name"), call.get("arguments", call.get("parameters")))

    # Pieces

    def _peek(self) -> _Steps[str]:
        while self._at == self._end:
            yield
        return self._text[self._at]

    def _skip_blank(self) -> _Steps[str]:
        """Go on to what is no white space, and look at it."""
        self._blank = ""
        while (character := (yield from self._peek())).isspace():
            self._blank = character
            self._at += 1
        return character

    def _read_literal(self, *choices: str) -> _Steps[str]:
        """Read one of some texts, none of which begins another."""
        read = ""
        while read not in choices:
            longer = read + (yield from self._peek())
            if not any(choice.startswith(longer) for choice in choices):
                self.next_marker = read if choices != _MARKERS and longer in _BEGINNINGS else ""
                raise _Prose
            read = longer
            self._at += 1
        return read

    def _read_word(self, choices: Collection[str], stops: str) -> _Steps[str]:
        """Read one of some words, up to a character that ends it."""
        read = ""
        while (character := (yield from self._peek())) not in stops:
            read += character
            if not any(choice.startswith(read) for choice in choices):
                raise _Prose
            self._at += 1
        if read not in choices:
            raise _Prose
        return read

    def _read_until(self, closing: str) -> _Steps[str]:
        """Read what stands before a closing text, and that."""
        read: list[str] = []
        while read[-1:] != [">"] or "".join(read[-len(closing) :]) != closing:
            read.append((yield from self._peek()))
            self._at += 1
        return "".join(read)[: -len(closing)]

    def _read_string(self) -> _Steps[str]:
        """Read a JSON string up to its last quote."""
        read: list[str] = []
        while (character := (yield from self._peek())) != '"' or read[-1:] == ["\\"]:
            # A backslash and what follows it are kept as one.
            read.append(read.pop() + character if read[-1:] == ["\\"] else character)
            self._at += 1
        return "".join(read)

    def _read_object(self, names: Collection[str] = (), keys: Collection[str] = ()) -> _Steps[Json]:
        """Read a JSON object; where `names` or `keys` are given, its `name` and its keys must be among them."""
        closers, read = list[str](), list[str]()
        key = before = ""
        while closers or not read:
            character = yield from self._peek()
            is_call = closers == ["}"]
            is_key = before in ("{", ",") and closers[-1] == "}"
            is_name = is_call and before == ":" and key == "name" and bool(names)
            allowed = "{" if not closers else '"}' if is_key else '"' if is_name else _OUTLINE
            if character not in allowed and (character not in _BLANK or not closers):
                raise _Prose
            self._at += 1
            read.append(character)
            if character == '"':
                words = names if is_name else keys if is_call and is_key else ()
                read.append((yield from self._read_word(words, '"') if words else self._read_string()))
                key = read[-1] if is_call and is_key else key
                self._at += 1
                read.append('"')
            elif character in "{[":
                closers.append("}" if character == "{" else "]")
            elif character in "}]" and closers.pop() != character:
                raise _Prose
            before = before if character in _BLANK else character
        return json.loads("".join(read), strict=False)

    def _add(self, name: Json, arguments: Json) -> None:
        if not isinstance(name, str) or name not in self._names:
            raise _Prose
        self.named = self.named or name
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not is_object(json.loads(text, strict=False)):
            raise _Prose
        self.calls.append((name, text))
