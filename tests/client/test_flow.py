"""An app's limits, unique jobs, queues and pauses, from sync and async code."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import ConfigError, Headrace, JobState, Limit, LimitNotFound, Unique


def test_a_handle_says_whether_its_job_is_new(app: Headrace):
    @app.task(unique=Unique())
    async def sync(shop: str) -> None: ...

    one, same, other = sync.enqueue("acme"), sync.enqueue("acme"), sync.enqueue("zeta")
    assert [each.created for each in (one, same, other)] == [True, False, True]
    assert same == one
    assert not sync.handle(one.id).created
    keyed = [sync.using(key="k").enqueue("omega").created for _ in range(2)]
    assert keyed == [True, False]
    one.cancel()
    assert sync.enqueue("acme").created  # cancelled: the lock is free
    app.close()


async def test_single_enqueues_that_travel_together_meet_in_the_lock(app: Headrace):
    @app.task(unique=Unique())
    async def sync(shop: str) -> None: ...

    async with app:
        handles = await asyncio.gather(*(sync.aenqueue("acme") for _ in range(20)))
        assert [handle.created for handle in handles].count(True) == 1
        assert len(set(handles)) == 1


def test_bulk_answers_the_holder_or_leaves_it_out(app: Headrace):
    @app.task(unique=Unique(on_conflict="return"))
    async def answered(number: int) -> None: ...

    @app.task(unique=Unique(on_conflict="skip"))
    async def skipped(number: int) -> None: ...

    first = app.enqueue_many(answered.job(number) for number in (1, 2, 1))
    assert [handle.created for handle in first] == [True, True, False]
    assert first[2] == first[0]
    assert len(app.enqueue_many(skipped.job(number) for number in (1, 2, 1))) == 2
    assert len(app.enqueue_many(skipped.job(number) for number in (1, 2, 3))) == 1
    assert not skipped.enqueue(1).created
    app.close()


def test_replace_cancels_one_that_waits(app: Headrace):
    @app.task(unique=Unique(key=lambda shop, _: shop, on_conflict="replace"))
    async def sync(shop: str, version: int) -> None: ...

    one, two = sync.enqueue("acme", 1), sync.enqueue("acme", 2)
    assert two.created
    assert two != one
    assert one.status().state is JobState.CANCELLED
    assert two.status().state is JobState.READY
    app.close()


@pytest.mark.parametrize("way", ["done", "dead", "cancelled", "expired", "deleted"])
async def test_every_way_out_frees_the_lock(app: Headrace, way: str):
    from headrace import Dead

    @app.task(name="t", unique=Unique())
    async def task(how: str) -> None:
        if how == "dead":
            raise Dead("no")

    async with app:
        bound: Any = task.using(expires="1ms") if way == "expired" else task
        one = await bound.aenqueue(way)
        assert not (await task.aenqueue(way)).created
        if way == "cancelled":
            await one.acancel()
        elif way == "deleted":
            await app.adelete(one)
        else:
            async with app.worker(concurrency=1) as worker, asyncio.timeout(60):
                await worker.idle.wait()
        assert (await task.aenqueue(way)).created


def test_limits_at_run_time(app: Headrace):
    @app.task(limits=[Limit("stripe", rate="90/s", burst=30)])
    async def charge() -> None: ...

    assert app.limits.list() == {}
    with pytest.raises(LimitNotFound, match=r"no limit 'stripe' \(known: none\): a limit is there once a worker"):
        app.limits.set("stripe", rate="50/s")

    async def briefly() -> None:
        async with app.worker(concurrency=1) as worker, asyncio.timeout(60):
            await worker.idle.wait()

    asyncio.run(briefly())
    entry = app.limits.set("stripe", rate="50/s", concurrency=4)
    assert (entry.rule.rate, entry.rule.burst, entry.rule.concurrency) == (50.0, 30.0, 4)
    entry = app.limits.list()["stripe"]
    assert entry.declared is not None
    assert (entry.declared.rate, entry.rule.rate) == (90.0, 50.0)
    for figures in ({"rate": "fast"}, {"burst": 0}, {"concurrency": True}, {}):
        wrong: dict[str, Any] = figures
        with pytest.raises(ConfigError, match="limit 'stripe': "):
            app.limits.set("stripe", **wrong)
    back = app.limits.reset("stripe")
    assert back is not None
    assert (back.rule.rate, back.rule.concurrency) == (90.0, None)
    with pytest.raises(LimitNotFound):
        app.limits.reset("other")
    with pytest.raises(ConfigError, match="is not a valid limit name"):
        app.limits.reset("No:x")
    assert app.limits.remove("stripe") == ["stripe"]
    assert app.limits.list() == {}
    app.close()


def test_pauses(app: Headrace):
    app.pause("billing", by="ann")
    app.pause(queue="mail", until="2h")
    app.pause(task="shop.charge")
    app.pause(tenant="acme", until=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(ConfigError, match="has passed: nothing would be paused"):
        app.pause("late", until=datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(ConfigError, match="must be more than 0"):
        app.pause("late", until="0s")
    found = {(pause.kind, pause.name): pause for pause in app.pauses()}
    assert set(found) == {("queue", "billing"), ("queue", "mail"), ("task", "shop.charge"), ("tenant", "acme")}
    assert found["queue", "billing"].by == "ann"
    until = found["queue", "mail"].until
    assert until is not None
    assert timedelta(minutes=119) < until - found["queue", "mail"].since <= timedelta(hours=2)
    app.resume("billing")
    app.resume(queue="mail")
    app.resume(task="shop.charge")
    app.resume(tenant="acme")
    assert app.pauses() == []
    app.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "one of queue, task and tenant"),
        ({"queue": "a", "task": "b"}, "one of queue, task and tenant"),
        ({"tenant": ""}, "no tenant is named"),
        ({"queue": "No"}, "is not a valid queue name"),
        ({"task": "a b"}, "is not a valid task name"),
        ({"queue": "a", "until": "soon"}, "is not a duration"),
        ({"queue": "a", "until": "0s"}, "must be more than 0"),
        ({"queue": "a", "until": 5}, "until = 5"),
        ({"queue": "a", "until": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001  # nonsense
    ],
)
def test_nonsense_to_pause(app: Headrace, options: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        app.pause(**options)


def test_a_job_without_turns_keeps_its_tenant(app: Headrace):
    app.queue("loose", fair="off")

    @app.task(queue="loose", tenant=lambda who: who)
    async def note(who: str) -> None: ...

    jobs = [note.job("acme").job, note.using(tenant="zeta", timeout="5s").job("acme").job]
    assert {job.lane.tenant for job in jobs} == {""}
    assert all(job.options is not None for job in jobs)
    assert note.using(queue="other").job("acme").job.lane.tenant == "acme"


async def test_the_same_verbs_from_async_code(app: Headrace):
    @app.task(limits=[Limit("api", concurrency=3)])
    async def call() -> None: ...

    async with app:
        async with app.worker(concurrency=1) as worker, asyncio.timeout(60):
            await worker.idle.wait()
        assert (await app.limits.aset("api", concurrency=2)).rule.concurrency == 2
        back = await app.limits.areset("api")
        assert back is not None
        assert back.rule.concurrency == 3
        await app.apause(task=call.name, by="ann")
        handle = await call.aenqueue()
        found = await handle.aexplain()
        assert f"task {call.name} is paused by ann" in str(found)
        await app.aresume(task=call.name)
        assert await app.apauses() == []
