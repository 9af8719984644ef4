"""An MCP server that answers byte for byte what a test says, for behaviour that no proper server shows.

`open_raw_mcp(replies)` serves on loopback. `replies` says, by JSON-RPC method (or `GET`, `DELETE`), what is answered;
what is not named is answered as a small well-behaved server of the `era` would. A reply is bytes written as they are,
or one of `HANG` (never answer), `CUT` (close without an answer), or a function of the request that gives any of these,
possibly after awaiting something. A list is one reply per request of that method, its last one for all that follow.

The `form` says how answers travel: `json` as they are; `stream` puts those that are JSON into an event stream each;
`sse` is the old transport, where they are said on the one stream of a GET. Refused messages are refused in any form.
"""

import asyncio
import contextlib
import inspect
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from app.domain.jsontypes import JsonObject, is_object

HANG = "hang"
CUT = "cut"


@dataclass
class RawRequest:
    """One request as it arrived."""

    http_method: str
    path: str
    headers: dict[str, str]
    body: bytes
    write: Callable[[bytes], Awaitable[None]]
    """Writes to the connection at once, before the reply."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client closes the connection instead of waiting for an answer that is never given (`HANG`)."""

    @property
    def rpc(self) -> dict[str, Any]:
        """The JSON-RPC message; empty where there is none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if is_object(value) else {}

    @property
    def method(self) -> str:
        """The JSON-RPC method, else the HTTP method."""
        return self.rpc.get("method") or self.http_method

    @property
    def id(self) -> Any:
        return self.rpc.get("id")


Answer: TypeAlias = bytes | str
Reply: TypeAlias = Answer | Callable[[RawRequest], Answer | Awaitable[Answer]]
Replies: TypeAlias = Mapping[str, Reply | Sequence[Reply]]
Era: TypeAlias = Literal["legacy", "modern"]
Form: TypeAlias = Literal["json", "stream", "sse"]


@dataclass
class RawMcp:
    """Where the server is and what it was asked."""

    url: str
    requests: list[RawRequest] = field(default_factory=list[RawRequest])
    open_connections: int = 0

    @property
    def asked(self) -> Counter[str]:
        """How many requests came, by method."""
        return Counter(request.method for request in self.requests)


def http_reply(status: int, body: bytes = b"", content_type: str | None = "text/plain", **headers: str) -> bytes:
    """A whole HTTP response that keeps the connection; `_` in header names stands for `-`."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def json_reply(value: Any, status: int = 200, content_type: str | None = "application/json", **headers: str) -> bytes:
    """A response whose body is one JSON value."""
    return http_reply(status, json.dumps(value).encode(), content_type, **headers)


def sse_reply(messages: Iterable[Any], *, end: bool = True, event_id: str | None = None, **headers: str) -> bytes:
    """An event stream with these messages. Without `end` more may follow: the test says when."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    prefix = "" if event_id is None else f"id: {event_id}\n"
    frames = b"".join(sse_frame(message, prefix) for message in messages)
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + frames + (b"0\r\n\r\n" if end else b"")


def sse_frame(message: Any, prefix: str = "") -> bytes:
    """One message as an event, as one HTTP chunk."""
    event = f"{prefix}event: message\ndata: {json.dumps(message)}\n\n".encode()
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


def result_of(request: RawRequest, result: Any) -> dict[str, Any]:
    """A JSON-RPC result for a request."""
    return {"jsonrpc": "2.0", "id": request.id, "result": result}


def error_of(request: RawRequest, code: int, message: str) -> dict[str, Any]:
    """A JSON-RPC error for a request."""
    return {"jsonrpc": "2.0", "id": request.id, "error": {"code": code, "message": message}}


def result(value: Any, **http: Any) -> Reply:
    """A reply that gives any request this result; `http` is for `json_reply`."""
    return lambda request: json_reply(result_of(request, value), **http)


def error(code: int, message: str, **http: Any) -> Reply:
    """A reply that gives any request this error."""
    return lambda request: json_reply(error_of(request, code, message), **http)


def text_result(text: str) -> dict[str, Any]:
    """The result of a tool that says one text."""
    return {"content": [{"type": "text", "text": text}], "resultType": "complete"}


def tool_entry(name: str, **fields: Any) -> dict[str, Any]:
    """One entry of a tool list."""
    return {"name": name, "description": f"The tool {name}.", "inputSchema": {"type": "object"}, **fields}


def progress_of(request: RawRequest, progress: Any, **fields: Any) -> dict[str, Any]:
    """A progress notification for a call."""
    token = request.rpc["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": progress, **fields}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def _well_behaved(request: RawRequest, era: Era, tools: Sequence[Any], session_id: str | None) -> bytes:
    """Answer as a small server would that does nothing wrong."""
    if request.http_method != "POST":
        return http_reply(405 if request.http_method == "GET" else 200)
    if request.method.startswith("notifications/"):
        return http_reply(202)
    result = _results(era, tools).get(request.method)
    if result is None:
        return json_reply(error_of(request, -32601, "unknown method"))
    if request.method == "initialize" and session_id is not None:
        return json_reply(result_of(request, result), Mcp_Session_Id=session_id)
    return json_reply(result_of(request, result))


def _results(era: Era, tools: Sequence[Any]) -> dict[str, JsonObject]:
    cache: JsonObject = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if era == "modern" else {}
    capabilities: JsonObject = {"tools": {}}
    info = {"name": "raw", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    discovered = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, **cache}
    return {
        "tools/list": {"tools": list(tools), **cache},
        "tools/call": text_result("fine"),
        **({"initialize": hello} if era == "legacy" else {"server/discover": discovered}),
    }


def _listed(reply: Reply | Sequence[Reply]) -> list[Reply]:
    if isinstance(reply, bytes | str) or callable(reply):
        return [reply]
    return list(reply)


_JSON_HEAD = b"HTTP/1.1 200 Whatever\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


def _as_stream(answer: bytes) -> bytes:
    """Put a successful answer that is JSON into an event stream, with its headers."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not answer.startswith(_JSON_HEAD) or b"Content-Type: application/json" not in lines:
        return answer
    kept = [line for line in lines[1:] if not line.startswith((b"Content-Length:", b"Content-Type:"))]
    first, rest = sse_reply([json.loads(body)]).split(b"\r\n", 1)
    return b"\r\n".join([first, *kept, rest])


class _Raw:
    def __init__(
        self, raw: RawMcp, replies: Replies, default: Callable[[RawRequest], bytes], form: Form = "json"
    ) -> None:
        self._raw = raw
        self._replies = {method: _listed(reply) for method, reply in replies.items()}
        self._default = default
        self._form = form
        self._streams: list[RawRequest] = []
        """Of the old transport: each is a GET whose answer goes on."""
        self.tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self._raw.open_connections += 1
        try:
            while (request := await _read_request(reader, writer)) is not None:
                answer = await self._answer_in_form(request)
                if answer == CUT:
                    break
                if answer == HANG:
                    await reader.read()
                    request.closed.set()
                    break
                assert isinstance(answer, bytes)
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._raw.open_connections -= 1
            self.tasks.discard(task)
            writer.transport.abort()

    async def _answer_in_form(self, request: RawRequest) -> Answer:
        if self._form == "sse":
            return await self._answer_over_sse(request)
        self._raw.requests.append(request)
        answer = await self._answer(request)
        return _as_stream(answer) if self._form == "stream" and isinstance(answer, bytes) else answer

    async def _answer_over_sse(self, request: RawRequest) -> Answer:
        if request.http_method == "GET":
            self._raw.requests.append(request)
            event = f"event: endpoint\ndata: /mcp?stream={len(self._streams)}\n\n".encode()
            self._streams.append(request)
            await request.write(sse_reply([], end=False) + f"{len(event):x}\r\n".encode() + event + b"\r\n")
            return HANG
        _, _, number = request.path.partition("?stream=")
        if not number:
            return http_reply(405)
        self._raw.requests.append(request)
        on_stream = self._streams[int(number)].write

        async def write(data: bytes) -> None:
            said = data.partition(b"\r\n\r\n")[2] if data.startswith(b"HTTP/1.1 ") else data
            await on_stream(said.removesuffix(_LAST_CHUNK))

        request.write = write
        answer = await self._answer(request)
        if request.id is None:
            return answer
        if isinstance(answer, bytes) and not answer.startswith(b"HTTP/1.1 "):
            await write(answer)
            return http_reply(202)
        streamed = _as_stream(answer) if isinstance(answer, bytes) else b""
        if b"Content-Type: text/event-stream" not in streamed.partition(b"\r\n\r\n")[0]:
            return answer
        await write(streamed)
        return http_reply(202)

    async def _answer(self, request: RawRequest) -> Answer:
        replies = self._replies.get(request.method)
        if replies is None:
            return self._default(request)
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if not callable(reply):
            return reply
        answer = reply(request)
        return await answer if inspect.isawaitable(answer) else answer


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RawRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return RawRequest(method, path, headers, body, write)


@asynccontextmanager
async def open_raw_mcp(
    replies: Replies | None = None,
    *,
    era: Era = "legacy",
    tools: Sequence[Any] = (tool_entry("echo"),),
    session_id: str | None = None,
    form: Form = "json",
) -> AsyncGenerator[RawMcp]:
    """Serve scripted bytes on loopback until the block is left; then every connection is cut.

    In form `sse` messages that are posted elsewhere than to the stream's endpoint are refused, and not counted.
    """
    raw = RawMcp("")
    server_side = _Raw(raw, replies or {}, lambda request: _well_behaved(request, era, tools, session_id), form)
    server = await asyncio.start_server(server_side.serve, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield raw
    finally:
        server.close()
        tasks = list(server_side.tasks)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
