"""GET: jobs by id, with everything the store knows of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import msgspec

from headrace.model.gate import GateId, Predecessor, is_gate
from headrace.model.job import BatchId, Failure, Job, JobId, JobState, job_id, split_id
from headrace.store.sqlite import inbox, unsorted
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.lease import Held, LeaseRow
from headrace.store.sqlite.rows import Row, maybe_moment, moment
from headrace.store.sqlite.verbs.gates import gates, waits_of
from headrace.store.sqlite.verbs.report import said_of

SQL = load("get")


def get(tx: Tx, ids: Sequence[JobId]) -> list[Job | None]:
    keys: dict[JobId, int] = {}
    seqs: dict[BatchId, int | None] = {}
    for id in ids:
        batch, ord = split_id(id)
        if batch not in seqs:
            row = tx.cur.execute(SQL["seq"], (batch.bytes,)).fetchone()
            seqs[batch] = None if row is None else row[0]
        if (seq := seqs[batch]) is not None:
            keys[id] = seq << 16 | ord
    rows = [row for key in keys.values() if (row := tx.cur.execute(SQL["job"], (key >> 16, key)).fetchone())]
    jobs = {job.id: job for job in view(tx, rows, history=True)}
    jobs.update({job.id: job for batch, seq in seqs.items() if seq is None and (job := inbox.look(tx, batch))})
    return [jobs.get(id) for id in ids]


def followed(tx: Tx, ids: Sequence[UUID]) -> list[Predecessor | None]:
    """What a job takes over from these jobs and gates."""
    stored: dict[UUID, Predecessor] = {}
    for gate in gates(tx, [GateId(id) for id in ids if is_gate(id)]):
        if gate is not None:
            stored[gate.id] = Predecessor(gate.tenant)
    for job in get(tx, [JobId(id) for id in ids if not is_gate(id)]):
        if job is not None:
            stored[job.id] = Predecessor(job.tenant, job.options)
    return [stored.get(id) for id in ids]


def view(tx: Tx, rows: Sequence[Row], *, history: bool) -> list[Job]:
    """Rows of the view as jobs."""
    failures = _history(tx, [row[0] for row in rows]) if history else {}
    reports = said_of(tx, [row[0] for row in rows]) if history else {}
    running = {row[0] for row in rows if row[7] == "running"}
    holders = _holders(tx, running)
    ended = unsorted.find(tx, running.difference(holders))
    rows = [_as_ended(row, ended[row[0]]) if row[0] in ended else row for row in rows] if ended else rows
    runners = _runners(tx, {row[-2] for row in rows if row[-2] is not None})
    stops = leases.stops(tx, {lease.token for lease, _, _ in holders.values()}) if holders else {}
    jobs: list[Job] = []
    for row in rows:
        job = _job(tx, row, tuple(failures.get(row[0], ())))
        if (runner := runners.get(row[-2])) is not None:
            job = msgspec.structs.replace(job, worker=runner[0], worker_name=runner[1] if history else None)
        if job.state is JobState.RUNNING:
            lease, position, held = holders[row[0]]
            job = msgspec.structs.replace(
                job,
                attempt=held.attempt,
                failures=held.failures,
                crashes=held.crashes,
                worker=UUID(bytes=lease.worker),
                worker_name=_name(tx, lease.worker) if history else None,
                claimed_at=moment(lease.claimed_at),
                cancelling=(lease.token, position) in stops,
            )
        if history and job.state is JobState.BLOCKED:
            job = msgspec.structs.replace(job, waits=waits_of(tx, row[0]))
        if (report := reports.get(row[0])) is not None:
            job = msgspec.structs.replace(job, progress=report.progress, doing=report.doing, log=report.log)
        jobs.append(job)
    return jobs


def _job(tx: Tx, row: Row, history: tuple[Failure, ...]) -> Job:
    (
        key, batch, task, queue, priority, tenant, limits, state, attempt, failures, crashes, enqueued_at, run_at,
        finished_at, note, payload, options, result, result_until, _, claimed_at,
    ) = row  # fmt: skip
    expired = result is not None and result_until is not None and result_until <= tx.now
    return Job(
        id=job_id(UUID(bytes=batch), key & 0xFFFF),
        task=task,
        queue=queue,
        priority=priority,
        tenant=tenant,
        limits=() if limits is None else tuple(msgspec.json.decode(limits, type=list[str])),
        state=JobState(state),
        attempt=attempt or 0,
        failures=failures or 0,
        crashes=crashes or 0,
        enqueued_at=moment(enqueued_at),
        payload=payload,
        options=options,
        run_at=maybe_moment(run_at),
        note=note,
        claimed_at=maybe_moment(claimed_at),
        finished_at=maybe_moment(finished_at),
        result=None if expired else result,
        result_expired=expired,
        history=history,
    )


def _runners(tx: Tx, numbers: set[int]) -> dict[int, tuple[UUID, str | None]]:
    """Workers by their numbers: id and name."""
    rows = tx.cur.execute(SQL["runners"], (str(list(numbers)),)).fetchall() if numbers else []
    return {no: (UUID(bytes=id), name or None) for no, id, name in rows}


def _name(tx: Tx, worker: bytes) -> str | None:
    row: tuple[str] | None = tx.cur.execute(SQL["name"], (worker,)).fetchone()
    return None if row is None else row[0] or None


def _history(tx: Tx, keys: list[int]) -> dict[int, list[Failure]]:
    failures: defaultdict[int, list[Failure]] = defaultdict(list)
    for key, attempt, kind, message, traceback, at, worker in tx.cur.execute(SQL["history"], (str(keys),)):
        failures[key].append(
            Failure(attempt=attempt, kind=kind, message=message, traceback=traceback, at=moment(at), worker=worker)
        )
    return failures


def _as_ended(row: Row, ending: Row) -> Row:
    """A row of the view, which shows a job as running whose end is not sorted in."""
    _, _, state, attempt, failures, crashes, finished_at, *_, worker, took = ending
    return (
        *row[:7], state, attempt, failures, crashes, *row[11:13], finished_at, *row[14:19], worker, finished_at - took,
    )  # fmt: skip


def _holders(tx: Tx, wanted: set[int]) -> dict[int, tuple[LeaseRow, int, Held]]:
    """The lease, position and range of each running job."""
    holders: dict[int, tuple[LeaseRow, int, Held]] = {}
    if wanted:
        for lease in leases.around(tx, min(wanted), max(wanted)):
            holders.update({key: (lease, position, held) for position, key, held in lease.open() if key in wanted})
    return holders
