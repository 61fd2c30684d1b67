"""Enqueues calls that follow each other: looks up the tenants of stored jobs, makes the batch, and stores it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from headrace.client.bulk import Placed
from headrace.client.client import Client
from headrace.client.enqueue_hooks import Enqueueing
from headrace.client.graph import AwaitedBy, GraphPlan, in_order, stored_before, with_tenant
from headrace.errors import GroupOver, JobNotFound
from headrace.model.gate import GateId, NewGate, Predecessor, Wait, is_gate
from headrace.model.job import Batch, BatchId, JobId, NewJob, job_id
from headrace.runtime import faults
from headrace.runtime.portal import portal
from headrace.task.call import JobCall
from headrace.task.codec import readable_options
from headrace.task.handle import Put
from headrace.task.job_checks import tenant_of

if TYPE_CHECKING:
    from headrace.client.produce import Producer


class LinkedCall:
    """One call that enqueues jobs with those that they follow. It has a sync and an async form, as a transaction needs."""

    def __init__(
        self,
        producer: Producer,
        *calls: JobCall[Any],
        first: Wait | None = None,
        gates: tuple[NewGate, ...] = (),
        batch: BatchId | None = None,
        tenants: Mapping[UUID, str] | None = None,
        awaited_by: AwaitedBy | None = None,
    ) -> None:
        """`first`, `gates`, `batch`, `tenants`, `awaited_by`: see `GraphPlan`."""
        self._producer = producer
        self._calls = in_order(*calls)
        self._first = first
        self._gates = gates
        self._batch = batch
        self._tenants = dict(tenants or {})
        self._awaited_by = awaited_by

    def put(self, tx: object | None) -> Put:
        """Enqueue in the calling thread. The answer is that of the last call."""
        return self.place(tx).put(len(self._calls) - 1)

    async def aput(self, tx: object | None) -> Put:
        """The same for async code."""
        return (await self.aplace(tx)).put(len(self._calls) - 1)

    def place(self, tx: object | None) -> Placed:
        """Enqueue in the calling thread. The answer is that of all calls, as `in_order` gives them."""
        producer = self._producer
        if tx is None:
            placed = portal.run(self._aput)
        else:
            self._tenants |= tenants_before_in(producer, tx, self._unknown())
            with Enqueueing(producer.hooks.on_enqueue) as hooked:
                batch = self._planned(hooked)
                placed = producer.put_batch_in(tx, batch, batch.jobs)
                hooked.stored(len(batch.jobs))
        if producer.inline_runner is not None and tx is None:
            producer.inline_runner.run(self._made(placed), awaited=self._awaited_by is not None)
        return placed

    async def aplace(self, tx: object | None) -> Placed:
        """The same for async code."""
        producer = self._producer
        if tx is None:
            placed = await self._aput()
        else:
            self._tenants |= await atenants_before_in(producer, tx, self._unknown())
            with Enqueueing(producer.hooks.on_enqueue) as hooked:
                batch = self._planned(hooked)
                placed = await producer.aput_batch_in(tx, batch, batch.jobs)
                hooked.stored(len(batch.jobs))
        if producer.inline_runner is not None and tx is None:
            await producer.inline_runner.arun(self._made(placed), awaited=self._awaited_by is not None)
        return placed

    async def _aput(self) -> Placed:
        client = await self._producer.clients.here()
        self._tenants |= await tenants_before(self._producer, self._unknown())
        with Enqueueing(self._producer.hooks.on_enqueue) as hooked:
            batch = self._planned(hooked)
            placed = await client.enqueue_batch(batch)
            hooked.stored(len(batch.jobs))
        if faults.ARMED:
            faults.reach("attached")
        return placed

    def _unknown(self) -> list[UUID]:
        """The stored jobs and groups that have to be looked up."""
        return [id for id in stored_before(self._calls) if id not in self._tenants]

    def _planned(self, hooked: Enqueueing) -> Batch:
        plan = GraphPlan(
            self._calls,
            tenants=self._tenants,
            unfair=self._producer.unfair,
            first=self._first,
            batch=self._batch,
            gates=self._gates,
            awaited_by=self._awaited_by,
        )
        batch = plan.batch()
        return replace(batch, jobs=hooked.traced_jobs(batch.jobs))

    def _made(self, placed: Placed) -> list[JobId]:
        return [job_id(placed.batch, place) for place in range(len(self._calls)) if place not in placed.existing]


def successor(producer: Producer, call: JobCall[Any], job: JobId, number: int, tenant: str) -> LinkedCall:
    """A call that runs after a running job. An attempt that runs again repeats the batch, which changes nothing."""
    high, seed = job.int >> 64, b"%b %d" % (job.bytes, number)
    random = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big") & ((1 << 46) - 1)
    batch = BatchId(UUID(int=high << 64 | 0b10 << 62 | random << 16))
    return LinkedCall(producer, call, first=Wait(job), batch=batch, tenants={job: tenant})


async def tenants_of(client: Client, ids: Iterable[UUID]) -> dict[UUID, str]:
    """The tenants of stored jobs and groups."""
    ids = list(ids)
    if not ids:
        return {}
    jobs, gates = [JobId(id) for id in ids if not is_gate(id)], [GateId(id) for id in ids if is_gate(id)]
    tenants: dict[UUID, str] = {}
    for job in await client.get(jobs) if jobs else []:
        if job is not None:
            tenants[job.id] = _tenant(job.tenant, job.options)
    for gate in await client.store.gates(gates) if gates else []:
        if gate is not None:
            tenants[gate.id] = gate.tenant
    return tenants


async def tenants_before(producer: Producer, ids: Collection[UUID]) -> dict[UUID, str]:
    """The tenants of jobs and groups that others are to follow; raises JobNotFound or GroupOver if one is not stored."""
    return _all_stored(ids, await tenants_of(await producer.clients.here(), ids))


def tenants_before_in(producer: Producer, tx: object, ids: Collection[UUID]) -> dict[UUID, str]:
    """The same in the caller's transaction and thread. The transaction may have added those jobs and groups."""
    if producer.has_outbox:
        return portal.run(lambda: tenants_before(producer, ids))
    if not ids:
        return {}
    store = portal.run(producer.clients.here).transactional
    return _all_stored(ids, _tenants(ids, store.followed_in(tx, list(ids))))


async def atenants_before_in(producer: Producer, tx: object, ids: Collection[UUID]) -> dict[UUID, str]:
    """The same for async code."""
    if producer.has_outbox:
        return await tenants_before(producer, ids)
    if not ids:
        return {}
    store = (await producer.clients.here()).transactional
    return _all_stored(ids, _tenants(ids, await store.afollowed_in(tx, list(ids))))


def _all_stored(ids: Iterable[UUID], tenants: dict[UUID, str]) -> dict[UUID, str]:
    gone = next((id for id in ids if id not in tenants), None)
    if gone is None:
        return tenants
    if is_gate(gone):
        raise GroupOver(gone)
    raise JobNotFound(
        f"job {gone} is not stored, or not any more, so that no job can follow it; if the transaction that enqueued it has not "
        "committed, pass that one as tx=, or enqueue both in one call"
    )


def gates_before(jobs: Iterable[NewJob]) -> Collection[UUID]:
    """What the jobs of a bulk call follow. It is stored already."""
    return dict.fromkeys(job.wait.gate for job in jobs if job.wait is not None)


def with_tenants(jobs: Iterable[NewJob], tenants: Mapping[UUID, str], unfair: Collection[str]) -> list[NewJob]:
    """The jobs of a bulk call. Those without a tenant get the tenant of what they follow."""
    return [
        with_tenant(job, tenant, unfair)
        if job.wait is not None and (tenant := tenants[job.wait.gate]) and not tenant_of(job)
        else job
        for job in jobs
    ]


def _tenants(ids: Iterable[UUID], followed: Iterable[Predecessor | None]) -> dict[UUID, str]:
    return {id: _tenant(one.tenant, one.options) for id, one in zip(ids, followed, strict=True) if one is not None}


def _tenant(tenant: str, options: bytes | None) -> str:
    return tenant or readable_options(options).tenant or ""
