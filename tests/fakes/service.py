"""The real service on a real socket, and a client that reads its event streams as a user's program would."""

import json
import socket
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
from httpx_sse import EventSource

from app.domain.spec import ServerSpec
from app.main import create_app, server_config
from app.settings import Settings
from tests.fakes.stopping import StoppableServer
from tests.fakes.upstream import FakeUpstream

_TLS = ssl.create_default_context()  # once: building one costs more than a whole story
USER = [{"role": "user", "content": "Go"}]


@dataclass
class Event:
    """One event as a reader sees it."""

    id: str
    name: str
    data: Any


@dataclass
class Run:
    """A run that was read to its end."""

    response: httpx.Response
    events: list[Event] = field(default_factory=list[Event])

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def named(self, name: str) -> list[Any]:
        return [event.data for event in self.events if event.name == name]

    def status(self, status: str) -> Any:
        return next((data for data in self.named("status") if data["status"] == status), None)

    @property
    def text(self) -> str:
        return "".join(data["token"] for data in self.named("stream"))

    @property
    def answer(self) -> Any:
        (answer,) = self.named("finalAnswer")
        return answer

    @property
    def last(self) -> Any:
        return self.events[-1].data


class Service:
    """A running service."""

    def __init__(self, client: httpx.AsyncClient, url: str, app: Any) -> None:
        self.client = client
        self.url = url
        self.app = app

    @asynccontextmanager
    async def streaming(self, **body: Any) -> AsyncGenerator[tuple[httpx.Response, EventSource]]:
        headers = body.pop("headers", {})
        async with self.client.stream("POST", "/v1/runs", json={"messages": USER, **body}, headers=headers) as response:
            yield response, EventSource(response)

    async def run(self, **body: Any) -> Run:
        """Start a run and read it to its end."""
        async with self.streaming(**body) as (response, source):
            return Run(response, [event async for event in events(source)])

    async def whole(self, **body: Any) -> httpx.Response:
        """Start a run with `"stream": false`."""
        return await self.client.post("/v1/runs", json={"messages": USER, "stream": False, **body})

    async def follow(self, run_id: str, after: int | None = None) -> Run:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        async with self.client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as response:
            return Run(response, [event async for event in events(EventSource(response))])


async def events(source: EventSource) -> AsyncGenerator[Event]:
    async for event in source.aiter_sse():
        yield Event(event.id, event.event, json.loads(event.data))


@asynccontextmanager
async def open_service(
    upstream: FakeUpstream | str | None = None, *, extra_servers: Sequence[ServerSpec] = (), **settings: Any
) -> AsyncGenerator[Service]:
    """Start the service in front of an upstream, with settings by their names in the code."""
    url = upstream.url if isinstance(upstream, FakeUpstream) else upstream
    default = None if "models" in settings else "scripted"
    chosen = {
        "openai_base_url": url,
        "default_model": default,
        "openai_api_key": "sk-operator-key",
        "auth": "none",
        **settings,
    }
    app = create_app(Settings.for_demo(**chosen), extra_servers=extra_servers)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = "http://127.0.0.1:{1}".format(*listener.getsockname())
        config = server_config(app)
        config.timeout_graceful_shutdown = 2
        server = StoppableServer(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: server.serve(sockets=[listener]))
            with anyio.fail_after(10):
                while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                    await anyio.sleep(0.005)
            try:
                async with httpx.AsyncClient(base_url=address, timeout=20, verify=_TLS) as client:
                    yield Service(client, address, app)
            finally:
                server.should_exit = True


def operator_server(name: str, url: str, **fields: Any) -> ServerSpec:
    return ServerSpec(name=name, url=url, trust="operator", **fields)
