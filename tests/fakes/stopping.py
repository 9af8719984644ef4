"""A server that ends when it is told to and not a tenth of a second later, which hundreds of tests would add up."""

import socket
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import uvicorn


class StoppableServer(uvicorn.Server):
    """A server without signal handlers that stops at once when told to."""

    async def main_loop(self) -> None:
        while not self.should_exit:  # noqa: ASYNC110  # the library's own loop does so too, ten times slower
            await anyio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as the library does, but look for the end of connections more often than each tenth of a second."""
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown or 2) as limit:
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110  # there is no event for it
                await anyio.sleep(0.002)
        if limit.cancelled_caught:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
