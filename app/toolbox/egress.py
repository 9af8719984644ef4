"""What may be dialled: names looked up and judged, and the HTTP client of one connection. Knows no messages."""

import socket
import threading
from collections.abc import Callable, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version

import anyio
import anyio.to_thread
import httpx2

from app.domain.spec import ServerSpec
from app.toolbox.addresses import Refused
from app.toolbox.admission import Admitted, Policy, judge_answers, judge_server
from app.toolbox.wire import EgressLimits, Wire

PRODUCT = "toolferry"
VERSION = version("toolferry")


class Egress:
    """The one door to MCP servers: who may be dialled, and the clients that dial."""

    def __init__(
        self, policy: Policy, limits: EgressLimits, resolve: Callable[[str, int], Sequence[str]] | None = None
    ) -> None:
        """Dial nothing yet. `resolve` gives a name's addresses, waits for them, and raises OSError."""
        self.policy = policy
        self.limits = limits
        self._resolve = resolve or _resolve
        self._lookups = threading.BoundedSemaphore(limits.dns_threads)

    async def vet(self, server: ServerSpec) -> Refused | None:
        """Judge a server's text, then all addresses of its name, before anything is dialled.

        The addresses are judged and not kept: dialling looks the name up again, and takes what it gets then.
        """
        admitted = judge_server(server, self.policy)
        if isinstance(admitted, Refused):
            return admitted
        if not admitted.addresses_needed:
            return None
        try:
            addresses = await self._look_up(admitted)
        except anyio.WouldBlock:
            return Refused("no_address", "Too many names are being looked up.")
        except (OSError, UnicodeError):
            return Refused("no_address", "The host has no address.")
        vetted = judge_answers(admitted, addresses, self.policy)
        return vetted if isinstance(vetted, Refused) else None

    async def _look_up(self, admitted: Admitted) -> Sequence[str]:
        """Ask the resolver in a thread. Slow names hold at most `dns_threads` of them; beyond that it fails at once."""
        if not self._lookups.acquire(blocking=False):
            raise anyio.WouldBlock

        def ask() -> Sequence[str]:
            try:
                return self._resolve(admitted.lookup_name, admitted.port)
            finally:
                self._lookups.release()

        limiter = anyio.CapacityLimiter(1)  # its own, so that it never waits for other rooms' threads
        with anyio.fail_after(self.limits.dns_seconds):
            return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)

    def client(self, server: ServerSpec, wire: "Wire") -> httpx2.AsyncClient:
        """Make the HTTP client of one connection: no cookies, no proxy, no compression, no redirects but the wire's."""
        own = {"accept-encoding": "identity", "user-agent": f"{PRODUCT}/{VERSION}"}
        return httpx2.AsyncClient(
            headers={**own, **{name: value.reveal() for name, value in server.headers.items()}},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=httpx2.Timeout(10, connect=self.limits.connect_seconds, read=None),
            max_redirects=0,
            transport=wire,
            trust_env=False,
        )


def _resolve(name: str, port: int) -> list[str]:
    return [str(answer[4][0]) for answer in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
