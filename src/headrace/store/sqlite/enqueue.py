"""ENQUEUE: a batch becomes one batch row, a row per job, and a range per run of one lane and due time."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec

from headrace.errors import IdempotencyConflict
from headrace.job import Batch, Due, JobId, NewJob, job_id
from headrace.lane import Lane
from headrace.store.contract import Enqueued, segments
from headrace.store.sqlite.depth import ENQUEUED_TOTAL, READY, SCHEDULED, Tx
from headrace.store.sqlite.rows import Bulk, Row, micros
from headrace.store.sqlite.statements import load

SQL = load("enqueue")
INSERT_READY = Bulk(SQL["ready"])
INSERT_SCHEDULED = Bulk(SQL["scheduled"])
_INSERT_JOBS = Bulk(SQL["job"])

_FEW = 8
"""Fewer jobs than this of one lane, task and options are cheaper as plain rows."""
_PACK_LIMIT = 1 << 24
"""Bytes of payload in one packed insert: offsets have 24 bits there, lengths 23."""

_existing_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_existing_decoder = msgspec.msgpack.Decoder(dict[int, UUID])


def enqueue(tx: Tx, batch: Batch) -> Enqueued:
    if not batch.jobs:
        return Enqueued({})
    repeated = tx.cur.execute(SQL["repeated"], (batch.id.bytes,)).fetchone()
    if repeated is not None:
        return Enqueued({ord: JobId(id) for ord, id in _decode(repeated[0]).items()})
    existing = _meet_keys(tx, batch)
    if len(existing) == len(batch.jobs):
        return Enqueued(existing)
    answered = _existing_encoder.encode(existing) if existing else None
    seq: int = tx.cur.execute(SQL["batch"], (batch.id.bytes, tx.now, answered)).fetchone()[0]
    _write_jobs(tx, batch, seq << 16, existing)
    _write_ranges(tx, batch, seq << 16, existing)
    return Enqueued(existing)


def due_at(due: Due, now: int) -> int:
    """When, in microseconds; not later than `now`: at once."""
    if due is None:
        return now
    return now + micros(due) if isinstance(due, timedelta) else micros(due)


def _decode(existing: bytes | None) -> dict[int, UUID]:
    return {} if existing is None else _existing_decoder.decode(existing)


def _meet_keys(tx: Tx, batch: Batch) -> dict[int, JobId]:
    """Ord → the job its key made earlier; keys that are new are remembered."""
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


def _columns(job: NewJob) -> Row:
    lane = job.lane
    limits = msgspec.json.encode(lane.limits).decode() if lane.limits else None
    return (lane.queue, lane.priority, lane.tenant, lane.id, limits, job.task, job.options)


def _write_jobs(tx: Tx, batch: Batch, base: int, existing: dict[int, JobId]) -> None:
    """Rows that differ in their payload only travel packed: one step for all of them."""
    groups: dict[tuple[Lane, str, bytes | None], list[int]] = {}
    last: NewJob | None = None
    places: list[int] = []
    for ord, job in enumerate(batch.jobs):
        if existing and ord in existing:
            continue
        if last is None or job.lane is not last.lane or job.task != last.task or job.options != last.options:
            places = groups.setdefault((job.lane, job.task, job.options), [])
            last = job
        places.append(ord)
    plain: list[Row] = []
    for places in groups.values():
        columns = _columns(batch.jobs[places[0]])
        if len(places) < _FEW:
            plain += [(base + ord, *columns, batch.jobs[ord].payload) for ord in places]
        else:
            _write_packed(tx, batch, base, places, columns, plain)
    _INSERT_JOBS.insert(tx.cur, plain)


def _write_packed(tx: Tx, batch: Batch, base: int, places: list[int], columns: Row, plain: list[Row]) -> None:
    payloads: list[bytes] = []
    packed: list[int] = []
    offset = 0
    for ord in places:
        payload = batch.jobs[ord].payload
        size = len(payload)
        if size >= _PACK_LIMIT >> 1:
            plain.append((base + ord, *columns, payload))
            continue
        if offset + size >= _PACK_LIMIT:
            tx.cur.execute(SQL["packed"], (base, b"".join(payloads), str(packed), *columns))
            payloads, packed, offset = [], [], 0
        packed.append(ord << 47 | offset << 23 | size)
        payloads.append(payload)
        offset += size
    tx.cur.execute(SQL["packed"], (base, b"".join(payloads), str(packed), *columns))


def _write_ranges(tx: Tx, batch: Batch, base: int, existing: dict[int, JobId]) -> None:
    ready: list[Row] = []
    scheduled: list[Row] = []
    id = batch.id.bytes
    for lo, hi in segments(batch, frozenset(existing)):
        job = batch.jobs[lo]
        lane = job.lane
        row = (lane.queue, lane.priority, lane.tenant, lane.id, id, base + lo, base + hi, 0, 0, 0, 0, None)
        run_at = due_at(job.due, tx.now)
        count = hi - lo + 1
        tx.depth.add(lane.queue, ENQUEUED_TOTAL, count)
        if run_at > tx.now:
            scheduled.append((*row, run_at))
            tx.depth.add(lane.queue, SCHEDULED, count)
        else:
            ready.append(row)
            tx.depth.add(lane.queue, READY, count)
    INSERT_READY.insert(tx.cur, ready)
    INSERT_SCHEDULED.insert(tx.cur, scheduled)
