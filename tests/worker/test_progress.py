"""`job.progress` and `job.log`: what a running task says reaches the store soon, seldom, and before the job's end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from conftest import nothing_left_behind
from headrace.errors import ConfigError, Unavailable
from headrace.model.job import JobId, JobState
from headrace.model.lease import MAX_LOG, Report, Token, new_worker_id
from headrace.model.outcome import Settlement
from headrace.store.memory import MemoryStore
from headrace.task.context import JobLogHandler, current_job
from headrace.task.retry import Retry
from worker import talkative_tasks
from worker.harness import Bench, until

ONCE = Retry(max_attempts=1)


class Scribe(MemoryStore):
    """Notes in which order reports and settlements come, and can be out of order itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.reports: list[Report] = []
        self.failures = 0

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        if self.failures:
            self.failures -= 1
            self.calls.append("failed")
            raise Unavailable("not now")
        self.calls.append("report")
        await asyncio.sleep(0)
        refused = await super().report(token, reports)
        self.reports += [report for _, report in reports]
        return refused

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        self.calls.append("settle")
        return await super().settle(token, settlements)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with nothing_left_behind():
        yield Bench(Scribe())


def scribe(bench: Bench) -> Scribe:
    assert isinstance(bench.store, Scribe)
    return bench.store


async def said(bench: Bench, id: JobId) -> tuple[float | None, str | None, list[str]]:
    job = await bench.get(id)
    return job.progress, job.doing, [line.text for line in job.log]


async def test_progress_is_seen_while_the_task_runs(bench: Bench) -> None:
    gone_on = asyncio.Event()

    @bench.app.task
    async def work() -> None:
        job = current_job()
        await job.progress(0.4, "resizing")
        job.log("a line")
        await gone_on.wait()

    id = await bench.enqueue(work)
    async with bench.worker():
        await until(lambda: scribe(bench).reports)
        assert await said(bench, id) == (0.4, "resizing", ["a line"])
        assert (await bench.get(id)).state is JobState.RUNNING
        gone_on.set()
        job = await bench.reach(id, JobState.DONE)
    assert (job.progress, job.doing) == (0.4, "resizing")


async def test_the_last_word_comes_before_the_end(bench: Bench) -> None:
    @bench.app.task
    async def work() -> None:
        for done in range(101):
            await current_job().progress(done / 100, f"{done} of 100")

    job = await bench.work(work)
    assert (job.state, job.progress, job.doing) == (JobState.DONE, 1.0, "100 of 100")
    assert scribe(bench).calls[-2:] == ["report", "settle"]
    assert len(scribe(bench).reports) <= 3


async def test_a_failing_task_was_heard_too(bench: Bench) -> None:
    @bench.app.task(retry=ONCE)
    async def work() -> None:
        current_job().log("about to fail")
        raise ValueError

    job = await bench.work(work)
    assert job.state is JobState.DEAD
    assert [line.text for line in job.log] == ["about to fail"]


async def test_tasks_in_threads(bench: Bench) -> None:
    gone_on = threading.Event()

    @bench.app.task
    def work() -> int:
        job = current_job()
        for done in range(1000):
            job.progress_sync(done / 1000)
            job.log(f"line {done}")
        assert gone_on.wait(60)
        job.progress_sync(1, "done")
        return 7

    id = await bench.enqueue(work)
    async with bench.worker():
        await until(lambda: scribe(bench).reports)
        gone_on.set()
        await bench.reach(id, JobState.DONE)
    progress, doing, lines = await said(bench, id)
    assert (progress, doing) == (1.0, "done")
    assert len(lines) == MAX_LOG
    assert lines[-1] == "line 999"
    assert len(scribe(bench).reports) < 20


async def test_tasks_in_processes(bench: Bench, tmp_path: Path) -> None:
    bench.app = talkative_tasks.app
    go_on = tmp_path / "go-on"
    id = await bench.enqueue(talkative_tasks.talk, str(go_on))
    async with bench.worker():
        await until(lambda: len(scribe(bench).reports) and len(scribe(bench).reports[-1].lines))
        assert (await bench.get(id)).progress == 0.25
        go_on.touch()
        job = await bench.reach(id, JobState.DONE)
    assert (job.progress, job.doing) == (1.0, "in a process")
    assert [line.text for line in job.log] == ["one", "\\ud800 two"]
    second = await bench.work(talkative_tasks.talk_in_a_loop)
    assert (second.progress, second.doing, len(second.log)) == (0.5, "looped", 1)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_a_task_logs_is_copied_to_its_job(bench: Bench, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, handler = logging.getLogger("shop.copied"), JobLogHandler()
    # The handler of pytest raises an error for a line that cannot be made, where other handlers print it.
    monkeypatch.setattr(own, "propagate", False)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    async def body(password: str) -> None:
        own.warning("wrong: %s", password)
        logging.getLogger("shop.copied.more").error("more")
        logging.getLogger("headrace.worker").warning("headrace's own line")

    def plain(password: str) -> None:
        own.warning("wrong: %s", password)
        own.error("%d is no number", "seven")
        own.error("more")

    work = bench.app.task(redact=["password"])(body if kind == "async" else plain)
    for name in ("shop.copied", "headrace.worker"):
        logging.getLogger(name).addHandler(handler)
    own.warning("outside of a task")
    try:
        job = await bench.work(work, "hunter2")
    finally:
        for name in ("shop.copied", "headrace.worker"):
            logging.getLogger(name).removeHandler(handler)
    assert job.state is JobState.DONE
    assert [line.text for line in job.log] == ["WARNING wrong: •••", "ERROR more"]


async def test_what_a_task_logs_in_a_process_is_copied_to_its_job(bench: Bench) -> None:
    bench.app = talkative_tasks.app
    job = await bench.work(talkative_tasks.complain, "hunter2")
    assert [line.text for line in job.log] == ["wrong: •••"]


async def test_a_thread_that_outlives_its_process_task_is_not_heard(bench: Bench) -> None:
    bench.app = talkative_tasks.app
    first, second = await bench.enqueue(talkative_tasks.outlived), await bench.enqueue(talkative_tasks.silent)
    async with bench.worker(concurrency=1) as worker:
        async with asyncio.timeout(60):
            await worker.idle.wait()
    assert (await said(bench, first))[2][0] == "mine"
    assert (await said(bench, second)) == (None, None, [])


async def test_a_process_task_may_snooze(bench: Bench) -> None:
    bench.app = talkative_tasks.app
    job = await bench.work(talkative_tasks.put_off)
    assert (job.state, job.failures) == (JobState.SCHEDULED, 0)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), True, "half", None])
async def test_progress_is_from_0_to_1(bench: Bench, fraction: float) -> None:
    @bench.app.task(retry=ONCE)
    async def work() -> None:
        with pytest.raises(ConfigError, match="a number from 0 to 1"):
            await current_job().progress(fraction)

    assert (await bench.work(work)).state is JobState.DONE


async def test_secrets_are_not_reported(bench: Bench) -> None:
    @bench.app.task(redact=["password"])
    async def work(password: str) -> None:
        await current_job().progress(0.1, f"logging in with {password}")
        current_job().log(f"{password} it is")

    job = await bench.work(work, "hunter2")
    assert job.doing == "logging in with •••"
    assert [line.text for line in job.log] == ["••• it is"]


async def test_long_texts_lose_their_middle(bench: Bench) -> None:
    @bench.app.task
    async def work() -> None:
        await current_job().progress(0, "x" * 100_000)
        current_job().log("y" * 100_000)

    job = await bench.work(work)
    assert job.doing is not None
    assert len(job.doing) < 1000
    assert len(job.log[0].text) < 3000


async def test_a_store_that_is_away_hears_it_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.worker")
    scribe(bench).failures = 2
    heard = asyncio.Event()

    @bench.app.task
    async def work() -> None:
        current_job().log("first")
        await current_job().progress(0.1)
        await heard.wait()

    id = await bench.enqueue(work)
    async with bench.worker():
        await until(lambda: scribe(bench).calls.count("failed") == 2)
        await until(lambda: scribe(bench).reports)
        assert await said(bench, id) == (0.1, None, ["first"])
        heard.set()
        await bench.reach(id, JobState.DONE)
    assert sum("reporting progress failed" in record.message for record in caplog.records) == 1
    assert any("reporting progress works again" in record.message for record in caplog.records)


async def test_a_store_that_does_not_take_reports_gets_the_results_all_the_same(bench: Bench) -> None:
    scribe(bench).failures = 10_000

    @bench.app.task
    async def work() -> int:
        await current_job().progress(0.5)
        return 1

    assert (await bench.work(work)).state is JobState.DONE


async def test_a_refused_report_means_that_the_lease_is_lost(bench: Bench) -> None:
    stopped = asyncio.Event()
    go_on = asyncio.Event()
    starts: list[int] = []

    @bench.app.task
    async def work() -> None:
        starts.append(current_job().attempt)
        if len(starts) > 1:
            return
        try:
            await go_on.wait()
            current_job().log("too late")
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            stopped.set()
            raise

    id = await bench.enqueue(work)
    # No heartbeat tells this worker in time, and no other worker reaps.
    async with bench.worker(lease="2h", heartbeat="1h", reap="1h") as worker:
        await until(lambda: starts)
        await bench.store.abandon(worker.id, "declared dead")
        [orphan] = await bench.store.reap(new_worker_id(), bench.settings.lease)
        go_on.set()
        async with asyncio.timeout(60):
            await stopped.wait()
        assert (await said(bench, id))[2] == []
        assert orphan.jobs[0][1].id == id
        await until(lambda: worker.counters.lost == 1)
