"""The operator's moves (cancel, retry, delete, pause, resume), and what is kept for others: limits and records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from msgspec.structs import replace

from headrace.model.job import FINISHED, JobId, JobState
from headrace.model.records import CancelAnswer, LimitRule, Pause, PauseKind, Record
from headrace.model.step import UNDO
from headrace.store.memory.base import Base
from headrace.store.memory.rows import JobRow


class Operating(Base):
    """See the contract."""

    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        return {id: self._cancel(self._jobs.get(id.int), reason) for id in dict.fromkeys(ids)}

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        movable = FINISHED | {JobState.SCHEDULED} if afresh else {JobState.SCHEDULED}
        moved = [job for id in ids if (job := self._jobs.get(id.int)) and job.state in movable]
        for job in moved:
            self._before_retry(job)
            if afresh:
                if job.state in {JobState.DONE, JobState.CANCELLED} or (UNDO, 0) in job.steps:
                    job.steps.clear()
                job.failures = job.crashes = 0
                job.suspect, job.note = False, None
                job.finished_at = job.result = job.result_until = job.ended_by = job.ended_from = None
            self._put(job, None)
        return frozenset(job.id for job in moved)

    async def delete(
        self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None, ended_by: datetime | None = None
    ) -> frozenset[JobId]:
        takes = frozenset(JobState if states is None else states) - {JobState.RUNNING}
        gone = {id for id in ids if (job := self._jobs.get(id.int)) and job.state in takes and _ended(job, ended_by)}
        for id in gone:
            self._delete(self._jobs[id.int])
        return frozenset(gone)

    def _before_retry(self, job: JobRow) -> None:
        """What a retry takes back."""

    def _delete(self, job: JobRow) -> None:
        del self._jobs[job.id.int]

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        before = self._pause(kind, name)
        pause = Pause(kind, name, by, self._clock.now(), until)
        self._pauses[kind, name] = replace(before, until=until) if before is not None else pause

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        self._pauses.pop((kind, name), None)
        self._ring_bells(name if kind == "queue" else None)

    async def pauses(self) -> list[Pause]:
        pauses = [self._pause(kind, name) for kind, name in sorted(self._pauses)]
        return [pause for pause in pauses if pause is not None]

    def _cancel(self, job: JobRow | None, reason: str | None) -> CancelAnswer:
        if job is None:
            return CancelAnswer.UNKNOWN
        if job.state in FINISHED:
            return CancelAnswer.FINISHED
        if job.state is JobState.RUNNING:
            job.cancelling, job.cancel_reason = True, reason
            return CancelAnswer.ASKED
        self._finish(job, JobState.CANCELLED, reason)
        return CancelAnswer.CANCELLED

    async def limits(self) -> dict[str, LimitRule]:
        return dict(sorted(self._limits.rules.items()))

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        current = self._limits.rules.get(name)
        if (current and current.version) != expect:
            return None
        self._ring_bells(None)
        if rule is None:
            self._limits.rules.pop(name, None)
            return 0
        self._last_version += 1
        self._limits.rules[name] = replace(rule, version=self._last_version)
        return self._last_version

    async def records(self, kind: str) -> dict[str, Record]:
        return {name: record for (of, name), record in sorted(self._records.items()) if of == kind}

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        current = self._records.get((kind, name))
        if (current and current.version) != expect:
            return None
        if value is None:
            self._records.pop((kind, name), None)
            return 0
        self._last_version += 1
        self._records[kind, name] = Record(self._last_version, value)
        return self._last_version


def _ended(job: JobRow, by: datetime | None) -> bool:
    """Whether a job ended by this time; None: this is not asked."""
    return by is None or (job.finished_at is not None and job.finished_at <= by)
