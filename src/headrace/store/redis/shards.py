"""Queues that one node cannot carry: which queue is how many, and which of them a job belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.job import Batch, NewJob
from headrace.model.lane import Lane, check_queue
from headrace.model.lease import Ask
from headrace.policy.queue import MAX_SHARDS

MARK: Final = "#"
"""Between a queue's name and the number of a shard; no queue's name has it."""


class Shards:
    """How many shards each queue has. A shard is a queue of its own, whole in its own hash slot: `billing#2`."""

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
        """The shards of a queue; of one that is whole, itself."""
        count = self.counts.get(queue)
        # The first shard keeps the plain name, so that what waits when a queue is first split stays where it is.
        return [queue] if count is None else [queue, *(f"{queue}{MARK}{number}" for number in range(1, count))]

    def all_of(self, queues: Iterable[str]) -> list[str]:
        return [shard for queue in queues for shard in self.of(queue)]

    # ── on the way in ───────────────────────────────────────────────────────

    def spread(self, batch: Batch) -> Batch:
        """The batch with each job in its shard. A lane lies whole in one, so its order and its limits hold as ever."""
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
        return replace(batch, jobs=jobs)

    def ask(self, ask: Ask) -> Ask:
        """The same question of all shards; they take turns like queues do."""
        weights = {shard: weights for queue, weights in ask.weights.items() for shard in self.of(queue)}
        bands = tuple(replace(band, queues=tuple(self.all_of(band.queues))) for band in ask.bands)
        return replace(ask, queues=tuple(self.all_of(ask.queues)), bands=bands, weights=weights)


def whole(shard: str) -> str:
    """The queue that a shard belongs to."""
    return shard.partition(MARK)[0]


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

    A lane must lie in one shard, and its limits with it: so a key of jobs of several lanes does not meet its like.
    Jobs with none of these go wherever their call goes, whole: only among them order is not kept over calls.
    """
    words: Sequence[str] = ()
    if job.lane.tenant:
        words = ("tenant", job.lane.tenant)
    elif job.lane.limits:
        words = ("limits", *job.lane.limits)
    elif job.unique is not None:
        words = ("unique", job.task, job.unique.name)
    elif job.key is not None:
        words = ("key", job.task, job.key.name)
    return "\0".join(words) or batch.id.hex


@lru_cache(4096)
def _number(belongs: str, count: int) -> int:
    """Of so many shards, the one of this name. A shard that is added takes its share of names, and no other name moves.

    So each name has its own row of shards: the first, then that of those added later which first took it, and so on. From
    n shards on it stays where it is until there are m with a chance of n / m.
    """
    shard, name = 0, belongs.encode()
    while True:
        drawn = hashlib.blake2b(name, digest_size=8, salt=shard.to_bytes(2, "big")).digest()
        following = ((shard + 1) << 64) // (int.from_bytes(drawn, "big") + 1)
        if following >= count:
            return shard
        shard = following
