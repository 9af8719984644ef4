"""What the operator settles for all runs that use MCP servers."""

from dataclasses import dataclass, field

from app.domain.secrets import Secret
from app.domain.spec import ServerSpec
from app.toolbox.admission import Policy
from app.toolbox.line import ConnectionLimits
from app.toolbox.listing import ListingLimits
from app.toolbox.pool import PoolLimits
from app.toolbox.results import ResultLimits
from app.toolbox.wire import EgressLimits


@dataclass(frozen=True, slots=True)
class Options:
    """All of the room's settings."""

    environment: tuple[ServerSpec, ...] = ()
    policy: Policy = field(default_factory=Policy)
    egress: EgressLimits = field(default_factory=EgressLimits)
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    pool: PoolLimits = field(default_factory=PoolLimits)
    listing: ListingLimits = field(default_factory=ListingLimits)
    results: ResultLimits = field(default_factory=ResultLimits)
    list_wait_seconds: float = 3.0
    """How long a server may hold up a run that others are ready for."""
    shows_hosts: bool = False
    """`TOOLFERRY_SHOW_SERVER_URLS`: callers see on which hosts the environment's servers are."""
    forward_user_token: bool = False
    """`MCP_FORWARD_HF_USER_TOKEN`."""
    exa_api_key: Secret | None = None
