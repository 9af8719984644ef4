"""What is said in a conversation: messages in OpenAI's chat form, what one reply brought, what a tool gave back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from app.domain.jsontypes import Json, JsonObject

UNKNOWN_ETA_SECONDS = 10.0
"""What a call is said to take when nothing is known of its tool."""

Message: TypeAlias = JsonObject
"""One message in OpenAI's chat form (`role`, `content`, …). Unknown fields are kept."""


class TextDelta(NamedTuple):
    """A piece of the visible answer."""

    text: str


class ReasoningDelta(NamedTuple):
    """A piece of what the model thinks aloud, whatever the provider calls it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallFragment:
    """A piece of a tool call. Absent, null and empty mean the same: None or ""."""

    index: int | None
    id: str | None
    name: str | None
    arguments: str
    extra: JsonObject | None = None
    """Fields of the call that we do not know, to be echoed unchanged on the same call."""


class Thought(NamedTuple):
    """What the model thought in a reply, complete, in the fields of a message by which it would get it back."""

    fields: JsonObject


class Finish(NamedTuple):
    """Why the model stopped: `stop`, `length`, `tool_calls`, `content_filter`, or a word of the provider's own."""

    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, or summed over the requests of a run."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


Delta: TypeAlias = TextDelta | ReasoningDelta | CallFragment | Finish | Usage | Thought
"""What a streamed reply is made of, whoever the provider is."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model asked for, put together from its fragments."""

    uuid: str
    """Ours, a UUID4: names the call in events."""
    id: str
    """Names the call in the conversation: the provider's id, or one of ours where it sent none or sent it twice."""
    name: str
    """As the model wrote it."""
    arguments_raw: str
    """As the model wrote them."""
    arguments: JsonObject | None
    """Decoded; None where they are no JSON object."""
    fault: str | None = None
    """Why this call must not be executed, in a sentence for the model; None for a good one."""
    original_id: str | None = None
    """What the provider sent as id, if anything."""
    extra: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Reply:
    """One streamed answer of the model, complete."""

    content: str
    """All text of the round, also what came after the first call began."""
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish_reason: str | None
    thought: JsonObject = field(default_factory=dict[str, Json])
    """The reasoning in the provider's own fields, for those that want it back."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    """`^[a-zA-Z0-9_-]{1,64}$`, distinct within a run."""
    description: str
    parameters: JsonObject
    """A JSON Schema whose root is an object."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the run knows it: where the model's name leads to."""

    spec: ToolSpec
    server: str
    """The server's name as the user gave it."""
    name: str
    """The name on that server."""
    hints: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """What the server claims of its effects, in MCP's words (`readOnlyHint`, …). Claims, never grants."""
    digest: bytes = b""
    """Differs when anything does that a person goes by who approves a call: place, name, description, schema, hints."""


class Progress(NamedTuple):
    """How far a running call is. `total` is absent where the server names none."""

    progress: float
    total: float | None = None
    message: str | None = None
    eta: float | None = None
    """Seconds that are left, where that can be told."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a call came to. Tool trouble is an outcome too: the model reads it and goes on."""

    text: str
    """For the model: cleaned, capped, never empty."""
    error_code: str | None = None
    """None for a success, else one of the call codes in `errors.CALL_CODES`."""
    message: str = ""
    """For people, when it failed."""
    outputs: tuple[JsonObject, ...] = ()
    """For the event: `{text, structured, content}` each."""
    omitted_characters: int = 0
    hidden_characters: int = 0
    """Taken out of what the server said, since they hide something from people."""
    """How much of the text the model does not get to see."""
    is_cut_for_reader: bool = False
    """The outputs, or the message, leave out some of what the tool gave back."""
