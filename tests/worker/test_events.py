"""Events: a task waits for a value without a slot, and gets the one that was signalled first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conftest import nothing_left_behind
from headrace.app import Headrace
from headrace.errors import ConfigError, JobDead, PayloadTooLarge, SerializationError, WaitTimeout
from headrace.model.gate import MAX_SIGNAL
from headrace.model.job import Job, JobId, JobState
from headrace.model.outcome import AWAITS
from headrace.store.memory import MemoryStore
from headrace.task.codec import JobOptions
from headrace.task.event import Event
from headrace.task.retry import Retry
from headrace.task.steps import step, step_sync
from headrace.testing import drain, use_memory
from worker import step_tasks
from worker.harness import Bench

AT_ONCE = Retry(max_attempts=5, base="0s")


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def bench(store: MemoryStore) -> AsyncIterator[Bench]:
    async with nothing_left_behind():
        yield Bench(store)


class Home:
    """Signals on the store of the bench."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def asignal(self, gate: Any, value: bytes, keep: timedelta) -> bool:
        return await self._store.signal(gate, value, keep)


@pytest.fixture
def paid(store: MemoryStore) -> Event[str]:
    return Event(Home(store), "order.paid", str, queue="default", keep=timedelta(days=1))


async def suspended(bench: Bench, id: JobId) -> Job:
    return await bench.reach(id, JobState.BLOCKED)


async def test_a_task_waits_without_a_slot_until_the_event_is_signalled(bench: Bench, paid: Event[str]):
    before: list[int] = []

    @bench.app.task
    async def work(order: int) -> str:
        await step(before.append, order)
        return await paid.wait(order)

    id = await bench.enqueue(work, 7)
    async with bench.worker() as worker:
        job = await suspended(bench, id)
        assert job.note == f"{AWAITS} event order.paid of 7"
        async with asyncio.timeout(60):
            await worker.idle.wait()
        assert await paid.asignal(7, "visa") is True
        assert await paid.asignal(7, "cash") is False
        job = await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert work.codec.decode_result(job.result) == "visa"
    assert (before, job.attempt, job.failures) == ([7], 2, 0)


async def test_a_signal_that_came_first_is_not_missed(bench: Bench, paid: Event[str]):
    @bench.app.task
    async def work() -> str:
        return await paid.wait(("order", 7))

    await paid.asignal(("order", 7), "early")
    id = await bench.enqueue(work)
    async with bench.worker():
        job = await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert work.codec.decode_result(job.result) == "early"
    assert job.attempt == 1


async def test_the_first_answer_stays_in_every_later_attempt(bench: Bench, paid: Event[str]):
    seen: list[str] = []

    @bench.app.task(retry=AT_ONCE)
    async def work() -> None:
        seen.append(await paid.wait("k"))
        if len(seen) < 3:
            raise ConnectionError

    await paid.asignal("k", "once")
    id = await bench.enqueue(work)
    async with bench.worker():
        await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert seen == ["once"] * 3


@pytest.mark.parametrize("form", ["async", "thread"])
async def test_lazy_steps_are_written_before_the_task_waits(form: str, bench: Bench, paid: Event[str]):
    ran: list[int] = []

    @bench.app.task
    async def work(order: int) -> str:
        await step.using(lazy=True)(ran.append, order)
        return await paid.wait(order)

    @bench.app.task
    def plain(order: int) -> str:
        step_sync.using(lazy=True)(ran.append, order)
        return paid.wait_sync(order)

    id = await bench.enqueue(work if form == "async" else plain, 7)
    async with bench.worker():
        await suspended(bench, id)
        assert [one.name for one in await bench.store.read_steps(id)] == ["list.append"]
        await paid.asignal(7, "visa")
        await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert ran == [7]


@pytest.mark.parametrize("form", ["async", "thread"])
async def test_lazy_steps_are_written_before_an_answer_that_was_there(form: str, bench: Bench, paid: Event[str]):
    ran: list[int] = []

    @bench.app.task
    async def work(order: int) -> str:
        await step.using(lazy=True)(ran.append, order)
        return await paid.wait(order)

    @bench.app.task
    def plain(order: int) -> str:
        step_sync.using(lazy=True)(ran.append, order)
        return paid.wait_sync(order)

    await paid.asignal(7, "visa")
    id = await bench.enqueue(work if form == "async" else plain, 7)
    async with bench.worker():
        await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert [one.name for one in await bench.store.read_steps(id)] == ["list.append", "event order.paid[7]"]


async def test_a_lazy_step_that_ends_while_its_task_waits_is_written_at_once(bench: Bench, paid: Event[str]):
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await goes_on.wait()

    @bench.app.task
    async def work(order: int) -> None:
        await asyncio.gather(paid.wait(order), step.using(lazy=True)(slow))

    id = await bench.enqueue(work, 7)
    async with bench.worker():
        async with asyncio.timeout(60):
            await begun.wait()
        goes_on.set()
        await suspended(bench, id)
    assert len(await bench.store.read_steps(id)) == 1


async def test_a_step_does_not_wait_for_an_event(bench: Bench, paid: Event[str]):
    @bench.app.task(retry=Retry(max_attempts=1))
    async def work(order: int) -> str:
        return await step(paid.wait, order)

    id = await bench.enqueue(work, 7)
    async with bench.worker():
        job = await bench.reach(id, JobState.DEAD)
    assert "event order.paid: this works in the task itself, not inside one of its steps" in job.history[0].message


async def test_none_is_a_value(bench: Bench, store: MemoryStore):
    nothing: Event[None] = Event(Home(store), "go", type(None), queue="default", keep=timedelta(days=1))

    @bench.app.task
    async def work() -> str:
        await nothing.wait("x")
        return "went"

    await nothing.asignal("x", None)
    id = await bench.enqueue(work)
    async with bench.worker():
        job = await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert work.codec.decode_result(job.result) == "went"


async def test_the_first_of_two_events_is_enough_for_each_turn(bench: Bench, paid: Event[str], store: MemoryStore):
    shipped: Event[str] = Event(Home(store), "order.shipped", str, queue="default", keep=timedelta(days=1))

    @bench.app.task
    async def work() -> list[str]:
        return list(await asyncio.gather(paid.wait(1), shipped.wait(1)))

    id = await bench.enqueue(work)
    async with bench.worker():
        await suspended(bench, id)
        await shipped.asignal(1, "dhl")
        await paid.asignal(1, "visa")
        job = await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert work.codec.decode_result(job.result) == ["visa", "dhl"]


async def test_a_task_goes_on_with_the_first_of_two_waits_and_cancels_the_other(bench: Bench, paid: Event[str]):
    begun, goes_on = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def work() -> str:
        waits = {asyncio.create_task(paid.wait(number)) for number in (1, 2)}
        done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        begun.set()
        await goes_on.wait()
        return done.pop().result()

    id = await bench.enqueue(work)
    async with bench.worker(), asyncio.timeout(60):
        await suspended(bench, id)
        await paid.asignal(2, "visa")
        await begun.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        goes_on.set()
        job = await bench.reach(id, JobState.DONE, JobState.DEAD, JobState.BLOCKED)
    assert (job.state, job.attempt) == (JobState.DONE, 2)
    assert work.codec.decode_result(job.result) == "visa"


async def test_a_sync_task_waits_in_a_thread(bench: Bench, paid: Event[str]):
    @bench.app.task
    def work() -> str:
        return paid.wait_sync(3)

    id = await bench.enqueue(work)
    async with bench.worker():
        await suspended(bench, id)
        await paid.asignal(3, "thread")
        job = await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert work.codec.decode_result(job.result) == "thread"


async def test_a_task_in_a_process_waits(bench: Bench, store: MemoryStore, tmp_path: Path):
    event: Event[str] = Event(Home(store), "process.go", str, queue="default", keep=timedelta(days=1))
    bench.app.tasks[step_tasks.waits_in_process.name] = step_tasks.waits_in_process
    id = await bench.enqueue(step_tasks.waits_in_process, str(tmp_path / "log"))
    async with bench.worker():
        await suspended(bench, id)
        await event.asignal("k", "child")
        await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert (tmp_path / "log").read_text() == "child "


async def test_a_tenant_waits_for_its_own_events_only(bench: Bench, paid: Event[str]):
    @bench.app.task
    async def work() -> str:
        return await paid.wait(9)

    id = await bench.enqueue(work, options=JobOptions(tenant="acme"))
    async with bench.worker():
        await suspended(bench, id)
        await paid.asignal(9, "of nobody")
        await paid.asignal(9, "of another", tenant="globex")
        assert (await suspended(bench, id)).attempt == 1
        await paid.asignal(9, "of acme", tenant="acme")
        job = await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert work.codec.decode_result(job.result) == "of acme"


# ── with the testing kit ─────────────────────────────────────────────────────

app = Headrace("memory://")
approved = app.event("payout.approved", int)


@app.task
async def pay_out(id: int) -> str:
    try:
        amount = await approved.wait(id, timeout="3d")
    except WaitTimeout:
        return "no answer"
    return f"paid {amount}"


def test_the_kit_runs_a_job_on_when_its_event_is_signalled():
    with use_memory(app):
        handle = pay_out.enqueue(42)
        [ran] = drain(app)
        assert (ran.outcome, ran.state) == ("snoozed", JobState.BLOCKED)
        assert approved.signal(42, 100) is True
        assert approved.signal(42, 200) is False
        assert len(drain(app)) == 1
        assert handle.result() == "paid 100"


def test_a_wait_ends_with_its_time_limit_and_a_late_signal_changes_nothing():
    with use_memory(app) as stand:
        handle = pay_out.enqueue(43)
        drain(app)
        stand.clock.move("2d")
        assert drain(app) == []
        stand.clock.move("1d")
        assert len(drain(app)) == 1
        assert handle.result() == "no answer"
        assert approved.signal(43, 1) is True


@app.task(retry=Retry(max_attempts=5))
async def pay_out_in_time(id: int) -> int:
    return await approved.wait(id, timeout="3d")


def test_a_task_that_does_not_catch_the_time_limit_is_dead_at_once():
    with use_memory(app) as stand:
        handle = pay_out_in_time.enqueue(44)
        drain(app)
        stand.clock.move("3d")
        [ran] = drain(app)
        assert (ran.state, ran.attempt) == (JobState.DEAD, 2)
        with pytest.raises(JobDead, match="not signalled in time"):
            handle.result()


def test_bad_keys_and_values_are_refused_and_nothing_is_stored():
    with use_memory(app):
        wrong: tuple[Any, ...] = (
            1.5,
            True,
            None,
            "",
            "x" * 10_000,
            (),
            ("a", 1.5),
            ("a", True),
            (("a",), 1),
            ("x" * 300,),
            10**5000,
            ("a", 10**5000),
        )
        for key in wrong:
            with pytest.raises(ConfigError) as error:
                approved.signal(key, 1)
            assert len(str(error.value)) < 200
        large = app.event("large", bytes)
        with pytest.raises(PayloadTooLarge):
            large.signal("k", b"x" * (MAX_SIGNAL + 1))
        with pytest.raises(SerializationError, match=r"value: does not fit the type of event payout\.approved"):
            approved.signal("k", "yes")  # type: ignore[arg-type]
        assert approved.signal("k", 1)
        with pytest.raises(ConfigError, match="is not a valid event name"):
            app.event("no spaces", int)
        with pytest.raises(ConfigError, match="declared with type <class 'bytes'> and with <class 'int'>"):
            app.event("large", int)
