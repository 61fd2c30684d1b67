"""Blocked jobs: a run of a batch, or a job that ran before, begins to wait for a source, unless that has ended already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from uuid import UUID

from headrace.model.gate import Needs, Verdict, Wait, verdict
from headrace.model.job import Batch, Due, JobId, NewJob, place_in
from headrace.model.lane import Lane
from headrace.model.outcome import Again
from headrace.store.sqlite import gates
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import BLOCKED, ENQUEUED_TOTAL, READY, Tx
from headrace.store.sqlite.gates import GONE, SQL, Looks
from headrace.store.sqlite.packing import due_at, line_numbers
from headrace.store.sqlite.rows import INSERT_BLOCKED, INSERT_READY, Row, as_json, micros

_ENQUEUE = load("enqueue")
_GONE = {needs: verdict(needs, GONE, sealed=True) for needs in Needs}


# ── jobs that never ran ──────────────────────────────────────────────────────


def block(tx: Tx, batch: Batch, base: int, existing: Mapping[int, JobId], places: Collection[int]) -> Looks:
    """Store the jobs at some places, which wait. Answers the sources that may have ended already. `base`: the key of place 0."""
    runs: dict[tuple[Lane, Needs, Due], list[tuple[int, int, int]]] = {}
    looks: Looks = {}
    cancelled: list[tuple[int, int]] = []
    lanes: dict[Lane, None] = {}
    for lo, hi, job, wait in _runs(batch, existing, places):
        lanes[job.lane] = None
        source, place = None, place_in(batch.id, wait.gate)
        if place is not None:
            source = base + place
        elif (source := gates.source_of(tx, wait.gate)) is not None:
            looks[source] = None
        if source is not None:
            runs.setdefault((job.lane, wait.needs, job.due), []).append((source, base + lo, base + hi))
            continue
        run = (*_place(job.lane), base + lo, base + hi, 0, 0, 0, 0, None)
        row = (0, wait.needs.value, *_due(job.due), *run)
        cancelled += gates.decide(tx, partial(_same, wait.gate), [row], _GONE)
        _count(tx, job.lane, hi - lo + 1)
    lines = line_numbers(tx, {(lane.queue, lane.priority) for lane in lanes})
    for lane in lanes:
        if lane.limits:
            tx.cur.execute(_ENQUEUE["limited"], (lines[lane.queue, lane.priority],))
    for (lane, needs, due), alike in runs.items():
        tx.cur.execute(SQL["block_runs"], (as_json(alike), needs.value, *_due(due), *_place(lane)))
        _count(tx, lane, sum(hi - lo + 1 for _, lo, hi in alike))
    # After the inserts, because jobs of this batch may wait for one that is cancelled here.
    looks |= gates.count_runs(tx, [(first, last, None, "cancelled") for first, last in cancelled])
    return looks


def _count(tx: Tx, lane: Lane, size: int) -> None:
    tx.depth.add(lane.queue, BLOCKED, size)
    tx.depth.add(lane.queue, ENQUEUED_TOTAL, size)


def _due(due: Due) -> tuple[int | None, int | None]:
    """The delay, or the time."""
    if due is None:
        return None, None
    return (micros(due), None) if isinstance(due, timedelta) else (None, micros(due))


def _same(id: UUID, _: int) -> UUID:
    return id


def _runs(
    batch: Batch, existing: Mapping[int, JobId], places: Collection[int]
) -> Iterator[tuple[int, int, NewJob, Wait]]:
    """Neighbours that wait alike: first and last place, the first job, and what it waits for."""
    start: int | None = None
    jobs = batch.jobs
    for place in range(len(jobs) + 1):
        job = jobs[place] if place in places else None
        if start is not None:
            first = jobs[start]
            if job is None or job.wait != first.wait or job.lane != first.lane or job.due != first.due:
                yield start, place - 1, first, _awaited(first, batch, existing)
                start = None
        if start is None and job is not None:
            start = place


def _awaited(job: NewJob, batch: Batch, existing: Mapping[int, JobId]) -> Wait:
    """What a job waits for: instead of a job of its batch that was not stored, the one that stands for it."""
    wait = job.wait
    assert wait is not None  # the caller has looked
    if not existing or (place := place_in(batch.id, wait.gate)) is None or place not in existing:
        return wait
    return Wait(existing[place], wait.needs)


def _place(lane: Lane) -> tuple[str, int, str, int]:
    return lane.queue, lane.priority, lane.tenant, lane.id


# ── jobs that ran before ─────────────────────────────────────────────────────


def suspends(tx: Tx, again: Again) -> list[tuple[int, Needs]] | None:
    """The sources that a job is suspended on. None: it goes on at once, because one of them has ended or its time has come."""
    gates.follow(tx, gates.make(tx, again.gates))
    if not again.waits or (again.due is not None and due_at(again.due, tx.now) <= tx.now):
        return None
    sources: list[tuple[int, Needs]] = []
    for wait in again.waits:
        source = gates.source_of(tx, wait.gate)
        if source is None:
            return None
        counts, sealed, _ = gates.state_of(tx, source)
        if verdict(wait.needs, counts, sealed=sealed) is not Verdict.WAIT:
            return None
        sources.append((source, wait.needs))
    return sources


def suspend(tx: Tx, run: Row, run_at: int | None, sources: Iterable[tuple[int, Needs]]) -> None:
    """Store a job that ran before and waits. `run`: its place, key, counts and note, as in a ready row."""
    tx.depth.add(run[0], BLOCKED)
    INSERT_BLOCKED.insert(
        tx.cur, [(source, needs.value, None, None, run_at, *run) for source, needs in dict(sources).items()]
    )


def wake_due(tx: Tx, limit: int) -> int:
    """Make suspended jobs ready whose time has come; how many."""
    rows = tx.cur.execute(SQL["due"], (tx.now, limit)).fetchall()
    if rows:
        tx.cur.execute(SQL["unblock"], (str([row[4] for row in rows]),))
        INSERT_READY.insert(tx.cur, rows)
    for row in rows:
        tx.depth.move(row[0], BLOCKED, READY)
    return len(rows)


def follow_on(tx: Tx, limit: int) -> int:
    """Continue what was too much for one transaction; how many jobs moved, at least 1 if anything was left."""
    sources = [source for (source,) in tx.cur.execute(SQL["openings"], (limit,)).fetchall()]
    for source in sources:
        tx.cur.execute(SQL["opened"], (source,))
    return max(len(sources), gates.follow(tx, dict.fromkeys(sources))) if sources else 0
