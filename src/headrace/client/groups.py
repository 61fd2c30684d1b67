"""Groups that grow: jobs that are counted together, and the jobs that run when all of them have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.client.graph import with_tenant
from headrace.client.handles import Handles
from headrace.client.linked import LinkedCall
from headrace.client.members import members
from headrace.errors import ConfigError, GroupOver, JobNotFound
from headrace.model.gate import Edge, Gate, GateId, Needs, NewGate, Wait, new_gate_id
from headrace.model.job import REFERENCE, Batch, Job, JobId, new_batch
from headrace.model.lane import check_tenant
from headrace.runtime.blocking import blocking
from headrace.runtime.portal import portal
from headrace.task.call import JobCall
from headrace.task.codec import Signature
from headrace.task.group import Gathered, check_label
from headrace.task.job_checks import tenant_of
from headrace.task.results import Results

if TYPE_CHECKING:
    from headrace.client.produce import Producer

R = TypeVar("R")
S = TypeVar("S")

Callbacks = Mapping[Needs, JobCall[Any] | None]


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a group by how they ended."""

    id: GateId
    """The id of the group."""
    label: str
    """What people see."""
    size: int
    """The number of its jobs, and of the groups in it."""
    done: int
    """Those that have succeeded."""
    dead: int
    """Those that have failed and are not tried again."""
    cancelled: int
    """Those that were cancelled, deleted or dropped before they were done."""
    sealed: bool
    """True: no call adds further jobs from outside."""

    @property
    def left(self) -> int:
        """Those that have not ended."""
        return self.size - self.done - self.dead - self.cancelled


class OpenGroup(Gathered, Generic[R]):
    """A group to which jobs are added: `async with app.open_group("import 7", on_done=publish.job(7)) as rows: …`.

    The end of the block seals the group. If the block raises, the group stays unsealed: its jobs run, those that wait for it
    do not, and they are cancelled when the retention of dead jobs is over.
    """

    def __init__(
        self,
        producer: Producer,
        label: str,
        callbacks: Callbacks,
        *,
        tenant: str = "",
        outer: GateId | None = None,
        around: frozenset[UUID] = frozenset(),
    ) -> None:
        """`outer`: the group of which this one is a member. `around`: that one, and those around it."""
        self.label = check_label(label, needed=True)
        """What people see."""
        self._producer = producer
        self._callbacks = {needs: call for needs, call in callbacks.items() if call is not None}
        for needs, call in self._callbacks.items():
            if not isinstance(call, JobCall):
                raise ConfigError(f"on_{needs} takes task.job(…), not {call!r:.80}")
        self._outer = outer
        self.id = new_gate_id()
        """The id of the group."""
        self._around = around
        # A block that is entered again repeats the same calls, which change nothing.
        self._batch = new_batch()
        self._batches = {needs: new_batch() for needs in self._callbacks}
        inherited = (tenant_of(call.job) for call in self._callbacks.values())
        self.tenant = check_tenant(tenant) or next(filter(None, inherited), "")
        """The tenant of its jobs that have none."""

    @classmethod
    def of(cls, producer: Producer, gate: Gate) -> Self:
        """A group that is in the store."""
        group = cls(producer, gate.label or "group", {}, tenant=gate.tenant)
        group.id = gate.id
        return group

    @property
    def out(self) -> Results[R]:
        """Stands for the results of its jobs as an argument of another job, which runs when all of them are done."""
        from headrace.task.links import Out

        return cast("Results[R]", Out(self))

    def __repr__(self) -> str:
        return f"<group {self.label!r}, {self.id}>"

    # ── the block ────────────────────────────────────────────────────────────

    async def aopen(self) -> None:
        """Store the group, and the jobs that wait for it. `async with` does it."""
        gate = self._gate()
        edges = () if self._outer is None else (Edge(gate.id, gate.id, self._outer),)
        client = await self._producer.clients.here()
        await client.enqueue_batch(Batch(self._batch, [], (gate,), edges))
        for needs, call in self._callbacks.items():
            first, batch = Wait(gate.id, needs), self._batches[needs]
            tenants: dict[UUID, str] = {gate.id: self.tenant}
            await LinkedCall(self._producer, call, first=first, gates=(gate,), batch=batch, tenants=tenants).aput(None)

    open = blocking(aopen)

    def _gate(self) -> NewGate:
        queue = next((call.job.lane.queue for call in self._callbacks.values()), "default")
        return NewGate(id=self.id, queue=queue, sealed=False, label=self.label, tenant=self.tenant)

    async def aseal(self) -> None:
        """No further jobs come from outside: those that wait for the group run when all its jobs have ended."""
        client = await self._producer.clients.here()
        await client.enqueue_batch(Batch(new_batch(), [], seals=(self.id,)))
        if (inline := self._producer.inline_runner) is not None:
            await inline.arun([])

    def seal(self) -> None:
        """No further jobs come from outside: those that wait for the group run when all its jobs have ended."""
        portal.run(self._seal)
        if (inline := self._producer.inline_runner) is not None:
            inline.run([])

    async def _seal(self) -> None:
        client = await self._producer.clients.here()
        await client.enqueue_batch(Batch(new_batch(), [], seals=(self.id,)))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.seal()

    async def __aenter__(self) -> Self:
        await self.aopen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aseal()

    # ── members ──────────────────────────────────────────────────────────────

    def enqueue_many(self, calls: Iterable[JobCall[S]], *, tx: object | None = None) -> Handles[S]:
        """Enqueue jobs as members, one round trip per 1,000; raises GroupOver if all members have ended."""
        return self._producer.enqueue_members(self._ours(calls), self.id, tx)

    async def aenqueue_many(self, calls: Iterable[JobCall[S]], *, tx: object | None = None) -> Handles[S]:
        """Enqueue jobs as members, one round trip per 1,000; raises GroupOver if all members have ended."""
        return await self._producer.aenqueue_members(self._ours(calls), self.id, tx)

    def open_group(
        self,
        label: str,
        *,
        on_done: JobCall[Any] | None = None,
        on_ended: JobCall[Any] | None = None,
        on_failed: JobCall[Any] | None = None,
    ) -> OpenGroup[Any]:
        """A group that is a member of this one."""
        callbacks = {Needs.DONE: on_done, Needs.ENDED: on_ended, Needs.FAILED: on_failed}
        return OpenGroup(
            self._producer, label, callbacks, tenant=self.tenant, outer=self.id, around=self._around | {self.id}
        )

    def _ours(self, calls: Iterable[JobCall[S]]) -> Iterator[JobCall[S]]:
        """The calls as members: with the tenant of the group."""
        around = self._around | {self.id}
        for call in calls:
            # The caller refuses what is no call.
            wait = call.job.wait if isinstance(call, JobCall) else None
            if wait is not None and wait.gate in around:
                raise ConfigError(
                    f"a job of {call.job.task} follows group {self.label!r}, or one around it, and would be a member of it: neither "
                    "would ever end"
                )
            if self.tenant and isinstance(call, JobCall) and not tenant_of(call.job):
                yield replace(call, job=with_tenant(call.job, self.tenant, self._producer.unfair))
            else:
                yield call

    # ── looks ────────────────────────────────────────────────────────────────

    async def astatus(self) -> GroupStatus:
        """How many of its jobs have ended, and how; raises GroupOver if the group is not stored any more."""
        return status_of(await self._stored())

    status = blocking(astatus)

    async def _stored(self) -> Gate:
        client = await self._producer.clients.here()
        [gate] = await client.store.gates([self.id])
        if gate is None:
            raise GroupOver(self.id)
        return gate

    async def aresults(self) -> Results[R]:
        """The results of its jobs, read in pages of 500, in the order in which they were enqueued."""
        await self._stored()
        store = (await self._producer.clients.here()).store
        jobs: list[tuple[Job, Signature]] = []
        async for id, job in members(store, self.id):
            if job is None:
                raise JobNotFound(f"job {id} of group {self.label!r} is not stored any more")
            jobs.append((await self._fetched(job), self._producer.codec_of(job.task)))
        return Results[R](jobs)

    results = blocking(aresults)

    async def _fetched(self, job: Job) -> Job:
        if job.result is None or not job.result.startswith(REFERENCE):
            return job
        from headrace.task.large_results import fetched

        return await fetched(job, self._producer.hooks.large_results)


def status_of(gate: Gate) -> GroupStatus:
    """The group as people see it."""
    counts = gate.counts
    return GroupStatus(
        id=gate.id,
        label=gate.label,
        size=counts.size,
        done=counts.done,
        dead=counts.dead,
        cancelled=counts.cancelled,
        sealed=gate.sealed,
    )


async def group_of(producer: Producer, job: JobId) -> OpenGroup[Any]:
    """The group of a running job; raises ConfigError if it has none, or several."""
    store = (await producer.clients.here()).store
    into = (await store.links(job)).into
    groups = [gate for gate in (await store.gates(into) if into else []) if gate is not None and gate.label]
    if len(groups) != 1:
        count = "no group" if not groups else f"{len(groups)} groups"
        raise ConfigError(f"job {job} is in {count}: enqueue its jobs through the group that you mean")
    return OpenGroup[Any].of(producer, groups[0])
