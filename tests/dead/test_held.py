"""Held jobs: which ones a look counts, and what it does not ask the store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import take
from dead.test_dead_letters import died
from headrace.model.gate import Edge, Needs, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, JobId, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.outcome import DONE
from headrace.operate import held
from headrace.operate.held import HeldFigures, HeldJobs
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock


def job(queue: str = "default", wait: Wait | None = None) -> NewJob:
    return NewJob("t", b"\x92\x90\x80", Lane(queue), wait=wait)


async def enqueue(store: Store, *jobs: NewJob, **more: Any) -> list[JobId]:
    batch = Batch(more.pop("id", None) or new_batch(), list(jobs), **more)
    await store.enqueue(batch)
    return [job_id(batch.id, place) for place in range(len(jobs))]


async def kill_next(store: Store) -> None:
    lease = await take(store, 1)
    await store.settle(lease.token, [(0, died("charge"))])


async def look(store: Store) -> HeldFigures:
    return await held.look(store, await store.stats())


async def test_jobs_that_wait_for_a_dead_one_are_held(store: Store, clock: FakeClock) -> None:
    [first] = await enqueue(store, job())
    id, gate = new_batch(), NewGate(id=new_gate_id(), queue="default", label="pair")
    await enqueue(
        store,
        job("mail", Wait(first)),
        job("mail", Wait(gate.id)),
        job("late", Wait(gate.id, Needs.ENDED)),
        job("late", Wait(job_id(id, 0))),
        job("unrelated"),
        id=id,
        gates=(gate,),
        edges=(Edge(first, first, gate.id), Edge(job_id(id, 4), job_id(id, 4), gate.id)),
    )
    assert await look(store) == HeldFigures()
    await kill_next(store)
    died_at = await store.now()
    clock.advance(timedelta(hours=1))
    # The job that waits for the end of the group in any way is not held, and that behind a blocked job is not counted.
    assert await look(store) == HeldFigures({"mail": HeldJobs(count=2, since=died_at)})
    await store.retry([first])
    assert await look(store) == HeldFigures()
    lease = await take(store, 1)
    await store.settle(lease.token, [(0, DONE)])
    assert await look(store) == HeldFigures()


async def test_a_job_behind_a_group_with_a_group_in_it_is_held(store: Store) -> None:
    [first] = await enqueue(store, job())
    inner, outer = (NewGate(id=new_gate_id(), queue="default") for _ in range(2))
    edges = (Edge(first, first, inner.id), Edge(inner.id, inner.id, outer.id))
    await enqueue(store, job("mail", Wait(outer.id)), gates=(inner, outer), edges=edges)
    await kill_next(store)
    assert (await look(store)).queues["mail"].count == 1


async def test_a_look_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "DEAD_LETTERS", 2)
    monkeypatch.setattr(held, "EACH", 3)
    for _ in range(3):
        [first] = await enqueue(store, job())
        await enqueue(store, *(job("mail", Wait(first)) for _ in range(5)))
        await kill_next(store)
    figures = await look(store)
    assert (figures.queues["mail"].count, figures.at_least) == (6, True)


async def test_a_store_without_blocked_jobs_is_not_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await enqueue(store, job())
    await kill_next(store)
    stats = await store.stats()

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(store, "find", refuse)
    assert await held.look(store, stats) == HeldFigures()
