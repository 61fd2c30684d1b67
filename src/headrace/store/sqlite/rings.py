"""Who takes turns: the tenants of a line, and the lanes of a tenant, once around from whose turn it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.lease import MAX_LEASE
from headrace.store.sqlite.seats import Seat
from headrace.store.sqlite.turns import LOWEST_LANE, LineTurns, Turn, quotas

if TYPE_CHECKING:
    from headrace.store.sqlite.picker import Picker

_READ_AHEAD = 64
_TURNS = 50
"""A large claim has so many turns at least; each of them is as many jobs. Jobs of one tenant are neighbours, and come for a
fraction of what a walk to the next tenant costs."""
_MANY = 16
"""Tenants, fewer than which tell nothing of the others."""
_LANE_DEPTH = 4
"""Ranges read of every lane of a tenant."""


class Line:
    """The jobs of one queue and priority."""

    def __init__(self, picker: Picker, id: int, queue: str, priority: int, turns: LineTurns) -> None:
        self.picker = picker
        self.id = id
        """As `headrace_ready` has it."""
        self.queue = queue
        self.priority = priority
        self.turns = turns

    def take(self, seat: Seat, count: int) -> int:
        """Up to `count` jobs of a tenant, or of a lane."""
        picker = self.picker
        if seat.lanes:
            return deal(picker, Lanes(picker, self, seat.tenant), count)
        lane, allowed = seat.lane, count
        if lane:
            picker.allowance.prepare({lane: seat.ranges[0][0]})
            allowed = min(count, picker.allowance.free(lane))
            if not allowed:
                picker.allowance.passed_over(lane)
                picker.pass_over()
                return 0
        if seat.complete or seat.jobs >= allowed or seat.ranges[0][5]:
            taken = picker.take_known(self, seat, allowed)
        else:
            taken = picker.take_ranges(self, seat, allowed)
        if lane and taken:
            picker.allowance.take(lane, taken)
            if taken == allowed < count:
                picker.allowance.passed_over(lane)
        return taken


class Ring(ABC):
    """Who takes turns, once around from whose turn it is."""

    quantum = 1
    """Jobs in a turn of weight 1."""

    def __init__(self, picker: Picker, line: Line, turn: Turn) -> None:
        self.picker = picker
        self.line = line
        self.turn = turn
        self.complete = False
        self._origin = turn.last
        self._at: str | int | None = turn.last
        self._wrapped = turn.last is None
        self._over = False
        self._ahead: deque[Seat] = deque()
        self._read = 0

    @abstractmethod
    def fetch(self, after: str | int | None, jobs: int) -> tuple[list[Seat], bool]:
        """The next ones, enough for so many jobs if they can; and whether there is nobody behind them."""
        ...

    @abstractmethod
    def seat(self, name: str | int) -> Seat | None: ...

    @abstractmethod
    def name(self, seat: Seat) -> str | int:
        """What tells it from others."""
        ...

    @abstractmethod
    def is_behind(self, seat: Seat, origin: str | int) -> bool: ...

    def turn_of(self, seat: Seat) -> int:
        """Jobs in a turn."""
        del seat
        return self.quantum

    def is_open(self, seat: Seat) -> bool:
        del seat
        return True

    def next(self, jobs: int) -> list[Seat]:
        """The next ones, as many as it takes for so many jobs, as far as one can know; fewer: that was the whole ring."""
        seats: list[Seat] = []
        while jobs > 0 and not self.picker.tired():
            if not self._ahead and not self._read_on(jobs):
                self.complete = True
                break
            seat = self._ahead.popleft()
            if self.is_open(seat):
                seats.append(seat)
                turn = self.turn_of(seat)
                jobs -= seat.jobs if seat.complete and not seat.lanes and seat.jobs < turn else turn
            else:
                self.picker.pass_over()
                self.turn.last, self.turn.owed = self.name(seat), 0
        return seats

    def put_back(self, seats: list[Seat]) -> None:
        """They had no turn."""
        self._ahead.extendleft(reversed(seats))

    def _read_on(self, jobs: int) -> bool:
        """Read ahead, the more the longer it goes on. False: there are no more."""
        while not self._over:
            size = min(max(jobs, self._read), MAX_LEASE)
            self._read = 2 * size if self._read else _READ_AHEAD
            seats, ended = self.fetch(self._at, size)
            if self._wrapped and self._origin is not None:
                inside = [seat for seat in seats if not self.is_behind(seat, self._origin)]
                ended = ended or len(inside) < len(seats)
                seats = inside
            if not ended:
                self._at = self.name(seats[-1])
            elif self._wrapped:
                self._over = True
            else:
                self._wrapped, self._at = True, None
            if seats:
                self._ahead.extend(seats)
                self._prepare(seats)
                return True
        return False

    def _prepare(self, seats: list[Seat]) -> None:
        """Limits of many lanes are read in one go."""
        limited = {seat.lane: seat.ranges[0][0] for seat in seats if seat.lane and not seat.lanes}
        if limited:
            self.picker.allowance.prepare(limited)


class Tenants(Ring):
    """The tenants of a line."""

    def __init__(self, picker: Picker, line: Line, wanted: int) -> None:
        super().__init__(picker, line, line.turns.tenants)
        weights: Mapping[str, int] = picker.ask.weights.get(line.queue, {})
        self.quantum = max(1, wanted // _TURNS)
        self._weights = weights
        self._paused = picker.is_held_back
        self._of_lanes = picker.has_lanes(line)

    def fetch(self, after: str | int | None, jobs: int) -> tuple[list[Seat], bool]:
        first = "" if after is None else f"{after}\0"
        if self.line.turns.scattered:
            return self._stretch(first, jobs)
        size, depth = -(-jobs // self.quantum), 1 - int(-self.quantum // self.line.turns.length)
        statement = "tenants_of_lanes" if self._of_lanes else "tenants"
        seats = self.picker.heads(statement, self.line.id, first, size, depth, depth=depth)
        self._note_length(seats)
        whole = sum([seat.complete for seat in seats])
        self.line.turns.scattered = len(seats) > _MANY and whole > 0.9 * len(seats)
        return seats, len(seats) < size

    def _stretch(self, first: str, jobs: int) -> tuple[list[Seat], bool]:
        """Tenants with little each: they need no walk from one to the next, they stand side by side."""
        rows = int(jobs // min(self.line.turns.length, self.quantum)) + self.quantum
        seats, ended = self.picker.stretch(self.line, first, rows, of_lanes=self._of_lanes)
        self._note_length(seats)
        useful = sum([min(seat.jobs, self.quantum) for seat in seats])
        self.line.turns.scattered = ended or useful > jobs // 2
        return seats, ended

    def _note_length(self, seats: list[Seat]) -> None:
        if seats:
            ranges = sum([len(seat.ranges) for seat in seats])
            self.line.turns.length = sum([seat.jobs for seat in seats]) / ranges

    def seat(self, name: str | int) -> Seat | None:
        return self.picker.seat(self.line.id, str(name))

    def name(self, seat: Seat) -> str | int:
        return seat.tenant

    def is_behind(self, seat: Seat, origin: str | int) -> bool:
        return seat.tenant > str(origin)

    def turn_of(self, seat: Seat) -> int:
        return max(self._weights.get(seat.tenant, 1), 1) * self.quantum if self._weights else self.quantum

    def is_open(self, seat: Seat) -> bool:
        return not self._paused(seat.tenant)


class Lanes(Ring):
    """The lanes of one tenant."""

    def __init__(self, picker: Picker, line: Line, tenant: str) -> None:
        super().__init__(picker, line, line.turns.of_lanes(tenant))
        self._tenant = tenant

    def fetch(self, after: str | int | None, jobs: int) -> tuple[list[Seat], bool]:
        seats = self._from(LOWEST_LANE if after is None else int(after) + 1, jobs)
        return seats, len(seats) < jobs

    def seat(self, name: str | int) -> Seat | None:
        found = self._from(int(name), 1)
        return found[0] if found and found[0].lane == name else None

    def name(self, seat: Seat) -> str | int:
        return seat.lane

    def is_behind(self, seat: Seat, origin: str | int) -> bool:
        return seat.lane > int(origin)

    def _from(self, lane: int, count: int) -> list[Seat]:
        if lane >= 1 << 63:
            return []
        seats = self.picker.heads(
            "lanes", self.line.id, self._tenant, lane, count, _LANE_DEPTH, depth=_LANE_DEPTH
        )  # fmt: skip
        for seat in seats:
            seat.alone = False
        return seats


def deal(picker: Picker, ring: Ring, wanted: int) -> int:
    """Up to `wanted` jobs in turns; answers how many. Who has nothing that may run now is passed over and owed nothing."""
    taken = 0
    served: list[Seat] = []
    while taken < wanted and not picker.stopped and not picker.tired():
        if ring.turn.owed:
            taken += _go_on(picker, ring, wanted - taken)
            continue
        others = served
        if not ring.complete:
            seats = ring.next(wanted - taken)
        else:
            # As they are now.
            served = seats = [fresh for seat in served if (fresh := ring.seat(ring.name(seat))) is not None]
            others = []
        if not seats:
            if ring.complete and not served:
                break
            continue
        got, turns, spent = _round(picker, ring, seats, wanted - taken, others=bool(others))
        taken += got
        if taken == wanted:
            break
        if not ring.complete:
            ring.put_back(seats[turns:])
            seats = seats[:turns]
        if seats is not served:
            served += seats
        served = [seat for seat in _from_here(ring, served) if ring.name(seat) not in spent]
    return taken


def _from_here(ring: Ring, served: list[Seat]) -> list[Seat]:
    """In the order of their turns, after the last one."""
    names = [ring.name(seat) for seat in served]
    at = names.index(ring.turn.last) + 1 if ring.turn.last in names else 0
    return served[at:] + served[:at]


def _go_on(picker: Picker, ring: Ring, wanted: int) -> int:
    """With a turn that was cut short."""
    turn = ring.turn
    seat = None if turn.last is None else ring.seat(turn.last)
    owed = min(turn.owed, wanted)
    got = ring.line.take(seat, owed) if seat is not None and ring.is_open(seat) else 0
    if not (picker.stopped and not got):
        turn.owed = turn.owed - got if got == owed else 0
    return got


def _round(
    picker: Picker, ring: Ring, seats: list[Seat], wanted: int, *, others: bool
) -> tuple[int, int, set[str | int]]:
    """A turn for each, or several if there are no `others`; answers how many jobs there were, who had a turn (the first so
    many), and who of them had fewer jobs than their share.
    """
    turns = [ring.turn_of(seat) for seat in seats]
    if others or sum(turns) >= wanted:
        return _one_turn(picker, ring, seats, turns, wanted)
    taken = 0
    spent: set[str | int] = set()
    turn = ring.turn
    position, owed = turn.last, 0
    for seat, (quota, left) in zip(seats, quotas(turns, wanted), strict=True):
        got = ring.line.take(seat, quota)
        taken += got
        name = ring.name(seat)
        if picker.stopped and not got:
            # Whose suspect stopped this claim is the first of the next one.
            turn.last, turn.owed = name, max(left, 1)
            return taken, len(seats), spent
        if left >= 0:
            position, owed = name, left if got == quota else 0
        if got < quota:
            spent.add(name)
        if picker.stopped:
            break
    turn.last, turn.owed = position, owed
    return taken, len(seats), spent


def _one_turn(
    picker: Picker, ring: Ring, seats: list[Seat], turns: list[int], wanted: int
) -> tuple[int, int, set[str | int]]:
    """One after the other until there are as many jobs as wanted."""
    taken = had = 0
    spent: set[str | int] = set()
    turn = ring.turn
    for seat, jobs in zip(seats, turns, strict=True):
        quota = min(jobs, wanted - taken)
        if not quota:
            break
        had += 1
        got = ring.line.take(seat, quota)
        taken += got
        turn.last, turn.owed = ring.name(seat), jobs - quota
        if got < quota:
            spent.add(turn.last)
            turn.owed = 0
        if picker.stopped:
            if not got:
                # Whose suspect stopped this claim is the first of the next one.
                turn.owed = max(jobs - quota, 1)
            break
    return taken, had, spent
