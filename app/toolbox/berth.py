"""A run's place at one server: a connection, leased ahead of the first call and given back at the run's end."""

import logging
from dataclasses import dataclass

import anyio

from app.domain.jsontypes import Json, JsonObject
from app.domain.ports import Caller, Emit, Person
from app.domain.spec import RunSpec, ServerSpec
from app.toolbox.entries import ListedTool
from app.toolbox.inquiry import Inquiry, answers_to, went_where_it_must
from app.toolbox.line import Call
from app.toolbox.listing import Listing, Listings
from app.toolbox.patience import Patience
from app.toolbox.pool import Party, Pool
from app.toolbox.progress import ProgressGate
from app.toolbox.server import Connection
from app.toolbox.trouble import Trouble

_log = logging.getLogger(__name__)

_MOST_ROUNDS = 10
"""How often a tool may ask before it gives its result."""
_MOST_PAUSE_SECONDS = 0.25
_UNCLEAR = ("tool_outcome_unknown", "connection_lost")


@dataclass(frozen=True, slots=True)
class Trip:
    """The run that a toolbox is for."""

    spec: RunSpec
    emit: Emit
    person: Person

    @property
    def party(self) -> Party:
        return Party(self.spec.interactive, self.spec.conversation_id)


@dataclass(frozen=True, slots=True)
class Wait:
    """How long one call is waited for, in seconds, and how long it is expected to take."""

    silence: float
    total: float
    expected: float | None = None


class Berth:
    """One run at one server. `leave` must be called in the end."""

    def __init__(self, pool: Pool, listings: Listings, server: ServerSpec, party: Party) -> None:
        self.server = server
        self.party = party
        self._pool = pool
        self._listings = listings
        self._held: Connection | None = None
        self._lock = anyio.Lock()
        self._listing = anyio.Lock()
        self._listed: tuple[float, Listing] | None = None
        """The latest that was asked for afresh, and when that was begun: calls that were allowed at once share one."""
        self._warming = anyio.CancelScope()
        self._has_left = False
        self.on_change = _ignore
        """Called when the server says that the tools of this run's own session have changed."""

    async def warm(self) -> None:
        """Lease ahead, so that the first call need not wait. Trouble is left to that call."""
        try:
            with self._warming:
                await self._connection(None)
        except Trouble:
            pass
        except Exception:  # noqa: BLE001 - one server must not end the room; logged with its traceback
            _log.exception("A connection could not be opened ahead for a reason that nobody thought of.")
        finally:
            if self._has_left:
                self._give_back()

    async def call(self, tool: ListedTool, arguments: JsonObject, caller: Caller, *, wait: Wait, trip: Trip) -> "Done":
        """Call a tool, with all that its server wants to know meanwhile.

        The server is told when the wait ends before its answer, by time or by cancellation.

        Raises:
            Trouble: There is no result.
        """
        patience = Patience(silence_seconds=wait.silence, total_seconds=wait.total)
        gate = ProgressGate(caller.on_progress, expected=wait.expected, elapsed=lambda: patience.elapsed_seconds)
        inquiry = Inquiry(trip.person, trip.emit, self.server.name, caller.uuid, patience)
        call = Call(tool, patience, gate, inquiry if self.party.elicits else None)
        is_cancelled = True
        try:
            result = await self._result(call, arguments)
            is_cancelled = False
            return Done(result, patience.elapsed_seconds)
        except Trouble as trouble:
            is_cancelled = trouble.code == "tool_timeout"
            raise
        finally:
            gate.close()
            inquiry.end("cancel" if is_cancelled else "server")

    async def _result(self, call: Call, arguments: JsonObject) -> JsonObject:
        params: JsonObject = {"name": call.tool.wire_name, "arguments": arguments}
        pause = _MOST_PAUSE_SECONDS / 4
        for left in reversed(range(_MOST_ROUNDS + 1)):
            result = await self._sent(call, params)
            requests: Json = result.get("inputRequests")
            if result.get("resultType") != "input_required" or (requests and call.inquiry is None):
                return result
            if not requests and result.get("requestState") is None:
                raise Trouble("tool_failed", "The tool asks for nothing, in a form that is not MCP.")
            if not left:
                break
            params = {"name": call.tool.wire_name, "arguments": arguments}
            if requests and call.inquiry is not None:
                params["inputResponses"] = await answers_to(requests, call.inquiry)
            else:
                # It only wants to be asked again, for whatever reason: not at once, and not at any rate.
                await anyio.sleep(pause)
                pause = min(pause * 2, _MOST_PAUSE_SECONDS)
            if result.get("requestState") is not None:
                params["requestState"] = result["requestState"]
        raise Trouble("tool_failed", f"The tool asked more than {_MOST_ROUNDS} times and gave no result.")

    async def _sent(self, call: Call, params: JsonObject) -> JsonObject:
        """Send a call; where its server first wants pages to be visited, again after each time that they were."""
        for _ in range(_MOST_ROUNDS):
            try:
                return await self._sent_once_more(call, params)
            except Trouble as trouble:
                if call.inquiry is None or not await went_where_it_must(trouble, call.inquiry):
                    raise
        return await self._sent_once_more(call, params)

    async def _sent_once_more(self, call: Call, params: JsonObject) -> JsonObject:
        """Send a call; where nothing was executed for sure, or it does no harm, once more.

        Where the connection is lost, that is over a new one, which all calls share that lost it.
        """
        connection = await self._connection(None)
        try:
            return await connection.call(call, params)
        except Trouble as trouble:
            if not trouble.again and not (trouble.code in _UNCLEAR and call.tool.is_repeatable):
                raise
            lost = connection if trouble.again else None
        connection = await self._connection(lost)
        return await connection.call(call, params)

    async def list(self) -> Listing:
        """List the server as this run sees it: over its own session where it has one.

        Raises:
            Trouble: It cannot be listed.
        """
        if self._pool.has_own_list(self.server, self.party):
            await self._connection(None)
        held = self._own_session()
        if held is not None:
            return await self._listings.over(held, self.server)
        return await self._listings.of(self.server, elicits=self.party.elicits)

    async def list_afresh(self) -> Listing:
        """List the server now, whatever is known of it, as this run sees it.

        Raises:
            Trouble: It cannot be listed.
        """
        asked = anyio.current_time()
        async with self._listing:
            if self._listed is None or self._listed[0] < asked:
                begun = anyio.current_time()
                self._listed = (begun, await self._list_once_more())
            return self._listed[1]

    async def _list_once_more(self) -> Listing:
        """List; where the run's session is lost, over a new one, and where the server was only busy, once more."""
        connection = await self._connection(None)
        try:
            return await self._list_over(connection)
        except Trouble as trouble:
            if not (trouble.again or trouble.is_busy):
                raise
            lost = connection if trouble.again else None
        return await self._list_over(await self._connection(lost))

    async def _list_over(self, connection: Connection) -> Listing:
        if connection.serves_one_run:
            return await self._listings.over(connection, self.server)
        return await self._listings.afresh(self.server, elicits=self.party.elicits)

    def _own_session(self) -> Connection | None:
        held = self._held
        return held if held is not None and held.serves_one_run and not held.is_over else None

    async def _connection(self, lost: Connection | None) -> Connection:
        """Return the held connection, or lease one that answers. Calls that lost the same one share the next."""
        held = self._held
        if held is not None and held is not lost and await held.answers():
            return held
        async with self._lock:
            while True:
                if self._held is not None and (self._held is lost or self._held.is_over):
                    self._give_back()
                if self._held is None:
                    self._held = await self._pool.lease(self.server, self.party)
                    if self._held.serves_one_run:
                        self._held.on_change = self._tell_change
                if await self._held.answers():
                    return self._held

    def _tell_change(self) -> None:
        self.on_change()

    def leave(self) -> None:
        """Give the connection back."""
        self._has_left = True
        self._warming.cancel()
        self._give_back()

    def _give_back(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            held.on_change = None
            held.release()


@dataclass(frozen=True, slots=True)
class Done:
    """A result as it came, and how long it took without the time of a person."""

    result: JsonObject
    seconds: float


def _ignore() -> None:
    pass
