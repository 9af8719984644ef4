"""The record of runs in this process's memory: bounded in bytes and age, tailed by any number of readers.

A reader holds nothing but its cursor: what it has not read lies here once, encoded, for all readers. So a slow one
costs nothing, until what it wants is cut; then its reading ends with `Gone`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from app.domain.errors import Conflict, Gone, MalformedRequest
from app.domain.events import Event
from app.domain.jsontypes import JsonObject
from app.domain.messages import Message
from app.domain.wire import json_from_event, json_from_value
from app.journal.snapshot import Snapshot

_ENTRY_OVERHEAD_BYTES = 120


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
    """Of one run's events; the oldest go first."""
    total_bytes: int = 256 * 1024 * 1024
    """Of all runs' events; ended runs go, the oldest first."""
    retention_seconds: float = 600.0


class RunLog:
    """One run's events, its snapshot, and whoever waits for more."""

    def __init__(self, run_id: str, options: Options) -> None:
        self._run_id = run_id
        self._options = options
        self._entries: deque[Entry] = deque()
        self._snapshot = Snapshot(run_id=run_id, created_at=_iso_now())
        self._waiting: list[asyncio.Future[None]] = []
        self._cancel: Callable[[], None] | None = None
        self._is_cancelled = False
        self.last_id = 0
        self._entry_bytes = 0
        self.bytes = 0
        """Of events and messages."""
        self.ended_at: float | None = None
        """Monotonic seconds; None while the run is under way."""

    @property
    def run_id(self) -> str:
        return self._run_id

    def append(self, event: Event) -> None:
        """Record an event and wake the readers."""
        self._snapshot.apply(event)
        self.last_id += 1
        entry = Entry(self.last_id, event.name, json_from_event(event))
        self._entries.append(entry)
        self.bytes += len(entry.data) + _ENTRY_OVERHEAD_BYTES
        self._entry_bytes += len(entry.data) + _ENTRY_OVERHEAD_BYTES
        while self._entry_bytes > self._options.run_bytes and len(self._entries) > 1:
            cut = len(self._entries.popleft().data) + _ENTRY_OVERHEAD_BYTES
            self._entry_bytes -= cut
            self.bytes -= cut
        self._wake()

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Record messages for the snapshot."""
        self._snapshot.add_messages(messages)
        self.bytes += sum(len(json_from_value(message)) for message in messages)

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

    def close(self) -> None:
        """End the record; readers end after what is there."""
        self.ended_at = time.monotonic()
        self._cancel = None
        self._wake()

    def check_cursor(self, after: int) -> None:
        """Make sure that reading can go on after an event id.

        Raises:
            MalformedRequest: There was no such event.
            Gone: What follows it is no longer kept.
        """
        if not 0 <= after <= self.last_id:
            raise MalformedRequest(f"There is no event {after}; the last one is {self.last_id}.", param="Last-Event-ID")
        if self._entries and after < self._entries[0].id - 1:
            raise Gone(f"Events up to {self._entries[0].id - 1} are no longer kept.", param="Last-Event-ID")

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
        count = self.last_id - after
        if count == len(self._entries):
            return tuple(self._entries)
        return tuple(self._entries[position] for position in range(-count, 0))

    def ended_by(self, moment: float) -> bool:
        """Tell whether the run had ended by a moment, in monotonic seconds."""
        return self.ended_at is not None and self.ended_at <= moment

    async def ended(self) -> None:
        """Wait for the run's end."""
        while self.ended_at is None:
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
        self._logs: dict[str, RunLog] = {}
        self._keys: dict[str, tuple[bytes, str]] = {}

    def open(self, run_id: str, *, key: str | None = None, fingerprint: bytes = b"") -> RunLog:
        """Begin a run's record, under an idempotency key if the caller gave one."""
        self._forget_old()
        log = RunLog(run_id, self._options)
        self._logs[run_id] = log
        if key is not None:
            self._keys[key] = (fingerprint, run_id)
        return log

    def find(self, run_id: str) -> RunLog | None:
        """Look up a run's record; None when there never was one or it has expired."""
        log = self._logs.get(run_id)
        return None if log is None or log.ended_by(self._expiry()) else log

    def find_by_key(self, key: str, fingerprint: bytes) -> RunLog | None:
        """Look up the run that was started under an idempotency key.

        Raises:
            Conflict: It was another request.
        """
        known = self._keys.get(key)
        if known is None or self.find(known[1]) is None:
            return None
        if known[0] != fingerprint:
            raise Conflict("This Idempotency-Key was used with another request body.", param="Idempotency-Key")
        return self.find(known[1])

    def running(self) -> int:
        """Count the runs under way."""
        return sum(log.ended_at is None for log in self._logs.values())

    def _expiry(self) -> float:
        return time.monotonic() - self._options.retention_seconds

    def _forget_old(self) -> None:
        expiry = self._expiry()
        total = sum(log.bytes for log in self._logs.values())
        for run_id, log in list(self._logs.items()):
            if log.ended_by(expiry) or (log.ended_at is not None and total > self._options.total_bytes):
                total -= log.bytes
                del self._logs[run_id]
        if len(self._keys) > len(self._logs):
            self._keys = {key: known for key, known in self._keys.items() if known[1] in self._logs}


def _iso_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
