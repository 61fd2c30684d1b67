"""ENQUEUE: a batch becomes one batch row, a row per job, and a range per run of one lane and due time (`packing.py`)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from headrace.errors import IdempotencyConflict
from headrace.model.job import Batch, JobId, job_id
from headrace.model.records import Enqueued
from headrace.store.sqlite.blocked import block
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.gates import add_members, follow, refuse_over
from headrace.store.sqlite.inbox import append, fold, is_plain
from headrace.store.sqlite.packing import Packed, pack, write
from headrace.store.sqlite.rows import micros
from headrace.store.sqlite.verbs.unique import Locks

SQL = load("enqueue")
_existing_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_existing_decoder = msgspec.msgpack.Decoder(dict[int, UUID])


class Prepared:
    """A batch that is packed before the transaction begins, if nothing in it depends on stored jobs. Packing many tenants
    takes time, and inside the transaction it would keep other processes from writing.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._packed: Packed | None = None
        self._plain = is_plain(batch)

    def pack(self, _: Tx) -> None:
        batch = self._batch
        if self._plain or not batch.jobs:
            return
        if not any(job.key or job.unique or job.due for job in batch.jobs):
            self._packed = pack(batch, {}, 0)

    def enqueue(self, tx: Tx) -> Enqueued:
        if self._plain:
            append(tx, self._batch)
            return Enqueued({})
        return enqueue(tx, self._batch, self._packed)


def enqueue(tx: Tx, batch: Batch, prepared: Packed | None = None) -> Enqueued:
    fold(tx)  # its jobs were enqueued earlier
    if not batch.jobs:
        refuse_over(tx, batch)
        follow(tx, add_members(tx, batch, None, {}))
        return Enqueued({})
    if prepared is not None:
        return _enqueue_prepared(tx, batch, prepared)
    repeated = tx.cur.execute(SQL["repeated"], (batch.id.bytes,)).fetchone()
    if repeated is not None:
        return Enqueued({ord: JobId(id) for ord, id in _decode(repeated[0]).items()})
    if batch.edges:
        refuse_over(tx, batch)
    existing = _meet_keys(tx, batch)
    locks = Locks(tx, batch)
    locks.meet(existing)
    _forget_keys(tx, batch, existing)
    if len(existing) == len(batch.jobs):
        follow(tx, add_members(tx, batch, None, existing))
        return Enqueued(existing)
    answered = _existing_encoder.encode(existing) if existing else None
    packed = pack(batch, existing, tx.now)
    seq: int = tx.cur.execute(SQL["batch"], (batch.id.bytes, tx.now, packed.shared, answered)).fetchone()[0]
    write(tx, packed, seq << 16)
    locks.take(seq << 16)
    _link(tx, batch, packed, seq << 16, existing)
    return Enqueued(existing)


def _enqueue_prepared(tx: Tx, batch: Batch, prepared: Packed) -> Enqueued:
    """No job of the batch has a key or a lock. So the insert itself tells whether an earlier call has stored the batch,
    and the answer of that call names no job either.
    """
    row = tx.cur.execute(SQL["new_batch"], (batch.id.bytes, tx.now, prepared.shared)).fetchone()
    if row is None:
        return Enqueued({})
    if batch.edges:
        refuse_over(tx, batch)
    write(tx, prepared, row[0] << 16)
    _link(tx, batch, prepared, row[0] << 16, {})
    return Enqueued({})


def _link(tx: Tx, batch: Batch, packed: Packed, base: int, existing: dict[int, JobId]) -> None:
    """Make gates, add members, and store what waits, but for chains."""
    if packed.blocked or batch.gates or batch.edges or batch.seals:
        changed = add_members(tx, batch, base, existing)
        follow(tx, changed | block(tx, batch, base, existing, packed.blocked))


def _decode(existing: bytes | None) -> dict[int, UUID]:
    return {} if existing is None else _existing_decoder.decode(existing)


def _meet_keys(tx: Tx, batch: Batch) -> dict[int, JobId]:
    """By place, the job that its key made earlier. New keys are stored."""
    existing: dict[int, JobId] = {}
    for ord, job in enumerate(batch.jobs):
        if (key := job.key) is None:
            continue
        known = tx.cur.execute(SQL["key"], (job.task, key.name, tx.now)).fetchone()
        if known is None:
            id = job_id(batch.id, ord)
            expires_at = tx.now + micros(key.ttl)
            tx.cur.execute(SQL["remember"], (job.task, key.name, key.digest, id.bytes, expires_at))
        elif known[0] == key.digest:
            existing[ord] = JobId(UUID(bytes=known[1]))
        else:
            raise IdempotencyConflict(job.task, key.name, UUID(bytes=known[1]))
    return existing


def _forget_keys(tx: Tx, batch: Batch, existing: dict[int, JobId]) -> None:
    """A key makes no job if its job met a lock. A job that met such a key has met the holder of the lock."""
    instead: dict[JobId, JobId] = {}
    for ord, holder in existing.items():
        job = batch.jobs[ord]
        if job.key is not None and job.unique is not None:
            own = job_id(batch.id, ord)
            if tx.cur.execute(SQL["forget_key"], (job.task, job.key.name, own.bytes)).rowcount:
                instead[own] = holder
    if instead:
        existing.update({ord: instead[id] for ord, id in existing.items() if id in instead})
