"""Steps: what a task has finished is not run again, whatever happens to its attempts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import nothing_left_behind
from headrace.errors import StoreFull, Unavailable
from headrace.model.job import Job, JobId, JobState
from headrace.model.lease import Token, WorkerId, new_worker_id
from headrace.model.outcome import ASLEEP
from headrace.model.step import MAX_STEP_VALUE, Step
from headrace.store.memory import MemoryStore
from headrace.task.context import NoCurrentJob, current_job
from headrace.task.retry import Retry
from headrace.task.steps import sleep, sleep_sync, step, step_sync
from headrace.task.task import Task
from headrace.testing.clock import FakeClock
from worker import step_tasks
from worker.harness import WAIT, Bench, until

AT_ONCE = Retry(max_attempts=5, base="0s")
ONCE = Retry(max_attempts=1)


class Notary(MemoryStore):
    """Notes the calls about steps, and can be away."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[list[str]] = []
        self.reads = 0
        self.errors: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked, self.written = asyncio.Event(), asyncio.Event()

    async def add_steps(self, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        self.asked.set()
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop()
        self.calls.append([one.name for _, one in steps])
        self.written.set()
        return await super().add_steps(token, steps)

    async def read_steps(self, id: JobId, token: Token | None = None) -> list[Step]:
        self.reads += 1
        return await super().read_steps(id, token)


@pytest.fixture
async def store() -> Notary:
    return Notary()


@pytest.fixture
async def bench(store: Notary) -> AsyncIterator[Bench]:
    async with nothing_left_behind():
        yield Bench(store)


async def finish(bench: Bench, task: Task[..., Any], *args: Any) -> Job:
    """Enqueue one job, and run it to its end."""
    id = await bench.enqueue(task, *args)
    async with bench.worker():
        return await bench.reach(id, JobState.DONE, JobState.DEAD, JobState.CANCELLED)


class Witness:
    """Counts how often each step ran, and fails on demand."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails: set[str] = set()

    async def act(self, name: str) -> str:
        await asyncio.sleep(0)
        return self.act_sync(name)

    def act_sync(self, name: str) -> str:
        self.ran.append(name)
        if name in self.fails:
            self.fails.remove(name)
            raise ConnectionError(name)
        return name.upper()


async def test_a_retry_continues_after_the_last_finished_step(bench: Bench, store: Notary):
    witness = Witness()
    witness.fails = {"b", "c"}

    @bench.app.task(retry=AT_ONCE)
    async def work() -> list[str]:
        return [await step(witness.act, name) for name in "abc"]

    job = await finish(bench, work)
    assert work.codec.decode_result(job.result) == ["A", "B", "C"]
    assert witness.ran == ["a", "b", "b", "c", "c"]
    assert job.attempt == 3
    assert store.reads == 2, "the first attempt has nothing to read"


async def test_plain_functions_run_in_threads_and_sync_tasks_have_steps(bench: Bench):
    witness = Witness()
    witness.fails = {"b"}
    threads: set[int] = set()

    def act(name: str) -> str:
        threads.add(threading.get_ident())
        return witness.act_sync(name)

    @bench.app.task(retry=AT_ONCE)
    async def mixed() -> str:
        return await step(act, "a") + await step(act, "b")

    @bench.app.task(retry=AT_ONCE)
    def plain() -> str:
        return step_sync(act, "a") + step_sync(act, "b")

    assert mixed.codec.decode_result((await finish(bench, mixed)).result) == "AB"
    assert threading.get_ident() not in threads
    witness.fails = {"b"}
    assert plain.codec.decode_result((await finish(bench, plain)).result) == "AB"
    assert witness.ran == ["a", "b", "b", "a", "b", "b"]


async def test_a_process_task_has_steps_and_sleeps(store: Notary, tmp_path: Path):
    bench = Bench(store)
    bench.app = step_tasks.app
    bench.settings = bench.settings.replace(app="worker.step_tasks:app")
    async with nothing_left_behind():
        job = await finish(bench, step_tasks.in_process, str(tmp_path / "ran"))
    assert job.state is JobState.DONE, job.history
    assert (tmp_path / "ran").read_text() == "a b b c ", "each finished step ran once"
    assert [one.name for one in await store.read_steps(job.id)] == ["write", "write[b]", "sleep", "write"]
    assert job.attempt == 3


async def test_steps_in_parallel_are_stored_together_and_found_by_what_they_are(bench: Bench, store: Notary):
    witness = Witness()
    witness.fails = {"slow"}

    @bench.app.task(retry=AT_ONCE)
    async def work() -> list[str]:
        names = [f"n{n}" for n in range(20)]
        return await asyncio.gather(*(step(witness.act, name) for name in [*names, "slow"]))

    job = await finish(bench, work)
    assert job.state is JobState.DONE
    assert sorted(witness.ran) == sorted([*(f"n{n}" for n in range(20)), "slow", "slow"])
    assert len(store.calls) < 10, "steps that end while a call is under way share the next call"


async def test_the_value_is_what_was_stored_in_every_attempt(bench: Bench):
    values: list[object] = []

    def pair() -> tuple[int, int]:
        return 1, 2

    def untyped():  # type: ignore[no-untyped-def]
        return 1, 2

    @bench.app.task(retry=AT_ONCE)
    async def work() -> None:
        values.append((await step(pair), await step(untyped), await step(asyncio.sleep, 0)))
        if current_job().attempt == 1:
            raise ConnectionError

    await finish(bench, work)
    assert values == [((1, 2), [1, 2], None)] * 2


async def test_a_failure_behind_a_new_step_is_the_first_failure(bench: Bench):
    @bench.app.task(retry=Retry(max_attempts=2, base="0s"))
    async def work() -> int:
        for number in range(10):
            await step(int, number)
            if current_job().attempt == number + 1:
                raise ConnectionError("once behind each step")
        return 10

    job = await finish(bench, work)
    assert (job.state, job.attempt) == (JobState.DONE, 11)

    @bench.app.task(retry=Retry(max_attempts=2, base="0s"))
    async def stuck() -> None:
        await step(int, 1)
        raise ConnectionError("for ever")

    job = await finish(bench, stuck)
    assert (job.state, job.attempt) == (JobState.DEAD, 2)


async def test_changed_arguments_end_the_job_and_run_nothing_twice(bench: Bench):
    witness = Witness()

    @bench.app.task(retry=AT_ONCE)
    async def work() -> None:
        await step(witness.act, f"at {current_job().attempt}")
        raise ConnectionError

    job = await finish(bench, work)
    assert job.state is JobState.DEAD
    assert witness.ran == ["at 1"]
    assert job.note is not None
    assert job.note.startswith("step_changed: call 1 of step Witness.act had other arguments")
    assert "step.using(key=" in job.note


async def test_keys_tell_calls_apart_whatever_their_order_and_arguments(bench: Bench):
    witness = Witness()

    @bench.app.task(retry=AT_ONCE)
    async def work() -> list[str]:
        first = current_job().attempt == 1
        regions = ["eu", "us"] if first else ["new", "us", "eu"]
        done = [await step.using(key=r)(witness.act, f"{r}{current_job().attempt}") for r in regions]
        if first:
            raise ConnectionError
        return done

    job = await finish(bench, work)
    assert work.codec.decode_result(job.result) == ["NEW2", "US1", "EU1"]


async def test_two_functions_of_one_name_are_refused(bench: Bench):
    def make(value: int) -> Any:
        if value:
            return lambda: value
        return lambda: -1

    @bench.app.task(retry=ONCE)
    async def work() -> None:
        await step(make(0))
        await step(make(1))

    job = await finish(bench, work)
    assert job.state is JobState.DEAD
    assert "step.using(name=" in job.history[0].message


async def test_any_callable_is_a_step_and_the_object_of_a_method_is_not_kept(bench: Bench):
    class Order:
        def charge(self) -> tuple[int, str]:
            return 7, "paid"

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> int:
            return 8

    orders: list[weakref.ref[Order]] = []

    @bench.app.task
    async def work() -> tuple[int, str, int, str]:
        order = Order()
        orders.append(weakref.ref(order))
        first = await step(order.charge)
        return (*first, await step(Unhashable()), await step(functools.partial(str.upper, "x")))

    job = await finish(bench, work)
    assert work.codec.decode_result(job.result) == (7, "paid", 8, "X")
    gc.collect()
    assert [order() for order in orders] == [None]


async def test_a_step_inside_a_step_is_a_part_of_it(bench: Bench, store: Notary):
    witness = Witness()

    async def outer() -> str:
        return await step(witness.act, "in") + await step(witness.act, "side")

    @bench.app.task
    async def work() -> str:
        return await step(outer)

    job = await finish(bench, work)
    assert work.codec.decode_result(job.result) == "INSIDE"
    assert store.calls == [[outer.__qualname__]]


async def test_a_lazy_step_is_written_with_the_next_one(bench: Bench, store: Notary):
    @bench.app.task
    async def work() -> None:
        await step.using(lazy=True, name="a")(int, 1)
        await step.using(lazy=True, name="b")(int, 2)
        await step.using(name="c")(int, 3)

    await finish(bench, work)
    assert store.calls == [["a", "b", "c"]]


async def test_too_large_a_value_ends_the_job(bench: Bench):
    @bench.app.task(retry=AT_ONCE)
    async def work() -> None:
        await step(bytes, MAX_STEP_VALUE + 1)

    job = await finish(bench, work)
    assert (job.state, job.attempt) == (JobState.DEAD, 1)
    assert job.note is not None
    assert "a step may return 262,144" in job.note


async def test_a_store_that_is_away_keeps_the_step_waiting(bench: Bench, store: Notary):
    witness = Witness()
    store.errors = [Unavailable("away"), Unavailable("away")]

    @bench.app.task(retry=ONCE)
    async def work() -> str:
        return await step(witness.act, "a")

    assert (await finish(bench, work)).state is JobState.DONE
    assert witness.ran == ["a"]
    assert store.errors == []


async def test_a_store_that_refuses_fails_the_attempt(bench: Bench, store: Notary):
    store.errors = [StoreFull("full")]

    @bench.app.task(retry=AT_ONCE)
    async def work() -> int:
        return await step(int, 1)

    job = await finish(bench, work)
    assert (job.state, job.attempt) == (JobState.DONE, 2)
    assert job.history[0].kind.endswith("StoreFull")


async def test_a_worker_without_its_lease_stores_nothing(bench: Bench, store: Notary):
    witness = Witness()

    @bench.app.task(retry=AT_ONCE)
    async def work() -> str:
        return await step(witness.act, "a")

    store.gate.clear()
    id = await bench.enqueue(work)
    async with bench.worker(reap=timedelta(hours=1)) as worker:
        await until(lambda: witness.ran)
        job = await bench.get(id)
        assert job.worker is not None
        await store.abandon(WorkerId(job.worker), "taken over")
        [orphan] = await store.reap(new_worker_id(), timedelta(hours=1))
        store.gate.set()
        await until(lambda: worker.counters.lost)
    assert await store.read_steps(id) == []
    assert [job.id for _, job in orphan.jobs] == [id]


async def test_sleep_gives_the_slot_away_and_counts_from_its_first_attempt(store: Notary):
    clock = FakeClock(datetime.now(UTC))
    store = Notary(clock=clock)
    witness = Witness()
    async with nothing_left_behind():
        bench = Bench(store)

        @bench.app.task
        async def trial() -> None:
            await step(witness.act, "welcome")
            await sleep("14d")
            await step(witness.act, "bill")

        id = await bench.enqueue(trial)
        async with bench.worker() as worker:
            job = await bench.reach(id, JobState.SCHEDULED)
            assert job.run_at is not None
            assert (job.run_at - clock.now()).days == 14
            assert job.note is not None
            assert job.note.startswith(ASLEEP)
            assert job.failures == 0
            await until(lambda: worker.running == 0)
            assert witness.ran == ["welcome"]
            await store.retry([id], afresh=False)
            await until(lambda: store.reads == 1)
            again = await bench.reach(id, JobState.SCHEDULED)
            assert again.run_at == job.run_at, "an early attempt sleeps until the same time"
        clock.advance(timedelta(days=15))
        async with bench.worker():
            await bench.reach(id, JobState.DONE)
    assert witness.ran == ["welcome", "bill"]


async def test_sleep_waits_for_steps_that_run(bench: Bench):
    witness = Witness()
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await goes_on.wait()
        await witness.act("slow")

    @bench.app.task
    async def work() -> None:
        await asyncio.gather(sleep("1h"), step(slow), sleep("2h"))

    id = await bench.enqueue(work)
    async with bench.worker():
        await begun.wait()
        assert (await bench.get(id)).state is JobState.RUNNING
        goes_on.set()
        job = await bench.reach(id, JobState.SCHEDULED)
        assert job.run_at is not None
        assert timedelta(minutes=59) < job.run_at - await bench.store.now() <= timedelta(hours=1)
    assert witness.ran == ["slow"]


async def test_sleep_in_a_thread(bench: Bench):
    @bench.app.task
    def work() -> None:
        try:
            sleep_sync("1h")
        except Exception:  # noqa: BLE001  # the point of the test
            raise AssertionError("a task that handles errors does not stop its sleep") from None

    id = await bench.enqueue(work)
    async with bench.worker():
        job = await bench.reach(id, JobState.SCHEDULED)
    assert job.history == ()


async def test_a_short_sleep_keeps_its_slot(bench: Bench, store: Notary):
    @bench.app.task
    async def work() -> None:
        await sleep(0.01)

    @bench.app.task
    def plain() -> None:
        sleep_sync("10ms")

    assert (await finish(bench, work)).attempt == (await finish(bench, plain)).attempt == 1
    assert store.calls == []


async def test_a_step_whose_caller_gives_up_while_it_is_written_is_stored(bench: Bench, store: Notary):
    gave_up = asyncio.Event()

    async def charge() -> int:
        return 7

    async def charged() -> None:
        await step(charge)

    @bench.app.task
    async def work() -> None:
        charging = asyncio.create_task(charged())
        # The step has ended, and the store does not answer.
        await store.asked.wait()
        charging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await charging
        gave_up.set()
        await store.written.wait()

    store.gate.clear()
    async with bench.worker(), asyncio.timeout(WAIT):
        id = await bench.enqueue(work)
        await gave_up.wait()
        assert store.calls == []
        store.gate.set()
        await store.written.wait()
        await bench.reach(id, JobState.DONE)
    assert [len(some) for some in store.calls] == [1]
    assert [one.value for one in await store.read_steps(id)] == [b"\x07"]


async def test_a_cancelled_sleeper_stays_cancelled(bench: Bench):
    @bench.app.task
    async def work() -> None:
        await sleep("1h")

    id = await bench.enqueue(work)
    async with bench.worker():
        await bench.reach(id, JobState.SCHEDULED)
        await bench.store.cancel([id], "enough")
        assert (await bench.reach(id, JobState.CANCELLED)).note == "enough"


async def test_a_step_does_not_sleep_because_it_would_keep_its_slot(bench: Bench):
    async def nap() -> None:
        await sleep("10ms")

    async def long() -> None:
        await sleep("1h")

    @bench.app.task(retry=ONCE)
    async def work() -> None:
        await step(nap)
        await step(long)

    @bench.app.task(retry=ONCE)
    def plain() -> None:
        step_sync(sleep_sync, "1h")

    for task in (work, plain):
        job = await finish(bench, task)
        assert job.state is JobState.DEAD
        assert "a sleep of a second and more: this works in the task itself" in job.history[0].message


async def test_a_sync_task_may_have_an_event_loop_of_its_own(bench: Bench):
    witness = Witness()

    async def inside() -> None:
        await step(witness.act, "a")
        await sleep("1h")

    @bench.app.task
    def work() -> None:
        asyncio.run(inside())

    id = await bench.enqueue(work)
    async with bench.worker() as worker:
        await bench.reach(id, JobState.SCHEDULED)
        await until(lambda: worker.running == 0)
    assert witness.ran == ["a"]


async def test_outside_a_task_there_are_no_steps():
    with pytest.raises(NoCurrentJob):
        await step(int, 1)
    with pytest.raises(NoCurrentJob):
        step_sync(int, 1)
    with pytest.raises(NoCurrentJob):
        await sleep("1h")


async def test_step_sync_in_an_async_task_is_refused_where_it_would_block(bench: Bench):
    @bench.app.task(retry=ONCE)
    async def work() -> None:
        step_sync(int, 1)

    job = await finish(bench, work)
    assert "use `await step(…)`" in job.history[0].message


async def test_a_step_takes_a_function(bench: Bench):
    @bench.app.task(retry=ONCE)
    async def work() -> None:
        await step(cast("Any", 1))

    job = await finish(bench, work)
    assert "step takes a function and its arguments, step(fetch, url), not int" in job.history[0].message
