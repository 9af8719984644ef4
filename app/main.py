"""The composition root: settings become an application, and the application a running server."""

import gc
import logging
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import cast

import anyio
import anyio.abc
import uvicorn
from fastapi import FastAPI
from typing_extensions import override

from app import __version__
from app.api import health, models, runs, servers
from app.api.boundary import Boundary
from app.api.doors import Doors
from app.api.gate import Gate, KeyCheck
from app.api.openapi import install_openapi
from app.api.problems import install_problems
from app.connections import BoundedConnection
from app.domain.spec import ServerSpec
from app.ferry import Ferry
from app.journal.memory import MemoryJournal
from app.settings import Rooms, Settings
from app.toolbox.box import open_servers
from app.upstream.catalogue import ModelCatalogue
from app.upstream.endpoint import open_endpoint

_log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 5


def create_app(
    settings: Settings, *, extra_servers: Sequence[ServerSpec] = (), one_time_key: str | None = None
) -> FastAPI:
    """Compose the service.

    Args:
        settings: Read and checked already; nothing reads the environment after this.
        extra_servers: Further servers of the operator's class, as the demo's.
        one_time_key: A key that lets in beside those of the settings.

    Raises:
        SettingsError: `MODELS`, `MCP_SERVERS` or another setting cannot be understood.
    """
    rooms = settings.rooms(extra_servers, one_time_key=one_time_key)
    for warning in rooms.warnings:
        _log.warning("%s", warning)
    app = FastAPI(
        title="Toolferry",
        version=__version__,
        description="The MCP tool loop as a service: a conversation and MCP servers in, typed events out.",
        lifespan=partial(_open_doors, rooms=rooms),
        docs_url=None,  # its page loads scripts from other hosts
        redoc_url=None,
        # Off: it sits in the path of every request, and its exporters would open another way out.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    for router in (runs.router, servers.router, models.router, health.router):
        app.include_router(router)
    app.state.head_seconds = rooms.request.body_seconds
    install_problems(app)
    install_openapi(app)
    # The last one is the first to see a request.
    app.add_middleware(KeyCheck, access=rooms.access)
    app.add_middleware(Boundary)
    app.add_middleware(Gate, access=rooms.access)
    return app


@asynccontextmanager
async def _open_doors(app: FastAPI, rooms: Rooms) -> AsyncGenerator[None, None]:
    """Open what outlives requests, and close it when the server has stopped."""
    async with (
        open_endpoint(rooms.endpoint) as endpoint,
        open_servers(rooms.servers) as mcp_servers,
        anyio.create_task_group() as tasks,
    ):
        catalogue = ModelCatalogue(endpoint, rooms.models, rooms.default_model, rooms.router)
        crossings: anyio.abc.TaskGroup = await tasks.start(_keep_tasks)
        app.state.crossings = crossings
        journal = MemoryJournal(rooms.journal)
        tasks.start_soon(journal.keep_tidy)
        app.state.doors = Doors(
            ferry=Ferry(catalogue, mcp_servers, rooms.run, crossings),
            journal=journal,
            catalogue=catalogue,
            servers=mcp_servers,
            limits=rooms.request,
            heartbeat_seconds=rooms.heartbeat_seconds,
        )
        yield
        tasks.cancel_scope.cancel()


async def _keep_tasks(*, task_status: anyio.abc.TaskStatus[anyio.abc.TaskGroup]) -> None:
    """Own the task group of all runs in a task of its own: cancelling it stops the runs and nothing else."""
    async with anyio.create_task_group() as group:
        task_status.started(group)
        await anyio.sleep_forever()


async def serve_app(
    app: FastAPI, *, listener: socket.socket, on_ready: Callable[[str], None], stop: anyio.Event | None = None
) -> None:
    """Run the app on a bound socket until SIGINT or SIGTERM, or until `stop` is set.

    The first signal drains: readiness goes, no new runs are taken, running ones end with `shutting_down` and their
    readers hear so; then the server closes. The second one closes at once.

    Args:
        app: As `create_app` made it.
        listener: Bound, not yet listening; closed in the end.
        on_ready: Called with the base URL once requests are answered.
        stop: Set it to end the server from inside this process.
    """
    server = _Server(server_config(app))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, server, app, stop or anyio.Event())
        tasks.start_soon(_tell_ready, server, listener, on_ready)
        await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


def server_config(app: FastAPI) -> uvicorn.Config:
    """Say how the app is served: HTTP/1.1 only, within limits."""
    http = partial(BoundedConnection, head_seconds=app.state.head_seconds)
    return uvicorn.Config(
        app,
        http=cast("type[BoundedConnection]", http),
        ws="none",
        proxy_headers=False,  # whoever can connect could write them
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
        server_header=False,
    )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: they would cut streams before the runs have said how they end."""

    @override
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _tell_ready(server: uvicorn.Server, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await anyio.sleep(0.01)
    # What is there now stays. To look through it for garbage takes a tenth of a second, in which nothing else happens.
    gc.collect()
    gc.freeze()
    host, port = listener.getsockname()[:2]
    on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")


async def _stop_on_signal(server: uvicorn.Server, app: FastAPI, stop: anyio.Event) -> None:
    async with anyio.create_task_group() as tasks:

        async def wait_for_stop() -> None:
            await stop.wait()
            await _drain(server, app)

        tasks.start_soon(wait_for_stop)
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if server.should_exit:
                    server.force_exit = True
                stop.set()


async def _drain(server: uvicorn.Server, app: FastAPI) -> None:
    doors: Doors | None = getattr(app.state, "doors", None)
    if doors is not None:
        doors.is_draining = True
        app.state.crossings.cancel_scope.cancel()
        with anyio.move_on_after(_GOODBYE_SECONDS):
            while doors.journal.running:  # noqa: ASYNC110  # a handful of steps at the very end of the process
                await anyio.sleep(0.01)
    server.should_exit = True
