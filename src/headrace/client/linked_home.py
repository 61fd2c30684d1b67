"""The part of an app's home that is about jobs that follow others. What few programs need is imported where it is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client.produce import Producer
from headrace.model.gate import NewGate
from headrace.model.job import JobId, NewJob
from headrace.runtime.blocking import blocking
from headrace.runtime.portal import portal
from headrace.task.call import JobCall
from headrace.task.handle import Handle, Put

if TYPE_CHECKING:
    from headrace.task.children import Children
    from headrace.task.undo import UndoPlace

R = TypeVar("R")


class LinkedHome(ABC):
    """See `task.Home`. Sync calls are not made from async ones: a job with `tx` is written in the caller's thread."""

    _producer: Producer

    @abstractmethod
    def put(self, job: NewJob, tx: object | None) -> Put: ...

    @abstractmethod
    async def aput(self, job: NewJob, tx: object | None) -> Put: ...

    # What a job waits for is looked up, because it may be gone, and because a job without a tenant gets its tenant.

    def put_call(self, call: JobCall[Any], tx: object | None) -> Put:
        if call.links is None and call.job.wait is None:
            return self.put(call.job, tx)
        from headrace.client.linked import LinkedCall

        return LinkedCall(self._producer, call).put(tx)

    async def aput_call(self, call: JobCall[Any], tx: object | None) -> Put:
        if call.links is None and call.job.wait is None:
            return await self.aput(call.job, tx)
        from headrace.client.linked import LinkedCall

        return await LinkedCall(self._producer, call).aput(tx)

    def put_after(self, call: JobCall[Any], job: JobId, number: int, tenant: str) -> Put:
        from headrace.client.linked import successor

        return successor(self._producer, call, job, number, tenant).put(None)

    async def aput_after(self, call: JobCall[Any], job: JobId, number: int, tenant: str) -> Put:
        from headrace.client.linked import successor

        return await successor(self._producer, call, job, number, tenant).aput(None)

    def children(self, calls: Sequence[JobCall[Any]], tenant: str) -> Children:
        from headrace.client.children import ChildJobs

        return ChildJobs(self._producer, calls, tenant)

    async def aput_undo(self, call: JobCall[Any], place: UndoPlace) -> Put:
        from headrace.client.undo import put_undo

        return await put_undo(self._producer, call, place)

    put_undo = blocking(aput_undo)

    def put_members(self, calls: Iterable[JobCall[R]], job: JobId) -> Sequence[Handle[R]]:
        from headrace.client.groups import group_of

        return portal.run(lambda: group_of(self._producer, job)).enqueue_many(calls)

    async def aput_members(self, calls: Iterable[JobCall[R]], job: JobId) -> Sequence[Handle[R]]:
        from headrace.client.groups import group_of

        return await (await group_of(self._producer, job)).aenqueue_many(calls)

    async def asignal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        client = await self._producer.clients.here()
        return await client.store.signal(gate, value, keep)
