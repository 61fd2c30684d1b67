"""What the worker's log says of failed attempts and dead jobs, and of jobs that do not end when told to."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from headrace.app import Headrace
from headrace.model.job import JobState
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import Dead, Snooze
from headrace.settings import Settings
from headrace.task.retry import Retry
from worker import process_tasks
from worker.harness import WAIT, Bench, until


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == event]


async def test_a_failed_attempt_and_a_dead_job_leave_a_line_each(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.app.task(retry=Retry(max_attempts=2, base="10ms"), redact=["card"])
    async def pay(card: str) -> None:
        raise ValueError(f"the bank\x1b[31m refuses\n{card}")

    id = await bench.enqueue(pay, "open sesame")
    async with bench.worker():
        await bench.reach(id, JobState.DEAD)
    [failed], [dead] = lines(caplog, "attempt.failed"), lines(caplog, "job.dead")
    assert failed.levelno == logging.WARNING
    assert f"job {id} of task {pay.name} failed on attempt 1: ValueError: the bank" in failed.getMessage()
    assert "; next try in " in failed.getMessage()
    assert 0 < vars(failed)["retry_in"] < 60
    assert "\n" not in failed.getMessage()
    assert "\x1b" not in failed.getMessage()
    assert dead.levelno == logging.ERROR
    assert f"job {id} of task {pay.name} is dead (max_attempts) after attempt 2: ValueError" in dead.getMessage()
    assert "in pay" in dead.getMessage()
    assert "sesame" not in caplog.text


async def test_ends_on_purpose_are_no_failures(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    @bench.app.task
    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Snooze("0s")

    id = await bench.enqueue(work)
    async with bench.worker():
        await bench.reach(id, JobState.DONE)
    assert not lines(caplog, "attempt.failed")
    assert not lines(caplog, "job.dead")


async def test_a_death_by_crashes_leaves_a_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    id = await bench.enqueue(process_tasks.crash)
    async with bench.worker():
        await bench.reach(id, JobState.DEAD)
    [dead] = lines(caplog, "job.dead")
    assert "SIGSEGV" in dead.getMessage()
    assert len(lines(caplog, "attempt.failed")) == 2


async def test_a_death_found_by_the_janitor_leaves_a_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    @bench.app.task(retry=Retry(max_crashes=1))
    async def work() -> None: ...

    id = await bench.enqueue(work)
    dead = new_worker_id()
    for _ in range(2):  # the second time alone
        assert await bench.store.claim(Ask(dead, ("default",), 1, timedelta(hours=1), new_token())) is not None
        await bench.store.abandon(dead, "killed by SIGKILL")
        async with bench.worker() as worker:
            worker.quiet()
            await bench.reach(id, JobState.READY, JobState.DEAD)
    [record] = lines(caplog, "job.dead")
    assert "worker_lost" in record.getMessage()


async def test_many_failures_do_not_drown_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.worker.failure_log.PER_SECOND", 0.0)

    @bench.app.task
    async def refuse() -> None:
        raise Dead("no")

    ids = await bench.enqueue_many(refuse, [()] * 500)
    async with bench.worker() as worker:
        for id in ids:
            await bench.reach(id, JobState.DEAD)
        assert len(lines(caplog, "job.dead")) == 50
        monkeypatch.setattr("headrace.worker.failure_log.PER_SECOND", 1e9)
        last = await bench.enqueue(refuse)
        await bench.reach(last, JobState.DEAD)
        await worker.idle.wait()
    assert "(and 450 more that are not in this log)" in lines(caplog, "job.dead")[-1].getMessage()


# ── jobs that go on ─────────────────────────────────────────────────────────


async def test_a_task_that_swallows_its_cancellation_does_not_keep_its_slot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.worker.executor.SWALLOWED", 0.02)
    end = asyncio.Event()

    @bench.app.task(timeout="20ms", retry=Retry(max_attempts=1))
    async def stubborn() -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    @bench.app.task
    async def quick() -> None: ...

    stuck = await bench.enqueue_many(stubborn, [()] * 2)
    async with bench.worker(concurrency=2) as worker:
        for id in stuck:
            await bench.reach(id, JobState.RUNNING)
        ids = await bench.enqueue_many(quick, [()] * 10)
        for id in ids:
            await bench.reach(id, JobState.DONE)
        assert [(await bench.get(id)).state for id in stuck] == [JobState.RUNNING] * 2
        end.set()
        for id in stuck:
            assert (await bench.reach(id, JobState.DEAD)).history[0].kind == "timeout"
        async with asyncio.timeout(WAIT):
            await worker.idle.wait()
        await until(lambda: worker.running == 0)
    assert "another slot takes its place" in caplog.text


def test_doctor_names_tasks_without_a_timeout() -> None:
    app = Headrace("memory://")

    @app.task(name="endless")
    async def endless() -> None: ...

    @app.task(name="bounded", timeout="5m")
    async def bounded() -> None: ...

    [problem] = [each for each in Settings().problems(app.tasks) if each.about == "timeout"]
    assert "endless" in problem.message
    assert "bounded" not in problem.message
