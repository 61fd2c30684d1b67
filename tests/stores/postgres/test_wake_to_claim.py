"""Waiting for a lease: a hint is followed by one claim, and a claim that left nothing by none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import rule
from headrace.model.job import JobState
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Lease, new_token, new_worker_id
from headrace.model.outcome import DONE, Again
from headrace.store.contract import Prompt
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs.claim import Claims
from headrace.worker import fetcher
from stores.postgres.kit import TTL, WORKER, put, take, until_waiting
from worker.harness import WAIT, Bench, Tally

LONG, SHORT = 60.0, 0.05


def ask(limit: int = 10, *queues: str) -> Ask:
    return Ask(WORKER, queues or ("default",), limit, TTL, new_token())


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Tally:
    """The claims of all store objects."""
    tally, claim = Tally(), Claims.claim

    async def counted(self: Claims, ask: Ask) -> Lease | None:
        try:
            return await claim(self, ask)
        finally:
            tally.add()

    monkeypatch.setattr(Claims, "claim", counted)
    return tally


@pytest.fixture
async def other(url: str) -> AsyncIterator[PostgresStore]:
    """The store of another process."""
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


async def lease_of(sleeper: asyncio.Future[Lease | bool]) -> Lease:
    lease = await sleeper
    assert isinstance(lease, Lease)
    return lease


async def asleep(store: PostgresStore, claims: Tally, asked: Ask | None = None) -> asyncio.Task[Lease | bool]:
    """A sleeper that hears other processes and has claimed after it began to hear them."""
    asked, before = asked or ask(), claims.count
    sleeper = asyncio.create_task(store.wait_to_claim(asked, LONG))
    # One claim for what was there before, and one when LISTEN is in force.
    await claims.reach(before + 2)
    assert store.hears
    return sleeper


def test_it_is_a_prompt_store():
    assert isinstance(PostgresStore("postgresql://127.0.0.1/none"), Prompt)


async def test_what_was_there_before_is_taken_at_once(pg: PostgresStore, claims: Tally):
    await put(pg, 3)
    lease = await lease_of(asyncio.ensure_future(pg.wait_to_claim(ask(), LONG)))
    assert len(lease.jobs) == 3
    assert claims.count == 1


async def test_a_job_of_another_process_comes_with_one_claim(pg: PostgresStore, other: PostgresStore, claims: Tally):
    asked = ask(10, "a", "default")
    sleeper = await asleep(pg, claims, asked)
    before = claims.count
    for _ in range(3):
        await put(other)
        lease = await lease_of(sleeper)
        assert (lease.token, len(lease.jobs)) == (asked.token, 1)
        await pg.settle(lease.token, [(0, DONE)])
        asked = ask(10, "a", "default")
        sleeper = asyncio.create_task(pg.wait_to_claim(asked, LONG))
    assert claims.count == before + 3
    sleeper.cancel()


@pytest.mark.parametrize("why", ["limit", "suspect", "queues", "worker"])
async def test_a_claim_that_may_have_left_jobs_is_followed_by_another(
    pg: PostgresStore, claims: Tally, sql: Any, why: str
):
    (await asleep(pg, claims)).cancel()
    await put(pg, 1, lane=Lane(queue="other"))
    await put(pg, 2)
    if why == "suspect":
        await sql.execute("update headrace.ready set suspect = true, crashes = 1, lo = 1 where queue = 'default'")
        await put(pg, 1, lane=Lane(priority=1))
    asked = ask(1) if why == "limit" else ask(10)
    lease = await lease_of(asyncio.ensure_future(pg.wait_to_claim(asked, LONG)))
    assert len(lease.jobs) == (2 if why in {"queues", "worker"} else 1)
    if why == "queues":
        following = ask(10, "default", "other")
    elif why == "worker":
        following = Ask(new_worker_id(), ("default",), 10, TTL, new_token())
        await sql.execute("update headrace.ready set queue = 'default'")  # moved without a hint
    else:
        following = ask()
    lease = await lease_of(asyncio.ensure_future(pg.wait_to_claim(following, LONG)))
    assert len(lease.jobs) == 1


async def test_a_job_that_comes_during_the_claim_is_not_missed(pg: PostgresStore, other: PostgresStore, claims: Tally):
    (await asleep(pg, claims)).cancel()
    await put(other)
    first = await take(pg)
    # This hint reaches the store object after the claim and before the sleep.
    await put(pg)
    lease = await lease_of(asyncio.ensure_future(pg.wait_to_claim(ask(), LONG)))
    assert lease.jobs[0].id != first.jobs[0].id


async def test_when_the_time_is_up_it_has_looked(pg: PostgresStore, sql: Any, claims: Tally):
    (await asleep(pg, claims)).cancel()
    assert await pg.wait_to_claim(ask(), SHORT) is False
    assert await pg.wait_to_claim(ask(), 0.0) is False
    assert await pg.wait_to_claim(ask(0), SHORT) is False
    await put(pg, 1, lane=Lane(queue="other"))
    await sql.execute("update headrace.ready set queue = 'default'")  # a job without a hint
    lease = await pg.wait_to_claim(ask(), SHORT)
    assert isinstance(lease, Lease)


async def test_a_hint_about_the_job_of_another_worker_costs_one_claim(
    pg: PostgresStore, other: PostgresStore, sql: Any, claims: Tally
):
    sleeper = await asleep(pg, claims)
    before = claims.count
    await sql.execute("select pg_notify('headrace', 'default')")
    await claims.reach(before + 1)
    await put(other)
    await lease_of(sleeper)
    assert claims.count == before + 2


async def test_a_lost_listener_is_followed_by_a_claim(pg: PostgresStore, sql: Any, claims: Tally):
    sleeper = await asleep(pg, claims)
    before = claims.count
    await sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid() and query like 'LISTEN%'"
    )
    await claims.reach(before + 1)
    sleeper.cancel()


async def test_a_cancelled_call_hands_its_jobs_back(
    pg: PostgresStore, other: PostgresStore, url: str, sql: Any, claims: Tally
):
    [id] = await put(pg)
    locker = await asyncpg.connect(url)
    await locker.execute("begin; lock table headrace.lease in exclusive mode")
    sleeper = asyncio.create_task(pg.wait_to_claim(ask(), LONG))
    await until_waiting(sql, "lease")
    sleeper.cancel()
    await locker.execute("commit")
    await locker.close()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    [job] = await pg.get([id])
    assert job is not None
    assert job.state is JobState.READY
    assert (await take(other)).jobs[0].id == id


async def test_it_wakes_for_a_job_that_goes_back(pg: PostgresStore, claims: Tally):
    (await asleep(pg, claims)).cancel()
    await put(pg)
    lease = await take(pg)
    sleeper = asyncio.create_task(pg.wait_to_claim(ask(), LONG))
    await pg.settle(lease.token, [(0, Again(1, 0))])
    assert (await lease_of(sleeper)).jobs[0].attempt == 2


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_idle_worker_claims_once_per_job(
    pg: PostgresStore, other: PostgresStore, claims: Tally, kind: str, monkeypatch: pytest.MonkeyPatch
):
    # A slow machine must not make the worker listen before its job has ended.
    monkeypatch.setattr(fetcher, "QUICK_SYNC", WAIT)
    bench = Bench(pg, poll=timedelta(days=1), heartbeat=timedelta(seconds=5), reap=timedelta(seconds=60))
    ran = Tally()
    loop = asyncio.get_running_loop()

    async def in_loop() -> None:
        ran.add()

    def in_thread() -> None:
        loop.call_soon_threadsafe(ran.add)

    task = bench.app.task(name="quick")(in_loop if kind == "async" else in_thread)
    # LISTEN is in force before the worker starts, because the hint about that would cost a claim at any time.
    (await asleep(pg, claims)).cancel()
    async with bench.worker() as worker:
        await worker.idle.wait()
        bench.store = other
        before = claims.count
        for number in range(1, 6):
            await bench.enqueue(task)
            await ran.reach(number)
            await worker.idle.wait()
    assert claims.count == before + 5


async def swept(store: PostgresStore, claims: Tally) -> None:
    """After this, the next claim expects one range."""
    (await asleep(store, claims)).cancel()
    assert await store.claim(ask()) is None


@pytest.mark.parametrize("count", [1, 3, 200])
async def test_the_only_range_is_taken_without_a_search(pg: PostgresStore, sql: Any, claims: Tally, count: int):
    await swept(pg, claims)
    ids = await put(pg, count, lane=Lane(tenant="acme", priority=3))
    lease = await pg.claim(ask(500, "default", "other"))
    assert lease is not None
    assert [job.id for job in lease.jobs] == ids
    assert {(job.tenant, job.priority, job.attempt) for job in lease.jobs} == {("acme", 3, 1)}
    assert await sql.fetchval("select count(*) from headrace.ready") == 0
    [counts] = (await pg.stats()).queues
    assert (counts.ready, counts.running) == (0, count)
    await pg.settle(lease.token, [(at, DONE) for at in range(count)])
    [counts] = (await pg.stats()).queues
    assert (counts.running, counts.done_total) == (0, count)


@pytest.mark.parametrize("lies", ["limit", "more", "failed", "suspect", "limited", "paused", "paused tenant"])
async def test_other_cases_are_searched(pg: PostgresStore, sql: Any, claims: Tally, lies: str):
    await swept(pg, claims)
    if lies == "limited":
        await rule(pg, "few", concurrency=1)
    lane = Lane(tenant="acme", limits=("few",) if lies == "limited" else ())
    ids = await put(pg, 2, lane=lane)
    if lies == "more":
        ids = [*await put(pg, 1, lane=Lane(priority=5)), *ids]
    elif lies == "failed":
        await sql.execute("update headrace.ready set attempt = 1, failures = 1")
    elif lies == "suspect":
        await sql.execute("update headrace.ready set suspect = true, crashes = 1, attempt = 1, hi = 0")
    elif lies == "paused":
        await pg.pause("default")
    elif lies == "paused tenant":
        await pg.pause("acme", kind="tenant")
    lease = await pg.claim(ask(1 if lies == "limit" else 10))
    if lies.startswith("paused"):
        assert lease is None
        return
    assert lease is not None
    assert [job.id for job in lease.jobs] == (ids[:1] if lies in {"limit", "suspect", "limited"} else ids)
    assert lease.suspect is (lies == "suspect")
    assert lease.jobs[0].attempt == (2 if lies in {"failed", "suspect"} else 1)


async def test_a_range_that_another_claim_holds_is_left_to_it(pg: PostgresStore, url: str, claims: Tally):
    await swept(pg, claims)
    [held] = await put(pg, 1, lane=Lane(tenant="a"))
    locker = await asyncpg.connect(url)
    await locker.execute("begin; select from headrace.ready for update")
    [free] = await put(pg, 1, lane=Lane(tenant="b"))
    lease = await pg.claim(ask())
    assert lease is not None
    assert [job.id for job in lease.jobs] == [free]
    await locker.execute("rollback")
    await locker.close()
    assert (await take(pg)).jobs[0].id == held
