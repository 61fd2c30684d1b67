"""Short words for these tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.model.job import Batch, JobId, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Lease, new_token, new_worker_id
from headrace.store.contract import Store

WORKER = new_worker_id()
TTL = timedelta(seconds=15)


def a_batch(count: int = 1, *, task: str = "t", lane: Lane | None = None) -> Batch:
    return Batch(new_batch(), [NewJob(task, b"{}", lane or Lane()) for _ in range(count)])


async def put(store: Store, count: int = 1, *, lane: Lane | None = None) -> list[JobId]:
    batch = a_batch(count, lane=lane)
    await store.enqueue(batch)
    return [job_id(batch.id, ord) for ord in range(count)]


async def claim(store: Store, limit: int = 100, queue: str = "default") -> Lease | None:
    return await store.claim(Ask(WORKER, (queue,), limit, TTL, new_token()))


async def take(store: Store, limit: int = 100) -> Lease:
    lease = await claim(store, limit)
    assert lease is not None
    return lease


async def blocked(sql: Any, count: int = 1) -> None:
    """Return once so many sessions of this database wait for a lock."""
    while True:
        waiting = await sql.fetchval(
            "select count(distinct l.pid) from pg_locks l join pg_stat_activity a using (pid)"
            " where not l.granted and a.datname = current_database()"
        )
        if waiting >= count:
            return


async def deadlocks(sql: Any) -> int:
    """How many deadlocks this database has had."""
    await sql.execute("select pg_stat_clear_snapshot()")
    found: int = await sql.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    return found


async def until_waiting(sql: Any, table: str, *, no: bool = False) -> None:
    """Until a session waits for a lock on this table; or until none does."""
    found = no
    while found is no:
        found = await sql.fetchval(
            "select exists (select from pg_sleep(0.01), pg_locks l where not l.granted and l.relation = $1::regclass"
            " and l.database = (select oid from pg_database where datname = current_database()))",
            f"headrace.{table}",
        )
