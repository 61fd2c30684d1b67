"""Children: a task awaits other jobs without a slot, and gets their results or their failure."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import pytest

from conftest import STORES
from headrace import (
    ConfigError,
    Handle,
    Headrace,
    Job,
    JobCall,
    JobCancelled,
    JobDead,
    JobState,
    NoCurrentJob,
    RemoteTaskError,
    Results,
    Retry,
    Task,
    Unique,
    current_job,
    gather,
    gather_sync,
    group,
    sleep,
    step,
)
from headrace.client.children import ChildJobs
from headrace.model.outcome import AWAITS
from headrace.operate.shown import step_value
from headrace.task.children import JOURNALLED, why_cancelled
from headrace.testing import drain, use_memory
from headrace.testing.faults import Crash
from headrace.worker import Worker

AT_ONCE = Retry(max_attempts=5, base="0s")
ENDED = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)


class Crew:
    """Tasks of one app, and what they did."""

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.ran: list[Any] = []

        @app.task
        async def double(number: int) -> int:
            self.ran.append(number)
            if number < 0:
                raise ValueError(number)
            return number * 2

        @app.task
        async def spell(number: int) -> str:
            return f"<{number}>"

        @app.task(queue="late")
        async def late(number: int) -> int:
            return number * 100

        self.double, self.spell, self.late = double, spell, late
        self.failing = double.using(max_attempts=1)

    def worker(self, **settings: Any) -> AbstractAsyncContextManager[Worker]:
        """A worker that looks often, so that no test waits for a period."""
        often: dict[str, Any] = {"heartbeat": "50ms", "reap": "100ms", "poll": "100ms"}
        return self.app.worker(**often | settings)

    async def run(self, handle: Handle[Any], *states: JobState) -> Job:
        """Run a worker until the job is in one of these states. It does not serve the queue `late`."""
        async with self.worker(queues=["default"]):
            return await self.reach(handle, *states or ENDED)

    async def reach(self, handle: Handle[Any], *states: JobState) -> Job:
        return await self.until(handle, lambda job: job.state in states)

    async def until(self, handle: Handle[Any], holds: Callable[[Job], bool]) -> Job:
        async with asyncio.timeout(60):
            while not holds(job := await handle.astatus()):  # noqa: ASYNC110  # it may be the job of another process
                await asyncio.sleep(0.01)
        return job

    async def enqueued(self, task: Task[..., Any]) -> Handle[Any]:
        """The handle of the one job of a task, as soon as it is stored."""
        async with asyncio.timeout(60):
            while not (await self.app.afind(task=task.name)).jobs:  # noqa: ASYNC110  # it has no handle before
                await asyncio.sleep(0.01)
        return await self.only(task)

    async def only(self, task: Task[..., Any]) -> Handle[Any]:
        """The handle of the one job of a task."""
        [job] = (await self.app.afind(task=task.name)).jobs
        return Handle(task.home, task.codec, job.id)


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def crew(app: Headrace) -> Iterator[Crew]:
    yield Crew(app)
    app.close()


@pytest.fixture
def memory_crew() -> Iterator[Crew]:
    app = Headrace("memory://")
    yield Crew(app)
    app.close()


# ── results ──────────────────────────────────────────────────────────────────


async def test_a_task_awaits_a_child(crew: Crew):
    @crew.app.task
    async def parent(number: int) -> int:
        return await crew.double.job(number) + 1

    handle = await parent.aenqueue(20)
    async with crew.worker():
        assert await handle.aresult(60) == 41
    job = await handle.astatus()
    assert (job.failures, crew.ran) == (0, [20])
    assert job.attempt <= 2  # One, if the child has ended before its parent was suspended.


async def test_gather_gives_a_tuple_after_one_wait(crew: Crew):
    @crew.app.task
    async def parent() -> list[Any]:
        number, text = await gather(crew.double.job(4), crew.spell.job(5))
        return [number, text, len(await gather())]

    handle = await parent.aenqueue()
    async with crew.worker():
        assert await handle.aresult(60) == [8, "<5>", 0]
    assert (await handle.astatus()).attempt <= 2


async def test_people_see_that_children_are_done_and_not_their_results(memory_crew: Crew):
    """The task of a child says which of its fields are masked, and the journal is that of its parent."""
    app, double = memory_crew.app, memory_crew.double

    @app.task
    async def parent() -> int:
        try:
            await double.using(max_attempts=1).job(-1)
        except JobDead:
            return await double.job(21)
        return 0

    async with app.worker(concurrency=10):
        handle = await parent.aenqueue()
        assert await handle.aresult(timeout=60) == 42
        journal = await (await app.clients.here()).store.read_steps(handle.id)
    values = [step_value(step, hide=False) for step in journal if step.name.startswith("end of")]
    assert values == ["one is dead", "all are done"]


async def test_a_group_gives_its_results_in_order(crew: Crew):
    @crew.app.task
    async def parent() -> list[int]:
        results = await group(crew.double.job(n) for n in range(600))
        assert isinstance(results, Results)
        nothing: list[JobCall[int]] = []
        return [sum(results), results[-1], *results[1:3], len(await group(nothing))]

    handle = await parent.aenqueue()
    async with crew.worker():
        assert await handle.aresult(60) == [sum(2 * n for n in range(600)), 1198, 2, 4, 0]


async def test_children_of_children(crew: Crew):
    @crew.app.task
    async def add_up(depth: int) -> int:
        if not depth:
            return 1
        return sum(await gather(add_up.job(depth - 1), add_up.job(depth - 1)))

    handle = await add_up.aenqueue(4)
    async with crew.worker(concurrency=2):
        assert await handle.aresult(60) == 16


async def test_waits_at_once_are_one_suspension_each_with_its_own_children(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task
    async def parent() -> list[int]:
        both = await asyncio.gather(crew.double.job(1), gather(crew.double.job(2), crew.double.job(1)))
        return [both[0], *both[1]]

    job = await crew.run(handle := await parent.aenqueue())
    assert await handle.aresult(60) == [2, 4, 2]
    assert sorted(crew.ran) == [1, 1, 2]
    assert job.failures == 0


async def test_a_chain_is_awaited_whole_and_its_first_death_wakes_the_parent(crew: Crew):
    @crew.app.task
    async def parent(number: int) -> str:
        return await crew.failing.job(number).then(crew.spell)

    fine, broken = await parent.aenqueue(3), await parent.aenqueue(-3)
    async with crew.worker():
        assert await fine.aresult(60) == "<6>"
        with pytest.raises(JobDead):
            await broken.aresult(60)


# ── once ─────────────────────────────────────────────────────────────────────


async def test_an_attempt_that_runs_again_meets_the_same_children_and_the_same_results(crew: Crew):
    seen: list[int] = []

    @crew.app.task(retry=AT_ONCE)
    async def parent() -> int:
        seen.append(await crew.double.job(7))
        if len(seen) < 3:
            raise ConnectionError
        return seen[-1]

    handle = await parent.aenqueue()
    async with crew.worker():
        assert await handle.aresult(60) == 14
    assert (seen, crew.ran) == ([14, 14, 14], [7])


async def test_children_that_were_enqueued_before_a_crash_are_met_again(
    memory_crew: Crew, monkeypatch: pytest.MonkeyPatch
):
    """The attempt ends between the enqueue of its children and its suspension."""
    crew = memory_crew
    put = ChildJobs.aput

    async def cut_off(self: ChildJobs, *args: Any) -> None:
        await put(self, *args)
        if current_job().attempt == 1:
            raise ConnectionError("the worker is gone")

    monkeypatch.setattr(ChildJobs, "aput", cut_off)

    @crew.app.task(retry=AT_ONCE)
    async def parent() -> int:
        return await crew.double.job(7)

    handle = await parent.aenqueue()
    job = await crew.run(handle)
    assert (await handle.aresult(60), crew.ran, job.failures) == (14, [7], 1)


async def test_a_done_job_that_is_retried_has_new_children(crew: Crew):
    @crew.app.task
    async def parent() -> int:
        return await crew.double.job(7)

    handle = await parent.aenqueue()
    await crew.run(handle)
    await crew.app.aretry(handle)
    job = await crew.run(handle)
    assert (job.state, crew.ran) == (JobState.DONE, [7, 7])


async def test_results_that_the_journal_does_not_keep_are_read_again(crew: Crew):
    attempts: list[int] = []

    @crew.app.task
    async def large(byte: int) -> bytes:
        return bytes([byte]) * (JOURNALLED // 2 + 1)

    @crew.app.task(retry=AT_ONCE)
    async def parent() -> list[int]:
        results = await gather(large.job(1), large.job(2))
        attempts.append(len(results))
        if len(attempts) < 2:
            raise ConnectionError
        return [result[0] for result in results]

    handle = await parent.aenqueue()
    async with crew.worker():
        assert await handle.aresult(60) == [1, 2]


async def test_arguments_that_change_from_attempt_to_attempt_make_the_job_dead(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task
    async def parent() -> int:
        return await crew.late.job(current_job().attempt)

    handle = await parent.aenqueue()
    await crew.run(handle, JobState.BLOCKED)
    async with crew.worker(queues=["default", "late"]):
        job = await crew.reach(handle, *ENDED)
    assert job.state is JobState.DEAD
    assert len((await crew.app.afind(task=crew.late.name)).jobs) == 1
    assert "had other arguments in an earlier attempt" in (job.note or "")


async def test_a_child_with_a_key_gives_the_result_of_the_job_that_stands_for_it(crew: Crew):
    @crew.app.task
    async def parent() -> list[int]:
        keyed = crew.double.using(key="seven")
        return list(await gather(crew.double.job(1), keyed.job(7), crew.double.job(2)))

    before = await crew.double.using(key="seven", queue="late").aenqueue(7)
    handle = await parent.aenqueue()
    await crew.run(handle, JobState.BLOCKED)
    async with crew.worker(queues=["default"]):
        await crew.until(handle, lambda job: job.attempt == 1 and sorted(crew.ran) == [1, 2])
    assert (await handle.astatus()).state is JobState.BLOCKED
    async with crew.worker(queues=["default", "late"]):
        assert await handle.aresult(60) == [2, 14, 4]
        assert await before.aresult(60) == 14
    assert sorted(crew.ran) == [1, 2, 7]


# ── failures ─────────────────────────────────────────────────────────────────


async def test_a_dead_child_raises_in_its_parent_which_is_dead_at_once(crew: Crew):
    @crew.app.task
    async def parent() -> int:
        return await crew.failing.job(-1)

    handle = await parent.aenqueue()
    job = await crew.run(handle)
    assert (job.state, job.failures, job.note) == (JobState.DEAD, 1, "headrace.errors.RemoteTaskError")
    assert "ValueError" in job.history[-1].message


async def test_a_parent_that_catches_the_death_goes_on_and_keeps_its_answer(crew: Crew):
    caught: list[str] = []

    @crew.app.task(retry=AT_ONCE)
    async def parent() -> str:
        try:
            await gather(crew.double.job(1), crew.failing.job(-1))
        except RemoteTaskError as error:
            caught.append(error.type)
        await step(crew.ran.append, "after")
        if len(caught) < 2:
            raise ConnectionError
        return "went on"

    handle = await parent.aenqueue()
    await crew.run(handle)
    assert await handle.aresult(60) == "went on"
    assert (caught, crew.ran.count("after")) == (["ValueError"] * 2, 1)


async def test_a_death_that_was_caught_stays_although_its_child_is_replayed_while_the_parent_waits(crew: Crew):
    approved = crew.app.event("approved", str)
    broken, seen = [True], list[object]()

    @crew.app.task(retry=Retry(max_attempts=1))
    async def repaired() -> int:
        if broken:
            raise ConnectionError
        return 1

    @crew.app.task
    async def parent() -> str:
        try:
            seen.append(await repaired.job())
        except RemoteTaskError as error:
            seen.append(error.type)
        return await approved.wait(7)

    handle = await parent.aenqueue()
    async with crew.worker():
        await crew.until(handle, lambda job: job.note == f"{AWAITS} event approved of 7")
        broken.clear()
        child = await crew.only(repaired)
        await crew.app.aretry(child)
        assert await child.aresult(60) == 1
        await approved.asignal(7, "yes")
        assert await handle.aresult(60) == "yes"
    assert seen == ["ConnectionError"] * 2


async def test_a_replayed_child_and_its_replayed_parent_go_on(crew: Crew):
    broken = [True]

    @crew.app.task(retry=Retry(max_attempts=1))
    async def repaired() -> int:
        if broken:
            raise ConnectionError
        return 1

    @crew.app.task
    async def parent() -> int:
        return sum(await gather(repaired.job(), crew.late.job(1)))

    handle = await parent.aenqueue()
    assert (await crew.run(handle)).state is JobState.DEAD
    other = await crew.only(crew.late)
    job = await crew.reach(other, JobState.CANCELLED)
    assert job.note == why_cancelled(handle.id, JobState.DEAD)
    broken.clear()
    await crew.app.aretry(await crew.only(repaired), handle)
    async with crew.worker(queues=["default", "late"]):
        assert await handle.aresult(60) == 101


async def test_a_cancelled_child_raises_in_its_parent(crew: Crew):
    caught: list[str] = []

    @crew.app.task
    async def parent() -> str:
        try:
            await crew.late.job(1)
        except JobCancelled as error:
            caught.append(str(error))
        return "went on"

    handle = await parent.aenqueue()
    await crew.run(handle, JobState.BLOCKED)
    child = await crew.only(crew.late)
    await child.acancel("not today")
    await crew.run(handle)
    assert await handle.aresult(60) == "went on"
    assert caught == [f"job {child.id} of {crew.late.name} was cancelled: not today"]


# ── the end of a parent ──────────────────────────────────────────────────────


async def test_a_cancelled_parent_takes_its_waiting_children_along_and_theirs(crew: Crew):
    @crew.app.task
    async def between(number: int) -> int:
        return await crew.late.job(number)

    @crew.app.task
    async def parent() -> int:
        return await between.job(1)

    handle = await parent.aenqueue()
    async with crew.worker(queues=["default"]):
        await crew.enqueued(crew.late)
        below = await crew.only(between)
        await crew.reach(below, JobState.BLOCKED)
        await crew.reach(handle, JobState.BLOCKED)
    assert await handle.acancel("enough") is True
    child = await below.astatus()
    last = await (await crew.only(crew.late)).astatus()
    assert (child.state, child.note) == (JobState.CANCELLED, why_cancelled(handle.id, JobState.CANCELLED))
    assert (last.state, last.note) == (JobState.CANCELLED, why_cancelled(below.id, JobState.CANCELLED))


async def test_a_running_child_of_a_cancelled_parent_is_asked_to_stop(crew: Crew):
    started = asyncio.Event()

    @crew.app.task
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    @crew.app.task
    async def parent() -> None:
        await endless.job()

    handle = await parent.aenqueue()
    async with crew.worker():
        async with asyncio.timeout(60):
            await started.wait()
        await crew.reach(handle, JobState.BLOCKED)
        await handle.acancel()
        job = await crew.reach(await crew.only(endless), *ENDED)
    assert job.state is JobState.CANCELLED


async def test_a_parent_that_is_cancelled_while_it_runs_takes_its_children_along(crew: Crew):
    @crew.app.task
    async def parent() -> None:
        await asyncio.gather(crew.late.job(1), step(asyncio.Event().wait))

    handle = await parent.aenqueue()
    async with crew.worker(queues=["default"]):
        child = await crew.enqueued(crew.late)
        await handle.acancel()
        job = await crew.reach(child, JobState.CANCELLED)
    assert job.note == why_cancelled(handle.id, JobState.CANCELLED)


# ── other ways to wait ───────────────────────────────────────────────────────


async def test_sync_tasks_wait_in_threads(crew: Crew):
    @crew.app.task
    def parent(number: int) -> list[int]:
        one = crew.double.job(number).wait_sync()
        two, three = gather_sync(crew.double.job(one), crew.double.job(one + 1))
        assert gather_sync() == ()
        nothing: list[JobCall[int]] = []
        return [one, two, three, *group([crew.double.job(three)]).wait_sync(), *group(nothing).wait_sync()]

    handle = await parent.aenqueue(1)
    async with crew.worker():
        assert await handle.aresult(60) == [2, 4, 6, 12]


async def test_a_sync_task_gets_a_death_and_results_that_are_read_again(memory_crew: Crew):
    crew = memory_crew
    seen: list[int] = []

    @crew.app.task
    async def large() -> bytes:
        return b"x" * (JOURNALLED + 1)

    @crew.app.task(retry=AT_ONCE)
    def parent() -> str:
        seen.append(len(large.job().wait_sync()))
        if len(seen) < 2:
            raise ConnectionError
        keyed = crew.double.using(key="k").job(5).wait_sync()
        with pytest.raises(JobDead):
            crew.failing.job(-1).wait_sync()
        return str(keyed)

    handle = await parent.aenqueue()
    async with crew.worker():
        assert await handle.aresult(60) == "10"


async def test_a_task_in_a_process_waits(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copy(sqlite_template, tmp_path / "jobs.db")
    monkeypatch.setenv("CHILD_TASKS_STORE", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.delitem(sys.modules, "client.child_tasks", raising=False)
    tasks = importlib.import_module("client.child_tasks")
    handle = await tasks.in_process.aenqueue([1, 2, 3])
    async with tasks.app.worker(concurrency=2):
        assert await handle.aresult(60) == [2, 4, 2, 4, 6]
    await tasks.app.aclose()


async def test_parents_meet_the_end_of_their_last_child_in_any_order(crew: Crew):
    """No wake-up is lost: suspensions and the last settlements come at the same time, from two workers."""

    @crew.app.task
    async def parent(number: int) -> int:
        return sum(await gather(crew.double.job(number), crew.double.job(number + 1)))

    handles = await crew.app.aenqueue_many(parent.job(n) for n in range(30))
    async with crew.worker(), crew.worker():
        results = [await handle.aresult(60) for handle in handles]
    assert results == [4 * n + 2 for n in range(30)]
    assert len(crew.ran) == 60


# ── what people see ──────────────────────────────────────────────────────────


async def test_an_explanation_says_how_many_children_are_left(crew: Crew):
    @crew.app.task
    async def parent() -> int:
        return sum(await gather(crew.double.job(1), crew.late.job(1), crew.late.job(2)))

    handle = await parent.aenqueue()
    async with crew.worker(queues=["default"]):
        job = await crew.reach(handle, JobState.BLOCKED)
        assert job.note == f"{AWAITS} 3 jobs"
        await crew.reach(await crew.only(crew.double), JobState.DONE)
        said = str(await handle.aexplain())
    assert "suspended until its children are done: it waits for 2 of 3 children" in said
    assert f"of {crew.late.name}: it is ready" in said


async def test_children_have_the_tenant_of_their_parent(crew: Crew):
    @crew.app.task
    async def parent() -> int:
        return sum(await gather(crew.late.job(1), crew.late.using(tenant="globex").job(2)))

    handle = await parent.using(tenant="acme").aenqueue()
    await crew.run(handle, JobState.BLOCKED)
    jobs = (await crew.app.afind(task=crew.late.name)).jobs
    assert {job.tenant for job in jobs} == {"acme", "globex"}


# ── mistakes ─────────────────────────────────────────────────────────────────


async def test_jobs_are_awaited_inside_tasks_only(memory_crew: Crew):
    with pytest.raises(NoCurrentJob, match="aenqueue"):
        await memory_crew.double.job(1)
    with pytest.raises(NoCurrentJob, match="aenqueue"):
        await gather(memory_crew.double.job(1))
    with pytest.raises(NoCurrentJob, match="aenqueue"):
        memory_crew.double.job(1).wait_sync()


async def test_jobs_of_another_store_are_not_awaited(memory_crew: Crew):
    other = Crew(Headrace("memory://"))

    @memory_crew.app.task(retry=Retry(max_attempts=1))
    async def parent() -> int:
        return await other.double.job(1)

    job = await memory_crew.run(await parent.aenqueue())
    assert "are in another store: await tasks of apps with the same store" in job.history[-1].message
    await other.app.aclose()


async def test_a_wait_inside_a_step_and_other_things_than_jobs_are_refused(memory_crew: Crew):
    crew = memory_crew

    async def inner() -> int:
        return await crew.double.job(1)

    @crew.app.task
    async def parent() -> list[str]:
        errors: list[str] = []
        for wrong in (lambda: step(inner), lambda: gather(3)):  # type: ignore[call-overload]
            try:
                await wrong()
            except ConfigError as error:
                errors.append(str(error))
        return errors

    handle = await parent.aenqueue()
    await crew.run(handle)
    within, number = await handle.aresult(60)
    assert "not inside one of its steps" in within
    assert number == "gather awaits task.job(…), not 3"
    assert crew.ran == []


async def test_a_job_does_not_await_itself(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task(retry=Retry(max_attempts=1), unique=Unique())
    async def parent(number: int) -> int:
        return await parent.job(number)

    job = await crew.run(await parent.aenqueue(1))
    assert job.state is JobState.DEAD
    assert "it would wait for ever" in job.history[-1].message


# ── with the testing kit ─────────────────────────────────────────────────────


def test_the_kit_runs_children_and_their_parent_takes_its_old_place(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task
    async def parent(number: int) -> int:
        await sleep("1d")
        return sum(await gather(crew.double.using(priority=5).job(number), crew.double.using(priority=5).job(2)))

    with use_memory(crew.app):
        handle = parent.enqueue(1)
        assert [ran.state for ran in drain(crew.app)] == [JobState.SCHEDULED]
        crew.spell.using(delay="1d").enqueue(1)
        ran = drain(crew.app, advance=True)
        names = [one.task.rpartition(".")[2] for one in ran]
        assert names == ["parent", "double", "double", "parent", "spell"]
        assert handle.result() == 6


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_before_and_after_each_attempt_makes_no_second_child(
    memory_crew: Crew, when: Literal["before", "after"]
):
    crew = memory_crew

    @crew.app.task
    async def parent() -> int:
        return await crew.double.job(sum(await gather(crew.double.job(1), crew.double.job(2))))

    with use_memory(crew.app):
        handle = parent.enqueue()
        drain(crew.app, fault=Crash("crash", when))
        assert handle.result() == 12
        assert len(crew.app.find(task=crew.double.name).jobs) == 3


def test_an_inline_job_runs_its_children_at_once(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task
    async def parent() -> int:
        return sum(await group(crew.double.job(n) for n in range(4)))

    @crew.app.task
    def sync_parent() -> int:
        return crew.double.job(4).wait_sync()

    with crew.app.inline():
        assert parent.enqueue().result() == 12
        assert sync_parent.enqueue().result() == 8


def test_an_inline_task_gets_the_death_of_a_child_and_the_error_of_one_that_is_retried(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task
    async def parent(attempts: int) -> str:
        try:
            await crew.double.using(max_attempts=attempts).job(-1)
        except JobDead:
            return "dead"
        return "fine"

    with crew.app.inline():
        assert parent.enqueue(1).result() == "dead"
        with pytest.raises(ValueError, match="-1"):
            parent.enqueue(2)


def test_a_parent_that_is_dead_by_its_deadline_takes_its_children_along(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task
    async def parent() -> int:
        return await crew.double.using(delay="1d").job(1)

    with use_memory(crew.app) as stand:
        handle = parent.using(deadline="1h").enqueue()
        assert [ran.state for ran in drain(crew.app)] == [JobState.BLOCKED]
        [child] = crew.app.find(task=crew.double.name).jobs
        stand.clock.move("1h")
        drain(crew.app)
        stored = crew.app.get(child.id)
        assert handle.status().state is JobState.DEAD
        assert stored is not None
        assert (stored.state, stored.note) == (JobState.CANCELLED, why_cancelled(handle.id, JobState.DEAD))


def test_a_child_whose_large_result_is_read_again_is_awaited_again_while_it_runs_again(memory_crew: Crew):
    crew = memory_crew

    @crew.app.task
    async def large() -> bytes:
        return b"x" * (JOURNALLED + 1)

    @crew.app.task
    async def parent() -> int:
        size = len(await large.job())
        await sleep("1d")
        return size

    with use_memory(crew.app) as stand:
        handle = parent.enqueue()
        drain(crew.app)
        [child] = crew.app.find(task=large.name).jobs
        stand.clock.move("1d")
        crew.app.retry(child.id)
        assert [ran.state for ran in drain(crew.app)] == [JobState.BLOCKED, JobState.DONE, JobState.DONE]
        assert handle.result() == JOURNALLED + 1
