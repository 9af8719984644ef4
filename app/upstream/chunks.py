"""Bytes of a chat-completions stream → chunks → deltas. Sans-I/O: it is fed what was read and never waits.

Rules of the framing (WHATWG server-sent events, taken leniently):
- Lines end with LF, CR or CRLF; any split over reads gives the same deltas.
- A `data:` line that is a chunk by itself is taken at once, also without the blank line after it; other `data:` lines
  of an event are joined. Lines that start with `{` are taken as data: some servers forget the prefix for errors.
- Comments and other fields are ignored, save `event: error`.
- A body that is JSON from the start is a server that ignored `stream: true`: it is decoded as one chunk.

Rules of the content: absent, null and empty mean the same; only choice 0 is heard; a chunk that cannot be read is
skipped and counted, it never ends the stream; an error in the stream does. What each field means is in `deltas.py`.
Nothing here raises for what a server sent: trouble is kept in `fault`, so that what came before it is not lost.
"""

import json

import msgspec

from app.domain.errors import RunError, UpstreamFailed, UpstreamIncomplete
from app.domain.jsontypes import Json, is_array, is_object
from app.domain.messages import Delta, Finish, TextDelta, Thought, Usage
from app.upstream.deltas import call_deltas, content_deltas, finish_word, merged_usage, reasoning_deltas, text_of
from app.upstream.echo import ThoughtKeeper
from app.upstream.faults import Scrub, complaint_from_json, failure_from_event
from app.upstream.thinking import ThoughtSplitter

MAX_FRAME_BYTES = 4 * 1024 * 1024


class ChunkDelta(msgspec.Struct, gc=False):
    """What a chunk adds to the reply. The fields are any JSON: providers differ in each of them."""

    content: Json = None
    refusal: Json = None
    reasoning: Json = None
    reasoning_content: Json = None
    reasoning_details: Json = None
    tool_calls: Json = None
    function_call: Json = None


class Choice(msgspec.Struct, gc=False):
    """One of the answers that a request can bring."""

    index: Json = 0
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
    """The whole answer, where the server did not stream it."""
    finish_reason: Json = None
    usage: Json = None
    error: Json = None


class Chunk(msgspec.Struct, gc=False):
    """One event of the stream."""

    choices: list[Choice] | None = None
    usage: Json = None
    error: Json = None


_decode = msgspec.json.Decoder(Chunk).decode


class ChunkDecoder:
    """Decodes one stream. Feed it until it `is_over` or the bytes end, then call `finish` and look at `fault`."""

    __slots__ = (
        "_after_cr",
        "_body",
        "_data",
        "_done",
        "_echo",
        "_event",
        "_finish_reason",
        "_heard_delta",
        "_heard_message",
        "_is_body",
        "_kept_bytes",
        "_partial",
        "_scrub",
        "_started",
        "_stray",
        "_thoughts",
        "_usage",
        "fault",
        "skipped",
    )

    def __init__(self, scrub: Scrub | None = None) -> None:
        self.fault: RunError | None = None
        """Why the stream is worth nothing from here on. After `finish` also: why it is not whole."""
        self.skipped = 0
        """How many chunks could not be read."""
        self._scrub = scrub or Scrub()
        self._thoughts = ThoughtSplitter()
        self._echo = ThoughtKeeper()
        self._partial: list[bytes] = []  # the beginning of a line whose end was not read yet
        self._data: list[bytes] = []  # data lines of the current event that are no chunk by themselves
        self._body: list[bytes] | None = None  # lines of a JSON body that is no event stream
        self._kept_bytes = 0  # in the three above
        self._event = b""
        self._after_cr = False
        self._started = False
        self._is_body = False
        self._stray: Json = None  # no chunk; in the place of an answer it may say why there is none
        self._done = False
        self._finish_reason: str | None = None
        self._heard_delta = False
        self._heard_message = False
        self._usage: Usage | None = None

    @property
    def is_finished(self) -> bool:
        """The model has stopped; only token counts can follow."""
        return self._done or self._finish_reason is not None

    @property
    def is_over(self) -> bool:
        """Nothing that follows can matter."""
        return self._done or self.fault is not None

    def feed(self, data: bytes) -> list[Delta]:
        """Take what was read, at whatever point it was cut, and give what is new in it."""
        deltas: list[Delta] = []
        if self.is_over or not data:
            return deltas
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if b"\n" not in data and b"\r" not in data:
            if data:
                self._after_cr = False
                self._partial.append(data)
                self._keep(data)
            return deltas
        if self._partial:
            self._kept_bytes -= sum(map(len, self._partial))
            self._partial.append(data)
            data = b"".join(self._partial)
            self._partial.clear()
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        rest = b"" if self._after_cr or data.endswith(b"\n") else lines.pop()
        self._take_lines(lines, deltas)
        if rest and not self.is_over:
            self._partial.append(rest)
            self._keep(rest)
        return deltas

    def finish(self) -> list[Delta]:
        """Take the end of the bytes: give what was held back, and set `fault` where the stream is not whole."""
        deltas: list[Delta] = []
        if not self.is_over and self._partial:
            self._take_line(b"".join(self._partial), deltas)
        if not self.is_over and self._body is not None:
            self._take_body(self._body, deltas)
        if not self.is_over:
            self._end_event(deltas)
        deltas.extend(self._thoughts.rest())
        self._tell_usage(deltas)
        thought = self._echo.fields(self._thoughts.raw)
        if thought:
            deltas.append(Thought(thought))
        if self.fault is None:
            self.fault = self._shortfall()
        return deltas

    def _shortfall(self) -> RunError | None:
        if self._heard_delta or self._heard_message:
            if self.is_finished or (self._is_body and self._heard_message):
                return None
            return UpstreamIncomplete("The model's answer was cut off: its stream ended without an end.")
        if complaint_from_json(self._stray).message:
            return failure_from_event(self._stray, self._scrub)
        if self.skipped:
            return UpstreamFailed("The model endpoint sent nothing that could be read as an answer.")
        return UpstreamFailed("The model endpoint sent an empty stream.")

    def _keep(self, data: bytes) -> None:
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_FRAME_BYTES:
            self._fail(UpstreamFailed(f"The model endpoint sent an event of more than {MAX_FRAME_BYTES} bytes."))

    def _fail(self, fault: RunError) -> None:
        self.fault = fault
        self._partial, self._data, self._body = [], [], None

    # Lines

    def _take_lines(self, lines: list[bytes], deltas: list[Delta]) -> None:
        """Take whole lines. This is once per token: an ordinary chunk takes the short way, all else `_take_line`."""
        is_ordinary = self._is_between_events()
        for line in lines:
            if is_ordinary:
                if not line:
                    continue
                if line.startswith(b"data: {"):
                    try:
                        chunk = _decode(line[6:])
                    except (msgspec.MsgspecError, RecursionError):
                        chunk = None
                    if chunk is not None and chunk.choices:
                        self._take_chunk(chunk, line, deltas)
                        if self.fault is not None:
                            return
                        continue
            self._take_line(line, deltas)
            if self.is_over:
                return
            is_ordinary = self._is_between_events()

    def _is_between_events(self) -> bool:
        return self._started and self._body is None and not self._data and not self._event

    def _take_line(self, line: bytes, deltas: list[Delta]) -> None:
        if self._started and self._body is None and line.startswith(b"data:"):
            self._take_data(line[6:] if line.startswith(b"data: ") else line[5:], deltas)
        elif not line:
            if self._event or self._data:
                self._end_event(deltas)
        elif self._body is not None:
            self._body.append(line)
            self._keep(line)
        elif not self._started:
            self._start(line, deltas)
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()
        elif line.startswith(b"{"):
            self._take_data(line, deltas)

    def _start(self, line: bytes, deltas: list[Delta]) -> None:
        """Tell by the first line that says anything what this body is."""
        line = line.removeprefix(b"\xef\xbb\xbf")
        head = line.lstrip()
        if not head:
            return
        self._started = True
        self._is_body = head.startswith((b"{", b"["))
        if head.startswith(b"<"):
            self._fail(UpstreamFailed("The model endpoint answered with a page instead of an event stream."))
        elif self._is_body and _chunk_from_bytes(line) is None:
            self._body = [line]
            self._keep(line)
        else:
            self._take_line(head if head.startswith(b"{") else line, deltas)

    def _take_data(self, data: bytes, deltas: list[Delta]) -> None:
        if self._event == b"error":
            self._fail(failure_from_event(_error_from_bytes(data), self._scrub))
        elif data.strip() == b"[DONE]":
            self._done = True
            self._tell_usage(deltas)
        else:
            is_whole = data.lstrip()[:1] == b"{" and data.rstrip()[-1:] == b"}"  # parts of one are not parsed in vain
            try:
                chunk = _decode(data) if is_whole else None
            except (msgspec.MsgspecError, ValueError, RecursionError):
                chunk = _chunk_from_bytes(data)
            if self._data and chunk is not None and chunk.choices is not None:
                # Only a server that leaves out the blank lines gets here: what is held was a chunk gone bad.
                self.skipped += 1
                self._data.clear()
            if chunk is not None and not self._data:
                self._take_chunk(chunk, data, deltas)
            elif data.strip():
                self._data.append(data)
                self._keep(data)

    def _end_event(self, deltas: list[Delta]) -> None:
        """End an event whose data lines were no chunks by themselves."""
        self._event = b""
        if not self._data:
            return
        data = b"\n".join(self._data)
        self._kept_bytes -= sum(map(len, self._data))
        self._data.clear()
        chunk = _chunk_from_bytes(data)
        if chunk is None:
            self.skipped += 1
        else:
            self._take_chunk(chunk, data, deltas)

    def _take_body(self, lines: list[bytes], deltas: list[Delta]) -> None:
        body = b"\n".join(lines)
        chunk = _chunk_from_bytes(body)
        if chunk is not None:
            self._take_chunk(chunk, body, deltas)
        elif is_array(value := _json_from_bytes(body)) and value:
            self._fail(failure_from_event(value, self._scrub))
        else:
            self.skipped += 1

    # Chunks

    def _take_chunk(self, chunk: Chunk, data: bytes, deltas: list[Delta]) -> None:
        if chunk.error:
            self._fail(failure_from_event({"error": chunk.error}, self._scrub))
            return
        if chunk.usage:
            self._usage = merged_usage(self._usage, chunk.usage)
        if chunk.choices:
            for choice in chunk.choices:
                if not choice.index or choice.index == "0":  # 0, null and absent
                    self._take_choice(choice, deltas)
        elif not chunk.usage:
            # Rare: filter results of the prompt, or an error without the usual wrapping.
            value = _json_from_bytes(data)
            if is_object(value) and "error" in (value.get("object"), value.get("type")):
                self._fail(failure_from_event(value, self._scrub))
            self._stray = value

    def _take_choice(self, choice: Choice, deltas: list[Delta]) -> None:
        delta = choice.delta
        if delta is not None:
            self._heard_delta = True
            self._take_delta(delta, deltas)
        elif choice.message is not None:
            if not self._heard_delta:  # after deltas a message repeats them all
                self._take_delta(choice.message, deltas)
            self._heard_message = True
        else:
            self._heard_delta = True
        if choice.usage:
            self._usage = merged_usage(self._usage, choice.usage)
        if choice.error or choice.finish_reason == "error":
            self._fail(failure_from_event({"error": choice.error}, self._scrub))
        elif choice.finish_reason and self._finish_reason is None and isinstance(choice.finish_reason, str):
            self._finish_reason = finish_word(choice.finish_reason)
            deltas.append(Finish(self._finish_reason))

    def _take_delta(self, delta: ChunkDelta, deltas: list[Delta]) -> None:
        if delta.reasoning or delta.reasoning_content or delta.reasoning_details:
            self._echo.keep(delta.reasoning_content, delta.reasoning, delta.reasoning_details)
            for thought in reasoning_deltas(delta.reasoning, delta.reasoning_content, delta.reasoning_details):
                self._thoughts.hear(thought.text)
                deltas.append(thought)
        content = delta.content
        if content:
            if type(content) is str:
                if self._thoughts.is_done:
                    deltas.append(TextDelta(content))
                else:
                    deltas.extend(self._thoughts.split(content))
            else:
                deltas.extend(content_deltas(content))
        if delta.refusal and (refusal := text_of(delta.refusal)):
            deltas.append(TextDelta(refusal))
        if delta.tool_calls or delta.function_call:
            deltas.extend(self._thoughts.rest())
            deltas.extend(call_deltas(delta.tool_calls, delta.function_call))

    def _tell_usage(self, deltas: list[Delta]) -> None:
        """Tell the counts once, at the end: some servers repeat them, growing, with each chunk."""
        if self._usage is not None:
            deltas.append(self._usage)
            self._usage = None


# What the typed decoder refuses: lone surrogates, bytes that are no UTF-8, numbers that JSON does not know, odd types


def _json_from_bytes(data: bytes) -> Json:
    try:
        return json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _error_from_bytes(data: bytes) -> Json:
    return value if (value := _json_from_bytes(data)) is not None else data.decode(errors="replace")


def _chunk_from_bytes(data: bytes) -> Chunk | None:
    value = _json_from_bytes(data)
    if not is_object(value):
        return None
    choices = value.get("choices")
    if is_object(choices):
        choices = [choices]
    found = [_choice_from_json(choice) for choice in choices if is_object(choice)] if is_array(choices) else None
    return Chunk(choices=found, usage=value.get("usage"), error=value.get("error"))


def _choice_from_json(value: dict[str, Json]) -> Choice:
    return Choice(
        index=value.get("index"),
        delta=_delta_from_json(value.get("delta")),
        message=_delta_from_json(value.get("message")),
        finish_reason=value.get("finish_reason"),
        usage=value.get("usage"),
        error=value.get("error"),
    )


def _delta_from_json(value: Json) -> ChunkDelta | None:
    if is_object(value):
        return ChunkDelta(**{name: value.get(name) for name in ChunkDelta.__struct_fields__})
    # A bare text or a list of parts can only be the content.
    return ChunkDelta(content=value) if isinstance(value, str) or is_array(value) else None
