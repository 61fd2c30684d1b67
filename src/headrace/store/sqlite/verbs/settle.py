"""SETTLE: positions of a lease become endings, or go back to their lanes. The lease row's existence is the fence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.model.job import Failure, JobState
from headrace.model.lease import Token
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite import unsorted
from headrace.store.sqlite.blocked import suspend, suspends
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import DEAD, DONE_TOTAL, FAILED_TOTAL, READY, RUNNING, SCHEDULED, Tx
from headrace.store.sqlite.fairness.allowance import give_back
from headrace.store.sqlite.gates import count_runs, follow, linked
from headrace.store.sqlite.lease import Held, LeaseRow
from headrace.store.sqlite.packing import due_at
from headrace.store.sqlite.rows import (
    INSERT_ENDINGS,
    INSERT_READY,
    INSERT_SCHEDULED,
    Bulk,
    Row,
    as_json,
    maybe_text,
    micros,
    text,
)

SQL = load("settle")
_INSERT_FAILURES = Bulk(SQL["failure"])
_ALIKE = 16
"""From so many failures with the same texts on, the texts travel once. Many jobs fail at one place for one reason."""

FailureTexts = tuple[int, str, str, str, str]
"""What failures that were raised at one place have in common: attempt, kind, message, traceback, worker."""
Back = tuple[int, Held, int, int, int, str | None, int]
"""A job that goes back: key, its range in the lease, failures, crashes, suspect, note, run_at (0: at once)."""


def settle(tx: Tx, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
    lease = leases.read(tx, token)
    if lease is None:
        return frozenset(position for position, _ in settlements)
    fresh: dict[int, Settlement] = {}
    refused: set[int] = set()
    for position, settlement in settlements:
        if not 0 <= position < lease.size:
            refused.add(position)
        elif not lease.settled >> position & 1:
            fresh.setdefault(position, settlement)
    if fresh:
        _apply(tx, lease, fresh)
    return frozenset(refused)


def _runner(tx: Tx, worker: bytes) -> int:
    """The number of a worker. One that settles before its first heartbeat gets it here, without a name."""
    known: tuple[int] | None = tx.cur.execute(SQL["runner"], (worker,)).fetchone()
    number: tuple[int] = known or tx.cur.execute(SQL["new_runner"], (worker, tx.now)).fetchone()
    return number[0]


def _apply(tx: Tx, lease: LeaseRow, fresh: dict[int, Settlement]) -> None:
    stops = leases.stops(tx, [lease.token])
    for position in fresh:
        lease.settled |= 1 << position
    runner = _runner(tx, lease.worker)
    plain = sorted(position for position, settlement in fresh.items() if settlement is DONE or settlement == DONE)
    if plain:
        _finish_plainly(tx, lease, plain, runner)
    ends: list[Row] = []
    if len(plain) < len(fresh):
        others = {position: fresh[position] for position in fresh.keys() - set(plain)}
        ends = _Settling(tx, lease, {position: reason for (_, position), reason in stops.items()}, runner).run(others)
    to = linked(tx)
    if any(to):
        done = ((lo, lo + size - 1, None, "done") for _, lo, size in _pieces(lease, plain))
        follow(tx, count_runs(tx, [*done, *((row[0], row[1], None, row[2]) for row in ends)], to))
    give_back(tx, lease, fresh)
    if stops:
        tx.cur.execute(SQL["forget_stops"], (lease.token, str(list(fresh))))
    leases.keep(tx, lease)


def _finish_plainly(tx: Tx, lease: LeaseRow, positions: list[int], runner: int) -> None:
    """Done, nothing to tell: as many jobs to a row as are neighbours, also those of different lanes."""
    rows: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    counts: tuple[int, int, int] | None = None
    pieces: list[tuple[int, int]] = []
    queues: dict[str, int] = {}
    names = [place.queue for place in lease.ranges.places]
    for held, lo, size in _pieces(lease, positions):
        if counts is None or held.attempt != counts[0] or held.failures != counts[1] or held.crashes != counts[2]:
            counts = (held.attempt, held.failures, held.crashes)
            pieces = rows.setdefault(counts, [])
        pieces.append((lo, lo + size))
        queue = names[held.place]
        queues[queue] = queues.get(queue, 0) + size
    for counts, pieces in rows.items():
        # In order: a B-tree takes neighbours in a third less time.
        pieces.sort()
        packed: list[int] = []
        start, end = pieces[0]
        for lo, after in pieces:
            if lo == end and lo & 0xFFFF:
                end = after
            elif lo > start:
                packed.append(start << 10 | end - start - 1)
                start, end = lo, after
        packed.append(start << 10 | end - start - 1)
        ends = (*counts, tx.now, runner, tx.now - lease.claimed_at)
        if unsorted.lie_apart(packed):
            unsorted.append(tx, packed, *ends)
        else:
            tx.cur.execute(SQL["done"], (str(packed), *ends))
    for queue, size in queues.items():
        tx.depth.move(queue, RUNNING, DONE_TOTAL, size)


def _pieces(lease: LeaseRow, positions: list[int]) -> Iterable[tuple[Held, int, int]]:
    """What sits together in a range of the lease: (the range, the first key, how many)."""
    if len(positions) == lease.size:
        for held in lease.ranges.held:
            yield held, held.lo, held.size
        return
    done = iter(positions)
    position = next(done, -1)
    start = 0
    for held in lease.ranges.held:
        end = start + held.size
        while 0 <= position < end:
            first = last = position
            position = next(done, -1)
            while position == last + 1 < end:
                last, position = position, next(done, -1)
            yield held, held.lo + first - start, last - first + 1
        start = end


class _Settling:
    """Settlements of every kind, gathered into rows."""

    def __init__(self, tx: Tx, lease: LeaseRow, stops: dict[int, str | None], runner: int) -> None:
        self._tx = tx
        self._lease = lease
        self._stops = stops
        self._runner = runner
        self._keys = lease.ranges.keys()
        self._held = lease.ranges.spread()
        self._endings: list[Row] = []
        self._failures: dict[FailureTexts, list[tuple[int, int]]] = {}
        self._back: list[Back] = []

    def run(self, fresh: dict[int, Settlement]) -> list[Row]:
        """Write everything. Answers the rows of the jobs that ended."""
        places = self._lease.ranges.places
        for position, settlement in sorted(fresh.items()):
            queue = places[self._held[position].place].queue
            self._tx.depth.add(queue, RUNNING, -1)
            if settlement.failure is not None:
                self._tx.depth.add(queue, FAILED_TOTAL)
                self._note(self._keys[position], settlement.failure)
            if isinstance(settlement, Finish):
                self._finish(position, queue, settlement)
            elif position in self._stops:
                end = Finish(JobState.CANCELLED, failures=settlement.failures, crashes=settlement.crashes)
                self._finish(position, queue, end)
            else:
                self._again(position, settlement)
        INSERT_ENDINGS.insert(self._tx.cur, self._endings)
        self._insert_failures()
        put_back(self._tx, self._lease, self._back)
        return self._endings

    def _note(self, key: int, failure: Failure) -> None:
        texts = failure.attempt, failure.kind, failure.message, failure.traceback, failure.worker
        self._failures.setdefault(texts, []).append((key, micros(failure.at)))

    def _insert_failures(self) -> None:
        rows: list[Row] = []
        for (attempt, *texts), places in self._failures.items():
            kind, message, trace, worker = map(text, texts)
            if len(places) >= _ALIKE:
                self._tx.cur.execute(SQL["failures"], (as_json(places), attempt, kind, message, trace, worker))
            else:
                rows += [(key, attempt, kind, message, trace, at, worker) for key, at in places]
        _INSERT_FAILURES.insert(self._tx.cur, rows)

    def _finish(self, position: int, queue: str, end: Finish) -> None:
        key, held = self._keys[position], self._held[position]
        note = end.note
        if end.state is JobState.DONE:
            self._tx.depth.add(queue, DONE_TOTAL)
        elif end.state is JobState.DEAD:
            self._tx.depth.add(queue, DEAD)
        elif note is None:
            note = self._stops.get(position)
        failures = held.failures if end.failures is None else end.failures
        crashes = held.crashes if end.crashes is None else end.crashes
        until = None if end.result_ttl is None or end.result is None else self._tx.now + micros(end.result_ttl)
        self._endings.append(
            (key, key, end.state.value, held.attempt, failures, crashes, self._tx.now, end.result, until,
             maybe_text(note), self._runner, self._tx.now - self._lease.claimed_at)
        )  # fmt: skip

    def _again(self, position: int, again: Again) -> None:
        if again.waits and (sources := suspends(self._tx, again)) is not None:
            held = self._held[position]
            place, key = self._lease.ranges.places[held.place], self._keys[position]
            run = (
                place.queue, place.priority, place.tenant, place.lane, key, key, held.attempt, again.failures, again.crashes,
                int(again.suspect), maybe_text(again.note),
            )  # fmt: skip
            suspend(self._tx, run, None if again.due is None else due_at(again.due, self._tx.now), sources)
            return
        # What the job was to wait for has ended, so it is ready.
        run_at = self._tx.now if again.waits else due_at(again.due, self._tx.now)
        back = (
            self._keys[position], self._held[position], again.failures, again.crashes, int(again.suspect),
            maybe_text(again.note), run_at if run_at > self._tx.now else 0,
        )  # fmt: skip
        self._back.append(back)


def put_back(tx: Tx, lease: LeaseRow, back: Sequence[Back]) -> None:
    """Jobs return to their old places; neighbours in the same condition as one range."""
    if not back:
        return
    ready: list[Row] = []
    scheduled: list[Row] = []
    for lo, hi, (_, held, failures, crashes, suspect, note, run_at) in _runs(back):
        place = lease.ranges.places[held.place]
        row = (
            place.queue, place.priority, place.tenant, place.lane, lo, hi, held.attempt, failures, crashes, suspect,
            note,
        )  # fmt: skip
        if run_at:
            scheduled.append((*row, run_at))
        else:
            ready.append(row)
        tx.depth.add(place.queue, SCHEDULED if run_at else READY, hi - lo + 1)
    INSERT_READY.insert(tx.cur, ready)
    INSERT_SCHEDULED.insert(tx.cur, scheduled)


def _runs(back: Sequence[Back]) -> Iterable[tuple[int, int, Back]]:
    first = last = back[0]
    for job in back[1:]:
        if job[0] != last[0] + 1 or job[1:] != first[1:] or job[0] >> 16 != first[0] >> 16:
            yield first[0], last[0], first
            first = job
        last = job
    yield first[0], last[0], first
