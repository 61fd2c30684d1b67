"""Numbered placeholders on the Pythons that take them for names: the same work, with nothing to warn of."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import Finish
from headrace.store.sqlite.engine import connection
from headrace.store.sqlite.store import SqliteStore


async def test_a_jobs_life_with_parameters_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_WARNS", True)
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    await store.migrate()
    await store.open()
    try:
        batch = Batch(new_batch(), [NewJob("t", b"x", Lane("q", 0, tenant)) for tenant in ("a", "b", "a")])
        await store.enqueue(batch)
        lease = await store.claim(Ask(new_worker_id(), ("q",), 10, timedelta(seconds=30), new_token()))
        assert lease is not None
        assert sorted(job.tenant for job in lease.jobs) == ["a", "a", "b"]
        done = [(position, Finish(JobState.DONE)) for position in range(3)]
        assert not await store.settle(lease.token, done)
        jobs = await store.get([job_id(batch.id, 1)])
        assert [job.state for job in jobs if job is not None] == [JobState.DONE]
        assert [each.done_total for each in (await store.stats()).queues] == [3]
    finally:
        await store.close()


def test_they_bind_alike() -> None:
    conn = connection.sqlite3.connect(":memory:")
    try:
        cur = conn.cursor(connection._ByName)
        assert cur.execute("select ?2, ?1, ?2", (1, 2)).fetchone() == (2, 1, 2)
        assert cur.execute("select ?, ?", (1, 2)).fetchone() == (1, 2)
        cur.execute("create table t (a, b)")
        cur.executemany("insert into t values (?2, ?1)", [(1, 2), (3, 4)])
        assert cur.execute("select a, b from t").fetchall() == [(2, 1), (4, 3)]
    finally:
        conn.close()
