"""The OpenAPI document is true: whatever is sent by it, or against it, no answer is a fault, and each is described."""

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

import hypothesis
import pytest
import schemathesis
import schemathesis.checks
from anyio.from_thread import start_blocking_portal

from app.api.published_events import RunEvent
from app.domain.jsontypes import is_object
from app.main import create_app
from app.settings import Settings
from tests.fakes.raw_mcp import open_raw_mcp
from tests.fakes.service import USER, open_service, operator_server
from tests.fakes.upstream import Answer, Request, call, end, open_upstream, stream, text

pytestmark = pytest.mark.soak

KEY = "tf_key-of-a-caller"
SCHEMA: Any = schemathesis.openapi.from_dict(create_app(Settings.for_demo(auth="none")).openapi())
Case: TypeAlias = Any
"""A `schemathesis.Case`, whose types are not all told."""


CHECKS: Any = vars(schemathesis.checks)["CHECKS"]


def _check(name: str) -> Any:
    return CHECKS.get_one(name)


LEFT_OUT: list[Any] = [
    _check("positive_data_acceptance"),  # the document does not say all that a message, a name or a URL must be
    _check("ignored_auth"),  # these two count on a 401, and so many wrong keys are told to wait
    _check("missing_required_header"),
]
EVENTS = _check("response_schema_conformance")
"""It takes the document's event for the frame, of which it is the `data`: that is looked at here."""


@dataclass
class Target:
    """The service, a run that has ended, and one that asks a person."""

    url: str
    run_id: str
    asking_id: str
    input_id: str


def _script(request: Request) -> Answer:
    if "Please echo" in request.body.decode():
        return stream(call(0, "c1", "echo", "{}"), end("tool_calls"))
    return stream(text("Done."), end())


@asynccontextmanager
async def _open() -> AsyncGenerator[Target]:
    keys = f"caller:{sha256(KEY.encode()).hexdigest()}:trusted"
    async with open_raw_mcp() as mcp, open_upstream(_script) as upstream:
        servers = [operator_server("box", mcp.url)]
        async with open_service(upstream, extra_servers=servers, auth="required", api_keys=keys) as service:
            service.client.headers["Authorization"] = f"Bearer {KEY}"
            ended = await service.whole()
            ask = {"messages": [{"role": "user", "content": "Please echo"}], "approval": "always"}
            asking = (await service.whole(**ask)).json()
            assert (ended.json()["state"], asking["state"]) == ("ended", "awaiting_input")
            yield Target(service.url, ended.json()["id"], asking["id"], asking["inputs"][0]["inputId"])


@pytest.fixture(scope="module")
def target() -> Generator[Target]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_open()) as opened:
        yield opened


def _bring_home(case: Case, target: Target) -> None:
    """Make of every other request one that can succeed: of a run that there is, or with a body that makes sense."""
    if len(str(case.headers) + str(case.path_parameters)) % 2 == 0:
        return
    case.headers.pop("X-End-User", None)
    if "input_id" in case.path_parameters:
        case.path_parameters.update(run_id=target.asking_id, input_id=target.input_id)
    elif "run_id" in case.path_parameters:
        case.path_parameters.update(run_id=target.run_id)
    is_by_the_book = case.meta is not None and case.meta.generation.mode.is_positive
    if is_by_the_book and is_object(case.body) and "messages" in case.body:
        kept = {name: value for name, value in case.body.items() if name not in NEEDS_SENSE}
        case.body = {**kept, "messages": USER}


NEEDS_SENSE = {
    "messages",
    "timezone",
    "tool_choice",
    "stop",
    "model",
    "servers",
    "selectedServers",
    "selectedServerNames",
}
"""What no text or value of the right type alone is."""


@SCHEMA.parametrize()
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_answer_is_no_fault_and_is_as_described(case: Case, target: Target) -> None:
    _bring_home(case, target)
    response = case.call(base_url=target.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=20)
    is_stream = response.headers.get("content-type", [""])[0].startswith("text/event-stream")
    case.validate_response(response, excluded_checks=[*LEFT_OUT, EVENTS] if is_stream else LEFT_OUT)
    if is_stream:
        for line in response.text.splitlines():
            if line.startswith("data: "):
                RunEvent.model_validate(json.loads(line.removeprefix("data: ")))
