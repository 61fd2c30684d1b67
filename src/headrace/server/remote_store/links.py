"""The verbs of gates for the http store: what a caller may signal and see."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Final
from uuid import UUID

from headrace.client.graph import MOST_JOBS
from headrace.errors import ConfigError
from headrace.model.gate import MAX_LABEL, MAX_SIGNAL, Gate, GateId, Links, NewGate, is_gate
from headrace.model.job import Batch, JobId, split_id
from headrace.model.lane import check_tenant
from headrace.model.outcome import Again, Settlement
from headrace.server import link_visibility
from headrace.server.remote_store import checks
from headrace.server.remote_store.history import HistoryCalls
from headrace.task.job_checks import check_span

Block = tuple[int, int]
"""The first place and the number of places, which is a power of two."""
Before = dict[UUID | Block, list[UUID | Block]]
"""What gates and blocks of jobs wait for, or count."""
_LARGEST: Final = 1 << 13
"""Places of the largest block."""


class LinkCalls(HistoryCalls):
    """The part of `Calls` that is about gates."""

    async def signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        check_gate(gate)
        check_span(keep)
        if len(value) > MAX_SIGNAL:
            raise ConfigError(f"the value of a signal has at most {MAX_SIGNAL:,} bytes")
        await link_visibility.check_gates(self._store, self._who, [gate])
        return await self._store.signal(gate, value, keep)

    async def gates(self, ids: list[GateId]) -> list[Gate | None]:
        checks.check_ids([JobId(id) for id in ids])
        return await link_visibility.gates(self._store, self._who, ids)

    async def groups(self, tenant: str | None, before: GateId | None, limit: int) -> list[Gate]:
        if tenant is not None:
            check_tenant(tenant)
        if self._who.tenant is not None:
            if tenant not in {None, self._who.tenant}:
                return []
            tenant = self._who.tenant
        groups = await self._store.groups(tenant=tenant, before=before, limit=checks.bounded(limit))
        return [gate for gate in groups if self._who.sees(gate.queue, gate.tenant)]

    async def links(self, id: UUID, after: UUID | None, limit: int) -> Links:
        return await link_visibility.links(self._store, self._who, id, after, checks.bounded(limit))

    async def _check_links(self, batch: Batch) -> None:
        """Refuse what headrace would never send, and what the caller may not name."""
        if batch.linked:
            if max(len(batch.gates), len(batch.seals), len(batch.edges)) > checks.MOST:
                raise ConfigError(f"a call has at most {checks.MOST:,} gates and members")
            for gate in batch.gates:
                check_gate(gate)
            if not all(is_gate(edge.into) for edge in batch.edges) or not all(map(is_gate, batch.seals)):
                raise ConfigError("members and seals name gates, whose ids are UUIDs of version 8")
            check_order(batch)
        # A job with inputs need not wait for them, so a batch without gates may name jobs of others, too.
        await link_visibility.check_batch(self._store, self._who, batch)

    async def _check_waits(self, settlement: Settlement) -> None:
        if isinstance(settlement, Again) and settlement.waits:
            for gate in settlement.gates:
                check_gate(gate)
            if not all(is_gate(wait.gate) for wait in settlement.waits):
                raise ConfigError("a running job waits for gates only")
            ids = [wait.gate for wait in settlement.waits]
            await link_visibility.check_waits(self._store, self._who, ids, settlement.gates)


def check_order(batch: Batch) -> None:
    """Refuse jobs and gates of a batch that wait for themselves, directly or through others: they would never run.

    A job waits for no later job, but a gate for which it waits may have later members. What was stored before cannot wait for
    this batch.
    """
    if len(batch.jobs) > MOST_JOBS:
        raise ConfigError(f"a call has at most {MOST_JOBS:,} jobs if some wait for others or count on gates")
    before: Before = {}
    for edge in batch.edges:
        of, first = split_id(edge.first)
        if is_gate(edge.first):
            before.setdefault(edge.into, []).append(edge.first)
        elif of == batch.id:
            last = min(split_id(edge.last)[1], len(batch.jobs) - 1)
            before.setdefault(edge.into, []).extend(_blocks(before, first, last))
    for place, job in enumerate(batch.jobs):
        if job.wait is None:
            continue
        of, awaited = split_id(job.wait.gate)
        if of == batch.id and awaited >= place:
            raise ConfigError(
                f"job {place} of the call waits for itself or for a later one: send it after what it waits for"
            )
        before[place, 1] = [(awaited, 1) if of == batch.id else job.wait.gate]
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        raise ConfigError("a job or a gate of the call waits for itself, through others: it would never run") from None


def _blocks(before: Before, first: int, last: int) -> Iterator[Block]:
    """Blocks of places that cover a run. So a run of thousands is a few blocks for each gate on which it counts."""
    while first <= last:
        size = first & -first or _LARGEST
        while first + size - 1 > last:
            size //= 2
        yield _block(before, first, size)
        first += size


def _block(before: Before, first: int, size: int) -> Block:
    if size > 1 and (first, size) not in before:
        half = size // 2
        before[first, size] = [_block(before, first, half), _block(before, first + half, half)]
    return first, size


def check_gate(gate: NewGate) -> None:
    """A gate that headrace itself could make, or a ConfigError."""
    checks.check_queue(gate.queue)
    check_tenant(gate.tenant)
    if not is_gate(gate.id) or len(gate.label) > MAX_LABEL:
        raise ConfigError(f"a gate has an id of version 8, and a label of at most {MAX_LABEL} characters")
