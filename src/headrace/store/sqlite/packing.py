"""Packing: a batch becomes few statements, before the transaction begins if nothing in it depends on stored jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from headrace.model.job import Batch, Due, JobId, NewJob
from headrace.model.lane import Lane
from headrace.policy.effective import only_marks
from headrace.store.batches import chains, segments
from headrace.store.sqlite.chains import INSERT_CHAINS
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import BLOCKED, ENQUEUED_TOTAL, READY, SCHEDULED, Tx
from headrace.store.sqlite.rows import INSERT_SCHEDULED, Bulk, Row, as_json, micros

_SQL = load("enqueue")
_INSERT_FRESH = Bulk(_SQL["fresh"])
_INSERT_JOBS = Bulk(_SQL["job"], blobs=True)

_FEW = 8
"""Fewer jobs than this that differ in little, or ranges of one line, are cheaper as plain rows."""
_PACK_LIMIT = 1 << 24
"""Bytes of payload in one packed insert: offsets have 24 bits there, lengths 23."""
_LARGE = 1 << 15
"""Bytes of payload that jobs of many tenants travel alone with: lengths have 15 bits there."""
_LONGEST = 255
"""Bytes of a tenant's name in a packed insert."""
_NAMES = 1 << 23
"""And of all names."""
_MANY = 10_000

Alike = tuple[str, int, str, bytes | None]
"""Queue, priority, task and options: what the rows of jobs of many tenants have in common."""
Waiting = tuple[str, int, int, int]
"""A range on its way into its line: tenant, lane, and the first and last place in the batch."""


@dataclass(slots=True)
class Line:
    """What goes into one line."""

    count: int = 0
    limited: bool = False
    """Some of it has limit keys."""
    ranges: list[Waiting] = field(default_factory=list[Waiting])
    packed: tuple[bytes, str] | None = None
    """The ranges instead, as `fresh_tenants` wants them."""


@dataclass(slots=True)
class Packed:
    """What is to be written, but for the number that the batch gets."""

    shared: bytes | None = None
    """The options of every job, if the row of the batch has them."""
    steps: list[tuple[str, Row]] = field(default_factory=list[tuple[str, Row]])
    """Statements that write jobs, with their values after the key of place 0."""
    jobs: list[tuple[int, NewJob]] = field(default_factory=list[tuple[int, NewJob]])
    """Others, one by one."""
    lines: dict[tuple[str, int], Line] = field(default_factory=dict[tuple[str, int], Line])
    scheduled: list[tuple[int, int, Lane, int]] = field(default_factory=list[tuple[int, int, Lane, int]])
    """First and last place, lane, when."""
    chains: list[tuple[int, int, Lane]] = field(default_factory=list[tuple[int, int, Lane]])
    """First and last place, and lane."""
    blocked: set[int] = field(default_factory=set[int])
    """The places of other jobs that wait. They get no range here: see `blocked.py`."""


def due_at(due: Due, now: int) -> int:
    """When, in microseconds; not later than `now`: at once."""
    if due is None:
        return now
    return now + micros(due) if isinstance(due, timedelta) else micros(due)


def pack(batch: Batch, existing: Mapping[int, JobId], now: int) -> Packed:
    """Everything but the places with existing jobs."""
    packed = Packed(_shared(batch))
    _pack_jobs(packed, batch, existing)
    waiting = {place for place, job in enumerate(batch.jobs) if job.wait is not None and place not in existing}
    if not waiting:
        _pack_ranges(packed, batch, existing, now)
        return packed
    _pack_chains(packed, batch, existing)
    packed.blocked = waiting.difference(*(range(lo, hi + 1) for lo, hi, _ in packed.chains))
    _pack_ranges(packed, batch, frozenset(waiting | existing.keys()), now)
    return packed


def write(tx: Tx, packed: Packed, base: int) -> None:
    for name, values in packed.steps:
        tx.cur.execute(_SQL[name], (base, *values))
    _INSERT_JOBS.insert(tx.cur, [_row(base + ord, job, packed) for ord, job in packed.jobs])
    others = [lane for _, _, lane, _ in packed.scheduled] + [lane for _, _, lane in packed.chains]
    lines = line_numbers(tx, {*packed.lines, *((lane.queue, lane.priority) for lane in others)})
    for (queue, priority), line in packed.lines.items():
        number = lines[queue, priority]
        if line.limited:
            tx.cur.execute(_SQL["limited"], (number,))
        if line.packed is not None:
            tx.cur.execute(_SQL["fresh_tenants"], (base, number, *line.packed))
        else:
            rows = [(number, tenant, lane, base + lo, base + hi) for tenant, lane, lo, hi in line.ranges]
            _INSERT_FRESH.insert(tx.cur, rows)
        if line.count:
            tx.depth.add(queue, READY, line.count)
            tx.depth.add(queue, ENQUEUED_TOTAL, line.count)
    later: list[Row] = []
    for lo, hi, lane, run_at in packed.scheduled:
        id, _ = _id_and_limits(lane)
        later.append((lane.queue, lane.priority, lane.tenant, id, base + lo, base + hi, 0, 0, 0, 0, None, run_at))
        tx.depth.add(lane.queue, SCHEDULED, hi - lo + 1)
        tx.depth.add(lane.queue, ENQUEUED_TOTAL, hi - lo + 1)
    INSERT_SCHEDULED.insert(tx.cur, later)
    _write_chains(tx, packed, base, lines)


def _write_chains(tx: Tx, packed: Packed, base: int, lines: Mapping[tuple[str, int], int]) -> None:
    rows: list[Row] = []
    for lo, hi, lane in packed.chains:
        number = lines[lane.queue, lane.priority]
        if lane.limits:
            tx.cur.execute(_SQL["limited"], (number,))
        rows.append((base + hi, base + lo, number, lane.tenant, _id_and_limits(lane)[0]))
        tx.depth.add(lane.queue, BLOCKED, hi - lo + 1)
        tx.depth.add(lane.queue, ENQUEUED_TOTAL, hi - lo + 1)
    INSERT_CHAINS.insert(tx.cur, rows)


def line_numbers(tx: Tx, lines: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Lines by queue and priority, as `headrace_ready` has them. Looked up every time: a transaction may be undone."""
    ids = {queue: number_of(tx, queue) for queue in sorted({queue for queue, _ in lines})}
    return {(queue, priority): ids[queue] * 4096 + 1000 - priority for queue, priority in lines}


def number_of(tx: Tx, queue: str) -> int:
    """The number of a queue, which gets one if it has none."""
    row = tx.cur.execute(_SQL["queue"], (queue,)).fetchone() or tx.cur.execute(_SQL["new_queue"], (queue,)).fetchone()
    number: int = row[0]
    return number


# ── jobs ─────────────────────────────────────────────────────────────────────

_known_limits: dict[tuple[str, ...], tuple[int, str | None]] = {}


def _id_and_limits(lane: Lane) -> tuple[int, str | None]:
    """A lane's id and its limit keys as JSON; remembered, because the id is a hash."""
    if not lane.limits:
        return 0, None
    pair = _known_limits.get(lane.limits)
    if pair is None:
        if len(_known_limits) >= _MANY:
            _known_limits.clear()
        pair = _known_limits[lane.limits] = lane.id, as_json(lane.limits)
    return pair


def _shared(batch: Batch) -> bytes | None:
    """The options of all jobs, if one call has marked them alike, for example with its trace.

    Other options stay with their jobs, where workers of earlier versions read them.
    """
    options = batch.jobs[0].options
    if not options or len(batch.jobs) < _FEW or [job.options for job in batch.jobs].count(options) < len(batch.jobs):
        return None
    return options if only_marks(options) else None


def _own(packed: Packed, job: NewJob) -> bytes | None:
    """The options that the row of the job has."""
    return job.options if packed.shared is None else None


def _row(key: int, job: NewJob, packed: Packed) -> Row:
    lane = job.lane
    return (
        key, lane.queue, lane.priority, lane.tenant, *_id_and_limits(lane), job.task, _own(packed, job), job.payload,
    )  # fmt: skip


def _pack_jobs(packed: Packed, batch: Batch, skip: Collection[int]) -> None:
    """Rows that differ in little travel packed: one step for all of them."""
    groups: dict[Alike, tuple[list[tuple[int, NewJob]], dict[int, Lane]]] = {}
    last: NewJob | None = None
    jobs: list[tuple[int, NewJob]] = []
    for place in enumerate(batch.jobs):
        if skip and place[0] in skip:
            continue
        job = place[1]
        if last is None or job.lane is not last.lane or job.task != last.task or job.options != last.options:
            lane = job.lane
            alike = (lane.queue, lane.priority, job.task, _own(packed, job))
            jobs, lanes = groups.get(alike) or groups.setdefault(alike, ([], {}))
            lanes[id(lane)] = lane
            last = job
        jobs.append(place)
    for alike, (jobs, lanes) in groups.items():
        if len(jobs) < _FEW:
            packed.jobs += jobs
        elif len(lanes) == 1:
            _pack_lane(packed, jobs)
        elif any(lane.limits for lane in lanes.values()):
            _pack_lanes(packed, jobs, alike)
        else:
            _pack_tenants(packed, jobs, alike)


def _pack_lane(packed: Packed, jobs: list[tuple[int, NewJob]]) -> None:
    """Jobs of one lane."""
    first = jobs[0][1]
    lane = first.lane
    columns = (lane.queue, lane.priority, lane.tenant, *_id_and_limits(lane), first.task, _own(packed, first))
    payloads: list[bytes] = []
    spots: list[int] = []
    offset = 0
    for ord, job in jobs:
        size = len(job.payload)
        if size >= _PACK_LIMIT >> 1:
            packed.jobs.append((ord, job))
            continue
        if offset + size >= _PACK_LIMIT:
            packed.steps.append(("packed", (b"".join(payloads), str(spots), *columns)))
            payloads, spots, offset = [], [], 0
        spots.append(ord << 47 | offset << 23 | size)
        payloads.append(job.payload)
        offset += size
    packed.steps.append(("packed", (b"".join(payloads), str(spots), *columns)))


def _pack_tenants(packed: Packed, jobs: list[tuple[int, NewJob]], alike: Alike) -> None:
    """Jobs of many tenants, without limit keys."""
    parts: list[bytes] = []
    spots: list[int] = []
    offset = 0
    for ord, job in jobs:
        tenant, payload = job.lane.tenant.encode(), job.payload
        length, size = len(tenant), len(payload)
        if size >= _LARGE or length > _LONGEST:
            packed.jobs.append((ord, job))
            continue
        if offset + length + size >= _PACK_LIMIT:
            packed.steps.append(("packed_tenants", (b"".join(parts), str(spots), *alike)))
            parts, spots, offset = [], [], 0
        spots.append(ord << 47 | offset << 23 | size << 8 | length)
        parts.append(tenant)
        parts.append(payload)
        offset += length + size
    packed.steps.append(("packed_tenants", (b"".join(parts), str(spots), *alike)))


def _pack_lanes(packed: Packed, jobs: list[tuple[int, NewJob]], alike: Alike) -> None:
    """Jobs of many lanes."""
    payloads: list[bytes] = []
    rows: list[Row] = []
    start = 1
    for ord, job in jobs:
        lane, size = job.lane, len(job.payload)
        if rows and start + size > _PACK_LIMIT:
            packed.steps.append(("jobs_of_lanes", (*alike, b"".join(payloads), as_json(rows))))
            payloads, rows, start = [], [], 1
        rows.append((ord, start, size, lane.tenant, *_id_and_limits(lane)))
        payloads.append(job.payload)
        start += size
    packed.steps.append(("jobs_of_lanes", (*alike, b"".join(payloads), as_json(rows))))


# ── ranges ───────────────────────────────────────────────────────────────────


def _pack_chains(packed: Packed, batch: Batch, existing: Mapping[int, JobId]) -> None:
    jobs = batch.jobs
    for lo, hi in chains(batch, existing):
        # Several jobs that wait for the one before them are a run that waits, in one row.
        if lo == hi and hi + 1 < len(jobs) and jobs[hi + 1].wait == jobs[lo].wait:
            continue
        packed.chains.append((lo, hi, jobs[lo].lane))


def _pack_ranges(packed: Packed, batch: Batch, skip: Mapping[int, JobId] | frozenset[int], now: int) -> None:
    queue, priority, line = "", 0, None
    for lo, hi in segments(batch, skip):
        job = batch.jobs[lo]
        lane = job.lane
        if line is None or lane.queue != queue or lane.priority != priority:
            queue, priority = lane.queue, lane.priority
            line = packed.lines.get((queue, priority))
            if line is None:
                line = packed.lines[queue, priority] = Line()
        if lane.limits:
            line.limited = True
        if job.due is not None and (run_at := due_at(job.due, now)) > now:
            packed.scheduled.append((lo, hi, lane, run_at))
        else:
            line.ranges.append((lane.tenant, _id_and_limits(lane)[0] if lane.limits else 0, lo, hi))
            line.count += hi - lo + 1
    for line in packed.lines.values():
        line.ranges.sort()  # as the line has them: a B-tree takes neighbours in half the time
        if len(line.ranges) >= _FEW and not line.limited:
            line.packed = _pack_line(line.ranges)


def _pack_line(ranges: list[Waiting]) -> tuple[bytes, str] | None:
    """Ranges of many tenants, without limit keys. None: their names are too long."""
    names = dict.fromkeys([tenant for tenant, _, _, _ in ranges])
    if not _fit(names):
        return None
    spots: list[int] = []
    last: str | None = None
    end = name = 0
    for tenant, _, lo, hi in ranges:
        if tenant != last:
            last, name = tenant, end << 8 | len(tenant)
            end += len(tenant)
        spots.append(lo << 47 | (hi - lo) << 31 | name)
    return "".join(names).encode(), str(spots)


def _fit(names: Collection[str]) -> bool:
    """Whether a byte tells the length of each, and 23 bits where it begins."""
    joined = "".join(names)
    return joined.isascii() and len(joined) < _NAMES and max(map(len, names)) <= _LONGEST
