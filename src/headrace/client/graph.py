"""Turns calls that follow each other into one batch: jobs in the order of their dependencies, gates, and members."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.duration import LONGEST
from headrace.model.gate import Edge, GateId, NewGate, Wait, gate_id_in
from headrace.model.job import MAX_BATCH, Batch, BatchId, JobId, NewJob, job_id, new_batch
from headrace.task.call import JobCall
from headrace.task.codec import decode_options, encode_options
from headrace.task.codec.references import reference, references
from headrace.task.group import JobGroup
from headrace.task.handle import Handle
from headrace.task.job_checks import tenant_of
from headrace.task.links import UNSTORED, CallLinks, Source, waiting, with_inputs
from headrace.task.options import lane_of

MOST_JOBS: Final = 5000
"""Jobs of one graph. A store writes them in one step."""
MOST_EDGES: Final = 10_000
"""Members of the gates of one graph, in which neighbours count as one. The store writes them in the same step."""


def in_order(*calls: JobCall[Any]) -> list[JobCall[Any]]:
    """These calls and everything that has to be enqueued with them, each after what it follows; the last one is last."""
    order: list[JobCall[Any]] = []
    begun: dict[int, bool] = {}
    """The calls and groups that were come across, and whether all that they follow is in order."""
    entered = 0
    stack: list[JobCall[Any] | JobGroup[Any]] = list(reversed(calls))
    while stack:
        current = stack[-1]
        key = id(current)
        if key not in begun:
            begun[key] = False
            top = len(stack)
            if isinstance(current, JobCall):
                entered += 1
                if entered > MOST_JOBS:
                    raise _too_many()
                before = () if current.links is None else current.links.sources
            else:
                before = current.calls
            for source in before:
                if isinstance(source, UNSTORED) and not begun.get(id(source)):
                    if id(source) in begun:
                        raise _circle(source)
                    stack.append(source)
            if len(stack) > top:
                if len(stack) > top + 1:
                    stack[top:] = stack[: top - 1 : -1]  # The first of them is on top.
                continue
        stack.pop()
        if not begun[key]:
            begun[key] = True
            if isinstance(current, JobCall):
                order.append(current)
    return order


def _too_many() -> ConfigError:
    return ConfigError(
        f"more than {MOST_JOBS:,} jobs follow each other in one call: enqueue them in several calls, or count them in a "
        "group that grows, app.open_group(…)"
    )


def _circle(source: JobCall[Any] | JobGroup[Any]) -> ConfigError:
    call = source if isinstance(source, JobCall) else source.calls[0]
    return ConfigError(f"a job of {call.job.task} follows itself, directly or through others: it would never run")


def stored_before(calls: Iterable[JobCall[Any]]) -> list[UUID]:
    """The stored jobs that the calls follow: calls without a tenant get theirs."""
    ids: dict[UUID, None] = {}
    for call in calls:
        if call.links is not None:
            for source in call.links.sources:
                if isinstance(source, Handle):
                    ids[source.id] = None
        elif call.job.wait is not None:
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


class _PlannedGroup(NamedTuple):
    """A group of jobs of this batch."""

    gate: GateId
    members: list[JobId]
    """In the order of its calls."""
    keyed: JobCall[Any] | None
    """One of its calls whose job has a key or a unique lock."""


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
        self._own_tenants: dict[int, str] = {}
        """Those of the jobs of this graph that have one."""
        self._usual = "" if awaited_by is None else awaited_by.gate.tenant
        self._inherits = bool(self._tenants) or bool(self._usual)
        """Whether any job can have a tenant from what it follows."""
        self._unfair = unfair
        self._first = first
        self._batch = new_batch() if batch is None else batch
        self._base = self._batch.int
        self._places = {id(call): place for place, call in enumerate(calls)}
        self._gates: list[NewGate] = list(gates)
        self._edges: list[Edge] = []
        self._ids: dict[int, UUID] = {}
        """The ids of what jobs follow, made when the first job follows it."""
        self._groups: dict[int, _PlannedGroup] = {}
        self._joins: dict[frozenset[UUID], GateId] = {}
        self._last_wait = Wait(self._batch)
        self._wanted = _wanted(calls)
        self._parent = awaited_by
        if awaited_by is not None:
            self._wanted.update(map(id, awaited_by.calls))

    def batch(self) -> Batch:
        """The batch. Each job has the place of its call."""
        jobs = [self._job(call) for call in self._calls]
        if (parent := self._parent) is not None:
            members = [*range(self._base, self._base + len(jobs)), *(id.int for id in parent.stored)]
            self._gates.append(parent.gate)
            self._edges += _edges(dict.fromkeys(members), parent.gate.id, self._batch)
        return Batch(self._batch, jobs, tuple(self._gates), tuple(self._edges))

    def group_id(self, group: JobGroup[Any]) -> GateId | None:
        """The id of a group, after `batch`. None: no job follows it, so it is not made."""
        planned = self._groups.get(id(group))
        return None if planned is None else planned.gate

    def _job(self, call: JobCall[Any]) -> NewJob:
        """The job of a call. All jobs before it have been made."""
        job, links = call.job, call.links
        tenant = tenant_of(job)
        if not tenant and self._inherits and (tenant := self._inherited(call)):
            job = with_tenant(job, tenant, self._unfair)
        if tenant:
            self._own_tenants[id(call)] = tenant
            self._inherits = True
        if id(call) in self._wanted:
            job = kept(call, job)
        if links is None:
            return job if self._first is None else waiting(job, self._after_first(job, self._first))
        sources = links.sources
        # Most jobs follow one other. A comprehension is a call of its own up to CPython 3.11.
        alone = len(sources) == 1
        targets = [self._id(sources[0], job)] if alone else [self._id(source, job) for source in sources]
        target = targets[0] if alone and self._first is None else self._joined(links, targets, job)
        if links.inputs or not alone:
            self._check_keys(links)
        last = self._last_wait
        if last.gate is not target or last.needs is not links.needs:
            last = self._last_wait = Wait(target, links.needs)  # One object for jobs that follow the same.
        if not links.inputs:
            return waiting(job, last)
        payload, options = self._with_inputs(job, links, targets)
        return NewJob(job.task, payload, job.lane, job.due, job.key, options, job.unique, last)

    def _after_first(self, job: NewJob, first: Wait) -> Wait:
        """What a job waits for that follows no other job of the graph."""
        own = job.wait
        return first if own is None else Wait(self._join((own.gate, first.gate), job), own.needs)

    def _joined(self, links: CallLinks, targets: list[UUID], job: NewJob) -> UUID:
        """What a job waits for that follows these."""
        together = set(targets)
        if self._first is not None and links.unstored is None:
            together.add(self._first.gate)
        return targets[0] if len(together) == 1 else self._join(together, job)

    def _join(self, targets: Iterable[UUID], job: NewJob) -> GateId:
        """The gate that has all of these as members. Jobs that follow the same ones share it."""
        together = frozenset(targets)
        if together not in self._joins:
            self._joins[together] = self._gate([target.int for target in together], "", job)
        return self._joins[together]

    def _gate(self, members: Iterable[int], label: str, job: NewJob) -> GateId:
        gate = NewGate(
            id=gate_id_in(self._batch, len(self._gates)), queue=job.lane.queue, label=label, tenant=tenant_of(job)
        )
        self._gates.append(gate)
        self._edges += _edges(sorted(members), gate.id, self._batch)
        if len(self._edges) > MOST_EDGES:
            raise ConfigError(
                f"the jobs of one call follow other jobs at more than {MOST_EDGES:,} places: let one job follow the many and "
                "the others follow that one, or enqueue them in several calls"
            )
        self._tenants[gate.id] = gate.tenant
        return gate.id

    def _id(self, source: Source, job: NewJob) -> UUID:
        known = self._ids.get(id(source))
        if known is None:
            if isinstance(source, JobCall):
                known = UUID(int=self._base | self._places[id(source)])
            else:
                known = self._group(source, job).gate if isinstance(source, JobGroup) else source.id
            self._ids[id(source)] = known
        return known

    def _group(self, group: JobGroup[Any], job: NewJob) -> _PlannedGroup:
        members = [job_id(self._batch, self._places[id(call)]) for call in group.calls]
        gate = self._gate({member.int for member in members}, group.label, job)
        keyed = next((call for call in group.calls if _has_key(call.job)), None)
        planned = self._groups[id(group)] = _PlannedGroup(gate, members, keyed)
        return planned

    def _with_inputs(self, job: NewJob, links: CallLinks, targets: Sequence[UUID]) -> tuple[bytes, bytes | None]:
        """The arguments and the options of a job with the ids of its inputs, which are the first of `targets`."""
        payload = job.payload
        inputs: list[UUID] = []
        for source, mark, id_ in zip(links.inputs, links.marks, targets, strict=False):
            if not isinstance(source, JobGroup) or _rising(members := self._groups[id(source)].members):
                payload = payload.replace(reference(mark), reference(id_.bytes))
                inputs.append(id_)
            else:
                # The results of a gate come in the order of the ids of its members.
                payload = payload.replace(reference(mark), references(members))
                inputs += members
        return payload, with_inputs(job.options, inputs if len(inputs) == 1 else dict.fromkeys(inputs))

    def _inherited(self, call: JobCall[Any]) -> str:
        """The tenant of what it follows."""
        for source in () if call.links is None else call.links.sources:
            for one in source.calls if isinstance(source, JobGroup) else (source,):
                if isinstance(one, JobCall):
                    tenant = self._own_tenants.get(id(one), "")
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
        for place, source in enumerate(links.sources):
            keyed = None
            if isinstance(source, JobCall):
                keyed = source if _has_key(source.job) else None
            elif isinstance(source, JobGroup) and place < len(links.inputs):
                keyed = self._groups[id(source)].keyed
            if keyed is not None:
                raise ConfigError(
                    f"a job of {keyed.job.task} has a key or a unique lock, so that an earlier job may stand for it: enqueue "
                    "it first, and let the others follow its handle"
                )


def _has_key(job: NewJob) -> bool:
    return job.key is not None or job.unique is not None


def _rising(members: Sequence[JobId]) -> bool:
    """Whether each is above the one before it."""
    return all(map(operator.lt, members, itertools.islice(members, 1, None)))


def _wanted(calls: Iterable[JobCall[Any]]) -> set[int]:
    """The calls whose results others need."""
    wanted: set[int] = set()
    for call in calls:
        if call.links is None:
            continue
        for source in call.links.inputs:
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


def with_tenant(job: NewJob, tenant: str, unfair: Collection[str]) -> NewJob:
    """The job as one of this tenant."""
    lane = job.lane
    if lane.queue in unfair:
        return replace(job, options=encode_options(replace(decode_options(job.options), tenant=tenant)))
    return replace(job, lane=lane_of(lane.queue, lane.priority, tenant, lane.limits))


def _edges(members: Iterable[int], into: GateId, batch: BatchId) -> Iterator[Edge]:
    """Members, by the numbers of their ids, as runs: neighbours in this batch are one edge."""
    own = range(batch.int, batch.int + MAX_BATCH)
    first = last = -1
    for member in members:
        if member == last + 1 and member in own and last in own:
            last = member
            continue
        if last >= 0:
            yield _edge(first, last, into)
        first = last = member
    if last >= 0:
        yield _edge(first, last, into)


def _edge(first: int, last: int, into: GateId) -> Edge:
    start = UUID(int=first)
    return Edge(start, start if first == last else UUID(int=last), into)
