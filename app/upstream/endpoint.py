"""The endpoint over HTTP: open a stream, retry before the first byte only, read, close. Knows not what bodies say.

- A request is sent again only when nothing of its answer came: a lost connection, 408, 409, 425, 429 or 5xx. A kept
  connection that the server has closed shows as a time-out at once, so that counts as lost too.
- What the endpoint asks to wait is waited, up to a cap; more than that is an error at once.
- After the model has stopped, the end of the stream is awaited for a moment only.
- Leaving the context closes the HTTP stream at once, however it is left: the server sees its client go.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.lowlevel
import httpx2
from openai import APIError, APIStatusError, AsyncOpenAI, Omit, omit

from app.domain.errors import (
    DeadlineExceeded,
    RunError,
    UpstreamFailed,
    UpstreamIncomplete,
    UpstreamRefused,
    UpstreamUnreachable,
)
from app.domain.events import Retrying
from app.domain.jsontypes import Json, JsonObject
from app.domain.messages import Delta
from app.domain.ports import Tell
from app.domain.secrets import Secret
from app.upstream.chunks import ChunkDecoder
from app.upstream.client import open_client
from app.upstream.faults import Complaint, Scrub, complaint_from_body, failure_from_status
from app.upstream.waits import asked_wait

_USAGE_SECONDS = 2.0  # how long token counts may come after the finish reason
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Of one answer, some 200,000 tokens as most endpoints write them: a model that is caught in a loop ends here."""
_MOST_SKIPPED = 10_000
_SLICE_BYTES = 4096
"""So much of what came at once is decoded before others get their turn."""
_END_SECONDS = 0.25  # how long the end may come after `[DONE]`; without it the connection cannot be used again
_CLOSE_SECONDS = 1.0
_NO_LIST = frozenset({404, 405})
_RETRIED = frozenset({408, 409, 425, 429})
_REFUSALS = frozenset({400, 404, 422})
"""404 is what some routers say of a request that no model of theirs takes."""
_PROVIDER_HEADER = "x-inference-provider"
_TROUBLE = (APIError, httpx2.RequestError, aiohttp.ClientError)


@dataclass(frozen=True, slots=True)
class Options:
    """How the endpoint is reached."""

    base_url: str = "https://api.openai.com/v1"
    api_key: Secret | None = None
    use_user_token: bool = False
    """The caller's own token, where there is one, goes to the model instead of `api_key`."""
    retries: int = 2
    backoff_seconds: float = 0.5
    """The wait before the first retry; it doubles."""
    retry_after_cap_seconds: float = 20.0
    connect_seconds: float = 10.0
    idle_seconds: float = 300.0
    """Silence allowed before the first byte and between bytes."""
    list_seconds: float = 5.0
    """How long the list of models may take."""


@asynccontextmanager
async def open_endpoint(options: Options) -> AsyncGenerator["Endpoint"]:
    """Open the endpoint's connections for the life of the process; leaving closes them.

    Raises:
        httpx2.InvalidURL: `base_url` is none.
    """
    async with open_client(
        options.base_url, connect_seconds=options.connect_seconds, idle_seconds=options.idle_seconds
    ) as client:
        yield Endpoint(client, options)


class Refusal(Exception):
    """The endpoint will not take a request as it is; perhaps it will take another."""

    def __init__(self, error: RunError, complaint: Complaint) -> None:
        super().__init__(str(error))
        self.error = error
        self.complaint = complaint


class Endpoint:
    """The one model endpoint of the process. Made by `open_endpoint`."""

    def __init__(self, client: AsyncOpenAI, options: Options) -> None:
        self._client = client
        self._options = options

    @property
    def base_url(self) -> str:
        """Where it is."""
        return self._options.base_url

    async def list_models(self) -> Json:
        """Ask for `GET models` and return the JSON as it is.

        An endpoint that has no such list is one that lists nothing.

        Raises:
            RunError: It did not come in time, or is no JSON.
        """
        token = self._token(None)
        try:
            with anyio.fail_after(self._options.list_seconds):
                response = await self._client.get(
                    "/models", cast_to=httpx2.Response, options={"headers": _headers(token)}
                )
            return response.json()
        except TimeoutError:
            raise UpstreamUnreachable("The model endpoint did not list its models in time.") from None
        except (ValueError, RecursionError):
            raise UpstreamFailed("The model endpoint's list of models is no JSON.") from None
        except _TROUBLE as trouble:
            if isinstance(trouble, APIStatusError) and trouble.status_code in _NO_LIST:
                return {"data": []}
            raise _verdict(trouble, self._scrub(token)).error from None

    async def open_stream(
        self, body: JsonObject, user_token: Secret | None, tell: Tell, *, is_last_hope: bool = True
    ) -> "Stream":
        """Send a request until it is answered or may not be sent again; the caller closes the stream.

        Where there is someone else to ask, only a lost connection is tried again: nobody waits for a busy model then.

        Raises:
            Refusal: The endpoint will not take it as it is.
            RunError: It cannot be asked, or failed.
            ValueError: The body cannot be encoded; nothing was sent.
        """
        options, token = self._options, self._token(user_token)
        scrub = self._scrub(token)
        attempt = 0
        while True:
            try:
                return await self._send(body, token, scrub)
            except _TROUBLE as trouble:
                verdict = _verdict(trouble, scrub)
            if verdict.complaint is not None:
                raise Refusal(verdict.error, verdict.complaint)
            is_worth_it = is_last_hope or isinstance(verdict.error, UpstreamUnreachable)
            if not (verdict.may_retry and is_worth_it) or attempt >= options.retries:
                raise verdict.error
            delay = options.backoff_seconds * 2**attempt if verdict.wait_seconds is None else verdict.wait_seconds
            if delay > options.retry_after_cap_seconds:
                said = str(verdict.error).rstrip(".")
                raise type(verdict.error)(f"{said}. It asks to wait for {delay:.0f} seconds.")
            tell(Retrying(str(verdict.error), delay))
            await anyio.sleep(delay)
            attempt += 1

    async def _send(self, body: JsonObject, token: str | None, scrub: Scrub) -> "Stream":
        """Send once and wait for the first bytes."""
        stack = AsyncExitStack()
        try:
            request = self._client.chat.completions.with_streaming_response.create(
                model=body["model"], messages=[], stream=True, extra_body=body, extra_headers=_headers(token)
            )
            answer = (await stack.enter_async_context(request)).http_response
            _require_stream(answer.headers, scrub)
            is_plain = answer.headers.get("content-encoding", "").strip().lower() in ("", "identity")
            pieces = answer.aiter_raw() if is_plain else answer.aiter_bytes()
            stack.push_async_callback(pieces.aclose)
            provider = scrub(answer.headers.get(_PROVIDER_HEADER, ""))
            return Stream(stack, pieces, await _first(pieces), ChunkDecoder(scrub), provider or None)
        except BaseException:
            await _close(stack)
            raise

    def _token(self, user_token: Secret | None) -> str | None:
        secret = user_token if self._options.use_user_token and user_token else self._options.api_key
        return secret.reveal() if secret else None

    def _scrub(self, token: str | None) -> Scrub:
        return Scrub((token,) if token else (), urlsplit(self._options.base_url).hostname or "")


class Stream(NamedTuple):
    """An answer whose first bytes have come."""

    stack: AsyncExitStack
    pieces: AsyncGenerator[bytes]
    first: bytes | None
    decoder: ChunkDecoder
    provider: str | None
    """Who answers, where a router tells."""

    async def close(self, *readers: AsyncIterator[Sequence[Delta]]) -> None:
        """Close the readers, in this order, and then the connection."""
        await _close(self.stack, *readers)

    async def batches(self) -> AsyncGenerator[Sequence[Delta]]:
        """Read to the end, one batch of deltas per read, or several where much came at once.

        Raises:
            RunError: The stream brought an error, broke off, or stayed silent.
        """
        decoder, data, lost = self.decoder, self.first, None
        ends_at, taken = float("inf"), 0
        while data is not None:
            for begin in range(0, len(data), _SLICE_BYTES):
                if begin:
                    await anyio.lowlevel.checkpoint()
                deltas = decoder.feed(data[begin : begin + _SLICE_BYTES])
                if deltas:
                    yield deltas
            taken += len(data)
            if (fault := self._fault(taken)) is not None:
                raise fault
            if decoder.is_finished:
                ends_at = min(ends_at, anyio.current_time() + (_END_SECONDS if decoder.is_over else _USAGE_SECONDS))
            try:
                data = await self._read(ends_at)
            except _TROUBLE as trouble:
                data, lost = None, _loss(trouble)
        deltas = decoder.finish()
        if deltas:
            yield deltas
        if decoder.fault is not None:
            raise lost or decoder.fault

    def _fault(self, taken: int) -> RunError | None:
        """Say why what follows the first `taken` bytes is not read."""
        if self.decoder.fault is not None:
            return self.decoder.fault
        if self.decoder.skipped > _MOST_SKIPPED:
            return UpstreamFailed("The model endpoint goes on sending what cannot be read as an answer.")
        if taken > MAX_STREAM_BYTES:
            return UpstreamFailed(f"The model's answer is longer than {MAX_STREAM_BYTES} bytes.")
        return None

    async def _read(self, ends_at: float) -> bytes | None:
        if ends_at == float("inf"):
            return await anext(self.pieces, None)
        with anyio.CancelScope(deadline=ends_at):
            return await anext(self.pieces, None)
        return None


class _Verdict(NamedTuple):
    """What trouble before the first byte comes to."""

    error: RunError
    may_retry: bool
    wait_seconds: float | None = None
    """What the endpoint asks for."""
    complaint: Complaint | None = None
    """What it says against a request that it refused."""


def _verdict(trouble: Exception, scrub: Scrub) -> _Verdict:
    if isinstance(trouble, APIStatusError):
        answer, status = trouble.response, trouble.status_code
        media_type = answer.headers.get("content-type", "").lower()
        error = failure_from_status(status, answer.content, media_type, scrub)
        if status in _REFUSALS and isinstance(error, UpstreamRefused):
            return _Verdict(error, may_retry=False, complaint=complaint_from_body(answer.content, media_type))
        may_retry = status in _RETRIED or status >= 500
        return _Verdict(error, may_retry, asked_wait(answer.headers, answer.content, time.time()))
    if _is_silence(trouble):
        return _Verdict(DeadlineExceeded("The model endpoint did not begin to answer in time."), may_retry=False)
    if isinstance(trouble.__cause__, httpx2.TooManyRedirects):
        return _Verdict(UpstreamFailed("The model endpoint redirects without end."), may_retry=False)
    said = "The model endpoint cannot be reached, or broke off before it answered."
    return _Verdict(UpstreamUnreachable(said), may_retry=True)


async def _first(pieces: AsyncGenerator[bytes]) -> bytes | None:
    """Wait for the first bytes. Silence after the head of an answer is no reason to ask again, a lost connection is."""
    try:
        return await anext(pieces, None)
    except _TROUBLE as trouble:
        if _is_silence(trouble):
            raise _loss(trouble) from None
        raise


def _loss(trouble: Exception) -> RunError:
    if _is_silence(trouble):
        return DeadlineExceeded("The model fell silent in the middle of its answer.")
    return UpstreamIncomplete("The connection to the model endpoint was lost in the middle of its answer.")


def _is_silence(trouble: Exception) -> bool:
    """Tell a silence from a time-out while connecting and from a closed connection, which looks like one."""
    return isinstance(trouble, httpx2.ReadTimeout) or isinstance(trouble.__cause__, httpx2.ReadTimeout)


def _require_stream(headers: Mapping[str, str], scrub: Scrub) -> None:
    """Refuse what is surely no answer of a model; a missing or vague type is left to the decoder."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_vague = media_type in ("", "text/plain", "application/octet-stream")
    if not (is_vague or media_type.endswith("event-stream") or "json" in media_type):
        raise UpstreamFailed(f"The model endpoint answered with {scrub(media_type)} instead of an event stream.")


def _headers(token: str | None) -> dict[str, str | Omit]:
    return {
        "Authorization": f"Bearer {token}" if token else omit,
        "x-stainless-retry-count": omit,
        "x-stainless-read-timeout": omit,
    }


async def _close(stack: AsyncExitStack, *readers: AsyncIterator[Sequence[Delta]]) -> None:
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        for reader in readers:
            if isinstance(reader, AsyncGenerator):
                await reader.aclose()
        await stack.aclose()
