"""CLAIM: ready ranges become a lease. `fairness/picker.py` chooses them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from headrace.errors import HeadraceError
from headrace.model.job import Claimed
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY
from headrace.model.lease import LEASE_BYTES, MAX_LEASE, Ask, Band, Lease
from headrace.store.claim_size import LARGE, ClaimSize
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.fairness.allowance import Rules
from headrace.store.sqlite.fairness.crowd import Names, may_wait
from headrace.store.sqlite.fairness.picker import Picker, top
from headrace.store.sqlite.fairness.turn_state import TurnState
from headrace.store.sqlite.inbox import fold, waits
from headrace.store.sqlite.lease import LeaseRow, Ranges
from headrace.store.sqlite.rows import micros, moment
from headrace.store.sqlite.verbs.pause import held_back

_SQL = load("claim")
_decode_batches = msgspec.json.Decoder(list[tuple[int, str, int, str]]).decode
_decode_tasks = msgspec.json.Decoder(list[str]).decode
_decode_lengths = msgspec.json.Decoder(list[int]).decode
_decode_sizes = msgspec.json.Decoder(list[int | None]).decode

_REMEMBERED = 4096
"""Batches."""

T = TypeVar("T")
Content = tuple[str, bytes, bytes | None]
"""Task, payload and options."""


class TooLarge(HeadraceError):
    """A claim met too many bytes of payload. It was undone."""

    def __init__(self, fitting: int) -> None:
        super().__init__(f"the jobs of this claim are together too large: {fitting} of them fit")
        self.fitting = fitting


class ClaimMemory:
    """What a store object remembers from one claim to the next."""

    def __init__(self) -> None:
        self.turn_state = TurnState()
        self.rules = Rules()
        self.names = Names()
        self.size = ClaimSize()
        self.opens: dict[frozenset[str], int] = {}
        """By queues, the time at which a job that the last claim passed over may run."""

    def passed_over(self, ask: Ask, opens_at: int | None) -> None:
        names = self.names.of(ask.queues)
        opens = {others - names: at for others, at in self.opens.items() if others is not names} if self.opens else {}
        opens.pop(frozenset(), None)
        if opens_at is not None:
            opens[names] = opens_at
        self.opens = opens


def nothing_to_claim(tx: Tx, ask: Ask, claim_memory: ClaimMemory) -> bool:
    """Checked without the write lock, so that idle workers do not take it."""
    if ask.limit < 1:
        return True
    paused = held_back(tx).queues
    names = claim_memory.names.of(ask.queues)
    if any(queue not in paused and top(tx, queue) is not None for queue in may_wait(tx, ask.queues, names)):
        return False
    if waits(tx):  # last, because it is a read of its own for SQLite: a claim that finds jobs is spared it
        return False
    ends = [until for queue, until in paused.items() if until is not None and queue in names]
    claim_memory.passed_over(ask, min(ends, default=None))
    return leases.read(tx, ask.token) is None


def claim(tx: Tx, ask: Ask, claim_memory: ClaimMemory) -> Lease | None:
    if (held := leases.read(tx, ask.token)) is not None:
        # The worker asks again, because the first answer was lost.
        return Lease(ask.token, [job for _, job in claimed(tx, held)], bool(held.suspect))
    fold(tx)
    asked = min(ask.limit, MAX_LEASE)
    limit = claim_memory.size.limit(asked)
    picker = Picker(tx, ask, claim_memory.turn_state, claim_memory.rules)
    waiting = list(dict.fromkeys(may_wait(tx, ask.queues, claim_memory.names.of(ask.queues))))
    rest = () if ask.only_bands else (Band(LOWEST_PRIORITY, HIGHEST_PRIORITY, limit),)
    for band in (*ask.bands, *rest):
        queues = [queue for queue in waiting if not band.queues or queue in band.queues]
        picker.serve(queues, band, min(limit, picker.count + band.share))
        if picker.suspect:
            break
    picker.finish()
    claim_memory.passed_over(ask, picker.opens_at)
    if not picker.held:
        return None
    ranges = Ranges(picker.places, picker.held)
    lease = LeaseRow(
        ask.token.bytes, ask.worker.bytes, None, tx.now, tx.now + micros(ask.ttl), int(picker.suspect),
        picker.count, 0, ranges,
    )  # fmt: skip
    leases.insert(tx, lease)
    jobs = _fitting(tx, lease, claim_memory.size)
    return Lease(ask.token, jobs, picker.suspect, cut=len(jobs) == limit < asked)


def _fitting(tx: Tx, lease: LeaseRow, size: ClaimSize) -> list[Claimed]:
    """The jobs of a new lease. Raises TooLarge."""
    if size.careful:
        # Read alone, lengths cost little: SQLite does not visit the pages that hold large payloads.
        runs = [(key, many) for _, key, many, _ in lease.pieces()]
        ordered = sorted(runs)
        lengths = _decode_lengths(tx.cur.execute(_SQL["lengths"], (str(_joined(ordered)),)).fetchone()[0])
        _check(_in_asked_order(runs, ordered, lengths), size)
    jobs = [job for _, job in claimed(tx, lease)]
    large = _check([len(job.payload) for job in jobs], size)
    size.learn(len(jobs), large if large > LARGE * len(jobs) else 0)
    return jobs


def _check(lengths: Sequence[int], size: ClaimSize) -> int:
    """The bytes of payloads of these lengths. Raises TooLarge if they are too many for one lease."""
    total = sum(lengths)
    if total > LEASE_BYTES and len(lengths) > 1:
        size.expect_large()
        raise TooLarge(max(1, sum(upto <= LEASE_BYTES for upto in accumulate(lengths))))
    return total


def claimed(tx: Tx, lease: LeaseRow) -> list[tuple[int, Claimed]]:
    """The unsettled jobs of a lease with their positions, as a worker sees them."""
    pieces = list(lease.pieces())
    batches = _batches(tx, {key >> 16 for _, key, _, _ in pieces})
    contents = iter(_contents(tx, [(key, size) for _, key, size, _ in pieces]))
    places = lease.ranges.places
    jobs: list[tuple[int, Claimed]] = []
    for first, key, size, held in pieces:
        batch, enqueued_at, shared = batches[key >> 16]
        place, ord = places[held.place], key & 0xFFFF
        for nth, (task, payload, options) in zip(range(size), contents, strict=False):
            job = Claimed(
                batch, ord + nth, held.attempt, held.failures, held.crashes, task, payload, shared or options, place.queue,
                place.priority, place.tenant, enqueued_at,
            )  # fmt: skip
            jobs.append((first + nth, job))
    return jobs


def _batches(tx: Tx, seqs: set[int]) -> dict[int, tuple[UUID, datetime, bytes | None]]:
    """The id and time of each batch, and the options that its jobs share."""
    rows = _decode_batches(tx.cur.execute(_SQL["batches"], (str(sorted(seqs)),)).fetchone()[0])
    return {seq: _batch(*batch) for seq, *batch in rows}


@lru_cache(_REMEMBERED)
def _batch(id: str, enqueued_at: int, options: str) -> tuple[UUID, datetime, bytes | None]:
    """A batch as it was read. A worker of many chains meets the same ones in every claim, each with one job."""
    return UUID(hex=id), moment(enqueued_at), bytes.fromhex(options) or None


def _contents(tx: Tx, runs: list[tuple[int, int]]) -> Sequence[Content]:
    """Task, payload and options of each job of some runs: (first key, how many)."""
    # Neighbours are read together in the order of their keys, because they lie side by side in the file.
    ordered = sorted(runs)
    return _in_asked_order(runs, ordered, _in_order(tx, _joined(ordered)))


def _in_asked_order(runs: list[tuple[int, int]], ordered: list[tuple[int, int]], values: Sequence[T]) -> Sequence[T]:
    """Put the values of the jobs, which are in the order of their keys, into the order of the runs."""
    if ordered == runs:
        return values
    ends = accumulate([size for _, size in ordered])
    last = dict(zip(ordered, ends, strict=True))
    return [value for run in runs for value in values[last[run] - run[1] : last[run]]]


def _joined(runs: list[tuple[int, int]]) -> list[int]:
    """As `jobs` wants them, as few as possible."""
    joined: list[int] = []
    start = end = runs[0][0]
    for key, size in runs:
        if key != end:
            joined.append(start << 10 | end - start - 1)
            start = key
        end = key + size
    return [*joined, start << 10 | end - start - 1]


def _in_order(tx: Tx, runs: list[int]) -> list[Content]:
    try:
        row = tx.cur.execute(_SQL["jobs"], (str(runs),)).fetchone()
    except sqlite3.DataError:
        # Together they are longer than a value in SQLite may be.
        return tx.cur.execute(_SQL["each_job"], (str(runs),)).fetchall()
    tasks, payloads, sizes, options, option_sizes = row
    return list(zip(_decode_tasks(tasks), _cut(payloads, sizes), _cut_alike(options, option_sizes), strict=True))


def _cut_alike(joined: bytes | None, sizes: str) -> list[Any]:
    """The same for values that are mostly equal, as the options of jobs are that one call has enqueued with a trace."""
    lengths = _decode_sizes(sizes)
    if joined is None:
        return [None] * len(lengths)
    if (length := lengths[0]) and lengths.count(length) == len(lengths):
        value = joined[:length]
        if joined == value * len(lengths):
            return [value] * len(lengths)
    return _values(joined, lengths)


def _cut(joined: bytes | None, sizes: str) -> list[Any]:
    """Values out of one; None where there was none."""
    lengths = _decode_sizes(sizes)
    return [None] * len(lengths) if joined is None else _values(joined, lengths)


def _values(joined: bytes, lengths: list[int | None]) -> list[Any]:
    ends = list(accumulate([length or 0 for length in lengths]))
    values = [joined[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [None if length is None else value for length, value in zip(lengths, values, strict=True)]
