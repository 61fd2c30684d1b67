"""TICK: schedules → jobs. A few workers of a fleet do it. Any number of them may: one compare-and-set decides each slot."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import monotonic

from msgspec.structs import replace

from headrace.client import enqueue_log
from headrace.errors import ConfigError, HeadraceError, QueueFull
from headrace.model.job import Batch, JobId
from headrace.model.records import Record
from headrace.operate.schedules import KIND, Schedules, decode
from headrace.policy.explain.sentences import count
from headrace.policy.schedule import Schedule, slot_batch, slot_job
from headrace.policy.schedule_entry import UNIQUE, ScheduleEntry, decide, encode, fired, slot_job_id
from headrace.store.contract import Store
from headrace.worker.service import Backoff, OutageLog, Service, log

POLL = 1.0
IDLE_POLL = 10.0
"""Seconds between two reads while there are no schedules."""
POLL_SHARE = 20
"""With very many schedules, reading them takes at most a twentieth of the time."""
TAKEOVER = timedelta(seconds=1)
"""After this time any worker fires a slot that another worker decided and did not fire."""
AT_ONCE = 16
HANDICAP = (0.3, 0.9)


@dataclass(slots=True)
class Seen:
    """A schedule as it was last read or written."""

    version: int
    entry: ScheduleEntry | None
    """None: it cannot be read."""


class Ticker(Service):
    """Sleeps until the next slot by the store's clock, decides it, and fires it.

    The ticker that decided the last slot acts at once. The others wait a little longer and find the next slot decided,
    so that they write nothing. When the first one has ended, the next ticker that finds a slot open replaces it.
    """

    name = "ticker"

    def __init__(
        self,
        store: Store,
        declared: Mapping[str, Schedule],
        *,
        app: str = "",
        tasks: Collection[str] = (),
        emit: Callable[..., None] | None = None,
        poll: float = POLL,
        on_duty: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._on_duty = on_duty
        self._store = store
        self._declared = declared
        self._app = app
        self._tasks = tasks
        self._emit = emit
        self._poll_every = poll
        self._introduced = False
        self._backoff = Backoff()
        self._outage = OutageLog("ticking")
        self._seen: dict[str, Seen] = {}
        self._agenda: list[tuple[datetime, str, int]] = []
        """A heap of (time by the store's clock, name, version). Entries whose version has changed are ignored."""
        self._full: dict[str, datetime] = {}
        """Slots that wait because their queue is full, by schedule. Each is logged once."""
        self._poll_at = 0.0
        self._handicap = timedelta(0)
        self._clock = (datetime.min.replace(tzinfo=UTC), 0.0)
        """The store's time, and the monotonic time of the answer."""

    async def run(self) -> None:
        while True:
            try:
                await self.introduce()
                seconds = await self.tick() if self._on_duty() else None
            except HeadraceError as error:
                self._outage.raise_(error)
                # The call may have changed some schedules, so read all of them again.
                self._seen.clear()
                self._agenda.clear()
                self._poll_at = 0.0
                await asyncio.sleep(self._backoff.next())
                continue
            self._outage.settle()
            self._backoff.reset()
            await self.bell.wait(seconds)

    def begin(self) -> None:
        """Read the schedules anew, because this worker is one of those that tick from now on."""
        self._poll_at = 0.0
        self.bell.ring()

    async def introduce(self) -> None:
        """Store the schedules of this worker's code, once."""
        if self._introduced:
            return
        if self._declared or self._tasks:
            gone = await Schedules(self._store).declare(self._declared, app=self._app, tasks=self._tasks)
            for name in gone:
                log.warning(
                    "schedule %s is no longer declared in code and still fires: `headrace schedules remove %s` ends it",
                    name,
                    name,
                    extra={"event": "schedule.undeclared", "schedule": name},
                )
        self._introduced = True

    async def tick(self) -> float:
        """Fire what is due. Returns the seconds until the next call."""
        if monotonic() >= self._poll_at:
            await self._poll()
        due = self._take_due()
        if due and self._handicap:
            # Another worker is usually quicker, so read first.
            await self._poll()
            due = [(name, version) for name, version in due if self._current(name, version)]
        if due:
            now = await self._now()
            names = (name for name, _ in due)
            while some := list(islice(names, AT_ONCE)):
                answers = await asyncio.gather(*(self._serve(name, now) for name in some), return_exceptions=True)
                for answer in answers:
                    if answer is not None:
                        raise answer
        return max(0.0, self._next_at() - monotonic())

    # ── what is when ────────────────────────────────────────────────────────
    async def _poll(self) -> None:
        begun = monotonic()
        records = await self._store.records(KIND)
        if records:
            await self._now()
        for name in self._seen.keys() - records.keys():
            del self._seen[name]
        for name, record in records.items():
            self._read(name, record)
        pause = max(self._poll_every, POLL_SHARE * (monotonic() - begun)) if records else IDLE_POLL
        self._poll_at = monotonic() + (pause * random.uniform(0.8, 1.0) if self._poll_every else 0.0)

    def _read(self, name: str, record: Record) -> None:
        seen = self._seen.get(name)
        if seen is None or seen.version != record.version:
            self._remember(name, record.version, decode(name, record))

    def _remember(self, name: str, version: int, entry: ScheduleEntry | None) -> None:
        self._seen[name] = Seen(version, entry)
        if entry is None:
            return
        if entry.pending:
            self._note(self._estimate() + TAKEOVER, name)
            return
        try:
            slot = entry.next_slot(entry.cursor)
        except ConfigError as error:
            # Declared on a machine that knows more time zones than this one.
            log.warning("schedule %s cannot tick here: %s", name, error, extra={"schedule": name})
            return
        if slot is not None:
            self._note(slot, name)

    def _note(self, when: datetime, name: str) -> None:
        heapq.heappush(self._agenda, (when, name, self._seen[name].version))

    def _take_due(self) -> list[tuple[str, int]]:
        edge = self._estimate() - self._handicap
        due: list[tuple[str, int]] = []
        while self._agenda and self._agenda[0][0] <= edge:
            _, name, version = heapq.heappop(self._agenda)
            if self._current(name, version):
                due.append((name, version))
        return due

    def _current(self, name: str, version: int) -> bool:
        """Whether this version is current. A changed schedule has a new entry on the agenda."""
        return name in self._seen and self._seen[name].version == version

    def _next_at(self) -> float:
        if not self._agenda:
            return self._poll_at
        now, heard = self._clock
        return min(self._poll_at, heard + (self._agenda[0][0] + self._handicap - now).total_seconds())

    async def _now(self) -> datetime:
        now = await self._store.now()
        self._clock = now, monotonic()
        return now

    def _estimate(self) -> datetime:
        """The store's time, never ahead of it. The local wall clock is not used."""
        now, heard = self._clock
        return now + timedelta(seconds=monotonic() - heard)

    # ── one schedule ────────────────────────────────────────────────────────
    async def _serve(self, name: str, now: datetime) -> None:
        entry = self._seen[name].entry
        assert entry is not None  # An unreadable schedule is not on the agenda.
        if entry.pending:
            await self._fire(name, entry)
            return
        busy = entry.schedule.overlap != "allow" and await self._busy(entry)
        decided = decide(entry, now, busy=busy)
        if decided is None:
            self._remember(name, self._seen[name].version, entry)
            return
        begun = monotonic()
        if not await self._write(name, decided):
            return
        self._handicap = timedelta(0)
        self._tell(name, decided, entry)
        # After a long stop another worker may have fired the slot, and its jobs may be pruned. Then read before firing.
        if decided.pending and monotonic() - begun < TAKEOVER.total_seconds():
            await self._fire(name, decided)

    async def _busy(self, entry: ScheduleEntry) -> bool:
        if entry.last is None:
            return False
        [job] = await self._store.get([JobId(entry.last)])
        return job is not None and not job.state.finished

    async def _fire(self, name: str, entry: ScheduleEntry) -> None:
        """Fire the pending slots. Any worker may repeat this."""
        if entry.cancel is not None:
            await self._store.cancel([JobId(entry.cancel)], f"the next slot of schedule {name} has come")
        met: dict[datetime, JobId] = {}
        for place, slot in enumerate(entry.pending):
            try:
                job = slot_job(entry.schedule, slot)
                answer = await self._store.enqueue(Batch(slot_batch(name, slot), [job]))
            except QueueFull as error:
                await self._wait_for_room(name, entry, place, met, error)
                return
            if enqueue_log.is_on():
                id = answer.existing.get(0, slot_job_id(name, slot))
                enqueue_log.tell(job, id, created=not answer.existing, by=f"schedule {name}")
            if 0 in answer.existing:
                met[slot] = answer.existing[0]
            elif self._emit is not None:
                self._emit("schedule.fired", schedule=name, slot=slot, job=slot_job_id(name, slot))
        if await self._write(name, fired(entry, met)) and met:
            self._tell_skipped(name, len(met), UNIQUE)

    async def _wait_for_room(
        self, name: str, entry: ScheduleEntry, enqueued: int, met: Mapping[datetime, JobId], error: QueueFull
    ) -> None:
        """Keep the slots that the full queue refused as pending. Earlier slots are done and are never fired again."""
        if self._full.get(name) != entry.pending[enqueued]:
            self._full[name] = entry.pending[enqueued]
            log.warning("schedule %s waits: %s", name, error, extra={"event": "schedule.waits", "schedule": name})
        if enqueued:
            over = fired(replace(entry, pending=entry.pending[:enqueued]), met)
            await self._write(name, replace(over, pending=entry.pending[enqueued:]))
        else:
            self._note(self._estimate() + TAKEOVER, name)

    async def _write(self, name: str, entry: ScheduleEntry) -> bool:
        version = await self._store.record(KIND, name, encode(entry), self._seen[name].version)
        if version is None:
            self._handicap = timedelta(seconds=random.uniform(*HANDICAP))
            self._poll_at = 0.0
            return False
        self._remember(name, version, entry)
        return True

    def _tell(self, name: str, decided: ScheduleEntry, before: ScheduleEntry) -> None:
        skipped = decided.skipped - before.skipped
        if not skipped:
            return
        fresh = [
            decision for decision in decided.recent if decision.slot > before.cursor and decision.answer == "skipped"
        ]
        self._tell_skipped(name, skipped, ", ".join(sorted({decision.reason for decision in fresh})))

    def _tell_skipped(self, name: str, skipped: int, reasons: str) -> None:
        log.warning(
            "schedule %s: %s skipped (%s)",
            name,
            count(skipped, "slot"),
            reasons,
            extra={"event": "schedule.skipped", "schedule": name, "slots": skipped, "reason": reasons},
        )
        if self._emit is not None:
            self._emit("schedule.skipped", schedule=name, slots=skipped, reason=reasons)
