"""FIND: jobs by filter, newest id first, in keyset pages."""

from __future__ import annotations

from time import perf_counter

from headrace.job import Job, JobId, JobState, split_id
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.get import view
from headrace.store.sqlite.rows import micros, text
from headrace.store.sqlite.statements import load
from headrace.store.terms import Filter, Page

_SQL = load("find")
_FEW = 10_000
"""Jobs; with more than that, walking down from the newest one finds a page sooner."""
_BATCHES = 64
"""How many the first step looks at."""
_SHORT = 0.02
"""Seconds; a step that took less is followed by one over twice as many batches, one that took longer by half as many."""

_ABOVE_ALL = b"\xff" * 17
"""Comes after every batch's id."""

Value = str | int | bytes


class Search:
    """One call of `find`, step by step down the batches: others may read in between, and no snapshot is held for long."""

    def __init__(self, where: Filter, before: JobId | None, limit: int) -> None:
        self._where = where
        self._conditions, self._values = _conditions(where, before)
        self._limit = limit
        self._from = _ABOVE_ALL if before is None else split_id(before)[0].bytes
        self._batches = _BATCHES
        self._jobs: list[Job] = []
        self._direct: bool | None = None

    def step(self, tx: Tx) -> Page | None:
        """The page; None: it is not full yet, and there is more to look at."""
        begun = perf_counter()
        if self._direct is None:
            ranges = _ranges(tx, self._where.states)
            self._direct = ranges is not None
            self._values["ranges"] = str([list(range) for range in ranges or ()])
        if self._direct:
            self._look(tx, _SQL["ranges"])
            return self._page()
        floor = tx.cur.execute(_SQL["floor"], (self._from, self._batches)).fetchone()
        self._values |= {"from": self._from, "floor": b"" if floor is None else floor[0]}
        self._look(tx, _SQL["newest"])
        if floor is None or len(self._jobs) > self._limit:
            return self._page()
        self._from = floor[0]
        took = perf_counter() - begun
        self._batches = self._batches * 2 if took < _SHORT else max(1, self._batches // 2)
        return None

    def _look(self, tx: Tx, statement: str) -> None:
        # One more than the page has tells whether there is another page.
        self._values["limit"] = self._limit + 1 - len(self._jobs)
        found = tx.cur.execute(statement.replace("{where}", " and ".join(self._conditions)), self._values).fetchall()
        self._jobs += view(tx, found, history=False)

    def _page(self) -> Page:
        jobs = self._jobs[: self._limit]
        return Page(jobs, jobs[-1].id if jobs and len(self._jobs) > self._limit else None)


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
