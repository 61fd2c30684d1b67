"""Turns calls that follow each other into one batch: jobs in the order of their dependencies, gates, and members."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.duration import LONGEST
from headrace.model.gate import Edge, GateId, NewGate, Wait, gate_id_in
from headrace.model.job import Batch, BatchId, JobId, NewJob, job_id, new_batch, split_id
from headrace.task.call import JobCall
from headrace.task.codec import decode_options, encode_options
from headrace.task.codec.references import reference
from headrace.task.group import JobGroup
from headrace.task.handle import Handle
from headrace.task.job_checks import tenant_of
from headrace.task.links import UNSTORED, CallLinks, Source, mark_of, waiting, with_inputs
from headrace.task.options import lane_of

MOST_JOBS: Final = 5000
"""Jobs of one graph. A store writes them in one step."""


def in_order(*calls: JobCall[Any]) -> list[JobCall[Any]]:
    """These calls and everything that has to be enqueued with them, each after what it follows; the last one is last."""
    order: list[JobCall[Any]] = []
    begun: dict[int, bool] = {}
    for call in calls:
        stack: list[tuple[JobCall[Any], Iterator[JobCall[Any]]]] = []
        _enter(call, stack, begun)
        while stack:
            current, rest = stack[-1]
            before = next(rest, None)
            if before is None:
                order.append(current)
                begun[id(current)] = True
                stack.pop()
            else:
                _enter(before, stack, begun)
    return order


def _enter(
    call: JobCall[Any], stack: list[tuple[JobCall[Any], Iterator[JobCall[Any]]]], begun: dict[int, bool]
) -> None:
    """`begun`: the calls that were come across, and whether all that they follow is in order."""
    if id(call) in begun:
        if not begun[id(call)]:
            raise ConfigError(
                f"a job of {call.job.task} follows itself, directly or through others: it would never run"
            )
        return
    begun[id(call)] = False
    if len(begun) > MOST_JOBS:
        raise ConfigError(
            f"more than {MOST_JOBS:,} jobs follow each other in one call: enqueue them in several calls, or count them in a "
            "group that grows, app.open_group(…)"
        )
    stack.append((call, _before(call)))


def _before(call: JobCall[Any]) -> Iterator[JobCall[Any]]:
    for source in () if call.links is None else call.links.sources:
        if isinstance(source, JobCall):
            yield source
        elif isinstance(source, JobGroup):
            yield from source.calls


def stored_before(calls: Iterable[JobCall[Any]]) -> list[UUID]:
    """The stored jobs that the calls follow: calls without a tenant get theirs."""
    ids: dict[UUID, None] = {}
    for call in calls:
        for source in () if call.links is None else call.links.sources:
            if isinstance(source, Handle):
                ids[source.id] = None
        if call.links is None and call.job.wait is not None:
            ids[call.job.wait.gate] = None
    return list(ids)


class AwaitedBy(NamedTuple):
    """The task that awaits a graph."""

    gate: NewGate
    """Counts every job of the graph. The jobs without a tenant have its tenant."""
    calls: Sequence[JobCall[Any]]
    """Those whose results the task gets."""
    stored: Sequence[JobId] = ()
    """Jobs that are stored already, and that the gate counts, too."""


class GraphPlan:
    """Makes the batch of one graph."""

    def __init__(
        self,
        calls: list[JobCall[Any]],
        *,
        tenants: Mapping[UUID, str] | None = None,
        unfair: Collection[str] = (),
        first: Wait | None = None,
        batch: BatchId | None = None,
        gates: tuple[NewGate, ...] = (),
        awaited_by: AwaitedBy | None = None,
    ) -> None:
        """`calls`: as `in_order` gives them. `first`: what the jobs wait for that follow no other job of the graph.

        `tenants`: those of stored jobs and groups. `unfair`: queues in which tenants do not take turns.
        """
        self._calls = calls
        self._tenants = {id: tenant for id, tenant in (tenants or {}).items() if tenant}
        """Those of stored jobs and groups, and of the gates of this graph."""
        self._own_tenants: list[str] = []
        """By place, those of the jobs of this graph."""
        self._usual = "" if awaited_by is None else awaited_by.gate.tenant
        self._inherits = bool(self._tenants) or bool(self._usual)
        """Whether any job can have a tenant from what it follows."""
        self._unfair = unfair
        self._first = first
        self._batch = new_batch() if batch is None else batch
        self._places = {id(call): place for place, call in enumerate(calls)}
        self._gates: list[NewGate] = list(gates)
        self._edges: list[Edge] = []
        self._groups: dict[int, GateId] = {}
        self._joins: dict[frozenset[UUID], GateId] = {}
        self._wanted = _wanted(calls)
        self._parent = awaited_by
        if awaited_by is not None:
            self._wanted.update(map(id, awaited_by.calls))

    def batch(self) -> Batch:
        """The batch. Each job has the place of its call."""
        jobs = [self._job(call) for call in self._calls]
        if (parent := self._parent) is not None:
            members: list[UUID] = [*(job_id(self._batch, place) for place in range(len(jobs))), *parent.stored]
            self._gates.append(parent.gate)
            self._edges += _edges(list(dict.fromkeys(members)), parent.gate.id, self._batch)
        return Batch(self._batch, jobs, tuple(self._gates), tuple(self._edges))

    def group_id(self, group: JobGroup[Any]) -> GateId | None:
        """The id of a group, after `batch`. None: no job follows it, so it is not made."""
        return self._groups.get(id(group))

    def _job(self, call: JobCall[Any]) -> NewJob:
        """The job of a call. All jobs before it have been made."""
        job, links = call.job, call.links
        tenant = tenant_of(job)
        if not tenant and self._inherits and (tenant := self._inherited(call)):
            job = with_tenant(job, tenant, self._unfair)
        self._own_tenants.append(tenant)
        self._inherits = self._inherits or bool(tenant)
        if id(call) in self._wanted:
            job = kept(call, job)
        if links is not None:
            targets = [self._id(source, job) for source in links.sources]
            if links.inputs:
                job = _with_ids(job, links, targets)
            if len(targets) > 1 or links.inputs:
                self._check_keys(links)
            return waiting(job, self._wait(links, targets, job))
        if self._first is not None:
            if job.wait is not None:
                join = self._join([job.wait.gate, self._first.gate], job)
                return waiting(job, Wait(join, job.wait.needs))
            return waiting(job, self._first)
        return job

    def _wait(self, links: CallLinks, targets: list[UUID], job: NewJob) -> Wait | None:
        if self._first is not None and not any(isinstance(source, UNSTORED) for source in links.sources):
            targets.append(self._first.gate)
        if len(targets) > 1:
            targets = list(dict.fromkeys(targets))
        if not targets:
            return None
        return Wait(targets[0] if len(targets) == 1 else self._join(targets, job), links.needs)

    def _join(self, targets: list[UUID], job: NewJob) -> GateId:
        """The gate that has all of these as members. Jobs that follow the same ones share it."""
        together = frozenset(targets)
        if together not in self._joins:
            self._joins[together] = self._gate(sorted(together), "", job)
        return self._joins[together]

    def _gate(self, members: list[UUID], label: str, job: NewJob) -> GateId:
        gate = NewGate(
            id=gate_id_in(self._batch, len(self._gates)), queue=job.lane.queue, label=label, tenant=tenant_of(job)
        )
        self._gates.append(gate)
        self._edges += _edges(members, gate.id, self._batch)
        self._tenants[gate.id] = gate.tenant
        return gate.id

    def _id(self, source: Source, job: NewJob) -> UUID:
        if isinstance(source, JobCall):
            return job_id(self._batch, self._places[id(source)])
        if not isinstance(source, JobGroup):
            return source.id
        if id(source) not in self._groups:
            members: list[UUID] = [job_id(self._batch, self._places[id(call)]) for call in source.calls]
            self._groups[id(source)] = self._gate(members, source.label, job)
        return self._groups[id(source)]

    def _inherited(self, call: JobCall[Any]) -> str:
        """The tenant of what it follows."""
        for source in () if call.links is None else call.links.sources:
            for one in source.calls if isinstance(source, JobGroup) else (source,):
                if isinstance(one, JobCall):
                    tenant = self._own_tenants[self._places[id(one)]]
                else:
                    tenant = self._tenants.get(one.id, "")
                if tenant:
                    return tenant
        stored = call.job.wait if call.links is None else None
        for wait in (stored, self._first):
            if wait is not None and (tenant := self._tenants.get(wait.gate, "")):
                return tenant
        return self._usual

    def _check_keys(self, links: CallLinks) -> None:
        """The id of a job with a key or a lock is known only when it is stored: an earlier job may stand for it."""
        calls = [source for source in links.sources if isinstance(source, JobCall)]
        calls += [call for source in links.inputs if isinstance(source, JobGroup) for call in source.calls]
        for call in calls:
            if (call.job.key or call.job.unique) and (links.inputs or len(links.sources) > 1):
                raise ConfigError(
                    f"a job of {call.job.task} has a key or a unique lock, so that an earlier job may stand for it: enqueue "
                    "it first, and let the others follow its handle"
                )


def _wanted(calls: Iterable[JobCall[Any]]) -> set[int]:
    """The calls whose results others need."""
    wanted: set[int] = set()
    for call in calls:
        for source in () if call.links is None else call.links.inputs:
            if isinstance(source, JobGroup):
                wanted.update(map(id, source.calls))
            elif isinstance(source, JobCall):
                wanted.add(id(source))
    return wanted


def kept(call: JobCall[Any], job: NewJob) -> NewJob:
    """The job with a result that is kept as long as the job, because another job needs it."""
    own = decode_options(job.options)
    task = None if call.task is None else call.task.options.result_ttl
    if own.result_ttl is None and task is None:
        return job
    ttl = None if task is None else LONGEST.total_seconds()
    return replace(job, options=encode_options(replace(own, result_ttl=ttl)))


def _with_ids(job: NewJob, links: CallLinks, ids: list[UUID]) -> NewJob:
    """The job with the ids of its inputs, which are the first of these, in its arguments and its options."""
    payload = job.payload
    for source, id in zip(links.inputs, ids, strict=False):
        payload = payload.replace(reference(mark_of(source)), reference(id.bytes))
    return with_inputs(replace(job, payload=payload), links, ids[: len(links.inputs)])


def with_tenant(job: NewJob, tenant: str, unfair: Collection[str]) -> NewJob:
    """The job as one of this tenant."""
    lane = job.lane
    if lane.queue in unfair:
        return replace(job, options=encode_options(replace(decode_options(job.options), tenant=tenant)))
    return replace(job, lane=lane_of(lane.queue, lane.priority, tenant, lane.limits))


def _edges(members: list[UUID], into: GateId, batch: BatchId) -> Iterator[Edge]:
    """Members as runs: neighbours in this batch are one edge."""
    start = 0
    for at in range(1, len(members) + 1):
        if at == len(members) or not _neighbours(members[at - 1], members[at], batch):
            yield Edge(members[start], members[at - 1], into)
            start = at


def _neighbours(one: UUID, other: UUID, batch: BatchId) -> bool:
    (first, place), (second, next_place) = split_id(one), split_id(other)
    return first == second == batch and next_place == place + 1
