"""`drain`: what runs, in which order, what waits, and what it tells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from headrace import (
    Cancel,
    ConfigError,
    Dead,
    Headrace,
    JobDead,
    JobState,
    Limit,
    Retry,
    RetryAfter,
    Snooze,
    current_job,
)
from headrace.testing import StandIn, adrain, drain, enqueued, use_memory


@pytest.fixture
def app() -> Headrace:
    return Headrace("postgresql://nowhere.invalid/none")


@pytest.fixture
def stand(app: Headrace) -> Iterator[StandIn]:
    with use_memory(app) as stand:
        yield stand


def test_runs_what_is_ready_in_this_thread_and_tells(app: Headrace, stand: StandIn) -> None:
    threads: list[threading.Thread] = []

    @app.task(name="add")
    def add(a: int, b: int = 1) -> int:
        threads.append(threading.current_thread())
        return a + b

    handle = add.enqueue(2, b=3)
    [ran] = drain(app)
    assert (ran.id, ran.task, ran.args, ran.kwargs, ran.attempt) == (handle.id, "add", (2, 3), {}, 1)
    assert (ran.outcome, ran.state, ran.result, ran.error) == ("succeeded", JobState.DONE, 5, None)
    assert handle.result() == 5
    assert threads == [threading.current_thread()]
    assert drain(app) == []


async def test_async_tasks_run_in_the_loop_of_the_test(app: Headrace, stand: StandIn) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @app.task
    async def look() -> str:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return "seen"

    @app.task
    def block() -> bool:
        return threading.current_thread() is threading.main_thread()

    await look.aenqueue()
    handle = await block.aenqueue()
    assert [ran.outcome for ran in await adrain(app)] == ["succeeded", "succeeded"]
    assert loops == [asyncio.get_running_loop()]
    assert await handle.aresult() is False  # a sync task would block the loop, so it has a thread


def test_an_async_task_in_sync_code(app: Headrace, stand: StandIn) -> None:
    @app.task
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    handle = answer.enqueue()
    drain(app)
    assert handle.result() == 42


async def test_a_sync_drain_in_async_code(app: Headrace, stand: StandIn) -> None:
    @app.task
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    await answer.aenqueue()
    assert [ran.result for ran in drain(app)] == [42]


def test_jobs_of_jobs_run_too(app: Headrace, stand: StandIn) -> None:
    seen: list[int] = []

    @app.task
    def count(n: int) -> None:
        seen.append(n)
        if n:
            count.enqueue(n - 1)

    count.enqueue(3)
    drain(app)
    assert seen == [3, 2, 1, 0]
    seen.clear()
    count.enqueue(3)
    drain(app, until_empty=False)
    assert seen == [3]
    drain(app, max_jobs=2)
    assert seen == [3, 2, 1]


def test_a_drain_that_does_not_end_says_so(app: Headrace, stand: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.draining.MOST", 20)

    @app.task(name="again")
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(AssertionError, match=r"20 attempts, the last one of task again.* enqueue itself"):
        drain(app)


def test_queues_and_priorities(app: Headrace, stand: StandIn) -> None:
    seen: list[str] = []

    @app.task
    def note(text: str) -> None:
        seen.append(text)

    note.using(queue="mail").enqueue("mail")
    note.enqueue("low")
    note.using(priority=9).enqueue("high")
    drain(app, "mail")
    assert seen == ["mail"]
    drain(app, ["default"])
    assert seen == ["mail", "high", "low"]
    with pytest.raises(ConfigError):
        drain(app, "No Queue!")


def test_retries_wait_for_the_clock(app: Headrace, stand: StandIn) -> None:
    @app.task(retry=Retry(max_attempts=3, base="10s", cap="1h"))
    def fail() -> None:
        raise ValueError(current_job().attempt)

    handle = fail.enqueue()
    [ran] = drain(app)
    assert (ran.outcome, ran.state, str(ran.error)) == ("failed", JobState.SCHEDULED, "1")
    assert drain(app) == []
    stand.clock.move("1h")
    assert [ran.attempt for ran in drain(app)] == [2]
    assert [(ran.attempt, ran.state) for ran in drain(app, advance=True)] == [(3, JobState.DEAD)]
    with pytest.raises(JobDead, match="ValueError: 3"):
        handle.result()


def test_errors_can_be_raised(app: Headrace, stand: StandIn) -> None:
    error = ValueError("as it is")

    @app.task
    def fail() -> None:
        raise error

    fail.enqueue()
    with pytest.raises(ValueError, match="as it is") as caught:
        drain(app, errors="raise")
    assert caught.value is error


@pytest.mark.parametrize(
    ("raised", "outcome", "state"),
    [
        (Snooze("1h"), "snoozed", JobState.SCHEDULED),
        (RetryAfter("1h"), "failed", JobState.SCHEDULED),
        (Cancel("no longer needed"), "cancelled", JobState.CANCELLED),
        (Dead("hopeless"), "failed", JobState.DEAD),
    ],
)
def test_every_ending(app: Headrace, stand: StandIn, raised: Exception, outcome: str, state: JobState) -> None:
    @app.task
    def end() -> None:
        raise raised

    end.enqueue()
    [ran] = drain(app)
    assert (ran.outcome, ran.state) == (outcome, state)


def test_advance_goes_from_job_to_job(app: Headrace, stand: StandIn) -> None:
    times: list[timedelta] = []
    start = stand.clock.now()

    @app.task
    def note() -> None:
        times.append(stand.clock.now() - start)

    for delay in ("3h", "1h", "2d"):
        note.using(delay=delay).enqueue()
    assert drain(app) == []
    assert len(drain(app, advance=True)) == 3
    assert times == [timedelta(hours=1), timedelta(hours=3), timedelta(days=2)]


def test_a_rate_limit_is_kept_and_waited_for(app: Headrace, stand: StandIn) -> None:
    @app.task(limits=[Limit("api", rate="1/m", burst=1)])
    def call() -> None: ...

    for _ in range(3):
        call.enqueue()
    start = stand.clock.now()
    assert len(drain(app)) == 1
    assert len(drain(app, advance=True)) == 2
    assert stand.clock.now() - start == timedelta(minutes=2)


def test_a_refusal_closes_the_limit(app: Headrace, stand: StandIn) -> None:
    refusing = True

    @app.task(limits=[Limit("api", rate="100/s", burst=10)], retry=Retry(max_attempts=10))
    def call() -> None:
        if refusing:
            raise RetryAfter("10m")

    for _ in range(3):
        call.enqueue()
    assert len(drain(app)) == 1  # the others wait for the limit
    refusing = False
    assert [ran.outcome for ran in drain(app, advance=True)] == ["succeeded"] * 3


def test_a_pause_keeps_jobs(app: Headrace, stand: StandIn) -> None:
    @app.task(name="work")
    def work() -> None: ...

    work.enqueue()
    app.pause("default")
    assert drain(app) == []
    app.resume("default")
    assert len(drain(app)) == 1


def test_timeouts_follow_the_clock(app: Headrace, stand: StandIn) -> None:
    @app.task(timeout="1m", expires="1h")
    def slow() -> None:
        stand.clock.move("2m")

    slow.enqueue()
    [ran] = drain(app)
    assert (ran.outcome, ran.state) == ("failed", JobState.SCHEDULED)
    slow.enqueue()
    stand.clock.move("2h")
    assert {ran.state for ran in drain(app)} == {JobState.CANCELLED}


def test_hooks_middleware_progress_and_completion(app: Headrace, stand: StandIn) -> None:
    seen: list[str] = []

    @app.middleware
    def around(job: object, call: object) -> object:
        seen.append("in")
        try:
            return call()  # type: ignore[operator]
        finally:
            seen.append("out")

    @app.on_failure
    def failed(job: object, failure: object, follows: object) -> None:
        seen.append(f"failed: {failure.message}")  # type: ignore[attr-defined]

    @app.task
    def work() -> str:
        job = current_job()
        job.progress_sync(0.5, "half")
        job.log("a line")
        job.complete_sync("from the transaction", tx=object())
        return "ignored"

    @app.task
    def fail() -> None:
        raise ValueError("no")

    handle = work.enqueue()
    fail.enqueue()
    drain(app)
    status = handle.status()
    assert (status.progress, status.doing, [line.text for line in status.log]) == (0.5, "half", ["a line"])
    assert handle.result() == "from the transaction"
    assert seen == ["in", "out", "in", "out", "failed: no"]


def test_the_end_of_the_test_is_not_a_failure_of_the_job(app: Headrace, stand: StandIn) -> None:
    @app.task
    def stop() -> None:
        pytest.fail("the test ends here")

    handle = stop.enqueue()
    with pytest.raises(pytest.fail.Exception, match="the test ends here"):
        drain(app)
    status = handle.status()
    assert (status.state, status.failures) == (JobState.READY, 0)


async def test_cancellation(app: Headrace, stand: StandIn) -> None:
    begun = asyncio.Event()

    @app.task
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    @app.task
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    own = await cancels_itself.aenqueue()
    assert [ran.outcome for ran in await adrain(app)] == ["failed"]
    assert (await own.astatus()).failures == 1
    other = await waits.aenqueue()
    draining = asyncio.create_task(adrain(app))
    await begun.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    status = await other.astatus()
    assert (status.state, status.failures) == (JobState.READY, 0)


def test_deliveries_of_webhooks_are_enqueued_and_do_not_run(app: Headrace, stand: StandIn) -> None:
    app.webhook("https://example.com/hook", on="done", secret="whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")

    @app.task(name="work")
    def work() -> None: ...

    work.enqueue()
    assert [ran.task for ran in drain(app)] == ["work"]
    assert [(job.task, job.state) for job in enqueued(app)] == [
        ("work", JobState.DONE),
        ("headrace.webhook", JobState.READY),
    ]


def test_outside_of_use_memory(app: Headrace) -> None:
    with pytest.raises(ConfigError, match=r"with use_memory\(app\)"):
        drain(app)
