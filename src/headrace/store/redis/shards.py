"""Queues that one node cannot carry: which queue is how many, and which of them a job belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.job import Batch, NewJob
from headrace.lane import Lane, check_queue
from headrace.lease import Ask
from headrace.queue import MAX_SHARDS

MARK: Final = "#"
"""Between a queue's name and the number of a shard; no queue's name has it."""


class Shards:
    """How many parts each queue has. A part is a queue of its own, whole in its own hash slot: `billing#2`."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts: dict[str, int] = {}
        for queue, count in (counts or {}).items():
            self.learn(queue, count)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def learn(self, queue: str, count: int) -> None:
        """It has at least so many: a queue never gets fewer, because its jobs wait in all of them."""
        check_queue(queue)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_SHARDS:
            raise ConfigError(f"queue {queue!r}: shards = {count!r}: a whole number from 1 to {MAX_SHARDS}")
        if count > self.counts.get(queue, 1):
            self.counts[queue] = count

    def of(self, queue: str) -> list[str]:
        """The parts of a queue; of one that is whole, itself."""
        count = self.counts.get(queue)
        # The first part keeps the plain name, so that what waits when a queue is first split stays where it is.
        return [queue] if count is None else [queue, *(f"{queue}{MARK}{number}" for number in range(1, count))]

    def all_of(self, queues: Iterable[str]) -> list[str]:
        return [part for queue in queues for part in self.of(queue)]

    # ── on the way in ───────────────────────────────────────────────────────

    def spread(self, batch: Batch) -> Batch:
        """The batch with each job in its part. A lane lies whole in one part, so its order and its limits hold as ever."""
        if not any(job.lane.queue in self.counts for job in batch.jobs):
            return batch
        known: dict[tuple[Lane, str], Lane] = {}
        jobs: list[NewJob] = []
        for job in batch.jobs:
            count = self.counts.get(job.lane.queue)
            if count is None:
                jobs.append(job)
                continue
            belongs = _belongs(job, batch)
            lane = known.get((job.lane, belongs))
            if lane is None:
                number = _number(belongs, count)
                name = f"{job.lane.queue}{MARK}{number}" if number else job.lane.queue
                lane = known[job.lane, belongs] = replace(job.lane, queue=name)
            jobs.append(replace(job, lane=lane))
        return Batch(batch.id, jobs)

    def ask(self, ask: Ask) -> Ask:
        """The same question of all parts; they take turns like queues do."""
        weights = {part: weights for queue, weights in ask.weights.items() for part in self.of(queue)}
        bands = tuple(replace(band, queues=tuple(self.all_of(band.queues))) for band in ask.bands)
        return replace(ask, queues=tuple(self.all_of(ask.queues)), bands=bands, weights=weights)


def whole(part: str) -> str:
    """The queue that a part belongs to."""
    return part.partition(MARK)[0]


def parse_counts(text: str) -> dict[str, int]:
    """`billing:4,mail:2` as in a store's URL, or a ConfigError."""
    counts: dict[str, int] = {}
    for one in text.split(","):
        queue, colon, count = one.strip().partition(":")
        if not colon or not count.isascii() or not count.isdecimal():
            raise ConfigError(f"shards = {text!r}: write queue:number, several with commas, e.g. shards=billing:4")
        counts[queue] = int(count)
    return Shards(counts).counts


def _belongs(job: NewJob, batch: Batch) -> str:
    """What keeps jobs together: the tenant, else the limit keys, else the lock or key that must meet its like.

    Jobs with none of these go wherever their call goes, whole: only among them order is not kept over calls.
    """
    parts: Sequence[str] = ()
    if job.lane.tenant:
        parts = ("tenant", job.lane.tenant)
    elif job.lane.limits:
        parts = ("limits", *job.lane.limits)
    elif job.unique is not None:
        parts = ("unique", job.task, job.unique.name)
    elif job.key is not None:
        parts = ("key", job.task, job.key.name)
    return "\0".join(parts) or batch.id.hex


def _number(belongs: str, count: int) -> int:
    return int.from_bytes(hashlib.blake2b(belongs.encode(), digest_size=8).digest(), "big") % count
