"""The layout: few rows for many jobs, no statement that reads a whole table, and rows that come back as they went in."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest

from conformance.kit import (
    RELEASE,
    TTL,
    WORKER,
    batch,
    claim,
    counts,
    find_all,
    look,
    new,
    put,
    put_jobs,
    settle_all,
    take,
)
from headrace.model.job import JobState, job_id
from headrace.model.lease import Ask, new_token
from headrace.model.outcome import DONE, Finish
from headrace.model.records import Filter, Retention
from headrace.store.sqlite import packing
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.store import SqliteStore
from headrace.store.sqlite.verbs import find


@pytest.fixture
def eye(file: Path, sqlite_store: SqliteStore) -> Generator[sqlite3.Connection]:
    """To look at the tables with."""
    conn = sqlite3.connect(file)
    yield conn
    conn.close()


def rows(eye: sqlite3.Connection, table: str) -> int:
    return eye.execute(f"select count(*) from headrace_{table}").fetchone()[0]


async def test_a_batch_is_few_rows(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    await put(sqlite_store, 1000)
    assert [rows(eye, table) for table in ("batch", "job", "ready")] == [1, 1000, 1]
    lease = await take(sqlite_store, 400)
    assert [rows(eye, table) for table in ("ready", "lease")] == [1, 1]
    await settle_all(sqlite_store, lease)
    assert [rows(eye, table) for table in ("ending", "lease")] == [1, 0]


async def test_jobs_that_come_back_together_are_one_range_again(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    await put(sqlite_store, 100)
    lease = await take(sqlite_store)
    await settle_all(sqlite_store, lease, RELEASE)
    assert rows(eye, "ready") == 1
    assert await counts(sqlite_store) == {"ready": 100}


async def test_one_job_out_of_the_middle_of_an_ended_range(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    made = await put(sqlite_store, 10)
    await settle_all(sqlite_store, await take(sqlite_store))
    assert await sqlite_store.retry([made[4]]) == {made[4]}
    assert await sqlite_store.delete([made[0], made[9]]) == {made[0], made[9]}
    assert rows(eye, "ending") == 2
    found = [job and job.state for job in await sqlite_store.get(made)]
    assert found == [None, *[JobState.DONE] * 3, JobState.READY, *[JobState.DONE] * 4, None]


async def test_prune_takes_part_of_a_range(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    await put(sqlite_store, 10)
    await settle_all(sqlite_store, await take(sqlite_store))
    now = Retention(done=timedelta(0), dead=timedelta(0))
    assert [(await sqlite_store.prune(now, limit=4)).jobs for _ in range(4)] == [4, 4, 2, 0]
    assert [rows(eye, table) for table in ("job", "ending")] == [0, 0]


async def test_numbers_of_calls_are_not_used_again(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    """The newest batch row outlives its jobs, so that its number does."""
    now = Retention(done=timedelta(0), dead=timedelta(0))
    made = batch(new())
    for _ in range(3):
        await sqlite_store.enqueue(made)
        await settle_all(sqlite_store, await take(sqlite_store))
        await sqlite_store.prune(now)
    assert eye.execute("select seq from headrace_batch").fetchall() == [(3,)]


async def test_every_kind_of_payload_in_one_batch(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "_PACK_LIMIT", 1 << 12)
    sizes = [0, 1, 100, 2047, 2048, 5000, 0, 3, 700, 1500, 2000, 1999, 10_000, 0]
    payloads = [os.urandom(size) for size in sizes]
    made = await put_jobs(sqlite_store, *[new(payload=payload) for payload in payloads])
    assert [job and job.payload for job in await sqlite_store.get(made)] == payloads
    lease = await take(sqlite_store)
    assert [job.payload for job in lease.jobs] == payloads


async def test_every_kind_of_payload_and_name_in_a_batch_of_many_tenants(sqlite_store: SqliteStore):
    sizes = [0, 1, 100, 32_767, 32_768, 50_000, 0, 3, 700]
    names = ["", "a", "x" * 128, "b", "y" * 300, "c", "d", "é", "a"]
    jobs = [new(payload=os.urandom(size), tenant=name) for size, name in zip(sizes, names, strict=True)] * 3
    made = await put_jobs(sqlite_store, *jobs)
    expected = [(job.lane.tenant, job.payload) for job in jobs]
    assert [(job.tenant, job.payload) for job in await sqlite_store.get(made) if job] == expected
    lease = await take(sqlite_store, 100)
    assert {job.id: (job.tenant, job.payload) for job in lease.jobs} == dict(zip(made, expected, strict=True))


async def test_neighbours_of_different_tenants_end_as_one_row(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    made = [id for _ in range(2) for id in await put_jobs(sqlite_store, *[new(tenant=f"t{n % 7}") for n in range(30)])]
    await settle_all(sqlite_store, await take(sqlite_store, 100))
    assert rows(eye, "ending") == 2  # a range never leaves its batch
    assert {job and job.state for job in await sqlite_store.get(made)} == {JobState.DONE}


async def test_only_empty_payloads(sqlite_store: SqliteStore):
    made = await put(sqlite_store, 50, payload=b"")
    assert {(job and job.payload) for job in await sqlite_store.get(made)} == {b""}


async def test_the_largest_batch(sqlite_store: SqliteStore):
    made = batch(*[new()] * 65_536)
    await sqlite_store.enqueue(made)
    assert await counts(sqlite_store) == {"ready": 65_536}
    last = await look(sqlite_store, job_id(made.id, 65_535))
    assert last.state is JobState.READY


async def test_a_batch_of_everything(sqlite_store: SqliteStore):
    """Lanes, tasks and options that take turns: neither one group nor one range."""
    jobs = [
        new(f"t{n % 3}", b"%d" % n, tenant=f"x{n % 5}", priority=n % 2, options=b"o%d" % (n % 4) if n % 4 else None)
        for n in range(600)
    ]
    made = await put_jobs(sqlite_store, *jobs)
    found = await sqlite_store.get(made)
    assert [(j.task, j.payload, j.tenant, j.priority, j.options) for j in found if j] == [
        (j.task, j.payload, j.lane.tenant, j.lane.priority, j.options) for j in jobs
    ]
    seen = {job.id for job in (await take(sqlite_store, 1000)).jobs}
    assert seen == set(made)


async def test_results_in_bulk(sqlite_store: SqliteStore):
    made = await put(sqlite_store, 300)
    lease = await take(sqlite_store, 300)
    ends = [(at, Finish(JobState.DONE, result=b"%d" % at) if at % 3 else DONE) for at in range(300)]
    assert await sqlite_store.settle(lease.token, ends) == frozenset()
    found = await sqlite_store.get(made)
    assert [job and job.result for job in found] == [b"%d" % at if at % 3 else None for at in range(300)]


async def test_find_walks_down_when_many_jobs_are_in_a_state(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    made = [id for _ in range(10) for id in await put(sqlite_store, 5)]
    where = Filter(states=frozenset({JobState.READY}))
    few = await sqlite_store.find(where, limit=7)
    monkeypatch.setattr(find, "_FEW", 1)
    many = await sqlite_store.find(where, limit=7)
    assert few == many
    assert [job.id for job in many.jobs] == made[:-8:-1]


HOT = {
    "enqueue": {"repeated", "key", "lock", "queue"},
    "ended": {"ranges", "moment", "jobs"},
    "lanes": {"after", "jobs", "enqueued_at"},
    "report": {"log"},
    "claim": {
        *{"top", "limited", "stretch", "tenants", "tenants_of_lanes", "tenant", "lanes", "ranges", "take", "shorten"},
        *{"take_tenants", "jobs", "batches", "each_job"},
    },
    "lease": {"one", "settled", "end"},
    "limit": {"version", "lanes", "units", "forget"},
    "settle": {"done", "forget_stops"},
    "promote": {"due", "leave", "shorten", "next"},
    "locate": {"job", "seq", "ending", "scheduled", "ready"},
    "get": {"seq", "job", "history"},
    "prune": {"old", "any_old", "jobs", "failures", "locks", "reports", "units", "endings", "empty"},
    "stats": {"head", "oldest"},
    "gates": {"counted_on", "awaited", "followers", "unblock", "waits", "members", "number", "over"},
}


@pytest.mark.parametrize("verb", HOT)
async def test_no_statement_reads_a_whole_table(sqlite_store: SqliteStore, eye: sqlite3.Connection, verb: str):
    eye.execute("pragma automatic_index = off")
    for name in HOT[verb]:
        statement = load(verb)[name]
        numbered = {int(number) for number in re.findall(r"\?(\d+)", statement)}
        count = max(numbered) if numbered else statement.count("?")
        plan = [row[3] for row in eye.execute(f"explain query plan {statement}", [None] * count)]
        scans = [step for step in plan if step.startswith("SCAN") and "headrace" in step and "VIRTUAL" not in step]
        assert scans == [], name
        assert not any("TEMP B-TREE" in step for step in plan) or name == "history", name


@pytest.mark.parametrize(
    ("verb", "name", "skips"),
    [
        ("claim", "tenants", "tenant>?"),
        ("claim", "tenants_of_lanes", "tenant>?"),
        ("claim", "lanes", "tenant=? AND lane>?"),
        ("lanes", "after", "tenant=? AND lane>?"),
        ("lanes", "after", "line>? AND line<?"),
        ("stats", "head", "tenant=? AND lane>?"),
        ("stats", "head", "line>? AND line<?"),
    ],
)
async def test_a_lane_is_skipped_in_one_step_however_long(
    sqlite_store: SqliteStore, eye: sqlite3.Connection, verb: str, name: str, skips: str
):
    """The plan of a row comparison walks through the lane it should skip."""
    statement = load(verb)[name]
    count = max(int(number) for number in re.findall(r"\?(\d+)", statement))
    plan = [row[3] for row in eye.execute(f"explain query plan {statement}", [None] * count)]
    assert any(skips in step for step in plan), plan


async def test_turns_are_equal_also_when_a_claim_is_no_multiple_of_the_lanes(sqlite_store: SqliteStore):
    for tenant in ("a", "b"):
        await put(sqlite_store, 300, tenant=tenant)
        await put(sqlite_store, 300, queue="other", tenant=tenant)
    shares: dict[tuple[str, str], int] = {}
    for _ in range(60):
        lease = await sqlite_store.claim(Ask(WORKER, ("default", "other"), 7, TTL, new_token()))
        assert lease is not None
        for job in lease.jobs:
            shares[job.queue, job.tenant] = shares.get((job.queue, job.tenant), 0) + 1
    assert sum(shares.values()) == 420
    assert max(shares.values()) - min(shares.values()) <= 10


async def test_a_claim_of_many_lanes(sqlite_store: SqliteStore):
    made = await put_jobs(sqlite_store, *[new(tenant=f"t{n:03}") for n in range(300)])
    first, second = await take(sqlite_store, 200), await take(sqlite_store, 200)
    assert (len(first.jobs), len(second.jobs)) == (200, 100)
    assert {job.id for job in (*first.jobs, *second.jobs)} == set(made)
    assert await claim(sqlite_store) is None


async def test_the_bytes_of_results_go_when_their_time_is_over(
    sqlite_store: SqliteStore, eye: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.store.sqlite.verbs.prune._RESULTS", 3)
    lives = [timedelta(0)] * 4 + [timedelta(days=1), None]
    await put(sqlite_store, len(lives))
    lease = await take(sqlite_store)
    ends = [Finish(JobState.DONE, result=b"r" * 1000, result_ttl=life) for life in lives]
    await sqlite_store.settle(lease.token, list(enumerate(ends)))
    keep = Retention(done=timedelta(days=9), dead=timedelta(days=9))
    kept = "select sum(length(result)) from headrace_ending"
    assert [(await sqlite_store.prune(keep)).more, *eye.execute(kept).fetchone()] == [True, 3000]
    assert [(await sqlite_store.prune(keep)).more, *eye.execute(kept).fetchone()] == [False, 2000]
    assert len([job for job in await find_all(sqlite_store) if job.result_expired]) == 4
    plan = eye.execute(
        "explain query plan select lo from headrace_ending"
        " where result_until is not null and length(result) > 0 and result_until <= 1 order by result_until limit 3"
    ).fetchall()
    assert "headrace_ending_result" in str(plan)
