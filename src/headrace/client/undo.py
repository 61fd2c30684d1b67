"""Stores the undo jobs of a running job: blocked until it has failed, and each behind those that were registered after it.

All of them wait for one job of headrace's own, the *start*, which waits until the running job has failed, and which is cancelled when it is
done. An undo job waits for a gate that has the start as a member, and the next undo job becomes another member of that gate when it is
registered.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.client.enqueue_hooks import Enqueueing
from headrace.client.graph import with_tenant
from headrace.errors import GroupOver
from headrace.model.gate import Edge, GateId, Needs, NewGate, Wait, derived_gate_id
from headrace.model.job import Batch, BatchId, JobId, NewJob, job_id
from headrace.model.lane import Lane
from headrace.model.step import UNDO
from headrace.task.call import JobCall
from headrace.task.codec import Signature
from headrace.task.handle import Put
from headrace.task.job_checks import tenant_of
from headrace.task.undo import UndoPlace, start

if TYPE_CHECKING:
    from headrace.client.produce import Producer

_NO_ARGUMENTS = Signature(start, name=UNDO).encode((), {})


async def put_undo(producer: Producer, call: JobCall[Any], place: UndoPlace) -> Put:
    """Store the undo job. A call that is repeated changes nothing."""
    batch = undo_batch(call.job, place, producer.unfair)
    client = await producer.clients.here()
    with Enqueueing(producer.hooks.on_enqueue) as hooked:
        batch = replace(batch, jobs=[hooked.traced(job) for job in batch.jobs])
        try:
            await client.enqueue_batch(batch)
        except GroupOver:
            # An operator has cancelled the start, or the job has ended meanwhile, so that no undo job waits for this one.
            await client.enqueue_batch(replace(batch, edges=batch.edges[:1]))
        hooked.stored(len(batch.jobs))
    return Put(_own(place), created=True)


def undo_batch(job: NewJob, place: UndoPlace, unfair: Collection[str]) -> Batch:
    """The batch of one undo job. The first one of a job has the start at its place 0."""
    if place.tenant and not tenant_of(job):
        job = with_tenant(job, place.tenant, unfair)
    own, start = _own(place), job_id(place.first, 0)
    gate = NewGate(id=_gate_of(place.batch), queue=job.lane.queue, tenant=tenant_of(job))
    jobs = [replace(job, wait=Wait(gate.id))]
    edges = [Edge(start, start, gate.id)]
    if place.before:
        edges.append(Edge(own, own, _gate_of(place.before[-1])))
    else:
        first = NewJob(UNDO, _NO_ARGUMENTS, Lane(place.queue), wait=Wait(place.job, Needs.FAILED))
        jobs.insert(0, with_tenant(first, place.tenant, unfair) if place.tenant else first)
    return Batch(place.batch, jobs, (gate,), tuple(edges))


def _own(place: UndoPlace) -> JobId:
    return job_id(place.batch, 0 if place.before else 1)


def _gate_of(batch: BatchId) -> GateId:
    return derived_gate_id(UNDO, str(batch))
