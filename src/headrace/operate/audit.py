"""The entries that operator verbs leave in the audit log, and their texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.model.duration import show
from headrace.model.records import Filter, Retention
from headrace.store.audit import Audit, whoami
from headrace.store.contract import Store
from headrace.task.limit import LimitFigures, describe

if TYPE_CHECKING:
    from headrace.policy.schedule import Schedule

_NAMED = 10
"""Ids that one text names."""


class Ledger:
    """Writes what one actor did; without an audit log it writes nothing."""

    def __init__(self, audit: Audit | None, actor: str) -> None:
        self._audit = audit
        self.actor = actor

    @classmethod
    def of(cls, store: Store, *, audit: Audit | None = None, actor: str = "") -> Ledger:
        """The ledger of a store. `actor`: a token's name; the user of this process if it is left out."""
        # Behind a remote store the server writes the entries, under the name of the token.
        kept = None if getattr(store, "writes_audit", False) else audit or Audit(store)
        return cls(kept, actor or whoami())

    async def note(self, action: str, what: str, jobs: int = 0) -> None:
        """Such as `jobs.cancel`, to what, and how many jobs it changed."""
        if self._audit is not None:
            await self._audit.note(self.actor, action, what, jobs)

    @asynccontextmanager
    async def summed(self, what: str) -> AsyncGenerator[Ledger]:
        """One entry per action for all calls inside the block, also for those before an interruption."""
        inner = _Sums(self.actor)
        try:
            yield inner
        finally:
            for action, jobs in inner.jobs.items():
                await self.note(action, what, jobs)


class _Sums(Ledger):
    """Adds up the jobs of each action instead of writing an entry."""

    def __init__(self, actor: str) -> None:
        super().__init__(None, actor)
        self.jobs: Counter[str] = Counter()

    async def note(self, action: str, what: str, jobs: int = 0) -> None:  # noqa: ARG002
        self.jobs[action] += jobs


def chosen(ids: Sequence[UUID], where: Filter | None = None, *, group: str | None = None) -> str:
    """The jobs that a verb was given: by id, or by filter and bug."""
    if ids:
        more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
        return ", ".join(str(id) for id in ids[:_NAMED]) + more
    where = where or Filter()
    given = {
        "group": group,
        "state": ",".join(sorted(where.states)) or None,
        "queue": where.queue,
        "task": where.task,
        "tenant": where.tenant,
        "since": where.since,
        "until": where.until,
        "text": where.text,
    }
    return " ".join(f"{name}={value}" for name, value in given.items() if value is not None) or "everything"


def of_limit(name: str, override: LimitFigures | None) -> str:
    """A limit and the figures that an operator has set."""
    return name if override is None else f"{name}: {describe(override)}"


def of_schedule(schedule: Schedule) -> str:
    """A schedule, its rule and its task."""
    return f"{schedule.name}: {schedule.rule} {schedule.job.task}"


def of_retention(keep: Retention) -> str:
    """How long finished jobs are kept."""
    return f"kept: done {show(keep.done)}, dead {show(keep.dead)}"
