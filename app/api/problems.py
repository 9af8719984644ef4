"""Errors before the first byte: error class → status and body, in OpenAI's form, in one table."""

import re
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.api.answers import JsonAnswer
from app.domain import errors
from app.domain.jsontypes import JsonObject

STATUSES: dict[type[errors.FerryError], int] = {
    errors.FerryError: 500,
    errors.InvalidRequest: 422,
    errors.MalformedRequest: 400,
    errors.ModelRequired: 400,
    errors.ModelNotFound: 404,
    errors.NotFound: 404,
    errors.Gone: 410,
    errors.Conflict: 409,
    errors.BodyTooLarge: 413,
    errors.BodyTooSlow: 408,
    errors.WrongMediaType: 415,
    errors.Unauthorized: 401,
    errors.TooManyRuns: 429,
    errors.ShuttingDown: 503,
    errors.UpstreamUnreachable: 502,
    errors.UpstreamAuth: 502,
    errors.UpstreamRateLimited: 429,
    errors.UpstreamRefused: 400,
    errors.UpstreamFailed: 502,
    errors.UpstreamIncomplete: 502,
    errors.ContextLengthExceeded: 400,
    errors.DeadlineExceeded: 504,
}
"""What each error is over HTTP."""

_STATUS_BY_CODE = {cls.code: status for cls, status in reversed(STATUSES.items())}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_RUN_ID = re.compile(r"run_[0-9a-f]{32}")
_RETRY_AFTER_SECONDS = {429: "1", 503: "5"}


def status_from_code(code: str) -> int:
    """Tell the HTTP status of a run that failed with a code."""
    return _STATUS_BY_CODE.get(code, 500)


def problem(status: int, code: str, message: str, param: str | None = None) -> JsonAnswer:
    """Answer with an error: `{"error": {"code", "message", "param", "type"}}`."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body: JsonObject = {"error": {"code": code, "message": message, "param": param, "type": kind}}
    return JsonAnswer(body, status, headers=wait_headers(status))


def wait_headers(status: int) -> dict[str, str]:
    """Say when to try again, for the statuses that mean later."""
    wait = _RETRY_AFTER_SECONDS.get(status)
    return {"Retry-After": wait} if wait else {}


def install_problems(app: FastAPI) -> None:
    """Have every known error leave in the one form, whoever raises it; `boundary` sees to the others."""
    app.add_exception_handler(errors.FerryError, _on_ferry_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_parameters)


async def _on_ferry_error(request: Request, error: Exception) -> JsonAnswer:
    known = cast("errors.FerryError", error)
    param = known.param if isinstance(known, errors.RequestError) else None
    answer = problem(STATUSES[type(known)], known.code, str(known), param)
    run_id = str(request.path_params.get("run_id", ""))
    if _RUN_ID.fullmatch(run_id):
        answer.headers["X-Run-Id"] = run_id
    return answer


async def _on_http_exception(request: Request, error: Exception) -> JsonAnswer:
    """Routes that do not exist, methods that a route does not have."""
    status = cast("HTTPException", error).status_code
    if status == 404:
        return problem(404, "not_found", "There is no such route; /openapi.json lists them.")
    response = problem(status, "invalid_request", f"{request.method} is not possible here.")
    response.headers.update(cast("HTTPException", error).headers or {})
    return response


async def _on_parameters(_request: Request, error: Exception) -> JsonAnswer:
    first = cast("RequestValidationError", error).errors()[0]
    param = str(first["loc"][-1])
    return problem(400, "invalid_request", f"{param}: {first['msg']}", param)
