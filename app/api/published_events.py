"""What the OpenAPI document says of events: models for readers, which no event passes through.

A test holds every kind of event that the service makes against these models, so that they stay true.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel


class Published(BaseModel):
    """What is published has these fields and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StatusStarted(Published):
    """Always event 1."""

    type: Literal["status"]
    status: Literal["started"]
    run_id: str = Field(alias="runId")
    read_token: str | None = Field(
        default=None, alias="readToken", description="Opens this run's events to an EventSource, as `?token=`."
    )


class StatusPrepared(Published):
    """Listing and routing are done; exactly once, before anything that the model says."""

    type: Literal["status"]
    status: Literal["prepared"]
    model: str
    tools: Literal["active", "not_applicable"]
    reason: (
        Literal["no_servers", "no_tools", "model_without_tools", "route_without_tools", "tool_choice_none"] | None
    ) = None


class StatusRetrying(Published):
    """The model is asked once more after `delay` seconds."""

    type: Literal["status"]
    status: Literal["retrying"]
    message: str
    delay: float


class StatusFinished(Published):
    """The last event of a run that ended on its own or was stopped."""

    type: Literal["status"]
    status: Literal["finished"]
    outcome: Literal["completed", "exhausted", "aborted"]


class StatusError(Published):
    """The last event of a run that could not go on."""

    type: Literal["status"]
    status: Literal["error"]
    code: str
    message: str


class ListedTool(Published):
    """A tool with all that its server says of it; with `"include": ["tools"]`."""

    name: str
    description: str
    schema_: dict[str, Any] = Field(alias="schema")
    hints: dict[str, Any]


class ServerEvent(Published):
    """One per server and change of state."""

    type: Literal["server"]
    name: str
    state: Literal["ready", "waiting", "rejected", "unavailable", "authRequired"]
    tools: list[str | ListedTool]
    message: str | None = None
    code: str | None = None
    challenge: str | None = None


class RouterMetadataEvent(Published):
    """Who answers, where a router or the provider tells; again when it changes. `route` is null for a named model."""

    type: Literal["routerMetadata"]
    route: str | None
    model: str
    provider: str | None = None


class StreamEvent(Published):
    """A piece of the answer."""

    type: Literal["stream"]
    token: str


class ReasoningEvent(Published):
    """A piece of reasoning."""

    type: Literal["reasoning"]
    subtype: Literal["stream"]
    token: str


class NamedCall(Published):
    """A tool's name as the model knows it, with its arguments."""

    name: str
    parameters: dict[str, Any]


class ToolCallEvent(Published):
    """The model calls a tool."""

    type: Literal["tool"]
    subtype: Literal["call"]
    uuid: str
    call: NamedCall
    server: str | None
    tool: str | None
    original_id: str | None = Field(alias="originalId")
    arguments_raw: str = Field(alias="argumentsRaw")
    reasoning: str | None = None
    content: str | None = None


class ToolEtaEvent(Published):
    """How long the call will take, in seconds."""

    type: Literal["tool"]
    subtype: Literal["eta"]
    uuid: str
    eta: float


class ToolProgressEvent(Published):
    """How far the call is."""

    type: Literal["tool"]
    subtype: Literal["progress"]
    uuid: str
    progress: float
    total: float | None = None
    message: str | None = None
    eta: float | None = Field(default=None, description="Seconds that are left, where that can be told.")


class ToolOutput(Published):
    """What the tool gave: its text, its structured content, and the MCP content blocks."""

    text: str
    structured: Any = None
    content: list[dict[str, Any]]


class ToolResult(Published):
    """A success."""

    status: Literal["success"]
    call: NamedCall
    outputs: list[ToolOutput]
    display: Literal[True]


class ToolResultEvent(Published):
    """The call gave a result; `duration` in seconds."""

    type: Literal["tool"]
    subtype: Literal["result"]
    uuid: str
    result: ToolResult
    duration: float


class ToolErrorEvent(Published):
    """The call failed, was cancelled, or was never made."""

    type: Literal["tool"]
    subtype: Literal["error"]
    uuid: str
    message: str
    code: str
    duration: float


class AskedCall(Published):
    """A call that waits until a person lets it be made; what its server says of the tool are claims."""

    input_id: str = Field(alias="inputId")
    tool_uuid: str = Field(alias="toolUuid")
    call: NamedCall
    server: str
    tool: str
    description: str
    hints: dict[str, Any]
    expires_at: str = Field(alias="expiresAt", description="Then it is declined.")


class ApprovalRequestEvent(AskedCall):
    """A call waits for a person; answer at `/v1/runs/{id}/inputs/{inputId}`."""

    type: Literal["approval"]
    subtype: Literal["request"]


class ElicitedRequest(Published):
    """What a server wants to know: a form by a flat JSON Schema, or a page to visit."""

    mode: Literal["form", "url"]
    message: str
    requested_schema: dict[str, Any] | None = Field(default=None, alias="requestedSchema")
    url: str | None = None
    host: str | None = Field(default=None, description="Of the page; show it large.")


class AskedForm(Published):
    """A server's question to a person; without `toolUuid` it does not say for which call."""

    input_id: str = Field(alias="inputId")
    server: str
    tool_uuid: str | None = Field(default=None, alias="toolUuid")
    request: ElicitedRequest
    expires_at: str = Field(alias="expiresAt", description="Then it is cancelled.")


class ElicitationRequestEvent(AskedForm):
    """A server asks a person and waits; answer at `/v1/runs/{id}/inputs/{inputId}`."""

    type: Literal["elicitation"]
    subtype: Literal["request"]


class InputResolvedEvent(Published):
    """A question is not open any more: by the caller, the clock, its server, or the end of its call or run."""

    type: Literal["approval", "elicitation"]
    subtype: Literal["resolved"]
    input_id: str = Field(alias="inputId")
    action: Literal["accept", "decline", "cancel"]
    by: Literal["caller", "expiry", "server", "cancel"]
    arguments: dict[str, Any] | None = Field(
        default=None, description="What the call is made with, where a person has changed that."
    )


NOTICES = {
    "preparing_call": ("The model is writing a call.", "uuid name"),
    "repeated_call": ("A call gave the same results before and was not run once more.", "uuid server tool"),
    "output_truncated": ("A result was shortened, for the model or the reader.", "uuid"),
    "hidden_characters": ("Characters that nobody sees were taken out, of a result or of tools.", "uuid server count"),
    "written_call": ("The model wrote a call of the tool `name` into its text; it was not run.", "name"),
    "tool_dropped": ("A tool is not offered; without `tool`, the rest of a server's.", "server tool"),
    "tools_left_out": ("There are more tools than the model takes.", "offered leftOut"),
    "tools_refused": ("The model takes no tools and was asked without.", ""),
    "tool_choice_dropped": ("`tool_choice` names no tool that is offered.", ""),
    "request_adapted": ("The model's endpoint refused a request, which was put otherwise.", ""),
    "schema_adapted": ("The model's endpoint refused the schemas of tools, which were put otherwise.", ""),
    "description_cut": ("The model's endpoint refused long descriptions of tools, which were shortened.", ""),
    "images_left_out": ("The model takes no images.", ""),
    "context_shortened": ("The conversation was too long; tool results were shortened.", ""),
    "model_fallback": ("`model` could not be asked, so the next one of its route is.", "model"),
    "question_declined": ("A server asked something during a call that is not put to people.", "server uuid"),
    "round_limit": ("All `rounds` are used; the model is asked to close.", "rounds"),
}
"""What each code says, and the further fields that may come with it."""
_CODES: list[JsonValue] = [
    {"const": code, "description": f"{says} With: {fields.replace(' ', ', ')}." if fields else says}
    for code, (says, fields) in NOTICES.items()
]


class NoticeEvent(Published):
    """Something worth knowing; further fields name what it concerns. Ignore codes and fields that you do not know."""

    type: Literal["notice"]
    code: str = Field(
        json_schema_extra={"anyOf": [*_CODES, {"type": "string", "description": "More may come; ignore them."}]}
    )
    message: str
    uuid: str | None = Field(default=None, description="The call.")
    name: str | None = Field(default=None, description="The tool, as the model knows it.")
    server: str | None = Field(default=None, description="The tool's server.")
    tool: str | None = Field(default=None, description="The tool, as its server knows it.")
    model: str | None = Field(default=None, description="The model that did not answer.")
    offered: int | None = Field(default=None, description="How many tools the model is offered.")
    left_out: int | None = Field(default=None, alias="leftOut", description="How many it is not.")
    count: int | None = Field(default=None, description="How many characters.")
    rounds: int | None = Field(default=None, description="How many rounds the run may have.")


class UsageCounts(Published):
    """Tokens, summed over the rounds."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class UsageEvent(UsageCounts):
    """Where the provider reports them."""

    type: Literal["usage"]


class FinalAnswerEvent(Published):
    """The answer; `interrupted` unless the reason is `stop`."""

    type: Literal["finalAnswer"]
    text: str
    reason: Literal["stop", "length", "rounds", "content_filter"]
    interrupted: bool


class RunEvent(
    RootModel[
        StatusStarted
        | StatusPrepared
        | StatusRetrying
        | StatusFinished
        | StatusError
        | ServerEvent
        | RouterMetadataEvent
        | StreamEvent
        | ReasoningEvent
        | ToolCallEvent
        | ToolEtaEvent
        | ToolProgressEvent
        | ToolResultEvent
        | ToolErrorEvent
        | ApprovalRequestEvent
        | ElicitationRequestEvent
        | InputResolvedEvent
        | NoticeEvent
        | UsageEvent
        | FinalAnswerEvent
    ]
):
    """The `data:` of one event. The SSE `event:` is its type, for tools `tool/` and the subtype."""
