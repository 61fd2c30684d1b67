"""What changed lately: what operators did, which workers started, and which failures are new. Every read is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from headrace.model.job import JobId, JobState
from headrace.model.lease import Presence
from headrace.model.records import Filter
from headrace.operate.dead.causes import Causes
from headrace.operate.dead.letters import Group, join
from headrace.store.audit import Audit
from headrace.store.contract import Store

MOST = 500
"""Dead letters that are read for new failures."""
ENTRIES = 1_000
"""Entries of the audit log that are read."""
TOGETHER = timedelta(minutes=5)
"""Workers that start within this time after the one before are one deploy."""
_CALLS = 8
"""Pages, short and empty ones included."""
_NAMES = 5
"""Tasks that one change names."""
_LEFT_OUT = ("jobs.", "tokens.")
"""Actions that explain no change of figures, or that only an administrator may know: moves of jobs, and tokens."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may explain why figures changed."""

    at: datetime
    kind: Literal["action", "deploy", "failure"]
    """What an operator did, workers that started, or a bug that jobs die of for the first time."""
    action: str
    """The action of the audit log such as `queues.pause`; `workers.start`; `failures.new`."""
    what: str
    """The subject in words: a queue, the workers and their versions, the title of the bug."""
    by: str = ""
    """The author of an action."""
    jobs: int = 0
    """The jobs that an action changed, or that have died of the bug."""
    id: str = ""
    """The fingerprint of the bug, for `dead list --group`."""


async def changes(
    store: Store, since: datetime, *, limit: int = 100, audit: Audit | None = None, causes: Causes | None = None
) -> list[Change]:
    """What changed since then, the newest first. `audit` and `causes` remember what earlier calls have read."""
    entries = (await (audit or Audit(store)).page(since, limit=ENTRIES)).entries
    actions = [
        Change(at=entry.at, kind="action", action=entry.action, what=entry.what, by=entry.who, jobs=entry.jobs)
        for entry in entries
        if not entry.action.startswith(_LEFT_OUT)
    ]
    everything = [
        *actions,
        *deploys(await store.workers(), since),
        *await _new_failures(store, since, causes or Causes(store)),
    ]
    return sorted(everything, key=lambda change: change.at, reverse=True)[:limit]


def deploys(workers: Sequence[Presence], since: datetime) -> list[Change]:
    """Workers that started since then and still run, in groups that started together."""
    ordered = sorted(workers, key=lambda worker: worker.started_at)
    known = {task for worker in ordered if worker.started_at < since for task in worker.tasks}
    groups: list[list[Presence]] = []
    for worker in ordered:
        if worker.started_at < since:
            continue
        if groups and worker.started_at - groups[-1][-1].started_at <= TOGETHER:
            groups[-1].append(worker)
        else:
            groups.append([worker])
    result: list[Change] = []
    for group in groups:
        fresh = {task for worker in group for task in worker.tasks} - known
        result.append(
            Change(at=group[0].started_at, kind="deploy", action="workers.start", what=_deploy(group, fresh, known))
        )
        known |= fresh
    return result


def _deploy(group: Sequence[Presence], fresh: Iterable[str], known: Iterable[str]) -> str:
    versions = ", ".join(sorted({worker.version for worker in group}))
    text = f"{group[0].name}" if len(group) == 1 else f"{len(group)} workers"
    text += f" started, headrace {versions}"
    names = sorted(fresh)
    if not names or not list(known):
        return text  # Without earlier workers every task would be a new one.
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{text}, with new tasks: {', '.join(names[:_NAMES])}{more}"


async def _new_failures(store: Store, since: datetime, causes: Causes) -> list[Change]:
    """Bugs whose first dead letter, of those that are read, died since then."""
    groups: dict[str, Group] = {}
    before: JobId | None = None
    looked = 0
    for _ in range(_CALLS):
        page = await store.find(Filter(states=frozenset({JobState.DEAD})), before=before, limit=MOST)
        for job, bug in await causes.of(page.jobs):
            join(groups, job, bug)
        looked, before = looked + len(page.jobs), page.next
        if before is None or looked >= MOST:
            break
    return [
        Change(
            at=group.first_seen,
            kind="failure",
            action="failures.new",
            what=f"{group.title} in {', '.join(group.tasks[:_NAMES])}",
            jobs=group.count,
            id=group.fingerprint,
        )
        for group in groups.values()
        if group.first_seen >= since
    ]
