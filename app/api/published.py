"""What the OpenAPI document says of snapshots and other answers: models for readers, which no answer passes through."""

from typing import Any, Literal

from pydantic import Field

from app.api.published_events import AskedCall, AskedForm, ListedTool, NamedCall, Published, ToolResult, UsageCounts


class CallFailure(Published):
    """Why a call, or the run, failed."""

    code: str
    message: str


class SnapshotCall(Published):
    """A call with its end, when it has one."""

    uuid: str
    server: str | None
    tool: str | None
    call: NamedCall
    result: ToolResult | None = None
    error: CallFailure | None = None
    duration: float | None = None


class OpenApproval(AskedCall):
    """A call that waits for a person."""

    kind: Literal["approval"]


class OpenElicitation(AskedForm):
    """A server's question that waits for a person."""

    kind: Literal["elicitation"]


class RunSnapshot(Published):
    """A run as it is now. `messages` are new since the request, ready for the next one."""

    id: str
    object: Literal["run"]
    state: Literal["running", "awaiting_input", "ended"]
    outcome: Literal["completed", "exhausted", "aborted"] | None
    error: CallFailure | None = None
    model: str | None
    text: str
    reasoning: str
    calls: list[SnapshotCall]
    inputs: list[OpenApproval | OpenElicitation] = Field(description="The open questions.")
    usage: UsageCounts | None
    messages: list[dict[str, Any]]
    last_event_id: int = Field(alias="lastEventId")
    created_at: str = Field(alias="createdAt")


class Problem(Published):
    """An error before the first byte, in OpenAI's form."""

    code: str
    message: str
    param: str | None
    type: str


class ModelEntry(Published):
    """A model, and what it can do."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    supports_tools: bool = Field(alias="supportsTools")
    multimodal: bool
    preserves_reasoning: bool = Field(alias="preservesReasoning")
    parameters: dict[str, Any] = Field(description="Request parameters that hold unless a request says otherwise.")
    name: str | None = None
    context_length: int | None = Field(default=None, alias="contextLength")


class ModelList(Published):
    """The first is the default unless the operator named another."""

    object: Literal["list"]
    data: list[ModelEntry]


class ListedServer(Published):
    """A server of the environment; `tools` is how many it has."""

    name: str
    state: Literal["ready", "waiting", "rejected", "unavailable", "authRequired"]
    tools: int
    message: str | None = None
    host: str | None = Field(default=None, description="Only with `TOOLFERRY_SHOW_SERVER_URLS=true`.")


class ServerList(Published):
    """Never paths and queries, never headers."""

    object: Literal["list"]
    data: list[ListedServer]


class CheckedTool(ListedTool):
    """A tool, and what the model would call it."""

    exposed_name: str = Field(alias="exposedName")
    input_schema: dict[str, Any] = Field(alias="inputSchema", description="The schema as its server wrote it.")
    repairs: list[str] = Field(description="Where its schema is said otherwise to the model, to be valid; a line each.")


class DroppedTool(Published):
    """A tool that is not offered; without a name, the rest of the list."""

    name: str | None
    reason: str | None


class ServerCheck(Published):
    """What a server answered; `duration` in seconds."""

    name: str
    reachable: bool
    era: Literal["modern", "legacy"] | None
    transport: Literal["streamable-http", "sse"] | None
    protocol_version: str | None = Field(alias="protocolVersion")
    tools: list[CheckedTool]
    dropped: list[DroppedTool]
    auth_required: bool = Field(alias="authRequired")
    challenge: str | None = None
    message: str | None = None
    duration: float


class Health(Published):
    """Whether the process answers, or takes runs."""

    status: Literal["ok", "ready", "draining"]


class ProblemBody(Published):
    """The body of every 4xx and 5xx."""

    error: Problem
