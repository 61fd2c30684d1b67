"""History in a worker: what is counted, when it is written, and what happens while the store is away."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic, time
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from headrace.errors import HeadraceError, OutcomeUnknown, Unavailable, Unsupported
from headrace.model.histogram import Histogram
from headrace.model.job import FINISHED, Batch, Claimed, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Lease, new_token, new_worker_id
from headrace.model.outcome import DONE, Cancel, Dead, Snooze
from headrace.model.rollup import (
    ALL_QUEUES,
    DAY,
    HOUR,
    MINUTE,
    MINUTES_FROM,
    OTHER_TASKS,
    QUARTER,
    USAGE_FROM,
    AttemptEnd,
    Rollup,
)
from headrace.model.usage import Usage
from headrace.policy.history import FOLD_AFTER, REPEAT_FOR, merged_usage
from headrace.settings import Settings
from headrace.store.memory import MemoryStore
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.testing.clock import FakeClock
from headrace.worker import history, slot_meter, tally
from headrace.worker.attempt import Attempt, ResolvedTask
from headrace.worker.history import HistoryUpkeep, HistoryWriter
from headrace.worker.slot_meter import SlotMeter
from headrace.worker.state import WorkerState
from worker.harness import Bench

FOREVER = 2**31 - 1


async def rollups_of(store: Any) -> list[Rollup]:
    """Without details: each attempt once."""
    page = await store.read_history(0, MINUTES_FROM)
    assert page.next is None
    return page.rollups


def counts(rollups: Sequence[Rollup]) -> dict[tuple[str, str], int]:
    totals: Counter[tuple[str, str]] = Counter()
    for rollup in rollups:
        totals[rollup.task, rollup.end.value] += rollup.count
    return dict(totals)


def held_by(rollups: Sequence[Rollup], what: str) -> int:
    return sum(Histogram.unpack(getattr(rollup, what)).count for rollup in rollups)


async def test_a_worker_writes_what_became_of_its_jobs() -> None:
    bench = Bench()

    @bench.app.task(name="varied", retry=Retry(base="0s", max_attempts=2))
    async def varied(how: str) -> str | None:
        first = current_job().attempt == 1
        if how == "fail" or (how == "once" and first):
            raise ValueError
        if how == "snooze" and first:
            raise Snooze("0s")
        if how == "cancel":
            raise Cancel
        if how == "dead":
            raise Dead("no")
        return "a result" if how == "result" else None

    hows = ("plain", "result", "once", "fail", "snooze", "cancel", "dead")
    ids = [await bench.enqueue(varied, how) for how in hows]
    async with bench.worker():
        for id in ids:
            await bench.reach(id, *FINISHED)
    rollups = await rollups_of(bench.store)
    assert counts(rollups) == {
        ("varied", "done"): 4,
        ("varied", "failed"): 2,
        ("varied", "dead"): 2,
        ("varied", "cancelled"): 1,
        ("varied", "snoozed"): 1,
    }
    assert {rollup.queue for rollup in rollups} == {"default"}
    assert held_by(rollups, "run") == 10
    assert held_by(rollups, "wait") == 7  # Each job waits once: until its first attempt.


async def test_a_large_lease_is_counted_exactly_and_measured_in_part() -> None:
    bench = Bench(concurrency=400)

    @bench.app.task(name="quick")
    async def quick(number: int) -> None:
        pass

    ids = await bench.enqueue_many(quick, [(number,) for number in range(400)])
    async with bench.worker():
        for id in ids:
            await bench.reach(id, *FINISHED)
    rollups = await rollups_of(bench.store)
    assert counts(rollups) == {("quick", "done"): 400}
    assert held_by(rollups, "run") == 400
    assert held_by(rollups, "wait") == 400


async def test_jobs_of_several_tasks_in_a_large_lease_are_counted_apart() -> None:
    bench = Bench(concurrency=400)

    @bench.app.task(name="one")
    async def one() -> None:
        pass

    @bench.app.task(name="two")
    async def two() -> None:
        pass

    ids = [id for task in (one, two) * 2 for id in await bench.enqueue_many(task, [()] * 25)]
    async with bench.worker():
        for id in ids:
            await bench.reach(id, *FINISHED)
    rollups = await rollups_of(bench.store)
    assert counts(rollups) == {("one", "done"): 50, ("two", "done"): 50}
    for task in ("one", "two"):
        assert held_by([rollup for rollup in rollups if rollup.task == task], "run") == 50


def test_of_a_large_lease_each_task_is_measured_by_its_share() -> None:
    # The tasks alternate with the stride of the sample, and one of them is rare.
    jobs = [job("rare" if number == 77 else "even" if number % 2 else "odd") for number in range(500)]
    kinds, weights = tally.sample(jobs, one_kind=False)
    totals: Counter[str] = Counter()
    for one, weight in zip(jobs, weights, strict=True):
        totals[one.task] += weight
    assert totals == {"odd": 250, "even": 249, "rare": 1}
    assert kinds == [("default", one.task) for one in jobs]
    assert sum(weight > 0 for weight in weights) == 33


# ── usage ────────────────────────────────────────────────────────────────────


async def usage_of(store: Any) -> dict[str, Usage]:
    """Usage by queue."""
    page = await store.read_history(USAGE_FROM, FOREVER)
    queues = {rollup.queue for rollup in page.rollups}
    return {queue: merged_usage([one for one in page.rollups if one.queue == queue]) for queue in queues}


async def test_a_worker_writes_the_run_seconds_of_each_tenant_and_of_its_slots() -> None:
    bench = Bench()

    @bench.app.task(name="plain")
    async def plain() -> None:
        pass

    jobs = [NewJob("plain", b"\x92\x90\x80", Lane(tenant=tenant)) for tenant in ("acme", "zenith", "acme")]
    batch = Batch(new_batch(), jobs)
    await bench.store.enqueue(batch)
    ids = [job_id(batch.id, number) for number in range(3)]
    async with bench.worker():
        for id in ids:
            await bench.reach(id, *FINISHED)
    usage = await usage_of(bench.store)
    assert set(usage["default"].tenants) == {"acme", "zenith"}
    slots = usage[ALL_QUEUES]
    assert 0 < slots.busy <= slots.available
    assert slots.busy == pytest.approx(usage["default"].seconds, rel=0.01, abs=1e-4)


async def test_run_seconds_count_by_queue_and_tenant() -> None:
    writer, state = writer_on(store := MemoryStore())
    now = monotonic()
    for queue, tenant, seconds in (("a", "acme", 2.0), ("a", "", 3.0), ("b", "acme", 4.0), ("a", "acme", 1.5)):
        one = replace(job(queue=queue), tenant=tenant)
        state.tally.add(one, AttemptEnd.FAILED, started=now - seconds, ended=now)
    await writer.flush()
    usage = await usage_of(store)
    assert usage["a"].tenants == pytest.approx({"acme": 3.5, "": 3.0})
    assert usage["b"].tenants == pytest.approx({"acme": 4.0})
    assert ALL_QUEUES not in usage  # The server counts for workers elsewhere, and does not know their slots.


def test_slots_are_busy_while_attempts_run_and_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(slot_meter, "monotonic", lambda: clock[0])
    state = WorkerState({}, MemoryStore(), Settings(url="memory://"), id=new_worker_id(), queues=())
    meter = SlotMeter(state, 4)
    held = state.take(Lease(token=new_token(), jobs=[job(), job(), job()], suspect=False))
    long, short, waiting = [Attempt(held, position, job(), ResolvedTask.__new__(ResolvedTask)) for position in range(3)]
    held.attempts = [long, short, waiting]

    def read() -> tuple[float, float]:
        meter.read()
        usages = [Usage.unpack(one.run) for one in state.tally.take() if one.queue == ALL_QUEUES]
        return sum(one.busy for one in usages), sum(one.available for one in usages)

    long.started, short.started = 1001.0, 1002.0
    clock[0] = 1010.0
    assert read() == (9.0 + 8.0, 40.0)
    # It ends, and the store has its outcome before the next count.
    held.attempts[1] = None
    state.tally.settled(held, [(1, DONE)], [(short, 1013.0, None)], plain=True)
    clock[0] = 1020.0
    assert read() == (3.0 + 10.0, 40.0)
    # It ends, and the store does not have its outcome yet.
    held.attempts[0] = None
    held.measured.append((long, 1024.0, None))
    clock[0] = 1030.0
    assert read() == (4.0, 40.0)
    state.tally.settled(held, [(0, DONE)], held.measured, plain=True)
    assert waiting.started == 0
    clock[0] = 1040.0
    assert read() == (0.0, 40.0)


def test_an_idle_worker_writes_its_slots_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(slot_meter, "monotonic", lambda: clock[0])
    state = WorkerState({}, MemoryStore(), Settings(url="memory://"), id=new_worker_id(), queues=())
    meter = SlotMeter(state, 2)
    written: list[float] = []
    for _ in range(65):
        clock[0] += 10.0
        meter.read()
        written += [Usage.unpack(one.run).available for one in state.tally.take()]
    assert written == [600.0, 600.0]
    meter.read(final=True)
    assert [Usage.unpack(one.run).available for one in state.tally.take()] == [100.0]


@pytest.mark.parametrize("one_kind", [True, False])
def test_tenants_that_take_turns_in_large_leases_are_measured_alike(
    one_kind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "random", random.Random(7).random)
    jobs = [replace(job(), tenant="even" if number % 2 else "odd") for number in range(512)]
    totals: Counter[str] = Counter()
    for _ in range(400):
        _, weights = tally.sample(jobs, one_kind=one_kind)
        for one, weight in zip(jobs, weights, strict=True):
            totals[one.tenant] += weight
    assert totals["even"] + totals["odd"] == 400 * 512
    assert totals["even"] / totals["odd"] == pytest.approx(1.0, abs=0.25)


# ── writing ──────────────────────────────────────────────────────────────────


class Away(MemoryStore):
    """Raises what a test says, before or after the rollups are added."""

    def __init__(self) -> None:
        super().__init__()
        self.error: HeadraceError | Exception | None = None
        self.added = True
        """Whether the rollups are added all the same."""
        self.calls = 0

    async def add_history(self, rollups: Sequence[Rollup]) -> None:
        self.calls += 1
        if self.error is None or self.added:
            await super().add_history(rollups)
        if self.error is not None:
            raise self.error


def writer_on(store: MemoryStore) -> tuple[HistoryWriter, WorkerState]:
    state = WorkerState({}, store, Settings(url="memory://"), id=new_worker_id(), queues=())
    state.watch.set_to(datetime.now(UTC), monotonic())
    return HistoryWriter(state), state


def job(task: str = "t", queue: str = "default") -> Claimed:
    return Claimed(
        batch=uuid4(),
        ord=0,
        attempt=1,
        failures=0,
        crashes=0,
        task=task,
        payload=b"",
        options=None,
        queue=queue,
        priority=0,
        tenant="",
        enqueued_at=datetime.now(UTC),
    )


async def test_an_unknown_outcome_is_repeated_and_counts_once() -> None:
    store = Away()
    writer, state = writer_on(store)
    store.error = OutcomeUnknown("the connection broke")
    state.tally.add(job(), AttemptEnd.DONE)
    await writer.flush()
    await writer.flush()
    store.error = None
    await writer.flush()
    await writer.flush()
    assert store.calls == 3
    assert counts(await rollups_of(store)) == {("t", "done"): 1}
    assert writer.dropped == 0


async def test_an_unknown_outcome_is_not_repeated_when_the_rollup_may_be_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Away()
    writer, state = writer_on(store)
    store.error = OutcomeUnknown("the connection broke")
    state.tally.add(job(), AttemptEnd.DONE)
    await writer.flush()
    state.watch.set_to(datetime.now(UTC) + timedelta(seconds=REPEAT_FOR + 1), monotonic())
    store.error = None
    await writer.flush()
    assert (store.calls, writer.dropped) == (1, 1)


async def test_a_store_that_is_away_gets_everything_later_with_the_time_of_the_sending() -> None:
    store = Away()
    writer, state = writer_on(store)
    store.error, store.added = Unavailable("cannot reach the store"), False
    state.tally.add(job(), AttemptEnd.DONE)
    await writer.flush()
    later = datetime.now(UTC) + timedelta(hours=1)
    state.watch.set_to(later, monotonic())
    state.tally.add(job("u"), AttemptEnd.DEAD)
    store.error = None
    await writer.flush()
    rollups = await rollups_of(store)
    assert counts(rollups) == {("t", "done"): 1, ("u", "dead"): 1}
    assert all(rollup.sent >= int(later.timestamp()) for rollup in rollups)


async def test_the_oldest_rollups_are_dropped_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_WAITING", 3)
    store = Away()
    writer, state = writer_on(store)
    store.error, store.added = Unavailable("cannot reach the store"), False
    for number in range(5):
        state.tally.add(job(f"t{number}"), AttemptEnd.DONE)
        await writer.flush()
    store.error = None
    await writer.flush()
    assert set(counts(await rollups_of(store))) == {("t2", "done"), ("t3", "done"), ("t4", "done")}
    assert writer.dropped == 2


async def test_a_worker_that_may_not_write_history_stops_trying() -> None:
    store = Away()
    writer, state = writer_on(store)
    store.error, store.added = Unsupported("the token lacks a scope"), False
    for _ in range(3):
        state.tally.add(job(), AttemptEnd.DONE)
        await writer.flush()
    assert store.calls == 1


async def test_a_bug_of_the_store_costs_its_rollups_only() -> None:
    store = Away()
    writer, state = writer_on(store)
    store.error, store.added = ZeroDivisionError("a driver's bug"), False
    state.tally.add(job(), AttemptEnd.DONE)
    await writer.flush()
    store.error = None
    state.tally.add(job("u"), AttemptEnd.DONE)
    await writer.flush()
    assert counts(await rollups_of(store)) == {("u", "done"): 1}
    assert writer.dropped == 1


async def test_a_worker_counts_before_it_has_read_the_clock_of_its_store() -> None:
    """It may settle the jobs of a lost worker before its own first claim."""
    store = MemoryStore()
    state = WorkerState({}, store, Settings(url="memory://"), id=new_worker_id(), queues=())
    state.tally.add(job(), AttemptEnd.DEAD)
    await HistoryWriter(state).flush()
    [rollup] = await rollups_of(store)
    assert abs(rollup.sent - time()) < 600


async def test_tasks_beyond_the_most_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_KEYS", 2)
    writer, state = writer_on(store := MemoryStore())
    for number in range(5):
        state.tally.add(job(f"t{number}"), AttemptEnd.DONE)
    await writer.flush()
    assert counts(await rollups_of(store)) == {("t0", "done"): 1, ("t1", "done"): 1, (OTHER_TASKS, "done"): 3}


async def test_a_store_that_never_answers_does_not_keep_a_worker_from_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LAST_WORDS", 0.01)

    class Silent(MemoryStore):
        async def add_history(self, rollups: Sequence[Rollup]) -> None:
            await asyncio.Event().wait()

    bench = Bench(Silent())

    @bench.app.task(name="plain")
    async def plain() -> None:
        pass

    done = await bench.work(plain)
    assert done.state is JobState.DONE


# ── upkeep ───────────────────────────────────────────────────────────────────


async def test_upkeep_folds_minutes_into_hours_and_these_into_days_and_drops_what_is_old() -> None:
    clock = FakeClock()
    clock.advance(timedelta(minutes=5))
    store = MemoryStore(clock=clock)
    upkeep = HistoryUpkeep(store, timedelta(days=30))
    now = int(clock.now().timestamp())
    minute = now // 60

    def rollup(start: int) -> Rollup:
        return Rollup(start=start, id=uuid4(), queue="q", task="t", end=AttemptEnd.DONE, count=1, sent=now)

    await store.add_history([rollup(minute - ago) for ago in (0, 0, 1, 1, 1, 2)])
    await tidy(upkeep)
    assert len(await rollups_of(store)) == 6  # Their writers may send them again.
    clock.advance(timedelta(seconds=FOLD_AFTER))
    await tidy(upkeep)
    assert sorted(one.count for one in await rollups_of(store)) == [1, 2, 3]
    for later, span, details in (
        (timedelta(minutes=32), QUARTER, {MINUTE}),
        (timedelta(hours=1), HOUR, {MINUTE, QUARTER}),
        (timedelta(hours=23), DAY, {MINUTE, QUARTER, HOUR}),
        (timedelta(hours=3), DAY, {HOUR}),
        (timedelta(days=8), DAY, set[int]()),
    ):
        clock.advance(later)
        await tidy(upkeep)
        whole = await rollups_of(store)
        assert {one.span for one in whole} == {span}
        assert sum(one.count for one in whole) == 6
        kept = (await store.read_history(MINUTES_FROM, FOREVER)).rollups
        assert {one.span for one in kept} == details
    clock.advance(timedelta(days=30))
    await tidy(upkeep)
    assert (await store.read_history(0, FOREVER)).rollups == []


async def test_upkeep_folds_more_than_a_page() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    minute = int(clock.now().timestamp()) // 60
    for _ in range(3):
        await store.add_history(
            [
                Rollup(
                    start=minute - number % 7,
                    id=uuid4(),
                    queue="q",
                    task=f"t{number % 5}",
                    end=AttemptEnd.DONE,
                    count=1,
                    sent=minute * 60,
                )
                for number in range(1000)
            ]
        )
    clock.advance(timedelta(seconds=2 * FOLD_AFTER))
    await tidy(HistoryUpkeep(store, timedelta(days=30)))
    rollups = await rollups_of(store)
    assert len(rollups) == 35
    assert sum(one.count for one in rollups) == 3000


async def tidy(upkeep: HistoryUpkeep) -> None:
    """Until the pass is over."""
    while await upkeep.tidy() <= 1.0:
        pass
