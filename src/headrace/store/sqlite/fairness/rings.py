"""Rings: the tenants of a line, or the lanes of a tenant, once around from the one that has the turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.model.lease import MAX_LEASE
from headrace.store.sqlite.fairness.candidates import Candidate
from headrace.store.sqlite.fairness.turn_state import LOWEST_LANE, LineTurns, Turn, quotas

if TYPE_CHECKING:
    from headrace.store.sqlite.fairness.picker import Picker

_READ_AHEAD = 64
_TURNS = 50
"""A large claim has at least so many turns, all of the same length. Jobs of one tenant are neighbours, so a longer turn
costs a fraction of a walk to the next tenant."""
_MANY = 16
"""With fewer tenants than this the store learns nothing about the others."""
_LANE_DEPTH = 4
"""Ranges read of every lane of a tenant."""


class PriorityLine:
    """The jobs of one queue and priority."""

    def __init__(self, picker: Picker, id: int, queue: str, priority: int, turns: LineTurns) -> None:
        self.picker = picker
        self.id = id
        """As `headrace_ready` has it."""
        self.queue = queue
        self.priority = priority
        self.turns = turns

    def take(self, candidate: Candidate, count: int) -> int:
        """Up to `count` jobs of a tenant, or of a lane."""
        picker = self.picker
        if candidate.lanes:
            return deal(picker, Lanes(picker, self, candidate.tenant), count)
        lane, allowed = candidate.lane, count
        if lane:
            picker.allowance.prepare({lane: candidate.ranges[0][0]})
            allowed = min(count, picker.allowance.free(lane))
            if not allowed:
                picker.allowance.passed_over(lane)
                picker.pass_over()
                return 0
        if candidate.complete or candidate.jobs >= allowed or candidate.ranges[0][5]:
            taken = picker.take_known(self, candidate, allowed)
        else:
            taken = picker.take_ranges(self, candidate, allowed)
        if lane and taken:
            picker.allowance.take(lane, taken)
            if taken == allowed < count:
                picker.allowance.passed_over(lane)
        return taken


class Ring(ABC):
    """Candidates in the order of their turns, once around."""

    quantum = 1
    """Jobs in a turn of weight 1."""

    def __init__(self, picker: Picker, line: PriorityLine, turn: Turn) -> None:
        self.picker = picker
        self.line = line
        self.turn = turn
        self.complete = False
        self._origin = turn.last
        self._at: str | int | None = turn.last
        self._wrapped = turn.last is None
        self._over = False
        self._ahead: deque[Candidate] = deque()
        self._read = 0

    @abstractmethod
    def fetch(self, after: str | int | None, jobs: int) -> tuple[list[Candidate], bool]:
        """The next candidates, enough for so many jobs if there are; and whether they are the last of the line."""
        ...

    @abstractmethod
    def candidate(self, name: str | int) -> Candidate | None: ...

    @abstractmethod
    def name(self, candidate: Candidate) -> str | int:
        """The name that tells it from others."""
        ...

    @abstractmethod
    def is_behind(self, candidate: Candidate, origin: str | int) -> bool: ...

    def turn_of(self, candidate: Candidate) -> int:
        """Jobs in a turn."""
        del candidate
        return self.quantum

    def is_open(self, candidate: Candidate) -> bool:
        del candidate
        return True

    def next(self, jobs: int) -> list[Candidate]:
        """The next ones, as many as it takes for so many jobs, as far as one can know; fewer: that was the whole ring."""
        candidates: list[Candidate] = []
        while jobs > 0 and not self.picker.tired():
            if not self._ahead and not self._read_on(jobs):
                self.complete = True
                break
            candidate = self._ahead.popleft()
            if self.is_open(candidate):
                candidates.append(candidate)
                turn = self.turn_of(candidate)
                jobs -= candidate.jobs if candidate.complete and not candidate.lanes and candidate.jobs < turn else turn
            else:
                self.picker.pass_over()
                self.turn.last, self.turn.owed = self.name(candidate), 0
        return candidates

    def put_back(self, candidates: list[Candidate]) -> None:
        """Keep candidates that had no turn for the next call."""
        self._ahead.extendleft(reversed(candidates))

    def _read_on(self, jobs: int) -> bool:
        """Read ahead, the more the longer it goes on. False: there are no more."""
        while not self._over:
            size = min(max(jobs, self._read), MAX_LEASE)
            self._read = 2 * size if self._read else _READ_AHEAD
            candidates, ended = self.fetch(self._at, size)
            if self._wrapped and self._origin is not None:
                inside = [candidate for candidate in candidates if not self.is_behind(candidate, self._origin)]
                ended = ended or len(inside) < len(candidates)
                candidates = inside
            if not ended:
                self._at = self.name(candidates[-1])
            elif self._wrapped:
                self._over = True
            else:
                self._wrapped, self._at = True, None
            if candidates:
                self._ahead.extend(candidates)
                self._prepare(candidates)
                return True
        return False

    def _prepare(self, candidates: list[Candidate]) -> None:
        """Limits of many lanes are read in one go."""
        limited = {
            candidate.lane: candidate.ranges[0][0] for candidate in candidates if candidate.lane and not candidate.lanes
        }
        if limited:
            self.picker.allowance.prepare(limited)


class Tenants(Ring):
    """The tenants of a line."""

    def __init__(self, picker: Picker, line: PriorityLine, wanted: int) -> None:
        super().__init__(picker, line, line.turns.tenants)
        weights: Mapping[str, int] = picker.ask.weights.get(line.queue, {})
        self.quantum = max(1, wanted // _TURNS)
        self._weights = weights
        self._paused = picker.is_held_back
        self._of_lanes = picker.has_lanes(line)

    def fetch(self, after: str | int | None, jobs: int) -> tuple[list[Candidate], bool]:
        first = "" if after is None else f"{after}\0"
        if self.line.turns.scattered:
            return self._stretch(first, jobs)
        size, depth = -(-jobs // self.quantum), 1 - int(-self.quantum // self.line.turns.length)
        statement = "tenants_of_lanes" if self._of_lanes else "tenants"
        candidates = self.picker.heads(statement, self.line.id, first, size, depth, depth=depth)
        self._note_length(candidates)
        whole = sum([candidate.complete for candidate in candidates])
        self.line.turns.scattered = len(candidates) > _MANY and whole > 0.9 * len(candidates)
        return candidates, len(candidates) < size

    def _stretch(self, first: str, jobs: int) -> tuple[list[Candidate], bool]:
        """Read tenants with few jobs each in one stretch, because they stand side by side in the line."""
        rows = int(jobs // min(self.line.turns.length, self.quantum)) + self.quantum
        candidates, ended = self.picker.stretch(self.line, first, rows, of_lanes=self._of_lanes)
        self._note_length(candidates)
        useful = sum([min(candidate.jobs, self.quantum) for candidate in candidates])
        self.line.turns.scattered = ended or useful > jobs // 2
        return candidates, ended

    def _note_length(self, candidates: list[Candidate]) -> None:
        if candidates:
            ranges = sum([len(candidate.ranges) for candidate in candidates])
            self.line.turns.length = sum([candidate.jobs for candidate in candidates]) / ranges

    def candidate(self, name: str | int) -> Candidate | None:
        return self.picker.candidate(self.line.id, str(name))

    def name(self, candidate: Candidate) -> str | int:
        return candidate.tenant

    def is_behind(self, candidate: Candidate, origin: str | int) -> bool:
        return candidate.tenant > str(origin)

    def turn_of(self, candidate: Candidate) -> int:
        return max(self._weights.get(candidate.tenant, 1), 1) * self.quantum if self._weights else self.quantum

    def is_open(self, candidate: Candidate) -> bool:
        return not self._paused(candidate.tenant)


class Lanes(Ring):
    """The lanes of one tenant."""

    def __init__(self, picker: Picker, line: PriorityLine, tenant: str) -> None:
        super().__init__(picker, line, line.turns.of_lanes(tenant))
        self._tenant = tenant

    def fetch(self, after: str | int | None, jobs: int) -> tuple[list[Candidate], bool]:
        candidates = self._from(LOWEST_LANE if after is None else int(after) + 1, jobs)
        return candidates, len(candidates) < jobs

    def candidate(self, name: str | int) -> Candidate | None:
        candidates = self._from(int(name), 1)
        return candidates[0] if candidates and candidates[0].lane == name else None

    def name(self, candidate: Candidate) -> str | int:
        return candidate.lane

    def is_behind(self, candidate: Candidate, origin: str | int) -> bool:
        return candidate.lane > int(origin)

    def _from(self, lane: int, count: int) -> list[Candidate]:
        if lane >= 1 << 63:
            return []
        candidates = self.picker.heads(
            "lanes", self.line.id, self._tenant, lane, count, _LANE_DEPTH, depth=_LANE_DEPTH
        )  # fmt: skip
        for candidate in candidates:
            candidate.alone = False
        return candidates


def deal(picker: Picker, ring: Ring, wanted: int) -> int:
    """Take up to `wanted` jobs in turns; answers how many. A candidate without a job that may run is owed nothing."""
    taken = 0
    served: list[Candidate] = []
    while taken < wanted and not picker.stopped and not picker.tired():
        if ring.turn.owed:
            taken += _go_on(picker, ring, wanted - taken)
            continue
        others = served
        if not ring.complete:
            candidates = ring.next(wanted - taken)
        else:
            # As they are now.
            served = candidates = [
                fresh for candidate in served if (fresh := ring.candidate(ring.name(candidate))) is not None
            ]
            others = []
        if not candidates:
            if ring.complete and not served:
                break
            continue
        got, turns, spent = _round(picker, ring, candidates, wanted - taken, others=bool(others))
        taken += got
        if taken == wanted:
            break
        if not ring.complete:
            ring.put_back(candidates[turns:])
            candidates = candidates[:turns]
        if candidates is not served:
            served += candidates
        served = [candidate for candidate in _from_here(ring, served) if ring.name(candidate) not in spent]
    return taken


def _from_here(ring: Ring, served: list[Candidate]) -> list[Candidate]:
    """In the order of their turns, after the last one."""
    names = [ring.name(candidate) for candidate in served]
    at = names.index(ring.turn.last) + 1 if ring.turn.last in names else 0
    return served[at:] + served[:at]


def _go_on(picker: Picker, ring: Ring, wanted: int) -> int:
    """Go on with a turn that was cut short."""
    turn = ring.turn
    candidate = None if turn.last is None else ring.candidate(turn.last)
    owed = min(turn.owed, wanted)
    got = ring.line.take(candidate, owed) if candidate is not None and ring.is_open(candidate) else 0
    if not (picker.stopped and not got):
        turn.owed = turn.owed - got if got == owed else 0
    return got


def _round(
    picker: Picker, ring: Ring, candidates: list[Candidate], wanted: int, *, others: bool
) -> tuple[int, int, set[str | int]]:
    """Give each a turn, or several if there are no `others`. Answers how many jobs were taken, how many candidates had a
    turn (the first ones), and the names of those that had fewer jobs than their share.
    """
    turns = [ring.turn_of(candidate) for candidate in candidates]
    if others or sum(turns) >= wanted:
        return _one_turn(picker, ring, candidates, turns, wanted)
    taken = 0
    spent: set[str | int] = set()
    turn = ring.turn
    position, owed = turn.last, 0
    for candidate, (quota, left) in zip(candidates, quotas(turns, wanted), strict=True):
        got = ring.line.take(candidate, quota)
        taken += got
        name = ring.name(candidate)
        if picker.stopped and not got:
            # The next claim begins with the candidate that has the suspect.
            turn.last, turn.owed = name, max(left, 1)
            return taken, len(candidates), spent
        if left >= 0:
            position, owed = name, left if got == quota else 0
        if got < quota:
            spent.add(name)
        if picker.stopped:
            break
    turn.last, turn.owed = position, owed
    return taken, len(candidates), spent


def _one_turn(
    picker: Picker, ring: Ring, candidates: list[Candidate], turns: list[int], wanted: int
) -> tuple[int, int, set[str | int]]:
    """One after the other until there are as many jobs as wanted."""
    taken = had = 0
    spent: set[str | int] = set()
    turn = ring.turn
    for candidate, jobs in zip(candidates, turns, strict=True):
        quota = min(jobs, wanted - taken)
        if not quota:
            break
        had += 1
        got = ring.line.take(candidate, quota)
        taken += got
        turn.last, turn.owed = ring.name(candidate), jobs - quota
        if got < quota:
            spent.add(turn.last)
            turn.owed = 0
        if picker.stopped:
            if not got:
                # The next claim begins with the candidate that has the suspect.
                turn.owed = max(jobs - quota, 1)
            break
    return taken, had, spent
