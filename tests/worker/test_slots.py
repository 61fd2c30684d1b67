"""Whatever a task does to its slot, the slot goes on and the job has an outcome."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest

from headrace.model.job import JobState
from headrace.task.context import current_job
from headrace.task.retry import Retry
from worker.harness import Bench

ONCE = Retry(max_attempts=1)


class Touchy:
    """As numpy's arrays: comparing it gives no answer."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = object.__hash__


touchy: ContextVar[object] = ContextVar("touchy")


armed: list[bool] = []


class Exiting(msgspec.Struct):
    """A type that ends the program when a worker decodes it."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0 and armed:
            raise SystemExit


async def test_a_generator_exit_fails_its_job_and_frees_the_slot(bench: Bench) -> None:
    @bench.app.task(timeout="1s", retry=ONCE)
    async def leave() -> None:
        raise GeneratorExit

    @bench.app.task
    async def fine() -> None: ...

    bad = await bench.enqueue_many(leave, [()] * 6)
    good = await bench.enqueue_many(fine, [()] * 6)
    async with bench.worker(concurrency=2) as worker:
        for id in good:
            await bench.reach(id, JobState.DONE)
        jobs = [await bench.reach(id, JobState.DEAD) for id in bad]
        await worker.idle.wait()
        assert worker.running == 0
    assert {job.history[0].kind for job in jobs} == {"GeneratorExit"}


async def test_a_context_variable_that_cannot_be_compared(bench: Bench) -> None:
    reset = touchy.set(Touchy())
    try:
        seen: list[object] = []

        @bench.app.task
        async def work() -> None:
            seen.append(touchy.get())
            touchy.set(Touchy())

        ids = await bench.enqueue_many(work, [()] * 20)
        async with bench.worker(concurrency=4) as worker:
            for id in ids:
                await bench.reach(id, JobState.DONE)
            await worker.idle.wait()
            assert worker.running == 0
        # Every job saw the variable as it was when the worker started, never another job's.
        assert all(each is seen[0] for each in seen)
    finally:
        touchy.reset(reset)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_type_that_ends_the_program_while_it_is_decoded(bench: Bench, kind: str) -> None:
    async def in_the_loop(value: Exiting) -> None: ...

    def in_a_thread(value: Exiting) -> None: ...

    task: Any = bench.app.task(retry=ONCE)(in_the_loop if kind == "async" else in_a_thread)
    ids = await bench.enqueue_many(task, [(Exiting(-1),)] * 6)
    fine = await bench.enqueue_many(task, [(Exiting(1),)] * 6)
    armed.append(True)
    try:
        async with bench.worker(concurrency=2) as worker:
            for id in ids:
                await bench.reach(id, JobState.DEAD)
            for id in fine:
                await bench.reach(id, JobState.DONE)
            await worker.idle.wait()
    finally:
        armed.clear()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_outcome_that_the_worker_cannot_take_fails_the_attempt(
    bench: Bench, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.worker import settler

    real = settler.settlement_of

    def settlement_of(attempt: Any, outcome: Any) -> Any:
        if getattr(outcome, "result", None) is not None:
            raise ZeroDivisionError("a bug of ours")
        return real(attempt, outcome)

    monkeypatch.setattr(settler, "settlement_of", settlement_of)

    async def in_the_loop() -> int:
        return 1

    def in_a_thread() -> int:
        return 1

    task: Any = bench.app.task(retry=ONCE)(in_the_loop if kind == "async" else in_a_thread)
    ids = await bench.enqueue_many(task, [()] * 6)
    async with bench.worker(concurrency=2) as worker:
        for id in ids:
            assert (await bench.reach(id, JobState.DEAD)).history[0].kind == "ZeroDivisionError"
        await worker.idle.wait()
        assert worker.running == 0


async def test_a_slot_can_still_be_interrupted_after_a_job_that_escaped(bench: Bench) -> None:
    started = asyncio.Event()

    @bench.app.task(retry=ONCE)
    async def leave() -> None:
        raise GeneratorExit

    @bench.app.task
    async def long() -> None:
        started.set()
        await asyncio.sleep(3600)

    await bench.enqueue(leave)
    id = await bench.enqueue(long)
    async with bench.worker(concurrency=1):
        async with asyncio.timeout(60):
            await started.wait()
        await bench.store.cancel([id])
        await bench.reach(id, JobState.CANCELLED)


async def test_context_is_that_of_the_job_after_an_escape(bench: Bench) -> None:
    seen: list[Any] = []

    @bench.app.task(retry=ONCE)
    async def work(number: int) -> None:
        seen.append(current_job().id)
        if number % 2:
            raise GeneratorExit

    ids = await bench.enqueue_many(work, [(number,) for number in range(8)])
    async with bench.worker(concurrency=1):
        for id in ids:
            await bench.reach(id, JobState.DONE, JobState.DEAD)
    assert seen == ids
