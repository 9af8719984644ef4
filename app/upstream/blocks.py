"""Blocks of calls that a model wrote as text, read character by character in whatever pieces they come. Sans-I/O.

Knows the forms that models write calls in, not which model writes which, and not what becomes of a call.
"""

import json
import re
from collections.abc import Collection, Generator
from typing import TypeAlias, TypeVar

from app.domain.jsontypes import Json, JsonObject, is_object

_FUNCTION, _ANNOUNCED = "<function=", "[TOOL_CALLS]"
MARKERS = ("<tool_call>", "<tool_calls>", "<function_call>", _FUNCTION, _ANNOUNCED)
"""With what a call begins that stands in no code block; or with `{` where the reply begins so."""
BEGINNINGS = frozenset(marker[:size] for marker in MARKERS for size in range(1, len(marker)))
_END_TOKENS = ("<|im_end|>", "</s>", "<|eot_id|>", "<|eom_id|>")  # some servers leave them behind the last block
_FENCE_WORDS = ("", "json", "JSON", "tool", "tool_call", "tool_calls", "tool_code", "function_call")
_CALL_KEYS = ("name", "arguments", "parameters", "id", "type", "function")
_EXACT_KEYS = ({"name", "arguments"}, {"name", "parameters"})
_BLANK = " \t\r\n"
_OUTLINE = '{}[]",:+-.0123456789eEaflnrstu' + _BLANK  # what JSON has outside of strings
_UNESCAPED = re.compile(r'[^"\\]*')


def _so_far(word: str) -> str:
    """Make a pattern of a word, also of its beginning where the text ends with that."""
    pattern = ""
    for character in reversed(word):
        pattern = rf"{re.escape(character)}(?:\Z|{pattern})"
    return pattern


# Each choice begins with a plain character, so that `re` skips prose without trying them.
SIGN = re.compile("|".join(map(_so_far, MARKERS)) + r"|`(?<![^\n]`)(?:``+|`?\Z)")
"""What may be a marker, or backticks at the beginning of a line that may open a code block."""
CALL_FENCE = re.compile(rf"(?:{'|'.join(map(_so_far, _FENCE_WORDS[1:]))})?[ \t\r]*(?:\Z|\n\s*(?:\Z|[{{\[]))")
"""What follows the backticks of a code block that may yet be a call."""

_T = TypeVar("_T")
_Steps: TypeAlias = Generator[None, None, _T]
"""Yields where it needs more text."""


class _Prose(ValueError):
    """What is read can become a call no more."""


class CallBlocks:
    """Reads blocks of calls with white space between them, in whatever pieces they come."""

    __slots__ = (
        "_at",
        "_blank",
        "_end",
        "_may_be_bare",
        "_names",
        "_only_tagged",
        "_steps",
        "_text",
        "calls",
        "fence",
        "is_begun",
        "is_complete",
        "is_hopeless",
        "is_prose",
        "is_quoted",
        "named",
        "next_marker",
        "size",
    )

    def __init__(
        self, names: Collection[str], *, is_quoted: bool, may_be_bare: bool = False, only_tagged: bool = False
    ) -> None:
        """Begin where a marker, a fence or an object does.

        Args:
            names: The tools that can be called.
            is_quoted: A backtick stands before it.
            may_be_bare: The reply begins here.
            only_tagged: Code blocks are never calls.
        """
        self.calls: list[tuple[str, str]] = []  # name, arguments
        self.named: str | None = None  # the first offered tool of which a whole call was read
        self.size = 0
        self.is_quoted = is_quoted
        self.is_prose = False
        self.is_hopeless = False  # it cannot become a call, and is read only for how it ends
        self.is_begun = False  # this is more than a tag that is spoken of, though it may call nothing that is offered
        self.is_complete = False  # what was read so far are whole calls
        self.fence = 0  # how many backticks opened the code block that is being read
        self.next_marker = ""  # where it is prose: what it ended with, if another marker may begin so
        self._names = names
        self._may_be_bare = may_be_bare
        self._only_tagged = only_tagged
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
            is_bare = character == "{" and self._may_be_bare
            if character == "`":
                yield from self._read_fence()
            elif is_bare:
                yield from self._read_call(is_exact=True)
            else:
                marker = yield from self._read_literal(*MARKERS, *(_END_TOKENS if self.is_begun else ()))
                if marker in _END_TOKENS:
                    yield from self._read_end_tokens()
                elif marker == _FUNCTION:
                    yield from self._read_function()
                elif marker == _ANNOUNCED:
                    yield from self._read_announced()
                else:
                    yield from self._read_tagged("</" + marker[1:])
            character = yield from self._read_gap()
            if character == ";" and is_bare:
                self._at += 1
                character = yield from self._skip_blank()
                if character != "{":
                    raise _Prose
            self.is_quoted = self.is_quoted and character == "`"
            if character == "`" and self._blank != "\n":
                raise _Prose

    def _read_gap(self) -> _Steps[str]:
        """Go on to what follows whole calls, if anything does."""
        self.is_begun = self.is_complete = True
        character = yield from self._skip_blank()
        self.is_complete = False
        return character

    def _read_end_tokens(self) -> _Steps[None]:
        while True:
            yield from self._read_gap()
            yield from self._read_literal(*_END_TOKENS)

    def _read_fence(self) -> _Steps[None]:
        self.is_hopeless = self._only_tagged and not self.is_begun
        size = 0
        while (yield from self._peek()) == "`":
            size += 1
            self._at += 1
        self.fence = size if size >= 3 else 0
        if not self.fence or self._only_tagged:
            raise _Prose
        yield from self._read_word(_FENCE_WORDS, _BLANK)
        while (character := (yield from self._peek())) != "\n":
            if character not in _BLANK:
                raise _Prose
            self._at += 1
        yield from self._skip_blank()
        yield from self._read_calls(is_exact=True)
        yield from self._skip_blank()
        yield from self._read_literal("`" * size)
        self.fence = 0

    def _read_tagged(self, closing: str) -> _Steps[None]:
        character = yield from self._skip_blank()
        if character.isalnum() or character == "_":
            yield from self._read_pairs(closing)
            return
        if character != "<":
            yield from self._read_calls()
            yield from self._skip_blank()
            yield from self._read_literal(closing)
            return
        tag = yield from self._read_literal(_FUNCTION)
        while tag == _FUNCTION:
            yield from self._read_function()
            yield from self._skip_blank()
            tag = yield from self._read_literal(_FUNCTION, closing)

    def _read_pairs(self, closing: str) -> _Steps[None]:
        """Read a name and tags of keys and values in turn, up to the closing tag."""
        # Prose that speaks of the tag has a space after it.
        self.is_begun = self.is_begun or self._blank in ("", "\n")
        name = yield from self._read_word(self._names, "<" + _BLANK)
        arguments: JsonObject = {}
        yield from self._skip_blank()
        while (yield from self._read_literal("<arg_key>", closing)) != closing:
            self.is_begun = True
            key = yield from self._read_until("</arg_key>")
            yield from self._skip_blank()
            yield from self._read_literal("<arg_value>")
            arguments[key.strip()] = yield from self._read_until("</arg_value>")
            yield from self._skip_blank()
        self._add(name, arguments)

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
            if (yield from self._read_literal("[ARGS]", "[CALL_ID]")) == "[CALL_ID]":
                while (character := (yield from self._peek())).isalnum() or character in "-_":
                    self._at += 1
                yield from self._read_literal("[ARGS]")
            yield from self._skip_blank()
        self._add(name, (yield from self._read_object()))

    def _read_calls(self, *, is_exact: bool = False) -> _Steps[None]:
        """Read a call as an object, or a list of such."""
        character = yield from self._peek()
        self.is_begun = self.is_begun or (character in "{[" and not is_exact)
        if character != "[":
            yield from self._read_call(is_exact=is_exact)
            return
        while character != "]":
            self._at += 1
            yield from self._skip_blank()
            yield from self._read_call(is_exact=is_exact)
            character = yield from self._skip_blank()
            if character not in ",]":
                raise _Prose
        self._at += 1

    def _read_call(self, *, is_exact: bool) -> _Steps[None]:
        item: JsonObject = yield from self._read_object(self._names, _CALL_KEYS if is_exact else ())
        function: Json = item.get("function")
        call: JsonObject = function if is_object(function) else item
        own, outer = call.keys() - {"id", "type"}, item.keys() - {"id", "type"}
        if is_exact and (own not in _EXACT_KEYS or (call is not item and outer != {"function"})):
            raise _Prose
        arguments = call.get("arguments")
        self._add(call.get("name"), call.get("parameters") if arguments in (None, "") else arguments)

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
        for choice in choices:
            if self._text.startswith(choice, self._at, self._end):
                self._at += len(choice)
                return choice
        read = ""
        while read not in choices:
            longer = read + (yield from self._peek())
            if not any(choice.startswith(longer) for choice in choices):
                self.next_marker = read if longer in BEGINNINGS else ""
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
        read, last = list[str](), ""
        while last != closing:
            yield from self._peek()
            end = self._text.find(closing[-1], self._at, self._end) + 1 or self._end
            read.append(self._text[self._at : end])
            self._at = end
            last = (last + read[-1])[-len(closing) :]
        return "".join(read)[: -len(closing)]

    def _read_string(self) -> _Steps[str]:
        """Read a JSON string up to its last quote."""
        read: list[str] = []
        while (character := (yield from self._peek())) != '"':
            found = _UNESCAPED.match(self._text, self._at, self._end)
            if character == "\\" or found is None:
                self._at += 1
                read += (character, (yield from self._peek()))
                self._at += 1
            else:
                read.append(found[0])
                self._at = found.end()
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
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not is_object(json.loads(text, strict=False)):
            raise _Prose
        self.calls.append((name, text))
