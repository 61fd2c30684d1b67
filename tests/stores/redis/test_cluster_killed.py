"""A worker on a cluster dies between two queues: what it has told counts once, and what it has not is told by the next one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crash.scene import DOOMED, PLAIN, STEADY, Scene, stop
from crash.workflow_app import callback, member
from headrace.model.gate import Counts, Edge, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.runtime.faults import EXIT_CODE
from headrace.store.redis.store import RedisStore
from servers.redis import RedisCluster

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
MEMBERS = 12
APP = {"HEADRACE_APP": "crash.workflow_app:app", "HEADRACE_QUEUES": "q1,q2,q4"}


@pytest.fixture
async def scene(cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    witness = tmp_path / "witness.jsonl"
    witness.touch()
    monkeypatch.setenv("CRASH_WITNESS", os.fspath(witness))
    store = RedisStore(cluster.url())
    await store.open()
    scene = Scene(cluster.url(), store, witness, tmp_path)
    yield scene
    scene.clear()
    await store.close()


async def test_a_worker_that_dies_after_it_has_told_another_queue(scene: Scene) -> None:
    id, gate = new_batch(), NewGate(id=new_gate_id(), queue="q3")
    jobs = [
        NewJob(member.name, member.codec.encode((number,), {}), Lane(f"q{number % 2 + 1}")) for number in range(MEMBERS)
    ]
    jobs.append(NewJob(callback.name, callback.codec.encode((0,), {}), Lane("q4"), wait=Wait(gate.id)))
    await scene.store.enqueue(Batch(id, jobs, (gate,), (Edge(job_id(id, 0), job_id(id, MEMBERS - 1), gate.id),)))
    first = scene.start(PLAIN, CRASH_HEADRACE_AT="told:1", **APP, **DOOMED)
    assert await scene.exit_of(first) == EXIT_CODE
    last = scene.start(PLAIN, **APP, **STEADY)
    ended = await scene.finished([job_id(id, ord) for ord in range(MEMBERS + 1)])
    await scene.joined(last)
    stop(last)
    assert await scene.exit_of(last) == 0
    assert {(job.state, job.failures) for job in ended} == {(JobState.DONE, 0)}
    assert scene.count("callback") == {0: 1}
    [stored] = await scene.store.gates([gate.id])
    assert stored is not None
    assert stored.counts == Counts(MEMBERS, done=MEMBERS)
