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
    Requirement("run-order", "README", "started is event 1, prepared comes once before anything said, one ending"),
    Requirement("run-frames", "README", "ids from 1 without gaps, retry first, LF, one data line, proxy headers"),
    Requirement("run-heartbeat", "README", "a comment line in every silence"),
    Requirement("run-whole", "README", "stream false gives the snapshot, with the status of its error"),
    Requirement("run-messages", "README", "the snapshot's messages can be sent back with the next request"),
    Requirement("plain-run", "README", "no tools: an ordinary streamed completion, with the reason in prepared"),
    Requirement("force-tools", "README", "force_tools overrides a model without tool support"),
    Requirement("tool-loop", "README", "calls are executed on real MCP servers and answered to the model"),
    Requirement("tool-parallel", "README", "calls of one round run side by side over servers"),
    Requirement("tool-progress", "README", "progress of a tool is told while it runs"),
    Requirement("tool-failure", "README", "an isError result is tool/error, and the model is told"),
    Requirement("input-approval", "README", "a call waits for a person, who accepts, changes or declines it"),
    Requirement("input-elicitation", "README", "a server asks the person during a call, and gets the answer"),
    Requirement("input-remember", "README", "an answer for the run holds for the tool as long as it is what it was"),
    Requirement("input-answers", "README", "a second answer is a 409, a wrong one a 422 and the question stays open"),
    Requirement("input-expiry", "README", "a question without an answer expires, and the call is declined"),
    Requirement("input-end", "README", "cancelling a run resolves its questions before it ends"),
    Requirement("input-whole", "README", "stream false answers awaiting_input, and the run lives on"),
    Requirement("tool-media", "README", "an image comes in the event, the model gets a note"),
    Requirement("tool-images", "first version", "image_1 reaches the tool as data, events and logs show the name"),
    Requirement("tool-prompt", "first version", "the model is told tools, date and zone in the one system message"),
    Requirement("tool-names", "first version", "names the model sees are valid and distinct; events show the original"),
    Requirement("servers-merge", "README", "request servers replace or select the environment's by folded name"),
    Requirement("servers-select", "README", "server_names selects; [] means none"),
    Requirement("servers-filter", "README", "allowed_tools and blocked_tools decide by original name"),
    Requirement("servers-refused", "README", "a server refused by policy is a rejected event and nothing more"),
    Requirement("servers-dead", "first version", "one dead server costs one event; the others work"),
    Requirement("servers-auth", "README", "a 401 is authRequired with its challenge"),
    Requirement("servers-eras", "first version", "modern, handshake and SSE servers all work"),
    Requirement("servers-cached", "first version", "a second run lists and connects no more"),
    Requirement("servers-routes", "README", "/v1/servers and /check tell what is there, never headers"),
    Requirement("identity", "README", "the caller's token goes to the model with USE_USER_TOKEN, nowhere else"),
    Requirement("cancel-gone", "README", "a client that goes ends model stream and tools within a second"),
    Requirement("learned-eta", "docs/servers.md", "tool/eta is what earlier calls took, progress tells what is left"),
    Requirement("session-per-run", "docs/servers.md", "a session lasts for a run, or the runs of a conversation"),
    Requirement("list-changes", "docs/servers.md", "the next round sees tools that changed"),
    Requirement("cancel-route", "README", "POST cancel stops a run; twice is no error"),
    Requirement("resume", "README", "events are replayed after a cursor; 204, 400, 404 as told"),
    Requirement("resumable", "README", "a resumable run survives its connection"),
    Requirement("idempotency", "README", "the same key and body join the run, another body is a 409"),
    Requirement("bad-input", "first version", "bad input is a 4xx in OpenAI's form that names the field"),
    Requirement("bad-upstream", "first version", "each failure of the upstream is one status error with a stable code"),
    Requirement("upstream-retry", "README", "failures before the first byte are retried and told"),
    Requirement("keys", "README", "without a valid key nothing but the probes answers"),
    Requirement("end-users", "README", "X-End-User is believed of trusted keys, and of no others"),
    Requirement("tenants", "README", "callers share nothing: no run, no list, no connection, no key of a request"),
    Requirement("read-token", "README", "the readToken of a run opens its events and nothing else"),
    Requirement("names-caller", "docs/servers.md", "an operator's server is told who asks, where its entry says so"),
    Requirement("pages", "README", "pages of other origins and foreign names for the service get nowhere"),
    Requirement("too-many", "README", "one run more than allowed is a 429 with Retry-After"),
    Requirement("models", "README", "/v1/models lists the models in OpenAI's form"),
    Requirement("router", "README", "the alias gets the model that fits the run, and is told who answers"),
    Requirement("router-fallback", "README", "a model that does not begin to answer gives way to the next"),
    Requirement("health", "README", "/healthz and /readyz answer"),
    Requirement("openapi", "first version", "the OpenAPI document describes every event that is sent"),
    Requirement("secrets", "README", "keys, headers and query strings show up nowhere"),
    Requirement("streams", "first version", "every recorded stream of a real server ends a run the right way"),
    Requirement(
        "shutdown", "ARCHITECTURE, ownership", "SIGTERM ends runs with shutting_down, and their readers hear it"
    ),
)


def proves(*ids: str) -> Callable[[_Test], _Test]:
    """Say which requirements a test proves."""

    def mark(test: _Test) -> _Test:
        known = {requirement.id for requirement in REQUIREMENTS}
        assert set(ids) <= known, f"no such requirement: {set(ids) - known}"
        return test

    return mark
