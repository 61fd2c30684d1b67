"""Turns, limits, locks and reports in a file: shares over several claimers, bounded walks, and nothing that stays behind."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import Generator
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from conformance.kit import TTL, WORKER, claim, ids, new, put, put_jobs, rule, settle_all, take, tenants
from conftest import opened
from headrace.model.job import Batch, JobState, UniqueLock, job_id, new_batch
from headrace.model.lease import Ask, Lease, Report, new_token
from headrace.model.outcome import DONE
from headrace.model.records import Retention
from headrace.store.contract import Store
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.fairness import allowance, picker, turn_state
from headrace.store.sqlite.store import SqliteStore
from headrace.store.sqlite.verbs.claim import claim as claim_in

NOW = Retention(done=timedelta(0), dead=timedelta(0))
WEIGHTS = {"default": {"a": 3}}
LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})


@pytest.fixture
def eye(file: Path, sqlite_store: SqliteStore) -> Generator[sqlite3.Connection]:
    """To look at the tables with."""
    conn = sqlite3.connect(file)
    yield conn
    conn.close()


def rows(eye: sqlite3.Connection, table: str) -> int:
    return eye.execute(f"select count(*) from headrace_{table}").fetchone()[0]


# ── turns ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [1, 7, 100, 500])
async def test_shares_hold_over_several_claimers(url: str, limit: int):
    """Each store object keeps its own turns. Together they still give each tenant its share."""
    jobs = 1000 if limit == 1 else 10_000
    async with opened(SqliteStore(url)) as one, opened(SqliteStore(url)) as two, opened(SqliteStore(url)) as three:
        for tenant in ("a", "b", "c"):
            for _ in range(jobs // 1000):
                await put(one, 1000, tenant=tenant)
        got: Counter[str] = Counter()

        async def work(store: Store) -> None:
            while got.total() < jobs:
                got.update(tenants(await take(store, limit, weights=WEIGHTS)))

        await asyncio.gather(*[work(store) for store in (one, two, three)])
        total = got.total()
        for tenant, share in {"a": 0.6, "b": 0.2, "c": 0.2}.items():
            assert abs(got[tenant] - share * total) <= 0.05 * share * total, got


async def test_a_burst_delays_another_tenant_by_one_round(sqlite_store: SqliteStore):
    for _ in range(4):
        await put(sqlite_store, 25_000, tenant="loud")
    await take(sqlite_store, 500)
    [quiet] = await put(sqlite_store, tenant="quiet")
    assert quiet in ids(await take(sqlite_store, 2))


async def test_ranges_of_one_job_and_large_ones_mixed(sqlite_store: SqliteStore):
    """Heads that are enough, heads with more behind them, heads with nothing behind."""
    wanted: list[object] = []
    for n in range(40):
        wanted += await put(sqlite_store, 1 + n % 3, tenant=f"t{n % 20:02}")
        wanted += await put(sqlite_store, 1, tenant=f"t{n:02}")
    wanted += await put(sqlite_store, 500, tenant="large")
    found: list[object] = []
    while lease := await claim(sqlite_store, 150):
        found += ids(lease)
        by_tenant: dict[str, list[object]] = {}
        for job in lease.jobs:
            by_tenant.setdefault(job.tenant, []).append(job.id)
        assert all(sorted(mine, key=str) == mine for mine in by_tenant.values())
    assert len(found) == len(wanted)
    assert set(found) == set(wanted)


@pytest.mark.parametrize("calls", [1, 12])
async def test_large_claims_of_many_tenants(sqlite_store: SqliteStore, eye: sqlite3.Connection, calls: int):
    """Turns of several jobs, whether tenants have a few jobs or many: equal, in order, and nothing is left or lost."""
    names = [f"t{n * 7919 % 300:03}" for n in range(300)]
    wanted = {name: list[object]() for name in names}
    for _ in range(calls):
        made = await put_jobs(sqlite_store, *[new(tenant=name) for name in names * 2])
        for name, id in zip(names * 2, made, strict=True):
            wanted[name].append(id)
    found = {name: list[object]() for name in names}
    while lease := await claim(sqlite_store, 500):
        for job in lease.jobs:
            found[job.tenant].append(job.id)
        counts = [len(mine) for mine in found.values()]
        assert max(counts) - min(counts) <= 10
    assert found == wanted
    assert rows(eye, "ready") == 0


async def test_tenants_with_few_jobs_beside_one_with_many(sqlite_store: SqliteStore):
    """The line is read in order until one tenant's jobs fill what is read, and then from tenant to tenant."""
    line = sqlite_store._claim_memory.turn_state.line("default", 0)
    await put_jobs(sqlite_store, *[new(tenant=f"t{n:03}") for n in range(300)])
    await take(sqlite_store, 100)
    assert line.scattered
    for _ in range(150):
        await put(sqlite_store, tenant="t150-loud")
    got: Counter[str] = Counter()
    while lease := await claim(sqlite_store, 100):
        got.update(tenants(lease))
    assert not line.scattered
    assert got.pop("t150-loud") == 150
    assert set(got.values()) == {1}
    assert len(got) == 200


@pytest.mark.parametrize("limit", [1, 4, 10, 25])
async def test_turns_go_on_past_who_is_blocked_or_empty(sqlite_store: SqliteStore, limit: int):
    """No tenant loses a turn, or gets a second one, because an earlier tenant had no job."""
    await rule(sqlite_store, "shop", concurrency=0)
    names = [f"t{n}" for n in range(10)]
    for name in names:
        await put(sqlite_store, 400, tenant=name, limits=("shop",) if name in {"t0", "t5"} else ())
    await put(sqlite_store, 1, tenant="t1a")
    weights = {"default": dict.fromkeys(names, 3)}
    got: Counter[str] = Counter()
    while got.total() < 961:
        got.update(tenants(await take(sqlite_store, min(limit, 961 - got.total()), weights=weights)))
    assert got.pop("t1a") == 1
    assert len(got) == 8
    assert max(got.values()) - min(got.values()) <= 6, got


async def test_tenants_come_and_go_and_leave_nothing(
    sqlite_store: SqliteStore, eye: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turn_state, "_MANY_TENANTS", 50)
    for round in range(5):
        jobs = [new(tenant=f"{round}-{n}", limits=(f"shop:{n % 2}",)) for n in range(100)]
        jobs += [new(tenant=f"{round}-{n}", limits=("api",)) for n in range(100)]
        await put_jobs(sqlite_store, *jobs)
        while lease := await claim(sqlite_store, 60):
            await settle_all(sqlite_store, lease)
    line = sqlite_store._claim_memory.turn_state.line("default", 0)
    assert len(line.lanes) <= 50
    while (await sqlite_store.prune(NOW)).more:
        pass
    assert {table: rows(eye, table) for table in ("ready", "unit", "job", "lease")} == {
        "ready": 0,
        "unit": 0,
        "job": 0,
        "lease": 0,
    }


async def test_lines_are_forgotten_when_there_are_many(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turn_state, "_MANY_LINES", 3)
    for priority in range(10):
        await put(sqlite_store, priority=priority)
    assert len((await take(sqlite_store, 100)).jobs) == 10
    assert len(sqlite_store._claim_memory.turn_state._lines) <= 3


# ── limits ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lanes", ["tenants", "one tenant"])
async def test_a_walk_past_blocked_lanes_ends_and_goes_on_from_there(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, lanes: str
):
    monkeypatch.setattr(picker, "_BESIDE", 5)
    monkeypatch.setattr(picker, "_AT_MOST", 10)
    await rule(sqlite_store, "shop", concurrency=0)
    blocked = [new(tenant=f"t{n:02}" if lanes == "tenants" else "t", limits=(f"shop:{n}",)) for n in range(40)]
    await put_jobs(sqlite_store, *blocked)
    [free] = await put(sqlite_store, tenant="t99" if lanes == "tenants" else "t", limits=("free",))
    [lower] = await put(sqlite_store, priority=-1)
    found: list[object] = []
    for _ in range(12):
        found += ids(await claim(sqlite_store, 2))
    assert set(found) == {free, lower}


async def test_unlimited_lines_do_not_look_for_lanes(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    await put(sqlite_store, 10, tenant="a")
    assert rows(eye, "limited") == 0
    await put(sqlite_store, 10, tenant="a", limits=("api",), priority=1)
    await put(sqlite_store, 10, tenant="b", limits=("api",), priority=1)
    (queue,) = eye.execute("select id from headrace_queue where name = 'default'").fetchone()
    assert eye.execute("select line from headrace_limited").fetchall() == [(queue * 4096 + 999,)]


async def test_units_are_rows_only_while_they_are_held(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    await rule(sqlite_store, "api", concurrency=5)
    await put(sqlite_store, 10, limits=("api@2", "shop:1"))
    lease = await take(sqlite_store)
    held = dict(eye.execute("select key, held from headrace_unit").fetchall())
    assert held == {"api": 4, "shop:1": 2}
    await settle_all(sqlite_store, lease)
    assert rows(eye, "unit") == 0


@pytest.mark.parametrize("carried", [True, False])
async def test_a_process_that_does_not_know_the_lane_gives_units_back(
    sqlite_store: SqliteStore, eye: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, carried: bool
):
    await rule(sqlite_store, "shop", concurrency=2)
    await put(sqlite_store, 2, limits=("shop:acme",))
    lease = await take(sqlite_store, 2)
    await sqlite_store.settle(lease.token, [(0, DONE)])
    await sqlite_store.delete([ids(lease)[0]])
    # Lanes are remembered by each process: another one starts with none.
    monkeypatch.setattr(allowance, "_units_of_lane", {})
    if not carried:
        # As an earlier version writes leases: without the units.
        (ranges,) = eye.execute("select ranges from headrace_lease").fetchone()
        places, held = msgspec.msgpack.decode(ranges)
        eye.execute("update headrace_lease set ranges = ?", (msgspec.msgpack.encode([[p[:4] for p in places], held]),))
        eye.commit()
    assert not await sqlite_store.settle(lease.token, [(1, DONE)])
    assert rows(eye, "unit") == 0
    assert rows(eye, "lease") == 0


async def test_freed_units_wake_who_waits_in_another_store(url: str):
    async with opened(SqliteStore(url)) as one, opened(SqliteStore(url)) as two:
        await rule(one, "api", concurrency=1)
        await put(one, limits=("api",), queue="a")
        await put(one, limits=("api",), queue="b")
        lease = await take(one, 1, "a")
        assert await claim(two, 1, "b") is None
        waiting = asyncio.create_task(two.wait(["b"], 60))
        await asyncio.sleep(0)
        await settle_all(one, lease)
        assert await waiting is True
        assert await claim(two, 1, "b") is not None


async def test_caps_hold_over_several_claimers(url: str, file: Path):
    async with opened(SqliteStore(url)) as one, opened(SqliteStore(url)) as two:
        await rule(one, "api", concurrency=7)
        for n in range(20):
            await put(one, 10, tenant=f"t{n % 4}", limits=("api",))
        held, most = 0, 0

        async def work(store: Store, limit: int) -> None:
            nonlocal held, most
            done = 0
            while done < 60:
                lease: Lease | None = await claim(store, limit)
                if lease is None:
                    await store.wait(["default"], 1)
                    continue
                held += len(lease.jobs)
                most = max(most, held)
                await asyncio.sleep(0)
                held -= len(lease.jobs)
                await settle_all(store, lease)
                done += len(lease.jobs)

        await asyncio.gather(work(one, 3), work(two, 5), work(one, 1))
        assert 0 < most <= 7


# ── locks and reports ────────────────────────────────────────────────────────


async def test_locks_and_reports_go_with_their_jobs(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    lock = [UniqueLock(f"u{n}", LIVE) for n in range(4)]
    made = await put_jobs(sqlite_store, *[new(unique=each) for each in lock])
    lease = await take(sqlite_store)
    await sqlite_store.report(lease.token, [(at, Report(progress=0.5)) for at in range(4)])
    assert (rows(eye, "unique"), rows(eye, "report")) == (4, 4)
    await settle_all(sqlite_store, lease)
    await sqlite_store.delete(made[:1])
    assert (rows(eye, "unique"), rows(eye, "report")) == (3, 3)
    await sqlite_store.prune(NOW)
    assert (rows(eye, "unique"), rows(eye, "report")) == (0, 0)


async def test_a_lock_in_the_users_transaction(sqlite_store: SqliteStore, file: Path):
    [old] = await put(sqlite_store, unique=UniqueLock("u", LIVE))
    replacing = new(unique=UniqueLock("u", LIVE, replace=True))
    conn = sqlite3.connect(file)
    try:
        made = Batch(new_batch(), [replacing])
        conn.execute("begin immediate")
        assert sqlite_store.enqueue_in(conn, made).existing == {}
        conn.rollback()
        assert ids(await claim(sqlite_store, 1)) == [old]
        conn.execute("begin immediate")
        assert sqlite_store.enqueue_in(conn, made).existing == {}
        conn.commit()
    finally:
        conn.close()
    assert ids(await claim(sqlite_store, 1)) == [job_id(made.id, 0)]


# ── large payloads, older files ──────────────────────────────────────────────


async def test_payloads_that_are_too_large_together(sqlite_store: SqliteStore):
    """SQLite has a longest value; a claim reads them one by one then."""
    wanted = [os.urandom(400), b"", b"\0\xff", os.urandom(700)]
    await put_jobs(sqlite_store, *[new(payload=payload, options=payload or None) for payload in wanted])
    writer = sqlite_store._writer
    assert writer is not None
    lease = await writer.call(lambda tx: _with_limit(tx, sqlite_store))
    assert [(job.payload, job.options) for job in lease.jobs] == [(payload, payload or None) for payload in wanted]


def _with_limit(tx: Tx, store: SqliteStore) -> Lease:
    conn = tx.cur.connection
    before = conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    try:
        lease = claim_in(tx, Ask(WORKER, ("default",), 10, TTL, new_token()), store._claim_memory)
    finally:
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
    assert lease is not None
    return lease


async def test_a_file_of_the_version_before(url: str, file: Path):
    conn = sqlite3.connect(file)
    schema = files("headrace.store.sqlite") / "schema"
    for name in ("0001_foundation.sql", "0002_records.sql"):
        conn.executescript((schema / name).read_text(encoding="utf-8"))
    conn.execute("create table headrace_migration (version integer primary key, name text, taken_at integer)")
    conn.execute("insert into headrace_migration values (1, '0001_foundation', 0), (2, '0002_records', 0)")
    batch = new_batch()
    conn.execute("insert into headrace_batch (seq, id, enqueued_at) values (1, ?, 5)", (batch.bytes,))
    for ord in range(5):
        limits, lane = ('["api"]', 77) if ord == 4 else (None, 0)
        conn.execute(
            "insert into headrace_job values (?, 'default', 0, 'x', ?, ?, 't', x'7b7d', null)",
            (1 << 16 | ord, lane, limits),
        )
    lo = 1 << 16
    ready = "insert into headrace_ready values ('default', 0, 'x', ?, ?, ?, ?, 0, 0, 0, 0, null)"
    conn.execute(ready, (0, batch.bytes, lo, lo + 1))
    conn.execute(ready, (77, batch.bytes, lo + 4, lo + 4))
    conn.execute(
        "insert into headrace_scheduled values (?, ?, 7, 'default', 0, 'x', 0, ?, 1, 1, 0, 0, 'later')",
        (lo + 2, lo + 3, batch.bytes),
    )
    conn.execute("insert into headrace_depth values ('default', 3, 2, 0, 0, 0, 0, 5)")
    conn.execute("insert into headrace_paused values ('default', 'ada', 9)")
    conn.commit()
    conn.close()
    async with opened(SqliteStore(url)) as store:
        assert [(pause.name, pause.by) for pause in await store.pauses()] == [("default", "ada")]
        await store.resume("default")
        assert (await store.promote()).moved == 2
        await rule(store, "api", concurrency=0)
        assert sorted(ids(await take(store)), key=str) == [job_id(batch, ord) for ord in range(4)]
        assert await claim(store) is None
        await rule(store, "api")
        assert ids(await take(store)) == [job_id(batch, 4)]
