"""Batches over the remote store that headrace would never send: one problem each, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from headrace.model.gate import MAX_SIGNAL, Edge, GateId, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, BatchId, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.step import MAX_STEP_VALUE, Step
from headrace.store.http import wire
from server.running import Running
from server.test_workflows import NOTHING, tell

LANE = Lane()


def job(wait: Wait | None = None) -> NewJob:
    return NewJob("add", NOTHING, LANE, wait=wait)


def gate() -> NewGate:
    return NewGate(id=new_gate_id(), queue="default")


def waits_for_itself(id: BatchId) -> Batch:
    return Batch(id, [job(Wait(job_id(id, 0)))])


def waits_for_a_later_one(id: BatchId) -> Batch:
    return Batch(id, [job(), job(Wait(job_id(id, 2))), job()])


def waits_for_its_own_group(id: BatchId) -> Batch:
    own = gate()
    return Batch(id, [job(), job(Wait(own.id))], (own,), (Edge(job_id(id, 0), job_id(id, 1), own.id),))


def waits_for_its_own_group_in_a_group(id: BatchId) -> Batch:
    inner, outer = gate(), gate()
    edges = (Edge(job_id(id, 0), job_id(id, 0), inner.id), Edge(inner.id, inner.id, outer.id))
    return Batch(id, [job(Wait(outer.id))], (inner, outer), edges)


def wait_for_each_other_in_long_runs(id: BatchId) -> Batch:
    one, other = gate(), gate()
    edges = (Edge(job_id(id, 3), job_id(id, 900), one.id), Edge(job_id(id, 901), job_id(id, 1999), other.id))
    jobs = [
        job(Wait(one.id)) if place == 1500 else job(Wait(other.id)) if place == 77 else job() for place in range(2000)
    ]
    return Batch(id, jobs, (one, other), edges)


def gates_in_a_circle(id: BatchId) -> Batch:
    one, other = gate(), gate()
    edges = (Edge(one.id, one.id, other.id), Edge(other.id, other.id, one.id))
    return Batch(id, [job(Wait(one.id))], (one, other), edges)


def members_of_a_job(id: BatchId) -> Batch:
    return Batch(id, [job(), job()], (), (Edge(job_id(id, 0), job_id(id, 0), GateId(job_id(id, 1))),))


def too_many(id: BatchId) -> Batch:
    return Batch(id, [job(), *[job(Wait(job_id(id, 0)))] * 5000])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (waits_for_itself, "job 0 of the call waits for itself or for a later one"),
        (waits_for_a_later_one, "job 1 of the call waits for itself or for a later one"),
        (waits_for_its_own_group, "a job or a gate of the call waits for itself"),
        (waits_for_its_own_group_in_a_group, "a job or a gate of the call waits for itself"),
        (wait_for_each_other_in_long_runs, "a job or a gate of the call waits for itself"),
        (gates_in_a_circle, "a job or a gate of the call waits for itself"),
        (members_of_a_job, "members and seals name gates"),
        (too_many, "a call has at most 5,000 jobs"),
    ],
)
async def test_a_batch_that_could_never_run_is_refused(server: Running, make: Callable[[BatchId], Batch], told: str):
    answer = await tell(server.http, "enqueue", wire.pack_batch(make(new_batch())))
    assert answer.status_code == 422
    assert told in answer.text
    assert (await server.http.get("/v1/jobs")).json()["items"] == []
    assert (await server.http.get("/v1/groups")).json()["items"] == []


async def test_gates_in_gates_and_long_chains_are_accepted(server: Running):
    id, inner, outer = new_batch(), gate(), gate()
    chain = [job(), *(job(Wait(job_id(id, place))) for place in range(99))]
    edges = (Edge(job_id(id, 0), job_id(id, 99), inner.id), Edge(inner.id, inner.id, outer.id))
    batch = Batch(id, [*chain, job(Wait(outer.id))], (outer, inner), edges)
    assert (await tell(server.http, "enqueue", wire.pack_batch(batch))).is_success


async def test_a_job_waits_for_a_group_with_later_members(server: Running):
    id, one, other = new_batch(), gate(), gate()
    edges = (Edge(job_id(id, 1), job_id(id, 700), one.id), Edge(job_id(id, 701), job_id(id, 1999), other.id))
    jobs = [job(Wait(one.id)), *(job(Wait(other.id)) if place == 350 else job() for place in range(1, 2000))]
    assert (await tell(server.http, "enqueue", wire.pack_batch(Batch(id, jobs, (one, other), edges)))).is_success


async def test_values_that_are_too_large_are_refused_and_not_stored(server: Running):
    signalled = NewGate(id=new_gate_id(), queue="default", signalled=True)
    answer = await tell(server.http, "signal", signalled, bytes(MAX_SIGNAL + 1), timedelta(days=1))
    assert (answer.status_code, f"at most {MAX_SIGNAL:,} bytes" in answer.text) == (422, True)
    [stored] = wire.read_answer(wire.VERBS["gates"], (await tell(server.http, "gates", [signalled.id])).content)
    assert stored is None

    id, ask = new_batch(), Ask(new_worker_id(), ("default",), 1, timedelta(minutes=1), new_token())
    await tell(server.http, "enqueue", wire.pack_batch(Batch(id, [job()])))
    lease = wire.read_answer(wire.VERBS["claim"], (await tell(server.http, "claim", ask)).content)
    large = Step("copy", 0, b"", bytes(MAX_STEP_VALUE + 1), datetime.now(UTC))
    answer = await tell(server.http, "add_steps", lease.token, [(0, large)])
    assert (answer.status_code, f"{MAX_STEP_VALUE:,}" in answer.text) == (422, True)
    steps = wire.read_answer(wire.VERBS["read_steps"], (await tell(server.http, "read_steps", job_id(id, 0))).content)
    assert steps == []
