"""What must hold, each with its source. A story proves each one with `@proves("id")`; both ways are checked."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

_Test = TypeVar("_Test", bound=Callable[..., object])


class Requirement(NamedTuple):
    """One thing that a user can rely on."""

    id: str
    source: str
    behaviour: str


REQUIREMENTS = (
    Requirement("run-order", "API 3", "started is event 1, prepared comes once before anything said, one ending"),
    Requirement("run-frames", "API 3", "ids from 1 without gaps, retry first, LF, one data line, proxy headers"),
    Requirement("run-heartbeat", "API 3", "a comment line in every silence"),
    Requirement("run-whole", "API 1", "stream false gives the snapshot, with the status of its error"),
    Requirement("run-messages", "API 1", "the snapshot's messages can be sent back with the next request"),
    Requirement("plain-run", "API 2", "no tools: an ordinary streamed completion, with the reason in prepared"),
    Requirement("force-tools", "API 2", "force_tools overrides a model without tool support"),
    Requirement("tool-loop", "API 4", "calls are executed on real MCP servers and answered to the model"),
    Requirement("tool-parallel", "API 4", "calls of one round run side by side over servers"),
    Requirement("tool-progress", "API 3", "progress of a tool is told while it runs"),
    Requirement("tool-failure", "API 3", "an isError result is tool/error, and the model is told"),
    Requirement("tool-media", "API 3", "an image comes in the event, the model gets a note"),
    Requirement("tool-images", "item 9", "image_1 reaches the tool as data, events and logs show the name"),
    Requirement("tool-prompt", "item 9", "the model is told tools, date and zone in the one system message"),
    Requirement("tool-names", "item 6", "names the model sees are valid and distinct; events show the original"),
    Requirement("servers-merge", "API 2", "request servers replace or select the environment's by folded name"),
    Requirement("servers-select", "API 2", "server_names selects; [] means none"),
    Requirement("servers-filter", "API 2", "allowed_tools and blocked_tools decide by original name"),
    Requirement("servers-refused", "API 2", "a server refused by policy is a rejected event and nothing more"),
    Requirement("servers-dead", "item 5", "one dead server costs one event; the others work"),
    Requirement("servers-auth", "API 3", "a 401 is authRequired with its challenge"),
    Requirement("servers-eras", "item 5", "modern, handshake and SSE servers all work"),
    Requirement("servers-cached", "item 5", "a second run lists and connects no more"),
    Requirement("servers-routes", "API 1", "/v1/servers and /check tell what is there, never headers"),
    Requirement("identity", "API 5", "the caller's token goes to the model with USE_USER_TOKEN, nowhere else"),
    Requirement("cancel-gone", "API 2", "a client that goes ends model stream and tools within a second"),
    Requirement("cancel-route", "API 1", "POST cancel stops a run; twice is no error"),
    Requirement("resume", "API 1", "events are replayed after a cursor; 204, 400, 404 as told"),
    Requirement("resumable", "API 2", "a resumable run survives its connection"),
    Requirement("idempotency", "API 2", "the same key and body join the run, another body is a 409"),
    Requirement("bad-input", "item 12", "bad input is a 4xx in OpenAI's form that names the field"),
    Requirement("bad-upstream", "item 12", "each failure of the upstream is one status error with a stable code"),
    Requirement("upstream-retry", "API 3", "failures before the first byte are retried and told"),
    Requirement("too-many", "API 2", "one run more than allowed is a 429 with Retry-After"),
    Requirement("models", "API 1", "/v1/models lists the models in OpenAI's form"),
    Requirement("health", "API 1", "/healthz and /readyz answer"),
    Requirement("openapi", "item 11", "the OpenAPI document describes every event that is sent"),
    Requirement("secrets", "API 5", "keys, headers and query strings show up nowhere"),
    Requirement("streams", "proof", "every recorded stream of a real server ends a run the right way"),
    Requirement("shutdown", "ownership", "SIGTERM ends runs with shutting_down, and their readers hear it"),
)


def proves(*ids: str) -> Callable[[_Test], _Test]:
    """Say which requirements a test proves."""

    def mark(test: _Test) -> _Test:
        known = {requirement.id for requirement in REQUIREMENTS}
        assert set(ids) <= known, f"no such requirement: {set(ids) - known}"
        return test

    return mark
