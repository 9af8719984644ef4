"""MCP servers that note what they executed, can be started anew, and stand behind a proxy that cuts connections."""

import asyncio
import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import mcp_types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tests.fakes.mcp_servers import FakeMcpServer, Kind, Recorder, StoppableMcp, build_app

TOOLS = ("look", "once", "steps", "slow", "fails")
_CALL = b'"tools/call"'
_LAST_CHUNK = b"0\r\n\r\n"
_READ_BYTES = 65_536


@dataclass
class Station:
    """One server at an address that stays, through all its restarts."""

    kind: Kind
    rng: random.Random
    cut_share: float = 0.0
    """Of the connections that carry a call, so many are cut during it."""
    executed: Counter[int] = field(default_factory=Counter[int])
    """How often the call with a number began to run."""
    restarts: int = 0
    cuts: int = 0
    fake: FakeMcpServer = field(init=False)
    """The server as it is now, with what it saw since its start."""
    url: str = field(default="", init=False)
    _port: int = field(default=0, init=False)
    """Where the server is behind the proxy; 0 while it is away."""
    _lives: dict[asyncio.Task[None], "_Life"] = field(default_factory=dict[Any, Any], init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    @property
    def connections(self) -> int:
        """How many are open through the proxy."""
        return len(self._lives)

    @property
    def left_sessions(self) -> list[list[str]]:
        """What was asked in each session of the server as it is now that nobody has ended."""
        asked: dict[str, list[str]] = {session: [] for session in self.fake.sessions}
        for seen in list(self.fake.seen):
            if seen.session_id in asked:
                asked[seen.session_id].append(seen.rpc_method or seen.http_method)
        return [methods for methods in asked.values() if "DELETE" not in methods]

    async def restart(self) -> None:
        """End the server with all its connections and start another one in its place."""
        self._port = 0
        await self._stack.aclose()
        await self._begin()
        self.restarts += 1

    def cut(self) -> None:
        """Cut what hangs on now: calls and listening streams, and of a server without sessions all."""
        for task, life in list(self._lives.items()):
            # The beginning and the end of a session get through: what nobody could end must not count as left.
            if self.kind != "legacy" or life.may_be_cut:
                self.cuts += 1
                task.cancel()

    async def _begin(self) -> None:
        self.fake = await self._stack.enter_async_context(_serve(self.kind, self.executed))
        self._port = int(self.fake.url.split(":")[2].split("/")[0])

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        life = self._lives[task] = _Life()
        writers = [writer]
        try:
            with contextlib.suppress(OSError, _Cut):
                if not self._port:
                    return
                back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._port)
                writers.append(back_writer)
                there = asyncio.create_task(self._pump_calls(reader, back_writer, life))
                back = asyncio.create_task(self._pump_answers(back_reader, writer, life))
                try:
                    await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in (there, back):
                        pump.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
        except asyncio.CancelledError:
            pass
        finally:
            del self._lives[task]
            for each in writers:
                each.transport.abort()

    async def _pump_calls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, life: "_Life") -> None:
        while data := await reader.read(_READ_BYTES):
            if data.startswith((b"POST", b"GET", b"DELETE")):
                life.may_be_cut = data.startswith(b"GET")
                life.fate = None
            if _CALL in data:
                life.may_be_cut = True
                if self.rng.random() < self.cut_share:
                    life.fate = self.rng.choice(("before", "sent", "answer"))
            if life.fate == "before":
                self._note_cut()
            writer.write(data)
            await writer.drain()
            if life.fate == "sent":
                self._note_cut()

    async def _pump_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, life: "_Life") -> None:
        while data := await reader.read(_READ_BYTES):
            if life.fate == "answer":
                writer.write(data[: len(data) // 2])
                await writer.drain()
                self._note_cut()
            writer.write(data)
            await writer.drain()
            if data.endswith(_LAST_CHUNK):
                life.may_be_cut = False

    def _note_cut(self) -> None:
        self.cuts += 1
        raise _Cut


@dataclass
class _Life:
    """What a connection carries."""

    may_be_cut: bool = False
    fate: str | None = None


class _Cut(Exception):
    pass


@asynccontextmanager
async def open_station(kind: Kind, seed: int) -> AsyncGenerator[Station]:
    """Serve on loopback until the block is left."""
    station = Station(kind, random.Random(f"{seed} {kind}"))  # noqa: S311  # no keys are made of it
    front = await asyncio.start_server(station._relay, "127.0.0.1", 0)
    try:
        async with station._stack:
            await station._begin()
            path = station.fake.url.rsplit("/", 1)[1]
            station.url = f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}/{path}"
            yield station
    finally:
        front.close()
        lives = list(station._lives)
        for task in lives:
            task.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        await front.wait_closed()


@asynccontextmanager
async def _serve(kind: Kind, executed: Counter[int]) -> AsyncGenerator[FakeMcpServer]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    fake = FakeMcpServer("", kind)
    app, path = build_app(_build_server(kind.replace("-", "_"), executed), kind, json_response=False)
    fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    config = uvicorn.Config(Recorder(app, fake), log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    server = StoppableMcp(config)
    thread = threading.Thread(target=server.run, args=([listener],), name=f"soak-{kind}")
    thread.start()
    try:
        await anyio.to_thread.run_sync(server.listening.wait, 10)
        yield fake
    finally:
        with anyio.CancelScope(shield=True):
            server.stop()
            await anyio.to_thread.run_sync(thread.join)
            listener.close()


def _build_server(prefix: str, executed: Counter[int]) -> MCPServer[Any]:
    """Make a server whose tools take the number of their call. All names begin with `prefix`."""
    server: MCPServer[Any] = MCPServer(prefix, log_level="CRITICAL")

    @server.tool(name=f"{prefix}_look", annotations=mcp_types.ToolAnnotations(read_only_hint=True))
    async def look(number: int) -> str:
        executed[number] += 1
        return f"looked {number}"

    @server.tool(name=f"{prefix}_once")
    async def once(number: int) -> str:
        executed[number] += 1
        return f"did {number}"

    @server.tool(name=f"{prefix}_steps")
    async def steps(number: int, ctx: Context[Any, Any]) -> str:
        executed[number] += 1
        for step in range(1, 4):
            await ctx.report_progress(step, 3, f"step {step}")
            await anyio.sleep(0.02)
        return f"stepped {number}"

    @server.tool(name=f"{prefix}_slow")
    async def slow(number: int) -> str:
        executed[number] += 1
        await anyio.sleep(0.3)
        return f"waited {number}"

    @server.tool(name=f"{prefix}_fails")
    async def fails(number: int) -> str:
        executed[number] += 1
        raise ToolError(f"failed {number}")

    return server
