"""Limits on PostgreSQL: never exceeded by claims at once, by a client that dies, inside a user's transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Lease, Token, new_token
from headrace.model.outcome import DONE, Again
from headrace.model.records import LimitRule, Retention
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs.claim import ClaimArgs, Claims
from stores.postgres.kit import TTL, WORKER, claim, put, take

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
API = Lane(limits=("api", "shop:1"))


@pytest.fixture
async def crowd(url: str) -> AsyncIterator[list[PostgresStore]]:
    stores = [PostgresStore(url) for _ in range(4)]
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


async def held(sql: Any) -> dict[str, int]:
    """What all leases hold."""
    rows = await sql.fetch("select key, sum(units)::int4 as units from headrace.hold group by key")
    return {row["key"]: row["units"] for row in rows}


async def test_many_claimers_never_hold_more_than_allowed(crowd: list[PostgresStore], sql: Any):
    await crowd[0].limit("api", LimitRule(concurrency=5), None)
    await crowd[0].limit("shop", LimitRule(concurrency=2), None)
    lanes = [Lane(tenant=f"t{n % 3}", limits=("api", f"shop:{n % 6}")) for n in range(6)]
    await crowd[0].enqueue(Batch(new_batch(), [NewJob("t", b"", lane) for _ in range(40) for lane in lanes]))
    running: Counter[str] = Counter()
    done = 0
    finished = asyncio.Event()

    async def work(store: PostgresStore) -> None:
        nonlocal done
        while done < 240:
            lease = await claim(store, 3)
            if lease is None:
                await asyncio.sleep(0.002)
                continue
            running["api"] += len(lease.jobs)
            assert running["api"] <= 5
            await asyncio.sleep(0)
            for at in range(len(lease.jobs)):
                # Free for us before it is free for others.
                running["api"] -= 1
                assert await store.settle(lease.token, [(at, DONE)]) == frozenset()
                done += 1

    async def watch() -> None:
        while not finished.is_set():
            now = await held(sql)
            assert now.get("api", 0) <= 5
            assert all(units <= 2 for key, units in now.items() if key.startswith("shop"))

    async with asyncio.timeout(500), asyncio.TaskGroup() as group:
        watcher = group.create_task(watch())
        async with asyncio.TaskGroup() as workers:
            for store in crowd:
                workers.create_task(work(store))
        finished.set()
        await watcher
    assert await held(sql) == {}


async def test_units_live_and_die_with_their_lease(pg: PostgresStore, sql: Any):
    await put(pg, 4, lane=Lane(limits=("api@2", "shop:1")))
    lease, fresh = await take(pg), new_token()
    assert await held(sql) == {"api": 8, "shop:1": 4}
    await pg.detach(lease.token, 1, fresh)
    assert await held(sql) == {"api": 8, "shop:1": 4}
    await pg.settle(lease.token, [(0, DONE), (2, Again(0, 0))])
    assert await held(sql) == {"api": 4, "shop:1": 2}
    await sql.execute("update headrace.lease set until = clock_timestamp() - interval '1 second'")
    orphans = await pg.reap(WORKER, TTL)
    assert await held(sql) == {"api": 4, "shop:1": 2}
    for orphan in orphans:
        await pg.settle(orphan.token, [(position, DONE) for position, _ in orphan.jobs])
    assert await held(sql) == {}
    assert await sql.fetchval("select count(*) from headrace.lease") == 0


async def test_a_settle_in_a_users_transaction_frees_with_its_commit(pg: PostgresStore, url: str):
    await pg.limit("api", LimitRule(concurrency=1), None)
    await put(pg, 2, lane=API)
    lease = await take(pg)
    for commit in (False, True):
        connection = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        assert await pg.asettle_in(connection, lease.token, [(0, DONE)]) == frozenset()
        # Others wait for nothing, and get nothing.
        assert await claim(pg) is None
        await (transaction.commit() if commit else transaction.rollback())
        await connection.close()
        assert (await claim(pg) is not None) is commit


async def test_a_claim_that_dies_before_its_commit_holds_nothing(pg: PostgresStore, url: str, sql: Any):
    await pg.limit("api", LimitRule(concurrency=2), None)
    await put(pg, 5, lane=API)
    connection = await asyncpg.connect(url)
    await connection.execute("begin")
    args = [["default"], 1, new_token(), WORKER, TTL, *[None] * 20, 1000]
    statement = f"select * from headrace.claim({', '.join(f'${n}' for n in range(1, 27))})"
    await connection.fetch(statement, *args)
    # A claim that counts the same key waits for its end.
    waiting = asyncio.create_task(claim(pg))
    pid = connection.get_server_pid()
    await sql.fetchval("select pg_terminate_backend($1)", pid)
    lease = await waiting
    assert lease is not None
    assert len(lease.jobs) == 2
    assert (await held(sql))["api"] == 2
    connection.terminate()


async def test_thousands_of_blocked_lanes(pg: PostgresStore):
    """One claim looks at a bounded number and goes on from there; what is open is found all the same."""
    await pg.limit("shop", LimitRule(concurrency=0), None)
    await pg.limit("shop:open", LimitRule(concurrency=1), None)
    blocked = [Lane(limits=(f"shop:{n}",)) for n in range(2500)]
    await pg.enqueue(Batch(new_batch(), [NewJob("t", b"", lane) for lane in blocked]))
    for _ in range(3):
        [wanted] = await put(pg, lane=Lane(limits=("shop:open",)))
        lease = await take(pg, 10)
        assert [job.id for job in lease.jobs] == [wanted]
        await pg.settle(lease.token, [(0, DONE)])
    assert await claim(pg, 10) is None


@pytest.mark.parametrize("tenants", [1, 2000])
async def test_a_claim_that_finds_only_blocked_lanes_ends_when_the_ring_has_gone_round(
    pg: PostgresStore, monkeypatch: pytest.MonkeyPatch, tenants: int
):
    await pg.limit("shop", LimitRule(concurrency=0), None)
    lanes = [Lane(tenant=f"t{n % tenants}", limits=(f"shop:{n}",)) for n in range(2000)]
    await pg.enqueue(Batch(new_batch(), [NewJob("t", b"", lane) for lane in lanes]))
    searches = 0
    search = Claims._claim

    async def count(claims: Claims, args: ClaimArgs, token: Token) -> tuple[list[Any], int] | Lease:
        nonlocal searches
        searches += 1
        return await search(claims, args, token)

    monkeypatch.setattr(Claims, "_claim", count)
    assert await claim(pg, 10) is None
    assert searches == 2
    assert await claim(pg, 10) is None
    assert searches == 3


async def test_units_wake_who_waits_in_another_queue(crowd: list[PostgresStore]):
    here, there = crowd[:2]
    await here.limit("api", LimitRule(concurrency=1), None)
    await put(here, lane=API)
    lease = await take(here)
    async with asyncio.timeout(100):
        hearing = asyncio.create_task(there.wait(["other"], 600))
        while not hearing.done():
            # Until the other store listens, this hint reaches no listener.
            await put(here, lane=Lane("other"))
            await asyncio.wait([hearing], timeout=0.05)
        woken = asyncio.create_task(there.wait(["third"], 600))
        await here.settle(lease.token, [(0, DONE)])
        assert await woken


async def test_who_waits_for_units_is_woken_by_a_settle_elsewhere(crowd: list[PostgresStore]):
    here, there = crowd[:2]
    await here.limit("api", LimitRule(concurrency=1), None)
    await put(here, 2, lane=API)
    lease = await take(here)
    assert await claim(there) is None
    async with asyncio.timeout(100):
        woken = asyncio.create_task(there.wait(["default"], 60))
        got: Lease | None = None
        await here.settle(lease.token, [(0, DONE)])
        assert await woken
        while got is None:
            got = await claim(there)


async def test_prune_forgets_full_buckets_and_pauses_that_are_over(pg: PostgresStore, sql: Any):
    await pg.limit("api", LimitRule(rate=5, burst=3), None)
    await put(pg, 1, lane=API)
    await take(pg)
    now = await pg.now()
    await pg.pause("old", until=now - timedelta(seconds=1))
    await pg.pause("new", until=now + timedelta(hours=1))
    await pg.prune(Retention())
    assert await sql.fetchval("select count(*) from headrace.bucket") == 1
    await sql.execute("update headrace.bucket set at = at - interval '2 hours'")
    await pg.prune(Retention())
    assert await sql.fetchval("select count(*) from headrace.bucket") == 0
    assert [pause.name for pause in await pg.pauses()] == ["new"]
    assert await sql.fetchval("select count(*) from headrace.pause") == 1
