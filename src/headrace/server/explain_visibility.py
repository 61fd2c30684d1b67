"""What an explanation may show a bound caller: the place of its own job in line, without names of other tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from msgspec.structs import replace

from headrace.model.gate import Gate, GateId, Links
from headrace.model.job import Job, JobId
from headrace.model.lane import Ahead, LaneView
from headrace.model.lease import Presence
from headrace.model.records import LimitRule, Pause
from headrace.server import link_visibility, visibility
from headrace.server.auth import Principal
from headrace.store.contract import Store


async def ahead(store: Store, principal: Principal, id: JobId, limit: int) -> Ahead | None:
    """What a visible job waits behind. All callers get the counts; ids and names only if they may see them."""
    answer = await store.ahead(id, limit)
    if answer is None or not principal.bound:
        return answer
    holders = list({JobId(holder) for blocked in answer.blocked for holder in blocked.by})
    jobs = await store.get(holders) if holders else []
    seen = {job.id for job in jobs if job is not None and visibility.sees(principal, job)}
    return replace(
        answer,
        blocked=tuple(replace(blocked, by=tuple(id for id in blocked.by if id in seen)) for blocked in answer.blocked),
        paused_by=_whom(answer.paused_by, theirs=principal.tenant is None),
        tenant_paused_by=_whom(answer.tenant_paused_by, theirs=principal.queues is None),
    )


def _whom(by: str | None, *, theirs: bool) -> str | None:
    """The author of the pause, "" if the caller may not see the name."""
    return by if by is None or theirs else ""


@dataclass(frozen=True)
class NarrowedLinks:
    """The part of a store that says how jobs hang together, as one caller may see it."""

    store: Store
    principal: Principal

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return [job if job and visibility.sees(self.principal, job) else None for job in await self.store.get(ids)]

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return await link_visibility.gates(self.store, self.principal, ids)

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        return await link_visibility.links(self.store, self.principal, id, after, limit)


@dataclass(frozen=True)
class Narrowed(NarrowedLinks):
    """The part of a store that explains one job to one caller."""

    job: Job

    async def now(self) -> datetime:
        return await self.store.now()

    async def workers(self) -> list[Presence]:
        """Workers of the job's queue, without their other queues."""
        named = self.principal.tenant is None  # A tenant must not see names of workers, which all tenants share.
        return [
            replace(worker, queues=(self.job.queue,), name=worker.name if named else "a worker")
            for worker in await self.store.workers()
            if self.job.queue in worker.queues
        ]

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        return await ahead(self.store, self.principal, id, limit)

    async def pauses(self) -> list[Pause]:
        seen = [visibility.pause(self.principal, pause) for pause in await self.store.pauses()]
        return [pause for pause in seen if pause is not None]

    async def limits(self) -> dict[str, LimitRule]:
        """The explanation reads only the job's own keys."""
        return await self.store.limits()

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        """The explanation only counts lanes."""
        return await self.store.lanes(queues, limit)
