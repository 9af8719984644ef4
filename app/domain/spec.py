"""A request after validation: what one run is to do. Frozen; made by the API room, read by all others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from app.domain.jsontypes import Json, JsonObject
from app.domain.messages import Message
from app.domain.principal import NOBODY, Principal
from app.domain.secrets import Secret

HOP_HEADER = "Toolferry-Hop"
"""Goes with every request to an MCP server. One that comes in with it has gone round in a circle."""

Trust: TypeAlias = Literal["operator", "user"]
"""Who put a server there. Decided once when a `ServerSpec` is made; never derived from a name or an address."""

Protocol: TypeAlias = Literal["auto", "legacy", "modern"]
"""Which family of MCP revisions to speak: the stateless one (modern), the handshake one (legacy), or find out."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One MCP server as it was configured or asked for. Its address may hold a key in the query, so it has no repr."""

    name: str
    url: str = field(repr=False)
    trust: Trust
    headers: Mapping[str, Secret] = field(default_factory=dict[str, Secret], repr=False)
    allowed_tools: tuple[str, ...] | None = None
    """Original tool names, with `*` and `?`; None lets all through."""
    blocked_tools: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    """Silence allowed during a call; None for the service's own limit."""
    protocol: Protocol = "auto"
    required: bool = False
    session: Literal["run", "shared"] = "run"
    """Operator's entries only: whether a session of the server's is one run's alone, or all runs share it."""
    allow_plain_http_public: bool = False
    """Operator's entries only: plain http to a public address."""
    names_caller: bool = False
    """Operator's entries only: `{user}`, `{conversation_id}`, `{request_id}` in header values stand for the run's."""
    told: tuple[str, ...] = field(default=(), repr=False)
    """What stands in its headers of the run's: no secrets of the operator's."""
    principal: Principal = NOBODY
    """On whose behalf it is spoken to. Nothing of it, no connection and no list, is shared with anybody else."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What the caller wants, with the defaults filled in."""

    messages: tuple[Message, ...] = field(repr=False)
    model: str | None = None
    servers: tuple[ServerSpec, ...] = ()
    server_names: tuple[str, ...] | None = None
    """Selection by name over environment and request; None means all, an empty tuple none."""
    preprompt: str | None = field(default=None, repr=False)
    timezone: str | None = None
    """An IANA zone name that exists."""
    force_tools: bool = False
    tool_choice: str | JsonObject = "auto"
    parallel_tool_calls: bool | None = None
    max_rounds: int = 10
    approval: Literal["never", "destructive", "always"] = "never"
    """Which calls wait until a person has let them be made: none, those of tools not declared read-only, all."""
    interactive: bool = False
    """A person is there, so servers may ask."""
    conversation_id: str | None = None
    """What the caller calls the conversation: servers that keep a session keep one for all of its runs."""
    reasoning: Literal["separate", "inline", "hidden"] = "separate"
    resumable: bool = False
    include_tools: bool = False
    """`server` events carry descriptions, schemas and hints."""
    provider: str | None = None
    """Appended to the model id as `:provider`; None for auto."""
    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json], repr=False)
    """Sampling and output parameters, passed to the model as they are."""
    user_token: Secret | None = None
    """The caller's own token (`X-User-Token`)."""
    principal: Principal = NOBODY
    request_id: str = ""
    """`X-Request-Id` of the request that started the run."""
