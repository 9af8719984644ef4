"""The outermost layer: every answer has an `X-Request-Id`, and no unknown error gets past here.

Touches nothing else of a response, so streams pass through unbuffered.
"""

import logging
import re
import uuid

from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem
from app.domain.errors import FerryError

_log = logging.getLogger(__name__)

_SANE = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def request_id_from(scope: Scope) -> str:
    """Take the caller's own `X-Request-Id` where it is sane, else make one."""
    given: bytes = dict(scope["headers"]).get(b"x-request-id", b"")
    return given.decode() if _SANE.fullmatch(given) else uuid.uuid4().hex


class Boundary:
    """ASGI middleware. The caller's own `X-Request-Id` is kept where it is sane."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_from(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            _log.debug("request %s: the client left before it had sent everything", request_id)
        except SendTimeoutError:
            # Returning now has the server cut the connection, which is what is wanted.
            _log.info("request %s: the reader took too long to accept what was sent", request_id)
        except Exception:
            _log.exception("request %s broke", request_id)
            if has_started:
                raise  # the server cuts the connection: nothing else tells the caller that the answer is not whole
            answer = problem(500, FerryError.code, "The request failed because of a fault in this service.")
            await answer(scope, receive, send_with_id)
