"""Runs the demo's applications on loopback, inside this process. Knows nothing of what they answer."""

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import uvicorn
from starlette.applications import Starlette

from app.demo.model import create_demo_model
from app.demo.servers import MCP_PATH, create_demo_server

_START_SECONDS = 10.0
_CONNECTIONS_SECONDS = 1  # for streams that are still open when it stops
_STOP_SECONDS = 5.0


@asynccontextmanager
async def open_demo_model() -> AsyncGenerator[str]:
    """Serve the scripted model endpoint; yields what OPENAI_BASE_URL would hold, ending in `/v1`.

    Raises:
        OSError: Loopback has no free port.
        TimeoutError: It did not start within 10 s.
    """
    async with _listening(create_demo_model()) as origin:
        yield origin + "/v1"


@asynccontextmanager
async def open_demo_server() -> AsyncGenerator[str]:
    """Serve the demo's MCP server; yields the URL of its Streamable HTTP endpoint, ending in `/mcp`.

    Raises:
        OSError: Loopback has no free port.
        TimeoutError: It did not start within 10 s.
    """
    async with _listening(create_demo_server()) as origin:
        yield origin + MCP_PATH


class _Guest(uvicorn.Server):
    """A server inside somebody else's process: signals are the host's, and it tells when it listens and when it ended.

    Cancelling the host does not cut it short: it ends by `should_exit`, or, when that takes too long, by `scope`.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope(shield=True)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            with self.scope:
                await super().serve(sockets=sockets)
        finally:
            self.ended.set()


@asynccontextmanager
async def _listening(app: Starlette) -> AsyncGenerator[str]:
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_CONNECTIONS_SECONDS,
    )
    server = _Guest(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                try:
                    with anyio.fail_after(_START_SECONDS):
                        await server.listening.wait()
                    yield f"http://127.0.0.1:{port}"
                finally:
                    server.should_exit = True
                    with anyio.move_on_after(_STOP_SECONDS, shield=True):
                        await server.ended.wait()
                    server.scope.cancel()
        except BaseExceptionGroup as group:
            # The group is ours alone: what the body raised shall come out as it went in.
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
