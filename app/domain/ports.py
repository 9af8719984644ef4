"""The borders between rooms: what the heart needs of the model, the tools and the record, and the API of all three."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from app.domain.events import Event, Notice, Retrying, RouterMetadata, Settler
from app.domain.jsontypes import Json, JsonObject
from app.domain.messages import Delta, Message, Progress, Tool, ToolOutcome
from app.domain.principal import Principal
from app.domain.questions import InputAnswer, Question
from app.domain.spec import RunSpec, ServerSpec

Emit: TypeAlias = Callable[[Event], None]
"""Records an event. Never waits: the record is bounded, and its readers are cut off, not waited for."""

Tell: TypeAlias = Callable[[Retrying | Notice | RouterMetadata], None]
"""What a model may say about how it is asked."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the model."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    """Empty: neither tools nor anything about them is sent."""
    tool_choice: str | JsonObject = "auto"
    tool_prompt: str = ""
    """With what the system message begins because of the tools; it goes where none are sent after all."""
    withheld: Sequence[Tool] = ()
    """Tools of the run that may not be called now: they are not sent, but the model may still write calls of them."""
    thoughts: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """What the model thought in earlier replies of the run, by the id of the reply's first call (`Thought.fields`)."""


class ChatModel(Protocol):
    """One model, ready to be asked; holds the run's parameters."""

    def offered(self, tools: Sequence[Tool], tool_choice: str | JsonObject = "auto") -> Sequence[Tool]:
        """Choose what of these tools the model is shown: it may not take all, or not as many. Stable, in order.

        The one that `tool_choice` names is among them.
        """
        ...

    def stream(self, ask: Ask, tell: Tell) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Delta]]]:
        """Ask and stream the reply: one non-empty batch of deltas per network read.

        Nothing but `tell` is called before the first byte. The iterator ends after the stream's own end.

        Raises:
            RunError: On entering or while iterating, one of its subclasses.
        """
        ...


class Ticket(Protocol):
    """One open question."""

    async def answer(self) -> InputAnswer:
        """Wait for the answer. Without one in time, or once it is withdrawn, the answer is `CANCELLED`."""
        ...

    def withdraw(self, by: Settler) -> None:
        """Take the question back; nothing happens where it is resolved already."""
        ...


class Person(Protocol):
    """Whoever reads the run, as far as questions can be put to him."""

    def ask(self, question: Question) -> Ticket:
        """Put a question; its request is told before this returns. Whoever asks sees to it that it gets withdrawn."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call."""

    uuid: str
    """Of the call, as in its events."""
    on_progress: Callable[[Progress], None]
    """Never called after the call has ended."""


class Toolbox(Protocol):
    """All tools of a run."""

    @property
    def tools(self) -> Sequence[Tool]:
        """What can be called now, in a stable order."""
        ...

    @property
    def has_servers(self) -> bool:
        """Whether any server was selected, admitted or not."""
        ...

    def find(self, name: str) -> Tool | None:
        """Look up the tool that the model calls `name`."""
        ...

    async def call(self, tool: Tool, arguments: JsonObject, caller: Caller) -> ToolOutcome:
        """Execute a call. Trouble is an outcome, not an exception; cancelling reaches the server."""
        ...

    def expected_seconds(self, tool: Tool) -> float:
        """How long a call of the tool is expected to take."""
        ...

    def fitted(self, tool: Tool, arguments: JsonObject) -> JsonObject | str:
        """Hold arguments that a person wrote against the tool's schema: what its server gets, or what is wrong where.

        Bounded in time, whatever the schema is.
        """
        ...

    async def is_unchanged(self, tool: Tool) -> bool | ToolOutcome:
        """Ask its server whether the tool is still what it was when `tool` was made (`Tool.digest`).

        An outcome says why that cannot be told, so that the call is not to be made.
        """
        ...

    async def settle(self) -> None:
        """Wait, for a moment at most, until what servers said has changed about their tools is in `tools`."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model."""

    id: str
    supports_tools: bool = True
    multimodal: bool | None = None
    """Whether it takes images; None where nobody has said."""
    preserves_reasoning: bool = False
    """Whether its reasoning belongs into the conversation, also of later requests."""
    context_length: int | None = None
    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Request parameters of this model, below the caller's."""
    created: int = 0
    owned_by: str = ""
    name: str | None = None
    """A name for people, where the operator gave one."""
    route: str | None = None
    """How the router came to it; None where the caller named it."""
    fallbacks: tuple["ModelFacts", ...] = ()
    """Asked in this order where it does not begin to answer."""


class Catalogue(Protocol):
    """What models there are and which one a run gets."""

    async def choose(self, spec: RunSpec, *, wants_tools: bool) -> ModelFacts:
        """Find the run's model: the one it names, or the default; for the router's alias the one that fits the run.

        `wants_tools` says that servers were selected.

        Raises:
            ModelRequired: None is named and there is no default.
            ModelNotFound: `MODELS` is set and lacks it.
            RunError: The default is the upstream's first and the upstream does not tell.
        """
        ...

    async def models(self) -> Sequence[ModelFacts]:
        """List the models. An upstream that does not tell is an empty list."""
        ...

    def open(self, facts: ModelFacts, spec: RunSpec) -> ChatModel:
        """Make the model ready for a run."""
        ...


class Servers(Protocol):
    """The MCP servers: those of the environment, and whatever a run brings."""

    def are_selected(self, spec: RunSpec) -> bool:
        """Tell whether a run has any servers, admitted or not."""
        ...

    def open_box(self, spec: RunSpec, emit: Emit, person: Person) -> AbstractAsyncContextManager[Toolbox]:
        """Collect, merge, admit and list a run's servers; emits a `ServerReport` for each. Leaving ends their use.

        Where the run is interactive, servers may ask `person`.
        """
        ...

    async def environment(self, principal: Principal) -> Sequence[JsonObject]:
        """Describe the environment's servers as this caller sees them: `{name, state, tools}`.

        Never headers, never the queries of addresses.
        """
        ...

    async def check(self, server: ServerSpec | str, principal: Principal) -> JsonObject:
        """Try one server (or one of the environment by name) and describe it.

        Raises:
            NotFound: No server of the environment has that name.
        """
        ...


class RunRecord(Protocol):
    """The record of one run, as the run itself sees it."""

    @property
    def run_id(self) -> str: ...
    @property
    def read_token(self) -> str: ...

    def append(self, event: Event) -> None:
        """Record an event and wake the readers."""
        ...

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Record new messages of the conversation, ready to be sent back with the next request."""
        ...

    def on_cancel(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when someone asks for the run to stop; at once if that has happened."""
        ...

    def on_input(self, take: Callable[[str, InputAnswer], None]) -> None:
        """Call `take` with the id of an open question and what somebody answered.

        It raises `NotFound`, `Conflict` or `InvalidRequest`, which the answerer hears.
        """
        ...

    def close(self) -> None:
        """Nothing more will be appended; readers end after what is there."""
        ...
