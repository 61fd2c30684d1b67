"""EXPLAIN: why a job does not run and, where that can be known, when it will. It only reads the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import msgspec

from headrace.model.gate import Gate, GateId, Links
from headrace.model.job import Job, JobId, JobState
from headrace.model.lane import Ahead, LaneView
from headrace.model.lease import Presence
from headrace.model.outcome import ASLEEP, EXPIRED, PARKED, PAUSED
from headrace.model.step import UNDO
from headrace.policy.effective import DEFAULTS, effective, usual
from headrace.policy.explain import reasons, upstream
from headrace.policy.explain.answer import Explanation, Reason
from headrace.policy.explain.help import helpful
from headrace.policy.explain.reasons import Around, LimitRuleFields, PauseFields
from headrace.policy.explain.sentences import Times, clock, count, jobs, line

if TYPE_CHECKING:
    from headrace.policy.queue import QueueOptions
    from headrace.task.task_options import TaskOptions

_OF_CHILD = {f"headrace.errors.{name}" for name in ("JobDead", "RemoteTaskError", "JobCancelled")}
"""The notes of jobs that are dead because of a job that they awaited."""

# ── looking ──────────────────────────────────────────────────────────────────


class Looking(Protocol):
    """The part of a store that an explanation reads."""

    async def now(self) -> datetime: ...
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]: ...
    async def workers(self) -> list[Presence]: ...

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None: ...

    async def pauses(self) -> Sequence[PauseFields]: ...

    async def limits(self) -> Mapping[str, LimitRuleFields]: ...

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]: ...

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]: ...

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links: ...


async def look(
    store: Looking,
    id: JobId,
    options_of: Callable[[str], TaskOptions | None],
    queue_of: Callable[[str], QueueOptions | None] = lambda _: None,
) -> tuple[Job, Explanation] | None:
    """Read what the store has about a job, and explain it. None: there is no such job."""
    ahead = await store.ahead(id)
    (job,) = await store.get([id])
    if job is None:
        return None
    if ahead is None and job.state in {JobState.READY, JobState.SCHEDULED}:
        ahead = await store.ahead(id)  # It became ready between the two reads.
    workers = [] if job.state.finished else await store.workers()
    around = await _around(store, job, ahead, queue_of(job.queue))
    return job, explain(job, ahead, workers, options_of(job.task), await store.now(), around)


async def _around(store: Looking, job: Job, ahead: Ahead | None, queue: QueueOptions | None) -> Around:
    if job.state is JobState.BLOCKED:
        waits, held = await upstream.views(store, job), await upstream.held_by(store, job)
        return Around(waits=tuple(waits), held=held, queue=queue)
    if job.state not in {JobState.READY, JobState.SCHEDULED}:
        return Around(queue=queue)
    pause = next((pause for pause in await store.pauses() if (pause.kind, pause.name) == ("task", job.task)), None)
    tenants: set[str] = set()
    if job.state is JobState.READY:
        lanes = await store.lanes([job.queue])
        tenants = {lane.tenant for lane in lanes if lane.priority == job.priority}
    rules: Mapping[str, LimitRuleFields] = await store.limits() if ahead is not None and ahead.blocked else {}
    return Around(pause=pause, rules=rules, tenants=len(tenants), queue=queue)


# ── explaining ───────────────────────────────────────────────────────────────

NOTHING_AROUND = Around()


def explain(
    job: Job,
    ahead: Ahead | None,
    workers: Sequence[Presence],
    options: TaskOptions | None,
    now: datetime,
    around: Around = NOTHING_AROUND,
) -> Explanation:
    """The reason, by what was read at one moment. `options`: the task's; None: its app is not available."""
    case = _Case(job, ahead or Ahead(limit=0), workers, options, now, around)
    return case.with_help(case.explanation())


class _Case:
    """One job's case."""

    def __init__(
        self,
        job: Job,
        ahead: Ahead,
        workers: Sequence[Presence],
        options: TaskOptions | None,
        now: datetime,
        around: Around,
    ) -> None:
        self._job = job
        self._ahead = ahead
        self._around = around
        self._options = options
        self._now = now
        self._times = Times(now)
        self._own = effective(job, usual(options))
        self._workers = workers
        self._serving = [worker for worker in workers if job.queue in worker.queues]
        # A worker that lists no tasks may know any task, and every worker knows this one of headrace's own.
        own = job.task == UNDO
        self._knowing = [worker for worker in self._serving if own or not worker.tasks or job.task in worker.tasks]
        self._expires = self._own.expires_at(job)
        self._deadline = self._own.deadline_at(job)

    def explanation(self) -> Explanation:
        """The reason, its sentence and its facts."""
        if self._job.state.finished:
            return self.finished()
        if self._job.state is JobState.RUNNING:
            return self.running()
        if (late := self.too_late()) is not None:
            return late
        if self._job.state is JobState.BLOCKED:
            return self.blocked()
        return self.scheduled() if self._job.state is JobState.SCHEDULED else self.ready()

    def with_help(self, why: Explanation) -> Explanation:
        """The same, with what an operator can do about it."""
        ends = min((at for at in (self._expires, self._deadline) if at is not None), default=None)
        actions = helpful(self._job, why, self._ahead, self._around, self._now, ends)
        return msgspec.structs.replace(why, help=actions)

    # ── it is over, or under way ────────────────────────────────────────────
    def finished(self) -> Explanation:
        job = self._job
        at = job.finished_at or self._now
        details: dict[str, Any] = {"at": at, "note": job.note, "attempt": job.attempt, "failures": job.failures}
        if job.worker is not None:
            details |= {"worker": job.worker, "worker_name": job.worker_name, "claimed_at": job.claimed_at}
        if job.state is JobState.DONE:
            on = f" by {line(job.worker_name)}" if job.worker_name else ""
            sentence = f"done: it ended well {self._times.past(at)}, on attempt {job.attempt}{on}"
            return Explanation(Reason.DONE, sentence, None, details)
        if job.state is JobState.CANCELLED:
            why = "" if job.note is None else f": {line(job.note)}"
            if job.note == EXPIRED:
                again = job.attempt > 1  # It was claimed before, and was put off, failed or replayed.
                late = (
                    "it expired before its next attempt could start"
                    if again
                    else "it had not started before it expired"
                )
                why = f": {late}{_bracketed(self._expires)}"
            details["expires"] = self._expires
            return Explanation(Reason.CANCELLED, f"cancelled {self._times.past(at)}{why}", None, details)
        details |= self._last_failure()
        return Explanation(Reason.DEAD, self._dead(at), None, details)

    def _dead(self, at: datetime) -> str:
        job = self._job
        last = f"; the last: {_failure(job)}" if job.history else ""
        met = [
            count(number, one, many)
            for number, one, many in ((job.failures, "failure", "failures"), (job.crashes, "crash", "crashes"))
            if number
        ]
        what = f"dead {self._times.past(at)}" + (f" after {' and '.join(met)}" if met else "")
        if job.note == "deadline":
            return f"{what}: its deadline{_bracketed(self._deadline)} left no time for another attempt{last}"
        why = f" ({line(job.note)})" if job.note else ""
        for name, end in (("expires", self._expires), ("deadline", self._deadline)):
            if end is not None and end <= self._now:
                return f"{what}{why}{last}; its {name}{_bracketed(end)} has passed: to run it again, enqueue it anew"
        how = "run that job again, and then this one" if job.note in _OF_CHILD else "to run it again"
        return f"{what}{why}{last}; {how}: headrace jobs retry {job.id}"

    def running(self) -> Explanation:
        job = self._job
        since = job.claimed_at or self._now
        holder = next((worker for worker in self._workers if worker.id == job.worker), None)
        known = holder.name if holder else job.worker_name
        name = known or str(job.worker)
        details: dict[str, Any] = {
            "worker": job.worker, "worker_name": known, "since": since,
            "attempt": job.attempt, "deadline": self._deadline,
        }  # fmt: skip
        where = f"on {line(name)} since {clock(since)} ({self._times.passed(since)}), attempt {job.attempt}"
        if holder is None:
            where += "; that worker was not heard of for a minute: when its lease runs out the job goes on elsewhere"
        if job.cancelling:
            sentence = (
                f"asked to stop, and still running {where}; a task in a thread must look at current_job().cancelled"
            )
            return Explanation(Reason.CANCELLING, sentence, None, details)
        return Explanation(Reason.RUNNING, f"running {where}", None, details)

    def too_late(self) -> Explanation | None:
        """It waits, and will never start."""
        for name, at in (("expires", self._expires), ("deadline", self._deadline)):
            if at is not None and at <= self._now:
                ended = "cancelled" if name == "expires" else "dead"
                sentence = (
                    f"too late: {'it expired' if name == 'expires' else 'its deadline passed'} {self._times.past(at)}; "
                    f"it will not start, and is {ended} "
                )
                if self._job.state is JobState.BLOCKED:
                    blocked = self.blocked()
                    sentence += f"when it is released; {blocked.sentence}"
                    return Explanation(Reason.EXPIRED, sentence, None, {name: at} | blocked.details)
                sentence += "as soon as a worker meets it"
                return Explanation(Reason.EXPIRED, sentence, None, {name: at} | self._place())
        return None

    # ── it waits for other jobs ─────────────────────────────────────────────
    def blocked(self) -> Explanation:
        waits, held = self._around.waits, self._around.held
        sentence = upstream.sentence(self._job, waits, held, self._times)
        until = self._job.run_at
        if until is not None:
            sentence += f"; it gives up {self._times.at(until)}"
        details = upstream.facts(waits, held) | {"gives_up": until} | self._place()
        return Explanation(Reason.BLOCKED, sentence + self._limits(self._now), None, details)

    # ── it waits for a time ─────────────────────────────────────────────────
    def scheduled(self) -> Explanation:
        job = self._job
        until = job.run_at or self._now
        details: dict[str, Any] = {"run_at": until, "note": job.note} | self._place()
        if until <= self._now and not self._workers:
            sentence = f"due since {clock(until)}, but there is no live worker: {self._start_one()}"
            return Explanation(Reason.NO_WORKER, sentence, None, details)
        when = self._times.at(until)
        retry = f"to run it now: headrace jobs retry {job.id}"
        if (job.note or "").startswith(PARKED):
            return Explanation(Reason.PARKED, self._parked(when) + self._provisos(until), until, details)
        if (job.note or "").startswith(PAUSED):
            paused = reasons.task_paused(job, self._around, self._times) or f"task {job.task} was paused"
            return Explanation(Reason.PAUSED, f"{paused}; looked at again {when}" + self._limits(until), None, details)
        if (job.note or "").startswith(ASLEEP):
            sentence = f"{ASLEEP} {when} and holds no slot; see its steps: headrace jobs show {job.id}"
            return Explanation(Reason.ASLEEP, sentence + self._provisos(until), until, details)
        if job.failures:
            details |= {"attempt": job.failures + 1, "max_attempts": self._max_attempts()} | self._last_failure()
            last = f"; the last failed: {_failure(job)}" if job.history else ""
            sentence = f"waiting for a retry: {self._which()} begins {when}{last}; {retry}"
            return Explanation(Reason.RETRYING, sentence + self._provisos(until), until, details)
        why = f" ({line(job.note)})" if job.note else ""
        return Explanation(
            Reason.SCHEDULED, f"scheduled for {when}{why}; {retry}" + self._provisos(until), until, details
        )

    def _parked(self, when: str) -> str:
        job = self._job
        sentence = f"parked until {when}: the worker that had it does not know task {job.task}"
        if self._knowing:
            names = ", ".join(line(worker.name) for worker in self._knowing[:3])
            return f"{sentence}; {names} of the same queue may: deploy all workers of queue {job.queue} alike"
        return f"{sentence}, and none of queue {job.queue} does: deploy a worker whose app declares it"

    def _which(self) -> str:
        most = self._max_attempts()
        return f"attempt {self._job.failures + 1}{f' of {most}' if most else ''}"

    def _limits(self, until: datetime) -> str:
        """The limit that ends the job if it has not started by then."""
        text = ""
        for name, at in (("it expires", self._expires), ("its deadline is", self._deadline)):
            if at is not None:
                text += f"; {name} {self._times.at(at)}" + (", before it is due" if at <= until else "")
        return text

    def _provisos(self, until: datetime) -> str:
        """What else prevents its start at that time."""
        text = self._limits(until)
        if paused := reasons.paused(self._job, self._ahead, self._around, self._times):
            return f"{text}; and {paused}"
        hours = None if self._around.queue is None else self._around.queue.open
        if hours is not None and not hours.is_open(max(until, self._now)):
            return f"{text}; and queue {self._job.queue} is closed then: it is open {hours}"
        if not self._serving:
            return f"{text}; and no live worker serves queue {self._job.queue}: {self._start_one()}"
        return text

    # ── it waits for its turn ───────────────────────────────────────────────
    def ready(self) -> Explanation:
        reason, sentence = self._why_not()
        until = None
        if reason is Reason.LIMITED and not self._ahead.lane:
            # Earlier jobs of its lane may use the units first.
            until = reasons.opens_at(self._ahead.blocked)
        if reason is Reason.PAUSED:
            until = reasons.paused_until(self._ahead, self._around)
        if reason is Reason.CLOSED and (queue := self._around.queue) is not None and queue.open is not None:
            until = queue.open.next_change(self._now)
        if self._ahead.suspect and reason in {Reason.BEHIND, Reason.BUSY, Reason.NEXT}:
            alone = "it was running when a worker died, so it is claimed alone"
            suspect = (Reason.SUSPECT, f"next in its lane, as a suspect: {alone}")
            reason, sentence = (reason, f"{sentence}; then {alone}") if reason is Reason.BEHIND else suspect
        return Explanation(reason, sentence + self._limits(self._now), until, self._place())

    def _why_not(self) -> tuple[Reason, str]:
        job, ahead = self._job, self._ahead
        if paused := reasons.paused(job, ahead, self._around, self._times):
            return Reason.PAUSED, paused
        closed = reasons.closed(job, self._around, self._times) or reasons.closed_by_workers(job, self._serving)
        if closed:
            return Reason.CLOSED, closed
        if not self._serving:
            others = sorted({queue for worker in self._workers for queue in worker.queues})
            served = f" ({count(len(self._workers), 'worker')} for {', '.join(others)})" if others else ""
            return Reason.NO_WORKER, f"no live worker serves queue {job.queue}{served}: {self._start_one()}"
        if not self._knowing:
            unknown = f"no live worker of queue {job.queue} knows task {job.task}: deploy one whose app declares it"
            return Reason.UNKNOWN_TASK, f"{unknown}; what each knows: headrace workers --json"
        if ahead.blocked:
            limits = reasons.blocked(job, ahead.blocked, self._around.rules, self._times)
            before = f"; then behind {jobs(ahead.lane, ahead.limit)} of its own lane" if ahead.lane else ""
            return Reason.LIMITED, f"{limits}{before}"
        turns = reasons.turns(job, self._around)
        number = len(self._knowing)
        workers = f"the {'worker' if number == 1 else f'{number:,} workers'} of queue {job.queue}"
        slots, taken = self._slots()
        full = f"the only slot of {workers} is busy" if slots == 1 else f"all {slots:,} slots of {workers} are busy"
        hindered = reasons.workers(self._knowing)
        if ahead.lane or ahead.higher:
            first = [
                f"{jobs(ahead.higher, ahead.limit)} of higher priority in queue {job.queue}" if ahead.higher else "",
                f"{jobs(ahead.lane, ahead.limit)} of its own lane" if ahead.lane else "",
            ]
            behind = f"behind {' and '.join(filter(None, first))}"
            state = full if taken >= slots else f"{taken:,} of {count(slots, 'slot')} of {workers} busy"
            return Reason.BEHIND, "; ".join(filter(None, (behind, state, hindered))) + turns
        if hindered:
            return Reason.HINDERED, f"next in its lane, but {hindered}"
        if taken >= slots:
            free = f"it starts when one is free{turns}; see: headrace workers"
            return Reason.BUSY, f"next in its lane, but {full}: {free}"
        return Reason.NEXT, f"next in its lane, with free slots at {workers}: it should start within a second"

    # ── facts ───────────────────────────────────────────────────────────────
    def _place(self) -> dict[str, Any]:
        ahead, (slots, taken) = self._ahead, self._slots()
        facts: dict[str, Any] = {
            "ahead_in_lane": ahead.lane, "ahead_of_higher_priority": ahead.higher, "counted_up_to": ahead.limit,
            "suspect": ahead.suspect, "paused_by": ahead.paused_by, "paused_since": ahead.paused_since,
            "workers": len(self._serving), "workers_that_know_the_task": len(self._knowing), "slots": slots,
            "hindered": {worker.name: worker.hindered for worker in self._knowing if worker.hindered},
            "busy": taken, "expires": self._expires, "deadline": self._deadline, "paused_until": ahead.paused_until,
            "tenant_paused_by": ahead.tenant_paused_by, "tenant_paused_since": ahead.tenant_paused_since,
            "tenant_paused_until": ahead.tenant_paused_until,
        }  # fmt: skip
        return facts | reasons.facts(ahead.blocked, self._around)

    def _slots(self) -> tuple[int, int]:
        """Slots of the workers that could run it: all, and those taken."""
        running = sum(min(worker.running, worker.slots) for worker in self._knowing)
        return sum(worker.slots for worker in self._knowing), running

    def _max_attempts(self) -> int | None:
        retry = self._own.retry
        # The default of a task that is not known here may not be the rule of the workers that know it.
        return None if self._options is None and retry is DEFAULTS.retry else retry.max_attempts

    def _last_failure(self) -> dict[str, Any]:
        if not self._job.history:
            return {}
        last = self._job.history[-1]
        return {"last_failure": {"attempt": last.attempt, "kind": last.kind, "message": last.message, "at": last.at}}

    def _start_one(self) -> str:
        return f"start one with: headrace worker APP --queues {self._job.queue}"


def _failure(job: Job) -> str:
    last = job.history[-1]
    return line(f"{last.kind}: {last.message}" if last.message else last.kind)


def _bracketed(at: datetime | None) -> str:
    return "" if at is None else f" ({clock(at)})"
