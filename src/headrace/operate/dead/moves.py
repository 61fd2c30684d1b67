"""Replay and discard dead letters. Each call leaves an entry in the audit log, also one that is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from time import monotonic

import msgspec
from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.job import Job, JobId
from headrace.model.rate import Pacer
from headrace.model.records import Progress
from headrace.operate.audit import Ledger, chosen
from headrace.operate.dead import dropped
from headrace.operate.dead.letters import PAGE, Choice, DeadLetters, ProgressCount
from headrace.operate.shown import TaskSource, unknown
from headrace.policy.canary import Canary, Trial, count, too_many, verdict
from headrace.policy.effective import effective, usual
from headrace.store.contract import Store

_FIRST_LOOK, _LONGEST_LOOK = 0.05, 1.0


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to replay."""

    replayed: list[JobId] = msgspec.field(default_factory=list[JobId])
    """The jobs that are ready again."""
    refused: list[JobId] = msgspec.field(default_factory=list[JobId])
    """Not dead, or not there."""
    late: list[JobId] = msgspec.field(default_factory=list[JobId])
    """Left dead because their `expires` or `deadline` has passed: they could not start."""
    trial: Trial | None = None
    """How the canaries ended. None: there were none."""
    stopped: str | None = None
    """Why the rest was left dead; None: nothing was."""


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to discard."""

    records: list[dropped.DroppedLetter] = msgspec.field(default_factory=list[dropped.DroppedLetter])
    """What the log `headrace.audit` has about each deleted job."""
    refused: list[JobId] = msgspec.field(default_factory=list[JobId])
    """Not dead, or not there."""


class DeadLetterOperations(DeadLetters):
    """The dead letters of one store, as an operator moves them."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        task_of: TaskSource = unknown,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`sleep` and `clock` are for tests."""
        super().__init__(store, task_of)
        self._ledger = ledger
        self._sleep = sleep
        self._clock = clock

    async def replay(
        self,
        choice: Choice,
        *,
        rate: float | None = None,
        canary: Canary | None = None,
        progress: Progress | None = None,
        into: Replayed | None = None,
        what: str = "",
    ) -> Replayed:
        """Make dead jobs ready again, failures counted from 0: at most `rate` a second, with `canary` a few first.

        Jobs that are too late to start stay dead: a worker would only cancel them, and they would no longer be dead letters.
        The lists of `into` are filled on the way, for a caller that may be interrupted. `what`: how the jobs were chosen, if
        not by `choice`.
        """
        answer = into or Replayed()
        try:
            return await self._replay(choice, rate, canary, progress, answer)
        finally:
            await self._ledger.note("dead.replay", what or _chosen(choice), len(answer.replayed))

    async def discard(
        self,
        choice: Choice,
        *,
        reason: str,
        progress: Progress | None = None,
        into: Discarded | None = None,
        what: str = "",
    ) -> Discarded:
        """Delete dead jobs for good. The record of each is in the log before the job is gone. `into`, `what`: as in `replay`."""
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError("a discard needs a reason: it is all that will say why these jobs are gone")
        answer = into or Discarded()
        try:
            return await self._discard(choice, reason.strip(), progress, answer)
        finally:
            await self._ledger.note("dead.discard", f"{what or _chosen(choice)}: {reason}", len(answer.records))

    async def _replay(
        self, choice: Choice, rate: float | None, canary: Canary | None, progress: Progress | None, answer: Replayed
    ) -> Replayed:
        pacer = Pacer(rate, most=PAGE, sleep=self._sleep, clock=self._clock)
        meter = ProgressCount(progress, await self._expected(choice))
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

    async def _discard(self, choice: Choice, reason: str, progress: Progress | None, answer: Discarded) -> Discarded:
        meter = ProgressCount(progress, await self._expected(choice))
        async for dead, others in self._pages(choice, whole=True):
            answer.refused.extend(others)
            records = [dropped.record_of(job, reason, self._ledger.actor, self._arguments(job)) for job in dead]
            gone = await dropped.drop(self._store, "dead.discard", records)
            answer.records.extend(record for record in records if record.id in gone)
            answer.refused.extend(record.id for record in records if record.id not in gone)
            meter.add(len(dead))
        return answer

    async def _late(self, jobs: Sequence[Job]) -> dict[JobId, None]:
        """The jobs whose time to start, or to end, is over by the store's clock."""
        limits = {job.id: ends for job in jobs if (ends := self._ends(job))}
        if not limits:
            return {}
        now = await self._store.now()
        return {id: None for id, ends in limits.items() if min(ends) <= now}

    def _ends(self, job: Job) -> list[datetime]:
        task = self._task_of(job.task)
        own = effective(job, usual(None if task is None else task.options))
        return [end for end in (own.expires_at(job), own.deadline_at(job)) if end is not None]

    async def _ready(self, ids: list[JobId], answer: Replayed, pacer: Pacer, meter: ProgressCount) -> None:
        for start in range(0, len(ids), pacer.portion):
            some = ids[start : start + pacer.portion]
            await pacer.pace(len(some))
            moved = await self._store.retry(some)
            answer.replayed.extend(id for id in some if id in moved)
            answer.refused.extend(id for id in some if id not in moved)
            meter.add(len(some))

    async def _watch(self, ids: Sequence[JobId], canary: Canary, meter: ProgressCount) -> Trial:
        """Wait until all of them have ended, too many died, or the patience of the canary is over."""
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


def _chosen(choice: Choice) -> str:
    return chosen(choice.ids, choice.where, group=choice.group)
