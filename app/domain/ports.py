"""The borders between rooms: what the heart needs of the model, the tools and the record, and the API of all three."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from app.domain.events import Event, Notice, Retrying
from app.domain.jsontypes import JsonObject
from app.domain.messages import Delta, Message, Progress, Tool, ToolOutcome, ToolSpec
from app.domain.spec import RunSpec, ServerSpec

Emit: TypeAlias = Callable[[Event], None]
"""Records an event. Never waits: the record is bounded, and its readers are cut off, not waited for."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the model."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    """Empty: neither tools nor anything about them is sent."""
    tool_choice: str | JsonObject = "auto"


class ChatModel(Protocol):
    """One model, ready to be asked; holds the run's parameters."""

    def stream(
        self, ask: Ask, tell: Callable[[Retrying | Notice], None]
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Delta]]]:
        """Ask and stream the reply: one non-empty batch of deltas per network read.

        Nothing but `tell` is called before the first byte. The iterator ends after the stream's own end.

        Raises:
            RunError: On entering or while iterating, one of its subclasses.
        """
        ...


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

    async def call(self, tool: Tool, arguments: JsonObject, on_progress: Callable[[Progress], None]) -> ToolOutcome:
        """Execute a call. Trouble is an outcome, not an exception; cancelling reaches the server."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model."""

    id: str
    supports_tools: bool = True
    multimodal: bool = False
    context_length: int | None = None
    created: int = 0
    owned_by: str = ""
    name: str | None = None
    """A name for people, where the operator gave one."""


class Catalogue(Protocol):
    """What models there are and which one a run gets."""

    async def choose(self, spec: RunSpec) -> ModelFacts:
        """Find the run's model: the one it names, or the default.

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

    def open_box(self, spec: RunSpec, emit: Emit) -> AbstractAsyncContextManager[Toolbox]:
        """Collect, merge, admit and list a run's servers; emits a `ServerReport` for each. Leaving ends their use."""
        ...

    async def environment(self) -> Sequence[JsonObject]:
        """Describe the environment's servers: `{name, state, tools}`; never headers, never addresses' queries."""
        ...

    async def check(self, server: ServerSpec | str) -> JsonObject:
        """Try one server (or one of the environment by name) and describe it.

        Raises:
            NotFound: No server of the environment has that name.
        """
        ...


class RunRecord(Protocol):
    """The record of one run, as the run itself sees it."""

    @property
    def run_id(self) -> str: ...

    def append(self, event: Event) -> None:
        """Record an event and wake the readers."""
        ...

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Record new messages of the conversation, ready to be sent back with the next request."""
        ...

    def on_cancel(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when someone asks for the run to stop; at once if that has happened."""
        ...

    def close(self) -> None:
        """Nothing more will be appended; readers end after what is there."""
        ...
