"""Undo jobs: they run when their job has failed, the last one first, and are cancelled when it is done."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace import (
    Cancel,
    ConfigError,
    Handle,
    Headrace,
    Job,
    JobState,
    NoCurrentJob,
    Retry,
    Unique,
    step,
    step_sync,
    undo,
    undo_sync,
)
from headrace.model.step import UNDO
from headrace.testing import drain, use_memory

DONE, DEAD, CANCELLED = JobState.DONE, JobState.DEAD, JobState.CANCELLED


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "http"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Agency:
    """A task that books and takes back, and what it did."""

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.ran: list[str] = []
        self.fails: list[BaseException] = []
        """What the task raises at its end, from the last one on."""
        self.registered: list[Handle[None]] = []

        @app.task(retry=Retry(max_attempts=1))
        async def take_back(what: str) -> None:
            self.ran.append(f"undo {what}")
            if what in self.broken:
                raise ConnectionError(what)

        @app.task(retry=Retry(max_attempts=3, base="0s", never=(LookupError,)))
        async def travel(trip: int) -> str:
            for what in ("hotel", "flight", "car"):
                booking = await step.using(key=what)(self.book, f"{what} {trip}")
                self.registered.append(await undo(take_back.job(booking)))
            if self.fails:
                raise self.fails.pop()
            return "there"

        self.broken: set[str] = set()
        self.take_back, self.travel = take_back, travel

    def book(self, what: str) -> str:
        self.ran.append(what)
        return what

    async def undo_jobs(self) -> list[Job]:
        """In the order of their registration."""
        return sorted((await self.app.afind(task=self.take_back.name)).jobs, key=lambda job: job.id)

    async def ended(self, *handles: Handle[Any]) -> list[Job]:
        while True:
            jobs = [await handle.astatus() for handle in handles]
            if all(job.state.finished for job in jobs):
                return jobs
            await asyncio.sleep(0.01)


@pytest.fixture
def agency(app: Headrace) -> Iterator[Agency]:
    yield Agency(app)
    app.close()


BOOKED = ["hotel 1", "flight 1", "car 1"]
UNDONE = ["undo car 1", "undo flight 1", "undo hotel 1"]


@pytest.mark.parametrize("error", [LookupError("declined"), Cancel("no time")], ids=["dead", "cancelled"])
async def test_undo_jobs_run_after_a_failure_the_last_one_first(agency: Agency, error: Exception):
    agency.fails = [error]
    async with asyncio.timeout(60), agency.app.worker():
        handle = await agency.travel.using(tenant="acme").aenqueue(1)
        [job] = await agency.ended(handle)
        jobs = await agency.ended(*agency.registered)
    assert job.state is (CANCELLED if isinstance(error, Cancel) else DEAD)
    assert agency.ran == [*BOOKED, *UNDONE]
    assert [(job.state, job.tenant) for job in jobs] == [(DONE, "acme")] * 3


async def test_they_are_cancelled_if_the_job_is_done_and_wait_until_then(agency: Agency):
    agency.fails = [ConnectionError("again"), ConnectionError("and again")]
    async with asyncio.timeout(60), agency.app.worker():
        handle = await agency.travel.aenqueue(1)
        assert await handle.aresult() == "there"
        jobs = await agency.ended(*agency.registered)
        [start] = (await agency.app.afind(task=UNDO)).jobs
    # Three attempts have registered them once.
    assert agency.ran == BOOKED
    assert len(jobs) == 9
    assert {job.state for job in jobs} == {CANCELLED}
    assert [job.id for job in await agency.undo_jobs()] == sorted({job.id for job in jobs})
    assert len(await agency.undo_jobs()) == 3
    assert (start.state, start.note) == (CANCELLED, f"not needed: {handle.id} is done")


async def test_a_dead_job_that_was_undone_starts_over_when_it_is_retried(agency: Agency):
    agency.fails = [LookupError("declined")]
    async with asyncio.timeout(60), agency.app.worker():
        handle = await agency.travel.aenqueue(1)
        await agency.ended(handle, *agency.registered)
        await agency.ended(*agency.registered)
        assert await agency.app.aretry(handle.id) == {handle.id}
        assert await handle.aresult() == "there"
        jobs = await agency.ended(*agency.registered)
    assert agency.ran == [*BOOKED, *UNDONE, *BOOKED]
    assert [job.state for job in jobs] == [DONE] * 3 + [CANCELLED] * 3
    assert len({job.id for job in jobs}) == 6


async def test_a_dead_undo_job_holds_the_earlier_ones_until_it_is_replayed(agency: Agency):
    agency.fails, agency.broken = [LookupError("declined")], {"flight 1"}
    async with asyncio.timeout(60), agency.app.worker():
        await agency.ended(await agency.travel.aenqueue(1))
        hotel, flight, _ = agency.registered
        await agency.ended(flight)
        assert (await hotel.astatus()).state is JobState.BLOCKED
        agency.broken.clear()
        await agency.app.aretry(flight.id)
        await hotel.aresult()
    assert agency.ran[-2:] == ["undo flight 1", "undo hotel 1"]


async def test_a_sync_task_registers_undo_jobs(agency: Agency):
    @agency.app.task(retry=Retry(max_attempts=1))
    def travel(trip: int) -> None:
        for what in ("hotel", "flight"):
            agency.registered.append(undo_sync(agency.take_back.job(step_sync(agency.book, f"{what} {trip}"))))
        raise LookupError

    async with asyncio.timeout(60), agency.app.worker():
        await agency.ended(await travel.aenqueue(1))
        await agency.ended(*agency.registered)
    assert agency.ran == ["hotel 1", "flight 1", "undo flight 1", "undo hotel 1"]


@pytest.fixture
def memory_agency() -> Iterator[Agency]:
    app = Headrace("memory://")
    yield Agency(app)
    app.close()


async def test_undo_jobs_that_are_registered_together_have_one_order(memory_agency: Agency):
    agency = memory_agency

    @agency.app.task(retry=Retry(max_attempts=1))
    async def travel() -> None:
        calls = [agency.take_back.job(str(number)) for number in range(5)]
        agency.registered += await asyncio.gather(*map(undo, calls))
        raise LookupError

    async with asyncio.timeout(60), agency.app.worker():
        await agency.ended(await travel.aenqueue())
        await agency.ended(*agency.registered)
    assert agency.ran == [f"undo {number}" for number in reversed(range(5))]


async def test_an_operator_who_cancels_the_start_cancels_what_is_registered_later(memory_agency: Agency):
    agency = memory_agency

    @agency.app.task(retry=Retry(max_attempts=1))
    async def travel() -> None:
        agency.registered.append(await undo(agency.take_back.job("hotel")))
        [start] = (await agency.app.afind(task=UNDO)).jobs
        await agency.app.acancel(start.id)
        agency.registered.append(await undo(agency.take_back.job("flight")))
        raise LookupError

    async with asyncio.timeout(60), agency.app.worker():
        await agency.ended(await travel.aenqueue())
        jobs = await agency.ended(*agency.registered)
    assert [job.state for job in jobs] == [CANCELLED, CANCELLED]
    assert agency.ran == []


async def test_a_task_in_a_process_registers_undo_jobs(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copy(sqlite_template, tmp_path / "jobs.db")
    monkeypatch.setenv("UNDO_WITNESS", str(tmp_path / "ran"))
    monkeypatch.setenv("HEADRACE_URL", f"sqlite:///{tmp_path}/jobs.db")
    from worker import undo_tasks

    app, states = undo_tasks.app, list[str]()
    async with asyncio.timeout(60), app, app.worker(concurrency=2, app="worker.undo_tasks:app"):
        await undo_tasks.travel.aenqueue("hotel", "flight")
        while states != ["done", "done"]:
            await asyncio.sleep(0.01)
            states = [job.state for job in (await app.afind(task=undo_tasks.leave.name)).jobs]
    assert (tmp_path / "ran").read_text().split() == ["flight", "hotel"]


def test_the_kit_runs_undo_jobs():
    app = Headrace("memory://")
    agency = Agency(app)
    agency.fails = [LookupError("declined")]
    with use_memory(app):
        agency.travel.enqueue(1)
        drain(app)
    assert agency.ran == [*BOOKED, *UNDONE]


# ── wrong uses ───────────────────────────────────────────────────────────────


async def test_outside_a_task_there_is_nothing_to_undo(memory_agency: Agency):
    with pytest.raises(NoCurrentJob):
        await undo(memory_agency.take_back.job("hotel"))
    with pytest.raises(NoCurrentJob):
        undo_sync(memory_agency.take_back.job("hotel"))


async def test_wrong_calls_are_refused_and_nothing_is_stored(memory_agency: Agency):
    agency, refused = memory_agency, list[str]()

    @agency.app.task(unique=Unique())
    async def only_once() -> None: ...

    @agency.app.task
    async def travel() -> None:
        wrong = [
            agency.take_back,
            only_once.job(),
            agency.take_back.using(key="k").job("hotel"),
            agency.take_back.using(after=later).job("hotel"),
            agency.take_back.using(after=agency.take_back.job("flight")).job("hotel"),
        ]
        for call in wrong:
            with pytest.raises(ConfigError) as caught:
                await undo(cast("Any", call))
            refused.append(str(caught.value))

        async def inner() -> None:
            with pytest.raises(ConfigError, match="not inside one of its steps"):
                await undo(agency.take_back.job("hotel"))

        await step(inner)

    later = await agency.take_back.using(delay="1d").aenqueue("car")
    async with asyncio.timeout(60), agency.app.worker():
        handle = await travel.aenqueue()
        await handle.aresult()
    assert refused[0].startswith("undo takes task.job(…), not <Task ")
    assert all("has a key or a unique lock" in text for text in refused[1:3])
    assert all("follows other jobs" in text for text in refused[3:])
    assert {job.id for job in (await agency.app.afind()).jobs} == {handle.id, later.id}
