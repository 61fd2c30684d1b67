"""Cancels the children that a job awaited, when that job has ended dead or cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from headrace.client.members import PAGE, edges_of
from headrace.model.job import BatchId, JobId, JobState, job_id, split_id
from headrace.model.records import CancelAnswer
from headrace.store.contract import Store
from headrace.task.children import children_gate, open_batches, why_cancelled
from headrace.task.codec import readable_options


async def cancel_children(store: Store, parents: Iterable[tuple[JobId, JobState]]) -> int:
    """Cancel the children of jobs that have ended, and the children of those. Answers how many were cancelled or asked to stop.

    A waiting child is cancelled. A running one is asked to stop, and its worker then cancels the children of it.
    """
    count = 0
    level = list(parents)
    while level:
        below: list[JobId] = []
        for id, state in level:
            async for page in _children(store, id):
                answers = await store.cancel(page, why_cancelled(id, state))
                below += (child for child, answer in answers.items() if answer is CancelAnswer.CANCELLED)
                count += sum(answer in {CancelAnswer.CANCELLED, CancelAnswer.ASKED} for answer in answers.values())
        level = [(child, JobState.CANCELLED) for child in await _that_ran(store, below)]
    return count


async def cancel_awaited(store: Store, answers: Mapping[JobId, CancelAnswer]) -> int:
    """Cancel what the jobs awaited that these answers of `cancel` say are cancelled."""
    if getattr(store, "writes_audit", False):
        return 0  # Behind a remote store the server does it.
    cancelled = [id for id, answer in answers.items() if answer is CancelAnswer.CANCELLED]
    return await cancel_children(store, [(id, JobState.CANCELLED) for id in await _that_ran(store, cancelled)])


async def _that_ran(store: Store, ids: Sequence[JobId]) -> list[JobId]:
    """Those of these jobs that have had an attempt. Only they can have children."""
    ran: list[JobId] = []
    for start in range(0, len(ids), PAGE):
        ran += (job.id for job in await store.get(ids[start : start + PAGE]) if job is not None and job.attempt)
    return ran


async def _children(store: Store, parent: JobId) -> AsyncIterator[list[JobId]]:
    """The jobs that a job has enqueued and awaited, in pages. A job that stands for one with a key is not among them."""
    for batch in await _own_batches(store, parent):
        async for edge in edges_of(store, children_gate(batch)):
            of, first = split_id(edge.first)
            last = split_id(edge.last)[1]
            if of != batch:
                continue
            for start in range(first, last + 1, PAGE):
                yield [job_id(batch, place) for place in range(start, min(start + PAGE, last + 1))]


async def _own_batches(store: Store, parent: JobId) -> list[BatchId]:
    """The batches of children that a job awaits.

    A worker may write any step, also one that names the children of a job of another tenant. A wait makes its gate in the queue of
    its job and for the tenant of its job.
    """
    batches = open_batches(await store.read_steps(parent))
    [job] = await store.get([parent]) if batches else [None]
    if job is None:
        return []
    place = job.queue, job.tenant or readable_options(job.options).tenant or ""
    gates = await store.gates([children_gate(batch) for batch in batches])
    return [
        batch
        for batch, gate in zip(batches, gates, strict=True)
        if gate is not None and (gate.queue, gate.tenant) == place
    ]
