"""The HTTP transport of one MCP connection. Knows HTTP and JSON-RPC's outer shape, no MCP, and not who may be dialled.

The SDK lets one failed POST end a whole connection, and drops the HTTP status, the challenge and the kind of failure.
So a POST never raises here: what happened is noted in the `Exchange` of the one request that is under way in this
context, and the SDK gets a JSON-RPC error that ends just that request. Bodies that are not MCP are dropped here, before
anyone can quote them. Redirects are followed here, within the origin, so that it is done for every message alike.

The SDK posts what is no request in its only writer, and over the SSE transport everything: a server that sits on one
message would hold up all others, and whoever wants to leave. So what needs no answer on its own POST is sent by a task
of its own, and the writer goes on at once.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import anyio.abc
import httpx2

from app.domain.jsontypes import Json
from app.toolbox.bodies import WatchedBody, read_capped
from app.toolbox.dialling import Door, NotDialled
from app.toolbox.echoes import without
from app.toolbox.faults import (
    ENCODED,
    TOO_LARGE,
    TRANSPORT_ERRORS,
    UNHEARD,
    UNREADABLE,
    Exchange,
    Fault,
    answer_in,
    error_in,
    fault_of_error,
    fault_of_foreign,
    fault_of_status,
    is_answer_to,
    is_encoded,
    is_undispatched,
    media_type,
    request_elsewhere,
    sent_message,
    under_way,
)
from app.toolbox.frames import Budget, Budgets, Frames, clean_json
from app.toolbox.grants import EgressProxy

_log = logging.getLogger(__name__)

_UNHEEDED_SECONDS = 5.0
"""How long a message may take whose answer says nothing."""
_INTRODUCTION_SECONDS = 1.0
"""For so long other messages wait until the server has acknowledged the end of the handshake."""
_REDIRECTS = 2
_UNASKED_BURST, _UNASKED_A_SECOND = 10_000, 200
"""Messages that a server may send on the connection's own stream: progress too, and also when no run uses it."""
_QUESTIONS_BURST, _QUESTIONS_A_SECOND = 200, 5
"""Requests of a server, and changes of its tools, that are heard."""
_REQUESTS_BURST, _REQUESTS_A_SECOND = 20, 1
"""Requests that no call asked for: streams that are opened, or taken up once more, and what the SDK asks by itself."""
_MOST_ANSWERS = 16
"""Answers to a server's own questions that are on their way at once. One that takes none gets no more."""
_SHORT_SECONDS = 10.0
_SHORT_STREAMS = 8
"""So often an event stream may end sooner than that; then it is done without. The SDK would open it without end, as
quickly as the server says."""
_FIRST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """What one connection may take, and the way it goes."""

    reply_bytes: int = 4_194_304
    """A JSON reply, a redirect's or an error's body."""
    stream_bytes: int = 16_777_216
    """The whole event stream that answers one request."""
    event_bytes: int = 1_048_576
    connect_seconds: float = 2.5
    """TCP, then TLS. Shorter than the probe of a server's era may take, so that it says what was in its way."""
    dns_seconds: float = 5.0
    """`TOOLFERRY_DNS_TIMEOUT_MS`."""
    dns_threads: int = 16
    """`TOOLFERRY_DNS_THREADS`: of all connections together."""
    proxy: EgressProxy | None = None
    """`TOOLFERRY_EGRESS_PROXY`: names are judged here all the same, but the proxy looks them up again."""
    ca_file: str | None = None
    """`TOOLFERRY_CA_FILE`: trust anchors beside the system's, for the operator's servers."""


class Wire(httpx2.AsyncBaseTransport):
    """Carries the messages of one connection. The module's docstring says what it does differently."""

    def __init__(
        self,
        limits: EgressLimits,
        chores: anyio.abc.TaskGroup,
        *,
        on_stream_end: Callable[[], None] | None = None,
    ) -> None:
        """Open nothing yet.

        `chores` runs what the SDK's writer must not wait for. `on_stream_end` is for the SSE transport, where answers
        come on one event stream beside the POSTs: it is called when that stream has ended.
        """
        self.door: Door | None = None
        """What is sent goes through it. Set by `Egress.client`; until then nothing is sent."""
        self.session_id: str | None = None
        self.credentials: tuple[bytes, ...] = ()
        """What goes to the server and is not to come back. Set by `Egress.client`."""
        self._session_gone = False
        self._budgets = Budgets(
            Budget(_UNASKED_BURST, _UNASKED_A_SECOND, anyio.current_time),
            Budget(_QUESTIONS_BURST, _QUESTIONS_A_SECOND, anyio.current_time),
        )
        self._requests = Budget(_REQUESTS_BURST, _REQUESTS_A_SECOND, anyio.current_time)
        self._short_streams = 0
        """How often the connection's own event stream ended soon after it was opened."""
        self._answering = 0
        """Answers of ours to the server's own questions that are on their way."""
        self._undelivered: set[anyio.Event] = set()
        self._introduced: anyio.Event | None = None
        self._introduced_by = 0.0
        self._limits = limits
        self._chores = chores
        self._on_stream_end = on_stream_end

    async def aclose(self) -> None:
        """Close all sockets."""
        if self.door is not None:
            await self.door.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a message; for a POST, failures come back as responses.

        Raises:
            httpx2.HTTPError: For a GET or DELETE.
        """
        if request.method == "GET":
            return await self._open_stream(request)
        if request.method == "DELETE":
            return await self._end_session(request)
        sent = sent_message(await request.aread())
        exchange = under_way.get()
        if exchange is None or not sent.is_request:
            delivered = anyio.Event()
            self._undelivered.add(delivered)
            if sent.method == "notifications/initialized":
                self._introduced, self._introduced_by = delivered, anyio.current_time() + _INTRODUCTION_SECONDS
            if not sent.method:
                if self._answering >= _MOST_ANSWERS:
                    self._undelivered.discard(delivered)
                    return httpx2.Response(202)
                self._answering += 1
            self._chores.start_soon(self._post_unheeded, request, delivered, not sent.method)
            return httpx2.Response(202)
        if self._on_stream_end is None:
            return await self._post(request, exchange, sent.id)
        self._chores.start_soon(self._post, request, exchange, sent.id)
        return httpx2.Response(202)

    async def _open_stream(self, request: httpx2.Request) -> httpx2.Response:
        """Open an event stream: that of the connection, or the rest of an answer that broke off."""
        exchange = under_way.get() or Exchange(0)
        if not await self._may_open(request, exchange):
            return httpx2.Response(405)
        opened_at = anyio.current_time()
        fault: Fault | None = None
        try:
            response = await self._send(request)
            if response.is_error:
                fault = fault_of_status(response, had_session=False)
            elif is_encoded(response):
                fault = ENCODED
            if fault is not None:
                await response.aclose()
                response = httpx2.Response(max(fault.status or 0, 400))
        except httpx2.HTTPError as error:
            fault = self._fault_of_error(error)
            raise
        finally:
            if self._on_stream_end is not None:
                exchange.fault = fault
        exchange.status = response.status_code
        if fault is None:
            exchange.broke_off = False

            def ended() -> None:
                _break_off(exchange)
                if not exchange.is_asked and anyio.current_time() - opened_at < _SHORT_SECONDS:
                    self._short_streams += 1

            request_id = exchange.request_id if exchange.is_asked else None
            frames = self._frames(exchange, request_id)
            response.stream = WatchedBody(response, None, self._on_stream_end or ended, frames=frames)
        return response

    def _frames(self, exchange: Exchange, request_id: Json) -> Frames:
        return Frames(
            self._limits.event_bytes,
            self._budgets,
            request_id=request_id,
            is_asked=exchange.is_asked,
            has_endpoint=self._on_stream_end is not None,
            credentials=self.credentials,
        )

    async def _may_open(self, request: httpx2.Request, exchange: Exchange) -> bool:
        """Tell whether to open an event stream; the connection's own, where it keeps ending, ever more slowly."""
        await self._turn()
        if exchange.is_asked:
            return exchange.may_be_taken_up(request.headers.get("last-event-id", ""))
        if self._short_streams:
            await anyio.sleep(_FIRST_PAUSE_SECONDS * 2**self._short_streams)
        return self._short_streams <= _SHORT_STREAMS

    async def _turn(self) -> None:
        """Wait until one more request may be sent that no call asked for."""
        while not self._requests.takes(1):  # noqa: ASYNC110  # what it waits for is time
            await anyio.sleep(1 / _REQUESTS_A_SECOND)

    async def _end_session(self, request: httpx2.Request) -> httpx2.Response:
        if self._session_gone:
            return httpx2.Response(204)
        response = await self._send(request)
        await response.aclose()
        return httpx2.Response(response.status_code)

    async def delivered(self) -> None:
        """Wait until what was posted so far is through."""
        for delivered in list(self._undelivered):
            await delivered.wait()

    async def _post_unheeded(self, request: httpx2.Request, delivered: anyio.Event, is_answer: bool) -> None:  # noqa: FBT001
        """Post a notification or an answer of ours. Whatever the server says to it is not looked at."""
        if delivered is not self._introduced:
            await self._wait_for_introduction()
        with anyio.move_on_after(_UNHEEDED_SECONDS):
            try:
                response = await self._send(request)
                await response.aclose()
            except TRANSPORT_ERRORS:
                pass
        self._answering -= is_answer
        self._undelivered.discard(delivered)
        delivered.set()

    async def _wait_for_introduction(self) -> None:
        """Keep the order of the handshake's end and what follows it, but not at any price."""
        if self._introduced is not None:
            with anyio.move_on_at(self._introduced_by):
                await self._introduced.wait()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and follow what redirects within the origin."""
        if self.door is None:
            raise NotDialled("unreachable", "There is no way out.")
        for _ in range(_REDIRECTS):
            response = await self.door.handle_async_request(request)
            following = request_elsewhere(request, response)
            if following is None or not self.door.leads_to(following.url):
                return response
            await response.aclose()
            request = following
        return await self.door.handle_async_request(request)

    def _fault_of_error(self, error: Exception) -> Fault:
        """Say what a transport error means. Who brought a server is not told what is there instead, if anything."""
        fault = fault_of_error(error)
        if isinstance(error, NotDialled):
            fault = Fault("unreachable", error.refused.reason)
        elif isinstance(error, httpx2.ProxyError):
            fault = _NO_PROXY
        is_users = self.door is None or self.door.is_users
        return UNREACHABLE if is_users and fault.kind == "unreachable" else fault

    async def _post(self, request: httpx2.Request, exchange: Exchange, request_id: Json) -> httpx2.Response:
        timeouts: Mapping[str, float | None] = request.extensions["timeout"]
        request.extensions = {**request.extensions, "timeout": {**timeouts, "read": exchange.read_seconds}}
        await self._wait_for_introduction()
        if not exchange.is_asked:
            await self._turn()
        exchange.attempted, exchange.fault, exchange.status = True, None, None
        exchange.is_undispatched = exchange.is_said = False
        exchange.request_id = request_id
        with anyio.CancelScope(deadline=exchange.ends_at) as exchange.wait:
            try:
                return await self._exchange(request, exchange, request_id)
            except Exception:  # noqa: BLE001 - one answer must not end the connection of all; logged with its traceback
                _log.exception("An answer was judged wrongly for a reason that nobody thought of.")
                return self._failed(exchange, UNREADABLE)
        # Nobody waits for it any more, and the server does not say even so much.
        return self._failed(exchange, UNHEARD)

    async def _exchange(self, request: httpx2.Request, exchange: Exchange, request_id: Json) -> httpx2.Response:
        try:
            response = await self._send(request)
            exchange.status = response.status_code
            self.session_id = response.headers.get("mcp-session-id") or self.session_id
            if is_encoded(response):
                await response.aclose()
                return self._failed(exchange, ENCODED)
            if response.has_redirect_location and self._on_stream_end is None:
                return await self._redirect(response)
            if response.is_success and media_type(response) == "text/event-stream" and self._on_stream_end is None:
                frames = self._frames(exchange, request_id)
                response.stream = WatchedBody(
                    response,
                    self._limits.stream_bytes,
                    lambda: _break_off(exchange),
                    frames=frames,
                    exchange=exchange,
                )
                return response
            body = await read_capped(response, self._limits.reply_bytes)
        except TRANSPORT_ERRORS as error:
            return self._failed(exchange, self._fault_of_error(error))
        if body is None:
            return self._failed(exchange, TOO_LARGE)
        return self._judged(
            request, exchange, response, body=without(clean_json(body), self.credentials), request_id=request_id
        )

    def _judged(
        self, request: httpx2.Request, exchange: Exchange, response: httpx2.Response, *, body: bytes, request_id: Json
    ) -> httpx2.Response:
        """Pass on what is MCP; anything else becomes a fault."""
        answer = answer_in(body)
        error = error_in(answer)
        if not response.is_success:
            exchange.is_undispatched = is_undispatched(response.status_code, body, answer, request_id)
            is_session_named = "mcp-session-id" in request.headers or self._on_stream_end is not None
            fault = fault_of_status(response, had_session=is_session_named)
            if error is None or fault.kind in ("auth", "gone") or self._on_stream_end is not None:
                return self._failed(exchange, fault)
        elif response.status_code == 202 or self._on_stream_end is not None:
            return httpx2.Response(202)
        else:
            is_ours = answer is not None and is_answer_to(answer, str(request_id))
            if not is_ours or media_type(response) not in ("application/json", ""):
                return self._failed(exchange, fault_of_foreign(response))
        if error is None:
            return _json_response(response.status_code, body, response.headers)
        exchange.is_said = True
        # As an HTTP error, to which the SDK gives the id of the request.
        return _json_response(max(response.status_code, 400), error)

    async def _redirect(self, response: httpx2.Response) -> httpx2.Response:
        """Hand a redirect to the SDK without its body, which the SDK would read to the end, whatever its size."""
        await response.aclose()
        return httpx2.Response(response.status_code, headers={"location": response.headers["location"]})

    def _failed(self, exchange: Exchange, fault: Fault) -> httpx2.Response:
        exchange.fault = fault
        self._session_gone = self._session_gone or fault.kind == "gone"
        if self._on_stream_end is None:
            return _json_response(max(fault.status or 0, 400), _SYNTHETIC)
        if exchange.on_fault is not None:
            exchange.on_fault()
        return httpx2.Response(202)


UNREACHABLE = Fault("unreachable", "The server cannot be reached.")
_NO_PROXY = Fault("unreachable", "The proxy makes no connection to the server.")
_SYNTHETIC = json.dumps(
    {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "No MCP answer."}}, separators=(",", ":")
).encode()
"""Ends the request in the SDK. What really happened is in the exchange."""


def _break_off(exchange: Exchange) -> None:
    exchange.broke_off = True


def _json_response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> httpx2.Response:
    session = (headers or {}).get("mcp-session-id")
    own = {"content-type": "application/json", **({} if session is None else {"mcp-session-id": session})}
    return httpx2.Response(status, headers=own, stream=httpx2.ByteStream(body))
