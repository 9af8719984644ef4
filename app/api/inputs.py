"""Answers to what a run asks a person: approvals of calls, questions of servers."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.api.body import parse_body, read_body
from app.api.doors import Caller, OpenDoors, RunId
from app.api.openapi import INPUT_BODY, INPUT_TAKEN
from app.api.schemas import InputRequest

router = APIRouter(default_response_class=Response)

_MOST_BYTES = 1024 * 1024
"""What a person types or changes; pictures have no place in it."""


@router.post(
    "/v1/runs/{run_id}/inputs/{input_id}", status_code=204, openapi_extra=INPUT_BODY, responses={204: INPUT_TAKEN}
)
async def answer_input(
    request: Request,
    run_id: RunId,
    input_id: Annotated[str, Path(description="The `inputId` of an open question.")],
    doors: OpenDoors,
    *,
    caller: Caller,
) -> Response:
    """Answer an open question. A second answer is a 409; one that does not fit a 422, and the question stays open."""
    log = doors.find_run(run_id, caller)
    limits = replace(doors.limits, body_bytes=min(doors.limits.body_bytes, _MOST_BYTES))
    body = await parse_body(InputRequest, await read_body(request, limits))
    log.answer(input_id, body.to_answer())
    return Response(status_code=204, headers={"X-Run-Id": run_id})
