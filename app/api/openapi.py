"""The OpenAPI document: what FastAPI knows of the routes, with bodies, events and errors put in."""

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from app import __version__
from app.api.gate import EVENTS_PATH, PROBES
from app.api.published import Health, ModelList, ProblemBody, RunSnapshot, ServerCheck, ServerList
from app.api.published_events import RunEvent
from app.api.schemas import ALIASES, CheckRequest, InputRequest, RunRequest, ServerEntry
from app.domain.jsontypes import JsonObject

_TAKEN: tuple[type[BaseModel], ...] = (RunRequest, ServerEntry, CheckRequest, InputRequest)
_GIVEN: tuple[type[BaseModel], ...] = (RunEvent, RunSnapshot, ModelList, ServerList, ServerCheck, Health, ProblemBody)


def _reference(name: str) -> JsonObject:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


RUN_BODY: JsonObject = {"requestBody": {"required": True, "content": {"application/json": _reference("RunRequest")}}}
INPUT_BODY: JsonObject = {
    "requestBody": {"required": True, "content": {"application/json": _reference("InputRequest")}}
}
_CHECKED: JsonObject = {"anyOf": [_reference("ServerEntry")["schema"], _reference("CheckRequest")["schema"]]}
CHECK_BODY: JsonObject = {"requestBody": {"required": True, "content": {"application/json": {"schema": _CHECKED}}}}
_RUN_ID: JsonObject = {"X-Run-Id": {"description": "The run.", "schema": {"type": "string"}}}
_REQUEST_ID: JsonObject = {"X-Request-Id": {"description": "The request, as logged.", "schema": {"type": "string"}}}


def answers(name: str, description: str) -> dict[int | str, JsonObject]:
    """Describe a route's answer by one of the published models."""
    return {200: {"description": description, "content": {"application/json": _reference(name)}}}


RUN_CONTENT: JsonObject = {
    "description": 'The events of the run; the snapshot where the request says `"stream": false`.',
    "headers": _RUN_ID,
    "content": {"text/event-stream": _reference("RunEvent"), "application/json": _reference("RunSnapshot")},
}
EVENT_CONTENT: JsonObject = {
    "description": "The events.",
    "headers": _RUN_ID,
    "content": {"text/event-stream": _reference("RunEvent")},
}
SNAPSHOT_CONTENT: JsonObject = {**answers("RunSnapshot", "The snapshot.")[200], "headers": _RUN_ID}
INPUT_TAKEN: JsonObject = {"description": "Taken; the run goes on.", "headers": _RUN_ID}
_FAILED: JsonObject = {"anyOf": [_reference("ProblemBody")["schema"], _reference("RunSnapshot")["schema"]]}
FAILED_RUN: JsonObject = {
    "description": 'An error; with `"stream": false` also the snapshot of a run that failed, with its error\'s status.',
    "content": {"application/json": {"schema": _FAILED}},
}


_SCHEMES: JsonObject = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of `TOOLFERRY_API_KEYS`; none with `TOOLFERRY_AUTH=none`.",
    },
    "readToken": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "The run's `readToken`, of its first event.",
    },
}
_END_USER: JsonObject = {
    "name": "X-End-User",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 256},
    "description": "Whose request it is, from keys marked as trusted. Runs of one end user do not exist for another.",
}


def install_openapi(app: FastAPI) -> None:
    """Have the OpenAPI document describe bodies, events, snapshot and errors."""

    def openapi() -> JsonObject:
        if not app.openapi_schema:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi


def _document(app: FastAPI) -> JsonObject:
    document = get_openapi(title=app.title, version=__version__, description=app.description, routes=app.routes)
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in _TAKEN]
    modes.extend((model, "serialization") for model in _GIVEN)
    _, definitions = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    schemas: dict[str, JsonObject] = definitions["$defs"]
    document.setdefault("components", {})["schemas"] = schemas
    taken = {model.__name__ for model in _TAKEN}
    for name, schema in schemas.items():
        if name not in taken:
            schema.pop("additionalProperties", None)  # fields may be added; readers ignore what they do not know
    properties = schemas["RunRequest"]["properties"]
    for name in ("servers", "server_names"):
        properties[ALIASES[name]] = {**properties[name], "description": f"The same as `{name}`, as Chat UI calls it."}
    document["components"]["securitySchemes"] = _SCHEMES
    problem = {"description": "An error.", "content": {"application/json": _reference("ProblemBody")}}
    for path, route in document["paths"].items():
        for operation in route.values():
            operation["security"] = [] if path in PROBES else [{"key": []}]
            if path == EVENTS_PATH:
                operation["security"].append({"readToken": []})
            if path not in PROBES:
                operation.setdefault("parameters", []).append(_END_USER)
            operation["responses"].pop("422", None)
            operation["responses"].setdefault("default", problem)
            for answer in operation["responses"].values():
                answer["headers"] = {**answer.get("headers", {}), **_REQUEST_ID}
    return document
