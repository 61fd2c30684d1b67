"""`expires` and `deadline`: judged by the store's clock, whatever this machine's says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

import pytest

from conftest import nothing_left_behind
from headrace.errors import Unavailable
from headrace.model.job import JobState
from headrace.model.lease import Presence, Pulse, Token
from headrace.model.outcome import Snooze
from headrace.policy.explain.answer import Reason
from headrace.policy.explain.explain import look
from headrace.store.memory import MemoryStore
from headrace.task.codec import JobOptions
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.testing.clock import FakeClock
from worker import process_tasks
from worker.harness import WAIT, Bench, until

AT_ONCE = Retry(max_attempts=3, base="0s", jitter=(1.0, 1.0))
HOUR = timedelta(hours=1)


class Store(MemoryStore):
    """Its clock stands still between two turns. The calls that tell its time can fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.failures = 0
        self.asked = 0

    async def now(self) -> datetime:
        self._ask()
        return await super().now()

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        self._ask()
        return await super().heartbeat(tokens, ttl, presence)

    def _ask(self) -> None:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise Unavailable("not now")


@pytest.fixture
async def late(clock: FakeClock) -> AsyncIterator[Bench]:
    async with nothing_left_behind():
        yield Bench(Store(clock))


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
@pytest.mark.parametrize("gone", [timedelta(minutes=9), timedelta(minutes=10), timedelta(days=2)])
async def test_no_start_after_it_expired(late: Bench, clock: FakeClock, kind: str, gone: timedelta) -> None:
    @late.app.task(name="async")
    async def in_the_loop(number: int) -> int:
        return 2 * number

    @late.app.task(name="thread")
    def in_a_thread(number: int) -> int:
        return 2 * number

    late.app.tasks["process"] = process_tasks.double
    task = process_tasks.double if kind == "process" else late.app.tasks[kind]
    late.app.tasks[task.name] = task
    id = await late.enqueue(task, 4, options=JobOptions(expires=600.0))
    clock.advance(gone)
    async with late.worker():
        job = await late.reach(id, JobState.DONE, JobState.CANCELLED)
    if gone < timedelta(minutes=10):
        assert job.state is JobState.DONE
    else:
        assert (job.state, job.note, job.attempt, job.failures) == (JobState.CANCELLED, "expired", 1, 0)
        found = await look(late.store, id, lambda _: None)
        assert found is not None
        assert "it had not started before it expired" in found[1].sentence


async def test_the_tasks_own_limit_and_the_jobs(late: Bench, clock: FakeClock) -> None:
    @late.app.task(expires="10m")
    async def fresh() -> None: ...

    ids = [
        await late.enqueue(fresh),
        await late.enqueue(fresh, options=JobOptions(expires=1200.0)),
        await late.enqueue(fresh, options=JobOptions(expires=clock.now() + HOUR)),
        await late.enqueue(fresh, options=JobOptions(expires=clock.now() + timedelta(minutes=1))),
        await late.enqueue(fresh, options=JobOptions(max_attempts=1)),
    ]
    clock.advance(timedelta(minutes=15))
    async with late.worker():
        states = [(await late.reach(id, JobState.DONE, JobState.CANCELLED)).state for id in ids]
    assert states == [JobState.CANCELLED, JobState.DONE, JobState.DONE, JobState.CANCELLED, JobState.CANCELLED]


async def test_a_retry_is_a_start_too(late: Bench, clock: FakeClock) -> None:
    store = late.store
    assert isinstance(store, Store)

    @late.app.task(retry=AT_ONCE, expires="10m")
    async def fail() -> None:
        clock.advance(HOUR)
        # The worker looks at the store's clock with every heartbeat; the second one from here on began after the turn.
        asked = store.asked
        await until(lambda: store.asked >= asked + 2)
        raise ValueError

    id = await late.enqueue(fail)
    async with late.worker():
        job = await late.reach(id, JobState.DONE, JobState.CANCELLED, JobState.DEAD)
    assert (job.state, job.note, job.failures, job.attempt) == (JobState.CANCELLED, "expired", 1, 2)


async def test_this_machines_clock_decides_nothing(late: Bench, clock: FakeClock) -> None:
    """The store's clock stands in another year than ours."""

    @late.app.task(expires="10m", deadline="1h")
    async def fine() -> float:
        left = current_job().deadline
        assert left is not None
        return left.timestamp() - time.time()

    clock.advance(timedelta(days=-4000))
    job = await late.work(fine)
    assert job.state is JobState.DONE
    assert 3500 < fine.codec.decode_result(job.result) <= 3600


async def test_a_watch_that_cannot_be_set_keeps_jobs_from_starting(late: Bench, clock: FakeClock) -> None:
    assert isinstance(late.store, Store)
    late.store.failures = 3

    @late.app.task(expires="10m")
    async def fresh() -> None: ...

    id = await late.enqueue(fresh)
    clock.advance(HOUR)
    async with late.worker():
        job = await late.reach(id, JobState.DONE, JobState.CANCELLED)
    assert (job.state, late.store.failures) == (JobState.CANCELLED, 0)


# ── the deadline ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_the_deadline_cuts_an_attempt_short(late: Bench, kind: str) -> None:
    @late.app.task(name="async", timeout="1h")
    async def in_the_loop() -> None:
        await asyncio.sleep(WAIT)

    @late.app.task(name="thread")
    def in_a_thread() -> None:
        while not current_job().cancelled:
            time.sleep(0.005)

    late.app.tasks["process"] = process_tasks.sleep_for_ever
    late.app.tasks[process_tasks.sleep_for_ever.name] = process_tasks.sleep_for_ever
    task = late.app.tasks[kind]
    # The store's clock stands still and is looked at all the time: however long the start takes, this much is left.
    job = await late.work(task, options=JobOptions(deadline=0.5, max_attempts=5))
    assert (job.state, job.note, job.failures) == (JobState.DEAD, "deadline", 1)
    assert job.history[0].kind == "timeout"
    assert "all that its deadline left" in job.history[0].message


async def test_no_retry_beyond_the_deadline(late: Bench) -> None:
    @late.app.task(retry=Retry(base="30s", jitter=(1.0, 1.0)), deadline="10s")
    async def fail() -> None:
        raise ValueError("no")

    job = await late.work(fail)
    assert (job.state, job.note, job.failures, job.history[0].message) == (JobState.DEAD, "deadline", 1, "no")


async def test_retries_within_the_deadline_go_on(late: Bench) -> None:
    @late.app.task(retry=AT_ONCE, deadline="1h")
    async def fail() -> None:
        raise ValueError("no")

    id = await late.enqueue(fail)
    async with late.worker():
        job = await late.reach(id, JobState.DEAD)
    assert (job.note, job.failures) == ("max_attempts", 3)


async def test_no_snooze_beyond_the_deadline(late: Bench) -> None:
    @late.app.task(deadline="10s")
    async def later() -> None:
        raise Snooze("1m")

    job = await late.work(later)
    assert (job.state, job.note, job.failures) == (JobState.DEAD, "deadline", 0)


async def test_an_attempt_that_would_start_after_the_deadline_is_dead(late: Bench, clock: FakeClock) -> None:
    started: list[int] = []

    @late.app.task(deadline="1h")
    async def tidy() -> None:
        started.append(1)

    id = await late.enqueue(tidy)
    clock.advance(HOUR)
    found = await look(late.store, id, lambda _: tidy.options)
    assert found is not None
    assert found[1].reason is Reason.EXPIRED
    async with late.worker():
        job = await late.reach(id, JobState.DEAD, JobState.DONE)
    assert (job.state, job.note, job.failures, started) == (JobState.DEAD, "deadline", 1, [])
    assert job.history[0].kind == "deadline"


async def test_a_job_that_nobody_knows_expires_too(late: Bench, clock: FakeClock) -> None:
    id = await late.enqueue("nobody.knows", options=JobOptions(expires=60.0))
    clock.advance(HOUR)
    async with late.worker():
        job = await late.reach(id, JobState.CANCELLED, JobState.SCHEDULED)
    assert (job.state, job.note) == (JobState.CANCELLED, "expired")
