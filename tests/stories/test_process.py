"""Stories of the process: started as the README says, stopped by a signal."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import anyio
import httpx
import pytest
from httpx_sse import EventSource

from tests.fakes.service import USER, events
from tests.fakes.upstream import FakeUpstream, open_upstream, stream, text
from tests.stories.requirements import proves

pytestmark = pytest.mark.anyio


async def serve(upstream: FakeUpstream, folder: Path) -> tuple[asyncio.subprocess.Process, str]:
    """Start `toolferry serve` in an empty folder with nothing but an upstream, and wait until it says where it is."""
    command = [str(Path(sys.executable).with_name("toolferry")), "serve", "--port", "0"]
    environment = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": upstream.url, "TOOLFERRY_AUTH": "none"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    with anyio.fail_after(20):
        line = (await process.stdout.readline()).decode()
    return process, line.split(" on ")[1].split()[0]


@proves("shutdown")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_runs_so_that_readers_hear_it_and_the_process_ends_well(
    number: signal.Signals, tmp_path: Path
) -> None:
    async with open_upstream([stream(text("a"), asyncio.Event())]) as upstream:
        process, url = await serve(upstream, tmp_path)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=10) as client:
                async with client.stream("POST", "/v1/runs", json={"messages": USER, "model": "m"}) as response:
                    reader = events(EventSource(response))
                    seen = [await anext(reader) for _ in range(3)]
                    process.send_signal(number)
                    seen += [event async for event in reader]
            with anyio.fail_after(10):
                _, logged = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        with anyio.fail_after(5):
            await upstream.closed_early.wait()
    assert seen[-1].data["code"] == "shutting_down"
    assert process.returncode == 0
    assert b"Traceback" not in logged, logged.decode()
