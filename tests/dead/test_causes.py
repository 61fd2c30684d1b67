"""The causes of dead jobs are read once, however often they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.kit import DEAD, failure, find_all, put, settle_all, take
from headrace.model.job import Failure, Job, JobId, JobState
from headrace.model.outcome import Finish
from headrace.model.records import Filter
from headrace.operate.dead import causes
from headrace.operate.dead.causes import Causes
from headrace.policy import fingerprint
from headrace.store.memory import MemoryStore

ALL_DEAD = Filter(states=frozenset({JobState.DEAD}))


class Reader(MemoryStore):
    """Notes which jobs are read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[JobId] = []

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        self.read += ids
        return await super().get(ids)


def dies_of(kind: str) -> Finish:
    return Finish(JobState.DEAD, note="max_attempts", failure=Failure(1, kind, "no", "", failure().at, "host:1"))


async def test_a_traceback_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "_AT_ONCE", 2)
    store = Reader()
    ids = await put(store, 5)
    await settle_all(store, await take(store), dies_of("ValueError"))
    known = Causes(store)
    for _ in range(3):
        of = await known.of(await find_all(store, ALL_DEAD))
        assert {job.id for job, _ in of} == set(ids)
        assert {bug.title for _, bug in of} == {"ValueError: no in t"}
    assert sorted(store.read) == sorted(ids)


async def test_a_job_that_dies_again_may_have_another_cause() -> None:
    store = Reader()
    [id] = await put(store)
    known = Causes(store)
    for kind in ("ValueError", "KeyError"):
        await settle_all(store, await take(store), dies_of(kind))
        [(job, bug)] = await known.of(await find_all(store, ALL_DEAD))
        assert bug.title == f"{kind}: no in t"
        assert job.id == id
        await store.retry([id])


async def test_a_job_that_is_replayed_meanwhile_is_left_out() -> None:
    store = Reader()
    ids = await put(store, 2)
    await settle_all(store, await take(store), DEAD)
    listed = await find_all(store, ALL_DEAD)
    await store.retry(ids[:1])
    [(job, bug)] = await Causes(store).of(listed)
    assert job.id == ids[1]
    [stored] = await store.get([ids[1]])
    assert stored is not None
    assert bug == fingerprint.of_job(stored)


async def test_the_oldest_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "MOST", 3)
    store = Reader()
    await put(store, 5)
    await settle_all(store, await take(store), dies_of("ValueError"))
    known = Causes(store)
    dead = await find_all(store, ALL_DEAD)
    for job in dead:
        assert len(await known.of([job])) == 1
    store.read.clear()
    await known.of(dead[-3:])
    assert store.read == []
    await known.of(dead[:1])
    assert store.read == [dead[0].id]
