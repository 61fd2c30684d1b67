"""Workers of many queues: what a claim costs goes by the queues that have jobs waiting, not by those that are empty."""

from __future__ import annotations

import pytest

from conformance.kit import batch, claim, new, put, take
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.store import SqliteStore

MANY = tuple(f"q{number}" for number in range(2000))


async def count_statements(store: SqliteStore, counted: list[str]) -> None:
    """Note every statement of the writing connection from now on."""
    writer = store._writer
    assert writer is not None

    def trace(tx: Tx) -> bool:
        tx.cur.connection.set_trace_callback(counted.append)
        return True

    await writer.call(trace, look=trace)


@pytest.mark.parametrize("waiting", [0, 3])
async def test_empty_queues_cost_nothing(sqlite_store: SqliteStore, waiting: int):
    # Each has had jobs before, so the file knows them all.
    for start in range(0, len(MANY), 1000):
        await sqlite_store.enqueue(batch(*[new(queue=queue) for queue in MANY[start : start + 1000]]))
    while await claim(sqlite_store, 1000, *MANY) is not None:
        pass
    for queue in MANY[:waiting]:
        await put(sqlite_store, 2, queue=queue)
    statements: list[str] = []
    await count_statements(sqlite_store, statements)
    lease = await claim(sqlite_store, 100, *MANY)
    assert (0 if lease is None else len(lease.jobs)) == 2 * waiting
    assert len(statements) < 100


async def test_the_highest_priority_of_many_queues_comes_first(sqlite_store: SqliteStore):
    queues = MANY[:100]
    for number in range(0, 100, 3):
        await put(sqlite_store, queue=queues[number], priority=number)
    found = [(await take(sqlite_store, 1, *queues)).jobs[0].priority for _ in range(0, 100, 3)]
    assert found == sorted(range(0, 100, 3), reverse=True)
    assert await claim(sqlite_store, 1, *queues) is None


async def test_paused_ones_among_many_queues(sqlite_store: SqliteStore):
    queues = MANY[:100]
    await put(sqlite_store, queue=queues[50])
    await put(sqlite_store, queue=queues[60])
    await sqlite_store.pause(queues[50])
    lease = await take(sqlite_store, 5, *queues)
    assert [job.queue for job in lease.jobs] == [queues[60]]
    assert await claim(sqlite_store, 5, *queues) is None
    await sqlite_store.resume(queues[50])
    assert len((await take(sqlite_store, 5, *queues)).jobs) == 1


async def test_more_queues_of_others_wait_than_were_asked_for(sqlite_store: SqliteStore):
    await sqlite_store.enqueue(batch(*[new(queue=queue) for queue in MANY]))
    asked = (*[f"mine{number}" for number in range(40)], MANY[-1])
    assert [job.queue for job in (await take(sqlite_store, 5, *asked)).jobs] == [MANY[-1]]
    assert await claim(sqlite_store, 5, *asked) is None
