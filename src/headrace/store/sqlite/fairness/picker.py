"""Which ranges a claim takes: strictly by priority; queues, tenants and lanes in turns; what pauses and limits leave free."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY
from headrace.model.lease import Ask, Band
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import READY, RUNNING, Tx
from headrace.store.sqlite.fairness.allowance import Allowance, Rules
from headrace.store.sqlite.fairness.candidates import Candidate, Range, as_they_come, one_by_one, ranges_of
from headrace.store.sqlite.fairness.rings import PriorityLine, Tenants, deal
from headrace.store.sqlite.fairness.turn_state import TurnState
from headrace.store.sqlite.lease import Held, Place
from headrace.store.sqlite.rows import Bulk
from headrace.store.sqlite.verbs.pause import held_back

_SQL = load("claim")
_TAKE_MANY = Bulk(_SQL["take_many"])

_BESIDE = 1000
"""Lanes of a line that a claim passes over beside what it takes; the next one goes on from there."""
_AT_MOST = 10_000
"""The same for a claim that has found nothing yet."""
_HEADS = 8
"""Ranges read of a tenant that is looked up alone."""
_RANGES = 128
"""Ranges of a lane that one step reads. Each one holds a job at least."""

Taken = tuple[int, str, str, int | None, int | None, int | None]
"""What leaves the line, as `headrace_take` has it: line, first and last tenant, lane, upto, rest."""


def top(tx: Tx, queue: str, highest: int = HIGHEST_PRIORITY, lowest: int = LOWEST_PRIORITY) -> int | None:
    """The line of the highest priority that waits in a queue, between the two."""
    row = tx.cur.execute(_SQL["top"], (queue, highest, lowest)).fetchone()
    return None if row is None else row[0]


def _priority(line: int) -> int:
    return 1000 - (line & 4095)


class Picker:
    """One claim: takes ranges until it has enough jobs or meets a suspect."""

    def __init__(self, tx: Tx, ask: Ask, turn_state: TurnState, rules: Rules) -> None:
        self.tx = tx
        self.ask = ask
        self.allowance = Allowance(tx, rules)
        self.stopped = False
        """The claim has met a suspect."""
        self.places: list[Place] = []
        """The lanes of what is held. A lane that is met again may be there twice."""
        self.held: list[Held] = []
        self.count = 0
        self.suspect = False
        self.opens_at: int | None = None
        self._rota = turn_state
        self._paused = held_back(tx)
        self._passed = 0
        self._taken: list[Taken] = []

    def serve(self, queues: list[str], band: Band, until: int) -> None:
        """Take from these queues and priorities until the claim has so many jobs."""
        self.stopped = False
        highest = {queue: band.highest for queue in queues if not self._is_paused(queue)}
        waiting: dict[str, int] = {}
        unknown = list(highest)
        while self.count < until and not self.stopped:
            self._tops(unknown, highest, band.lowest, waiting)
            if not waiting:
                break
            priority = max(map(_priority, waiting.values()))
            level = self._rota.order([queue for queue, line in waiting.items() if _priority(line) == priority])
            self._serve_level({queue: waiting[queue] for queue in level}, priority, until - self.count, highest)
            unknown = level  # nothing has changed in the others

    def finish(self) -> None:
        """Write what is left to write."""
        self.flush()
        self.allowance.write()
        self._note_opening(self.allowance.opens_at)

    def _is_paused(self, queue: str) -> bool:
        if queue not in self._paused.queues:
            return False
        self._note_opening(self._paused.queues[queue])
        return True

    def is_held_back(self, tenant: str) -> bool:
        if tenant not in self._paused.tenants:
            return False
        self._note_opening(self._paused.tenants[tenant])
        return True

    def _note_opening(self, at: int | None) -> None:
        if at is not None:
            self.opens_at = at if self.opens_at is None else min(at, self.opens_at)

    def _tops(self, queues: list[str], highest: dict[str, int], lowest: int, waiting: dict[str, int]) -> None:
        """Note the first line of each of these queues that may have something to give."""
        for queue in queues:
            line = top(self.tx, queue, highest[queue], lowest)
            while line is not None and self.ask.tenant is not None and not self.candidate(line, self.ask.tenant):
                line = top(self.tx, queue, _priority(line) - 1, lowest)
            if line is None:
                waiting.pop(queue, None)
            else:
                waiting[queue] = line

    def _serve_level(self, lines: dict[str, int], priority: int, wanted: int, highest: dict[str, int]) -> None:
        """Give queues of one priority an equal share each. A queue that got one more than the others comes last the next time."""
        share, more = divmod(wanted, len(lines))
        favoured: list[str] = []
        for nth, (queue, line) in enumerate(lines.items()):
            if not (part := share + (nth < more)):
                break
            self._rota.served(queue)
            if nth < more:
                favoured.append(queue)
            before = self.count
            self._serve_line(PriorityLine(self, line, queue, priority, self._rota.line(queue, priority)), part)
            taken = self.count - before
            self.tx.depth.move(queue, READY, RUNNING, taken)
            if self.stopped:
                return
            if taken < part:
                # Empty or blocked, all of it.
                highest[queue] = priority - 1
        for queue in favoured:
            self._rota.served(queue)

    def _serve_line(self, line: PriorityLine, wanted: int) -> None:
        self._passed = 0  # what waits below must not starve because much is blocked above
        if self.ask.tenant is None:
            deal(self, Tenants(self, line, wanted), wanted)
        elif not self.is_held_back(self.ask.tenant) and (candidate := self.candidate(line.id, self.ask.tenant)):
            line.take(candidate, wanted)

    # ── what the line and its rings ask for ─────────────────────────────────

    def candidate(self, line: int, tenant: str) -> Candidate | None:
        candidates = self.heads("tenant", line, tenant, _HEADS, depth=_HEADS)
        return candidates[0] if candidates else None

    def has_lanes(self, line: PriorityLine) -> bool:
        """Whether tenants of this line may have several."""
        return self.tx.cur.execute(_SQL["limited"], (line.id,)).fetchone() is not None

    def heads(self, statement: str, *values: str | int, depth: int) -> list[Candidate]:
        """Candidates with up to `depth` ranges each, after everything that was taken has left the line."""
        self.flush()
        row = self.tx.cur.execute(_SQL[statement], values).fetchone()
        return [] if row is None or row[0] is None else one_by_one(row[0], depth)

    def stretch(self, line: PriorityLine, first: str, rows: int, *, of_lanes: bool) -> tuple[list[Candidate], bool]:
        """Candidates with all of their ranges, out of so many; and whether the line ends there."""
        self.flush()
        return as_they_come(self.tx.cur.execute(_SQL["stretch"], (line.id, first, rows)).fetchone(), rows, of_lanes)

    def tired(self) -> bool:
        """Enough lanes were passed over for one claim."""
        return self._passed >= (_BESIDE if self.held else _AT_MOST)

    def pass_over(self) -> None:
        self._passed += 1

    def take_known(self, line: PriorityLine, candidate: Candidate, count: int) -> int:
        """Take up to `count` jobs of a lane. The ranges that are known are enough."""
        number, left = len(self.places), count
        upto: int | None = None
        rest: int | None = None
        for lo, hi, attempt, failures, crashes, suspect in candidate.ranges:
            if suspect:
                if self.held:
                    self.stopped = True
                    break
                self.suspect = self.stopped = True
                left = count = 1
            size = hi - lo + 1
            if size > left:
                size, upto, rest = left, lo, lo + left
            else:
                upto = lo + 1
            self.held.append(Held(lo, size, attempt + 1, failures, crashes, number))
            left -= size
            if not left:
                break
        if upto is None:
            return 0
        self.places.append(self._place(line, candidate))
        if rest is None and candidate.complete and upto > candidate.ranges[-1][0]:
            self._take_all(line.id, candidate)
        else:
            self._taken.append((line.id, candidate.tenant, candidate.tenant, candidate.lane, upto, rest))
        self.count += count - left
        return count - left

    def _place(self, line: PriorityLine, candidate: Candidate) -> Place:
        units = self.allowance.units(candidate.lane) if candidate.lane else None
        return Place(line.queue, line.priority, candidate.tenant, candidate.lane, units)

    def _take_all(self, line: int, candidate: Candidate) -> None:
        """Tenants that stand side by side leave the line as one."""
        tenant = candidate.tenant
        if not candidate.alone:
            self._taken.append((line, tenant, tenant, candidate.lane, candidate.ranges[-1][0] + 1, None))
            return
        if self._taken and candidate.follows is not None:
            of, first, last, lane, _, _ = self._taken[-1]
            if of == line and last == candidate.follows and lane is None:
                self._taken[-1] = (line, first, tenant, None, None, None)
                return
        self._taken.append((line, tenant, tenant, None, None, None))

    def take_ranges(self, line: PriorityLine, candidate: Candidate, count: int) -> int:
        """Up to `count` jobs from the head of a lane on, more than is known of it."""
        number = len(self.places)
        self.places.append(self._place(line, candidate))
        taken = 0
        upto: int | None = None
        rest: int | None = None
        for lo, hi, attempt, failures, crashes, suspect in self._ranges(line, candidate):
            if suspect and self.held:
                self.stopped = True
                break
            size = 1 if suspect else min(hi - lo + 1, count - taken)
            self.held.append(Held(lo, size, attempt + 1, failures, crashes, number))
            taken += size
            if lo + size <= hi:
                upto, rest = lo, lo + size
            else:
                upto = lo + 1
            if suspect:
                self.suspect = self.stopped = True
                break
            if taken == count:
                break
        if upto is not None:
            self._taken.append((line.id, candidate.tenant, candidate.tenant, candidate.lane, upto, rest))
        self.count += taken
        return taken

    def _ranges(self, line: PriorityLine, candidate: Candidate) -> Iterator[Range]:
        """A lane from its head on."""
        lane, start = (line.id, candidate.tenant, candidate.lane), 0
        while True:
            ranges = ranges_of(self.tx.cur.execute(_SQL["ranges"], (*lane, start, _RANGES)).fetchone())
            yield from ranges
            if len(ranges) < _RANGES:
                return
            start = ranges[-1][1] + 1

    def flush(self) -> None:
        """Remove from the line what was taken, before the next read of it."""
        if len(self._taken) > 1:
            _TAKE_MANY.insert(self.tx.cur, self._taken)
        elif self._taken:
            ((line, first, last, lane, upto, rest),) = self._taken
            if lane is None:
                self.tx.cur.execute(_SQL["take_tenants"], (line, first, last))
            elif rest is None or upto != self.held[-1].lo or len(self.held) > 1:
                self.tx.cur.execute(_SQL["take"], (line, first, lane, upto))
            if rest is not None:
                self.tx.cur.execute(_SQL["shorten"], (rest, line, first, lane, upto))
        self._taken = []
