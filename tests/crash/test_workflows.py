"""Processes die in the middle of workflows: every job runs, each callback is one job, and every count is right."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from crash.scene import DOOMED, PLAIN, STEADY, Scene, stop
from crash.workflow_app import callback, followed, go, member, parent, waits
from headrace.model.gate import Counts, Edge, GateId, Needs, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.records import Filter, QueueStats
from headrace.runtime.faults import EXIT_CODE
from headrace.task.event import event_gate
from headrace.task.task import Task

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

APP = {"HEADRACE_APP": "crash.workflow_app:app"}
EARLY, LATE = (
    {**APP, **DOOMED, "HEADRACE_QUEUES": "default"},
    {**APP, **STEADY, "HEADRACE_QUEUES": "default,later,nested"},
)
"""The workers that die serve one queue. What is in the other ones is left to the last worker."""
PIECES = {"sqlite": 20_100, "postgres": 10_100, "redis": 4_000, "valkey": 4_000}
"""Jobs that one end cancels in at least two pieces, or three on SQLite, where the settlement itself does the first. On Redis the
settlement and a janitor go on with them at the same time, 300 in each piece."""
CALL = 900
"""Jobs of one call. Redis takes no more runs in one."""
COUNTED_AT = {"postgres": "tolled"}
"""Where a worker dies after a settlement that counts, if that is not where every settlement ends."""
MEMBERS, FILLED, RELEASED = 20, 30, 80
TOGETHER = 700
"""Jobs side by side that one end cancels. Redis keeps such a run, and that of the released ones, as a lane."""
OPENED, COUNTED, LEFT = 1, 2, 3
"""The numbers of the callbacks."""

PRODUCER = """
import asyncio
from headrace.client import bulk
from crash.workflow_app import app, callback, member

bulk.CHUNK, bulk.FEW = 30, 5

async def main():
    async with app.open_group("import", on_done=callback.job(3)) as rows:
        await rows.aenqueue_many(member.job(100 + number) for number in range(90))

asyncio.run(main())
"""


def job_of(task: Task[[int], Any], number: int, lane: Lane, wait: Wait | None = None) -> NewJob:
    return NewJob(task.name, task.codec.encode((number,), {}), lane, wait=wait)


async def dies(scene: Scene, point: str, script: str = PLAIN, **env: str) -> None:
    """A process reaches that point, and ends there."""
    process = scene.start(script, **{"CRASH_HEADRACE_AT": f"{point}:1", **EARLY, **env})
    assert await scene.exit_of(process) == EXIT_CODE, point


async def an_opening(scene: Scene, size: int) -> list[JobId]:
    """A job of which many others wait for the failure, in ranges of one and in a run, and some for its end."""
    id, lanes, later, high = new_batch(), (Lane("later"), Lane("later", 1)), Lane("later", 2), Lane("later", 3)
    failed, done = Wait(job_id(id, 0), Needs.FAILED), Wait(job_id(id, 0))
    batches = [Batch(id, [job_of(member, 0, Lane())])]
    jobs = [job_of(callback, -1, lanes[number % 2], failed) for number in range(size)]
    batches += [Batch(new_batch(), jobs[at : at + CALL]) for at in range(0, size, CALL)]
    batches.append(Batch(new_batch(), [job_of(callback, -1, high, failed)] * TOGETHER))
    batches.append(Batch(new_batch(), [job_of(callback, OPENED, later, done)] * RELEASED))
    for batch in batches:
        await scene.store.enqueue(batch)
    return [job_id(batch.id, ord) for batch in batches for ord in range(len(batch.jobs))]


async def a_group(scene: Scene) -> tuple[GateId, list[JobId]]:
    id, gate = new_batch(), NewGate(id=new_gate_id(), queue="default", label="counted")
    jobs = [job_of(member, number, Lane()) for number in range(1, MEMBERS + 1)]
    jobs.append(job_of(callback, COUNTED, Lane("later"), Wait(gate.id)))
    await scene.store.enqueue(Batch(id, jobs, (gate,), (Edge(job_id(id, 0), job_id(id, MEMBERS - 1), gate.id),)))
    return gate.id, [job_id(id, ord) for ord in range(len(jobs))]


async def counts(scene: Scene, gate: GateId) -> Counts:
    [stored] = await scene.store.gates([gate])
    assert stored is not None
    return stored.counts


async def queue_stats(scene: Scene) -> list[QueueStats]:
    return (await scene.store.stats()).queues


async def blocked_later(scene: Scene) -> int:
    return sum(queue.blocked for queue in await queue_stats(scene) if queue.queue == "later")


async def nothing_waits(scene: Scene) -> bool:
    queues = await queue_stats(scene)
    return not any(queue.blocked or queue.ready or queue.scheduled or queue.running for queue in queues)


async def states_of(scene: Scene, ids: list[JobId]) -> list[JobState]:
    parts = [await scene.get(ids[at : at + 1000]) for at in range(0, len(ids), 1000)]
    return [job.state for part in parts for job in part]


async def test_a_crash_at_every_point_of_a_workflow(scene: Scene, store_name: str) -> None:
    opened = await an_opening(scene, PIECES[store_name])
    await dies(scene, "opening")
    assert await blocked_later(scene) > 0, "it died between two pieces"

    gate, counted = await a_group(scene)
    await dies(scene, COUNTED_AT.get(store_name, "settled"))
    assert (await counts(scene, gate)).done > 0, "what was settled is counted"

    waiting = await scene.enqueue(waits, (1,), (2,), (3,))
    await dies(scene, "suspended")
    assert JobState.BLOCKED in await states_of(scene, waiting), "a job that waits has no lease"

    chain = await scene.enqueue(followed, (11,), (12,))
    await dies(scene, "attached")
    await dies(scene, "filled", PRODUCER)
    nested = Batch(new_batch(), [job_of(parent, 4, Lane("nested"))])
    await scene.store.enqueue(nested)
    parents = [job_id(nested.id, 0)]
    await dies(scene, "children", HEADRACE_QUEUES="nested")
    [filled] = [group for group in await scene.store.groups() if group.label == "import"]
    assert (filled.sealed, filled.counts.size) == (False, FILLED)

    for number in (1, 2, 3, 4):
        assert await scene.store.signal(event_gate(go.name, number), b"\x07", timedelta(days=1))
    last = scene.start(PLAIN, **LATE)
    jobs = await scene.finished(opened[:1] + opened[-RELEASED:] + counted + waiting + chain + parents)
    await scene.until(lambda: len(scene.count("member")) == 1 + MEMBERS + FILLED, "the members have run")
    await scene.until(lambda: {11, 12} <= scene.count("callback").keys(), "the successors have run")
    assert scene.count("callback")[LEFT] == 0, "a group that was never sealed has not ended"
    await scene.store.enqueue(Batch(new_batch(), [], seals=(filled.id,)))
    await scene.until(lambda: nothing_waits(scene), "no job is left")
    await scene.joined(last)
    stop(last)
    assert await scene.exit_of(last) == 0

    # Every job has the end that it should have.
    assert {(job.state, job.failures) for job in jobs} == {(JobState.DONE, 0)}
    assert set(await states_of(scene, opened[1:-RELEASED])) == {JobState.CANCELLED}
    # What waited ran once, however often what it waited for was interrupted.
    assert scene.count("callback") == {OPENED: RELEASED, COUNTED: 1, LEFT: 1, 11: 1, 12: 1}
    assert scene.count("goes on") == {1: 1, 2: 1, 3: 1, 4: 1}
    assert scene.count("has its child") == {4: 1}
    assert await counts(scene, gate) == Counts(MEMBERS, done=MEMBERS)
    assert await counts(scene, filled.id) == Counts(FILLED, done=FILLED)
    # Each attempt of a job that is followed names the same successor.
    found = await scene.store.find(Filter(task=callback.name, queue="default"), limit=100)
    assert len(found.jobs) == 3
    # A task that awaits a job meets the one that its earlier attempt has enqueued.
    assert len((await scene.store.find(Filter(task=waits.name), limit=100)).jobs) == len(waiting) + len(parents)
