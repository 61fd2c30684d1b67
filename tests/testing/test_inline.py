"""`app.inline()`: each job runs before its enqueue call returns."""

from __future__ import annotations

import threading

import pytest

from headrace import ConfigError, Headrace, JobState, Limit, step
from headrace.testing import drain, enqueued, faults, inline, use_memory


@pytest.fixture
def app() -> Headrace:
    return Headrace("redis://nowhere.invalid")


def test_a_job_that_a_step_enqueues_has_steps_and_children_of_its_own():
    app = Headrace("memory://")
    ran: list[str] = []

    @app.task
    async def child() -> int:
        return 7

    @app.task
    async def inner() -> int:
        await step(ran.append, "step")
        return await child.job()

    async def enqueue() -> str:
        return str((await inner.aenqueue()).id)

    @app.task
    async def outer() -> str:
        return await step(enqueue)

    with use_memory(app), app.inline():
        id = outer.enqueue().result()
        assert inner.handle(id).result() == 7
    assert ran == ["step"]


def test_sync_code(app: Headrace) -> None:
    threads: set[threading.Thread] = set()

    @app.task
    def add(a: int, b: int) -> int:
        threads.add(threading.current_thread())
        return a + b

    @app.task
    async def add_later(a: int, b: int) -> int:
        return await (await add.aenqueue(a, b)).aresult()

    with app.inline():
        assert add.enqueue(2, 3).result() == 5
        assert threads == {threading.current_thread()}
        assert add_later.enqueue(3, 4).result() == 7
        handles = app.enqueue_many(add.job(n, n) for n in range(3))
        assert [handle.result() for handle in handles] == [0, 2, 4]


async def test_async_code(app: Headrace) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def double_in_a_thread(n: int) -> int:
        return double.enqueue(n).result()

    async with app.inline():
        assert await (await double.aenqueue(2)).aresult() == 4
        assert await (await double_in_a_thread.aenqueue(3)).aresult() == 6
        handles = await app.aenqueue_many(double.job(n) for n in range(3))
        assert [await handle.aresult() for handle in handles] == [0, 2, 4]
        # A sync call in async code runs an async task beside the loop, which is busy with this call.
        double.enqueue(5)
        assert [job.state for job in enqueued(app)] == [JobState.DONE] * 7


def test_errors_reach_the_caller_and_are_stored(app: Headrace) -> None:
    @app.task
    def fail() -> None:
        raise ValueError("here")

    with app.inline() as running:
        with pytest.raises(ValueError, match="here"):
            fail.enqueue()
        [job] = enqueued(app)
        assert (job.state, job.job.failures) == (JobState.SCHEDULED, 1)
        running.clock.move("1h")
        assert [ran.attempt for ran in drain(app)] == [2]


def test_errors_may_stay_with_the_retry_policy(app: Headrace) -> None:
    attempts: list[int] = []

    @app.task
    def fail_once() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError

    with inline(app, errors="retry"):
        handle = fail_once.enqueue()
        assert handle.status().state is JobState.SCHEDULED
        drain(app, advance=True)
        assert handle.status().state is JobState.DONE
    with pytest.raises(ConfigError, match="errors"):
        app.inline(errors="ignore")  # type: ignore[arg-type]


def test_what_does_not_run(app: Headrace) -> None:
    ran: list[str] = []

    @app.task(limits=[Limit("one", rate="1/h", burst=1)], name="limited")
    def limited() -> None:
        ran.append("limited")

    @app.task
    def only(n: int) -> None:
        ran.append("only")

    @app.task
    def later() -> None:
        ran.append("later")

    with app.inline() as running:
        later.using(delay="1m").enqueue()
        limited.enqueue()
        limited.enqueue()
        only.using(key="one").enqueue(1)
        assert not only.using(key="one").enqueue(1).created
        assert ran == ["limited", "only"]
        running.clock.move("1m")
        drain(app)
        assert ran == ["limited", "only", "later"]


def test_it_ends(app: Headrace) -> None:
    @app.task
    def note() -> None: ...

    with use_memory(app):
        with app.inline():
            assert note.enqueue().status().state is JobState.DONE
        assert note.enqueue().status().state is JobState.READY


def test_with_faults(app: Headrace) -> None:
    attempts: list[int] = []

    @app.task
    def note() -> None:
        attempts.append(len(attempts))

    with app.inline(), faults.run_twice():
        assert note.enqueue().status().state is JobState.DONE
    assert attempts == [0, 1]
