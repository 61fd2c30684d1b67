"""Large payloads: they are neither copied into arrays nor written to temporary files."""

from __future__ import annotations

import os
from typing import Any

from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import LEASE_BYTES
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import a_batch, claim, take


def large_batch(count: int, size: int = 100_000) -> Batch:
    return Batch(new_batch(), [NewJob("t", os.urandom(size), Lane()) for _ in range(count)])


async def temporary_bytes(sql: Any) -> int:
    await sql.execute("select pg_stat_clear_snapshot()")
    found: int = await sql.fetchval("select temp_bytes from pg_stat_database where datname = current_database()")
    return found


async def test_large_payloads_need_no_temporary_files(pg: PostgresStore, sql: Any):
    batch = large_batch(100)
    await pg.enqueue(batch)
    payloads: list[bytes] = []
    while (lease := await claim(pg, 1000)) is not None:
        payloads += [job.payload for job in lease.jobs]
    assert payloads == [job.payload for job in batch.jobs]
    # A session reports its statistics at the latest when it ends.
    await pg.close()
    await until_no_session(sql)
    assert await temporary_bytes(sql) == 0


async def until_no_session(sql: Any) -> None:
    """Until this connection is the only one of its database."""
    while await sql.fetchval(
        "select exists (select from pg_sleep(0.01), pg_stat_activity a"
        " where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend')"
    ):
        pass


async def test_a_store_asks_for_as_many_large_jobs_as_fit(pg: PostgresStore):
    await pg.enqueue(large_batch(120))
    leases = [await take(pg, 1000) for _ in range(3)]
    assert [lease.cut for lease in leases] == [False, True, True]
    assert all(sum(len(job.payload) for job in lease.jobs) <= LEASE_BYTES for lease in leases)
    assert all(len(lease.jobs) >= 30 for lease in leases)


async def test_a_claim_that_meets_large_jobs_after_small_ones_gets_those_that_fit(pg: PostgresStore):
    await pg.enqueue(a_batch(1))
    await take(pg, 1000)
    await pg.enqueue(large_batch(120))
    lease = await take(pg, 1000)
    assert len(lease.jobs) == LEASE_BYTES // 100_000
    assert lease.cut, "there are others, so the worker need not listen before it claims again"


async def test_after_large_jobs_many_small_ones_are_claimed_at_once(pg: PostgresStore):
    await pg.enqueue(large_batch(40))
    while await claim(pg, 1000) is not None:
        pass
    for _ in range(12):
        await pg.enqueue(a_batch(600))
    sizes: list[int] = []
    while (lease := await claim(pg, 500)) is not None:
        sizes.append(len(lease.jobs))
    assert 500 in sizes
    assert len(sizes) < 30


async def test_payloads_are_compressed_by_lz4_where_the_server_has_it(sql: Any):
    has_lz4: bool = await sql.fetchval(
        "select exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals))"
    )
    found = await sql.fetch(
        # As JSON, because PostgreSQL 13 has no such column.
        "select c.relname, to_jsonb(a) ->> 'attcompression' is not distinct from 'l' as by_lz4 from pg_partition_tree('headrace.job') t join pg_class c on c.oid = t.relid"
        " join pg_attribute a on a.attrelid = c.oid where a.attname = 'payload'"
    )
    assert len(found) > 2, "the table, its default partition and those of some days"
    assert {row["by_lz4"] for row in found} == {has_lz4}
