"""Outcomes that a store cannot take, and what is too large to settle: one job pays, the worker goes on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from headrace.errors import ConfigError, StoreError
from headrace.model.job import JobState
from headrace.model.outcome import Again, Cancel, Dead, Finish, Settlement, Snooze
from headrace.store.memory import MemoryStore
from headrace.task.codec import JobOptions
from headrace.task.retry import Retry
from headrace.worker.writer import in_parts
from worker import process_tasks
from worker.harness import Bench


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Picky(MemoryStore):
    """Refuses settlements that name a word, as a database refuses a value that it cannot hold."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self.always = always
        self.calls: list[int] = []
        self.fallen = 0

    async def settle(self, token: Any, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        self.calls.append(len(settlements))
        for position, each in settlements:
            if b"poison" in (getattr(each, "result", None) or b"") or (self.always and position == 2):
                self.fallen += 1
                raise StoreError("22P05: this value cannot be held")
        return await super().settle(token, settlements)


@pytest.mark.parametrize("signal", [Dead, Cancel])
async def test_a_reason_may_be_an_exception(bench: Bench, signal: type[Dead | Cancel]) -> None:
    @bench.app.task
    async def refuse() -> None:
        try:
            int("x")
        except ValueError as error:
            raise signal(error) from error

    @bench.app.task
    async def fine() -> None: ...

    bad = await bench.enqueue(refuse)
    good = await bench.enqueue_many(fine, [()] * 5)
    async with bench.worker():
        job = await bench.reach(bad, JobState.DEAD, JobState.CANCELLED)
        for id in good:
            await bench.reach(id, JobState.DONE)
    assert job.note == "invalid literal for int() with base 10: 'x'"


@pytest.mark.parametrize("reason", [Unreadable(), KeyError(), 7, None, "x" * 100_000, "\ud800", b"bytes"])
async def test_any_reason_ends_the_job(bench: Bench, reason: object) -> None:
    @bench.app.task
    async def refuse() -> None:
        raise Dead(reason)

    job = await bench.work(refuse)
    assert job.state is JobState.DEAD
    assert job.note
    assert len(job.note) < 5000


async def test_a_reason_that_was_changed_afterwards(bench: Bench) -> None:
    class Refused(Dead):
        def __init__(self, number: int) -> None:  # does not call its base
            self.number = number

    @bench.app.task
    async def refuse(number: int) -> None:
        error = Refused(number) if number else Cancel()
        error.reason = object()  # type: ignore[assignment]  # as a user may
        raise error

    @bench.app.task
    async def say_nothing() -> None:
        raise Refused(1)

    assert (await bench.work(refuse, 0)).state is JobState.CANCELLED
    assert (await bench.work(refuse, 1)).state is JobState.DEAD
    assert (await bench.work(say_nothing)).note == "final"


async def test_a_reason_does_not_show_redacted_arguments(bench: Bench) -> None:
    @bench.app.task(redact=["card"])
    async def pay(card: str) -> None:
        raise Dead(f"no such card {card}")

    job = await bench.work(pay, "4000-1234-5678")
    assert job.note is not None
    assert "4000" not in job.note


@pytest.mark.parametrize(
    "far",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.max.replace(tzinfo=UTC),
        datetime(9000, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
async def test_a_snooze_is_bounded_as_run_at_is(bench: Bench, far: datetime) -> None:
    with pytest.raises(ConfigError, match="Snooze"):
        Snooze(far)

    @bench.app.task(retry=Retry(max_attempts=1))
    async def wait() -> None:
        raise Snooze(far)

    job = await bench.work(wait)
    assert (job.state, job.history[0].kind) == (JobState.DEAD, "headrace.errors.ConfigError")
    with pytest.raises(ConfigError, match="run_at"):
        wait.using(run_at=far)


async def test_one_settlement_that_the_store_refuses_ends_its_own_job_only() -> None:
    store = Picky()
    bench = Bench(store)

    @bench.app.task
    async def work(number: int) -> str:
        return "poison" if number == 11 else "fine"

    ids = await bench.enqueue_many(work, [(number,) for number in range(20)])
    async with bench.worker() as worker:
        for id in ids:
            await bench.reach(id, JobState.DONE, JobState.DEAD)
        later = await bench.enqueue(work, 1)
        await bench.reach(later, JobState.DONE)
        await worker.idle.wait()
    jobs = [await bench.get(id) for id in ids]
    [bad] = [job for job in jobs if job.state is JobState.DEAD]
    assert (bad.id, bad.note, bad.attempt) == (ids[11], "bad_settlement", 1)
    assert (bad.history[0].kind, bad.history[0].attempt) == ("bad_settlement", 1)
    assert "22P05" in bad.history[0].message


async def test_a_position_that_cannot_be_settled_at_all_does_not_stop_the_worker() -> None:
    store = Picky(always=True)
    bench = Bench(store, lease="1h", heartbeat="10m")

    @bench.app.task
    async def work() -> None: ...

    ids = await bench.enqueue_many(work, [()] * 5)
    async with bench.worker() as worker:
        for id in ids[:2] + ids[3:]:
            await bench.reach(id, JobState.DONE)
        later = await bench.enqueue(work)
        await bench.reach(later, JobState.DONE)
        await worker.idle.wait()
    # Its lease is not renewed any more: it comes back when that has run out.
    assert (await bench.get(ids[2])).state is JobState.RUNNING


async def test_an_outcome_that_nothing_follows_from_fails_the_attempt(bench: Bench) -> None:
    @bench.app.task(retry=Retry(max_attempts=1))
    async def odd() -> None:
        error = Snooze("1s")
        error.due = "tomorrow"  # type: ignore[assignment]  # as a user may
        raise error

    assert (await bench.work(odd, options=JobOptions(deadline=3600.0))).state is JobState.DEAD


# ── sizes ───────────────────────────────────────────────────────────────────


async def test_a_result_over_the_limit_is_a_bad_result() -> None:
    bench = Bench(max_result=2048)

    @bench.app.task
    async def large(size: int) -> bytes:
        return b"x" * size

    job = await bench.work(large, 4096)
    assert (job.state, job.note, job.result) == (JobState.DEAD, "bad_result", None)
    assert job.history[0].message.startswith("the result takes 4,099 bytes, the limit is 2,048: ")
    assert (await bench.work(large, 2000)).state is JobState.DONE


async def test_a_result_over_the_limit_in_a_process() -> None:
    bench = Bench(max_result=2048)
    bench.app.tasks.update(process_tasks.app.tasks)
    job = await bench.work(process_tasks.large, 4096)
    assert (job.state, job.note) == (JobState.DEAD, "bad_result")


async def test_large_results_are_settled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Picky()
    bench = Bench(store, concurrency=20)
    monkeypatch.setattr("headrace.worker.writer.in_parts", lambda batch: in_parts(batch, 10_000))

    @bench.app.task
    async def large() -> bytes:
        return b"x" * 4000

    ids = await bench.enqueue_many(large, [()] * 11)
    async with bench.worker() as worker:
        for id in ids:
            await bench.reach(id, JobState.DONE)
        await worker.idle.wait()
    assert max(store.calls) <= 2
    assert sum(store.calls) == 11


def test_parts_hold_everything_once_and_in_order() -> None:
    batch: list[tuple[int, Settlement]] = [
        (number, Finish(JobState.DONE, result=b"x" * size)) for number, size in enumerate([1, 50, 200, 1, 99, 1, 1])
    ]
    batch.append((7, Again(0, 0)))
    parts = list(in_parts(batch, 100))
    assert [each for part in parts for each in part] == batch
    assert [[position for position, _ in part] for part in parts] == [[0, 1], [2], [3, 4], [5, 6, 7]]
