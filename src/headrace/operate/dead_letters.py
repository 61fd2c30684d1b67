"""Dead letters: read as bugs, replayed with care, discarded with a record. Works on any store by its contract.

Everything goes through the dead jobs page by page, newest first, and never holds more than a page of them. A job that is
replayed and dies again meanwhile is not met a second time: pages only go down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import BadArguments, ConfigError, JobNotFound
from headrace.model.job import Job, JobId, JobState
from headrace.model.rate import Pacer
from headrace.model.records import Filter, Page, Progress
from headrace.operate import dropped
from headrace.policy import fingerprint
from headrace.policy.canary import Canary, Trial, count, too_many, verdict
from headrace.store import pages
from headrace.store.audit import whoami
from headrace.store.contract import Store
from headrace.task.codec import decode_options, moment_of

if TYPE_CHECKING:
    from headrace.task.task import TaskOptions

PAGE = 250
"""Dead jobs read at once, each with every traceback."""
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 1.0
_DEAD = frozenset({JobState.DEAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dead jobs that died of one bug."""

    fingerprint: str
    title: str
    count: int
    tasks: tuple[str, ...]
    queues: tuple[str, ...]
    first_seen: datetime
    """When the first of them died."""
    last_seen: datetime
    sample: JobId
    """The newest of them."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead job, with every failure, and the bug it died of."""

    job: Job
    fingerprint: str
    title: str
    arguments: Any = None
    """To be shown, with secrets masked; None if they cannot be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters: these, or all that fit the filter and died of that bug."""

    ids: tuple[JobId, ...] = ()
    where: Filter = field(default_factory=Filter)
    group: str | None = None

    @classmethod
    def of(
        cls,
        ids: Sequence[JobId] = (),
        *,
        group: str | None = None,
        where: Filter | None = None,
        everything: bool = False,
    ) -> Self:
        """Exactly one kind of choice, or a ConfigError: nobody discards everything by leaving something out."""
        narrowed = where is not None and replace(where, states=frozenset()) != Filter()
        if ids and (group is not None or narrowed or everything):
            raise ConfigError("give job ids, or a group and filters, not both")
        if not ids and group is None and not narrowed and not everything:
            raise ConfigError("which dead jobs? give ids, a group, a filter such as task, or everything=True")
        found = None if group is None else fingerprint.check(group)
        return cls(ids=tuple(dict.fromkeys(ids)), where=where or Filter(), group=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The answer to replay."""

    replayed: list[JobId] = field(default_factory=list[JobId])
    refused: list[JobId] = field(default_factory=list[JobId])
    """Not dead, or not there."""
    late: list[JobId] = field(default_factory=list[JobId])
    """Left dead because their `expires` or `deadline` has passed: they could not start."""
    trial: Trial | None = None
    stopped: str | None = None
    """Why the rest was left dead; None: nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The answer to discard."""

    records: list[dropped.DroppedLetter] = field(default_factory=list[dropped.DroppedLetter])
    refused: list[JobId] = field(default_factory=list[JobId])
    """Not dead, or not there."""


class DeadLetters:
    """The dead letters of one store."""

    def __init__(
        self,
        store: Store,
        *,
        arguments: Callable[[Job], Any] = lambda _: None,
        options_of: Callable[[str], TaskOptions | None] = lambda _: None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`arguments` shows a job's, `options_of` knows a task's; `sleep` and `clock` are for tests."""
        self._store = store
        self._arguments = arguments
        self._options_of = options_of
        self._sleep = sleep
        self._clock = clock

    # ── looking ─────────────────────────────────────────────────────────────
    async def groups(self, where: Filter | None = None, progress: Progress | None = None) -> list[Group]:
        """The bugs behind the dead jobs that fit, the most frequent first."""
        choice = Choice(where=where or Filter())
        meter = _Meter(progress, await self._expected(choice))
        found: dict[str, Group] = {}
        async for dead, _ in self._pages(choice, whole=True):
            for job in dead:
                print_ = fingerprint.of_job(job)
                found[print_.id] = _joined(found.get(print_.id), job, print_)
            meter.add(len(dead))
        return sorted(found.values(), key=lambda group: (-group.count, group.fingerprint))

    async def jobs(
        self, where: Filter | None = None, *, group: str | None = None, before: JobId | None = None, limit: int = 50
    ) -> Page:
        """Dead jobs, newest first; with a group, those that died of that bug."""
        where = replace(where or Filter(), states=_DEAD)
        if group is None:
            return await pages.fill(self._store, where, before=before, limit=limit)
        choice = Choice(where=where, group=fingerprint.check(group))
        found: list[Job] = []
        async for dead, _ in self._pages(choice, whole=True, before=before):
            found += dead
            if len(found) > limit:
                return Page(found[:limit], found[limit - 1].id)
        return Page(found, None)

    async def show(self, id: JobId) -> Letter:
        """One dead job; raises JobNotFound."""
        (job,) = await self._store.get([id])
        if job is None:
            raise JobNotFound(f"no job {id}: it was pruned, discarded or never there")
        if job.state is not JobState.DEAD:
            raise JobNotFound(f"job {id} is {job.state}, not dead")
        return Letter(job, *fingerprint.of_job(job), self._arguments(job))

    # ── moving ──────────────────────────────────────────────────────────────
    async def replay(
        self,
        choice: Choice,
        *,
        rate: float | None = None,
        canary: Canary | None = None,
        progress: Progress | None = None,
        into: Replayed | None = None,
    ) -> Replayed:
        """Make dead jobs ready again, failures counted from 0: at most `rate` a second, a few first if asked.

        Those that are too late to start stay dead: they would only be cancelled, and be dead letters no longer. What
        `into` lists is filled on the way, for whoever may be interrupted.
        """
        answer = into or Replayed()
        pacer = Pacer(rate, most=PAGE, sleep=self._sleep, clock=self._clock)
        meter = _Meter(progress, await self._expected(choice))
        trial: Trial | None = None
        async for dead, others in self._pages(choice, whole=choice.group is not None):
            answer.refused.extend(others)
            late = await self._late(dead)
            answer.late.extend(late)
            meter.add(len(late))
            ids = [job.id for job in dead if job.id not in late]
            if canary is not None and trial is None:
                some = canary.count - len(answer.replayed)
                await self._ready(ids[:some], answer, pacer, meter)
                ids = ids[some:]
                if len(answer.replayed) < canary.count:
                    continue  # some were refused, or the page was short: the next one has the others
                trial = await self._watch(answer.replayed, canary, meter)
                if why := verdict(trial, canary):
                    return replace(answer, trial=trial, stopped=why)
            await self._ready(ids, answer, pacer, meter)
        if canary is not None and trial is None and answer.replayed:
            trial = await self._watch(answer.replayed, canary, meter)
            return replace(answer, trial=trial, stopped=verdict(trial, canary))
        return replace(answer, trial=trial)

    async def discard(
        self,
        choice: Choice,
        *,
        reason: str,
        by: str = "",
        progress: Progress | None = None,
        into: Discarded | None = None,
    ) -> Discarded:
        """Delete dead jobs for good. Each one's record is in the log before the job is gone. `into`: as in `replay`."""
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError("a discard needs a reason: it is all that will say why these jobs are gone")
        answer = into or Discarded()
        by = by or whoami()
        meter = _Meter(progress, await self._expected(choice))
        async for dead, others in self._pages(choice, whole=True):
            answer.refused.extend(others)
            records = [dropped.record_of(job, reason.strip(), by, self._arguments(job)) for job in dead]
            gone = await dropped.drop(self._store, "dead.discard", records)
            answer.records.extend(record for record in records if record.id in gone)
            answer.refused.extend(record.id for record in records if record.id not in gone)
            meter.add(len(dead))
        return answer

    # ── how ─────────────────────────────────────────────────────────────────
    async def _pages(
        self, choice: Choice, *, whole: bool, before: JobId | None = None
    ) -> AsyncIterator[tuple[list[Job], list[JobId]]]:
        """The chosen dead jobs, and the ids asked for that are none. `whole`: with their failures."""
        if choice.ids:
            for start in range(0, len(choice.ids), PAGE):
                some = choice.ids[start : start + PAGE]
                dead = [job for job in await self._store.get(some) if job is not None and job.state is JobState.DEAD]
                there = {job.id for job in dead}
                yield dead, [id for id in some if id not in there]
            return
        where = replace(choice.where, states=_DEAD)
        while True:
            page = await self._store.find(where, before=before, limit=PAGE)
            jobs = page.jobs
            if whole and jobs:
                # Whoever came back to life between the two calls is none of ours.
                found = await self._store.get([job.id for job in jobs])
                jobs = [job for job in found if job is not None and job.state is JobState.DEAD]
            if choice.group is not None:
                jobs = [job for job in jobs if fingerprint.of_job(job).id == choice.group]
            yield jobs, []
            if page.next is None:
                return
            before = page.next

    async def _expected(self, choice: Choice) -> int:
        """How many jobs will be met, where that is known without counting; 0: unknown."""
        if choice.ids:
            return len(choice.ids)
        where = choice.where
        if choice.group is not None or replace(where, states=frozenset(), queue=None) != Filter():
            return 0
        return sum(queue.dead for queue in (await self._store.stats()).queues if where.queue in {None, queue.queue})

    async def _late(self, jobs: Sequence[Job]) -> dict[JobId, None]:
        """Those whose time to start, or to end, is over by the store's clock."""
        limits = {job.id: ends for job in jobs if (ends := self._ends(job))}
        if not limits:
            return {}
        now = await self._store.now()
        return {id: None for id, ends in limits.items() if min(ends) <= now}

    def _ends(self, job: Job) -> list[datetime]:
        usual = self._options_of(job.task)
        try:
            own = decode_options(job.options)
        except BadArguments:
            return []  # its worker will say so
        ends = (
            moment_of(own.expires, usual.expires if usual else None, job.enqueued_at),
            moment_of(own.deadline, usual.deadline if usual else None, job.enqueued_at),
        )
        return [end for end in ends if end is not None]

    async def _ready(self, ids: list[JobId], answer: Replayed, pacer: Pacer, meter: _Meter) -> None:
        for start in range(0, len(ids), pacer.portion):
            some = ids[start : start + pacer.portion]
            await pacer.pace(len(some))
            moved = await self._store.retry(some)
            answer.replayed.extend(id for id in some if id in moved)
            answer.refused.extend(id for id in some if id not in moved)
            meter.add(len(some))

    async def _watch(self, ids: Sequence[JobId], canary: Canary, meter: _Meter) -> Trial:
        """Until all of them have ended, or too many died, or patience is over."""
        give_up = self._clock() + canary.patience.total_seconds()
        pause = _FIRST_LOOK
        while True:
            trial = count(await self._store.get(ids))
            meter.say(f"canary: {trial.done} done, {trial.dead} dead, {trial.waiting} under way")
            if not trial.waiting or too_many(trial, canary) or self._clock() >= give_up:
                meter.say("")
                return trial
            await self._sleep(pause)
            pause = min(pause * 1.5, _LONGEST_LOOK)


class _Meter:
    """Progress, where somebody wants it."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._what = ""

    def add(self, count: int) -> None:
        self._done += count
        self._show()

    def say(self, what: str) -> None:
        self._what = what
        self._show()

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done) if self._total else 0, self._what)


def _joined(group: Group | None, job: Job, found: fingerprint.Fingerprint) -> Group:
    died = job.finished_at or job.enqueued_at
    if group is None:
        return Group(
            fingerprint=found.id,
            title=found.title,
            count=1,
            tasks=(job.task,),
            queues=(job.queue,),
            first_seen=died,
            last_seen=died,
            sample=job.id,
        )
    return replace(
        group,
        count=group.count + 1,
        tasks=group.tasks if job.task in group.tasks else tuple(sorted({*group.tasks, job.task})),
        queues=group.queues if job.queue in group.queues else tuple(sorted({*group.queues, job.queue})),
        first_seen=min(group.first_seen, died),
        last_seen=max(group.last_seen, died),
    )
