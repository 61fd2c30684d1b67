"""Every way an attempt can end, and what the store then knows."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headrace.model.job import JobState
from headrace.model.outcome import Cancel, Dead, RetryAfter, Snooze
from headrace.task.codec import JobOptions
from headrace.task.context import NoCurrentJob, current_job
from headrace.task.retry import Retry
from headrace.worker.outcome_of import MAX_TRACEBACK
from worker.harness import Bench

AT_ONCE = Retry(max_attempts=3, base="0s", jitter=(1.0, 1.0))
ONCE = Retry(max_attempts=1)


async def test_a_task_that_returns_nothing_is_done(bench: Bench) -> None:
    seen: list[int] = []

    @bench.app.task
    async def note(number: int) -> None:
        seen.append(number)

    job = await bench.work(note, 7)
    assert (job.state, job.attempt, job.failures, seen) == (JobState.DONE, 1, 0, [7])


async def test_a_sync_task_runs_in_a_thread(bench: Bench) -> None:
    loop_thread = __import__("threading").get_ident()

    @bench.app.task
    def where() -> bool:
        return __import__("threading").get_ident() != loop_thread

    job = await bench.work(where)
    assert where.codec.decode_result(job.result) is True


async def test_a_result_is_kept(bench: Bench) -> None:
    @bench.app.task
    async def add(a: int, b: int) -> int:
        return a + b

    job = await bench.work(add, 2, 3)
    assert job.state is JobState.DONE
    assert add.codec.decode_result(job.result) == 5


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_failure_is_recorded_and_tried_again(bench: Bench, kind: str) -> None:
    @bench.app.task(retry=AT_ONCE)
    async def wobble_async() -> None:
        if current_job().attempt < 3:
            raise ValueError("not yet")

    @bench.app.task(retry=AT_ONCE)
    def wobble_thread() -> None:
        if current_job().attempt < 3:
            raise ValueError("not yet")

    wobble = wobble_async if kind == "async" else wobble_thread
    id = await bench.enqueue(wobble)
    async with bench.worker():
        job = await bench.reach(id, JobState.DONE)
    assert (job.attempt, job.failures) == (3, 2)
    assert [(f.attempt, f.kind, f.message) for f in job.history] == [
        (1, "ValueError", "not yet"),
        (2, "ValueError", "not yet"),
    ]
    trace = job.history[0].traceback
    assert 'raise ValueError("not yet")' in trace
    assert "headrace/worker" not in trace


async def test_max_attempts_of_the_task_and_of_the_job(bench: Bench) -> None:
    @bench.app.task(retry=AT_ONCE)
    async def never() -> None:
        raise ValueError

    usual, own = await bench.enqueue(never), await bench.enqueue(never, options=JobOptions(max_attempts=2))
    async with bench.worker():
        jobs = [await bench.reach(id, JobState.DEAD) for id in (usual, own)]
    assert [(job.failures, job.note) for job in jobs] == [(3, "max_attempts"), (2, "max_attempts")]


async def test_an_exception_that_never_helps_to_repeat(bench: Bench) -> None:
    @bench.app.task(retry=Retry(never=(LookupError,)))
    async def look() -> None:
        raise KeyError("gone")

    job = await bench.work(look)
    assert (job.state, job.note, job.failures) == (JobState.DEAD, "KeyError", 1)


async def test_only_these_exceptions_are_tried_again(bench: Bench) -> None:
    @bench.app.task(retry=Retry(only=(ConnectionError,), never=(BrokenPipeError,)))
    async def call(kind: str) -> None:
        raise {"reset": ConnectionResetError, "value": ValueError, "pipe": BrokenPipeError}[kind]("no")

    again = await bench.work(call, "reset")
    assert (again.state, again.failures) == (JobState.SCHEDULED, 1)
    for kind, name in (("value", "ValueError"), ("pipe", "BrokenPipeError")):
        job = await bench.work(call, kind)
        assert (job.state, job.note, job.failures) == (JobState.DEAD, name, 1)


async def test_snooze_is_no_failure(bench: Bench) -> None:
    @bench.app.task
    async def later() -> None:
        raise Snooze("1h")

    job = await bench.work(later)
    assert (job.state, job.failures, job.attempt) == (JobState.SCHEDULED, 0, 1)
    assert job.run_at is not None
    assert timedelta(minutes=59) < job.run_at - await bench.store.now() <= timedelta(hours=1)


async def test_retry_after_is_a_failure_with_its_own_delay(bench: Bench) -> None:
    @bench.app.task
    async def busy() -> None:
        raise RetryAfter("1h", "rate limited")

    job = await bench.work(busy)
    assert (job.state, job.failures, job.history[0].message) == (JobState.SCHEDULED, 1, "rate limited")
    assert job.run_at is not None
    assert job.run_at - await bench.store.now() > timedelta(minutes=59)


async def test_cancel_and_dead(bench: Bench) -> None:
    @bench.app.task
    async def pointless() -> None:
        raise Cancel("no longer wanted")

    @bench.app.task
    async def hopeless() -> None:
        raise Dead("the account is closed")

    job = await bench.work(pointless)
    assert (job.state, job.note) == (JobState.CANCELLED, "no longer wanted")
    job = await bench.work(hopeless)
    assert (job.state, job.note, job.failures) == (JobState.DEAD, "the account is closed", 1)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), MemoryError()])
async def test_what_would_end_a_program_only_fails_the_job(bench: Bench, error: BaseException) -> None:
    @bench.app.task(retry=ONCE)
    async def leave() -> None:
        raise error

    @bench.app.task(retry=ONCE)
    def leave_thread() -> None:
        raise error

    for task in (leave, leave_thread):
        job = await bench.work(task)
        assert (job.state, job.failures) == (JobState.DEAD, 1)
        assert type(error).__qualname__ in job.history[0].kind


async def test_arguments_that_do_not_fit_are_final(bench: Bench) -> None:
    @bench.app.task
    async def strict(number: int) -> None: ...

    job = await bench.work(strict.name)
    assert (job.state, job.note, job.history[0].kind) == (JobState.DEAD, "bad_arguments", "bad_arguments")


async def test_a_result_that_cannot_be_stored_is_final(bench: Bench) -> None:
    @bench.app.task
    async def odd() -> Any:
        return object()

    job = await bench.work(odd)
    assert (job.state, job.note) == (JobState.DEAD, "bad_result")


async def test_an_unknown_task_is_parked_not_failed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    ids = await bench.enqueue_many("nobody.knows", [(), ()])
    async with bench.worker() as worker:
        await worker.idle.wait()
    for id in ids:
        job = await bench.get(id)
        assert (job.state, job.failures, job.crashes) == (JobState.SCHEDULED, 0, 0)
        assert job.note == "no worker here knows task nobody.knows"
    assert sum("nobody.knows" in record.message for record in caplog.records) == 1


async def test_secrets_are_scrubbed_from_failures(bench: Bench) -> None:
    @bench.app.task(retry=ONCE, redact=["password"])
    async def login(user: str, password: str) -> None:
        raise ValueError(f"bad password {password} of {user}")

    failure = (await bench.work(login, "ann", "hunter2-secret")).history[0]
    assert "hunter2" not in failure.message + failure.traceback
    assert "of ann" in failure.message


async def test_a_huge_traceback_is_bounded(bench: Bench) -> None:
    @bench.app.task(retry=ONCE)
    async def loud() -> None:
        raise ValueError("x" * 1_000_000 + "the end")

    failure = (await bench.work(loud)).history[0]
    assert len(failure.traceback.encode()) <= MAX_TRACEBACK + 100
    assert failure.traceback.rstrip().endswith("the end")
    assert len(failure.message) < 3000


async def test_an_exception_that_cannot_be_shown(bench: Bench) -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    @bench.app.task(retry=ONCE)
    async def nasty() -> None:
        raise Nasty

    job = await bench.work(nasty)
    assert job.state is JobState.DEAD
    assert job.history[0].kind.endswith("Nasty")


async def test_context_of_the_job(bench: Bench) -> None:
    @bench.app.task(timeout="1h")
    async def look() -> list[str]:
        job = current_job()
        assert job.deadline is not None
        assert not job.cancelled
        return [str(job.id), job.task, job.queue, job.tenant, str(job.attempt)]

    job = await bench.work(look)
    assert look.codec.decode_result(job.result) == [str(job.id), look.name, "default", "", "1"]
    with pytest.raises(NoCurrentJob, match="inside a task"):
        current_job()


async def test_context_variables_do_not_leak_into_the_next_job(bench: Bench) -> None:
    from contextvars import ContextVar

    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    @bench.app.task
    async def use(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    @bench.app.task
    def use_in_thread(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    await bench.enqueue_many(use, [(str(n),) for n in range(20)])
    await bench.enqueue_many(use_in_thread, [(str(n),) for n in range(20)])
    async with bench.worker(concurrency=1) as worker:
        await worker.idle.wait()
    assert seen == ["nobody"] * 40


async def test_a_job_that_cancels_its_own_task_harms_nobody(bench: Bench) -> None:
    @bench.app.task(retry=ONCE)
    async def odd() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @bench.app.task
    async def fine() -> None:
        await asyncio.sleep(0)

    await bench.enqueue_many(odd, [()] * 3)
    ids = await bench.enqueue_many(fine, [()] * 20)
    async with bench.worker(concurrency=1):
        for id in ids:
            assert (await bench.reach(id, JobState.DONE)).failures == 0
