"""The inbox: an enqueue call of one plain job appends one row, and the next transaction that needs it folds all of them.

A job in the tables of jobs is five pages of the log: batch, its index, job, range and counts. In the inbox it is one, and
one statement, which commits by itself. To fold is to move what is there into the tables of jobs, in the order of the
calls. Every transaction that claims, that enqueues by the tables or that changes waiting jobs folds first, so no such
transaction meets a job that is still in the inbox.
"""

from __future__ import annotations

from headrace.model.job import Batch, BatchId, Job, JobState, job_id
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import ENQUEUED_TOTAL, READY, Tx
from headrace.store.sqlite.packing import number_of
from headrace.store.sqlite.rows import Row, moment

_SQL = load("inbox")
APPEND = _SQL["append"]

MOST = 128
"""Rows. The call that makes so many folds them, so it takes longer: fewer than one call in a hundred does."""
_LARGE = 1024
"""Bytes of a payload or options above which a job takes the ordinary way: a folded job is written twice."""


def is_plain(batch: Batch) -> bool:
    """Whether this call may append: one job that depends on nothing stored."""
    if len(batch.jobs) != 1 or batch.gates or batch.edges or batch.seals:
        return False
    job = batch.jobs[0]
    return (
        job.key is None
        and job.unique is None
        and job.due is None
        and job.wait is None
        and not job.lane.limits
        and len(job.payload) <= _LARGE
        and (job.options is None or len(job.options) <= _LARGE)
    )


def row(batch: Batch, now: int) -> Row:
    """What `APPEND` wants for a plain batch."""
    job = batch.jobs[0]
    lane = job.lane
    return batch.id.bytes, now, lane.queue, lane.priority, lane.tenant, job.task, job.options, job.payload


def append(tx: Tx, batch: Batch) -> None:
    """Append a plain batch. A repeated one, too: the fold finds it out, and both calls have the same answer."""
    tx.cur.execute(APPEND, row(batch, tx.now))
    tx.depth.awake.add(batch.jobs[0].lane.queue)
    if (tx.cur.lastrowid or 0) >= MOST:
        fold(tx)


def look(tx: Tx, batch: BatchId) -> Job | None:
    """The job of a batch that is still in the inbox."""
    row = tx.cur.execute(_SQL["job"], (batch.bytes,)).fetchone()
    if row is None:
        return None
    task, queue, priority, tenant, at, payload, options = row
    return Job(
        id=job_id(batch, 0),
        task=task,
        queue=queue,
        priority=priority,
        tenant=tenant,
        limits=(),
        state=JobState.READY,
        attempt=0,
        failures=0,
        crashes=0,
        enqueued_at=moment(at),
        payload=payload,
        options=options,
    )


def waits(tx: Tx) -> bool:
    """Whether there is anything to fold."""
    return tx.cur.execute(_SQL["waits"]).fetchone() is not None


def fold(tx: Tx) -> None:
    """Move every job of the inbox into the tables of jobs. Wakes no worker: the calls that appended have done so."""
    last = tx.cur.execute(_SQL["last"]).fetchone()
    if last is None:
        return
    tx.cur.execute(_SQL["batches"], last)
    for queue, count in tx.cur.execute(_SQL["counts"], last).fetchall():
        number_of(tx, queue)  # the ranges need it
        tx.depth.count(queue, READY, count)
        tx.depth.count(queue, ENQUEUED_TOTAL, count)
    tx.cur.execute(_SQL["jobs"], last)
    tx.cur.execute(_SQL["ready"], last)
    tx.cur.execute(_SQL["clear"])
