"""TALLY: counts the ends of attempts by minute, queue, task and end, as settlements pass in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from headrace.model.histogram import Histogram
from headrace.model.job import Claimed
from headrace.model.lease import MAX_LEASE
from headrace.model.outcome import DONE, Settlement
from headrace.model.rollup import ALL_QUEUES, HOUR, OTHER_TASKS, AttemptEnd, Rollup, usage_rollup
from headrace.model.usage import Usage
from headrace.worker.attempt_times import AttemptTimes

if TYPE_CHECKING:
    from headrace.worker.attempt import Attempt
    from headrace.worker.state import HeldLease

MEASURED_WHOLE: Final = 32
"""Jobs of a lease whose times are all measured. Of a larger lease, about so many of each task are measured, or fewer."""
MOST_KEYS: Final = 1000
"""Keys that are counted between two writes. Beyond that, the tasks of a queue count as one."""

Key = tuple[int, str, str, AttemptEnd]
"""Minute, queue, task, end."""
Kinds = tuple[str, str] | list[tuple[str, str]]
"""The queue and task of all jobs of a lease, or of each by its position."""
EACH: Final = bytes([1] * MAX_LEASE)
"""Every attempt of a lease is measured and stands for itself."""
_EVERY: Final = {
    stride: bytes([0 if place % stride else stride for place in range(MAX_LEASE + stride)])
    for stride in (2, 4, 8, 16, 32)
}
"""stride → for how many attempts the one at each place stands. A lease begins at one of the first places."""
Measured = tuple["Attempt", float, AttemptEnd | None]
"""An attempt, when it ended on the monotonic clock, and how. None: it succeeded, and stands for others of its lease."""


class _Entry:
    """What was counted for one key."""

    __slots__ = ("count", "run", "wait")

    def __init__(self) -> None:
        self.count = 0
        self.wait = Histogram()
        self.run = Histogram()

    def merge(self, other: _Entry) -> None:
        """Add what the other one holds."""
        self.count += other.count
        self.wait.merge(other.wait)
        self.run.merge(other.run)


class _Times:
    """The durations of attempts with one key, before they go into its histograms."""

    __slots__ = ("count", "run", "wait")

    def __init__(self) -> None:
        self.count = 0
        self.wait: list[float] = []
        self.run: list[float] = []


class Tally:
    """Counts in memory. `take` empties it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: dict[Key, _Entry] = {}
        self._earlier: dict[Key, _Entry] = {}
        """What `times` has got already and `take` has not returned yet."""
        self._times: AttemptTimes | None = None
        self._seconds: dict[tuple[str, str], float] = {}
        """Queue and tenant → run seconds."""
        self._slots = Usage()
        self.credited = 0.0
        """Slots are counted as busy up to this time of the monotonic clock, also those of attempts that go on."""

    def times(self) -> AttemptTimes:
        """The times of all attempts since the first call. Without a call, nothing is added up."""
        if self._times is None:
            self._times = AttemptTimes()
        self._pass_on(self._times)
        return self._times

    def _pass_on(self, times: AttemptTimes) -> None:
        fresh, self._entries = self._entries, {}
        for key, entry in fresh.items():
            _, queue, task, end = key
            # Only successes are measured in part. An attempt that ended in another way may not have run at all.
            times.add(queue, task, entry.wait, entry.run, entry.count if end is AttemptEnd.DONE else None)
        if not self._earlier:
            self._earlier = fresh
            return
        for key, entry in fresh.items():
            _entry(self._earlier, key).merge(entry)

    def settled(
        self, held: HeldLease, batch: Sequence[tuple[int, Settlement]], measured: Sequence[Measured], *, plain: bool
    ) -> None:
        """A batch of a lease is settled. `plain`: all of it are successes without results."""
        now = self._now()
        minute, ahead = int(now // 60), now - monotonic()
        groups: dict[tuple[Key, int], _Times] = {}
        enqueued_at, enqueued = None, 0.0
        queue, tenant, ran = "", "", 0.0
        users: dict[tuple[str, str], float] = {}
        credited = self.credited
        for attempt, ended, end in measured:
            job = attempt.job
            weight = held.weights[attempt.position] if end is None else 1
            group = ((minute, job.queue, job.task, end or AttemptEnd.DONE), weight)
            if (times := groups.get(group)) is None:
                times = groups[group] = _Times()
            times.count += end is not None or held.kinds is None
            if started := attempt.started:
                seconds = ended - started
                times.run.append(seconds)
                if job.tenant != tenant or job.queue != queue:
                    # Neighbours often have the same tenant.
                    users[queue, tenant] = users.get((queue, tenant), 0.0) + ran
                    queue, tenant, ran = job.queue, job.tenant, 0.0
                ran += seconds * weight
                if started < credited:
                    self._slots.busy -= (min(ended, credited) - started) * weight
                if job.attempt == 1:
                    if job.enqueued_at is not enqueued_at:
                        enqueued_at = job.enqueued_at
                        enqueued = enqueued_at.timestamp() - ahead
                    times.wait.append(started - enqueued)
        users[queue, tenant] = users.get((queue, tenant), 0.0) + ran
        for (queue, tenant), ran in users.items():
            self._run(queue, tenant, ran)
        for (key, weight), times in groups.items():
            self._add(key, times, weight)
        if held.kinds is not None:
            self._count(minute, held.kinds, batch if plain else _plain(batch, measured))

    def _count(self, minute: int, kinds: Kinds, batch: Sequence[tuple[int, Settlement]]) -> None:
        """Count successes of a large lease, measured or not."""
        if not batch:
            return
        if isinstance(kinds, tuple):
            _entry(self._entries, (minute, *kinds, AttemptEnd.DONE)).count += len(batch)
            return
        for kind, count in Counter([kinds[position] for position, _ in batch]).items():
            _entry(self._entries, (minute, *kind, AttemptEnd.DONE)).count += count

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        """An attempt ended outside of a batch."""
        self.add(attempt.job, end, started=attempt.started, ended=monotonic())

    def add(self, job: Claimed, end: AttemptEnd, *, started: float = 0.0, ended: float = 0.0) -> None:
        """Count one attempt. Its times are those of the monotonic clock; 0: unknown."""
        now, times = self._now(), _Times()
        if started:
            times.run.append(ended - started)
            self._run(job.queue, job.tenant, ended - started)
            self._slots.busy -= max(0.0, min(ended, self.credited) - started)
            if job.attempt == 1:
                times.wait.append(started + now - monotonic() - job.enqueued_at.timestamp())
        times.count = 1
        self._add((int(now // 60), job.queue, job.task, end), times, 1)

    def take(self) -> list[Rollup]:
        """What was counted since the last call, as rollups with fresh ids."""
        usage = self._take_usage()
        if self._times is not None:
            self._pass_on(self._times)
        entries = self._entries if self._times is None else self._earlier
        self._entries, self._earlier = {}, {}
        return usage + [
            Rollup(
                start=minute,
                id=uuid4(),
                queue=queue,
                task=task,
                end=end,
                count=entry.count,
                wait=entry.wait.pack(),
                run=entry.run.pack(),
                sent=0,
            )
            for (minute, queue, task, end), entry in entries.items()
        ]

    def _run(self, queue: str, tenant: str, seconds: float) -> None:
        """Count run seconds, as if none of them were credited."""
        if seconds:
            user = (queue, tenant)
            self._seconds[user] = self._seconds.get(user, 0.0) + seconds
            self._slots.busy += seconds

    @property
    def counted(self) -> bool:
        """Attempts have ended since the last call of `take`."""
        return bool(self._entries or self._earlier)

    def use_slots(self, busy: float, *, available: float) -> None:
        """Count seconds of slots, besides those of attempts that have ended."""
        self._slots.busy += busy
        self._slots.available += available

    def _take_usage(self) -> list[Rollup]:
        """A rollup for each queue in which attempts ended, and one for the slots."""
        seconds, self._seconds = self._seconds, {}
        slots, self._slots = self._slots, Usage()
        usages: dict[str, Usage] = {ALL_QUEUES: slots} if slots.available else {}
        for (queue, tenant), time in seconds.items():
            usages.setdefault(queue, Usage()).tenants[tenant] = time
        minute = int(self._now() // 60)
        return [usage_rollup(usage.pack(), minute=minute, span=HOUR, queue=queue) for queue, usage in usages.items()]

    def _add(self, key: Key, times: _Times, weight: int) -> None:
        entry = _entry(self._entries, key)
        entry.count += times.count
        entry.wait.add(times.wait, weight)
        entry.run.add(times.run, weight)


def _entry(entries: dict[Key, _Entry], key: Key) -> _Entry:
    """The entry of this key, or that of further tasks if there are too many keys."""
    entry = entries.get(key)
    if entry is None:
        if len(entries) >= MOST_KEYS:
            minute, queue, _, end = key
            key = (minute, queue, OTHER_TASKS, end)
            entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _Entry()
    return entry


def _plain(batch: Sequence[tuple[int, Settlement]], measured: Sequence[Measured]) -> list[tuple[int, Settlement]]:
    """The successes of a batch that were not counted one by one."""
    others = {attempt.position for attempt, _, end in measured if end is not None}
    return [entry for entry in batch if entry[1] is DONE and entry[0] not in others]


def sample(jobs: Sequence[Claimed], *, one_kind: bool) -> tuple[Kinds, bytes]:
    """The kinds of the jobs of a large lease, and for how many jobs each one stands.

    The places are random, because tenants take turns in a lease: a fixed place could be always that of the same tenant.
    """
    stride = 1 << (len(jobs) // MEASURED_WHOLE).bit_length()
    if one_kind:
        first = int(random() * stride)
        return (jobs[0].queue, jobs[0].task), _EVERY[stride][first : first + len(jobs)]
    # Each kind is counted by itself, because kinds may alternate and a fixed stride would then miss one of them.
    kinds = [(job.queue, job.task) for job in jobs]
    left = Counter(kinds)
    next_: dict[tuple[str, str], tuple[int, int]] = {}
    weights = bytearray(len(jobs))
    for position, kind in enumerate(kinds):
        # Of each `stride` jobs of a kind one is measured. `number` counts them, and `chosen` is the one.
        number, chosen = next_.get(kind, (0, 0))
        if not number:
            chosen = int(random() * min(stride, left[kind]))
        if number == chosen:
            weights[position] = min(stride, left[kind])
        number += 1
        if number == stride:
            number = 0
            left[kind] -= stride
        next_[kind] = (number, chosen)
    return kinds, bytes(weights)


def are_of_one_queue(jobs: Sequence[Claimed]) -> bool:
    queue = jobs[0].queue
    for job in jobs:  # noqa: SIM110  # a generator would take twice as long for each job
        if job.queue != queue:
            return False
    return True
