"""Runs over HTTP: start one, look at it, follow its events, stop it."""

import hashlib
import uuid
from dataclasses import replace
from typing import Annotated

import anyio
from fastapi import APIRouter, Header, Query, Request, Response

from app.api import inputs
from app.api.answers import JsonAnswer
from app.api.body import parse_body, read_body
from app.api.doors import Caller, Doors, OpenDoors, RunId
from app.api.openapi import EVENT_CONTENT, FAILED_RUN, RUN_BODY, RUN_CONTENT, SNAPSHOT_CONTENT
from app.api.problems import status_from_code, wait_headers
from app.api.schemas import RunRequest, check_servers
from app.api.sse import RunStream
from app.domain.errors import MalformedRequest
from app.domain.jsontypes import JsonObject
from app.domain.secrets import Secret
from app.domain.spec import RunSpec
from app.journal.memory import RunLog

router = APIRouter(tags=["runs"], default_response_class=Response)
router.include_router(inputs.router)


@router.post("/v1/runs", openapi_extra=RUN_BODY, responses={200: RUN_CONTENT, "default": FAILED_RUN})
async def start_run(
    request: Request,
    doors: OpenDoors,
    caller: Caller,
    *,
    idempotency_key: Annotated[str | None, Header(max_length=256)] = None,
    x_user_token: Annotated[str | None, Header(description="The caller's own token; see the README.")] = None,
) -> Response:
    """Start a run; answers an event stream, or when `"stream": false` the snapshot: at its end, or once it asks."""
    if idempotency_key is None:
        doors.admit_run(caller)
    body = await read_body(request, doors.limits)
    asked = await parse_body(RunRequest, body)
    check_servers(asked.servers, doors.limits)
    spec = replace(
        asked.to_spec(body.json, user_token=_token(x_user_token)),
        principal=caller,
        request_id=request.state.request_id,
    )
    # The token too: nobody joins a run that another's token paid for.
    fingerprint = hashlib.sha256((x_user_token or "").encode() + b"\0" + body.raw).digest()
    log, is_new = await _log_for(spec, doors, key=idempotency_key or None, fingerprint=fingerprint)
    owns_run = is_new and not spec.resumable
    if asked.stream:
        return RunStream(log, after=0, heartbeat_seconds=doors.heartbeat_seconds, owns_run=owns_run)
    return await _whole_run(request, log, owns_run=owns_run)


@router.get("/v1/runs/{run_id}", responses={200: SNAPSHOT_CONTENT})
async def show_run(run_id: RunId, doors: OpenDoors, caller: Caller) -> Response:
    """Show a run as it is now."""
    log = doors.find_run(run_id, caller)
    return JsonAnswer(log.snapshot(), headers={"X-Run-Id": run_id})


@router.get("/v1/runs/{run_id}/events", responses={200: EVENT_CONTENT, 204: {"description": "Ended; nothing follows."}})
async def follow_run(
    request: Request,
    run_id: RunId,
    doors: OpenDoors,
    *,
    last_event_id: Annotated[str | None, Header(description="Wins over `after`.")] = None,
    after: Annotated[str | None, Query(description="Replay the events after this id.")] = None,
    token: Annotated[str | None, Query(description="The run's `readToken`, for who can send no key.")] = None,
) -> Response:
    """Replay a run's events after a cursor, then follow it live. Leaving does not cancel it."""
    log = doors.find_run_to_read(run_id, request.state.principal, token)
    param = "Last-Event-ID" if last_event_id else "after"
    cursor = _cursor(last_event_id or after, param=param)
    log.check_cursor(cursor, param=param)
    if log.ended_at is not None and cursor == log.last_id:
        return Response(status_code=204, headers={"X-Run-Id": run_id})
    return RunStream(log, after=cursor, heartbeat_seconds=doors.heartbeat_seconds, owns_run=False)


@router.post("/v1/runs/{run_id}/cancel", responses={200: SNAPSHOT_CONTENT})
async def cancel_run(run_id: RunId, doors: OpenDoors, caller: Caller) -> Response:
    """Stop a run: its model stream, its tools and its waits. Answers the snapshot; stopping twice is no error."""
    log = doors.find_run(run_id, caller)
    log.cancel()
    with anyio.move_on_after(_CANCEL_SECONDS):
        await log.ended()
    return JsonAnswer(log.snapshot(), headers={"X-Run-Id": run_id})


_CANCEL_SECONDS = 5.0
_LONGEST_CURSOR = 15


async def _log_for(spec: RunSpec, doors: Doors, *, key: str | None, fingerprint: bytes) -> tuple[RunLog, bool]:
    """Join the run that was started under the key, or start one. Tells whether it is new."""
    if key is not None and (log := doors.journal.find_by_key(spec.principal, key, fingerprint)) is not None:
        return log, False
    doors.admit_run(spec.principal)
    wants_tools = spec.tool_choice != "none" and doors.servers.are_selected(spec)
    facts = await doors.catalogue.choose(spec, wants_tools=wants_tools)
    # Once more, and from here on without awaiting: another request may have come first meanwhile.
    if key is not None and (log := doors.journal.find_by_key(spec.principal, key, fingerprint)) is not None:
        return log, False
    doors.admit_run(spec.principal)
    log = doors.journal.open(f"run_{uuid.uuid4().hex}", owner=spec.principal, key=key, fingerprint=fingerprint)
    doors.ferry.depart(spec, facts, log)
    return log, True


async def _whole_run(request: Request, log: RunLog, *, owns_run: bool) -> Response:
    """Wait until the run has ended or asks a person; a caller that leaves before cancels what it owns."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        if owns_run:
            log.abandon()

    snapshot: JsonObject = {}
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await log.at_rest()
            snapshot = log.snapshot()  # at once: in the next moment the question may have been taken back
            # Whoever hears that the run waits for a person is to find it there: it is no connection's any more.
            log.let_go()
            group.cancel_scope.cancel()
    finally:
        if owns_run:
            log.abandon()
    error = snapshot.get("error")
    status = status_from_code(error["code"]) if error else 200
    return JsonAnswer(snapshot, status, headers={"X-Run-Id": log.run_id, **wait_headers(status)})


def _token(text: str | None) -> Secret | None:
    if not text:
        return None
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise MalformedRequest("X-User-Token must be printable ASCII without blanks.", param="X-User-Token")
    return Secret(text)


def _cursor(text: str | None, *, param: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_CURSOR):
        raise MalformedRequest(f"{param}: must be the id of an event, a whole number.", param=param)
    return int(text)
