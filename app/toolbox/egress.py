"""The one door to MCP servers: who may be dialled, and the HTTP client of one connection. Knows no messages."""

from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version

import httpx2

from app.domain.spec import HOP_HEADER, ServerSpec
from app.toolbox.addresses import Refused
from app.toolbox.admission import Policy, judge_server
from app.toolbox.dialling import Dial, Dialler, Door, Lookups, NotDialled, Resolve, ssl_context
from app.toolbox.echoes import credentials_from_server
from app.toolbox.wire import EgressLimits, Wire

PRODUCT = "toolferry"
VERSION = version("toolferry")


class Egress:
    """Makes the clients that reach MCP servers. Each is for one connection, and its sockets end with it."""

    def __init__(
        self, policy: Policy, limits: EgressLimits, resolve: Resolve | None = None, *, dial: Dial | None = None
    ) -> None:
        """Dial nothing yet. `resolve` and `dial` stand in for the system's resolver and sockets."""
        self.policy = policy
        self.limits = limits
        self._lookups = Lookups(resolve, threads=limits.dns_threads, seconds=limits.dns_seconds)
        self._dial = dial

    async def vet(self, server: ServerSpec) -> Refused | None:
        """Judge a server's text. The addresses of its name are judged when it is dialled, each time anew."""
        admitted = judge_server(server, self.policy)
        return admitted if isinstance(admitted, Refused) else None

    def client(self, server: ServerSpec, wire: Wire) -> httpx2.AsyncClient:
        """Make the HTTP client of one connection: no cookies, no proxy but ours, no compression, no redirects itself.

        Raises:
            NotDialled: The server's text is refused.
        """
        wire.door = self._door(server)
        wire.credentials = credentials_from_server(server)
        own = {"accept-encoding": "identity", "user-agent": f"{PRODUCT}/{VERSION}", HOP_HEADER: "1"}
        given = {name.lower(): value.reveal() for name, value in server.headers.items()}
        return httpx2.AsyncClient(
            headers={**own, **given},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=httpx2.Timeout(10, connect=self.limits.connect_seconds, read=None),
            max_redirects=0,
            transport=wire,
            trust_env=False,
        )

    def _door(self, server: ServerSpec) -> Door:
        admitted = judge_server(server, self.policy)
        if isinstance(admitted, Refused):
            raise NotDialled(admitted.code, admitted.reason)
        is_users, proxy = server.trust == "user", self.limits.proxy
        dialler = Dialler(admitted, self.policy, self._lookups, dial=self._dial, has_proxy=proxy is not None)
        context = ssl_context(None if is_users else self.limits.ca_file)
        # The proxy is the operator's, whoever's the server behind it is.
        own = ssl_context(self.limits.ca_file)
        return Door(server.url, dialler, context, is_users=is_users, proxy=proxy, proxy_context=own)
