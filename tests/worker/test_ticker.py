"""The ticker: each slot makes one job or one recorded skip, whichever workers tick, stop, restart or have a wrong time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conftest import nothing_left_behind, opened
from headrace.app import Headrace
from headrace.errors import ConfigError, Unavailable
from headrace.model.job import FINISHED, Batch, Job, JobId, JobState, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import DONE, Finish
from headrace.model.records import Filter
from headrace.operate.operations import Operations
from headrace.operate.schedules import KIND, Schedules, decode
from headrace.policy.schedule import Schedule, declare, next_slot, slot_batch, slots
from headrace.policy.schedule_entry import ScheduleEntry
from headrace.store import connect
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock
from headrace.worker.ticker import Ticker
from worker.harness import Bench, until

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
JOB = NewJob("t", b"{}", Lane())


ALONE = NewJob("t", b"{}", Lane(), unique=UniqueLock("k", frozenset(JobState) - FINISHED))


def rule(name: str = "s", *, job: NewJob = JOB, **options: Any) -> Schedule:
    return declare(name, job=job, **options)


def ticker(store: Store, *schedules: Schedule, **options: Any) -> Ticker:
    """One that looks every time it is asked."""
    return Ticker(store, {schedule.name: schedule for schedule in schedules}, poll=0.0, **options)


async def rounds(one: Ticker, count: int = 2) -> None:
    await one.introduce()
    for _ in range(count):
        await one.tick()


async def jobs(store: Store) -> list[Job]:
    found: list[Job] = []
    before: JobId | None = None
    while True:
        page = await store.find(Filter(), before=before, limit=200)
        found += page.jobs
        if page.next is None:
            return found[::-1]
        before = page.next


async def entry(store: Store, name: str = "s") -> ScheduleEntry:
    found = decode(name, (await store.records(KIND))[name])
    assert found is not None
    return found


def of_slots(name: str, times: list[datetime]) -> list[Any]:
    return [slot_batch(name, slot) for slot in times]


async def finish(store: Store) -> None:
    """Run every ready job."""
    while lease := await store.claim(Ask(new_worker_id(), ("default",), 100, MINUTE, new_token())):
        await store.settle(lease.token, [(at, DONE) for at in range(len(lease.jobs))])


# ── slots ────────────────────────────────────────────────────────────────────


async def test_each_slot_makes_one_job(store: Store, clock: FakeClock):
    schedule = rule(every="10s")
    begun = clock.now()
    one = ticker(store, schedule)
    for _ in range(35):
        await rounds(one)
        clock.advance(1)
    await rounds(one)
    expected = slots(schedule, begun, clock.now(), 100)
    assert len(expected) in {3, 4}
    assert [job.id for job in await jobs(store)] == of_slots("s", expected)
    assert ((await entry(store)).fired, (await entry(store)).skipped) == (len(expected), 0)


async def test_the_log_says_which_schedule_enqueued_a_job(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, logger="headrace.job.enqueued")
    one = ticker(store, rule("nightly", every="10s"))
    await rounds(one)
    clock.advance(11)
    await rounds(one)
    lines = [vars(record) for record in caplog.records if record.name == "headrace.job.enqueued"]
    assert [(line["job_id"], line["by"]) for line in lines] == [
        (str(job.id), "schedule nightly") for job in await jobs(store)
    ]
    assert lines


async def test_nothing_fires_before_its_time(store: Store, clock: FakeClock):
    one = ticker(store, rule(cron="0 * * * *"))
    await rounds(one)
    clock.advance(HOUR - timedelta(seconds=1, microseconds=123_456))
    await rounds(one)
    assert await jobs(store) == []
    clock.advance(1)
    await rounds(one)
    assert len(await jobs(store)) == 1


async def test_three_at_once_fire_each_slot_once(store_name: str, store_url: str, clock: FakeClock):
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(connect(store_url, clock=clock)))]
        for _ in range(2):
            stores.append(
                stores[0]
                if store_name == "memory"
                else await stack.enter_async_context(opened(connect(store_url, clock=clock)))
            )
        schedules = [rule(f"s{n}", every="1s") for n in range(5)]
        begun = clock.now()
        tickers = [ticker(each, *schedules) for each in stores]
        for _ in range(20):
            await asyncio.gather(*(rounds(each, 3) for each in tickers))
            clock.advance(1)
        for each in tickers:
            each._handicap = timedelta(0)
        await asyncio.gather(*(rounds(each, 3) for each in tickers))
        made = [job.id for job in await jobs(stores[0])]
        expected = slots(schedules[0], begun, clock.now(), 100)
        assert len(expected) >= 19
        for schedule in schedules:
            decided = await entry(stores[0], schedule.name)
            # The one whose turn it was may have been told to wait a moment: then the last slot is still open.
            assert decided.cursor >= expected[-2]
            assert decided.skipped == 0
            assert [id for id in of_slots(schedule.name, expected) if id in made] == of_slots(
                schedule.name, [slot for slot in expected if slot <= decided.cursor]
            )
        assert len(made) == len(set(made)) == sum([(await entry(stores[0], s.name)).fired for s in schedules])


async def test_a_restart_forgets_nothing_and_repeats_nothing(store: Store, clock: FakeClock):
    schedule = rule(every="1m")
    begun = clock.now()
    for _ in range(10):
        await rounds(ticker(store, schedule))
        clock.advance(20)
    await rounds(ticker(store, schedule))
    assert [job.id for job in await jobs(store)] == of_slots("s", slots(schedule, begun, clock.now(), 100))


async def test_a_ticker_whose_clock_is_behind_does_no_harm(store_name: str, store_url: str, clock: FakeClock):
    behind = FakeClock(clock.now() - HOUR)
    schedule = rule(every="10s")
    begun = clock.now()
    async with opened(connect(store_url, clock=clock)) as right, opened(connect(store_url, clock=behind)) as wrong:
        good = ticker(right, schedule)
        # Memory is one store with one clock, also behind a server.
        bad = ticker(wrong if store_name not in {"memory", "http"} else right, schedule)
        await rounds(good)
        for _ in range(10):
            await rounds(bad)
            await rounds(good)
            clock.advance(5)
            behind.advance(5)
        await rounds(bad)
        await rounds(good)
        assert {job.id for job in await jobs(right)} == set(of_slots("s", slots(schedule, begun, clock.now(), 100)))


async def test_the_wall_clock_of_the_worker_has_no_say(store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    """Whatever this machine believes: the store's time decides."""
    monkeypatch.setattr("time.time", lambda: 0.0)
    one = ticker(store, rule(every="10s"))
    await rounds(one)
    assert await jobs(store) == []
    clock.advance(10)
    await rounds(one)
    assert len(await jobs(store)) == 1


async def test_a_store_clock_that_goes_back_fires_nothing_twice(store_url: str):
    start = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    schedule = rule(every="1m")
    clock = FakeClock(start)
    async with opened(connect(store_url, clock=clock)) as store:
        await rounds(ticker(store, schedule))
        clock.advance(5 * MINUTE)
        await rounds(ticker(store, schedule))
        made = await jobs(store)
        clock.advance(timedelta(minutes=-4))
        for _ in range(5):
            await rounds(ticker(store, schedule))
            clock.advance(MINUTE)
        assert len(made) == 1  # the others were missed, and the last one caught up
        assert [job.id for job in (await jobs(store))[:1]] == [job.id for job in made]
        assert len(await jobs(store)) == 1
        await rounds(ticker(store, schedule))
        assert len(await jobs(store)) == 2


# ── the deciding worker may die ──────────────────────────────────────────────


class Mute:
    """A store that stops answering to one verb."""

    def __init__(self, store: Store, verb: str) -> None:
        self._store = store
        self._verb = verb

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            raise Unavailable("gone")
        return getattr(self._store, name)


async def test_what_one_decided_another_fires(store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    schedule = rule(every="1m")
    dying: Any = Mute(store, "enqueue")
    first = ticker(dying, schedule)
    await rounds(first, 1)
    clock.advance(MINUTE)
    with pytest.raises(Unavailable):
        await first.tick()
    assert (await entry(store)).pending
    assert await jobs(store) == []
    second = ticker(store, schedule)
    await rounds(second)
    assert await jobs(store) == []  # it may be under way
    clock.advance(2)
    await rounds(second)
    [job] = await jobs(store)
    assert job.id == slot_batch("s", (await entry(store)).cursor)
    assert (await entry(store)).pending == ()


async def test_a_sleeper_fires_nothing_again(store: Store, clock: FakeClock):
    """Stopped between deciding and firing, woken when the job has long been done and pruned."""
    schedule = rule(every="1m")
    sleeper = ticker(store, schedule)
    await rounds(sleeper)
    clock.advance(MINUTE)
    await rounds(sleeper)
    stale = await entry(store)
    await finish(store)
    clock.advance(MINUTE)
    await rounds(ticker(store, schedule))
    # What the sleeper knew is of another version: it can decide nothing any more.
    assert await sleeper._write("s", stale) is False
    assert len(await jobs(store)) == 2


# ── overlap ──────────────────────────────────────────────────────────────────


async def test_overlap_skip(store: Store, clock: FakeClock):
    one = ticker(store, rule(every="1m", overlap="skip"))
    await rounds(one)
    for _ in range(3):
        clock.advance(MINUTE)
        await rounds(one)
    assert len(await jobs(store)) == 1
    now = await entry(store)
    assert (now.fired, now.skipped, now.recent[0].answer, now.recent[0].reason) == (1, 2, "skipped", "overlap")
    await finish(store)
    clock.advance(MINUTE)
    await rounds(one)
    assert len(await jobs(store)) == 2


async def test_overlap_cancel(store: Store, clock: FakeClock):
    one = ticker(store, rule(every="1m", overlap="cancel"))
    await rounds(one)
    clock.advance(MINUTE)
    await rounds(one)
    lease = await store.claim(Ask(new_worker_id(), ("default",), 1, HOUR, new_token()))
    assert lease is not None
    clock.advance(MINUTE)
    await rounds(one)
    clock.advance(MINUTE)
    await rounds(one)
    first, second, third = await jobs(store)
    assert (first.state, first.cancelling) == (JobState.RUNNING, True)
    assert second.state is JobState.CANCELLED
    assert "next slot of schedule s" in (second.note or "")
    assert third.state is JobState.READY


async def test_overlap_allow(store: Store, clock: FakeClock):
    one = ticker(store, rule(every="1m"))
    await rounds(one)
    for _ in range(3):
        clock.advance(MINUTE)
        await rounds(one)
    assert [job.state for job in await jobs(store)] == [JobState.READY] * 3


async def test_overlap_skip_fires_the_slot_that_is_on_time_not_the_oldest(store: Store, clock: FakeClock):
    schedule = rule(cron="0 * * * *", overlap="skip", catch_up="all(3)")
    begun = clock.now()
    await rounds(ticker(store, schedule))
    on_time = next_slot(schedule, begun + 10 * HOUR)
    assert on_time is not None
    clock.advance(on_time - begun + SECOND)
    await rounds(ticker(store, schedule))
    last = slots(schedule, begun, clock.now(), 100)[-1]
    assert [job.id for job in await jobs(store)] == of_slots("s", [last])
    now = await entry(store)
    told = [(each.answer, each.reason, each.count) for each in now.recent]
    assert told == [("fired", "", 1), ("skipped", "overlap", 3), ("skipped", "missed", 7)]


# ── a task that is unique ────────────────────────────────────────────────────


async def test_a_slot_that_meets_a_unique_job_is_skipped(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    said: list[tuple[str, dict[str, Any]]] = []
    one = ticker(store, rule(every="1m", job=ALONE), emit=lambda what, **how: said.append((what, how)))
    batch = Batch(new_batch(), [ALONE])
    await store.enqueue(batch)
    holder = job_id(batch.id, 0)
    await rounds(one)
    with caplog.at_level(logging.WARNING, "headrace.worker"):
        for _ in range(2):
            clock.advance(MINUTE)
            await rounds(one)
    now = await entry(store)
    assert (now.fired, now.skipped, now.last, now.pending) == (0, 2, None, ())
    assert [(each.answer, each.reason, each.job) for each in now.recent] == [("skipped", "unique", holder)] * 2
    assert [what for what, _ in said] == ["schedule.skipped"] * 2
    assert caplog.text.count("1 slot skipped (unique)") == 2
    assert [job.id for job in await jobs(store)] == [holder]
    await finish(store)
    clock.advance(MINUTE)
    await rounds(one)
    now = await entry(store)
    assert (now.fired, now.skipped, now.last) == (1, 2, slot_batch("s", now.cursor))
    assert len(await jobs(store)) == 2


async def test_a_slot_that_meets_its_own_unique_job_does_not_blind_overlap(store: Store, clock: FakeClock):
    one = ticker(store, rule(every="1m", overlap="cancel", job=ALONE))
    await rounds(one)
    clock.advance(MINUTE)
    await rounds(one)
    first = (await entry(store)).last
    lease = await store.claim(Ask(new_worker_id(), ("default",), 1, HOUR, new_token()))
    assert lease is not None
    clock.advance(MINUTE)
    await rounds(one)
    # It runs, is asked to stop, and holds its lock until it has stopped: that slot makes no job, and is recorded as
    # skipped.
    now = await entry(store)
    assert (now.fired, now.skipped, now.last, now.recent[0].reason) == (1, 1, first, "unique")
    await store.settle(lease.token, [(0, Finish(JobState.CANCELLED))])
    clock.advance(MINUTE)
    await rounds(one)
    now = await entry(store)
    assert (now.fired, now.last) == (2, slot_batch("s", now.cursor))


async def test_running_it_now_does_not_make_somebodys_job_its_own(store: Store, clock: FakeClock):
    batch = Batch(new_batch(), [ALONE])
    await store.enqueue(batch)
    holder = job_id(batch.id, 0)
    lease = await store.claim(Ask(new_worker_id(), ("default",), 1, HOUR, new_token()))
    assert lease is not None
    one = ticker(store, rule(every="1m", overlap="cancel", job=ALONE))
    await rounds(one)
    assert await Operations(store).schedules.run_now("s") == holder
    now = await entry(store)
    assert now.last is None
    assert (now.recent[0].answer, now.recent[0].reason, now.recent[0].job) == ("run", "unique", holder)
    clock.advance(MINUTE)
    await rounds(one)
    [job] = await jobs(store)
    assert (job.state, job.cancelling) == (JobState.RUNNING, False)


# ── catching up, jitter ──────────────────────────────────────────────────────


@pytest.mark.parametrize(("catch_up", "fired"), [("none", 0), ("last", 1), ("all(4)", 4)])
async def test_catching_up(store: Store, clock: FakeClock, catch_up: str, fired: int, caplog: pytest.LogCaptureFixture):
    schedule = rule(cron="0 * * * *", catch_up=catch_up)
    begun = clock.now()
    await rounds(ticker(store, schedule))
    clock.advance(10 * HOUR + 30 * MINUTE)
    with caplog.at_level(logging.WARNING, "headrace.worker"):
        await rounds(ticker(store, schedule))
    missed = slots(schedule, begun, clock.now(), 100)
    assert len(missed) == 10
    assert [job.id for job in await jobs(store)] == of_slots("s", missed[10 - fired :])
    now = await entry(store)
    assert (now.fired, now.skipped, now.cursor) == (fired, 10 - fired, missed[-1])
    assert f"{10 - fired} slots skipped (missed)" in caplog.text


async def test_jitter_delays_the_job_not_the_slot(store: Store, clock: FakeClock):
    one = ticker(store, rule(every="1h", jitter="10m"))
    await rounds(one)
    clock.advance(HOUR)
    await rounds(one)
    [job] = await jobs(store)
    slot = (await entry(store)).cursor
    assert job.id == slot_batch("s", slot)
    assert job.run_at is None or slot < job.run_at <= slot + 10 * MINUTE


# ── declared and changed ─────────────────────────────────────────────────────


async def test_what_is_declared_is_updated_and_stays_paused(store: Store, clock: FakeClock):
    await rounds(ticker(store, rule(every="1h")))
    await Operations(store, actor="ada").schedules.pause("s")
    version = (await store.records(KIND))["s"].version
    await rounds(ticker(store, rule(every="1h")))
    assert (await store.records(KIND))["s"].version == version
    clock.advance(HOUR)
    await rounds(ticker(store, rule(every="1m")))
    now = await entry(store)
    assert (now.schedule.every, now.paused, now.paused_by) == (MINUTE, True, "ada")
    await Operations(store).schedules.resume("s")
    await rounds(ticker(store, rule(every="1m")))
    assert await jobs(store) == []  # nothing is caught up from before it was resumed
    clock.advance(MINUTE)
    await rounds(ticker(store, rule(every="1m")))
    assert len(await jobs(store)) == 1


async def test_a_change_at_run_time_outlives_a_restart(store: Store):
    await rounds(ticker(store, rule(every="1h")))
    await Operations(store).schedules.add(rule(every="2h"), replace=True)
    await rounds(ticker(store, rule(every="1h")))
    assert (await entry(store)).schedule.every == 2 * HOUR
    await rounds(ticker(store, rule(every="3h")))
    assert (await entry(store)).schedule.every == 3 * HOUR


async def test_what_code_no_longer_declares_is_reported_and_stays(store: Store, caplog: pytest.LogCaptureFixture):
    await rounds(ticker(store, rule("old", every="1h"), rule("new", every="1h"), app="shop:app"))
    await Operations(store).schedules.add(rule("by-hand", every="1h"))
    with caplog.at_level(logging.WARNING, "headrace.worker"):
        await rounds(ticker(store, rule("new", every="1h"), app="shop:app", tasks=["t"]))
        await rounds(ticker(store, app="other:app", tasks=["u"]))
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == ["old"]
    assert set(await Schedules(store).all()) == {"old", "new", "by-hand"}


@pytest.mark.parametrize(("one", "other"), [("shop:app", "mail:app"), ("", "")])
async def test_two_apps_that_declare_one_name_are_told(
    store: Store, caplog: pytest.LogCaptureFixture, one: str, other: str
):
    first, second = rule(every="1h"), rule(every="2h", job=NewJob("u", b"{}", Lane()))
    with caplog.at_level(logging.WARNING, "headrace.schedules"):
        await rounds(ticker(store, first, app=one, tasks=["t"]))
        assert caplog.text == ""
        for _ in range(2):
            await rounds(ticker(store, second, app=other, tasks=["u"]))
    [record] = caplog.records
    said = record.getMessage()
    assert said.startswith("schedule s is declared by two apps of this store: ")
    for part in (one, other, "every 1h, task t", "every 2h, task u"):
        assert part in said
    assert record.__dict__["event"] == "schedule.contested"


@pytest.mark.parametrize("app", ["shop:app", ""])
async def test_a_deploy_is_no_second_app(store: Store, caplog: pytest.LogCaptureFixture, app: str):
    with caplog.at_level(logging.WARNING, "headrace.schedules"):
        await rounds(ticker(store, rule(every="1h"), app=app, tasks=["t"]))
        await rounds(ticker(store, rule(every="2h"), app=app, tasks=["t", "u"]))
        await Operations(store).schedules.add(rule("by-hand", every="1h"))
        await rounds(ticker(store, rule("by-hand", every="2h"), app=app, tasks=["t"]))
    assert "two apps" not in caplog.text


async def test_one_that_cannot_be_read_stops_nobody(store: Store, clock: FakeClock):
    elsewhere = Schedule(name="mars", cron="0 * * * *", tz="Mars/Olympus", job=rule(every="1h").job)
    with suppress(ConfigError):  # a server refuses to write it
        await store.record(KIND, "junk", b"\xc1", None)
    with suppress(ConfigError):
        await Operations(store).schedules.add(elsewhere)
    one = ticker(store, rule(every="1m"))
    await rounds(one)
    clock.advance(MINUTE)
    await rounds(one)
    assert len(await jobs(store)) == 1


async def test_verbs(store: Store, clock: FakeClock):
    book = Operations(store).schedules
    await book.add(rule(every="1h", overlap="skip"))
    made = await book.run_now("s")
    assert [job.id for job in await jobs(store)] == [made]
    assert (await entry(store)).recent[0].answer == "run"
    clock.advance(HOUR)
    await rounds(ticker(store))
    assert (await entry(store)).skipped == 1  # the one made by hand still waits
    assert await book.remove("s") is False
    assert await book.all() == {}


# ── inside a worker ──────────────────────────────────────────────────────────


@pytest.fixture
async def quick() -> AsyncIterator[Bench]:
    async with nothing_left_behind():
        yield Bench()


async def test_a_worker_ticks(real_store: Store):
    app = Headrace("memory://")
    ran: list[int] = []

    @app.task
    async def note() -> None:
        ran.append(1)

    from headrace.worker import Duties, Worker

    bench = Bench(real_store)
    every_second = declare("every-second", every="1s", job=note.job().job)
    worker = Worker(app.tasks, real_store, bench.settings, duties=Duties(schedules={"every-second": every_second}))
    events: list[tuple[str, Any]] = []
    worker.on_event(lambda name, fields: events.append((name, fields)))
    async with worker:
        await until(lambda: len(ran) >= 2 and sum(name == "schedule.fired" for name, _ in events) >= 2)
    fired = [fields for name, fields in events if name == "schedule.fired"]
    assert len(fired) >= 2
    assert len({each["slot"] for each in fired}) == len(fired)


async def test_a_worker_notices_what_is_added(quick: Bench):
    @quick.app.task
    async def note() -> None: ...

    async with quick.worker() as worker:
        added = declare("later", every="1s", job=note.job().job)
        await Operations(quick.store).schedules.add(added)
        await until(lambda: worker.counters.succeeded >= 1)
