"""No unknown error gets past the outermost layer: it is an answer before the first byte, and a cut connection after."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.boundary import Boundary
from tests.fakes.mcp_servers import wait_until
from tests.fakes.stopping import StoppableServer

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncGenerator[httpx.AsyncClient]:
    config = uvicorn.Config(Boundary(app), port=0, log_config=None, access_log=False, lifespan="off")
    server = StoppableServer(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
        server.should_exit = True


async def breaks_at_once(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("secret detail")


async def breaks_midway(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise RuntimeError("secret detail")


async def test_error_before_the_first_byte_is_an_answer_without_detail(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(breaks_at_once) as client:
        response = await client.get("/", headers={"X-Request-Id": "abc"})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
    assert response.headers["x-request-id"] == "abc"
    assert "secret" not in response.text
    assert "request abc broke" in caplog.text


async def test_error_after_the_first_byte_cuts_the_connection() -> None:
    async with serving(breaks_midway) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")
