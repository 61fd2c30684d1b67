"""CLAIM: ready ranges become a lease. Priority is strict; queues of one priority, and lanes within, take turns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from headrace.job import Claimed
from headrace.lease import MAX_LEASE, Ask, Lease
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.depth import READY, RUNNING, Tx
from headrace.store.sqlite.lease import Held, LeaseRow, Place, Ranges
from headrace.store.sqlite.rows import micros, moment
from headrace.store.sqlite.statements import load

_SQL = load("claim")
BEFORE_ALL = ("", -(1 << 63))


class Rota:
    """Whose turn it is: kept by each store object, so turns are fair among the claims of one process."""

    def __init__(self) -> None:
        self._turn = 0
        self._served: dict[str, int] = {}
        self._last: dict[tuple[str, int], tuple[str, int]] = {}

    def order(self, queues: list[str]) -> list[str]:
        """The queue that was served longest ago comes first."""
        return sorted(queues, key=lambda queue: self._served.get(queue, 0))

    def served(self, queue: str) -> None:
        self._turn += 1
        self._served[queue] = self._turn

    def last(self, queue: str, priority: int) -> tuple[str, int]:
        return self._last.get((queue, priority), BEFORE_ALL)

    def note(self, place: Place) -> None:
        if len(self._last) > 10_000:
            self._last.clear()
        self._last[place.queue, place.priority] = (place.tenant, place.lane)


def tops(tx: Tx, queues: Sequence[str]) -> dict[str, int]:
    """The highest waiting priority of each queue that has something to give."""
    found: dict[str, int] = {}
    for queue in queues:
        row = tx.cur.execute(_SQL["top"], (queue,)).fetchone()
        if row is not None:
            found[queue] = row[0]
    return found


def nothing_to_claim(tx: Tx, ask: Ask) -> bool:
    return ask.limit < 1 or not tops(tx, ask.queues)


def claim(tx: Tx, ask: Ask, rota: Rota) -> Lease | None:
    picker = _Picker(tx, rota, min(ask.limit, MAX_LEASE))
    while picker.wants():
        waiting = tops(tx, ask.queues)
        if not waiting:
            break
        priority = max(waiting.values())
        picker.serve(rota.order([queue for queue, top in waiting.items() if top == priority]), priority)
    if not picker.held:
        return None
    ranges = Ranges(list(picker.places), picker.held)
    lease = LeaseRow(
        ask.token.bytes, ask.worker.bytes, None, tx.now, tx.now + micros(ask.ttl), int(picker.suspect),
        picker.count, 0, ranges,
    )  # fmt: skip
    leases.insert(tx, lease)
    return Lease(ask.token, [job for _, job in claimed(tx, lease)], picker.suspect)


def claimed(tx: Tx, lease: LeaseRow) -> list[tuple[int, Claimed]]:
    """The unsettled jobs of a lease with their positions, as a worker sees them."""
    unsettled = list(lease.open())
    rows = tx.cur.execute(_SQL["jobs"], (str([key for _, key, _ in unsettled]),)).fetchall()
    batches: dict[bytes, tuple[UUID, datetime]] = {}
    places = lease.ranges.places
    jobs: list[tuple[int, Claimed]] = []
    for (position, key, held), (id, enqueued_at, task, payload, options) in zip(unsettled, rows, strict=True):
        batch = batches.get(id)
        if batch is None:
            batch = batches[id] = (UUID(bytes=id), moment(enqueued_at))
        place = places[held.place]
        job = Claimed(
            batch[0], key & 0xFFFF, held.attempt, held.failures, held.crashes, task, payload, options, place.queue,
            place.priority, place.tenant, batch[1],
        )  # fmt: skip
        jobs.append((position, job))
    return jobs


class _Picker:
    """One claim at work: takes ranges until it has enough or stands before a suspect."""

    def __init__(self, tx: Tx, rota: Rota, limit: int) -> None:
        self._tx = tx
        self._rota = rota
        self._limit = limit
        self._stopped = False
        self.places: dict[Place, int] = {}
        self.held: list[Held] = []
        self.count = 0
        self.suspect = False

    def wants(self) -> bool:
        return self.count < self._limit and not self._stopped

    def serve(self, queues: list[str], priority: int) -> None:
        """Queues of one priority: an equal share each. Who got one more than the others comes last the next time."""
        share, more = divmod(self._limit - self.count, len(queues))
        favoured: list[str] = []
        for nth, queue in enumerate(queues):
            if not (wanted := share + (nth < more)):
                break
            self._rota.served(queue)
            if nth < more:
                favoured.append(queue)
            self._serve_lanes(queue, priority, wanted)
            if self._stopped:
                return
        for queue in favoured:
            self._rota.served(queue)

    def _serve_lanes(self, queue: str, priority: int, wanted: int) -> None:
        """Lanes of one queue and priority, from whose turn it is: an equal quantum each. The rest of the division
        goes to the first ones, and the next claim begins behind them.
        """
        lanes = self._lanes(queue, priority, wanted)
        quantum, more = divmod(wanted, len(lanes))
        begin_behind = (more or len(lanes)) - 1
        for nth, place in enumerate(lanes):
            taken = self._take(place, quantum + (nth < more))
            if self._stopped:
                # Whose suspect stopped this claim is the first of the next one.
                if taken or nth:
                    self._rota.note(lanes[nth if taken else nth - 1])
                return
        self._rota.note(lanes[begin_behind])

    def _lanes(self, queue: str, priority: int, limit: int) -> list[Place]:
        """Up to `limit` lanes in the order of their turns, by skipping from lane to lane."""
        start = at = self._rota.last(queue, priority)
        lanes: list[Place] = []
        wrapped = start == BEFORE_ALL
        while len(lanes) < limit:
            row = self._tx.cur.execute(_SQL["lane_after"], (queue, priority, *at)).fetchone()
            if row is None and not wrapped:
                wrapped, at = True, BEFORE_ALL
                continue
            if row is None or (wrapped and start != BEFORE_ALL and row > start):
                break
            lanes.append(Place(queue, priority, *row))
            at = row
        return lanes

    def _take(self, place: Place, quantum: int) -> int:
        """Up to `quantum` jobs from the head of a lane; answers how many."""
        cur = self._tx.cur
        lane = (place.queue, place.priority, place.tenant, place.lane)
        number = self.places.setdefault(place, len(self.places))
        taken = 0
        whole: tuple[bytes, int] | None = None
        part: tuple[int, bytes, int] | None = None
        for batch, lo, hi, attempt, failures, crashes, suspect in cur.execute(_SQL["ranges"], lane):
            if suspect and self.held:
                self._stopped = True
                break
            size = 1 if suspect else min(hi - lo + 1, quantum - taken)
            self.held.append(Held(lo, size, attempt + 1, failures, crashes, number))
            taken += size
            if lo + size <= hi:
                part = (lo + size, batch, lo)
            else:
                whole = (batch, lo)
            if suspect:
                self.suspect = self._stopped = True
                break
            if taken == quantum:
                break
        if whole is not None:
            cur.execute(_SQL["take"], (*lane, *whole))
        if part is not None:
            cur.execute(_SQL["shorten"], (part[0], *lane, *part[1:]))
        self._tx.depth.move(place.queue, READY, RUNNING, taken)
        self.count += taken
        return taken
