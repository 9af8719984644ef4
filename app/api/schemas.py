"""Request bodies, and how they become what the rooms inside understand. Limits on input are checked here.

Errors name the field and never repeat what was sent: it may hold a secret.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.domain.errors import InvalidRequest
from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.limits import RequestLimits
from app.domain.questions import InputAnswer
from app.domain.secrets import Secret
from app.domain.spec import RunSpec, ServerSpec

_MAX_HEADER_CHARACTERS = 16 * 1024
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+[^\s]*\Z")
"""That it is a URL at all; whether it may be connected to is policy, and no fault of the request's form."""
_MOST_MESSAGES = 10_000
_MOST_FIELDS = 200
_MOST_SERVERS = 256
"""Above any setting: validation must end early, the setting decides after it."""
_MOST_PATTERNS = 1000
_MOST_FAULTS = 10
_LONGEST_PATH = 200
_LONGEST_CALL_MS = 30 * 60 * 1000
_LONGEST_CONVERSATION = 256


def _check_content(content: Json) -> Json:
    if content is None or isinstance(content, str):
        return content
    if not is_array(content):
        raise ValueError("must be a string, a list of parts, or null")
    for position, part in enumerate(content):
        if not is_object(part) or not isinstance(part.get("type"), str):
            raise ValueError(f"part {position} must be an object with a type")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise ValueError(f"part {position} is of type text and needs a text")
        if part["type"] == "image_url" and not _has_url(part.get("image_url")):
            raise ValueError(f"part {position} is of type image_url and needs image_url.url")
    return content


def _has_url(image: Json) -> bool:
    return isinstance(image, str) or (is_object(image) and isinstance(image.get("url"), str))


def _check_calls(calls: Json) -> Json:
    if calls is None:
        return calls
    if not is_array(calls):
        raise ValueError("must be a list of calls")
    for position, call in enumerate(calls):
        function = call.get("function") if is_object(call) else None
        if not is_object(function) or not isinstance(function.get("name"), str):
            raise ValueError(f"call {position} needs function.name")
        is_text = isinstance(function.get("arguments"), str)
        if not is_text:
            raise ValueError(f"call {position} needs function.arguments, a JSON text")
    return calls


def _check_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError("not a known time zone; IANA names such as Europe/Paris are") from None
    return name


def _check_choice(choice: Json) -> Json:
    if choice in ("auto", "none", "required"):
        return choice
    function = choice.get("function") if is_object(choice) and choice.get("type") == "function" else None
    if is_object(function) and isinstance(function.get("name"), str):
        return choice
    raise ValueError('must be "auto", "none", "required" or {"type": "function", "function": {"name": …}}')


def _check_stop(stop: Json) -> Json:
    if isinstance(stop, str) or (is_array(stop) and all(isinstance(item, str) for item in stop)):
        return stop
    raise ValueError("must be a string or a list of strings")


def _check_url(url: str) -> str:
    if not _ABSOLUTE.match(url):
        raise ValueError("must be an absolute URL, such as https://mcp.example.com/mcp")
    return url


def _check_filled(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ChatMessage(BaseModel):
    """One message in OpenAI's chat form. Unknown fields are kept and passed on."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Any, AfterValidator(_check_content)] = Field(
        default=None, description="A string, a list of parts (text, image_url, file), or null."
    )
    tool_calls: Annotated[Any, AfterValidator(_check_calls)] = Field(
        default=None, description="Assistant only: `[{id, type: function, function: {name, arguments}}]`."
    )
    tool_call_id: str | None = Field(default=None, description="Tool only: the call that this answers.")

    @model_validator(mode="after")
    def _check_role(self) -> "ChatMessage":
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("a tool message needs tool_call_id")
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        return self


class ServerEntry(_Strict):
    """An MCP server that the user selected."""

    name: Annotated[str, AfterValidator(_check_filled)] = Field(max_length=128)
    url: Annotated[str, AfterValidator(_check_url)] = Field(
        max_length=2048, description="Public https, unless allowed.", repr=False
    )
    headers: dict[str, str] = Field(
        default_factory=dict[str, str], max_length=256, description="For this server only.", repr=False
    )
    allowed_tools: list[str] | None = Field(
        default=None, max_length=_MOST_PATTERNS, description="Original names; * and ? match."
    )
    blocked_tools: list[str] = Field(default_factory=list[str], max_length=_MOST_PATTERNS, description="Blocked wins.")
    timeout_ms: int | None = Field(default=None, ge=1, le=_LONGEST_CALL_MS, description="Silence allowed in a call.")
    protocol: Literal["auto", "legacy", "modern"] = "auto"
    required: bool = False

    def to_spec(self) -> ServerSpec:
        """Make the domain's server, of the user class."""
        return ServerSpec(
            name=self.name,
            url=self.url,
            trust="user",
            headers={name: Secret(value) for name, value in self.headers.items()},
            allowed_tools=None if self.allowed_tools is None else tuple(self.allowed_tools),
            blocked_tools=tuple(self.blocked_tools),
            timeout_seconds=None if self.timeout_ms is None else self.timeout_ms / 1000,
            protocol=self.protocol,
            required=self.required,
        )


class RunRequest(_Strict):
    """A conversation, and the MCP servers that the user selected."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=_MOST_MESSAGES)
    model: Annotated[str, AfterValidator(_check_filled)] | None = Field(default=None, max_length=256)
    servers: list[ServerEntry] = Field(
        default_factory=list[ServerEntry],
        max_length=_MOST_SERVERS,
        validation_alias=AliasChoices("servers", "selectedServers"),
    )
    server_names: list[str] | None = Field(
        default=None,
        max_length=_MOST_SERVERS,
        validation_alias=AliasChoices("server_names", "selectedServerNames"),
        description="Selection by name over environment and request; absent means all, [] none.",
    )
    preprompt: str | None = None
    timezone: Annotated[str, AfterValidator(_check_zone)] | None = Field(default=None, max_length=64)
    force_tools: bool = False
    tool_choice: Annotated[Any, AfterValidator(_check_choice)] = "auto"
    parallel_tool_calls: bool | None = None
    max_rounds: int = Field(default=10, ge=1, le=100)
    approval: Literal["never", "destructive", "always"] = Field(
        default="never",
        description="Which calls wait for a person's leave: none, those of tools not declared read-only, all.",
    )
    interactive: bool = Field(default=False, description="true: a person is there, so servers may ask.")
    reasoning: Literal["separate", "inline", "hidden"] = "separate"
    resumable: bool = Field(default=False, description="true: a dropped connection does not cancel the run.")
    include: list[Literal["tools"]] = Field(default_factory=list[Literal["tools"]], max_length=8)
    stream: bool = Field(default=True, description="false: the snapshot, once the run has ended or asks a person.")
    response_format: dict[str, Any] | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[Any, AfterValidator(_check_stop)] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    reasoning_effort: str | None = None
    provider: str = Field(default="auto", min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._/-]+$")
    user: str | None = Field(default=None, max_length=512)
    metadata: dict[str, str] = Field(
        default_factory=dict[str, str],
        max_length=64,
        description="Texts of your own. Runs with the same `conversation_id` share the sessions of servers.",
    )

    def to_spec(self, raw: JsonObject, *, user_token: Secret | None) -> RunSpec:
        """Make the domain's request. Messages are taken as they came, with every field that we do not know.

        Raises:
            InvalidRequest: `metadata.conversation_id` is too long.
        """
        return RunSpec(
            messages=tuple(raw["messages"]),
            model=self.model,
            servers=tuple(entry.to_spec() for entry in self.servers),
            server_names=None if self.server_names is None else tuple(self.server_names),
            preprompt=self.preprompt,
            timezone=self.timezone,
            force_tools=self.force_tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            max_rounds=self.max_rounds,
            approval=self.approval,
            interactive=self.interactive,
            conversation_id=_conversation_from_metadata(self.metadata),
            reasoning=self.reasoning,
            resumable=self.resumable,
            include_tools="tools" in self.include,
            provider=None if self.provider == "auto" else self.provider,
            parameters={name: value for name in _PASSED_ON if (value := getattr(self, name)) is not None},
            user_token=user_token,
        )


_PASSED_ON = (
    "response_format",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "user",
)


def _conversation_from_metadata(metadata: Mapping[str, str]) -> str | None:
    name = metadata.get("conversation_id", "").strip()
    if len(name) > _LONGEST_CONVERSATION:
        param = "metadata.conversation_id"
        raise InvalidRequest(f"{param}: must have at most {_LONGEST_CONVERSATION} characters.", param=param)
    return name or None


class InputRequest(_Strict):
    """What a person answers: to a server's question, or whether a call may be made."""

    action: Literal["accept", "decline", "cancel"] = Field(description="cancel: neither yes nor no.")
    content: dict[str, Any] | None = Field(
        default=None, description="Elicitation: the form as it was filled in.", repr=False
    )
    arguments: dict[str, Any] | None = Field(
        default=None, description="Approval: what the call is made with instead; the model is told.", repr=False
    )
    remember: Literal["call", "run"] = Field(
        default="call", description="Approval: for this call, or for this tool as long as the run lasts."
    )
    reason: str | None = Field(
        default=None, max_length=2000, description="Approval: a sentence for the model, where it is refused."
    )

    def to_answer(self) -> InputAnswer:
        """Make the domain's answer."""
        return InputAnswer(self.action, self.content, self.arguments, self.remember, self.reason)


class CheckRequest(_Strict):
    """A server of the environment, by its name."""

    name: str = Field(min_length=1, max_length=128)


ALIASES = {
    "servers": "selectedServers",
    "server_names": "selectedServerNames",
    "max_tokens": "max_completion_tokens",
}
"""What means the same; a request gives one of each."""

_Model = TypeVar("_Model", bound=BaseModel)


def parse(model: type[_Model], raw: JsonObject) -> _Model:
    """Validate a body.

    Raises:
        InvalidRequest: Names each field at fault; `param` is the first of them.
    """
    if len(raw) > _MOST_FIELDS:
        raise InvalidRequest(f"The body has {len(raw)} fields; at most {_MOST_FIELDS} are looked at.")
    for name, alias in ALIASES.items():
        if name in raw and alias in raw and name in model.model_fields:
            raise InvalidRequest(f"{alias}: is the same as {name}; give one of them.", param=alias)
    try:
        # Null means absent, as everywhere on this wire.
        return model.model_validate({name: value for name, value in raw.items() if value is not None})
    except ValidationError as error:
        items = error.errors(include_input=False, include_url=False, include_context=False)
        faults = [_fault(model, item["loc"], item["type"], item["msg"]) for item in items[:_MOST_FAULTS]]
        told = [f"{path}: {text}" for path, text in faults]
        if len(items) > len(told):
            told.append(f"and {len(items) - len(told)} more")
        raise InvalidRequest("; ".join(told), param=faults[0][0]) from None


def check_servers(servers: Sequence[ServerEntry], limits: RequestLimits) -> None:
    """Hold the servers of a request against the limits.

    Raises:
        InvalidRequest: There are too many, or one has too many or too long headers.
    """
    if len(servers) > limits.servers:
        raise InvalidRequest(f"servers: at most {limits.servers} are allowed.", param="servers")
    for position, server in enumerate(servers):
        check_headers(server, limits, path=f"servers.{position}.headers")


def check_headers(server: ServerEntry, limits: RequestLimits, *, path: str) -> None:
    """Hold one server's headers against the limits; raises InvalidRequest."""
    size = sum(len(name) + len(value) for name, value in server.headers.items())
    if len(server.headers) > limits.server_headers or size > _MAX_HEADER_CHARACTERS:
        text = f"at most {limits.server_headers} headers with {_MAX_HEADER_CHARACTERS} characters in all are allowed"
        raise InvalidRequest(f"{path}: {text}.", param=path)


def _fault(model: type[BaseModel], loc: tuple[int | str, ...], kind: str, text: str) -> tuple[str, str]:
    path = ".".join(str(part) for part in loc)[:_LONGEST_PATH] or "body"
    if kind == "extra_forbidden":
        close = [] if len(path) == _LONGEST_PATH else difflib.get_close_matches(str(loc[-1]), _names(model), n=1)
        return path, f"unknown field; did you mean {close[0]}?" if close and len(loc) == 1 else "unknown field"
    if kind == "missing":
        return path, "is required"
    return path, text.removeprefix("Value error, ").replace("a valid dictionary", "an object")


def _names(model: type[BaseModel]) -> list[str]:
    return list(model.model_fields)
