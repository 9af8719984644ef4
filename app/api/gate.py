"""The gate: who may speak to this service at all. Stands before the routes, so that none can be left open by mistake.

A page in somebody's browser can send requests to a service that only that person's machine can reach, and by way of a
name of its own even read the answers. So the `Host` must be one that the service answers to, the `Origin` one that is
listed, or the service's own, and there is a key to show even on loopback. Probes come with any Host and no key.
"""

import re
import time
from collections.abc import Callable
from urllib.parse import parse_qs

from cachetools import TTLCache
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.access import Access
from app.api.answers import JsonAnswer
from app.api.boundary import request_id_from
from app.api.keys import ApiKey, find_key
from app.api.problems import problem
from app.domain.principal import NOBODY, Principal
from app.domain.spec import HOP_HEADER

PROBES = frozenset({"/healthz", "/readyz"})
EVENTS_PATH = "/v1/runs/{run_id}/events"
_EVENTS = re.compile(EVENTS_PATH.format(run_id="[^/]+"))
_USER = re.compile(r"[!-~](?:[ -~]{0,254}[!-~])?")
_FAILURES, _FAILURE_SECONDS, _ADDRESSES = 10, 60.0, 10_000
"""So many wrong keys from one address are answered at once; the next ones are told to wait."""
_TAKEN_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "X-End-User",
    "X-Request-Id",
    "X-User-Token",
)
_GIVEN_HEADERS = ("X-Run-Id", "X-Request-Id", "Retry-After")


class Gate:
    """ASGI middleware, the outermost: Host, Origin, CORS."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._access = access
        self._app = app
        if access.origins:
            self._app = CORSMiddleware(
                app,
                allow_origins=access.origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=_TAKEN_HEADERS,
                expose_headers=_GIVEN_HEADERS,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = None if scope["path"] in PROBES else self._refusal(scope)
            if refusal is not None:
                refusal.headers["X-Request-Id"] = request_id_from(scope)
            await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JsonAnswer | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.is_own_host(hosts[0]):
            return problem(
                403,
                "forbidden",
                "This service does not answer to that Host; TOOLFERRY_ALLOWED_HOSTS lists the ones it does.",
            )
        origins = headers.getlist("origin")
        if origins and not self._access.is_welcome(origins[0], scheme=scope["scheme"], host=hosts[0]):
            return problem(
                403, "forbidden", "Pages of that Origin may not call this service; see TOOLFERRY_CORS_ORIGINS."
            )
        if HOP_HEADER in headers:
            return problem(508, "forbidden", "An MCP server's address leads to this service itself.")
        return None


class KeyCheck:
    """ASGI middleware: turns the key of a request into its `Principal`, in `request.state.principal`.

    It is None for who follows a run's events with the run's own read token, which the route judges.
    """

    def __init__(self, app: ASGIApp, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._access = access
        self._failures: TTLCache[str, int] = TTLCache(_ADDRESSES, _FAILURE_SECONDS, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        answer = self._judge(scope)
        await (answer or self._app)(scope, receive, send)

    def _judge(self, scope: Scope) -> JsonAnswer | None:
        """Note whose request it is, or say why it is nobody's."""
        headers, state = Headers(scope=scope), scope.setdefault("state", {})
        state["principal"] = None
        key: ApiKey | None = None
        if self._access.needs_key:
            if _has_read_token(scope, headers):
                return None
            key = self._key(headers)
            if key is None:
                return self._unauthorized(scope)
        return _note_principal(headers, state, key)

    def _key(self, headers: Headers) -> ApiKey | None:
        given = headers.getlist("authorization")
        if len(given) != 1:
            return None
        scheme, _, token = given[0].partition(" ")
        return find_key(self._access.keys, token.strip().encode()) if scheme.lower() == "bearer" else None

    def _unauthorized(self, scope: Scope) -> JsonAnswer:
        address = str((scope.get("client") or ("",))[0])
        failures = self._failures[address] = self._failures.get(address, 0) + 1
        if failures > _FAILURES:
            answer = problem(
                429, "unauthorized", "Too many requests without a valid key came from there; wait a minute."
            )
            answer.headers["Retry-After"] = str(int(_FAILURE_SECONDS))
            return answer
        answer = problem(401, "unauthorized", "A valid key is needed: Authorization: Bearer …")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _has_read_token(scope: Scope, headers: Headers) -> bool:
    """Tell whether there is a read token of a browser's `EventSource`, which can send no header."""
    # A proxy's own `Authorization` may be there.
    has_key = headers.get("authorization", "").lower().startswith("bearer ")
    is_reading = scope["method"] == "GET" and _EVENTS.fullmatch(scope["path"]) and not has_key
    tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", []) if is_reading else []
    return len(tokens) == 1


def _note_principal(headers: Headers, state: dict[str, object], key: ApiKey | None) -> JsonAnswer | None:
    users = headers.getlist("x-end-user")
    if not users:
        state["principal"] = Principal(key.id) if key else NOBODY
        return None
    if key is None or not key.is_trusted:
        return problem(403, "forbidden", "Only a trusted key may say who the end user is.", "X-End-User")
    if len(users) != 1 or not _USER.fullmatch(users[0]):
        return problem(
            400, "invalid_request", "X-End-User must be one name of 1 to 256 printable ASCII characters.", "X-End-User"
        )
    state["principal"] = Principal(key.id, users[0])
    return None
