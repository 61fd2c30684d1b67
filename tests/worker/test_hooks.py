"""Hooks: what an app runs when a worker starts and stops, around each attempt, after a failure and at events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    AsyncCall,
    ConfigError,
    Failure,
    FollowUp,
    Headrace,
    HookFailed,
    JobContext,
    JobState,
    Retry,
    RetryAfter,
    Snooze,
    SyncCall,
    WorkerInfo,
    current_job,
)
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import Again
from headrace.settings import Settings
from headrace.supervisor.page import SharedPageView
from headrace.worker import Worker
from headrace.worker.shared_page import SharedPage
from worker import hook_tasks
from worker.harness import WAIT, Bench, until

ONCE = Retry(max_attempts=1)

# ── the life of a worker ─────────────────────────────────────────────────────


async def test_hooks_run_in_order_and_their_ends_in_reverse(bench: Bench) -> None:
    app, seen = bench.app, list[str]()

    @app.on_start
    def first() -> None:
        seen.append("first")

    @app.on_start
    async def second(info: WorkerInfo) -> None:
        seen.append(f"second {','.join(info.queues)} {info.concurrency} {info.slot}")

    @app.lifespan
    async def third(info: WorkerInfo) -> AsyncIterator[None]:
        seen.append(f"enter third of {info.name}")
        yield
        seen.append("exit third")

    @app.lifespan
    def fourth() -> Iterator[None]:
        seen.append("enter fourth")
        yield
        seen.append("exit fourth")

    @app.lifespan
    @contextlib.asynccontextmanager
    async def fifth() -> AsyncGenerator[None]:
        seen.append("enter fifth")
        yield
        seen.append("exit fifth")

    @app.on_stop
    def sixth(info: WorkerInfo) -> None:
        seen.append(f"sixth {info.slot}")

    @app.on_stop
    async def seventh() -> None:
        seen.append("seventh")

    @app.task
    async def work() -> None:
        seen.append("work")

    await bench.work(work)
    entered = f"enter third of {os.uname().nodename}:{os.getpid()}"
    before = ["first", "second default 10 False", entered, "enter fourth", "enter fifth"]
    assert seen == [*before, "work", "seventh", "sixth False", "exit fifth", "exit fourth", "exit third"]
    assert (first.__name__, fifth.__name__) == ("first", "fifth"), "a decorator returns the function"


async def test_the_first_claim_waits_for_the_start_hooks(bench: Bench) -> None:
    app, gate, reached = bench.app, asyncio.Event(), asyncio.Event()

    @app.on_start
    async def slow() -> None:
        reached.set()
        await gate.wait()

    @app.task
    async def work() -> None:
        assert gate.is_set()

    id = await bench.enqueue(work)
    starting = asyncio.create_task(bench.work(work))
    async with asyncio.timeout(WAIT):
        await reached.wait()
        assert (await bench.get(id)).state is JobState.READY
        gate.set()
        await starting
    assert (await bench.get(id)).state is JobState.DONE


async def test_sync_hooks_of_a_worker_share_one_thread_beside_the_event_loop(bench: Bench) -> None:
    app, threads = bench.app, list[int]()

    @app.lifespan
    def enter() -> Iterator[None]:
        threads.append(threading.get_ident())
        yield
        threads.append(threading.get_ident())

    @app.on_stop
    def leave() -> None:
        threads.append(threading.get_ident())

    async with bench.worker():
        pass
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


async def test_an_async_lifespan_begins_and_ends_in_one_asyncio_task(bench: Bench) -> None:
    tasks: list[object] = []

    @bench.app.lifespan
    async def scope() -> AsyncIterator[None]:
        tasks.append(asyncio.current_task())
        yield
        tasks.append(asyncio.current_task())

    async with bench.worker():
        pass
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize(
    "error", [ConnectionError("no route"), SystemExit("no route"), asyncio.CancelledError("no route")]
)
async def test_a_failing_start_hook_ends_the_worker_and_undoes_the_hooks_before_it(
    bench: Bench, error: BaseException
) -> None:
    app, seen = bench.app, list[str]()

    @app.lifespan
    async def scope() -> AsyncIterator[None]:
        seen.append("enter")
        yield
        seen.append("exit")

    @app.on_stop
    def undo() -> None:
        seen.append("undo")

    @app.on_start
    async def broken() -> None:
        raise error

    @app.on_start
    def later() -> None:
        seen.append("later")

    @app.on_stop
    def undo_later() -> None:
        seen.append("undo later")

    @app.task
    async def work() -> None:
        seen.append("work")

    await bench.enqueue(work)
    with pytest.raises(HookFailed, match=r"the on_start hook .*broken failed: .*: no route") as caught:
        async with bench.worker():
            pass
    assert caught.value.__cause__ is error
    assert seen == ["enter", "undo", "exit"]


async def test_a_sync_start_hook_may_raise_what_a_future_cannot_carry(bench: Bench) -> None:
    @bench.app.on_start
    def empty() -> None:
        next(iter(()))

    with pytest.raises(HookFailed, match="empty failed: RuntimeError: the hook raised StopIteration"):
        async with bench.worker():
            pass


async def test_a_failing_stop_hook_is_logged_and_the_others_run(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    app, seen = bench.app, list[str]()

    @app.on_stop
    def last() -> None:
        seen.append("last")

    @app.lifespan
    async def broken_exit() -> AsyncIterator[None]:
        yield
        raise ValueError("broken exit")

    @app.on_stop
    def broken_stop() -> None:
        raise SystemExit(3)

    @app.on_stop
    def first() -> None:
        seen.append("first")

    async with bench.worker():
        pass
    assert seen == ["first", "last"]
    failed = [record.getMessage() for record in caplog.records if "hook" in record.getMessage()]
    assert [("broken_stop" in text, "broken_exit" in text) for text in failed] == [(True, False), (False, True)]


async def test_a_start_that_is_cancelled_undoes_its_hooks(bench: Bench) -> None:
    app, seen, reached = bench.app, list[str](), asyncio.Event()

    @app.on_stop
    def undo() -> None:
        seen.append("undo")

    @app.on_start
    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with bench.worker():
            pass

    @app.task
    async def work() -> None: ...

    serving = asyncio.create_task(serve())
    async with asyncio.timeout(WAIT):
        await reached.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    assert seen == ["undo"]


async def test_a_worker_in_a_hurry_interrupts_its_start_hooks(bench: Bench) -> None:
    app, reached = bench.app, asyncio.Event()

    @app.on_start
    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    @app.task
    async def work() -> None: ...

    worker = Worker(app.tasks, bench.store, bench.settings, duties=app.duties)
    starting = asyncio.create_task(worker.start())
    async with asyncio.timeout(WAIT):
        await reached.wait()
        worker.hurry()
        with pytest.raises(HookFailed, match="hang"):
            await starting


async def test_a_worker_can_be_made_quiet_while_it_starts(bench: Bench) -> None:
    app, reached, gate = bench.app, asyncio.Event(), asyncio.Event()

    @app.on_start
    async def slow() -> None:
        reached.set()
        await gate.wait()

    @app.task
    async def work() -> None: ...

    id = await bench.enqueue(work)
    worker = Worker(app.tasks, bench.store, bench.settings, duties=app.duties)
    starting = asyncio.create_task(worker.start())
    async with asyncio.timeout(WAIT):
        await reached.wait()
        worker.quiet()
        gate.set()
        await starting
        await worker.drain()
    assert worker.counters.claimed == 0
    assert (await bench.get(id)).state is JobState.READY


async def test_stop_hooks_run_when_the_last_job_has_ended(bench: Bench) -> None:
    app, seen, reached = bench.app, list[str](), asyncio.Event()

    @app.on_stop
    async def close() -> None:
        seen.append("close")

    @app.task
    async def work() -> None:
        reached.set()
        await asyncio.sleep(0.05)
        seen.append("work")

    await bench.enqueue(work)
    async with bench.worker(drain=timedelta(seconds=WAIT)), asyncio.timeout(WAIT):
        await reached.wait()
    assert seen == ["work", "close"]


def test_a_hook_that_cannot_be_called_is_refused() -> None:
    app = Headrace("memory://")

    def two(one: object, two: object) -> None: ...

    async def no_scope() -> None: ...

    async def one_argument(job: JobContext) -> None: ...

    async def generator(job: JobContext, call: AsyncCall) -> AsyncIterator[None]:
        yield

    wrong: list[tuple[Callable[[Any], Any], Any]] = [
        (app.on_start, two),
        (app.on_stop, two),
        (app.lifespan, two),
        (app.lifespan, no_scope),
        (app.middleware, one_argument),
        (app.middleware, generator),
        (app.on_failure, two),
        (app.on_event, one_argument),
        (app.on_start, "open"),
    ]
    for declare, function in wrong:
        with pytest.raises(ConfigError, match=r"\.two|\.no_scope|\.one_argument|\.generator|'open'"):
            declare(function)


# ── middleware ───────────────────────────────────────────────────────────────

tenant: ContextVar[str] = ContextVar("tenant", default="none")


async def test_middleware_surrounds_async_tasks_and_the_first_is_outermost(bench: Bench) -> None:
    app, seen = bench.app, list[str]()

    @app.middleware
    async def outer(job: JobContext, call: AsyncCall) -> Any:
        seen.append(f"outer {job.task == current_job().task} {job.attempt}")
        tenant.set("acme")
        result = await call()
        seen.append(f"end {result}")
        return result + 1

    @app.middleware
    async def inner(job: JobContext, call: AsyncCall) -> Any:
        seen.append("inner")
        try:
            return await call() * 10
        finally:
            seen.append("end inner")

    @app.middleware
    def not_for_async(job: JobContext, call: SyncCall) -> Any:
        raise AssertionError

    @app.task
    async def work(number: int) -> int:
        seen.append(f"work for {tenant.get()}")
        return number

    job = await bench.work(work, 4)
    assert (job.state, work.codec.decode_result(job.result or b"")) == (JobState.DONE, 41)
    assert seen == ["outer True 1", "inner", "work for acme", "end inner", "end 40"]
    assert await work(4) == 4, "a direct call is no attempt"


async def test_middleware_surrounds_thread_tasks(bench: Bench) -> None:
    app, seen = bench.app, list[str]()

    @app.middleware
    async def not_for_threads(job: JobContext, call: AsyncCall) -> Any:
        raise AssertionError

    @app.middleware
    def outer(job: JobContext, call: SyncCall) -> Any:
        tenant.set(job.queue)
        return call() + 1

    @app.middleware
    def inner(job: JobContext, call: SyncCall) -> Any:
        seen.append(tenant.get())
        return call() * 10

    @app.task
    def work(number: int) -> int:
        seen.append(tenant.get())
        return number

    job = await bench.work(work, 4)
    assert (job.state, work.codec.decode_result(job.result or b"")) == (JobState.DONE, 41)
    assert seen == ["default", "default"]


async def test_what_one_attempt_sets_is_not_seen_by_the_next(bench: Bench) -> None:
    app, seen = bench.app, list[str]()

    @app.middleware
    async def around(job: JobContext, call: AsyncCall) -> Any:
        seen.append(tenant.get())
        tenant.set(str(job.id))
        return await call()

    @app.task
    async def work() -> None: ...

    await bench.enqueue_many(work, [()] * 5)
    await bench.work(work)
    assert seen == ["none"] * 6


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_error_of_the_middleware_is_the_attempts_failure(bench: Bench, kind: str) -> None:
    app = bench.app

    @app.middleware
    async def broken(job: JobContext, call: AsyncCall) -> Any:
        await call()
        raise ValueError("broken middleware")

    @app.middleware
    def broken_sync(job: JobContext, call: SyncCall) -> Any:
        call()
        raise ValueError("broken middleware")

    @app.task(retry=ONCE)
    async def work() -> None: ...

    @app.task(retry=ONCE)
    def work_sync() -> None: ...

    job = await bench.work(work if kind == "async" else work_sync)
    assert (job.state, job.history[-1].message) == (JobState.DEAD, "broken middleware")
    assert "test_hooks.py" in job.history[-1].traceback


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_second_call_is_refused(bench: Bench, kind: str) -> None:
    app, seen = bench.app, list[str]()

    @app.middleware
    async def twice(job: JobContext, call: AsyncCall) -> Any:
        await call()
        return await call()

    @app.middleware
    def twice_sync(job: JobContext, call: SyncCall) -> Any:
        call()
        return call()

    @app.task(retry=ONCE)
    async def work() -> None:
        seen.append("work")

    @app.task(retry=ONCE)
    def work_sync() -> None:
        seen.append("work")

    job = await bench.work(work if kind == "async" else work_sync)
    assert job.state is JobState.DEAD
    assert "twice" in job.history[-1].message
    assert "a second time" in job.history[-1].message
    assert seen == ["work"]


async def test_middleware_sees_what_the_task_raised_and_may_change_the_outcome(bench: Bench) -> None:
    app, seen = bench.app, list[str]()

    @app.middleware
    async def answers(job: JobContext, call: AsyncCall) -> Any:
        if job.task.endswith("never_called"):
            return "not called"
        try:
            return await call()
        except KeyError as error:
            seen.append(str(error))
            return "mended"

    @app.task
    async def work() -> str:
        raise KeyError("key")

    @app.task
    async def never_called() -> str:
        raise AssertionError

    @app.task
    async def snoozes() -> None:
        raise Snooze(3600)

    results = [await bench.work(task) for task in (work, never_called)]
    assert [work.codec.decode_result(job.result or b"") for job in results] == ["mended", "not called"]
    assert seen == ["'key'"]
    assert (await bench.work(snoozes)).state is JobState.SCHEDULED


async def test_without_middleware_a_task_is_called_directly(bench: Bench) -> None:
    @bench.app.task
    async def work() -> None: ...

    async with bench.worker() as worker:
        known = worker._state.known(work.name)  # pyright: ignore[reportPrivateUsage]
        assert known is not None
        assert known.function is work.function


# ── failures and events ──────────────────────────────────────────────────────


async def test_on_failure_gets_each_failed_attempt_and_what_follows(bench: Bench) -> None:
    app, seen, asynchronous = bench.app, list[tuple[JobContext, Failure, FollowUp]](), list[bool]()

    @app.on_failure
    def record(job: JobContext, failure: Failure, follows: FollowUp) -> None:
        seen.append((job, failure, follows))

    @app.on_failure
    async def record_async(job: JobContext, failure: Failure, follows: FollowUp) -> None:
        asynchronous.append(follows.dead)

    @app.task(retry=Retry(max_attempts=2))
    async def work(wait: int) -> None:
        raise RetryAfter(wait) if not current_job().failures else ValueError("second")

    @app.task
    async def well() -> None: ...

    before = datetime.now(UTC)
    await bench.work(well)
    later = await bench.work(work, 3600)
    id = await bench.enqueue(work, 0)
    async with bench.worker():
        now = await bench.reach(id, JobState.DEAD)
    assert (later.state, now.state) == (JobState.SCHEDULED, JobState.DEAD)
    assert asynchronous == [False, False, True]
    assert [(job.id, failure.kind, follows.dead) for job, failure, follows in seen] == [
        (later.id, "headrace.model.outcome.RetryAfter", False),
        (now.id, "headrace.model.outcome.RetryAfter", False),
        (now.id, "ValueError", True),
    ]
    first, last = seen[0][2], seen[2][2]
    assert first.retry_at is not None
    assert timedelta(minutes=59) < first.retry_at - before < timedelta(hours=2)
    assert (last.retry_at, last.reason) == (None, now.note)


async def test_a_failing_failure_hook_is_logged_and_the_others_run(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = bench.app, list[str]()

    @app.on_failure
    def broken(job: JobContext, failure: Failure, follows: FollowUp) -> None:
        raise ValueError("broken hook")

    @app.on_failure
    def reports(job: JobContext, failure: Failure, follows: FollowUp) -> None:
        seen.append(failure.message)
        job.log("too late")

    @app.on_failure
    async def third(job: JobContext, failure: Failure, follows: FollowUp) -> None:
        seen.append(failure.message)

    @app.task(retry=ONCE)
    def work() -> None:
        raise ValueError("of the task")

    job = await bench.work(work)
    assert (job.state, job.history[-1].message) == (JobState.DEAD, "of the task")
    assert seen == ["of the task", "of the task"]
    failed = [record.getMessage() for record in caplog.records if "on_failure hook" in record.getMessage()]
    assert len(failed) == 2


async def test_on_failure_gets_the_jobs_of_a_lost_worker(bench: Bench) -> None:
    app, seen = bench.app, list[tuple[str, bool]]()

    @app.on_failure
    def record(job: JobContext, failure: Failure, follows: FollowUp) -> None:
        seen.append((failure.kind, follows.dead))

    @app.task(retry=Retry(max_crashes=1))
    async def work() -> None: ...

    id = await bench.enqueue(work)
    lost = new_worker_id()
    for _ in range(2):  # the second time alone
        assert await bench.store.claim(Ask(lost, ("default",), 1, timedelta(hours=1), new_token())) is not None
        await bench.store.abandon(lost, "killed by SIGKILL")
        async with bench.worker() as worker:
            worker.quiet()
            await bench.reach(id, JobState.READY, JobState.DEAD)
    assert seen[-1] == ("worker_lost", True)


async def test_failure_hooks_end_before_the_stop_hooks(bench: Bench) -> None:
    app, seen = bench.app, list[str]()

    @app.on_stop
    def close() -> None:
        seen.append("closed")

    @app.on_failure
    async def slow(job: JobContext, failure: Failure, follows: FollowUp) -> None:
        await asyncio.sleep(0.05)
        seen.append("told")

    @app.task(retry=ONCE)
    async def work() -> None:
        raise ValueError

    await bench.enqueue_many(work, [()] * 2)
    await bench.work(work)
    assert seen == ["told", "told", "told", "closed"]


async def test_events_reach_the_listeners_of_the_app(bench: Bench) -> None:
    app, seen = bench.app, list[str]()

    @app.on_event
    def listen(name: str, fields: Any) -> None:
        seen.append(name)

    @app.task
    async def work() -> None: ...

    await bench.work(work)
    assert seen[0] == "worker.joined"
    assert {"attempt.started", "attempt.ended"} < set(seen)
    assert seen[-1] == "worker.left"


# ── processes ────────────────────────────────────────────────────────────────


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv(hook_tasks.FILE, str(path))
    return lambda: path.read_text(encoding="utf-8").splitlines()


def settings(**own: Any) -> Settings:
    return Settings(url="memory://", concurrency=2, kill_grace=timedelta(seconds=WAIT), **own)


@pytest.mark.parametrize("app_name", ["worker.hook_tasks:app", ""], ids=["named", "unnamed"])
async def test_each_process_slot_runs_the_hooks_of_its_app(notes: Callable[[], list[str]], app_name: str) -> None:
    bench = Bench()
    bench.app, bench.settings = hook_tasks.app, settings(app=app_name)
    job = await bench.work(hook_tasks.use_pool)
    assert job.state is JobState.DONE, job.history
    result = hook_tasks.use_pool.codec.decode_result(job.result or b"")
    assert result.startswith("<open in ")
    assert str(os.getpid()) not in result
    assert notes() == [
        "worker start default",
        "worker enter",
        "slot start default",
        "slot enter",
        "slot exit",
        "slot stop",
        "worker exit",
        "worker stop",
    ]


async def test_async_process_tasks_get_async_middleware(notes: Callable[[], list[str]]) -> None:
    bench = Bench()
    bench.app, bench.settings = hook_tasks.app, settings(app="worker.hook_tasks:app")
    job = await bench.work(hook_tasks.use_pool_async)
    assert job.state is JobState.DONE, job.history
    assert hook_tasks.use_pool_async.codec.decode_result(job.result or b"").startswith("[open in ")


async def test_a_suspect_finds_what_the_hooks_of_its_process_opened(notes: Callable[[], list[str]]) -> None:
    bench = Bench()
    bench.app, bench.settings = hook_tasks.app, settings(app="worker.hook_tasks:app")
    id = await bench.enqueue(hook_tasks.in_the_worker)
    lease = await bench.store.claim(Ask(new_worker_id(), ("default",), 1, timedelta(hours=1), new_token()))
    assert lease is not None
    await bench.store.settle(lease.token, [(0, Again(0, 0, suspect=True))])
    view = SharedPageView()
    page = SharedPage(view.fd)
    async with Worker(bench.app.tasks, bench.store, bench.settings, page=page, duties=bench.app.duties):
        job = await bench.reach(id, JobState.DONE, JobState.DEAD)
    page.close()
    view.close()
    assert job.state is JobState.DONE, job.history
    assert hook_tasks.in_the_worker.codec.decode_result(job.result or b"") == "[open]"
    assert [line for line in notes() if line.startswith("slot")] == [
        "slot start default",
        "slot enter",
        "slot exit",
        "slot stop",
    ]


async def test_a_process_slot_that_is_stopped_over_its_job_runs_its_stop_hooks(notes: Callable[[], list[str]]) -> None:
    bench = Bench()
    bench.app, bench.settings = hook_tasks.app, settings(app="worker.hook_tasks:app")
    job = await bench.work(hook_tasks.sleep_long)
    assert (job.state, job.history[-1].kind) == (JobState.DEAD, "timeout")
    assert "slot stop" in notes()


@pytest.mark.parametrize("app_name", ["worker.hook_tasks:app", ""], ids=["named", "unnamed"])
async def test_a_start_hook_that_fails_in_a_process_slot_fails_the_attempt(
    notes: Callable[[], list[str]], app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_FAIL", hook_tasks.SLOT)
    bench = Bench()
    bench.app, bench.settings = hook_tasks.app, settings(app=app_name)
    job = await bench.work(hook_tasks.use_pool)
    # Its retry may have begun, where the machine is slow.
    assert not job.state.finished
    assert job.failures >= 1
    assert ("process slot could not start" if app_name else "no database for you") in job.history[0].message


# ── the command line ─────────────────────────────────────────────────────────


def command(tmp_path: Path, *words: str) -> list[str]:
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    subprocess.run([sys.executable, "-m", "headrace.cli", "migrate", "--url", url], check=True, capture_output=True)
    return [sys.executable, "-m", "headrace.cli", *words, "worker.hook_tasks:app", "--url", url]


@pytest.mark.parametrize("words", [("worker", "--processes", "2"), ("dev", "--no-server")], ids=["worker", "dev"])
def test_a_failing_start_hook_ends_the_command(
    tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_FAIL", hook_tasks.WORKER)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    done = subprocess.run(command(tmp_path, *words), capture_output=True, text=True, check=False, timeout=WAIT * 5)
    assert done.returncode == 1, done.stderr
    said = "the on_start hook worker.hook_tasks.open_pool failed: ConnectionError: no database for you"
    assert said in " ".join(done.stderr.split()), done.stderr


def test_the_supervisors_workers_run_their_hooks(
    tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    with subprocess.Popen(command(tmp_path, "worker", "--processes", "2")) as supervisor:

        async def started() -> None:
            await until(lambda: notes().count("worker enter") == 2)

        asyncio.run(started())
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(WAIT * 5) == 0
    assert sorted(notes()[-4:]) == ["worker exit", "worker exit", "worker stop", "worker stop"]


def test_a_start_hook_that_fails_in_a_replacement_is_tried_again(
    tmp_path: Path, notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is away for a moment must not end the workers that have their connections."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    away = Path(os.environ[hook_tasks.FILE] + ".away")
    with subprocess.Popen(command(tmp_path, "worker", "--processes", "2")) as supervisor:
        asyncio.run(until(lambda: notes().count("worker enter") == 2))
        away.touch()
        children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text(encoding="ascii")
        os.kill(int(children.split()[0]), signal.SIGKILL)
        asyncio.run(until(lambda: notes().count("worker start default") >= 4))
        away.unlink()
        asyncio.run(until(lambda: notes().count("worker enter") == 3))
        assert notes().count("worker exit") == 0
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(WAIT * 5) == 0
