"""The client of one connection over real sockets: what it sends along, whom it trusts, and what it goes through."""

import asyncio
import base64
import contextlib
import gzip
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from app.domain.secrets import Secret
from app.domain.spec import HOP_HEADER, ServerSpec
from app.toolbox.addresses import Refused
from app.toolbox.admission import Policy
from app.toolbox.dialling import Lookups, NotDialled, ssl_context
from app.toolbox.egress import Egress, EgressLimits
from app.toolbox.faults import ENCODED, Exchange, Fault, under_way
from app.toolbox.grants import proxy_from_text
from app.toolbox.wire import UNREACHABLE, Wire
from tests.fakes.dialling import OK, PUBLIC, Authority, FakeNet, make_authority
from tests.fakes.mcp_servers import wait_until
from tests.fakes.toolboxes import operator, user

pytestmark = pytest.mark.anyio

NAMED = "https://mcp.example.com/mcp"
MESSAGE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
NO_TLS = Fault("unreachable", "No trusted TLS connection to the server can be made.")
LOCAL = Policy(allow_insecure_urls=True)

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def open_tcp(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """Serve connections on a port of loopback; in the end all are cut."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            await serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@dataclass
class Site:
    """A server that answers each request alike, and the heads of what it was sent."""

    reply: bytes = OK
    port: int = 0
    heads: list[str] = field(default_factory=list[str])

    @property
    def headers(self) -> dict[str, str]:
        """Those of the latest request."""
        lines = self.heads[-1].strip().split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
            await reader.readexactly(int(self.headers.get("content-length", "0")))
            writer.write(self.reply)
            await writer.drain()


@asynccontextmanager
async def open_site(reply: bytes = OK, context: ssl.SSLContext | None = None) -> AsyncGenerator[Site]:
    site = Site(reply)
    async with open_tcp(site.serve, context) as site.port:
        yield site


@dataclass
class Proxy(Site):
    """A proxy that leads every tunnel to one port, and answers itself what comes without one."""

    target: int = 0
    refusal: bytes = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head.decode("latin-1"))
        if self.refusal or not head.startswith(b"CONNECT "):
            await reader.readexactly(int(self.headers.get("content-length", "0")))
            writer.write(self.refusal or self.reply)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            far_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def post(egress: Egress, server: ServerSpec, *, times: int = 1) -> Fault | None:
    """Send requests over one connection as calls would, and return what went wrong with the last."""
    exchange = Exchange(5, is_asked=True)
    async with anyio.create_task_group() as chores:
        async with egress.client(server, Wire(egress.limits, chores)) as client:
            for _ in range(times):
                exchange = Exchange(5, is_asked=True)
                token = under_way.set(exchange)
                await client.post(server.url, content=MESSAGE, headers=HEADERS)
                under_way.reset(token)
        chores.cancel_scope.cancel()
    return exchange.fault


def behind(net: FakeNet, limits: EgressLimits | None = None, policy: Policy | None = None) -> Egress:
    return Egress(policy or Policy(), limits or EgressLimits(), net.resolve, dial=net.dial)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))


# What goes along


async def test_request_carries_our_mark_and_asks_for_no_compression() -> None:
    async with open_site() as site:
        server = user(f"http://127.0.0.1:{site.port}/mcp", headers={"X-Key": Secret("k")})
        assert await post(Egress(LOCAL, EgressLimits()), server) is None
    assert site.heads[0].startswith("POST /mcp HTTP/1.1\r\n")
    assert site.headers[HOP_HEADER.lower()] == "1"
    assert site.headers["accept-encoding"] == "identity"
    assert site.headers["x-key"] == "k"
    assert site.headers["host"] == f"127.0.0.1:{site.port}"


async def test_compressed_reply_is_refused_however_it_is_compressed() -> None:
    body = gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"):
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {coding}\r\n"
        async with open_site(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body) as site:
            fault = await post(Egress(LOCAL, EgressLimits()), user(f"http://127.0.0.1:{site.port}/mcp"))
        assert fault == ENCODED


async def test_cookie_is_not_kept() -> None:
    event = b"event: message\ndata: %b\n\n" % OK.partition(b"\r\n\r\n")[2]
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: sid=zz\r\nContent-Length: {len(event)}"
    async with open_site(f"{head}\r\n\r\n".encode() + event) as site:
        assert await post(Egress(LOCAL, EgressLimits()), user(f"http://127.0.0.1:{site.port}/mcp"), times=3) is None
    assert len(site.heads) == 3
    assert "cookie" not in site.headers


async def test_proxy_of_the_environment_is_never_asked(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    context = authority.server_context("mcp.example.com")
    async with open_site() as proxy, open_site() as site, open_site(context=context) as secure:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        for server in (user(f"http://127.0.0.1:{site.port}/mcp"), operator(f"http://127.0.0.1:{site.port}/mcp")):
            assert await post(Egress(LOCAL, EgressLimits()), server) is None
        net = FakeNet(port=secure.port, has_tls=True)
        assert await post(behind(net, EgressLimits(ca_file=authority.ca_file)), operator(NAMED)) is None
    assert proxy.heads == []
    assert (len(site.heads), len(secure.heads)) == (2, 1)


async def test_trust_of_the_environment_is_not_ours(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.ca_file)
    ssl_context.cache_clear()
    async with open_site(context=authority.server_context("mcp.example.com")) as site:
        fault = await post(behind(FakeNet(port=site.port, has_tls=True)), operator(NAMED))
    assert fault == NO_TLS
    assert site.heads == []


# Whom it trusts


async def test_authority_of_the_operators_vouches_for_servers_of_theirs_alone(authority: Authority) -> None:
    limits = EgressLimits(ca_file=authority.ca_file)
    async with open_site(context=authority.server_context("mcp.example.com")) as site:
        net = FakeNet(port=site.port, has_tls=True)
        assert await post(behind(net, limits), operator(NAMED)) is None
        assert await post(behind(net, limits), user(NAMED)) == UNREACHABLE
        assert await post(behind(net), operator(NAMED)) == NO_TLS
    assert len(site.heads) == 1
    assert site.headers["host"] == "mcp.example.com"


async def test_certificate_must_be_for_the_name_and_not_for_what_is_dialled(authority: Authority) -> None:
    async with open_site(context=authority.server_context("other.example.com")) as site:
        net = FakeNet(port=site.port, has_tls=True)
        limits = EgressLimits(ca_file=authority.ca_file)
        assert await post(behind(net, limits), operator(NAMED)) == NO_TLS
        assert await post(behind(net, limits), operator("https://other.example.com/mcp")) is None
    assert net.tls_names == ["mcp.example.com", "other.example.com"]


async def test_handshake_that_is_called_off_leaves_no_socket() -> None:
    gone = anyio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        while await reader.read(65536):
            pass
        gone.set()

    async with open_tcp(say_nothing) as port:
        net = FakeNet(port=port, has_tls=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, behind(net, EgressLimits(connect_seconds=60)), operator(NAMED))
            await wait_until(lambda: net.tls_names)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await gone.wait()
    assert net.tls_names == ["mcp.example.com"]


def test_one_tls_context_serves_all_connections_of_a_class(authority: Authority) -> None:
    assert ssl_context() is ssl_context()
    assert ssl_context(authority.ca_file) is ssl_context(authority.ca_file)
    assert ssl_context(authority.ca_file) is not ssl_context()


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nzz\n", b"\x30\x82"])
def test_file_without_certificates_is_told_before_anything_is_dialled(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "marker.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match="readable file of certificates") as refused:
        ssl_context(str(file))
    assert "marker" not in str(refused.value)


# What it goes through


@asynccontextmanager
async def open_proxy(target: int = 0, refusal: bytes = b"") -> AsyncGenerator[Proxy]:
    proxy = Proxy(OK, target=target, refusal=refusal)
    async with open_tcp(proxy.serve) as proxy.port:
        yield proxy


def through(proxy: Proxy, answers: Sequence[Sequence[str]], ca_file: str | None = None) -> tuple[Egress, FakeNet]:
    """Make an egress that goes through a proxy, and the network that it sees: everything it dials is that proxy."""
    text = f"http://us%40er:marker-zz@proxy.example.net:{proxy.port}"
    net = FakeNet(answers=answers, port=proxy.port, has_tls=True)
    return behind(net, EgressLimits(proxy=proxy_from_text(text), ca_file=ca_file)), net


async def test_proxy_makes_a_tunnel_through_which_tls_is_spoken_with_the_server(authority: Authority) -> None:
    context = authority.server_context("mcp.example.com")
    async with open_site(context=context) as site, open_proxy(site.port) as proxy:
        egress, net = through(proxy, [["10.0.0.5"]], authority.ca_file)
        assert await post(egress, operator(NAMED), times=2) is None
    assert net.asked == [("mcp.example.com", 443)], "names are judged here as well"
    assert net.dialled == [("proxy.example.net", proxy.port)]
    assert len(proxy.heads) == 1
    assert proxy.heads[0].startswith("CONNECT mcp.example.com:443 HTTP/1.1\r\n")
    credentials = base64.b64encode(b"us@er:marker-zz").decode()
    assert proxy.headers["proxy-authorization"] == f"Basic {credentials}"
    assert len(site.heads) == 2
    assert "proxy-authorization" not in site.headers


async def test_plain_request_is_handed_to_the_proxy_with_its_whole_address() -> None:
    async with open_proxy() as proxy:
        egress, _ = through(proxy, [["10.0.0.5"]])
        assert await post(egress, operator("http://tools.example.com/mcp")) is None
    assert proxy.heads[0].startswith("POST http://tools.example.com/mcp HTTP/1.1\r\n")
    assert proxy.headers["host"] == "tools.example.com"


@pytest.mark.parametrize("answers", [["10.0.0.5"], [PUBLIC, "127.0.0.1"], ["169.254.169.254"], []])
async def test_proxy_is_not_asked_for_what_is_refused(answers: Sequence[str]) -> None:
    async with open_proxy() as proxy:
        egress, net = through(proxy, [answers])
        assert await post(egress, user(NAMED)) == UNREACHABLE
    assert proxy.heads == []
    assert net.dialled == []


@pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required", "502 Bad Gateway"])
async def test_proxy_that_makes_no_tunnel_is_told_to_the_operator_only(status: str) -> None:
    async with open_proxy(refusal=f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()) as proxy:
        egress, _ = through(proxy, [[PUBLIC]])
        assert await post(egress, user(NAMED)) == UNREACHABLE
        fault = await post(egress, operator(NAMED))
    assert fault == Fault("unreachable", "The proxy makes no connection to the server.")
    assert len(proxy.heads) == 2


# This machine


async def test_public_name_that_leads_to_this_machine_is_left_at_once() -> None:
    async with open_site() as site:
        net = FakeNet(port=site.port, own_address=None)
        assert await post(behind(net), user(NAMED)) == UNREACHABLE
        assert await post(behind(net), operator("http://mine.example.com/mcp", allow_plain_http_public=True)) is None
    assert net.dialled == [(PUBLIC, 443), (PUBLIC, 80)]
    assert len(site.heads) == 1


# Looking up


@pytest.mark.parametrize(
    "server", [user("https://10.0.0.1/mcp"), user("ftp://a.example"), user("https://[::1]/mcp"), user("https://redis/")]
)
async def test_what_the_text_tells_is_never_looked_up(server: ServerSpec) -> None:
    net = FakeNet()
    egress = behind(net)
    assert isinstance(await egress.vet(server), Refused)
    async with anyio.create_task_group() as chores:
        with pytest.raises(NotDialled):
            egress.client(server, Wire(egress.limits, chores))
    assert net.asked == []


async def test_name_of_loopback_is_resolved_by_the_system() -> None:
    async with open_site() as site:
        assert await post(Egress(LOCAL, EgressLimits()), user(f"http://localhost:{site.port}/mcp")) is None
        assert await post(Egress(Policy(), EgressLimits()), operator(f"http://localhost:{site.port}/mcp")) is None
    assert len(site.heads) == 2


async def test_slow_names_hold_a_bounded_number_of_threads_and_nobody_waits_for_them() -> None:
    release = threading.Event()
    asked: list[str] = []

    def resolve(name: str, port: int) -> Sequence[str]:
        del port
        asked.append(name)
        release.wait(10)
        return [PUBLIC]

    lookups = Lookups(resolve, threads=2, seconds=0.1)
    refusals: list[Refused] = []

    async def look_up(name: str) -> None:
        with pytest.raises(NotDialled) as refused:
            await lookups.of(name, 443)
        refusals.append(refused.value.refused)

    try:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(look_up, f"slow-{number}.example")
    finally:
        release.set()
    assert len(asked) == 2
    assert sorted(refused.code for refused in refusals) == ["dns_busy"] * 4 + ["no_address"] * 2
    quick = Lookups(FakeNet().resolve, threads=2, seconds=5)
    assert await quick.of("quick.example", 443) == (PUBLIC,)


async def test_threads_are_free_again_when_their_names_have_been_looked_up() -> None:
    lookups = Lookups(FakeNet().resolve, threads=1, seconds=5)
    assert [await lookups.of("a.example", 443) for _ in range(3)] == [(PUBLIC,)] * 3
    failing = Lookups(FakeNet(answers=[OSError("no such name")]).resolve, threads=1, seconds=5)
    for _ in range(3):
        with pytest.raises(NotDialled) as refused:
            await failing.of("a.example", 443)
        assert refused.value.refused == Refused("no_address", "The host has no address.")


async def test_closed_client_has_no_sockets_left() -> None:
    async with open_site() as site:
        net = FakeNet(port=site.port)
        assert await post(behind(net), user(NAMED), times=2) is None
    assert (len(net.dialled), net.closed) == (1, 1)
