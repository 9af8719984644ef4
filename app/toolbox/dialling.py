"""How MCP servers are dialled: one way out for each connection, to its own origin. Knows HTTP, no messages.

Looking a name up, judging all of its answers and dialling one of them is one step in the network backend, below the
HTTP client, so that nothing comes between them: no second look-up, no other answer. Only the address that is dialled
differs from what the client asked for. Host header, SNI and the certificate's check stay those of the name.
"""

import math
import socket
import ssl
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import zip_longest
from typing import TypeAlias, cast

import anyio
import anyio.to_thread
import httpcore2
import httpx2
from typing_extensions import override

from app.toolbox.addresses import RefusalCode, Refused
from app.toolbox.admission import Admitted, Policy, judge_answers, may_be_ourselves
from app.toolbox.grants import EgressProxy

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Gives the addresses of a name; waits for them, and raises OSError or UnicodeError."""
Dial: TypeAlias = Callable[[str, int, float], Awaitable[httpcore2.AsyncNetworkStream]]
"""Connects to an address and port within seconds, and raises `httpcore2.ConnectError` or `ConnectTimeout`."""

_MOST_DIALLED = 4
"""So many of a name's addresses are tried, so that each gets a share of the time in which it may well answer."""
_READ_BYTES = 8 * 1024
_HEAD_BYTES = 256 * 1024
"""Of an answer's head, and of provisional answers before it."""
_CONNECTIONS, _KEPT_CONNECTIONS, _KEPT_SECONDS = 256, 8, 60.0


class NotDialled(httpx2.ConnectError):
    """Nothing was sent: the place is refused, or its name leads nowhere."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        super().__init__(reason)
        self.refused = Refused(code, reason)


class Lookups:
    """The look-ups of all connections, in a bounded number of threads. Nothing is kept: each answer is used once."""

    def __init__(self, resolve: Resolve | None, *, threads: int, seconds: float) -> None:
        self._resolve = resolve or _resolve
        self._seconds = seconds
        self._free = threading.BoundedSemaphore(threads)

    async def of(self, name: str, port: int) -> Sequence[str]:
        """Look a name up. Slow names hold at most all threads; beyond that it fails at once.

        Raises:
            NotDialled: There is no answer.
        """
        if not self._free.acquire(blocking=False):
            raise NotDialled("dns_busy", "Too many names are being looked up.")
        slot = _Slot(self._free.release)

        def ask() -> Sequence[str]:
            if not slot.begin():
                return ()
            try:
                return self._resolve(name, port)
            finally:
                slot.give_back()

        limiter = anyio.CapacityLimiter(1)  # its own, so that it never waits for other rooms' threads
        try:
            with anyio.fail_after(self._seconds):
                return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)
        except (OSError, UnicodeError):
            raise NotDialled("no_address", "The host has no address.") from None
        finally:
            slot.leave()


class _Slot:
    """A thread's worth of looking up, given back exactly once: when the look-up ends, or where it never began."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._has_begun = self._is_over = False

    def begin(self) -> bool:
        """In the thread: tell whether anybody still waits."""
        with self._lock:
            self._has_begun = not self._is_over
            return self._has_begun

    def leave(self) -> None:
        """The caller is gone; a thread that has not begun will not."""
        with self._lock:
            if self._has_begun or self._is_over:
                return
            self._is_over = True
        self._release()

    def give_back(self) -> None:
        """In the thread, which is done."""
        with self._lock:
            self._is_over = True
        self._release()


def _resolve(name: str, port: int) -> list[str]:
    return [str(answer[4][0]) for answer in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]


async def _dial(address: str, port: int, seconds: float) -> httpcore2.AsyncNetworkStream:
    backend = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())
    return await backend.connect_tcp(address, port, seconds)


@lru_cache(maxsize=2)
def ssl_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Build a TLS context once a process: it takes 23 to 34 ms of CPU. `ca_file` adds trust anchors to the system's.

    Raises:
        ValueError: The file holds no certificates, or cannot be read.
    """
    context = httpx2.create_ssl_context(trust_env=False)
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError:  # a text that is no certificate is an `SSLError`, which is one too
            raise ValueError("must name a readable file of certificates in PEM form") from None
    return context


class Dialler(httpcore2.AsyncNetworkBackend):
    """Opens the sockets of one MCP connection."""

    def __init__(
        self, admitted: Admitted, policy: Policy, lookups: Lookups, *, dial: Dial | None = None, has_proxy: bool = False
    ) -> None:
        """Open nothing yet. With a proxy, that is what is dialled, once the server's own addresses have been judged."""
        self._admitted = admitted
        self._policy = policy
        self._lookups = lookups
        self._dial = dial or _dial
        self._has_proxy = has_proxy

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Look up, judge, dial.

        Raises:
            NotDialled: The server may not be connected to.
            httpcore2.ConnectError, httpcore2.ConnectTimeout: It cannot be.
        """
        del local_address, socket_options  # never set by the pools made here
        addresses = _by_turns(await self._judged_addresses())
        ends_at = anyio.current_time() + (math.inf if timeout is None else timeout)
        *early, last = [host] if self._has_proxy else addresses
        # Each gets a share of what is left of the time, so that a dead one does not take it all.
        for left, address in zip(range(len(addresses), 1, -1), early, strict=False):
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await self._connect(address, port, (ends_at - anyio.current_time()) / left)
        return await self._connect(last, port, ends_at - anyio.current_time())

    @override
    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        del path, timeout, socket_options
        raise NotDialled("scheme_refused", "Only http and https addresses can be MCP servers.")

    @override
    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def _judged_addresses(self) -> Sequence[str]:
        admitted = self._admitted
        answers: Sequence[str] = [admitted.host]
        if admitted.addresses_needed:
            answers = await self._lookups.of(admitted.lookup_name, admitted.port)
        vetted = judge_answers(admitted, answers, self._policy)
        if isinstance(vetted, Refused):
            raise NotDialled(vetted.code, vetted.reason)
        return vetted

    async def _connect(self, address: str, port: int, seconds: float) -> httpcore2.AsyncNetworkStream:
        stream = await self._dial(address, port, seconds)
        local, peer = (
            cast("tuple[str, int] | None", stream.get_extra_info(side)) for side in ("client_addr", "server_addr")
        )
        is_ourselves = local is not None and peer is not None and local[0] == peer[0]
        if is_ourselves and not self._has_proxy and not may_be_ourselves(self._admitted, address, self._policy):
            await stream.aclose()
            raise NotDialled("address_refused", "The server's address is one of this service's own.")
        return _Socket(stream)


class _Socket(httpcore2.AsyncNetworkStream):
    """A connection that is closed where its TLS handshake is called off. The library does so only after errors.

    Little is read of it at a time, since the library parses all of that before others get their turn. And no more than
    a head may take until `end_head`: the library reads provisional answers for as long as they come.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._head_left: float = _HEAD_BYTES

    def end_head(self) -> None:
        """What follows is a body, which is bounded elsewhere, until something is sent again."""
        self._head_left = math.inf

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(min(max_bytes, _READ_BYTES), timeout)
        self._head_left -= len(data)
        if self._head_left < 0:
            raise httpcore2.ReadError("The head of the answer is too large.")
        return data

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._head_left = _HEAD_BYTES
        await self._stream.write(buffer, timeout)

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()

    @override
    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return _Socket(await self._stream.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise

    @override
    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


def _by_turns(addresses: Sequence[str]) -> list[str]:
    """Let the families take turns: a host without one of them may get many addresses of it first."""
    first = [address for address in addresses if (":" in address) == (":" in addresses[0])]
    others = [address for address in addresses if address not in first]
    turns = zip_longest(first, others)
    return [address for turn in turns for address in turn if address is not None][:_MOST_DIALLED]


class Door(httpx2.AsyncBaseTransport):
    """The way out of one MCP connection: to one origin, whatever redirect, event or header asks for another."""

    def __init__(
        self,
        url: str,
        dialler: Dialler,
        context: ssl.SSLContext,
        *,
        is_users: bool,
        proxy: EgressProxy | None = None,
        proxy_context: ssl.SSLContext | None = None,
    ) -> None:
        """Open nothing yet. `is_users`: the server comes from a request; its sender is not told why it is not there."""
        self.is_users = is_users
        self._origins = _origins(httpx2.URL(url))
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            proxy=None if proxy is None else _proxy(proxy, proxy_context or context),
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_KEPT_CONNECTIONS,
            keepalive_expiry=_KEPT_SECONDS,
            http1=True,
            http2=False,
            network_backend=dialler,
        )

    def leads_to(self, url: httpx2.URL) -> bool:
        """Tell whether a URL is of this connection's origin, and brings no credentials of its own."""
        return not url.userinfo and (url.raw_scheme, url.raw_host, url.port) in self._origins

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            NotDialled: It would go elsewhere, or its server may not be connected to.
            httpx2.HTTPError: It failed on its way.
        """
        url = request.url
        hosts = [value for name, value in request.headers.raw if name.lower() == b"host"]
        if not self.leads_to(url) or hosts != [url.netloc]:
            raise NotDialled("host_refused", "The request would go to another place than its server.")
        with _httpx2_errors():
            response = await self._pool.handle_async_request(
                httpcore2.Request(
                    request.method,
                    httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=cast("httpx2.AsyncByteStream", request.stream),  # that of an async client
                    extensions=request.extensions,
                )
            )
        connection = cast("dict[str, object]", response.extensions).get("network_stream")
        if isinstance(connection, _Socket):
            connection.end_head()
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=_Body(cast("AsyncIterable[bytes]", response.stream)),
            extensions=cast("dict[str, object]", response.extensions),
        )

    async def aclose(self) -> None:
        """Close all sockets."""
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx2_errors():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        await cast("httpx2.AsyncByteStream", self._stream).aclose()


_ERRORS: dict[type[Exception], type[httpx2.TransportError]] = {
    httpcore2.ConnectTimeout: httpx2.ConnectTimeout,
    httpcore2.ReadTimeout: httpx2.ReadTimeout,
    httpcore2.WriteTimeout: httpx2.WriteTimeout,
    httpcore2.PoolTimeout: httpx2.PoolTimeout,
    httpcore2.ConnectError: httpx2.ConnectError,
    httpcore2.ReadError: httpx2.ReadError,
    httpcore2.WriteError: httpx2.WriteError,
    httpcore2.ProxyError: httpx2.ProxyError,
    httpcore2.UnsupportedProtocol: httpx2.UnsupportedProtocol,
    httpcore2.LocalProtocolError: httpx2.LocalProtocolError,
    httpcore2.RemoteProtocolError: httpx2.RemoteProtocolError,
}


@contextmanager
def _httpx2_errors() -> Generator[None]:
    try:
        yield
    except tuple(_ERRORS) as error:
        raise _ERRORS[type(error)](str(error)) from error


def _origins(url: httpx2.URL) -> frozenset[tuple[bytes, bytes, int | None]]:
    """Return the origin of a URL, and the same host by https where both ports are the usual ones."""
    own = (url.raw_scheme, url.raw_host, url.port)
    upgraded = (b"https", url.raw_host, None)
    return frozenset((own, upgraded) if own == (b"http", url.raw_host, None) else (own,))


def _proxy(proxy: EgressProxy, context: ssl.SSLContext) -> httpcore2.Proxy:
    name_and_password = proxy.credentials and (proxy.credentials[0].reveal(), proxy.credentials[1].reveal())
    return httpcore2.Proxy(
        httpcore2.URL(scheme=proxy.scheme, host=proxy.host, port=proxy.port, target="/"),
        auth=name_and_password,
        ssl_context=context if proxy.scheme == "https" else None,
    )
