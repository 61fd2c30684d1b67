"""A store fails at every verb, before and after its effect: the worker recovers by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from headrace.errors import OutcomeUnknown, Unavailable
from headrace.model.job import JobState
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import Snooze
from headrace.store.memory import MemoryStore
from headrace.task.context import current_job
from headrace.task.retry import Retry
from worker.harness import Bench, until

VERBS = ("claim", "heartbeat", "settle", "wait", "promote", "reap", "retire")


class Flaky(MemoryStore):
    """Fails once at one verb."""

    def __init__(self, verb: str, when: str, times: int = 1) -> None:
        super().__init__()
        self.left = times
        real = getattr(self, verb)

        async def failing(*args: Any, **kwargs: Any) -> Any:
            if self.left <= 0:
                return await real(*args, **kwargs)
            self.left -= 1
            if when == "before":
                raise Unavailable("cannot reach the store")
            if when == "bug":
                raise ZeroDivisionError("a driver's bug")
            await real(*args, **kwargs)
            raise OutcomeUnknown("the connection broke")

        setattr(self, verb, failing)


@pytest.mark.parametrize("when", ["before", "after", "bug"])
@pytest.mark.parametrize("verb", VERBS)
async def test_one_failure_is_healed(verb: str, when: str) -> None:
    store = Flaky(verb, when)
    bench = Bench(store, lease="2s", heartbeat="100ms")
    runs: list[int] = []

    @bench.app.task(retry=Retry(base="0s"))
    async def work(number: int) -> None:
        first = number not in runs
        runs.append(number)
        if number % 5 == 0 and current_job().failures == 0:
            raise ValueError
        if number % 5 == 1 and first:
            raise Snooze("0s")

    ids = await bench.enqueue_many(work, [(number,) for number in range(20)])
    if verb == "reap":
        # A worker reaps when there is something to reap: the lease of a worker that is gone.
        assert await store.claim(Ask(new_worker_id(), ("default",), 1, timedelta(microseconds=1), new_token()))
    async with bench.worker() as worker:
        for id in ids:
            await bench.reach(id, JobState.DONE)
        # Whatever comes later works, too.
        later = await bench.enqueue(work, 3)
        await bench.reach(later, JobState.DONE)
        if verb != "retire":
            await until(lambda: store.left == 0)
    assert store.left == 0
    assert not worker.running
    jobs = [await bench.get(id) for id in ids]
    assert all(job.failures == (1 if number % 5 == 0 else 0) for number, job in enumerate(jobs))
    # Nothing ran oftener than its failures and snoozes explain.
    assert len(runs) == 20 + 4 + 4 + 1


async def test_a_claim_whose_answer_is_lost_is_asked_again_under_the_same_token() -> None:
    store = Flaky("claim", "after", times=2)
    bench = Bench(store, lease="1h", heartbeat="10m")

    @bench.app.task
    async def work() -> None: ...

    id = await bench.enqueue(work)
    async with bench.worker():
        job = await bench.reach(id, JobState.DONE)
    assert job.attempt == 1
    assert store.left == 0


async def test_a_settlement_whose_answer_is_lost_is_not_applied_twice() -> None:
    store = Flaky("settle", "after", times=3)
    bench = Bench(store)

    @bench.app.task
    async def work() -> str:
        return "once"

    ids = await bench.enqueue_many(work, [()] * 10)
    async with bench.worker() as worker:
        for id in ids:
            await bench.reach(id, JobState.DONE)
        await until(lambda: store.left == 0)
        await worker.idle.wait()
    stats = (await store.stats()).queues[0]
    assert (stats.done_total, stats.failed_total) == (10, 0)


async def test_nothing_is_claimed_while_results_cannot_be_settled() -> None:
    store = MemoryStore()
    bench = Bench(store, concurrency=5)
    broken = True
    real = store.settle

    async def settle(token: Any, settlements: Sequence[Any]) -> Any:
        if broken:
            raise Unavailable("away")
        return await real(token, settlements)

    store.settle = settle  # type: ignore[method-assign]  # a store that breaks

    @bench.app.task
    async def work() -> None: ...

    ids = await bench.enqueue_many(work, [()] * 5000)
    async with bench.worker() as worker:
        await until(lambda: worker.counters.claimed)
        assert worker.counters.claimed < 5000
        broken = False
        for id in ids:
            await bench.reach(id, JobState.DONE)
    assert worker.counters.succeeded == 5000


async def test_a_worker_that_does_not_reach_its_store_shows_it() -> None:
    store = Flaky("heartbeat", "before", times=1 << 30)
    bench = Bench(store, lease="2s", heartbeat="100ms")

    @bench.app.task
    async def work() -> None: ...

    async with bench.worker() as worker:
        await until(lambda: worker.figures().away)
        assert worker.figures().serving
        store.left = 0
        await until(lambda: not worker.figures().away)
        id = await bench.enqueue(work)
        await bench.reach(id, JobState.DONE)
        await until(lambda: worker.figures().succeeded == 1)
    figures = worker.figures()
    assert not figures.serving
    assert (figures.claimed, figures.ended) == (1, 1)
    assert min(figures.claims, figures.settlements, figures.heartbeats) >= 1
