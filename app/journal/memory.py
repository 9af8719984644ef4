"""The record of runs in this process's memory: bounded in bytes and age, tailed by any number of readers.

A reader holds nothing but its cursor: what it has not read lies here once, encoded, for all readers. So a slow one
costs nothing, until what it wants is cut; then its reading ends with `Gone`.
"""

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import anyio

from app.domain.errors import Conflict, Gone, MalformedRequest, NotFound
from app.domain.events import Event
from app.domain.jsontypes import JsonObject
from app.domain.messages import Message
from app.domain.principal import NOBODY, Principal
from app.domain.questions import InputAnswer
from app.domain.wire import json_from_event
from app.journal.snapshot import Snapshot

_ENTRY_OVERHEAD_BYTES = 120
_KEYS_SHARE, _USERS_SHARE = 2, 8
"""The runs under way of one API key may take half of all room, those of one end user an eighth."""


class Entry(NamedTuple):
    """One recorded event."""

    id: int
    """The sequence number, from 1 without gaps."""
    name: str
    data: bytes
    """One line of JSON."""


@dataclass(frozen=True, slots=True)
class Options:
    """How much is kept, and how long after a run's end."""

    run_bytes: int = 16 * 1024 * 1024
    """Of one run's events, the oldest going first; and once more of what its snapshot shows."""
    total_bytes: int = 256 * 1024 * 1024
    """Of all runs; ended ones go, the one that ended first before others. While it is used up, no run is begun."""
    retention_seconds: float = 600.0


@dataclass(slots=True)
class _Tally:
    """What all records together hold, kept up as they change: counting would cost every request a walk."""

    bytes: int = 0
    running: Counter[Principal] = field(default_factory=Counter[Principal])
    held: Counter[Principal] = field(default_factory=Counter[Principal])
    """Bytes of the runs under way, by whose they are."""

    def add(self, size: int, owner: Principal) -> None:
        self.bytes += size
        self.held[owner] += size

    def end(self, size: int, owner: Principal) -> None:
        """A run of that size has ended, and is kept for a while."""
        for counter, count in ((self.held, size), (self.running, 1)):
            counter[owner] -= count
            if counter[owner] <= 0:
                del counter[owner]


class RunLog:
    """One run's events, its snapshot, and whoever waits for more."""

    def __init__(
        self, run_id: str, options: Options, tally: _Tally, *, owner: Principal, on_close: Callable[["RunLog"], None]
    ) -> None:
        self.owner = owner
        self.read_token = secrets.token_urlsafe(16)
        """Opens the events to a reader that can send no key."""
        self._run_id = run_id
        self._options = options
        self._tally = tally
        self._on_close = on_close
        self._entries: deque[Entry] = deque()
        self._entry_bytes = 0
        self._snapshot = Snapshot(run_id=run_id, created_at=_iso_now(), room=options.run_bytes)
        self._waiting: list[asyncio.Future[None]] = []
        self._cancel: Callable[[], None] | None = None
        self._is_cancelled = False
        self._take: Callable[[str, InputAnswer], None] | None = None
        self._lives_on = False
        self.last_id = 0
        self.key: str | None = None
        """The idempotency key that it was started under."""
        self.ended_at: float | None = None
        """Monotonic seconds; None while the run is under way."""

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def bytes(self) -> int:
        """What is held, about: events, and what the snapshot shows."""
        return self._entry_bytes + self._snapshot.bytes

    def append(self, event: Event) -> None:
        """Record an event and wake the readers."""
        before = self._snapshot.bytes
        self._snapshot.apply(event)
        self.last_id += 1
        entry = Entry(self.last_id, event.name, json_from_event(event))
        self._entries.append(entry)
        size = len(entry.data) + _ENTRY_OVERHEAD_BYTES
        while self._entry_bytes + size > self._options.run_bytes and len(self._entries) > 1:
            size -= len(self._entries.popleft().data) + _ENTRY_OVERHEAD_BYTES
        self._entry_bytes += size
        self._tally.add(size + self._snapshot.bytes - before, self.owner)
        self._wake()

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Record messages for the snapshot."""
        before = self._snapshot.bytes
        self._snapshot.add_messages(messages)
        self._tally.add(self._snapshot.bytes - before, self.owner)

    def on_cancel(self, cancel: Callable[[], None]) -> None:
        """Have `cancel` called when the run is to stop; at once if that was asked before."""
        self._cancel = cancel
        if self._is_cancelled:
            cancel()

    def cancel(self) -> None:
        """Ask the run to stop. Idempotent; an ended run stays as it ended."""
        if not self._is_cancelled and self.ended_at is None:
            self._is_cancelled = True
            if self._cancel is not None:
                self._cancel()

    def let_go(self) -> None:
        """The run lives on without the connection that owns it: somebody was told so."""
        self._lives_on = True

    def abandon(self) -> None:
        """Whoever owns the run has gone: it stops, unless it lives on without."""
        if not self._lives_on:
            self.cancel()

    def on_input(self, take: Callable[[str, InputAnswer], None]) -> None:
        """Have `take` called with what somebody answers."""
        self._take = take

    def answer(self, input_id: str, answer: InputAnswer) -> None:
        """Answer a question of the run's.

        Raises:
            NotFound: It was never asked.
            Conflict: It is not open any more.
            InvalidRequest: The answer does not fit; the question stays open.
        """
        if self._take is not None:
            self._take(input_id, answer)
        elif self._snapshot.has_resolved(input_id):
            raise Conflict("This question is not open any more.", param="inputId")
        else:
            raise NotFound("The run has asked no such question.", param="inputId")

    def close(self) -> None:
        """End the record; readers end after what is there."""
        self.ended_at = time.monotonic()
        self._cancel = self._take = None
        self._on_close(self)
        self._wake()

    def check_cursor(self, after: int, *, param: str | None = None) -> None:
        """Make sure that reading can go on after an event id.

        Raises:
            MalformedRequest: There was no such event.
            Gone: What follows it is no longer kept.
        """
        if not 0 <= after <= self.last_id:
            raise MalformedRequest(f"There is no event {after}; the last one is {self.last_id}.", param=param)
        if self._entries and after < self._entries[0].id - 1:
            raise Gone(f"Events up to {self._entries[0].id - 1} are no longer kept.", param=param)

    async def read(self, after: int) -> Sequence[Entry]:
        """Return all events after `after`, waiting for the first; empty when the run has ended and nothing follows.

        Raises:
            Gone: The reader was too slow: what it wants was cut.
        """
        while self.last_id <= after:
            if self.ended_at is not None:
                return ()
            await self._news()
        self.check_cursor(after)
        skipped = len(self._entries) - (self.last_id - after)
        if skipped == 0:
            return tuple(self._entries)
        # From the end: a reader that keeps up wants the last few of many.
        newest = list(islice(reversed(self._entries), self.last_id - after))
        newest.reverse()
        return newest

    async def ended(self) -> None:
        """Wait for the run's end."""
        while self.ended_at is None:
            await self._news()

    async def at_rest(self) -> None:
        """Wait until nothing goes on without the caller: the run has ended, or waits for a person."""
        while self.ended_at is None and not self._snapshot.awaits_input:
            await self._news()

    def snapshot(self) -> JsonObject:
        """Show the run as it is now."""
        return self._snapshot.data(last_event_id=self.last_id)

    async def _news(self) -> None:
        news = asyncio.get_running_loop().create_future()
        self._waiting.append(news)
        try:
            await news
        finally:
            if news in self._waiting:
                self._waiting.remove(news)

    def _wake(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for news in waiting:
                if not news.done():
                    news.set_result(None)


class MemoryJournal:
    """All runs of this process that are under way or ended lately."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._tally = _Tally()
        self._logs: dict[str, RunLog] = {}
        self._ended: deque[RunLog] = deque()
        """In the order in which they ended."""
        self._keys: dict[tuple[Principal, str], tuple[bytes, str]] = {}

    @property
    def running(self) -> int:
        """How many runs are under way."""
        return self._tally.running.total()

    def running_of(self, owner: Principal) -> tuple[int, int]:
        """Count the runs under way of the owner's key, and of those the owner's own."""
        running = self._tally.running
        return sum(count for other, count in running.items() if other.key == owner.key), running[owner]

    def is_full_for(self, owner: Principal) -> bool:
        """Whether runs under way take all the room there is, or those of the owner their share of it."""
        self.forget_old()
        total, held = self._options.total_bytes, self._tally.held
        of_key = sum(size for other, size in held.items() if other.key == owner.key)
        has_share = owner == NOBODY or (
            of_key < total // _KEYS_SHARE and (owner.user is None or held[owner] < total // _USERS_SHARE)
        )
        return self._tally.bytes >= total or not has_share

    def open(
        self, run_id: str, *, owner: Principal = NOBODY, key: str | None = None, fingerprint: bytes = b""
    ) -> RunLog:
        """Begin a run's record, under an idempotency key if the caller gave one."""
        self.forget_old()
        log = self._logs[run_id] = RunLog(run_id, self._options, self._tally, owner=owner, on_close=self._note_end)
        self._tally.running[owner] += 1
        if key is not None:
            log.key = key
            self._keys[owner, key] = (fingerprint, run_id)
        return log

    def find(self, run_id: str) -> RunLog | None:
        """Look up a run's record; None when there never was one or it has expired."""
        self.forget_old()
        return self._logs.get(run_id)

    def find_by_key(self, owner: Principal, key: str, fingerprint: bytes) -> RunLog | None:
        """Look up the run that its owner started under an idempotency key.

        Raises:
            Conflict: It was another request.
        """
        known = self._keys.get((owner, key))
        log = None if known is None else self.find(known[1])
        if known is not None and log is not None and known[0] != fingerprint:
            raise Conflict("This Idempotency-Key was used with another request.", param="Idempotency-Key")
        return log

    async def keep_tidy(self) -> None:
        """Forget what is old also while nobody asks; runs until cancelled."""
        while True:
            await anyio.sleep(min(max(self._options.retention_seconds / 10, 1), 60))
            self.forget_old()

    def forget_old(self) -> None:
        """Forget the runs that ended too long ago, and the first ones as long as all take too much room."""
        expiry = time.monotonic() - self._options.retention_seconds
        while self._ended:
            log = self._ended[0]
            is_expired = log.ended_at is not None and log.ended_at <= expiry
            if not is_expired and self._tally.bytes <= self._options.total_bytes:
                return
            self._ended.popleft()
            self._tally.bytes -= log.bytes
            del self._logs[log.run_id]
            if log.key is not None:
                del self._keys[log.owner, log.key]

    def _note_end(self, log: RunLog) -> None:
        self._tally.end(log.bytes, log.owner)
        self._ended.append(log)


def _iso_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
