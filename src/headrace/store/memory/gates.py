"""Gates: members are counted as they end, and what waits is released or cancelled at once, however far it reaches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from headrace.errors import GroupOver
from headrace.model.clock import Clock
from headrace.model.gate import (
    NEVER_SEALED,
    Counts,
    Edge,
    Gate,
    GateId,
    Links,
    NewGate,
    Verdict,
    Wait,
    as_member,
    is_gate,
    verdict,
    why_cancelled,
)
from headrace.model.job import FINISHED, Batch, JobId, JobState, job_id, split_id
from headrace.model.outcome import Again
from headrace.model.records import Retention
from headrace.store.memory.moves import Operating
from headrace.store.memory.rows import GateRow, JobRow

_ONE = {
    JobState.DONE: Counts(1, done=1),
    JobState.DEAD: Counts(1, dead=1),
    JobState.CANCELLED: Counts(1, cancelled=1),
}
"""A job as a gate of one member, by its state. Otherwise it has not ended."""
_OPEN, _GONE = Counts(1), _ONE[JobState.CANCELLED]


class Gating(Operating):
    """See `store/gates.py`."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._gates: dict[int, GateRow] = {}
        self._into: dict[int, list[int]] = {}
        """A job or a gate → the gates on which its end counts."""
        self._blocked: dict[int, dict[int, Wait]] = {}
        """A job or a gate → the jobs that wait for it."""
        self._changed: deque[UUID] = deque()
        """Jobs and gates whose followers have not been looked at."""
        self._following = False

    # ── verbs ───────────────────────────────────────────────────────────────
    async def signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        self._make_gate(gate)
        row = self._gates[gate.id.int]
        if not row.new.signalled or row.value is not None:
            return False
        row.value, row.counts = value, Counts(1, done=1)
        row.changed_at = self._clock.now()
        row.kept_until = row.changed_at + keep
        self._follow(gate.id)
        return True

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        rows = [self._gates.get(id.int) for id in ids]
        return [_shown(row) if row is not None else None for row in rows]

    async def groups(self, *, tenant: str | None = None, before: GateId | None = None, limit: int = 50) -> list[Gate]:
        rows = [
            row
            for number, row in sorted(self._gates.items(), reverse=True)
            if row.new.label and tenant in {None, row.new.tenant} and (before is None or number < before.int)
        ]
        return [_shown(row) for row in rows[:limit]]

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        row = self._gates.get(id.int)
        edges = [] if row is None else sorted(row.edges, key=lambda edge: edge.first)
        return Links(
            tuple(edge for edge in edges if after is None or edge.first > after)[:limit],
            tuple(GateId(UUID(int=number)) for number in self._into.get(id.int, ()))[:limit],
            tuple(UUID(int=number) for number in sorted(self._blocked.get(id.int, ())))[:limit],
        )

    # ── enqueue ─────────────────────────────────────────────────────────────
    def _refuse_over(self, batch: Batch) -> None:
        """Raise GroupOver for an edge into a gate that takes no members."""
        fresh = {gate.id for gate in batch.gates}
        for edge in batch.edges:
            row = self._gates.get(edge.into.int)
            if row is None and edge.into not in fresh:
                raise GroupOver(edge.into)
            if row is not None and (row.new.signalled or _over(row)):
                raise GroupOver(edge.into)

    def _link(self, batch: Batch, existing: Mapping[int, JobId]) -> None:
        """Put the jobs of a batch where they belong: gates and members first, then jobs, in their order."""
        for gate in batch.gates:
            self._make_gate(gate)
        for edge in batch.edges:
            for part in _stored(edge, batch, existing):
                self._add_members(part)
        for id in batch.seals:
            if (row := self._gates.get(id.int)) is not None and not row.sealed:
                row.sealed, row.changed_at = True, self._clock.now()
        for ord, new in enumerate(batch.jobs):
            if ord in existing:
                continue
            job = self._jobs[job_id(batch.id, ord).int]
            if new.wait is None:
                self._put(job, new.due)
            else:
                of, place = split_id(new.wait.gate)
                stand_in = existing.get(place) if of == batch.id else None
                self._block(job, (new.wait if stand_in is None else replace(new.wait, gate=stand_in),))
        self._follow(*(edge.into for edge in batch.edges), *batch.seals, *(gate.id for gate in batch.gates))

    def _make_gate(self, gate: NewGate) -> None:
        now = self._clock.now()
        row = GateRow(gate, now, now, gate.sealed, Counts(int(gate.signalled)))
        self._gates.setdefault(gate.id.int, row)

    def _add_members(self, edge: Edge) -> None:
        gate = self._gates[edge.into.int]
        if edge in gate.edges:
            return
        gate.edges.append(edge)
        gate.changed_at = self._clock.now()
        for number in range(edge.first.int, edge.last.int + 1):
            self._into.setdefault(number, []).append(edge.into.int)
            gate.counts = _sum(gate.counts, self._as_member(UUID(int=number)))

    # ── waiting ─────────────────────────────────────────────────────────────
    def _again(self, job: JobRow, settlement: Again) -> None:
        for gate in settlement.gates:
            self._make_gate(gate)
        if settlement.due is not None or not settlement.waits:
            self._put(job, settlement.due)
        if settlement.waits and (settlement.due is None or job.state is JobState.SCHEDULED):
            self._block(job, settlement.waits)

    def _block(self, job: JobRow, waits: tuple[Wait, ...]) -> None:
        job.state, job.waits = JobState.BLOCKED, waits
        for wait in waits:
            self._blocked.setdefault(wait.gate.int, {})[job.id.int] = wait
        for wait in waits:
            self._judge(job, wait)

    def _judge(self, job: JobRow, wait: Wait) -> None:
        """Release or cancel a blocked job if what it waits for says so."""
        says = self._verdict(wait)
        if job.state is not JobState.BLOCKED or says is Verdict.WAIT:
            return
        if says is Verdict.RELEASE or job.attempt:
            self._wake(job)
        else:
            self._finish(job, JobState.CANCELLED, why_cancelled(wait.needs, wait.gate))

    def _wake(self, job: JobRow) -> None:
        """Make a blocked or a scheduled job ready. A delay counts from the release of a job that never ran."""
        due = job.new.due if job.state is JobState.BLOCKED and not job.attempt else None
        self._unblock(job)
        self._put(job, due)

    def _unblock(self, job: JobRow) -> None:
        for wait in job.waits:
            waiting = self._blocked.get(wait.gate.int, {})
            waiting.pop(job.id.int, None)
            if not waiting:
                self._blocked.pop(wait.gate.int, None)
        job.waits = ()

    # ── ends ────────────────────────────────────────────────────────────────
    def _finish(self, job: JobRow, state: JobState, note: str | None) -> None:
        self._unblock(job)
        super()._finish(job, state, note)
        self._count(job.id, _OPEN, _ONE[state])
        self._follow(job.id)

    def _before_retry(self, job: JobRow) -> None:
        if job.state in FINISHED:
            self._count(job.id, _ONE[job.state], _OPEN)
            self._follow()

    def _delete(self, job: JobRow) -> None:
        self._unblock(job)
        if job.state not in {JobState.DONE, JobState.CANCELLED}:
            self._count(job.id, self._as_member(job.id), _GONE)
        self._forget(job.id.int)
        self._follow(job.id)

    def _forget(self, number: int) -> None:
        del self._jobs[number]
        self._into.pop(number, None)

    def _count(self, member: UUID, before: Counts, after: Counts) -> None:
        """Replace what a member counts on its gates."""
        for number in self._into.get(member.int, ()):
            gate = self._gates[number]
            gate.counts = _sum(gate.counts, after, minus=before)
            gate.changed_at = self._clock.now()
            self._changed.append(gate.new.id)

    def _follow(self, *changed: UUID) -> None:
        """Look at all that depends on these, and on what changes thereby, without a nested call for each link of a chain."""
        self._changed += changed
        if self._following:
            return
        self._following = True
        while self._changed:
            id = self._changed.popleft()
            for number, wait in list(self._blocked.get(id.int, {}).items()):
                self._judge(self._jobs[number], wait)
            gate = self._gates.get(id.int)
            if gate is not None and (now := as_member(gate.counts, sealed=gate.sealed)) != gate.as_member:
                before, gate.as_member = gate.as_member, now
                self._count(id, before, now)
        self._following = False

    def _as_member(self, id: UUID) -> Counts:
        if is_gate(id):
            return gate.as_member if (gate := self._gates.get(id.int)) else _GONE
        job = self._jobs.get(id.int)
        return _GONE if job is None else _ONE.get(job.state, _OPEN)

    def _verdict(self, wait: Wait) -> Verdict:
        gate = self._gates.get(wait.gate.int)
        counts = self._as_member(wait.gate) if gate is None else gate.counts
        return verdict(wait.needs, counts, sealed=gate is None or gate.sealed)

    # ── retention ───────────────────────────────────────────────────────────
    def _prune_gates(self, keep: Retention) -> None:
        now = self._clock.now()
        for number, row in list(self._gates.items()):
            if not row.sealed and row.changed_at <= now - keep.dead:
                for waiting in list(self._blocked.get(number, ())):
                    self._finish(self._jobs[waiting], JobState.CANCELLED, NEVER_SEALED)
                self._drop_gate(number)
        # A gate that goes may have kept others.
        while old := [number for number, row in self._gates.items() if self._is_old(number, row, now, keep)]:
            for number in old:
                self._drop_gate(number)

    def _is_old(self, number: int, row: GateRow, now: datetime, keep: Retention) -> bool:
        until = row.kept_until or row.changed_at + keep.done
        return until <= now and _over(row) and number not in self._blocked and not self._counts(number)

    def _counts(self, number: int) -> bool:
        """Whether a job or a gate counts on a gate that keeps its members."""
        return any(
            self._gates[into].sealed or into in self._blocked or self._into.get(into)
            for into in self._into.get(number, ())
        )

    def _drop_gate(self, number: int) -> None:
        row = self._gates.pop(number)
        self._into.pop(number, None)
        for edge in row.edges:
            for member in range(edge.first.int, edge.last.int + 1):
                if (into := self._into.get(member)) is not None:
                    into.remove(number)


def _over(row: GateRow) -> bool:
    return row.sealed and row.counts.ended == row.counts.size


def _shown(row: GateRow) -> Gate:
    return Gate(
        id=row.new.id,
        queue=row.new.queue,
        label=row.new.label,
        tenant=row.new.tenant,
        sealed=row.sealed,
        counts=row.counts,
        signalled=row.new.signalled,
        value=row.value,
        made_at=row.made_at,
        changed_at=row.changed_at,
    )


def _stored(edge: Edge, batch: Batch, existing: Mapping[int, JobId]) -> Iterator[Edge]:
    """The parts of an edge whose jobs were stored."""
    of, first = split_id(edge.first)
    if is_gate(edge.first) or of != batch.id:
        yield edge
        return
    start = first
    for ord in [*sorted(o for o in existing if first <= o <= split_id(edge.last)[1]), split_id(edge.last)[1] + 1]:
        if ord > start:
            yield Edge(job_id(of, start), job_id(of, ord - 1), edge.into)
        start = ord + 1


def _sum(counts: Counts, plus: Counts, *, minus: Counts | None = None) -> Counts:
    less = minus or Counts()
    return Counts(
        counts.size + plus.size - less.size,
        counts.done + plus.done - less.done,
        counts.dead + plus.dead - less.dead,
        counts.cancelled + plus.cancelled - less.cancelled,
    )
