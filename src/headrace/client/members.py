"""Reads the members of a group and their results, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

from headrace.model.gate import Edge, GateId, is_gate
from headrace.model.job import Job, JobId, job_id, split_id
from headrace.store.contract import Store

PAGE: Final = 500
"""Edges, and jobs, in one call of the store."""


async def edges_of(store: Store, gate: GateId) -> AsyncIterator[Edge]:
    """The members of a gate in the order of their ids, which is the order of their enqueue calls."""
    after: UUID | None = None
    while True:
        links = await store.links(gate, after=after, limit=PAGE)
        for edge in links.members:
            yield edge
        if len(links.members) < PAGE:
            return
        after = links.members[-1].first


async def member_ids(store: Store, gate: GateId, *, skip: int = 0) -> AsyncIterator[list[JobId]]:
    """The jobs of a group, with those of the groups in it, in pages. The first `skip` jobs are left out."""
    page: list[JobId] = []
    open_gates = [edges_of(store, gate)]
    while open_gates:
        edge = await anext(open_gates[-1], None)
        if edge is None:
            open_gates.pop()
            continue
        if is_gate(edge.first):
            open_gates.append(edges_of(store, GateId(edge.first)))
            continue
        batch, first = split_id(edge.first)
        ordinals = range(first, split_id(edge.last)[1] + 1)
        passed = min(skip, len(ordinals))
        skip -= passed
        for ord in ordinals[passed:]:
            page.append(job_id(batch, ord))
            if len(page) == PAGE:
                yield page
                page = []
    if page:
        yield page


async def members(store: Store, gate: GateId) -> AsyncIterator[tuple[JobId, Job | None]]:
    """The jobs of a group. None: that job is not stored any more."""
    async for page in member_ids(store, gate):
        for id, job in zip(page, await store.get(page), strict=True):
            yield id, job
