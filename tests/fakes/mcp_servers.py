"""Real MCP servers, built with the SDK and served by uvicorn in a thread of their own, on a free loopback port.

`open_mcp_server(kind)` gives a `FakeMcpServer` with its `url` and a record of what it was asked. The kinds:

- `modern`: stateless, answers both eras, as servers built today do.
- `legacy`: the handshake era only, with session ids.
- `legacy-stateless`: the handshake era only, without session ids.
- `sse`: the old SSE transport only.
"""

import asyncio
import base64
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import anyio
import anyio.to_thread
import mcp_types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.jsontypes import is_object
from tests.fakes.stopping import StoppableServer

Kind: TypeAlias = Literal["modern", "legacy", "legacy-stateless", "sse"]

TINY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TOOL_NAMES = ["echo", "add", "fail", "image", "structured", "slow", "wait", "count"]


@dataclass
class Seen:
    """One HTTP request as it arrived."""

    http_method: str
    rpc_method: str | None
    headers: dict[str, str]
    body: Any

    @property
    def session_id(self) -> str | None:
        return self.headers.get("mcp-session-id")


@dataclass
class FakeMcpServer:
    """Where the server is, what it saw, and how to kill it."""

    url: str
    kind: Kind
    seen: list[Seen] = field(default_factory=list[Seen])
    sessions: list[str] = field(default_factory=list[str])
    """Session ids it gave out."""
    cancelled: list[str] = field(default_factory=list[str])
    """Names of tools whose running call was cancelled."""
    started: list[str] = field(default_factory=list[str])
    """Names of tools that began to run, once per call."""
    kill: Callable[[], None] = field(default=lambda: None)
    """Cuts all connections and stops listening, at once."""

    @property
    def rpc(self) -> Counter[str]:
        """How many messages came, by JSON-RPC method."""
        return Counter(seen.rpc_method for seen in list(self.seen) if seen.rpc_method is not None)

    @property
    def http(self) -> Counter[str]:
        """How many requests came, by HTTP method."""
        return Counter(seen.http_method for seen in list(self.seen))


async def wait_until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until something has become true; fails after `seconds`."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is in another thread or in a library
            await anyio.sleep(0.005)


def _build_server(fake: FakeMcpServer, extra_tools: int) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("fake", instructions="A server for tests.", log_level="CRITICAL")
    _add_quick_tools(server, fake)
    _add_lasting_tools(server, fake)
    for number in range(extra_tools):
        server.add_tool(_numbered(number), name=f"extra_{number}", description=f"Extra tool {number}.")
    return server


def _add_quick_tools(server: MCPServer[Any], fake: FakeMcpServer) -> None:
    @server.tool(description="Say it back.", annotations=mcp_types.ToolAnnotations(read_only_hint=True))
    async def echo(text: str) -> str:
        fake.started.append("echo")
        return text

    @server.tool(title="Adds two numbers")
    async def add(a: int, b: int) -> str:
        fake.started.append("add")
        return str(a + b)

    @server.tool(description="Always fails.")
    async def fail(reason: str = "no such city") -> str:
        fake.started.append("fail")
        raise ToolError(reason)

    @server.tool(description="A picture of one pixel.")
    async def image() -> mcp_types.CallToolResult:
        fake.started.append("image")
        data = base64.b64encode(TINY_PNG).decode()
        block = mcp_types.ImageContent(type="image", data=data, mime_type="image/png")
        return mcp_types.CallToolResult(content=[block])

    @server.tool(description="Structured data.")
    async def structured() -> dict[str, int]:
        fake.started.append("structured")
        return {"celsius": 21}


def _add_lasting_tools(server: MCPServer[Any], fake: FakeMcpServer) -> None:
    @server.tool(description="Report progress, then finish.")
    async def slow(ctx: Context[Any, Any], steps: int = 3, pause: float = 0.15) -> str:
        fake.started.append("slow")
        try:
            for step in range(1, steps + 1):
                await ctx.report_progress(step, steps, f"step {step}")
                await anyio.sleep(pause)
        except anyio.get_cancelled_exc_class():
            fake.cancelled.append("slow")
            raise
        return f"done after {steps}"

    @server.tool(description="Wait without a sign of life.")
    async def wait(seconds: float = 30.0) -> str:
        fake.started.append("wait")
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            fake.cancelled.append("wait")
            raise
        return "waited"

    counts: Counter[str] = Counter()

    @server.tool(description="Count the calls of this session.")
    async def count(ctx: Context[Any, Any]) -> str:
        fake.started.append("count")
        session = (ctx.headers or {}).get("mcp-session-id", "none")
        counts[session] += 1
        return f"{session} {counts[session]}"


def _numbered(number: int) -> Callable[[], str]:
    def tool() -> str:
        return str(number)

    return tool


class Recorder:
    """Notes each request, and refuses the modern era where the server is to be an old one."""

    def __init__(self, app: ASGIApp, fake: FakeMcpServer) -> None:
        self._app = app
        self._fake = fake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages, body = await _read_body(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        rpc = _json_or_none(body)
        method = rpc.get("method") if is_object(rpc) else None
        self._fake.seen.append(Seen(scope["method"], method, headers, rpc))
        version = headers.get("mcp-protocol-version")
        if self._fake.kind != "modern" and version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _refuse_version(send)
            return

        async def replay() -> Message:
            return messages.pop(0) if messages else await receive()

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                for name, value in message["headers"]:
                    if name.lower() == b"mcp-session-id" and value.decode() not in self._fake.sessions:
                        self._fake.sessions.append(value.decode())
            await send(message)

        await self._app(scope, replay, note)


async def _read_body(receive: Receive) -> tuple[list[Message], bytes]:
    messages: list[Message] = []
    body = b""
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return messages, body
        body += message.get("body", b"")
        if not message.get("more_body"):
            return messages, body


def _json_or_none(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None


async def _refuse_version(send: Send) -> None:
    """Answer as the SDK's 1.x servers do to a protocol version that they do not know."""
    error = {"code": -32600, "message": "Bad Request: Unsupported protocol version"}
    body = json.dumps({"jsonrpc": "2.0", "id": "server-error", "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class StoppableMcp(StoppableServer):
    """Tells when it listens, and can be stopped from another thread, with its connections cut."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.listening.set()

    def stop(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stop_in_loop)

    def _stop_in_loop(self) -> None:
        self.should_exit = True
        for listener in self.servers:
            listener.close()
        for connection in list(self.server_state.connections):
            transport: Any = connection.transport
            transport.abort()


def build_app(server: MCPServer[Any], kind: Kind, *, json_response: bool) -> tuple[ASGIApp, str]:
    if kind == "sse":
        return server.sse_app(), "/sse"
    stateless = kind in ("modern", "legacy-stateless")
    return server.streamable_http_app(stateless_http=stateless, json_response=json_response), "/mcp"


@asynccontextmanager
async def open_mcp_server(
    kind: Kind = "modern", *, json_response: bool = False, extra_tools: int = 0, port: int = 0
) -> AsyncGenerator[FakeMcpServer]:
    """Serve a real MCP server on loopback until the block is left.

    `port` other than 0 takes that port, for a server that comes back where another one was.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    fake = FakeMcpServer("", kind)
    app, path = build_app(_build_server(fake, extra_tools), kind, json_response=json_response)
    fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    config = uvicorn.Config(Recorder(app, fake), log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    server = StoppableMcp(config)
    fake.kill = server.stop
    thread = threading.Thread(target=server.run, args=([listener],), name=f"fake-mcp-{kind}")
    thread.start()
    try:
        await anyio.to_thread.run_sync(server.listening.wait, 10)
        yield fake
    finally:
        with anyio.CancelScope(shield=True):
            server.stop()
            await anyio.to_thread.run_sync(thread.join)
            listener.close()
