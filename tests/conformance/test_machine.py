"""A state machine drives a store and the specification with the same operations and compares every answer."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Hashable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from conformance.conftest import Arena
from conformance.kit import expire, find_all
from headrace.errors import IdempotencyConflict
from headrace.model.job import (
    Batch,
    Failure,
    Job,
    JobId,
    JobState,
    Key,
    LogLine,
    NewJob,
    UniqueLock,
    job_id,
    new_batch,
)
from headrace.model.lane import Ahead, Lane
from headrace.model.lease import Ask, Lease, Presence, Report, Token, new_token, new_worker_id
from headrace.model.outcome import Again, Finish, Settlement
from headrace.model.records import Filter, LimitRule, QueueStats, Retention
from headrace.model.step import Step
from headrace.store import connect
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.store.memory.line import Line
from headrace.store.memory.rows import JobRow
from headrace.testing.clock import FakeClock

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])

QUEUES = ("a", "b")
TTL = timedelta(seconds=15)
WORKERS = [new_worker_id() for _ in range(3)]
JANITOR = new_worker_id()
FOR_EVER = Retention(done=timedelta(days=3000), dead=timedelta(days=3000))
HARDLY = Retention(done=timedelta(hours=1), dead=timedelta(hours=1))
AT = datetime(2026, 1, 1, 10, 0, 0, 5, tzinfo=UTC)

pick = st.integers(0, 999)
"""Which of what there is, modulo how many there are."""
picks = st.lists(pick, min_size=1, max_size=6)

lanes = st.builds(
    Lane,
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from([0, 0, 3, -3]),
    tenant=st.sampled_from(["", "x", "y"]),
    limits=st.sampled_from([(), (), (), ("shop:1",), ("api@2", "shop:1"), ("api",)]),
)
delays = st.sampled_from([timedelta(0), timedelta(seconds=1), timedelta(seconds=20), timedelta(hours=2)])
keys = st.builds(
    Key,
    name=st.sampled_from(["k1", "k2"]),
    ttl=st.sampled_from([timedelta(seconds=20), timedelta(hours=3)]),
    digest=st.sampled_from([b"1", b"1", b"2"]),
)
live = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})
uniques = st.builds(
    UniqueLock,
    name=st.sampled_from(["u1", "u2"]),
    states=st.sampled_from([live, live, live | {JobState.DONE}, frozenset({JobState.SCHEDULED, JobState.READY})]),
    within=st.sampled_from([None, None, timedelta(seconds=20)]),
    replace=st.booleans(),
)
rules = st.builds(
    LimitRule,
    concurrency=st.sampled_from([None, 1, 2, 4]),
    rate=st.sampled_from([None, 1.0, 0.5]),
    burst=st.sampled_from([2.0, 4.0]),
)
new_jobs = st.builds(
    NewJob,
    task=st.sampled_from(["t.one", "t.two"]),
    payload=st.binary(max_size=3),
    lane=lanes,
    due=st.none() | st.none() | delays,
    key=st.none() | st.none() | keys,
    options=st.none() | st.binary(max_size=2),
    unique=st.none() | st.none() | st.none() | uniques,
)
failures = st.builds(
    Failure,
    attempt=st.just(1),
    kind=st.sampled_from(["ValueError", "timeout"]),
    message=st.sampled_from(["no", "100% wrong"]),
    traceback=st.just("tb"),
    at=st.just(AT),
    worker=st.just("w"),
)
notes = st.sampled_from([None, "some note"])
settlements = st.one_of(
    st.just(Finish(JobState.DONE)),
    st.builds(
        Finish,
        state=st.sampled_from([JobState.DONE, JobState.DEAD, JobState.CANCELLED]),
        result=st.none() | st.binary(max_size=2),
        result_ttl=st.none() | delays,
        note=notes,
        failure=st.none() | failures,
        failures=st.none() | st.integers(0, 5),
        crashes=st.none() | st.integers(0, 5),
    ),
    st.builds(
        Again,
        failures=st.integers(0, 5),
        crashes=st.integers(0, 3),
        due=st.none() | delays,
        suspect=st.booleans(),
        note=notes,
        failure=st.none() | failures,
    ),
)
filters = st.builds(
    Filter,
    states=st.frozensets(st.sampled_from(JobState), max_size=3),
    queue=st.none() | st.sampled_from(QUEUES),
    task=st.none() | st.sampled_from(["t.one", "t.", "nope"]),
    tenant=st.none() | st.sampled_from(["", "x"]),
    text=st.none() | st.sampled_from(["one", "No", "100%", "Error", "%"]),
)


MOVES: dict[str, tuple[int, st.SearchStrategy[dict[str, Any]]]] = {}


def move(weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """A method that may be the next step, `weight` times as often as others.

    Not a rule of its own: Hypothesis leaves rules out for whole runs, and with few runs some would never meet.
    """

    def register(method: F) -> F:
        MOVES[method.__name__] = weight, st.fixed_dictionaries(arguments)
        return method

    return register


def moves() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    names = [name for name, (weight, _) in MOVES.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), MOVES[name][1]))


class ToldLine(Line):
    """Takes the jobs that it is told to: the contract leaves open whose turn it is."""

    next: list[JobRow]

    def take(self, ask: Ask, now: datetime) -> list[JobRow]:
        del ask
        for job in self.next:
            job.state = JobState.RUNNING
            self._limits.take(job.new.lane, now)
        return self.next


class Follower(MemoryStore):
    """The specification, told by a claim of the other store which lanes had their turn."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self._line = self.line = ToldLine(self._jobs.get, self._limits, self._held_back)

    def tell(self, lease: Lease | None) -> None:
        self.line.next = [self._jobs[job.id.int] for job in lease.jobs] if lease else []

    def claimable(self, queues: Collection[str]) -> list[JobRow]:
        open_ones = [q for q in queues if self._held_back("queue", q) is False]
        ready = [
            job
            for job in self._jobs.values()
            if job.state is JobState.READY
            and job.queue in open_ones
            and self._held_back("tenant", job.new.lane.tenant) is False
        ]
        return sorted(ready, key=lambda job: (-job.new.lane.priority, job.id))

    def blocked(self, taken: list[JobRow], left: list[JobRow]) -> set[Lane]:
        """Checks that what was taken was allowed, and says which lanes of what is left are not."""
        limits, now = copy.deepcopy(self._limits), self._clock.now()
        for job in taken:
            assert not limits.blocked(job.new.lane, now), "claimed over a limit"
            limits.take(job.new.lane, now)
        return {job.new.lane for job in left if limits.blocked(job.new.lane, now)}


def lane_of(job: JobRow) -> Hashable:
    return job.new.lane


def check_claim(
    spec: Follower,
    ready: list[JobRow],
    limit: int,
    lease: Lease | None,
    line_of: Callable[[JobRow], Hashable] = lane_of,
) -> None:
    """Strict priority, FIFO in a line, limits, suspects alone, nothing left lying: whichever lines had their turn. Most lanes are one line."""
    taken = [job.id for job in lease.jobs] if lease else []
    by_id = {job.id: job for job in ready}
    assert len(set(taken)) == len(taken) <= limit
    assert set(taken) <= by_id.keys(), "claimed what was not ready"
    jobs = [by_id[id] for id in taken]
    priorities = [job.new.lane.priority for job in jobs]
    assert priorities == sorted(priorities, reverse=True), "not the higher priority first"
    lines: defaultdict[Hashable, list[JobId]] = defaultdict(list)
    for job in ready:
        lines[line_of(job)].append(job.id)
    for line, waiting in lines.items():
        mine = [job.id for job in jobs if line_of(job) == line]
        assert mine == waiting[: len(mine)], "not first in, first out"
    left = [job for job in ready if job.id not in taken]
    blocked = spec.blocked(jobs, left)
    left = [job for job in left if job.new.lane not in blocked]
    assert not left or not jobs or left[0].new.lane.priority <= priorities[-1], "a higher priority was left"
    if any(job.suspect for job in jobs):
        assert len(jobs) == 1, "a suspect in company"
    elif left and len(jobs) < limit:
        heads = [lines[line][len([j for j in jobs if line_of(j) == line])] for line in {line_of(job) for job in left}]
        assert jobs, "nothing claimed though something is ready"
        assert any(by_id[head].suspect for head in heads), "too few claimed"


class Machine(RuleBasedStateMachine):
    """Both stores live by one clock. `spec` is right by definition."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.loop = asyncio.new_event_loop()
        self.spec = Follower(self.clock)
        self.other: Store = connect(arena(), clock=self.clock)
        self.run(self.other.open())
        self.ids: list[JobId] = []
        self.deleted: set[JobId] = set()
        self.batches: list[tuple[Batch, datetime]] = []
        self.tokens: list[tuple[Token, Token, int]] = []
        """(the specification's, the other's, how many positions): also of leases that have ended."""
        self.everybody_appears()

    def everybody_appears(self) -> None:
        """A store need not know a worker that never told its presence, nor for ever."""
        for worker in (*WORKERS, JANITOR):
            presence = self.presence(worker)
            self.both(lambda store, presence=presence: store.heartbeat([], TTL, presence))

    def presence(self, worker: Any, running: int = 0) -> Presence:
        return Presence(
            id=worker, name="h:1", queues=QUEUES, slots=9, running=running, version="1", started_at=AT, tasks=("t.one",)
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        # Not a Runner, which sets a signal handler for each of the thousands of calls.
        return self.loop.run_until_complete(work)

    def both(self, look: Callable[[Store], Coroutine[Any, Any, T]]) -> tuple[T, T]:
        """What the specification and the other store answer to the same question."""

        async def ask() -> tuple[T, T]:
            return await look(self.spec), await look(self.other)

        return self.run(ask())

    def teardown(self) -> None:
        try:
            self.run(self.other.close())
            self.run(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()

    def living(self) -> list[tuple[Token, Token, int]]:
        return [known for known in self.tokens if known[0] in self.spec._leases]

    def lease(self, which: int) -> tuple[Token, Token, int]:
        """A living lease if there is one, now and then one that ended."""
        among = self.living() if which % 7 else self.tokens
        return (among or self.tokens)[which % len(among or self.tokens)]

    def some(self, which: list[int]) -> list[JobId]:
        return [self.ids[n % len(self.ids)] for n in which] if self.ids else []

    @rule(what=st.deferred(moves))
    def step(self, what: tuple[str, dict[str, Any]]) -> None:
        name, arguments = what
        getattr(self, name)(**arguments)

    # ── jobs come ────────────────────────────────────────────────────────────
    @initialize(jobs=st.lists(new_jobs, min_size=1, max_size=6))
    def begin(self, jobs: list[NewJob]) -> None:
        self.enqueue(jobs)

    @move(6, jobs=st.lists(new_jobs, max_size=5))
    def enqueue_some(self, jobs: list[NewJob]) -> None:
        self.enqueue(jobs)

    @move(2, job=new_jobs, count=st.integers(2, 12))
    def enqueue_bulk(self, job: NewJob, count: int) -> None:
        self.enqueue([replace(job, key=None, unique=None)] * count)

    def enqueue(self, jobs: list[NewJob]) -> None:
        batch = Batch(new_batch(), jobs)
        self.batches.append((batch, self.clock.now()))
        self.enqueue_both(batch)
        self.ids += [job_id(batch.id, ord) for ord in range(len(jobs))]

    @move(2, which=pick)
    def enqueue_again(self, which: int) -> None:
        """The answer was lost, the client repeats. How long an answer about keys is remembered is not specified."""
        batch, at = self.batches[which % len(self.batches)]
        stored = self.run(self.spec.get([job_id(batch.id, ord) for ord in range(len(batch.jobs))]))
        if not any(job.key or job.unique for job in batch.jobs):
            if any(stored):
                self.enqueue_both(batch)
        elif at == self.clock.now() and not self.deleted & {job_id(batch.id, ord) for ord in range(len(batch.jobs))}:
            self.enqueue_both(batch)

    def enqueue_both(self, batch: Batch) -> None:
        answers: list[object] = []
        for store in (self.other, self.spec):
            try:
                answers.append(dict(self.run(store.enqueue(batch)).existing))
            except IdempotencyConflict:
                answers.append("conflict")
        assert answers[0] == answers[1]

    # ── workers work ─────────────────────────────────────────────────────────
    @move(
        4,
        queues=st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a"), ("a", "none")]),
        limit=st.sampled_from([1, 1, 2, 3, 5, 100]),
        worker=st.sampled_from(WORKERS),
    )
    def claim_some(self, queues: tuple[str, ...], limit: int, worker: Any) -> None:
        self.claim(queues, limit, worker)

    def check(self, ready: list[JobRow], limit: int, lease: Lease | None) -> None:
        check_claim(self.spec, ready, limit, lease)

    def claim(self, queues: tuple[str, ...], limit: int, worker: Any) -> None:
        ask = Ask(worker, queues, limit, TTL, new_token())
        ready = self.spec.claimable(queues)
        lease = self.run(self.other.claim(ask))
        self.check(ready, limit, lease)
        self.spec.tell(lease)
        assert lease == self.run(self.spec.claim(ask))
        if lease:
            self.tokens.append((ask.token, ask.token, len(lease.jobs)))

    @move(8, limit=st.sampled_from([1, 2, 5, 100]), ends=st.lists(settlements, min_size=1, max_size=8), which=pick)
    def work(self, limit: int, ends: list[Settlement], which: int) -> None:
        """What workers do most: claim, and settle what they like of it."""
        before = len(self.tokens)
        self.claim(QUEUES, limit, WORKERS[which % 3])
        for mine, theirs, size in self.tokens[before:]:
            self.settle_both(mine, theirs, list(enumerate(ends[:size])))

    @move(6, which=pick, ends=st.lists(settlements, min_size=1, max_size=8), places=st.permutations(range(8)))
    def settle(self, which: int, ends: list[Settlement], places: list[int]) -> None:
        """Any part of any lease, living or not, settled already or not."""
        if not self.tokens:
            return
        mine, theirs, size = self.lease(which)
        settled = [(place % (size + 1), end) for place, end in zip(places, ends, strict=False)]
        # Which of two words on one position counts is tested elsewhere.
        once = list({place: (place, end) for place, end in reversed(settled)}.values())
        self.settle_both(mine, theirs, once)

    @move(3, which=pick, end=settlements)
    def settle_to_the_end(self, which: int, end: Settlement) -> None:
        if not self.tokens:
            return
        mine, theirs, size = self.lease(which)
        self.settle_both(mine, theirs, [(place, end) for place in range(size)])

    def settle_both(self, mine: Token, theirs: Token, ends: list[tuple[int, Settlement]]) -> None:
        lease = self.spec._leases.get(mine)
        jobs = dict(lease.open()) if lease else {}
        # A failure tells of the attempt that failed, so no two of a job share a number.
        told = [
            (place, replace(end, failure=replace(end.failure, attempt=job.attempt)))
            if end.failure and (job := jobs.get(place))
            else (place, end)
            for place, end in ends
        ]
        assert self.run(self.other.settle(theirs, told)) == self.run(self.spec.settle(mine, told))

    @move(3, which=picks, ttl=st.sampled_from([TTL, TTL, timedelta(seconds=2)]))
    def heartbeat(self, which: list[int], ttl: timedelta) -> None:
        if not self.tokens:
            return
        pairs = {self.tokens[n % len(self.tokens)] for n in which}
        mine = self.run(self.spec.heartbeat([pair[0] for pair in pairs], ttl))
        theirs = self.run(self.other.heartbeat([pair[1] for pair in pairs], ttl))
        name = {pair[1]: pair[0] for pair in pairs}
        assert {name[token] for token in theirs.lost} == mine.lost
        stops = {(name[stop.token], stop.position) for stop in theirs.stops}
        assert stops == {(stop.token, stop.position) for stop in mine.stops}
        assert len(theirs.stops) == len(mine.stops)

    @move(3, which=pick, position=st.integers(0, 4))
    def detach(self, which: int, position: int) -> None:
        if not self.tokens:
            return
        mine, theirs, size = self.lease(which)
        position, fresh = position % (size + 1), new_token()
        answer = self.run(self.other.detach(theirs, position, fresh))
        assert answer == self.run(self.spec.detach(mine, position, fresh))
        if answer:
            self.tokens.append((fresh, fresh, 1))

    @move(2, worker=st.sampled_from(WORKERS), running=st.integers(0, 9), leave=st.booleans())
    def appear(self, worker: Any, running: int, leave: bool) -> None:
        presence = self.presence(worker, running)
        for store in (self.spec, self.other):
            self.run(store.retire(worker) if leave else store.heartbeat([], TTL, presence))
        mine, theirs = (self.run(store.workers()) for store in (self.spec, self.other))
        assert sorted(theirs, key=lambda one: one.id) == sorted(mine, key=lambda one: one.id)

    # ── time passes ──────────────────────────────────────────────────────────
    @move(6, step=st.sampled_from([0.001, 1, 1, 5, 15, 20, 3600]), look=st.booleans())
    def advance(self, step: float, look: bool) -> None:
        self.clock.advance(step)
        if look:
            assert self.run(self.other.promote()) == self.run(self.spec.promote())

    @move(3, dawdle=st.sampled_from([0, 0, 15]))
    def somebody_reaps(self, dawdle: float) -> None:
        self.clock.advance(dawdle)
        self.reap()

    def reap(self) -> None:
        mine = sorted(self.run(self.spec.reap(JANITOR, TTL, 100)), key=lambda orphan: orphan.jobs[0][1].id)
        theirs = [
            replace(orphan, jobs=sorted(orphan.jobs, key=lambda pair: pair[0]))
            for orphan in self.run(self.other.reap(JANITOR, TTL, 100))
        ]
        theirs.sort(key=lambda orphan: orphan.jobs[0][1].id)
        assert [replace(orphan, token=JANITOR) for orphan in theirs] == [
            replace(orphan, token=JANITOR) for orphan in mine
        ]
        for one, other in zip(mine, theirs, strict=True):
            self.tokens.append((one.token, other.token, max(position for position, _ in one.jobs) + 1))

    @move(2, which=pick, cause=st.sampled_from(["killed by SIGSEGV", "out of memory"]))
    def abandon(self, which: int, cause: str) -> None:
        """With the reap that follows: what a heartbeat may still do in between is not specified."""
        holders = [lease.worker for lease in self.spec._leases.values()] or WORKERS
        worker = holders[which % len(holders)]
        assert self.run(self.other.abandon(worker, cause)) == self.run(self.spec.abandon(worker, cause))
        self.reap()

    @move()
    def prune_everything_finished(self) -> None:
        """Much later, because a store may drop whole days at once."""
        assert self.run(self.other.prune(FOR_EVER)).jobs == 0
        self.clock.advance(timedelta(days=4))
        gone = [self.run(self.prune(store)) for store in (self.other, self.spec)]
        assert gone[0] == gone[1]
        self.everybody_appears()

    async def prune(self, store: Store) -> int:
        gone = 0
        for _ in range(100):
            answer = await store.prune(HARDLY, 50)
            gone += answer.jobs
            if not answer.more:
                return gone + await expire(store, HARDLY)
        raise AssertionError("prune never ends")

    # ── an operator operates ─────────────────────────────────────────────────
    @move(3, which=picks, reason=st.sampled_from([None, "why not"]))
    def cancel(self, which: list[int], reason: str | None) -> None:
        ids = self.some(which)
        # Which of two reasons counts is not specified.
        ids = [id for id in ids if not ((job := self.run(self.spec.get([id]))[0]) and job.cancelling)]
        assert self.run(self.other.cancel(ids, reason)) == self.run(self.spec.cancel(ids, reason))

    @move(3, which=picks, afresh=st.booleans())
    def retry(self, which: list[int], afresh: bool) -> None:
        ids = self.some(which)
        assert self.run(self.other.retry(ids, afresh=afresh)) == self.run(self.spec.retry(ids, afresh=afresh))

    @move(3, name=st.sampled_from(["api", "shop", "shop:1"]), rule=st.none() | rules, closed=st.booleans())
    def limit(self, name: str, rule: LimitRule | None, closed: bool) -> None:
        if rule is not None and closed:
            rule = LimitRule(concurrency=rule.concurrency, closed_until=self.clock.now() + timedelta(seconds=10))
        for store in (self.spec, self.other):
            found = self.run(store.limits()).get(name)
            answer = self.run(store.limit(name, rule, found and found.version))
            assert answer is not None

    @move(
        2, which=pick, position=st.integers(0, 4), progress=st.sampled_from([None, 0.0, 0.5]), lines=st.integers(0, 60)
    )
    def report(self, which: int, position: int, progress: float | None, lines: int) -> None:
        if not self.tokens:
            return
        mine, theirs, size = self.lease(which)
        told = Report(progress=progress, note="n" if lines % 2 else None, lines=(LogLine(AT, f"line {lines}"),) * lines)
        said = [(position % (size + 1), told)]
        assert self.run(self.other.report(theirs, said)) == self.run(self.spec.report(mine, said))

    @move(
        2, which=pick, position=st.integers(0, 4), names=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3)
    )
    def finish_steps(self, which: int, position: int, names: list[str]) -> None:
        if not self.tokens:
            return
        mine, theirs, size = self.lease(which)
        steps = [(position % (size + 1), Step(name, at % 2, b"d", b"v", AT)) for at, name in enumerate(names)]
        assert self.run(self.other.add_steps(theirs, steps)) == self.run(self.spec.add_steps(mine, steps))
        self.read_steps([which, which + 1])

    @move(2, which=st.lists(pick, min_size=1, max_size=3))
    def read_steps(self, which: list[int]) -> None:
        async def read(store: Store) -> list[list[Step]]:
            return [await store.read_steps(id) for id in self.some(which)]

        mine, theirs = self.both(read)
        assert theirs == mine

    @move(
        2,
        which=st.lists(pick, min_size=1, max_size=3),
        states=st.none() | st.frozensets(st.sampled_from([*JobState])),
        ago=st.none() | st.integers(0, 30),
    )
    def delete(self, which: list[int], states: frozenset[JobState] | None, ago: int | None) -> None:
        ids = self.some(which)
        ended_by = None if ago is None else self.clock.now() - timedelta(seconds=ago)
        gone = self.run(self.other.delete(ids, states=states, ended_by=ended_by))
        assert gone == self.run(self.spec.delete(ids, states=states, ended_by=ended_by))
        self.deleted |= gone

    @move(tenant=st.sampled_from(["", "x"]), until=st.sampled_from([None, timedelta(seconds=10)]), stay=st.booleans())
    def pause_a_tenant(self, tenant: str, until: timedelta | None, stay: bool) -> None:
        for store in (self.spec, self.other):
            self.run(
                store.pause(tenant, kind="tenant", by="bob", until=None if until is None else self.clock.now() + until)
            )
        self.claim(QUEUES, 2, WORKERS[1])
        assert self.run(self.other.pauses()) == self.run(self.spec.pauses())
        for store in (self.spec, self.other):
            if not stay:
                self.run(store.resume(tenant, kind="tenant"))

    @move(2, queue=st.sampled_from(QUEUES), stay=st.sampled_from([False, False, True]))
    def pause_and_resume(self, queue: str, stay: bool) -> None:
        for store in (self.spec, self.other):
            for name in QUEUES:
                self.run(store.resume(name))
            self.run(store.pause(queue, by="ada"))
        self.claim(QUEUES, 2, WORKERS[0])
        for store in (self.spec, self.other):
            self.run(store.pause(queue) if stay else store.resume(queue))

    # ── an onlooker looks ────────────────────────────────────────────────────
    @move(2, where=filters, size=st.integers(1, 5), since=st.booleans(), ago=st.sampled_from([0, 1, 20]))
    def find(self, where: Filter, size: int, since: bool, ago: float) -> None:
        then = self.clock.now() - timedelta(seconds=ago)
        where = Filter(
            states=where.states,
            queue=where.queue,
            task=where.task,
            tenant=where.tenant,
            since=then if since else None,
            until=None if since else then + timedelta(seconds=1),
            text=where.text,
        )
        mine, theirs = (self.run(find_all(store, where, limit=size)) for store in (self.spec, self.other))
        assert [job.id for job in theirs] == [job.id for job in mine]

    @move(4, which=picks, limit=st.sampled_from([1, 3, 10_000]))
    def ahead(self, which: list[int], limit: int) -> None:
        for id in self.some(which):
            mine, theirs = (self.run(store.ahead(id, limit)) for store in (self.spec, self.other))
            assert theirs is not None if mine else theirs is None
            if mine and theirs:
                self.compare_ahead(mine, theirs, id)

    def compare_ahead(self, mine: Ahead, theirs: Ahead, id: JobId) -> None:
        del id
        assert settled(theirs) == settled(mine)

    @move(2, ago=st.sampled_from([0, 1, 20]), limit=st.sampled_from([3, 1000]))
    def ended(self, ago: float, limit: int) -> None:
        since = self.clock.now() - timedelta(seconds=ago)
        mine, theirs = (self.run(store.ended(since, limit)) for store in (self.spec, self.other))
        assert theirs == mine

    @move(2)
    def lanes(self) -> None:
        mine, theirs = (self.run(store.lanes(QUEUES)) for store in (self.spec, self.other))
        assert {(v.queue, v.priority, v.tenant, v.id): v for v in theirs} == {
            (v.queue, v.priority, v.tenant, v.id): v for v in mine
        }

    @invariant()
    def both_look_alike(self) -> None:
        mine, theirs = self.both(self.everything)
        assert theirs == mine

    async def everything(self, store: Store) -> tuple[list[Job], list[Job | None], list[QueueStats]]:
        found = [_comparable(job) for job in await find_all(store, limit=100)]
        known = [job and _comparable(job) for job in await store.get(self.ids)]
        stats = [q for q in (await store.stats()).queues if q != QueueStats(queue=q.queue)]
        return found, known, stats


def settled(ahead: Ahead) -> Ahead:
    """Without what stores may say differently: which holders of a limit they name, and the last microseconds."""
    return replace(
        ahead,
        blocked=tuple(
            replace(
                one,
                by=(),
                opens_at=one.opens_at and one.opens_at.replace(microsecond=one.opens_at.microsecond // 1000 * 1000),
            )
            for one in sorted(ahead.blocked, key=lambda one: (one.key, one.concurrency is None))
        ),
    )


def _comparable(job: Job) -> Job:
    """Why a job was put off is told while it is put off; what becomes of the note later is not specified."""
    return replace(job, note=None) if job.state in {JobState.READY, JobState.RUNNING} else job


@pytest.mark.timeout(600)  # on the slowest machine
def test_the_store_behaves_like_the_specification(arena: Arena):
    class InThisArena(Machine):
        def __init__(self) -> None:
            super().__init__(arena)

    run_state_machine_as_test(InThisArena)
