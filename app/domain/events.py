"""What a run tells its readers. Each class is one kind of event; `data()` is its JSON, `name` its SSE `event:`.

The field names are those of Chat UI's `MessageUpdate`. Times are seconds. Absent fields are left out, except
where null is the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from app.domain.jsontypes import Json, JsonObject
from app.domain.messages import Tool, ToolCall, Usage

ServerState: TypeAlias = Literal["ready", "waiting", "rejected", "unavailable", "authRequired"]
Outcome: TypeAlias = Literal["completed", "exhausted", "aborted"]
AnswerReason: TypeAlias = Literal["stop", "length", "rounds", "content_filter"]
InputAction: TypeAlias = Literal["accept", "decline", "cancel"]
Settler: TypeAlias = Literal["caller", "expiry", "server", "cancel"]
"""Who ended a question: the person, the clock, the server that took it back, the end of the call or run."""


class Token(NamedTuple):
    """A piece of the answer. One per token, so it is as small as can be."""

    token: str

    @property
    def name(self) -> str:
        return "stream"

    def data(self) -> JsonObject:
        return {"type": "stream", "token": self.token}


class ReasoningToken(NamedTuple):
    """A piece of reasoning."""

    token: str

    @property
    def name(self) -> str:
        return "reasoning"

    def data(self) -> JsonObject:
        return {"type": "reasoning", "subtype": "stream", "token": self.token}


@dataclass(frozen=True, slots=True)
class Started:
    """Event 1 of every run."""

    run_id: str
    read_token: str | None = None
    name: ClassVar[str] = "status"

    def data(self) -> JsonObject:
        data: JsonObject = {"type": "status", "status": "started", "runId": self.run_id}
        return data if self.read_token is None else {**data, "readToken": self.read_token}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Listing and routing are done; exactly once, before anything of the model's."""

    model: str
    tools: Literal["active", "not_applicable"]
    reason: str | None = None
    name: ClassVar[str] = "status"

    def data(self) -> JsonObject:
        data: JsonObject = {"type": "status", "status": "prepared", "model": self.model, "tools": self.tools}
        return data if self.reason is None else {**data, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Retrying:
    """The model is asked once more after a wait of `delay` seconds; nothing of the failed attempt was shown."""

    message: str
    delay: float
    name: ClassVar[str] = "status"

    def data(self) -> JsonObject:
        return {"type": "status", "status": "retrying", "message": self.message, "delay": round(self.delay, 3)}


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a run that ended on its own or was stopped."""

    outcome: Outcome
    name: ClassVar[str] = "status"

    def data(self) -> JsonObject:
        return {"type": "status", "status": "finished", "outcome": self.outcome}


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a run that could not go on."""

    code: str
    message: str
    name: ClassVar[str] = "status"

    def data(self) -> JsonObject:
        return {"type": "status", "status": "error", "code": self.code, "message": self.message}


@dataclass(frozen=True, slots=True)
class ServerReport:
    """How one MCP server is; one per server and change of state."""

    server: str
    state: ServerState
    tools: Sequence[Json] = ()
    """Original names, or `{name, description, schema, hints}` where the caller asked for them."""
    message: str | None = None
    code: str | None = None
    challenge: str | None = None
    """The server's `WWW-Authenticate`, when it wants authorization."""
    name: ClassVar[str] = "server"

    def data(self) -> JsonObject:
        data: JsonObject = {"type": "server", "name": self.server, "state": self.state, "tools": list(self.tools)}
        for key, value in (("message", self.message), ("code", self.code), ("challenge", self.challenge)):
            if value is not None:
                data[key] = value
        return data


@dataclass(frozen=True, slots=True)
class RouterMetadata:
    """Who answers: the route that was chosen, the model, the provider behind it; again when it changes."""

    route: str | None
    model: str
    provider: str | None = None
    name: ClassVar[str] = "routerMetadata"

    def data(self) -> JsonObject:
        data: JsonObject = {"type": "routerMetadata", "route": self.route, "model": self.model}
        return data if self.provider is None else {**data, "provider": self.provider}


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The model calls a tool. `tool` is None for a name that no tool has."""

    call: ToolCall
    tool: Tool | None
    parameters: JsonObject
    """The decoded arguments as they may be shown: references to images stay references."""
    reasoning: str | None = None
    content: str | None = None
    """Both on the round's first call only: all that was thought and said in the round."""
    name: ClassVar[str] = "tool/call"

    def data(self) -> JsonObject:
        data: JsonObject = {
            "type": "tool",
            "subtype": "call",
            "uuid": self.call.uuid,
            "call": {"name": self.call.name, "parameters": self.parameters},
            "server": self.tool.server if self.tool else None,
            "tool": self.tool.name if self.tool else None,
            "originalId": self.call.original_id,
            "argumentsRaw": self.call.arguments_raw,
        }
        for key, value in (("reasoning", self.reasoning), ("content", self.content)):
            if value is not None:
                data[key] = value
        return data


@dataclass(frozen=True, slots=True)
class ToolEta:
    """How long the call will take, in seconds."""

    uuid: str
    eta: float
    name: ClassVar[str] = "tool/eta"

    def data(self) -> JsonObject:
        return {"type": "tool", "subtype": "eta", "uuid": self.uuid, "eta": round(self.eta, 3)}


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """How far the call is."""

    uuid: str
    progress: float
    total: float | None = None
    message: str | None = None
    eta: float | None = None
    """Seconds that are left, where that can be told."""
    name: ClassVar[str] = "tool/progress"

    def data(self) -> JsonObject:
        data: JsonObject = {"type": "tool", "subtype": "progress", "uuid": self.uuid, "progress": self.progress}
        eta = None if self.eta is None else round(self.eta, 3)
        for key, value in (("total", self.total), ("message", self.message), ("eta", eta)):
            if value is not None:
                data[key] = value
        return data


@dataclass(frozen=True, slots=True)
class ToolSucceeded:
    """The call gave a result."""

    uuid: str
    tool_name: str
    parameters: JsonObject
    outputs: Sequence[JsonObject]
    duration: float
    name: ClassVar[str] = "tool/result"

    def data(self) -> JsonObject:
        return {
            "type": "tool",
            "subtype": "result",
            "uuid": self.uuid,
            "result": {
                "status": "success",
                "call": {"name": self.tool_name, "parameters": self.parameters},
                "outputs": list(self.outputs),
                "display": True,
            },
            "duration": round(self.duration, 3),
        }


@dataclass(frozen=True, slots=True)
class ToolFailed:
    """The call failed, was cancelled, or was never made."""

    uuid: str
    message: str
    code: str
    duration: float
    name: ClassVar[str] = "tool/error"

    def data(self) -> JsonObject:
        return {
            "type": "tool",
            "subtype": "error",
            "uuid": self.uuid,
            "message": self.message,
            "code": self.code,
            "duration": round(self.duration, 3),
        }


@dataclass(frozen=True, slots=True)
class ElicitationAsked:
    """A server asks the person something during a call, and waits."""

    input_id: str
    server: str
    request: JsonObject
    """`{mode: "form", message, requestedSchema}` or `{mode: "url", message, url, host}`."""
    expires_at: str
    tool_uuid: str | None = None
    """The call; None where the server does not say which one it asks for."""
    name: ClassVar[str] = "elicitation"

    def data(self) -> JsonObject:
        data: JsonObject = {"type": "elicitation", "subtype": "request", "inputId": self.input_id}
        data["server"] = self.server
        if self.tool_uuid is not None:
            data["toolUuid"] = self.tool_uuid
        return {**data, "request": self.request, "expiresAt": self.expires_at}


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """A call waits until a person lets it be made."""

    input_id: str
    tool_uuid: str
    call_name: str
    parameters: JsonObject
    tool: Tool
    expires_at: str
    name: ClassVar[str] = "approval"

    def data(self) -> JsonObject:
        return {
            "type": "approval",
            "subtype": "request",
            "inputId": self.input_id,
            "toolUuid": self.tool_uuid,
            "call": {"name": self.call_name, "parameters": self.parameters},
            "server": self.tool.server,
            "tool": self.tool.name,
            "description": self.tool.spec.description,
            "hints": dict(self.tool.hints),
            "expiresAt": self.expires_at,
        }


@dataclass(frozen=True, slots=True)
class InputResolved:
    """A question is not open any more; exactly one for each `request`. What was filled in is not repeated."""

    kind: Literal["elicitation", "approval"]
    input_id: str
    action: InputAction
    by: Settler
    arguments: JsonObject | None = None
    """What the call is made with, where a person has changed that."""

    @property
    def name(self) -> str:
        return self.kind

    def data(self) -> JsonObject:
        told: JsonObject = {"type": self.kind, "subtype": "resolved", "inputId": self.input_id}
        told = {**told, "action": self.action, "by": self.by}
        return told if self.arguments is None else {**told, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the reader should know; `about` names what it concerns."""

    code: str
    message: str
    about: Mapping[str, Json] = field(default_factory=dict[str, Json])
    name: ClassVar[str] = "notice"

    def data(self) -> JsonObject:
        return {"type": "notice", **self.about, "code": self.code, "message": self.message}


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Tokens of the run so far, summed over its rounds, in OpenAI's words."""

    usage: Usage
    name: ClassVar[str] = "usage"

    def data(self) -> JsonObject:
        return {"type": "usage", **usage_json(self.usage)}


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The answer: text of the last round, without reasoning (inline: with it in front, as it was streamed)."""

    text: str
    reason: AnswerReason
    name: ClassVar[str] = "finalAnswer"

    def data(self) -> JsonObject:
        return {
            "type": "finalAnswer",
            "text": self.text,
            "reason": self.reason,
            "interrupted": self.reason != "stop",
        }


Event: TypeAlias = (
    Token
    | ReasoningToken
    | Started
    | Prepared
    | Retrying
    | Finished
    | Failed
    | ServerReport
    | RouterMetadata
    | ToolCalled
    | ToolEta
    | ToolProgress
    | ToolSucceeded
    | ToolFailed
    | ElicitationAsked
    | ApprovalAsked
    | InputResolved
    | Notice
    | UsageReport
    | FinalAnswer
)


def usage_json(usage: Usage) -> JsonObject:
    """Show token counts in OpenAI's words; the details only where a provider told them."""
    details = {"cached_tokens": usage.cached_tokens, "reasoning_tokens": usage.reasoning_tokens}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        **{name: count for name, count in details.items() if count},
    }
