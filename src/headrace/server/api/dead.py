"""`/v1/dead`: dead letters by the cause of their failure, replayed and discarded."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.responses import Response

from headrace.model import rate
from headrace.model.job import Job, JobId, JobState
from headrace.operate.audit import chosen
from headrace.operate.dead.letters import Choice, Group, join, most_frequent
from headrace.operate.search import after
from headrace.policy import fingerprint
from headrace.policy.fingerprint import Fingerprint
from headrace.server import visibility
from headrace.server.api import view
from headrace.server.api.job_request import Time, check
from headrace.server.api.jobs import Limit, Where
from headrace.server.http.call import Call, answer, read_id
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem

PAGE = 1000
"""Dead jobs that one call groups. The server reads the traceback of each of them once."""
MOST = 5000
"""Dead jobs that one move looks at."""
_CALLS = 40
"""Pages per request, short and empty ones included."""
HOURS = 24
"""Hours of a trend."""
_SLOWEST = 30.0
"""Seconds that a replay may take at its rate."""


class DeadQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters."""

    queue: str | None = None
    task: str | None = None
    tenant: str | None = None
    since: Time | None = None
    """Enqueued at or after."""
    until: Time | None = None
    """Enqueued before."""
    text: Annotated[str, Meta(max_length=256)] | None = None
    """A literal text in the task's name, the note, or a failure's kind or message."""
    before: str | None = None
    """The `next` of the call before."""

    def where(self) -> Where:
        return Where(
            state=[JobState.DEAD],
            queue=self.queue,
            task=self.task,
            tenant=self.tenant,
            since=self.since,
            until=self.until,
            text=self.text,
        )


class GroupView(msgspec.Struct, kw_only=True):
    """Dead jobs with the same cause of failure."""

    fingerprint: str
    title: str
    count: int
    tasks: list[str]
    queues: list[str]
    first_seen: datetime
    last_seen: datetime
    sample: UUID
    """The newest of them."""
    trend: list[int]
    """How many of them died in each of the last 24 hours, the latest hour last."""


class Groups(msgspec.Struct):
    """The causes of failures, the most frequent first."""

    items: list[GroupView]
    """They count the dead letters that this call read. Groups of several calls with the same fingerprint add up."""
    looked_at: int
    more: bool
    """There are older dead letters that were not read."""
    next: UUID | None
    """Pass as `before` to group older dead letters."""


async def groups(call: Call) -> Response:
    """GET /v1/dead"""
    query: DeadQuery = call.query
    by_fingerprint: dict[str, Group] = {}
    trends: dict[str, list[int]] = {}
    now = await call.service.store.now()
    seen = 0
    before = None if query.before is None else read_id(query.before)
    over = after(visibility.WITHIN)
    for _ in range(_CALLS):
        dead, before = await _page(call, query.where(), before, limit=PAGE - seen)
        for job, bug in dead:
            join(by_fingerprint, job, bug)
            _count(trends.setdefault(bug.id, [0] * HOURS), job, now)
        seen += len(dead)
        if before is None or seen >= PAGE or over():
            break
    views = [_view(group, trends[group.fingerprint]) for group in most_frequent(by_fingerprint)]
    return answer(Groups(views, seen, more=before is not None, next=before))


async def _page(
    call: Call, where: Where, before: JobId | None, *, limit: int = PAGE
) -> tuple[list[tuple[Job, Fingerprint]], JobId | None]:
    """Dead jobs with the cause of each, and where to go on."""
    page = await visibility.find(call.service, call.principal, where.filter(), before=before, limit=limit)
    return await call.service.figures.causes.of(page.jobs), page.next


def _count(trend: list[int], job: Job, now: datetime) -> None:
    ago = int((now - (job.finished_at or job.enqueued_at)).total_seconds() // 3600)
    if ago < HOURS:
        trend[HOURS - 1 - max(0, ago)] += 1


def _view(group: Group, trend: list[int]) -> GroupView:
    return GroupView(
        fingerprint=group.fingerprint,
        title=view.text(group.title),
        count=group.count,
        tasks=list(group.tasks),
        queues=list(group.queues),
        first_seen=group.first_seen,
        last_seen=group.last_seen,
        sample=group.sample,
        trend=trend,
    )


# ── moving ───────────────────────────────────────────────────────────────────


class DeadChoice(DeadQuery, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters: ids, or a group and filters."""

    ids: Annotated[list[str], Meta(max_length=1000)] = []
    group: str | None = None
    """A fingerprint."""
    everything: bool = False
    limit: Limit = 1000
    """Dead letters moved in this call, at most."""


class ReplayRequest(DeadChoice, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to replay."""

    rate: str | None = None
    """At most so many at a time, such as `50/s`."""


class DiscardRequest(DeadChoice, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to delete for good."""

    reason: Annotated[str, Meta(min_length=1, max_length=500)]


class DeadAnswer(msgspec.Struct):
    """What was done, and whether there is more."""

    changed: int
    refused: int
    """Jobs that are no longer dead, do not exist, or are too late to start: `expires` or `deadline` has passed."""
    more: bool
    next: UUID | None


async def replay(call: Call) -> Response:
    """POST /v1/dead/replay"""
    asked: ReplayRequest = call.body
    pace = None if asked.rate is None else check(rate.parse, asked.rate, "invalid_rate", "rate")
    if pace is not None and asked.limit / pace > _SLOWEST:
        raise Problem(
            422,
            "invalid_rate",
            f"{asked.limit} jobs at {asked.rate} take longer than a call: set a lower limit and repeat it",
        )
    ids, missing, next_ = await _chosen(call, asked)
    done = await call.operations.dead.replay(Choice(ids=tuple(ids)), rate=pace, what=_what(asked)) if ids else None
    changed = 0 if done is None else len(done.replayed)
    return answer(DeadAnswer(changed, missing + len(ids) - changed, next_ is not None, next_))


async def discard(call: Call) -> Response:
    """POST /v1/dead/discard"""
    asked: DiscardRequest = call.body
    if not asked.reason.strip():
        raise Problem(422, "invalid_field", "a discard needs a reason: it is the only record of why jobs were deleted")
    ids, missing, next_ = await _chosen(call, asked)
    choice, what = Choice(ids=tuple(ids)), _what(asked)
    done = await call.operations.dead.discard(choice, reason=asked.reason, what=what) if ids else None
    changed = 0 if done is None else len(done.records)
    return answer(DeadAnswer(changed, missing + len(ids) - changed, next_ is not None, next_))


def _what(asked: DeadChoice) -> str:
    """The caller's selection, for the audit log. It says more than the ids of one page."""
    where = replace(asked.where().filter(), states=frozenset())
    return chosen([UUID(id) for id in asked.ids], where, group=asked.group)


async def _chosen(call: Call, asked: DeadChoice) -> tuple[list[JobId], int, JobId | None]:
    """The selected jobs, how many of the ids are not dead letters, and where to go on."""
    bug = None if asked.group is None else check(fingerprint.check, asked.group, "invalid_group", "group")
    narrow = bug is not None or asked.where() != Where(state=[JobState.DEAD])
    if asked.ids:
        if narrow or asked.everything:
            raise Problem(422, "invalid_choice", "give ids, or a group and filters, not both")
        ids = [read_id(id) for id in dict.fromkeys(asked.ids)]
        dead = [job.id for job in await visibility.jobs(call, ids) if job.state is JobState.DEAD]
        return dead, len(ids) - len(dead), None
    if not narrow and not asked.everything:
        raise Problem(422, "invalid_choice", 'no jobs are selected: give ids, a group, a filter, or "everything": true')
    before = None if asked.before is None else read_id(asked.before)
    chosen: list[JobId] = []
    seen = 0
    for _ in range(_CALLS):
        page, next_ = await _page(call, asked.where(), before)
        seen += len(page)
        for job, cause in page:
            if bug is None or cause.id == bug:
                chosen.append(job.id)
                if len(chosen) == asked.limit:
                    return chosen, 0, job.id
        before = next_
        if before is None or seen >= MOST:
            break
    return chosen, 0, before


_CHOICE = ((422, "invalid_choice"), (422, "invalid_job_id"), (422, "invalid_group"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/dead",
        scope=Scope.READ,
        does="Group dead letters by the bug that caused them, the newest 1,000 per call.",
        handler=groups,
        looks=2,  # One call reads up to 1,000 jobs.
        long=True,
        query=DeadQuery,
        answers={200: Groups},
        problems=((422, "invalid_job_id"),),
    ),
    Endpoint(
        method="POST",
        path="/v1/dead/replay",
        scope=Scope.OPERATE,
        does="Make dead jobs ready again, by id, by bug or by filter.",
        handler=replay,
        body=ReplayRequest,
        answers={200: DeadAnswer},
        problems=(*_CHOICE, (422, "invalid_rate")),
    ),
    Endpoint(
        method="POST",
        path="/v1/dead/discard",
        scope=Scope.OPERATE,
        does="Delete dead jobs permanently, with a log line for each.",
        handler=discard,
        body=DiscardRequest,
        answers={200: DeadAnswer},
        problems=_CHOICE,
    ),
)
