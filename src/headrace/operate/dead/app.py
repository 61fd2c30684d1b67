"""What `app.dead` is. Verbs come in two, `x` for sync code, `ax` for async code."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from headrace.client.per_loop import Clients
from headrace.model import duration
from headrace.model.rate import parse as parse_rate
from headrace.model.records import Filter, Progress
from headrace.operate.app_jobs import JobRef, id_of, ids_of
from headrace.operate.audit import Ledger
from headrace.operate.dead.letters import Choice, Group, Letter
from headrace.operate.dead.moves import DeadLetterOperations, Discarded, Replayed
from headrace.policy.canary import Canary
from headrace.runtime.blocking import blocking
from headrace.task.task import Task


class DeadLetterFilter(TypedDict, total=False):
    """Which dead jobs: all given conditions must hold."""

    queue: str
    task: str
    tenant: str
    since: datetime
    """Enqueued at or after."""
    until: datetime
    """Enqueued before."""
    text: str
    """In the task's name, the note, or a failure's kind or message."""


class AppDeadLetters:
    """Dead letters: grouped by bug, replayed with care, discarded with a record."""

    def __init__(self, clients: Clients, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._clients = clients
        self._tasks = tasks

    async def agroups(self, *, progress: Progress | None = None, **where: Unpack[DeadLetterFilter]) -> list[Group]:
        """The bugs behind the dead jobs, the most frequent first. `progress(done, total, what)` hears how far it is."""
        return await (await self._operations()).groups(Filter(**where), progress)

    groups = blocking(agroups)

    async def ashow(self, job: JobRef) -> Letter:
        """One dead job with every failure, its arguments masked; raises JobNotFound."""
        return await (await self._operations()).show(id_of(job))

    show = blocking(ashow)

    async def areplay(
        self,
        *jobs: JobRef,
        group: str | None = None,
        everything: bool = False,
        rate: str | None = None,
        canary: int | None = None,
        tolerate: float = 0.1,
        patience: duration.Duration = "10m",
        progress: Progress | None = None,
        **where: Unpack[DeadLetterFilter],
    ) -> Replayed:
        """Make dead jobs ready again: by id, by group (a fingerprint), by filter, or everything.

        `rate="50/s"` bounds the pace. `canary=10` replays ten, watches them to their end, and goes on only if not more
        than the share `tolerate` died again; `answer.stopped` says why not. Jobs whose `expires` or `deadline` has passed
        stay dead: `answer.late`.
        """
        choice = Choice.of(ids_of(jobs), group=group, where=Filter(**where), everything=everything)
        pace, first = _care(rate=rate, canary=canary, tolerate=tolerate, patience=patience)
        return await (await self._operations()).replay(choice, rate=pace, canary=first, progress=progress)

    replay = blocking(areplay)

    async def adiscard(
        self,
        *jobs: JobRef,
        reason: str,
        by: str = "",
        group: str | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **where: Unpack[DeadLetterFilter],
    ) -> Discarded:
        """Delete dead jobs for good, each with a line in the log `headrace.audit`: by id, group, filter, or everything."""
        choice = Choice.of(ids_of(jobs), group=group, where=Filter(**where), everything=everything)
        return await (await self._operations(by)).discard(choice, reason=reason, progress=progress)

    discard = blocking(adiscard)

    async def _operations(self, by: str = "") -> DeadLetterOperations:
        client = await self._clients.here()
        ledger = Ledger.of(client.store, audit=client.audit, actor=by)
        return DeadLetterOperations(client.store, ledger, self._tasks.get)


def _care(
    *, rate: str | None, canary: int | None, tolerate: float, patience: duration.Duration
) -> tuple[float | None, Canary | None]:
    """Jobs per second and the canary, checked."""
    pace = None if rate is None else parse_rate(rate)
    if canary is None:
        return pace, None
    return pace, Canary(canary, tolerate, duration.parse(patience, name="patience"))
