"""MCP servers over HTTP: those of the environment, and a try of any one."""

from fastapi import APIRouter, Request, Response

from app.api.answers import JsonAnswer
from app.api.body import parse_body, read_body
from app.api.doors import Caller, OpenDoors
from app.api.openapi import CHECK_BODY, answers
from app.api.schemas import CheckRequest, ServerEntry, check_headers

router = APIRouter(tags=["servers"], default_response_class=Response)


@router.get("/v1/servers", responses=answers("ServerList", "The servers."))
async def list_servers(doors: OpenDoors, caller: Caller) -> Response:
    """List the environment's servers: name, state, number of tools. Never paths, never headers."""
    return JsonAnswer({"object": "list", "data": list(await doors.servers.environment(caller))})


@router.post("/v1/servers/check", openapi_extra=CHECK_BODY, responses=answers("ServerCheck", "What came of it."))
async def check_server(request: Request, doors: OpenDoors, caller: Caller) -> Response:
    """Try one server: an entry as in `servers`, or `{"name"}` of one of the environment."""
    body = await read_body(request, doors.limits)
    if set(body.json) == {"name"}:
        return JsonAnswer(await doors.servers.check((await parse_body(CheckRequest, body)).name, caller))
    entry = await parse_body(ServerEntry, body)
    check_headers(entry, doors.limits, path="headers")
    return JsonAnswer(await doors.servers.check(entry.to_spec(), caller))
