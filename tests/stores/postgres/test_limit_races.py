"""Claims, commits and limits in every order: nothing is taken uncounted, at any isolation level, and no claim waits in a circle."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token
from headrace.model.outcome import DONE
from headrace.model.records import LimitRule
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import TTL, WORKER, blocked, claim, deadlocks, put, take

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
STRIPE = "hashtext($1) & 127"
ONE = LimitRule(concurrency=1)


@pytest.fixture
async def crowd(url: str) -> AsyncIterator[list[PostgresStore]]:
    stores = [PostgresStore(url) for _ in range(3)]
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


@pytest.fixture
async def impatient(url: str, sql: Any) -> None:
    """The server looks for a circle as soon as a session waits, so one whose waits end by themselves counts, too."""
    await sql.execute(f"alter database \"{url.rsplit('/', 1)[1]}\" set deadlock_timeout = '1ms'")


async def units(sql: Any, key: str) -> int:
    found: int = await sql.fetchval("select coalesce(sum(units), 0)::int4 from headrace.hold where key = $1", key)
    return found


# ── jobs that are committed while a claim looks ──────────────────────────────


@pytest.mark.parametrize("limit", [1, 5])
@pytest.mark.parametrize("rule", [ONE, LimitRule(rate=0.001, burst=1)])
async def test_a_limited_job_that_comes_during_a_claim_is_counted(
    crowd: list[PostgresStore], sql: Any, url: str, limit: int, rule: LimitRule
):
    """The claim has seen plain lanes only and waits for a range of theirs when the limited ones are committed."""
    await crowd[0].limit("api", rule, None)
    await put(crowd[0], lane=Lane(tenant="a"))
    observer = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(60), sql.transaction():
            await sql.fetch("select from headrace.ready for update")
            call = asyncio.create_task(claim(crowd[0], limit))
            await blocked(observer)
            await put(crowd[1], 5, lane=Lane(tenant="b", limits=("api",)))
            lease = await call
    finally:
        await observer.close()
    taken = 0 if lease is None else len(lease.jobs)
    assert await units(sql, "api") == taken
    assert taken <= 1


@pytest.mark.parametrize("limit", [1, 5, 60])
async def test_turns_of_plain_lanes_take_no_limited_job(pg: PostgresStore, sql: Any, limit: int):
    await put(pg, 3, lane=Lane(tenant="a"))
    await put(pg, 3, lane=Lane(tenant="b", limits=("api",)))
    await put(pg, 3, lane=Lane(tenant="c", limits=("api",)))
    row = await sql.fetchrow("select * from headrace.take_turns('default', 0::int2, $1, true, null, null, null)", limit)
    assert set(row["n_tenant"]) == {"a"}
    assert row["got"] == min(limit, 3)


# ── the isolation level ──────────────────────────────────────────────────────


@pytest.fixture(params=["", "?pooler=transaction"])
async def stubborn(url: str, sql: Any, request: pytest.FixtureRequest) -> AsyncIterator[PostgresStore]:
    """A store on a database whose sessions begin with another isolation level; one without session settings, as behind a pooler."""
    await sql.execute(
        f"alter database \"{url.rsplit('/', 1)[1]}\" set default_transaction_isolation = 'repeatable read'"
    )
    store = PostgresStore(url + request.param)
    await store.open()
    yield store
    await store.close()


async def test_a_claim_that_waited_for_a_key_sees_what_its_holder_took(stubborn: PostgresStore, sql: Any):
    await stubborn.limit("api", ONE, None)
    await put(stubborn, 3, lane=Lane(limits=("api",)))
    async with asyncio.timeout(60):
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetch(f"select pg_advisory_xact_lock(1214538831, {STRIPE})", "api")
        call = asyncio.create_task(claim(stubborn))
        await blocked(sql)
        await sql.execute("insert into headrace.hold (token, units, key) values (gen_random_uuid(), 1, 'api')")
        await transaction.commit()
        assert await call is None


async def test_a_claim_that_waited_for_a_pause_sees_it(stubborn: PostgresStore, sql: Any):
    await put(stubborn, 3)
    async with asyncio.timeout(60):
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetch("select headrace.pause('queue', 'default', 'me', null)")
        call = asyncio.create_task(claim(stubborn))
        await blocked(sql)
        await transaction.commit()
        assert await call is None


async def test_claimers_keep_a_cap_whatever_the_isolation_level_of_the_database(stubborn: PostgresStore, url: str):
    others = [PostgresStore(url) for _ in range(3)]
    await stubborn.limit("api", ONE, None)
    try:
        for store in others:
            await store.open()
        for _ in range(15):
            for n in range(8):
                await put(stubborn, lane=Lane(f"q{n}", limits=("api",)))
            stores = [stubborn, *others] * 2
            leases = await asyncio.gather(*[claim(store, 2, f"q{n}") for n, store in enumerate(stores)])
            held = [lease for lease in leases if lease is not None]
            assert [len(lease.jobs) for lease in held] == [1]
            await stubborn.settle(held[0].token, [(0, DONE)])
    finally:
        for store in others:
            await store.close()


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_a_claim_refuses_another_isolation_level(pg: PostgresStore, sql: Any, level: str):
    await put(pg)
    with pytest.raises(asyncpg.PostgresError, match="needs the isolation level read committed"):
        async with sql.transaction(isolation=level):
            await sql.fetch(
                "select * from headrace.claim(array['default'], 1, gen_random_uuid(), gen_random_uuid(), '15 s', null, null,"
                " null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, 400, 1000)"
            )
    assert len((await take(pg)).jobs) == 1


# ── circles ──────────────────────────────────────────────────────────────────


async def apart(sql: Any) -> tuple[str, str]:
    """Two limit keys that are counted under different locks."""
    names = await sql.fetch("select n, hashtext('k' || n) & 127 as stripe from generate_series(1, 50) n")
    first = names[0]
    other = next(row for row in names if row["stripe"] != first["stripe"])
    return f"k{first['n']}", f"k{other['n']}"


async def test_a_claim_holds_no_key_while_it_waits_for_another(crowd: list[PostgresStore], sql: Any, url: str):
    """The first queue's limit is full, the second one's is just being counted."""
    pg, fresh, _ = crowd
    full, wanted = await apart(sql)
    await pg.limit(full, ONE, None)
    await pg.limit(wanted, ONE, None)
    await put(pg, 2, lane=Lane("a", limits=(full,)))
    assert await claim(pg, 5, "a") is not None
    await put(pg, 2, lane=Lane("b", limits=(wanted,)))
    observer = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(60):
            transaction = sql.transaction()
            await transaction.start()
            await sql.fetch(f"select pg_advisory_xact_lock(1214538831, {STRIPE})", wanted)
            call = asyncio.create_task(fresh.claim(Ask(WORKER, ("a", "b"), 5, TTL, new_token())))
            await blocked(observer)
            held = await observer.fetchval(
                "select count(*) from pg_locks l where l.granted and l.locktype = 'advisory' and l.classid = 1214538831"
                " and l.pid in (select w.pid from pg_locks w where not w.granted)"
            )
            await transaction.commit()
            lease = await call
    finally:
        await observer.close()
    assert held == 0
    assert lease is not None, "what was passed over is looked at again"
    assert [job.queue for job in lease.jobs] == ["b"]


async def test_a_claim_holds_no_range_while_it_waits_for_a_key(crowd: list[PostgresStore], sql: Any, url: str):
    """The only range is expected to be the job that woke the worker, but its lane is limited, and others count its key."""
    pg = crowd[0]
    await pg.limit("api", ONE, None)
    while not pg.hears:
        await pg.wait(["default"], 0.05)
    await put(pg)
    await pg.settle((await take(pg)).token, [(0, DONE)])
    assert await claim(pg) is None
    await put(pg, 2, lane=Lane(limits=("api",)))
    observer = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(60):
            transaction = sql.transaction()
            await transaction.start()
            await sql.fetch(f"select pg_advisory_xact_lock(1214538831, {STRIPE})", "api")
            call = asyncio.create_task(claim(pg))
            await blocked(observer)
            free = await observer.fetch("select from headrace.ready for update skip locked")
            await transaction.commit()
            lease = await call
    finally:
        await observer.close()
    assert len(free) == 1
    assert lease is not None
    assert len(lease.jobs) == 1


async def test_claims_under_full_limits_do_not_deadlock(impatient: None, crowd: list[PostgresStore], sql: Any):
    before = await deadlocks(sql)
    await crowd[0].limit("tenant", ONE, None)
    await crowd[0].limit("all", LimitRule(concurrency=7), None)
    lanes = [Lane("ab"[n % 2], tenant=f"t{n}", limits=("all", f"tenant:{n}")) for n in range(20)]
    await crowd[0].enqueue(Batch(new_batch(), [NewJob("t", b"", lane) for _ in range(8) for lane in lanes]))
    done: Counter[str] = Counter()

    async def work(store: PostgresStore) -> None:
        while done.total() < 160:
            lease = await store.claim(Ask(WORKER, ("a", "b"), 3, TTL, new_token()))
            if lease is None:
                await store.wait(["a", "b"], 0.05)
                continue
            await store.settle(lease.token, [(at, DONE) for at in range(len(lease.jobs))])
            done.update(job.tenant for job in lease.jobs)

    async with asyncio.timeout(500), asyncio.TaskGroup() as group:
        for store in crowd:
            for _ in range(2):
                group.create_task(work(store))
    assert set(done.values()) == {8}
    assert await deadlocks(sql) == before


async def test_an_idle_claim_asks_once(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    """Whether the token has a lease already comes with the answer."""
    asked: list[str] = []
    rows = type(pg._server.pool).rows

    async def listen(self: Any, statement: str, *args: Any, **options: Any) -> list[Any]:
        asked.append(statement)
        return await rows(self, statement, *args, **options)

    monkeypatch.setattr(type(pg._server.pool), "rows", listen)
    assert await claim(pg) is None
    assert len(asked) == 1


async def test_a_claim_said_again_through_another_object_gets_its_lease(crowd: list[PostgresStore]):
    await put(crowd[0], 2)
    ask = Ask(WORKER, ("default",), 5, TTL, new_token())
    first = await crowd[0].claim(ask)
    again = await crowd[1].claim(ask)
    assert first is not None
    assert again is not None
    assert [job.id for job in again.jobs] == [job.id for job in first.jobs]
