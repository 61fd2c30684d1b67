"""FIND: jobs by filter, newest id first, in keyset pages."""

from __future__ import annotations

from headrace.job import JobId, JobState, split_id
from headrace.store.contract import Filter, Page
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.get import view
from headrace.store.sqlite.rows import micros, text
from headrace.store.sqlite.statements import load

_SQL = load("find")
_FEW = 10_000
"""Jobs; with more than that, walking down from the newest one finds a page sooner."""

Value = str | int | bytes


def find(tx: Tx, where: Filter, before: JobId | None, limit: int) -> Page:
    conditions, values = _conditions(where, before)
    statement = _SQL["newest"]
    ranges = _ranges(tx, where.states)
    if ranges is not None:
        statement = _SQL["ranges"]
        values["ranges"] = str([list(range) for range in ranges])
    values["limit"] = limit + 1
    rows = tx.cur.execute(statement.replace("{where}", " and ".join(conditions)), values).fetchall()
    jobs = view(tx, rows[:limit], history=False)
    return Page(jobs, jobs[-1].id if jobs and len(rows) > limit else None)


def _conditions(where: Filter, before: JobId | None) -> tuple[list[str], dict[str, Value]]:
    conditions = ["true"]
    values: dict[str, Value] = {}

    def hold(condition: str, **given: Value) -> None:
        conditions.append(condition)
        values.update(given)

    if before is not None:
        batch, ord = split_id(before)
        hold("batch <= :batch and (batch < :batch or ord < :ord)", batch=batch.bytes, ord=ord)
    if where.states:
        # States are our own words, so they may stand in the statement.
        hold(f"state in ({', '.join(sorted(repr(state.value) for state in where.states))})")
    if where.queue is not None:
        hold("queue = :queue", queue=where.queue)
    if where.task is not None:
        hold("task = :task", task=where.task)
    if where.tenant is not None:
        hold("tenant = :tenant", tenant=where.tenant)
    if where.since is not None:
        hold("enqueued_at >= :since", since=micros(where.since))
    if where.until is not None:
        hold("enqueued_at < :until", until=micros(where.until))
    if where.text is not None:
        hold(_SQL["text"], text=text(where.text))
    return conditions, values


def _ranges(tx: Tx, states: frozenset[JobState]) -> list[tuple[int, int]] | None:
    """Where jobs in these states are; None: there are many, or nothing is asked of the state."""
    if not states:
        return None
    ranges: list[tuple[int, int]] = []
    for state in states:
        if state is JobState.RUNNING:
            ranges += ((key, key) for lease in leases.all(tx) for _, key, _ in lease.open())
        elif state.finished:
            ranges += tx.cur.execute(_SQL["ended"], (state.value, _FEW)).fetchall()
        else:
            ranges += tx.cur.execute(_SQL[state.value], (_FEW,)).fetchall()
        if len(ranges) >= _FEW or sum(hi - lo + 1 for lo, hi in ranges) >= _FEW:
            return None
    return ranges
