"""Upkeep and heartbeats: no chore waits for another, no worker takes its own jobs away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headrace.errors import ConfigError
from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import (
    UPKEEP_PLACES,
    Ask,
    Orphan,
    Presence,
    Pulse,
    Token,
    WorkerId,
    new_token,
    new_worker_id,
)
from headrace.model.outcome import Finish, Settlement
from headrace.model.records import Promoted
from headrace.store.memory import MemoryStore
from headrace.task.retry import Retry
from headrace.testing.clock import FakeClock
from headrace.worker import Worker
from worker.harness import Bench, Tally, until


class Slow(MemoryStore):
    """Some verbs never answer."""

    def __init__(self, *verbs: str) -> None:
        super().__init__()
        self.asked = Tally()
        for verb in verbs:
            setattr(self, verb, self._hang)

    async def _hang(self, *_: Any, **__: Any) -> Any:
        self.asked.add()
        await asyncio.Event().wait()


async def leave_behind(store: MemoryStore) -> None:
    """An expired lease of a worker that is gone, so that there is something to reap."""
    await store.enqueue(Batch(new_batch(), [NewJob("gone", b"\x92\x90\x80", Lane(queue="other"))]))
    assert await store.claim(Ask(new_worker_id(), ("other",), 1, timedelta(0), new_token())) is not None


@pytest.mark.parametrize("verb", ["prune", "reap", "stats"])
async def test_no_chore_waits_for_another(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.worker.janitor.PRUNE_EVERY", 0.01)
    monkeypatch.setattr("headrace.worker.dead_alert.LOOK_EVERY", 0.01)
    store = Slow(verb)
    bench = Bench(store)
    app = bench.app
    app.queue("default", dead_alert=1)

    @app.task
    async def work() -> None: ...

    await leave_behind(store)
    async with Worker(app.tasks, store, bench.settings, queues=("default",), duties=app.duties):
        await store.asked.reach(1)
        # Enqueued while that chore hangs: it is promoted when it is due all the same.
        batch = Batch(
            new_batch(), [NewJob(work.name, work.codec.encode((), {}), Lane(), due=timedelta(milliseconds=50))]
        )
        await store.enqueue(batch)
        await bench.reach(job_id(batch.id, 0), JobState.DONE)


class Broken(MemoryStore):
    """Cannot settle the jobs of one task: a damaged lease."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[Any] = set()
        self.tried = Tally()

    async def reap(self, worker: Any, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        orphans = await super().reap(worker, ttl, limit)
        self.bad |= {each.token for each in orphans if each.jobs[0][1].task == "damaged"}
        return orphans

    async def settle(self, token: Any, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        if token in self.bad:
            self.tried.add()
            raise KeyError(b"a row that is gone")
        return await super().settle(token, settlements)


async def test_one_orphan_that_cannot_be_settled_keeps_none_of_the_others_waiting() -> None:
    store = Broken()
    bench = Bench(store)

    @bench.app.task(name="damaged")
    async def damaged() -> None: ...

    @bench.app.task(name="fine")
    async def fine() -> None: ...

    dead = new_worker_id()
    ids = []
    for task in (damaged, fine, fine):
        ids.append(await bench.enqueue(task))
        assert await store.claim(Ask(dead, ("default",), 1, timedelta(hours=1), new_token())) is not None
    await store.abandon(dead, "killed")
    async with bench.worker():
        for id in ids[1:]:
            await bench.reach(id, JobState.DONE)
        await store.tried.reach(1)
        later = await bench.enqueue(fine)
        await bench.reach(later, JobState.DONE)


async def test_a_chore_goes_on_after_an_unexpected_error() -> None:
    store = MemoryStore()
    real, asked = store.reap, Tally()

    async def reap(*args: Any, **kwargs: Any) -> Any:
        asked.add()
        if asked.count == 1:
            raise ZeroDivisionError("a driver's bug")
        return await real(*args, **kwargs)

    store.reap = reap  # type: ignore[method-assign]  # a store that breaks
    bench = Bench(store)
    await leave_behind(store)
    async with bench.worker():
        await asked.reach(3)


# ── shared by a fleet ───────────────────────────────────────────────────────
class Watched(MemoryStore):
    """Notes in which worker's name heartbeats get upkeep, and counts the calls of upkeep."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: dict[WorkerId, bool] = {}
        self.calls = Tally()

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        pulse = await super().heartbeat(tokens, ttl, presence)
        if presence is not None:
            self.beats[presence.id] = pulse.upkeep
        return pulse

    async def promote(self, limit: int = 1000) -> Promoted:
        self.calls.add()
        return await super().promote(limit)


async def test_a_few_workers_of_a_fleet_do_the_upkeep() -> None:
    store = Watched()
    bench = Bench(store)

    @bench.app.task
    async def work() -> None: ...

    async with AsyncExitStack() as fleet:
        workers = [await fleet.enter_async_context(bench.worker()) for _ in range(UPKEEP_PLACES + 3)]
        await until(lambda: len(store.beats) == len(workers))
        assert sum(store.beats.values()) == UPKEEP_PLACES
        # Every worker has heard its answer: from here on only those promote.
        idle = [worker for worker in workers if not store.beats[worker.id]]
        await until(lambda: not any(worker._state.upkeep for worker in idle))
        for worker in workers:
            if store.beats[worker.id]:
                await worker.drain()
        # Their places are free at once, and others take them with their next heartbeats.
        await until(lambda: sum(store.beats[worker.id] for worker in idle) == UPKEEP_PLACES)
        count = store.calls.count
        await store.calls.reach(count + 2)


class Elsewhere(MemoryStore):
    """Other workers do the upkeep."""

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        return msgspec.structs.replace(await super().heartbeat(tokens, ttl, presence), upkeep=False)


class Late(Elsewhere):
    """Its clock is a moment behind that of the worker."""

    behind = True

    async def promote(self, limit: int = 1000) -> Promoted:
        promoted = await super().promote(0 if self.behind else limit)
        if self.behind and promoted.next_due is not None:
            self.behind = False
            return Promoted(0, timedelta(microseconds=300))
        return promoted


@pytest.mark.parametrize("store", [Elsewhere, Late])
async def test_a_worker_without_upkeep_promotes_its_own_retries(store: type[Elsewhere]) -> None:
    bench = Bench(store())
    tries = Tally()

    @bench.app.task(retry=Retry(base="50ms"))
    async def flaky() -> None:
        tries.add()
        if tries.count == 1:
            raise ValueError("the first time")

    async with bench.worker() as worker:
        await until(lambda: not worker._state.upkeep)
        id = await bench.enqueue(flaky)
        await bench.reach(id, JobState.DONE)


# ── its own leases ──────────────────────────────────────────────────────────


class Mute(MemoryStore):
    """Heartbeats fail while `mute`: a pool without a free connection, a half-open one."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.mute = False
        self.reaped = Tally()
        self.let_settle = asyncio.Event()
        self.let_settle.set()
        self.settling = Tally()

    async def heartbeat(self, *args: Any, **kwargs: Any) -> Any:
        if self.mute:
            await asyncio.Event().wait()
        return await super().heartbeat(*args, **kwargs)

    async def reap(self, worker: Any, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        orphans = await super().reap(worker, ttl, limit)
        for _ in orphans:
            self.reaped.add()
        return orphans

    async def settle(self, token: Any, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        self.settling.add()
        await self.let_settle.wait()
        return await super().settle(token, settlements)


@pytest.fixture
def mute() -> Mute:
    return Mute(FakeClock())


async def test_a_worker_does_not_take_its_own_running_job_away(mute: Mute) -> None:
    bench = Bench(mute, lease="2s", heartbeat="50ms")
    runs, go_on = Tally(), asyncio.Event()

    @bench.app.task
    async def long() -> str:
        runs.add()
        await go_on.wait()
        return "once"

    id = await bench.enqueue(long)
    async with bench.worker():
        await runs.reach(1)
        mute.mute = True
        mute.clock.advance(timedelta(seconds=3))  # the lease has expired, and this worker reaps it
        await mute.reaped.reach(1)
        mute.mute = False
        go_on.set()
        job = await bench.reach(id, JobState.DONE)
    assert (job.attempt, job.failures, job.crashes, runs.count) == (1, 0, 0, 1)


async def test_a_result_on_its_way_arrives_though_its_lease_was_reaped_by_the_same_worker(mute: Mute) -> None:
    bench = Bench(mute, lease="2s", heartbeat="50ms")
    runs = Tally()

    @bench.app.task
    async def work() -> str:
        runs.add()
        return "once"

    mute.let_settle.clear()
    ids = await bench.enqueue_many(work, [()] * 3)
    async with bench.worker():
        await mute.settling.reach(1)
        mute.mute = True
        mute.clock.advance(timedelta(seconds=3))
        await mute.reaped.reach(1)
        mute.mute = False
        mute.let_settle.set()
        jobs = [await bench.reach(id, JobState.DONE) for id in ids]
    assert {(job.attempt, job.crashes) for job in jobs} == {(1, 0)}
    assert runs.count == 3


async def test_a_lease_that_is_nobodys_any_more_is_rehomed_by_the_worker_that_reaped_it(mute: Mute) -> None:
    """Reaped here before and not settled: it is this worker's lease by name, and no job of it runs."""
    bench = Bench(mute, lease="2s", heartbeat="50ms")

    @bench.app.task
    async def work() -> None: ...

    id = await bench.enqueue(work)
    worker = Worker(bench.app.tasks, mute, bench.settings, queues=("default",))
    assert await mute.claim(Ask(worker.id, ("default",), 1, timedelta(seconds=1), new_token())) is not None
    mute.clock.advance(timedelta(seconds=3))
    async with worker:
        job = await bench.reach(id, JobState.DONE)
    assert job.attempt == 2


async def test_a_heartbeat_that_gets_no_answer_is_given_up_and_tried_again() -> None:
    store = MemoryStore()
    real, hung = store.heartbeat, Tally()

    async def heartbeat(*args: Any, **kwargs: Any) -> Any:
        if hung.count == 0:
            hung.add()
            await asyncio.Event().wait()
        return await real(*args, **kwargs)

    store.heartbeat = heartbeat  # type: ignore[method-assign]  # one connection is half open
    bench = Bench(store, lease="400ms", heartbeat="50ms")
    async with bench.worker() as worker:
        await until(lambda: any(each == worker.id for each in store._workers))
    assert hung.count == 1


# ── completed in a transaction ──────────────────────────────────────────────


@pytest.mark.parametrize("error", [ConfigError("the password was changed"), ZeroDivisionError("a driver's bug")])
async def test_a_completed_job_is_looked_for_until_the_store_answers(error: Exception) -> None:
    from headrace.worker.completer import Completer
    from headrace.worker.state import WorkerState

    store = MemoryStore()
    bench = Bench(store)

    @bench.app.task
    async def work() -> None: ...

    id = await bench.enqueue(work)
    lease = await store.claim(Ask(new_worker_id(), ("default",), 1, timedelta(hours=1), new_token()))
    assert lease is not None
    await store.settle(lease.token, [(0, Finish(JobState.DONE))])
    real, asked = store.get, Tally()

    async def get(ids: Any) -> Any:
        asked.add()
        if asked.count < 3:
            raise error
        return await real(ids)

    store.get = get  # type: ignore[method-assign]  # a store that breaks
    state = WorkerState(bench.app.tasks, store, bench.settings, id=new_worker_id(), queues=("default",))
    attempt: Any = type("Stub", (), {"job": lease.jobs[0]})()
    job = await Completer(state, None)._look(attempt)  # type: ignore[arg-type]  # no settling here
    assert job is not None
    assert (job.id, job.state, asked.count) == (id, JobState.DONE, 3)
