"""FIND: jobs by filter, newest id first, in keyset pages."""

from __future__ import annotations

from time import perf_counter
from uuid import UUID

from headrace.model.job import Job, JobId, JobState, job_id, split_id
from headrace.model.records import Filter, Page
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import micros, text
from headrace.store.sqlite.verbs.get import view

_SQL = load("find")
_FEW = 10_000
"""Jobs; with more than that, walking down from the newest one finds a page sooner."""
_LOOKS = 256
"""Jobs that the first step looks at."""
_MOST = 20_000
"""Jobs that a call looks at; then it answers what it has found, and where to go on."""
_MOST_RARE = 400_000
"""The same in batches, for dead and cancelled jobs only. These have an index, so that only batches are passed over."""
_WEIGHT = 160
"""A dead or cancelled job that a call looks at counts as so many batches, because it is read from a page of its own."""
_CLOSE = 4
"""Batches lie close together if they are one in so many."""
_RARE = frozenset({JobState.DEAD, JobState.CANCELLED})
_SHORT = 0.01
"""Seconds; a step that took less is followed by one over twice as many jobs, one that took longer by half as many."""

_ABOVE_ALL = b"\xff" * 17
"""Comes after every batch's id."""
_TOP = (1 << 63) - 1

Value = str | int | bytes
Spot = tuple[bytes, int]
"""A job: its batch's id and its key."""


class Search:
    """One call of `find`, step by step down the jobs: others may read in between, and no snapshot is held for long."""

    def __init__(self, where: Filter, before: JobId | None, limit: int) -> None:
        self._where = where
        self._before = before
        self._conditions, self._values = _conditions(where, before)
        self._limit = limit
        self._from: Spot | None = None
        self._ranges: list[Range] | None = None
        self._rare = bool(where.states) and where.states <= _RARE
        self._most = _MOST_RARE if self._rare else _MOST
        self._looks = _LOOKS
        self._looked = 0
        self._jobs: list[Job] = []

    def step(self, tx: Tx) -> Page | None:
        """The page; None: it is not full yet, and there is more to look at."""
        begun = perf_counter()
        if self._from is None:
            self._from = _start(tx, self._before)
            ranges = _ranges(tx, self._where.states)
            self._ranges = None if ranges is None else _below(ranges, self._from)
        if self._ranges is not None:
            ended = self._pick(tx, self._ranges)
        else:
            ended = self._walk_rare(tx) if self._rare else self._walk(tx)
        if ended or len(self._jobs) > self._limit:
            return self._page()
        if self._looked >= self._most:
            return self._page_so_far()
        took = perf_counter() - begun
        self._looks = min(self._looks * 2 if took < _SHORT else max(1, self._looks // 2), self._most - self._looked)
        return None

    def _walk(self, tx: Tx) -> bool:
        """Look at the next jobs below; True: there are no more."""
        assert self._from is not None  # the first step begins with it
        batch, key = self._from
        floor: Spot | None = tx.cur.execute(_SQL["floor"], (batch, key, self._looks - 1)).fetchone()
        to = (b"", 0) if floor is None else floor
        ranges = _below(tx.cur.execute(_SQL["between"], (batch, to[0])).fetchall(), self._from)
        self._look(tx, [(id, max(lo, to[1]) if id == to[0] else lo, hi) for id, lo, hi in ranges])
        self._from = to
        self._looked += self._looks
        return floor is None

    def _walk_rare(self, tx: Tx) -> bool:
        """Look at dead and cancelled jobs in the next batches below; True: there are no more batches."""
        assert self._from is not None  # the first step begins with it
        batch, key = self._from
        chunk: tuple[int, bytes, int, int] = tx.cur.execute(_SQL["chunk"], (batch, key, self._looks)).fetchone()
        size, low, first, last = chunk
        if not size:
            return True
        statement = _SQL["rare" if last - first < _CLOSE * size else "rare_apart"]
        values = {"batch": batch, "key": key, "low": low, "first": first, "last": last, "limit": self._looks}
        rows = tx.cur.execute(statement.replace("{states}", _quoted(self._where.states)), values).fetchall()
        ranges = _below(rows[::-1], self._from)
        some = _take(ranges, self._looks)
        self._look(tx, some)
        if ranges or len(rows) == self._looks:  # These batches hold more of them.
            self._from = some[-1][0], some[-1][1]
            self._looked += sum(hi - lo + 1 for _, lo, hi in some) * _WEIGHT
            return False
        self._from = low, 0
        self._looked += size
        return size < self._looks

    def _pick(self, tx: Tx, ranges: list[Range]) -> bool:
        """Look at the next of the ranges where such jobs are; True: there are no more."""
        if some := _take(ranges, self._looks):
            self._from = some[-1][0], some[-1][1]
        self._look(tx, some)
        self._looked += self._looks
        return not ranges

    def _look(self, tx: Tx, ranges: list[Range]) -> None:
        # One more than the page has tells whether there is another page.
        self._values["limit"] = self._limit + 1 - len(self._jobs)
        single = all(lo == hi for _, lo, hi in ranges)
        kind = "singles" if single else "ranges"
        self._values[kind] = str([lo if single else [lo, hi] for _, lo, hi in ranges])
        rows = tx.cur.execute(_SQL[kind].replace("{where}", " and ".join(self._conditions)), self._values).fetchall()
        self._jobs += view(tx, rows, history=False)

    def _page(self) -> Page:
        jobs = self._jobs[: self._limit]
        return Page(jobs, jobs[-1].id if jobs and len(self._jobs) > self._limit else None)

    def _page_so_far(self) -> Page:
        """Fewer jobs than asked for, and the last one that was looked at."""
        assert self._from is not None  # a step was taken
        batch, key = self._from
        return Page(self._jobs, job_id(UUID(bytes=batch), key & 0xFFFF))


def _start(tx: Tx, before: JobId | None) -> Spot:
    if before is None:
        return _ABOVE_ALL, _TOP
    batch, ord = split_id(before)
    row = tx.cur.execute(_SQL["key"], (batch.bytes, ord)).fetchone()
    return batch.bytes, 0 if row is None else row[0]


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
        hold(f"state in ({_quoted(where.states)})")
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


def _quoted(states: frozenset[JobState]) -> str:
    """States are our own words, so they may stand in a statement."""
    return ", ".join(sorted(repr(state.value) for state in states))


Range = tuple[bytes, int, int]
"""A batch's id, and the first and last key of jobs in it."""


def _below(ranges: list[Range], spot: Spot) -> list[Range]:
    """What of the ranges comes after a job, which is left out."""
    clipped = (
        (batch, lo, hi if batch < spot[0] else min(hi, spot[1] - 1)) for batch, lo, hi in ranges if batch <= spot[0]
    )
    return [(batch, lo, hi) for batch, lo, hi in clipped if lo <= hi]


def _take(ranges: list[Range], most: int) -> list[Range]:
    """Take up to so many jobs off the end of the ranges, the newest first."""
    some: list[Range] = []
    while ranges and most > 0:
        batch, lo, hi = ranges.pop()
        first = max(lo, hi - most + 1)
        some.append((batch, first, hi))
        most -= hi - first + 1
        if first > lo:
            ranges.append((batch, lo, first - 1))
    return some


def _ranges(tx: Tx, states: frozenset[JobState]) -> list[Range] | None:
    """Where jobs in these states are, the newest last; None: there are many, or nothing is asked of the state."""
    if not states:
        return None
    ranges: list[tuple[int, int]] = []
    for state in states:
        if state is JobState.RUNNING:
            ranges += ((key, key + size - 1) for lease in leases.all(tx) for _, key, size, _ in lease.pieces())
        elif state.finished:
            ranges += tx.cur.execute(_SQL["ended"], (state.value, _FEW)).fetchall()
        else:
            ranges += tx.cur.execute(_SQL[state.value], (_FEW,)).fetchall()
        if len(ranges) >= _FEW or sum(hi - lo + 1 for lo, hi in ranges) >= _FEW:
            return None
    batches = dict(tx.cur.execute(_SQL["batches"], (str(sorted({lo >> 16 for lo, _ in ranges})),)).fetchall())
    return sorted((batches[lo >> 16], lo, hi) for lo, hi in ranges)
