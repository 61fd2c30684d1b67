"""The children of a running job: enqueues them with the gate that counts them, and reads their results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.client.graph import AwaitedBy, in_order, kept, with_tenant
from headrace.client.linked import LinkedCall
from headrace.client.members import PAGE
from headrace.errors import ConfigError, GroupOver
from headrace.model.gate import NewGate
from headrace.model.job import REFERENCE, BatchId, Job, JobId, job_id
from headrace.runtime import faults
from headrace.runtime.blocking import blocking
from headrace.task.call import JobCall
from headrace.task.codec.references import reference
from headrace.task.job_checks import tenant_of
from headrace.task.links import UNSTORED

if TYPE_CHECKING:
    from headrace.client.produce import Producer

_BLANK = reference(bytes(16))


class ChildJobs:
    """See `task.children.Children`."""

    def __init__(self, producer: Producer, calls: Sequence[JobCall[Any]], tenant: str) -> None:
        self._producer = producer
        self._calls = calls
        self._tenant = tenant
        self._keyed = list({id(call): call for call in calls if _has_key(call)}.values())
        self.keyed = bool(self._keyed)
        plain = [call for call in calls if not _has_key(call)]
        order = in_order(*plain)
        self._plain = plain
        self._places = {id(call): place for place, call in enumerate(order)}
        self.size = len(order)
        self.digest = _digest([*order, *self._keyed])

    def places(self, batch: BatchId, met: Sequence[JobId]) -> list[JobId]:
        standing = {id(call): standing for call, standing in zip(self._keyed, met, strict=True)}
        return [standing.get(id(call)) or job_id(batch, self._places[id(call)]) for call in self._calls]

    # ── in ───────────────────────────────────────────────────────────────────

    async def aput_keyed(self) -> list[JobId]:
        return [(await LinkedCall(self._producer, self._own(call)).aput(None)).id for call in self._keyed]

    def put_keyed(self) -> list[JobId]:
        return [LinkedCall(self._producer, self._own(call)).put(None).id for call in self._keyed]

    def _own(self, call: JobCall[Any]) -> JobCall[Any]:
        job = call.job if tenant_of(call.job) else with_tenant(call.job, self._tenant, self._producer.unfair)
        return replace(call, job=kept(call, job))

    async def aput(self, batch: BatchId, gate: NewGate, met: Sequence[JobId]) -> None:
        try:
            await self._linked(batch, gate, met).aplace(None)
        except GroupOver:
            return  # The call was repeated after a lost answer, and all of its jobs have ended meanwhile.
        if faults.ARMED:
            faults.reach("children")

    def put(self, batch: BatchId, gate: NewGate, met: Sequence[JobId]) -> None:
        try:
            self._linked(batch, gate, met).place(None)
        except GroupOver:
            return  # As in `aput`.

    def _linked(self, batch: BatchId, gate: NewGate, met: Sequence[JobId]) -> LinkedCall:
        return LinkedCall(self._producer, *self._plain, batch=batch, awaited_by=AwaitedBy(gate, self._plain, met))

    # ── out ──────────────────────────────────────────────────────────────────

    async def aread(self, ids: Sequence[JobId]) -> list[Job | None]:
        client = await self._producer.clients.here()
        jobs: list[Job | None] = []
        for start in range(0, len(ids), PAGE):
            jobs += await client.get(ids[start : start + PAGE])
        return [await self._fetched(job) for job in jobs]

    read = blocking(aread)

    async def arevive(self, ids: Sequence[JobId]) -> None:
        await (await self._producer.clients.here()).store.retry(ids)

    revive = blocking(arevive)

    async def _fetched(self, job: Job | None) -> Job | None:
        if job is None or job.result is None or not job.result.startswith(REFERENCE):
            return job
        from headrace.task.large_results import fetched

        return await fetched(job, self._producer.hooks.large_results)


def _has_key(call: JobCall[Any]) -> bool:
    """Whether an earlier job may stand for it."""
    if not call.job.key and not call.job.unique:
        return False
    if call.links is not None:
        raise ConfigError(
            f"a job of {call.job.task} has a key or a unique lock, and follows other jobs: enqueue it in a step, and await "
            "a job that follows its handle"
        )
    return True


def _digest(calls: Iterable[JobCall[Any]]) -> bytes:
    """Of tasks and arguments. Marks of calls differ in every attempt and do not count."""
    digest = hashlib.blake2b(digest_size=16)
    for call in calls:
        payload = call.job.payload
        if call.links is not None:
            for source, mark in zip(call.links.inputs, call.links.marks, strict=True):
                if isinstance(source, UNSTORED):
                    payload = payload.replace(reference(mark), _BLANK)
        for part in (call.job.task.encode(), payload):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
