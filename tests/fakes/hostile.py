"""Attackers, what they attack, and who must not notice.

- A `Victim` is the service in a process of its own, so that its memory can be watched. It takes any server a request
  names on this machine, and waits for nobody as long as it would by default; what it accepts in bytes is the default.
- `open_siege` puts a model in front of it, and a good server beside it. `Siege.withstand` makes a strike again and
  again while others use the service; they must get what they came for.
- `pour` is a client that sends without end, `pouring` a server's answer that has none.
"""

import asyncio
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, TypeVar, final, overload

import anyio
import httpx

from app.api.keys import entry_from_key, new_key
from tests.fakes.raw_mcp import HANG, RawMcp, RawRequest, Reply, open_raw_mcp
from tests.fakes.service import Run, Service
from tests.fakes.upstream import Answer, FakeUpstream, Piece, Request, call, end, open_upstream, stream, text

MIB: Final = 1024 * 1024
_T = TypeVar("_T")
_strangers = count()
"""Nobody twice: who named servers in vain is told to wait, and should not be in the next test."""

SILENCE_SECONDS: Final = 3
"""How long the victim waits for a server, a model, or a body."""
KEY: Final = new_key()
"""Of a frontend, which says for whom it asks."""
_SETTINGS: Final = {
    "TOOLFERRY_API_KEYS": entry_from_key("front", KEY, is_trusted=True),
    "TOOLFERRY_DEFAULT_MODEL": "scripted",
    "MCP_ALLOW_INSECURE_URLS": "true",
    "MCP_TOOL_TIMEOUT_MS": str(SILENCE_SECONDS * 1000),
    "TOOLFERRY_CONNECT_MS": str(SILENCE_SECONDS * 1000),
    "TOOLFERRY_MODEL_SILENCE_MS": str(SILENCE_SECONDS * 1000),
    "TOOLFERRY_BODY_READ_MS": str(SILENCE_SECONDS * 1000),
    "TOOLFERRY_UPSTREAM_BACKOFF_MS": "10",
}


# The process under attack


@dataclass
class Victim:
    """The service in a process of its own."""

    port: int
    model_port: int
    """Where it looks for its model."""
    pid: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def growth(self) -> Generator["Growth"]:
        """Watch by how much memory grows at most while the block runs."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")  # forgets the peak so far
        growth = Growth(self._kib("VmRSS:"))
        try:
            yield growth
        finally:
            growth.bytes = (self._kib("VmHWM:") - growth.before_kib) * 1024

    def _kib(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


@dataclass
class Growth:
    """By how much a process has grown at most."""

    before_kib: int
    bytes: int = 0


@contextmanager
def open_victim(folder: Path, **settings: str) -> Generator[Victim]:
    """Run `toolferry serve` in an empty folder, with further settings by their names in the environment."""
    port, model_port = _free_port(), _free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "OPENAI_BASE_URL": f"http://127.0.0.1:{model_port}/v1",
        **_SETTINGS,
        **settings,
    }
    command = [str(Path(sys.executable).with_name("toolferry")), "serve", "--port", str(port)]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=out)  # noqa: S603
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert str(port) in line, log.read_text()
        yield Victim(port, model_port, process.pid, log)
    finally:
        process.kill()
        process.communicate()


def _free_port() -> int:
    """Choose a port that no outgoing connection takes meanwhile: below those that systems give to them."""
    while True:
        port = random.randrange(20_000, 30_000)  # noqa: S311
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


# Those who use the service meanwhile


@dataclass
class Siege:
    """A victim with its model, and a good server for those who mean no harm."""

    victim: Victim
    service: Service
    good: RawMcp
    model: FakeUpstream

    async def live(self) -> None:
        """Make a run with a tool as honest callers do, and make sure that it got what it came for."""
        run = await self.run("live", self.good.url, user="guest")
        assert [data["result"]["status"] for data in run.named("tool/result")] == ["success"], run.events
        assert run.text == "Done.", run.events

    async def run(self, said: str, *urls: str, user: str | None = None, **body: Any) -> Run:
        """Make a run with servers, for a user that was never seen before unless one is named.

        `said` is told to the model, which calls the first tool of the first server.
        """
        servers = [{"name": f"box{number}", "url": url} for number, url in enumerate(urls)]
        headers = {"X-End-User": user or f"stranger{next(_strangers)}"}
        messages = [{"role": "user", "content": said}]
        return await self.service.run(messages=messages, servers=servers, headers=headers, **body)

    async def strike(self, url: str) -> tuple[str, str]:
        """Make a run that calls a tool of a hostile server; returns the code and the message of what came of the call.

        Where the server was not even ready in time, since it keeps itself busy, those of that.
        """
        run = await self.run("call", url)
        assert run.last["outcome"] == "completed", run.events
        told = run.named("tool/error") or [told for told in run.named("server") if "code" in told]
        assert len(told) == 1, run.events
        return told[0]["code"], told[0]["message"]

    async def check(self, url: str) -> httpx.Response:
        """Have a server described, as somebody does who has just entered its address."""
        headers = {"X-End-User": f"stranger{next(_strangers)}"}
        return await self.service.client.post("/v1/servers/check", json={"name": "box", "url": url}, headers=headers)

    async def withstand(self, strike: Callable[[], Awaitable[_T]], *, lives: int = 2) -> list[_T]:
        """Strike again and again, until honest runs were made meanwhile, one after the other.

        Returns what each strike came to. An honest run that fails fails the test.
        """
        outcomes: list[_T] = []
        is_over = False

        async def attack() -> None:
            while not is_over:
                outcomes.append(await strike())

        with anyio.fail_after(50):
            async with anyio.create_task_group() as attackers:
                attackers.start_soon(attack)
                for _ in range(lives):
                    await self.live()
                is_over = True
        return outcomes


@asynccontextmanager
async def open_siege(
    victim: Victim,
    strikes: Callable[[Request], Answer] | None = None,
    *,
    arguments: str = "{}",
    models: Callable[[Request], Answer] | None = None,
) -> AsyncGenerator[Siege]:
    """Put a model in front of the victim. It calls the first tool once and ends; `strikes` answers who says `strike`.

    `arguments` are those of the calls; `models` answers who asks for the list of models.
    """

    def answer(request: Request) -> Answer:
        messages = request.json["messages"]
        if strikes is not None and messages[-1].get("content") == "strike":
            return strikes(request)
        if messages[-1]["role"] == "user" and "tools" in request.json:
            name = request.json["tools"][0]["function"]["name"]
            return stream(call(0, "c1", name, arguments), end("tool_calls"))
        return stream(text("Done."), end())

    async with (
        open_upstream(answer, models_script=models, port=victim.model_port) as model,
        open_raw_mcp() as good,
        httpx.AsyncClient(base_url=victim.url, timeout=45, headers={"Authorization": f"Bearer {KEY}"}) as client,
    ):
        yield Siege(victim, Service(client, victim.url, None), good, model)


# Clients


@dataclass
class Poured:
    """What became of a client that sends without end."""

    sent: int
    """Bytes that were taken off it, as far as it can tell."""
    answer: bytes
    """What it was told, if anything."""
    is_cut: bool
    """The service has ended the connection."""


async def pour(port: int, first: bytes, pieces: Iterable[bytes], *, seconds: float = 10.0) -> Poured:
    """Connect, send `first` and then all pieces, as quickly as they are taken; then wait for the end of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer, sent, is_cut = b"", 0, False

    async def listen() -> None:
        nonlocal answer, is_cut
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                answer += data
        is_cut = True

    listening = asyncio.create_task(listen())
    try:
        async with asyncio.timeout(seconds):
            with suppress(ConnectionError):
                for piece in chain([first], pieces):
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)
                    if listening.done():
                        break
            await listening
    except TimeoutError:
        pass
    finally:
        listening.cancel()
        writer.transport.abort()
    return Poured(sent, answer, is_cut)


def times(piece: bytes, most: int) -> Iterator[bytes]:
    """Repeat a piece until there are `most` bytes."""
    for _ in range(most // len(piece)):
        yield piece


# Servers


@dataclass
class Tally:
    """What an attacking server has got rid of."""

    sent: int = 0
    """Bytes, in all answers."""
    most: int = 0
    """Bytes of the longest answer."""
    answers: int = 0


def pouring(tally: Tally, head: bytes, piece: bytes, *, most: int = 256 * MIB, pause: float = 0.0) -> Reply:
    """Reply with a head and then with a piece over and over, until the connection is cut or `most` bytes are sent."""

    async def reply(request: RawRequest) -> str:
        tally.answers += 1
        sent = 0
        try:
            await request.write(head)
            while sent < most:
                await request.write(piece)
                sent += len(piece)
                tally.sent += len(piece)
                await asyncio.sleep(pause)
        finally:
            tally.most = max(tally.most, sent)
        return HANG

    return reply


def head_of(content_type: str = "application/json", *more: str, status: str = "200 OK", chunked: bool = True) -> bytes:
    """Write the head of an answer whose body may be of any length."""
    framing = ["Transfer-Encoding: chunked"] if chunked else []
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *framing, *more, "", ""]
    return "\r\n".join(lines).encode()


def as_chunk(data: bytes) -> bytes:
    """Write one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


# Models


@final
class Endless(Sequence[Piece]):
    """The pieces of a model's answer that has no end, or almost none: `head`, and then `piece` over and over."""

    def __init__(self, head: Piece, piece: Piece, *, most: int = 100_000) -> None:
        self._head = head
        self._piece = piece
        self._most = most
        self.reached = 0
        """How many pieces were sent."""

    def __len__(self) -> int:
        return self._most

    @overload
    def __getitem__(self, index: int) -> Piece: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Piece]: ...
    def __getitem__(self, index: int | slice) -> Piece | Sequence[Piece]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._most))]
        if not 0 <= index < self._most:
            raise IndexError(index)
        self.reached = max(self.reached, index)
        return self._piece if index else self._head
