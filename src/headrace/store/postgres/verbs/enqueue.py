"""ENQUEUE: a batch goes to the server as columns: one value per job, or one per run of jobs of one lane and due time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from headrace.errors import KeyHeld, OutcomeUnknown, Unavailable
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.batches import segments
from headrace.store.due import hint_of
from headrace.store.postgres import faults, rows
from headrace.store.postgres.arguments import (
    Arguments,
    Bools,
    Bytes,
    Byteses,
    Int2,
    Int2s,
    Int4s,
    Int8,
    Int8s,
    Intervals,
    Text,
    Texts,
    Time,
    Times,
    Uuid,
    call,
    column,
    expression,
    fields,
    same,
    text,
)
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.follow import Follow
from headrace.store.postgres.wakeup import due_hint


class EnqueueArgs(NamedTuple):
    """See `sql/enqueue_batch.sql`."""

    p_batch: Uuid
    p_tasks: Texts
    p_payloads: Byteses
    p_options: Byteses | None
    s_hi: Int4s
    s_queue: Texts
    s_priority: Int2s
    s_tenant: Texts
    s_lane: Int8s | None = None
    s_limits: Texts | None = None
    s_run_at: Times | None = None
    s_delay: Intervals | None = None
    k_ord: Int4s | None = None
    k_key: Texts | None = None
    k_digest: Byteses | None = None
    k_ttl: Intervals | None = None
    u_ord: Int4s | None = None
    u_name: Texts | None = None
    u_states: Texts | None = None
    u_within: Intervals | None = None
    u_replace: Bools | None = None
    p_now: Time | None = None

    @property
    def keyed(self) -> bool:
        """Whether any job has a key or a unique lock."""
        return self.k_ord is not None or self.u_ord is not None


class EnqueueOneArgs(NamedTuple):
    """See `sql/enqueue_one.sql`."""

    p_batch: Uuid
    p_task: Text
    p_payload: Bytes
    p_options: Bytes | None
    p_queue: Text
    p_priority: Int2
    p_tenant: Text
    p_lane: Int8
    p_limits: Text | None
    p_now: Time | None = None


FUNCTION: Final = "enqueue_batch"
ENQUEUE: Final = call(FUNCTION, EnqueueArgs)
ENQUEUE_ONE: Final = call("enqueue_one", EnqueueOneArgs)
_PATIENCE: Final = "3s"
"""How long an enqueue waits for a transaction that holds one of its keys or unique locks."""


def patient(function: str, arguments: Arguments) -> str:
    """The call of a function that stores a batch. One more argument says how long it waits for each lock."""
    return (
        f"select e.* from (select set_config('lock_timeout', ${len(fields(arguments)) + 1}, true) as set) t "
        # The function depends on the setting, so that PostgreSQL sets it first.
        "cross join lateral "
        + expression(function, arguments).replace(
            "p_batch => $1,", "p_batch => case when t.set is not null then $1::uuid end,"
        )
        + " e"
    )


_ENQUEUE_KEYED: Final = patient(FUNCTION, EnqueueArgs)


async def enqueue(server: Server, follow: Follow, batch: Batch) -> Enqueued:
    """A batch that has nothing to do with gates."""
    if not batch.jobs:
        return Enqueued({})
    reply = await _stored(server, follow, batch)
    answer = Enqueued({}) if reply is None else rows.enqueued(batch, reply[0])
    server.bell.ring(hints_of(batch))
    return answer


async def _stored(server: Server, follow: Follow, batch: Batch) -> list[Any] | None:
    """Store the batch; None: it was not there before."""
    repeats = False
    if (one := one_args(batch, server.injected)) is not None:
        try:
            if (await server.pool.rows(ENQUEUE_ONE, *one, write=True, timeout=60))[0][0]:
                return None
        except OutcomeUnknown:
            repeats = True
    args = enqueue_args(batch, server.injected)
    if args.keyed:
        reply = await enqueue_patiently(server, _ENQUEUE_KEYED, args)
        if args.u_replace is not None and any(args.u_replace):
            # Other jobs may wait for one that was replaced.
            follow.all_soon()
        return reply
    if repeats:
        return await server.pool.rows(ENQUEUE, *args, write=True, timeout=60)
    return await server.pool.repeatable(lambda: server.pool.rows(ENQUEUE, *args, write=True, timeout=60))


async def enqueue_patiently(server: Server, statement: str, args: tuple[Any, ...]) -> list[Any]:
    try:
        return await server.pool.repeatable(
            lambda: server.pool.rows(statement, *args, _PATIENCE, write=True, timeout=60)
        )
    except Unavailable as error:
        if error.__cause__ is None or faults.sqlstate(error.__cause__) != faults.LOCKED:
            raise
        raise KeyHeld(
            "a transaction that has not ended has enqueued with the same key or unique lock, or ends a job that this call "
            f"depends on: commit or roll back that transaction; nothing was stored after waiting {_PATIENCE}, and trying again is safe"
        ) from error.__cause__


def one_args(batch: Batch, now: datetime | None) -> EnqueueOneArgs | None:
    """The arguments for a single job that is due at once and has neither a key nor a unique lock. None: it is not like that."""
    if len(batch.jobs) != 1:
        return None
    job = batch.jobs[0]
    if job.due is not None or job.key is not None or job.unique is not None:
        return None
    lane = job.lane
    limits = "\n".join(lane.limits) or None
    return EnqueueOneArgs(
        p_batch=batch.id,
        p_task=job.task,
        p_payload=job.payload,
        p_options=job.options,
        p_queue=lane.queue,
        p_priority=lane.priority,
        p_tenant=lane.tenant,
        p_lane=lane.id if limits else 0,
        p_limits=limits,
        p_now=now,
    )


def enqueue_args(batch: Batch, now: datetime | None, segmented: Sequence[tuple[int, int]] | None = None) -> EnqueueArgs:
    """The columns of a batch. `segmented`: its runs, if the caller knows them.

    A column in which every value is None is left out, because arrays cost time on the way.
    """
    jobs = batch.jobs
    runs = segments(batch) if segmented is None else segmented
    lanes = [jobs[lo].lane for lo, _ in runs]
    limits = column(["\n".join(lane.limits) or None for lane in lanes])
    dues = column([jobs[lo].due for lo, _ in runs])
    args = EnqueueArgs(
        p_batch=batch.id,
        p_tasks=same([job.task for job in jobs]),
        p_payloads=[job.payload for job in jobs],
        p_options=column([job.options for job in jobs]),
        s_hi=[hi for _, hi in runs],
        s_queue=same([lane.queue for lane in lanes]),
        s_priority=same([lane.priority for lane in lanes]),
        s_tenant=[lane.tenant for lane in lanes],
        s_lane=limits and [lane.id for lane in lanes],
        s_limits=limits,
        s_run_at=dues and [due if isinstance(due, datetime) else None for due in dues],
        s_delay=dues and [due if isinstance(due, timedelta) else None for due in dues],
        p_now=now,
    )
    if keys := [(ord, job.key) for ord, job in enumerate(jobs) if job.key is not None]:
        args = args._replace(
            k_ord=[ord for ord, _ in keys],
            k_key=[text(key.name) for _, key in keys],
            k_digest=[key.digest for _, key in keys],
            k_ttl=[key.ttl for _, key in keys],
        )
    if locks := [(ord, job.unique) for ord, job in enumerate(jobs) if job.unique is not None]:
        args = args._replace(
            u_ord=[ord for ord, _ in locks],
            u_name=[text(lock.name) for _, lock in locks],
            u_states=[",".join(lock.states) for _, lock in locks],
            u_within=[lock.within for _, lock in locks],
            u_replace=[lock.replace for _, lock in locks],
        )
    return args


def hints_of(batch: Batch) -> set[str]:
    """What to tell workers about these jobs: their queues, and the first time at which one of them is due."""
    hints = {job.lane.queue for job in batch.jobs}
    delayed = [hint for job in batch.jobs if job.due is not None and (hint := hint_of(job.due)) is not None]
    if delayed:
        hints.add(due_hint(min(delayed)))
    return hints
