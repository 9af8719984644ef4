"""A scripted chat-completions server, exact to the byte, on a free loopback port.

```python
script = [failure(429, "slow down", headers={"Retry-After": "1"}), stream(text("Hi"), end("stop"))]
async with open_upstream(script) as upstream:
    ...  # talk to upstream.url
    assert upstream.asks[0].json["messages"][-1]["content"] == "Hello"
```

The script is a list of answers, used up in order by `POST …/chat/completions`, or a function from the request to its
answer. An answer's pieces are written one by one: bytes are one write each, an `asyncio.Event` is waited for, `CUT`
closes the connection in mid-answer. Knows HTTP/1.1 on raw asyncio streams; knows nothing of pytest and of our code.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, final

JsonObject: TypeAlias = dict[str, Any]


@final
class Cut:
    """Closes the connection without ending the answer."""


CUT = Cut()
Piece: TypeAlias = bytes | asyncio.Event | Cut
Framing: TypeAlias = Literal["chunked", "length", "close"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent. Header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Counts the connections from 0: requests with the same number shared one."""
    closed_early: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when the client closed the connection before the answer was whole."""
    answered: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when the whole answer is written."""

    @property
    def json(self) -> JsonObject:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. `status` 0 closes the connection without a word."""

    pieces: Sequence[Piece] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    framing: Framing = "chunked"
    """How the end of the body shows: by a last chunk, by `Content-Length`, or by the end of the connection."""
    close: bool = False
    """Say `Connection: close` and do so."""


Script: TypeAlias = Sequence[Answer] | Callable[[Request], Answer]


# Chunks and answers, tersely


def chunk(delta: JsonObject | None = None, finish_reason: str | None = None, **top: Any) -> JsonObject:
    """Make one `chat.completion.chunk` with one choice; `top` adds or replaces fields of the chunk itself."""
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return {**head, "choices": [choice], **top}


def text(content: str) -> JsonObject:
    """A piece of the answer."""
    return chunk({"content": content})


def reasoning(content: str, key: str = "reasoning_content") -> JsonObject:
    """A piece of reasoning, under the provider's name for it."""
    return chunk({key: content})


def call(index: int | None, id: str | None, name: str | None, arguments: str | None, **extra: Any) -> JsonObject:  # noqa: A002 - the wire's own word
    """A piece of a tool call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry: JsonObject = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    if id is not None:
        entry["type"] = "function"
    return chunk({"tool_calls": [{**entry, "function": function, **extra}]})


def end(finish_reason: str = "stop") -> JsonObject:
    """The chunk that says why the model stopped."""
    return chunk({}, finish_reason)


def usage(prompt: int, completion: int, **details: Any) -> JsonObject:
    """The chunk with token counts and no choices."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details}
    return chunk(choices=[], usage=counts)


DONE = b"data: [DONE]\n\n"


def frame(value: Any) -> bytes:
    """Write one SSE event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def sse(*chunks: Any, done: bool = True) -> bytes:
    """Write a whole event stream."""
    return b"".join(map(frame, chunks)) + (DONE if done else b"")


def stream(*chunks: Any, done: bool = True, headers: Mapping[str, str] | None = None) -> Answer:
    """Answer with an event stream. Events, `CUT` and bytes may stand between the chunks; each is one write."""
    pieces = [item if isinstance(item, bytes | asyncio.Event | Cut) else frame(item) for item in chunks]
    named = {"Content-Type": "text/event-stream", **(headers or {})}
    return Answer([*pieces, DONE] if done else pieces, headers=named)


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Answer with one JSON body."""
    named = {"Content-Type": "application/json", **(headers or {})}
    return Answer([json.dumps(value).encode()], status, named, framing="length")


def failure(status: int, message: str, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
    """Answer with an error in OpenAI's form."""
    return json_answer({"error": {"message": message, **fields}}, status, headers)


def page(body: str, status: int = 200, content_type: str = "text/html") -> Answer:
    """Answer with something that is neither JSON nor an event stream."""
    return Answer([body.encode()], status, {"Content-Type": content_type}, framing="length")


def dropped() -> Answer:
    """Close the connection without a word."""
    return Answer(status=0)


def models(*ids: str) -> Answer:
    """Answer `GET …/models`."""
    data = [{"id": id_, "object": "model", "created": 1, "owned_by": "scripted"} for id_ in ids]
    return json_answer({"object": "list", "data": data})


# The server


class FakeUpstream:
    """A running scripted server. `requests` holds all that came, `asks` the chat completions among them."""

    def __init__(self, script: Script, models_script: Script) -> None:
        self.requests: list[Request] = []
        self.closed_early = asyncio.Event()
        """Set when a client left any answer before its end."""
        self.port = 0
        self._script = script if callable(script) else _one_by_one(script)
        self._models = models_script if callable(models_script) else _one_by_one(models_script)
        self._connections = 0
        self._open: set[int] = set()
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def asks(self) -> list[Request]:
        return [request for request in self.requests if request.path.endswith("/chat/completions")]

    @property
    def connections(self) -> int:
        """How many connections were opened so far."""
        return self._connections

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    async def wait_for(self, condition: Callable[["FakeUpstream"], bool], timeout_seconds: float = 5.0) -> None:
        """Wait until something holds of this server (a request came, a connection closed).

        Raises:
            TimeoutError: It does not come to hold in time.
        """
        async with asyncio.timeout(timeout_seconds), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        number = self._connections
        self._connections += 1
        self._open.add(number)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._converse(number, reader, writer)
        finally:
            writer.close()
            self._open.discard(number)
            await self._notify()

    async def _converse(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pushed_back = b""
        while True:
            request = await _read_request(number, reader, pushed_back)
            self.requests.append(request)
            await self._notify()
            answer = self._script_answer(request)
            watch = asyncio.create_task(reader.read(1))
            try:
                whole = await _write_answer(answer, writer, watch)
                if not whole and _has_closed(watch):
                    request.closed_early.set()
                    self.closed_early.set()
                if not whole or answer.close or answer.framing == "close":
                    return
                request.answered.set()
                await self._notify()
                if _has_closed(watch):
                    return
                pushed_back = watch.result() if watch.done() else b""
            finally:
                # A read that still waits has taken nothing, so this loses no byte of the next request.
                watch.cancel()
                await asyncio.wait([watch])

    def _script_answer(self, request: Request) -> Answer:
        if request.path.endswith("/chat/completions"):
            return self._script(request)
        if request.method == "GET" and request.path.endswith("/models"):
            return self._models(request)
        return failure(404, f"no route {request.method} {request.path}")

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def open_upstream(
    script: Script, *, models_script: Script | None = None, port: int = 0
) -> AsyncGenerator[FakeUpstream]:
    """Run a scripted server; leaving closes it and every connection to it."""
    upstream = FakeUpstream(script, (lambda _: models("scripted")) if models_script is None else models_script)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(upstream.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", port, backlog=1024)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def _one_by_one(answers: Sequence[Answer]) -> Callable[[Request], Answer]:
    remaining = iter(answers)
    return lambda _: next(remaining, None) or failure(500, "the script has no answer left")


async def _read_request(number: int, reader: asyncio.StreamReader, pushed_back: bytes) -> Request:
    head = pushed_back + await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
    elif length := int(headers.get("content-length", "0")):
        body = await reader.readexactly(length)
    return Request(method, path, headers, body, number)


async def _write_answer(answer: Answer, writer: asyncio.StreamWriter, watch: asyncio.Task[bytes]) -> bool:
    """Write an answer; False when it was left unfinished by either side."""
    if answer.status == 0:
        return False
    writer.write(_head(answer))
    try:
        return await _write_pieces(answer, writer, watch)
    except ConnectionError:
        # The client has gone; its closing may reach the watch a moment later than the write.
        await asyncio.wait([watch], timeout=1)
        return False


async def _write_pieces(answer: Answer, writer: asyncio.StreamWriter, watch: asyncio.Task[bytes]) -> bool:
    for piece in answer.pieces:
        if isinstance(piece, Cut):
            await writer.drain()
            return False
        if isinstance(piece, asyncio.Event):
            await writer.drain()
            if not await _wait_unless_closed(piece, watch):
                return False
        elif piece:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.framing == "chunked" else piece)
            await writer.drain()
            # Lets the peer read each piece by itself, and lets us see that it has gone.
            await asyncio.sleep(0)
            if _has_closed(watch):
                return False
    if answer.framing == "chunked":
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _head(answer: Answer) -> bytes:
    headers = dict(answer.headers)
    if answer.framing == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    elif answer.framing == "length":
        headers["Content-Length"] = str(sum(len(piece) for piece in answer.pieces if isinstance(piece, bytes)))
    if answer.close or answer.framing == "close":
        headers["Connection"] = "close"
    try:
        reason = HTTPStatus(answer.status).phrase
    except ValueError:
        reason = "Unknown"
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def _wait_unless_closed(event: asyncio.Event, watch: asyncio.Task[bytes]) -> bool:
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, watch], return_when=asyncio.FIRST_COMPLETED)
        if _has_closed(watch):
            return False
        await waiting
        return True
    finally:
        waiting.cancel()


def _has_closed(watch: asyncio.Task[bytes]) -> bool:
    """Tell whether the watch saw the client close, rather than the first byte of its next request or nothing yet."""
    return watch.done() and (watch.exception() is not None or not watch.result())
