"""`/v1/workflows`: jobs that follow each other, stored in one call, all or nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.responses import Response

from headrace.client.graph import MOST_JOBS, GraphPlan
from headrace.client.linked import tenants_of
from headrace.errors import ConfigError
from headrace.model.gate import GateId, Needs
from headrace.model.job import Batch, BatchId, job_id
from headrace.server import link_visibility
from headrace.server.admission import admit
from headrace.server.api import job_request
from headrace.server.api.job_request import JobBody, RequestLinks, json_value
from headrace.server.api.jobs import PRODUCE_PROBLEMS, read_key, with_trace
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found
from headrace.task.call import JobCall
from headrace.task.codec.references import replaced
from headrace.task.group import Gathered, JobGroup, check_label
from headrace.task.job_options import OPTIONS
from headrace.task.links import Source
from headrace.task.option import body

Name = Annotated[
    str,
    Meta(min_length=1, max_length=64, description="A name within this call: letters, digits, `_`, `.` and `-`."),
]
Followed = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=MOST_JOBS)]
"""Names of jobs and groups of the same call, or ids of stored ones."""

KEY_AGE: Final = timedelta(days=1)
"""How old the time in an Idempotency-Key may be."""
KEY_AHEAD: Final = timedelta(minutes=5)
"""By how much the clock that made an Idempotency-Key may be ahead."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", re.ASCII)


# ── bodies ───────────────────────────────────────────────────────────────────


class WorkflowJobBody(JobBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A job of a workflow. `{"$out": name}` in its arguments stands for the result of another job, or for those of a group."""

    name: Name = msgspec.field(name="as")
    after: Followed = msgspec.field(default_factory=list[str])
    """The jobs and groups that it runs after, by name, or by id if they are stored."""
    when: Literal["done", "ended", "failed"] | None = None
    """What must be true of those in `after`: `done` (default), `ended` (in any way), or `failed` (one is dead or cancelled)."""


if TYPE_CHECKING:
    WorkflowJobRequest: TypeAlias = WorkflowJobBody
else:
    WorkflowJobRequest = body(WorkflowJobBody, OPTIONS, "WorkflowJobRequest")


class WorkflowGroupRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Jobs that are counted together. At least one job follows the group."""

    name: Name = msgspec.field(name="as")
    members: Annotated[list[Name], Meta(min_length=1, max_length=MOST_JOBS)]
    """Jobs of this call. Their results come in the order of `jobs`."""
    label: str = ""
    """What people see. Without it, the group is not listed."""


class WorkflowRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Jobs to be made, all or none of them, in any order."""

    jobs: Annotated[list[WorkflowJobRequest], Meta(extra_json_schema={"minItems": 1, "maxItems": MOST_JOBS})]
    groups: Annotated[list[WorkflowGroupRequest], Meta(max_length=MOST_JOBS)] = []


class WorkflowPlaced(msgspec.Struct, kw_only=True):
    """The ids of the jobs and groups, by their names."""

    ids: dict[str, UUID]
    groups: dict[str, UUID]
    existing: list[str]
    """The names of jobs that existed before, by their key or lock."""


# ── the call ─────────────────────────────────────────────────────────────────


class StoredSource(Gathered):
    """A stored job or group that a job of the workflow follows."""

    def __init__(self, id: UUID) -> None:
        self.id = GateId(id)


async def create(call: Call) -> Response:
    """POST /v1/workflows"""
    asked: WorkflowRequest = call.body
    if not 1 <= len(asked.jobs) <= MOST_JOBS:
        code = "batch_too_large" if asked.jobs else "batch_empty"
        raise Problem(422, code, f"a workflow has 1 to {MOST_JOBS:,} jobs", path="jobs")
    drawn = _Drawing(asked)
    batch_id = await _batch_id(call, asked)
    sources = drawn.stored
    await _check_stored(call, sources)
    for name in drawn.order:
        sources[name] = _source(call, drawn, name, sources)
    calls = [source for source in sources.values() if isinstance(source, JobCall)]
    stored = {source.id for source in sources.values() if isinstance(source, StoredSource)}
    try:
        plan = GraphPlan(
            calls,
            tenants=await tenants_of(call.service.client, stored),
            unfair=call.service.app.unfair,
            batch=batch_id,
        )
        batch = plan.batch()
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path="jobs") from None
    existing = await _store(call, batch)
    places = {id(one): place for place, one in enumerate(calls)}
    placed = {name: places[id(sources[name])] for name in drawn.jobs}
    groups = {name: plan.group_id(one) for name, one in sources.items() if isinstance(one, JobGroup)}
    return answer(
        WorkflowPlaced(
            ids={name: existing.get(place) or job_id(batch.id, place) for name, place in placed.items()},
            groups={name: id for name, id in groups.items() if id is not None},
            existing=sorted(name for name, place in placed.items() if place in existing),
        ),
        201,
    )


async def _store(call: Call, batch: Batch) -> Mapping[int, UUID]:
    """Store the batch as any other one. Answers place → the existing job with the same key or lock."""
    service, principal = call.service, call.principal
    await link_visibility.check_batch(service.store, principal, batch)
    batch = replace(batch, jobs=await admit(service, principal, batch.jobs, made_here=True))
    existing = (await service.client.enqueue_batch(batch)).existing
    if existing:
        await job_request.reveal(call, existing.values())
    return existing


def _source(call: Call, drawn: _Drawing, name: str, sources: Mapping[str, Source]) -> Source:
    """The call or the group of this name. What it follows is in `sources` already."""
    if name in drawn.groups:
        place, group = drawn.groups[name]
        members = [sources[member] for member in sorted(group.members, key=lambda member: drawn.jobs[member][0])]
        try:
            return JobGroup((member for member in members if isinstance(member, JobCall)), check_label(group.label))
        except ConfigError as error:
            raise Problem(422, "invalid_value", str(error), path=f"groups[{place}].label") from None
    place, asked = drawn.jobs[name]
    if call.head.traceparent is not None:
        asked = with_trace(asked, call.head.traceparent)
    after = tuple(sources[before] for before in dict.fromkeys(asked.after))
    links = RequestLinks(sources, after, Needs(asked.when or Needs.DONE))
    return job_request.make_call(call.service, call.principal, asked, f"jobs[{place}].", links)


async def _check_stored(call: Call, sources: Mapping[str, Source]) -> None:
    """Raise a 404 for an id of nothing that the caller may see."""
    ids = {source.id for source in sources.values() if isinstance(source, StoredSource)}
    missing = ids - await link_visibility.visible(call.service.store, call.principal, ids)
    if missing:
        raise not_found(f"there is no job or group {min(missing)}, which a job of this workflow follows")


async def _batch_id(call: Call, asked: WorkflowRequest) -> BatchId | None:
    """The same id for a repeated call with an Idempotency-Key, so that the store knows its batch. None: there is no key."""
    if (header := call.head.idempotency_key) is None:
        return None
    now = await call.service.store.now()
    try:
        key = UUID(read_key(header))
        time = timedelta(milliseconds=key.int >> 80)
    except ValueError:
        key, time = UUID(int=0), timedelta()
    since = timedelta(seconds=now.timestamp())
    if key.version != 7 or not since - KEY_AGE <= time <= since + KEY_AHEAD:
        raise Problem(
            422,
            "invalid_key",
            "the Idempotency-Key of a workflow is a UUID of version 7 of the last 24 hours, because the ids of its jobs "
            "begin with its time",
        )
    principal = call.principal
    binding = [principal.tenant, sorted(principal.queues or ()), key]
    seed = msgspec.json.encode([binding, asked])
    random = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big") & ((1 << 46) - 1)
    return BatchId(UUID(int=key.int >> 64 << 64 | 0b10 << 62 | random << 16))


# ── what follows what ────────────────────────────────────────────────────────


class _Drawing:
    """The names of a workflow, and the order in which they follow each other. Raises Problem."""

    def __init__(self, asked: WorkflowRequest) -> None:
        self.jobs: dict[str, tuple[int, WorkflowJobRequest]] = {}
        self.groups: dict[str, tuple[int, WorkflowGroupRequest]] = {}
        self.stored: dict[str, Source] = {}
        """The stored jobs and groups that jobs follow, by the text that names them."""
        for place, job in enumerate(asked.jobs):
            self._check_name(job.name, f"jobs[{place}].as")
            self.jobs[job.name] = place, job
        for place, group in enumerate(asked.groups):
            self._check_name(group.name, f"groups[{place}].as")
            self.groups[group.name] = place, group
        before = {name: self._before(place, job) for name, (place, job) in self.jobs.items()}
        self._check_groups(before)
        before |= {name: group.members for name, (_, group) in self.groups.items()}
        known = {name: [one for one in names if one not in self.stored] for name, names in before.items()}
        self.order = list(self._in_order(known))
        """The names, each behind those that it follows, and otherwise in the order of the body."""

    def _in_order(self, before: Mapping[str, Iterable[str]]) -> Iterator[str]:
        sorter = TopologicalSorter(before)
        try:
            sorter.prepare()
        except CycleError as error:
            circle = " after ".join(error.args[1][:6])
            raise Problem(422, "circular_workflow", f"jobs wait for each other: {circle}", path="jobs") from None
        ready: list[tuple[int, str]] = []
        while sorter.is_active():
            for name in sorter.get_ready():
                heappush(ready, (self.jobs[name][0] if name in self.jobs else -1, name))
            _, first = heappop(ready)
            yield first
            sorter.done(first)

    def _check_name(self, name: str, path: str) -> None:
        if not _NAME.fullmatch(name) or _is_id(name):
            text = f"{name!a} is no name: write letters, digits, _, . and -, and no id of a job"
            raise Problem(422, "invalid_value", text, path=path)
        if name in self.jobs or name in self.groups:
            raise Problem(422, "duplicate_name", f"the name {name} is given twice", path=path)

    def _before(self, place: int, job: WorkflowJobRequest) -> list[str]:
        """The names that a job follows."""
        path = f"jobs[{place}]"
        if job.when is not None and not job.after:
            text = "when says what must be true of the jobs in after: give after"
            raise Problem(422, "invalid_value", text, path=f"{path}.when")
        for name in job.after:
            self._check_known(name, f"{path}.after")
        inputs = [*_names_in(json_value(job.args)), *_names_in(json_value(job.kwargs))]
        for name in inputs:
            self._check_known(name, f"{path}.args")
        return [*job.after, *inputs]

    def _check_known(self, name: str, path: str) -> None:
        if name in self.jobs or name in self.groups:
            return
        if not _is_id(name):
            text = f"no job of this workflow has the name {name[:60]!a}, and it is not the id of a stored job"
            raise Problem(422, "unknown_name", text, path=path)
        self.stored[name] = StoredSource(UUID(name))

    def _check_groups(self, before: Mapping[str, Iterable[str]]) -> None:
        followed = {name for names in before.values() for name in names}
        for name, (place, group) in self.groups.items():
            for member in group.members:
                if member not in self.jobs:
                    text = f"no job of this workflow has the name {member[:60]!a}"
                    raise Problem(422, "unknown_name", text, path=f"groups[{place}].members")
            if len(set(group.members)) < len(group.members):
                raise Problem(422, "duplicate_name", "a job is a member once", path=f"groups[{place}].members")
            if name not in followed:
                text = f'no job follows the group {name}: name it in after, or as {{"$out": "{name}"}}'
                raise Problem(422, "invalid_value", text, path=f"groups[{place}]")


def _names_in(value: Any) -> list[str]:
    names: list[str] = []
    replaced(value, names.append)
    return names


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/workflows",
        scope=Scope.ENQUEUE,
        does="Enqueue up to 5,000 jobs that follow each other: all or none. A repeated Idempotency-Key returns the same ids.",
        handler=create,
        body=WorkflowRequest,
        answers={201: WorkflowPlaced},
        problems=(
            *PRODUCE_PROBLEMS,
            (422, "batch_too_large"),
            (422, "batch_empty"),
            (422, "unknown_name"),
            (422, "duplicate_name"),
            (422, "circular_workflow"),
        ),
    ),
)
