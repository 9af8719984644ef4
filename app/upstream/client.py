"""The pooled HTTP client to the model endpoint: `openai` on aiohttp, taking nothing from the environment but proxies.

It keeps no cookies, since they would carry one caller's session into another's request; it has no limit of
connections, since a waiting run would look like a silent model. Knows nothing of what is said over it.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from typing import Any, Protocol, cast

import aiohttp
import anyio
import httpx2
from openai import AsyncOpenAI, DefaultAioHttpClient, Omit

_CLOSE_SECONDS = 2.0
_KEEPALIVE_SECONDS = 15.0
_MOST_BYTES = 8 * 1024 * 1024
"""Of a body that the library reads as a whole: that of an error, and the list of models."""


class _Transport(Protocol):
    """What `openai`'s aiohttp transport is made of."""

    ssl_context: ssl.SSLContext
    client: Callable[[], aiohttp.ClientSession]


def _session(ssl_context: ssl.SSLContext) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl_context, keepalive_timeout=_KEEPALIVE_SECONDS)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def _with_own_session(made: httpx2.AsyncBaseTransport) -> httpx2.AsyncBaseTransport:
    transport = cast("_Transport", made)
    transport.client = partial(_session, transport.ssl_context)
    return _Capped(made)


class _Capped(httpx2.AsyncBaseTransport):
    """Ends bodies that the library reads as a whole where they get too long; streamed answers pass as they are."""

    def __init__(self, made: httpx2.AsyncBaseTransport) -> None:
        self._made = made

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._made.handle_async_request(request)
        if request.method == "GET" or not response.is_success:
            response.stream = _CappedBody(cast("httpx2.AsyncByteStream", response.stream))
        return response

    async def aclose(self) -> None:
        await self._made.aclose()


class _CappedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MOST_BYTES
        async for part in self._body:
            yield part[:left]
            left -= len(part)
            if left < 0:
                return

    async def aclose(self) -> None:
        await self._body.aclose()


class _HttpClient(DefaultAioHttpClient):
    """The library's own client on aiohttp; the sessions below it are ours. They are made at the first request."""

    def _init_transport(self, *args: Any, **kwargs: Any) -> httpx2.AsyncBaseTransport:
        return _with_own_session(super()._init_transport(*args, **kwargs))

    def _init_proxy_transport(self, *args: Any, **kwargs: Any) -> httpx2.AsyncBaseTransport:
        return _with_own_session(super()._init_proxy_transport(*args, **kwargs))


class _Client(AsyncOpenAI):
    """The library's client with fixed headers, so that neither `OPENAI_CUSTOM_HEADERS` nor telemetry is sent."""

    @property
    def default_headers(self) -> dict[str, str | Omit]:
        return {
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",  # raw bytes are read, and a compressed stream comes late
            "Content-Type": "application/json",
            "User-Agent": f"toolferry/{version('toolferry')}",
        }


@asynccontextmanager
async def open_client(base_url: str, *, connect_seconds: float, idle_seconds: float) -> AsyncGenerator[AsyncOpenAI]:
    """Open the client; leaving closes its connections. Each request brings its own `Authorization`, or omits it.

    Raises:
        httpx2.InvalidURL: `base_url` is none.
    """
    # aiohttp watches the silence between reads: a cancel scope around each read costs 5 µs a token.
    timeout = httpx2.Timeout(None, connect=connect_seconds, pool=connect_seconds, read=idle_seconds)
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    client = _Client(
        # Empty, not None: None makes the library look into the environment.
        api_key="",
        admin_api_key="",
        organization="",
        project="",
        webhook_secret="",
        base_url=base_url,
        timeout=timeout,
        max_retries=0,
        http_client=_HttpClient(timeout=timeout, cookies=no_cookies, max_redirects=3),
    )
    try:
        yield client
    finally:
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await client.close()
