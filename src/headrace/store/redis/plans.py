"""Batches as the enqueue scripts in `lua/enqueue` take them, and what their answers mean."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.errors import ConfigError, IdempotencyConflict
from headrace.model.job import Batch, JobId
from headrace.store.redis.arguments import NEEDS, Runs, due_args, is_chain, lock_args, microseconds, word
from headrace.store.redis.client import scripts
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.element import encode_run, lane_name
from headrace.store.redis.keys import Keys
from headrace.store.redis.store_clock import StoreClock

pack = msgspec.msgpack.Encoder().encode

LINKED: Final = b"linked"
"""The answer of a script that stored nothing, because the one that knows of links must do it."""
_MOST_RUNS: Final = 1000
"""Runs of jobs that one enqueue script stores. Each costs the server 5 to 15 µs, and no other client is served meanwhile."""
_BLOCKED, _CLOSED, _CHAIN = 3, 4, 5
"""The kinds of due time of jobs that wait: each by itself, together in a closed lane, or each for the one before it. In place of the time comes
the number of the wait, for a chain 0."""
_LARGE: Final = 64
"""Jobs of a run that wait in a closed lane. A lane of fewer jobs costs more than it saves: its turns, and an entry of its own in many places."""
_WAIT: Final = 4
"""Words of a wait."""


def has_waits(batch: Batch, spread: Runs) -> bool:
    """Whether jobs of a batch wait. The jobs of a run wait for the same, or for nothing."""
    return any(batch.jobs[low].wait is not None for runs in spread.values() for low, _ in runs)


def only_chains(batch: Batch, spread: Runs) -> bool:
    """Whether all jobs of a batch that wait are of chains, and none has a unique lock: then a script can store it that knows nothing else of links."""
    jobs = batch.jobs
    return all(
        (jobs[low].wait is None or is_chain(jobs, low, high)) and jobs[low].unique is None
        for runs in spread.values()
        for low, high in runs
    )


def enqueue_call(
    keys: Keys, time: StoreClock, batch: Batch, queues: Runs, now: int
) -> tuple[Script, tuple[Any, ...], list[Any]]:
    """The script that stores these runs of a batch, its arguments, and the waits of its jobs for one that knows of links."""
    prefix, jobs = batch.id.bytes[:14], batch.jobs
    keyed: list[tuple[Any, ...]] = []
    locks: list[tuple[Any, ...]] = []
    plan: list[list[Any]] = []
    elements: list[bytes] = []
    waits: list[Any] = []
    chained = False
    names: dict[int, str] = {}
    for number, (queue, runs) in enumerate(queues.items(), 1):
        segments: list[Any] = []
        for low, high in runs:
            first = jobs[low]
            lane = first.lane
            name = names.get(id(lane))
            if name is None:
                name = names[id(lane)] = lane_name(lane)
            if first.wait is None:
                segments += (name, low, high, *due_args(first.due))
            elif is_chain(jobs, low, high):
                chained = True
                segments += (name, low, high, _CHAIN, 0)
            else:
                waits += (word(first.wait.gate.bytes), NEEDS[first.wait.needs], *due_args(first.due))
                # A delay counts from the release, so each job gets its own time then.
                large = high - low + 1 >= _LARGE and first.due is None
                segments += (name, low, high, _CLOSED if large else _BLOCKED, len(waits) // _WAIT)
            elements += encode_run(prefix, jobs, low, high, now)
            if first.key is not None:
                ttl = microseconds(first.key.ttl)
                # The server must not expire keys by its own clock while a test's clock decides.
                keep = 0 if time.clock is not None else max(1, -(-ttl // 1000))
                key = keys.idempotency(queue, first.task, first.key.name)
                keyed.append((low, key, first.key.digest.hex(), ttl, keep))
            if first.unique is not None:
                locks.append(lock_args(low, number, first, first.unique))
        plan.append(segments)
    # The first job of a batch makes the key, whichever queue it goes to.
    keyed.sort(key=lambda one: one[0])
    locks.sort(key=lambda one: one[0])
    words = [[word for one in keyed for word in one], [word for one in locks for word in one], *plan]
    script = scripts.ENQUEUE_LOCKED if locks else scripts.ENQUEUE_CHAINS if chained else scripts.ENQUEUE
    return script, (time.given, prefix, pack(words), *elements), waits


def check_runs(queues: Runs) -> None:
    """A call is all or nothing, so one script stores it. Raises ConfigError for a call that would hold up the server for too long."""
    runs = sum(map(len, queues.values()))
    if runs > _MOST_RUNS:
        raise ConfigError(
            f"the call has {runs:,} runs of jobs, and Redis stores at most {_MOST_RUNS:,} in one call: a run is the jobs side by "
            "side that have the same lane, due time and wait, or one job with a key or a unique lock. "
            "Send the jobs in several calls, or put those of one lane side by side"
        )


def existing_of(batch: Batch, answer: Reply) -> list[tuple[int, JobId]]:
    """Places of a batch whose job was there before. Raises IdempotencyConflict."""
    if len(answer) == 1:
        return []
    ids = [(int(ord), JobId(UUID(bytes=id))) for ord, id in zip(answer[1::2], answer[2::2], strict=True)]
    if answer[0] == b"conflict":
        ord, known = ids[0]
        job = batch.jobs[ord]
        raise IdempotencyConflict(job.task, job.key.name if job.key else "", known)
    return ids
