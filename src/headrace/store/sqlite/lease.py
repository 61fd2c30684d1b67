"""Leases: a row holds ranges of jobs with their counts, and which positions are settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import groupby

import msgspec

from headrace.model.lease import Token
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import Bulk, Row, marks

SQL = load("lease")
_INSERT = Bulk(SQL["insert"], blobs=True)


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lane, as the ready table spells it."""

    queue: str
    priority: int
    tenant: str
    lane: int
    units: tuple[tuple[str, int], ...] | None = None
    """Limit keys of the lane, each with the units that a job holds. The lease carries them, so that giving units back
    depends on no other row. None: the lane has no limits, or an earlier version wrote the lease."""


class Held(msgspec.Struct, array_like=True, gc=False):
    """A range in a lease: `size` jobs from key `lo` on, which share their counts and their lane."""

    lo: int
    size: int
    attempt: int
    failures: int
    crashes: int
    place: int
    """Which of the lease's places."""


class Ranges(msgspec.Struct, array_like=True, gc=False):
    places: list[Place]
    held: list[Held]

    def keys(self) -> list[int]:
        """By position."""
        return [key for held in self.held for key in range(held.lo, held.lo + held.size)]

    def spread(self) -> list[Held]:
        """The range of each position."""
        return [held for held in self.held for _ in range(held.size)]


_decode = msgspec.msgpack.Decoder(Ranges).decode
_encode = msgspec.msgpack.Encoder().encode


class LeaseRow(msgspec.Struct, array_like=True):
    token: bytes
    worker: bytes
    cause: str | None
    claimed_at: int
    expires_at: int
    suspect: int
    size: int
    settled: int
    """Bit i: position i is settled."""
    ranges: Ranges

    def open(self) -> Iterator[tuple[int, int, Held]]:
        """(position, key, range) of what is not settled."""
        for position, key, size, held in self.pieces():
            for nth in range(size):
                yield position + nth, key + nth, held

    def pieces(self) -> Iterator[tuple[int, int, int, Held]]:
        """(first position, its key, how many, range) of neighbours that are not settled."""
        start, settled = 0, self.settled
        for held in self.ranges.held:
            end = start + held.size
            if not settled:
                yield start, held.lo, held.size, held
            else:
                whether = [not settled >> position & 1 for position in range(start, end)]
                at = start
                for is_open, run in groupby(whether):
                    size = len(list(run))
                    if is_open:
                        yield at, held.lo + at - start, size, held
                    at += size
            start = end

    def position_of(self, key: int) -> int | None:
        """Where an unsettled job sits."""
        position = 0
        for held in self.ranges.held:
            if held.lo <= key < held.lo + held.size:
                at = position + key - held.lo
                return None if self.settled >> at & 1 else at
            position += held.size
        return None


def _row(row: Row) -> LeaseRow:
    token, worker, cause, claimed_at, expires_at, suspect, size, settled, ranges = row
    mask = int.from_bytes(settled, "little")
    return LeaseRow(
        token, worker, cause, claimed_at, expires_at, suspect, size, mask, _decode(ranges)
    )  # fmt: skip


def read(tx: Tx, token: Token) -> LeaseRow | None:
    row = tx.cur.execute(SQL["one"], (token.bytes,)).fetchone()
    return None if row is None else _row(row)


def expired(tx: Tx, limit: int) -> list[LeaseRow]:
    return [_row(row) for row in tx.cur.execute(SQL["expired"], (tx.now, limit)).fetchall()]


def around(tx: Tx, lowest: int, highest: int) -> list[LeaseRow]:
    """Leases that may hold a key between the two."""
    return [_row(row) for row in tx.cur.execute(SQL["around"], (highest, lowest)).fetchall()]


def all(tx: Tx) -> list[LeaseRow]:
    return around(tx, 0, (1 << 63) - 1)


def naming(tx: Tx, text: str, among: int, jobs: int) -> list[LeaseRow]:
    """Leases that contain a text, of so many that are searched, until they hold so many jobs.

    MessagePack holds texts as they are, so only what is found is decoded. Python searches many times faster than SQLite's
    `instr`, which compares at every byte.
    """
    sought = text.encode()
    leases: list[LeaseRow] = []
    for row in tx.cur.execute(SQL["some"], (among,)):
        if sought in row[8]:
            leases.append(_row(row))
            jobs -= leases[-1].size
            if jobs <= 0:
                break
    return leases


def insert(tx: Tx, lease: LeaseRow) -> None:
    held = lease.ranges.held
    lowest, highest = min(h.lo for h in held), max(h.lo + h.size - 1 for h in held)
    row = (
        lease.token, lease.worker, lease.cause, lease.claimed_at, lease.expires_at, lease.suspect,
        lease.size, lowest, highest, _mask(lease), _encode(lease.ranges),
    )  # fmt: skip
    _INSERT.insert(tx.cur, [row])


def keep(tx: Tx, lease: LeaseRow) -> None:
    """Write what is settled by now; a lease with nothing left ends."""
    if lease.settled == (1 << lease.size) - 1:
        tx.cur.execute(SQL["end"], (lease.token,))
    else:
        tx.cur.execute(SQL["settled"], (_mask(lease), lease.token))


def _mask(lease: LeaseRow) -> bytes:
    return lease.settled.to_bytes((lease.settled.bit_length() + 7) // 8, "little")


def stops(tx: Tx, tokens: Iterable[bytes]) -> dict[tuple[bytes, int], str | None]:
    """By token and position, the reasons of running jobs that were cancelled."""
    asked = list(tokens)
    reasons: dict[tuple[bytes, int], str | None] = {}
    for start in range(0, len(asked), 500):
        some = asked[start : start + 500]
        statement = SQL["stops"].replace(":tokens", marks(len(some)))
        reasons.update({(token, position): reason for token, position, reason in tx.cur.execute(statement, some)})
    return reasons


def next_expiry(tx: Tx) -> timedelta | None:
    """From now until the first lease expires."""
    (expires_at,) = tx.cur.execute(SQL["first_expiry"]).fetchone()
    return None if expires_at is None else timedelta(microseconds=max(expires_at - tx.now, 0))


def any_expired(tx: Tx) -> bool:
    """Whether a lease has run out."""
    return tx.cur.execute(SQL["any_expired"], (tx.now,)).fetchone() is not None
