"""The state machine with jobs that wait: random graphs, groups that grow, signals and suspensions, among all other moves."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from msgspec.structs import replace

from conformance.conftest import Arena
from conformance.kit import find_all
from conformance.test_machine import (
    AT,
    FOR_EVER,
    MOVES,
    QUEUES,
    Machine,
    check_claim,
    lane_of,
    new_jobs,
    pick,
    picks,
)
from headrace.errors import ConfigError, GroupOver, IdempotencyConflict
from headrace.model.gate import Edge, Gate, GateId, Needs, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, Job, JobId, JobState, NewJob, job_id, new_batch, split_id
from headrace.model.lane import Ahead
from headrace.model.lease import Lease
from headrace.model.outcome import Again
from headrace.model.records import QueueStats
from headrace.model.step import SignalWait, Step
from headrace.server.remote_store.links import check_order
from headrace.store.contract import Store
from headrace.store.memory.rows import JobRow

F = TypeVar("F", bound=Callable[..., None])

OWN_MOVES: dict[str, tuple[int, st.SearchStrategy[dict[str, Any]]]] = {}
SOME = 4
"""Jobs of a run that the Redis store keeps as a lane, instead of 64."""
needs = st.sampled_from(Needs)
waits = st.none() | st.tuples(st.sampled_from(["earlier", "stored", "gate"]), pick, needs)
"""What a new job waits for."""
members = st.tuples(st.sampled_from(["run", "run", "stored", "gate"]), pick, pick, pick)
"""What counts on a gate: which kind, from, to, and on which gate."""
gates = st.builds(
    lambda queue, sealed, signalled, tenant: NewGate(
        id=new_gate_id(), queue=queue, sealed=sealed or signalled, signalled=signalled, label="g", tenant=tenant
    ),
    queue=st.sampled_from(QUEUES),
    sealed=st.booleans(),
    signalled=st.sampled_from([False, False, True]),
    tenant=st.sampled_from(["", "x"]),
)


def move(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    def register(method: F) -> F:
        OWN_MOVES[method.__name__] = weight, st.fixed_dictionaries(arguments)
        return method

    return register


def moves() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    every = {**MOVES, **OWN_MOVES}
    names = [name for name, (weight, _) in every.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), every[name][1]))


async def promote_all(store: Store) -> None:
    for _ in range(1000):
        if not (await store.promote()).moved:
            return
    raise AssertionError("promote never ends")


def came_back_first(ready: list[JobRow], lease: Lease | None, line_of: Callable[[JobRow], Hashable]) -> bool:
    """Whether no job was left for one that was enqueued later in its lane, after it had run before."""
    taken = {job.id for job in lease.jobs} if lease else set()
    own = [job for job in ready if line_of(job) == lane_of(job)]
    return not any(
        job.new.lane == other.new.lane and job.id < other.id
        for job in ready
        if job.attempt and job.id not in taken
        for other in own
        if other.id in taken
    )


def without_circles(batch: Batch) -> Batch:
    """No client sends jobs that wait for themselves, and the server refuses them."""
    try:
        check_order(batch)
    except ConfigError:
        return replace(batch, edges=tuple(edge for edge in batch.edges if split_id(edge.first)[0] != batch.id))
    return batch


class GateMachine(Machine):
    """After each step everything has followed that follows."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.gates: list[GateId] = []
        self.plain: list[GateId] = []
        """Those that count members."""
        self.members: set[tuple[GateId, UUID]] = set()
        self.together: set[JobId] = set()
        """Jobs of runs that waited together. A store may keep such a run as a line of its own within its lane."""
        self.moved: set[JobId] = set()
        """Those that an operator made ready."""

    @rule(what=st.deferred(moves))
    def step(self, what: tuple[str, dict[str, Any]]) -> None:
        name, arguments = what
        getattr(self, name)(**arguments)

    def advance(self, step: float, look: bool) -> None:
        del look
        self.clock.advance(step)

    @move(
        10,
        jobs=st.lists(st.tuples(new_jobs, waits), max_size=6),
        made=st.lists(gates, max_size=2),
        edges=st.lists(members, max_size=4),
        seals=st.lists(pick, max_size=1),
    )
    def link(
        self,
        jobs: list[tuple[NewJob, tuple[str, int, Needs] | None]],
        made: list[NewGate],
        edges: list[tuple[str, int, int, int]],
        seals: list[int],
    ) -> None:
        """One call that makes gates, adds members, seals, and enqueues jobs that wait for anything."""
        made = [replace(gate, id=new_gate_id()) for gate in made]
        batch = new_batch()
        known = [*self.gates, *(gate.id for gate in made)]
        plain = [*self.plain, *(gate.id for gate in made if not gate.signalled)]
        new: list[NewJob] = []
        for place, (job, wait) in enumerate(jobs):
            new.append(replace(job, wait=self.awaited(wait, [job_id(batch, ord) for ord in range(place)], known)))
        runs = [edge for one in edges if (edge := self.edge(one, batch, len(jobs), plain)) is not None]
        once = {(edge.into, edge.first): edge for edge in runs}
        ends = tuple(plain[which % len(plain)] for which in seals if plain)
        self.link_both(without_circles(Batch(batch, new, tuple(made), self.apart(list(once.values())), ends)))

    @move(4, job=new_jobs, count=st.integers(SOME, 2 * SOME), wait=waits)
    def wait_together(self, job: NewJob, count: int, wait: tuple[str, int, Needs] | None) -> None:
        """A run of jobs that wait for the same, with a job before and behind it."""
        batch = new_batch()
        run = replace(job, key=None, unique=None, wait=self.awaited(wait, [job_id(batch, 0)], self.gates))
        alone = replace(job, key=None, unique=None)
        self.together |= {job_id(batch, ord) for ord in range(1, count + 1)}
        self.link_both(Batch(batch, [alone, *[run] * count, alone]))

    @move(4, job=new_jobs, other=new_jobs, count=st.integers(2, 6), where=pick, wait=waits)
    def chain(self, job: NewJob, other: NewJob, count: int, where: int, wait: tuple[str, int, Needs] | None) -> None:
        """A chain: each job waits for the one before it, and one of them is of another kind. The last one may not be stored."""
        batch = new_batch()
        link = replace(job, key=None, unique=None, due=None)
        jobs = [replace(link, wait=self.awaited(wait, [], self.gates)), *[link] * (count - 1)]
        jobs[where % count] = other if where % count == count - 1 else replace(other, key=None, unique=None)
        self.together |= {job_id(batch, ord) for ord in range(1, count)}
        self.link_both(
            Batch(batch, [jobs[0], *(replace(one, wait=Wait(job_id(batch, ord))) for ord, one in enumerate(jobs[1:]))])
        )

    def line_of(self, job: JobRow) -> Hashable:
        if job.id not in self.together:
            return lane_of(job)
        if job.attempt or job.id in self.moved:
            return job.id
        return job.new.lane, job.new.wait, split_id(job.id)[0]

    def check(self, ready: list[JobRow], limit: int, lease: Lease | None) -> None:
        check_claim(self.spec, ready, limit, lease, self.line_of)
        assert came_back_first(ready, lease, self.line_of), "a later job was first"

    def retry(self, which: list[int], afresh: bool) -> None:
        self.moved |= set(self.some(which))
        super().retry(which, afresh)

    def cancel(self, which: list[int], reason: str | None) -> None:
        """One by one: what a call finds of a job that an earlier one of the same call has cancelled is not specified."""
        for one in which:
            super().cancel([one], reason)
            self.both(promote_all)

    def delete(self, which: list[int], states: frozenset[JobState] | None, ago: int | None) -> None:
        for one in which:
            super().delete([one], states, ago)
            self.both(promote_all)

    def compare_ahead(self, mine: Ahead, theirs: Ahead, id: JobId) -> None:
        """Of jobs in several lines a store counts those before it in its own."""
        lane = self.spec._jobs[id.int].new.lane
        if any((job := self.spec._jobs.get(other.int)) and job.new.lane == lane for other in self.together):
            mine, theirs = replace(mine, lane=0), replace(theirs, lane=0)
        super().compare_ahead(mine, theirs, id)

    def awaited(self, wait: tuple[str, int, Needs] | None, earlier: list[Any], known: list[GateId]) -> Wait | None:
        if wait is None:
            return None
        kind, which, need = wait
        among = {"earlier": earlier, "stored": self.ids, "gate": known}[kind]
        return Wait(among[which % len(among)], need) if among else None

    def edge(self, one: tuple[str, int, int, int], batch: Any, size: int, plain: list[GateId]) -> Edge | None:
        kind, first, last, which = one
        if not plain:
            return None
        into = plain[which % len(plain)]
        if kind == "run" and size:
            lo, hi = sorted((first % size, last % size))
            return Edge(job_id(batch, lo), job_id(batch, hi), into)
        if kind == "stored" and self.ids:
            id = self.ids[first % len(self.ids)]
            return Edge(id, id, into)
        # An older gate counts on a newer one, so that none counts on itself.
        older = [gate for gate in self.plain if gate < into]
        return Edge(older[first % len(older)], older[first % len(older)], into) if kind == "gate" and older else None

    def apart(self, edges: list[Edge]) -> tuple[Edge, ...]:
        """Runs of one gate that do not overlap: a client names each member once."""
        kept: list[Edge] = []
        for edge in edges:
            if (edge.into, edge.first) not in self.members and all(
                one.into != edge.into or one.last < edge.first or edge.last < one.first for one in kept
            ):
                kept.append(edge)
        return tuple(kept)

    def link_both(self, batch: Batch) -> None:
        answers: list[object] = []
        for store in (self.other, self.spec):
            try:
                answers.append(dict(self.run(store.enqueue(batch)).existing))
            except IdempotencyConflict:
                answers.append("conflict")
            except GroupOver:
                answers.append("over")
        # Of a call that is wrong in both ways, either is told.
        assert answers[0] == answers[1] or sorted(map(str, answers)) == ["conflict", "over"], answers
        if isinstance(answers[0], dict):
            self.gates += [gate.id for gate in batch.gates]
            self.plain += [gate.id for gate in batch.gates if not gate.signalled]
            for edge in batch.edges:
                self.members |= {(edge.into, UUID(int=n)) for n in range(edge.first.int, edge.last.int + 1)}
        self.ids += [job_id(batch.id, ord) for ord in range(len(batch.jobs))]

    @move(3, which=pick)
    def signal(self, which: int) -> None:
        waiting = [gate for gate in self.gates if gate not in self.plain]
        if waiting:
            gate = NewGate(id=waiting[which % len(waiting)], queue="a", signalled=True)
            mine, theirs = self.both(lambda store: store.signal(gate, b"yes", timedelta(hours=1)))
            assert theirs == mine

    @move(3, which=pick, position=st.integers(0, 2), on=pick, number=st.integers(0, 1), journal=st.booleans())
    def answer_wait(self, which: int, position: int, on: int, number: int, journal: bool) -> None:
        """A running job looks for a signal."""
        if not self.tokens or not self.gates:
            return
        mine, theirs, size = self.lease(which)
        lease = self.spec._leases.get(mine)
        job = None if lease is None else lease.at(position % size)
        if job is None:
            return
        step = Step("a", number, b"", b"\x01", AT)
        wait = SignalWait(job.id, self.gates[on % len(self.gates)], step, journal)
        spoken = self.run(self.spec.answer_wait(mine, position % size, wait))
        assert self.run(self.other.answer_wait(theirs, position % size, wait)) == spoken
        assert self.run(self.other.read_steps(job.id, theirs)) == self.run(self.spec.read_steps(job.id))

    @move(3, which=pick)
    def seal(self, which: int) -> None:
        if self.plain:
            self.link_both(Batch(new_batch(), [], seals=(self.plain[which % len(self.plain)],)))

    @move(4, which=pick, on=picks, need=needs, due=st.sampled_from([None, timedelta(0), timedelta(seconds=20)]))
    def suspend(self, which: int, on: list[int], need: Needs, due: timedelta | None) -> None:
        """The first job of a lease begins to wait for the first of some gates."""
        if not self.tokens or not self.gates:
            return
        mine, theirs, _ = self.lease(which)
        chosen = dict.fromkeys(self.gates[number % len(self.gates)] for number in on[:3])
        again = Again(1, 0, due, note="waits", waits=tuple(Wait(gate, need) for gate in chosen))
        self.settle_both(mine, theirs, [(0, again)])

    def prune_everything_finished(self) -> None:
        """A store may keep jobs that ended in the same call as members of a gate, but drops none that is to be kept."""
        assert self.run(self.other.prune(FOR_EVER)).jobs == 0
        self.clock.advance(timedelta(days=4))
        for store in (self.other, self.spec):
            self.run(self.prune(store))
        mine, theirs = ({job.id for job in self.run(find_all(store))} for store in (self.spec, self.other))
        assert mine <= theirs
        self.run(self.other.delete(list(theirs - mine), states={JobState.DONE, JobState.CANCELLED}))
        self.everybody_appears()

    async def everything(self, store: Store) -> Any:
        await promote_all(store)
        found: tuple[list[Job], list[Job | None], list[QueueStats]] = await super().everything(store)
        jobs, known, stats = found
        shown = [job and replace(job, waits=tuple(sorted(job.waits, key=lambda wait: wait.gate))) for job in known]
        gates: list[Gate | None] = await store.gates(self.gates)
        blocked = sum(queue.blocked for queue in stats)
        assert blocked == sum(job.state is JobState.BLOCKED for job in jobs)
        return jobs, shown, stats, gates


@pytest.mark.timeout(600)  # on the slowest machine
def test_jobs_that_wait_behave_like_the_specification(arena: Arena, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.store.redis.plans._LARGE", SOME)
    monkeypatch.setattr("headrace.store.redis.arguments._LONG", 2)

    class InThisArena(GateMachine):
        def __init__(self) -> None:
            super().__init__(arena)

    run_state_machine_as_test(InThisArena)
