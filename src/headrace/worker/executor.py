"""EXECUTE: leases → attempts in slots → outcomes. One sweep checks deadlines and jobs that wait too long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from typing import Final

from headrace.model.lease import Lease
from headrace.model.outcome import Outcome, Released
from headrace.model.step import UNDO
from headrace.policy.effective import DEFAULTS
from headrace.task.tracing import TraceScope
from headrace.webhooks.deliver import TASK
from headrace.worker import outcome_of
from headrace.worker.attempt import LOST, RELEASE, STOP, TIMEOUT, Attempt, ResolvedTask, Slots
from headrace.worker.attempt_meter import tell_successes
from headrace.worker.claim_scope import ClaimScope, KindRoom
from headrace.worker.completer import Completer
from headrace.worker.inputs import InputReader, InputSlots, has_inputs
from headrace.worker.processes import Isolation, ProcessSlots
from headrace.worker.service import Service, log
from headrace.worker.settler import Settler
from headrace.worker.slots import LoopSlots
from headrace.worker.state import HeldLease, WorkerState
from headrace.worker.tally import MEASURED_WHOLE, are_of_one_queue, sample
from headrace.worker.threads import ThreadSlots

SWEEP = 0.05
"""Seconds between two checks of the deadlines. A timeout is exact to this much."""
MAX_WAIT = 1.0
"""Seconds a claimed job may wait for a slot before it is handed back."""
SWALLOWED = 1.0
"""Seconds after which a cancelled async task that goes on is reported."""
SUSPECTS, IDLE = 2, 30.0
"""Processes for suspects, started on demand, and the seconds after which an idle one ends."""
SUSPECT_WAIT = 2.0
"""Seconds that a suspect waits for such a process. After that it runs in an ordinary slot, beside other jobs."""


class UnresolvedTask(ResolvedTask):
    """Stands for a task that this app does not declare."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.executor = "async"
        self.codec = None
        self.usual = DEFAULTS
        self.timeout = inf
        self.timed = False
        self.limits = ()
        self.in_span = self
        self.has_webhook = True  # Its jobs end rarely, and a webhook may want each end.


_NO_TASK = UnresolvedTask("")
_EACH: Final = b"each"
"""Stands for no options: jobs without options each have a trace of their own."""


class Executor(Service):
    """Sorts attempts into slots and watches them."""

    name = "executor"

    def __init__(self, state: WorkerState, settler: Settler, completer: Completer, *, low: Callable[[], None]) -> None:
        super().__init__()
        self._state = state
        self._settler = settler
        self._completer = completer
        self._said_unknown: dict[str, float] = {}
        size = state.settings.concurrency
        # A process takes tens of megabytes, and more processes than cores do not run at the same time.
        processes = min(size, max(2, 2 * (os.cpu_count() or 1)))
        # Fewer threads than slots, because each thread of a web framework's task holds a connection of its database.
        threads = min(size, state.settings.threads)
        self.scope = ClaimScope(state)
        self.size = self.scope.size(size, {"thread": threads, "process": processes})
        """Slots for which jobs are claimed."""
        self.loop = LoopSlots(state, size, done=settler.done, end=self.end, low=low)
        self.threads = ThreadSlots(state, threads, done=settler.done, end=self.end, low=low)
        self.processes = ProcessSlots(state, processes, end=self.end, low=low)
        self.suspects = ProcessSlots(state, SUSPECTS, end=self.end, low=low, isolates=Isolation(self._unfit, IDLE))
        """Extra slots for suspects. Jobs are not claimed for them."""
        self.inputs = InputSlots(InputReader(state.store, state.hooks.large_results, state.name), self.end)
        """Attempts whose arguments are results of other jobs, which are read first."""
        self._kinds: tuple[Slots, ...] = (self.loop, self.threads, self.processes, self.suspects, self.inputs)
        self._by_name: dict[str, Slots] = {"async": self.loop, "thread": self.threads, "process": self.processes}
        self._unfit_tasks: set[str] = set()
        """Tasks that need the worker's own process, as an earlier try showed."""
        self._max_wait = min(MAX_WAIT, state.settings.lease.total_seconds() / 3)
        self.handed_back = 0

    @property
    def children(self) -> list[int]:
        """The ids of the child processes."""
        return self.processes.pids + self.suspects.pids

    @property
    def waiting(self) -> int:
        return self.loop.waiting + self.threads.waiting + self.processes.waiting + self.inputs.waiting

    @property
    def running(self) -> int:
        return self.loop.running + self.threads.running + self.processes.running

    def claimable(self, limit: int, ahead: int) -> int:
        """How many jobs to claim, if so many slots are free and so many jobs may wait in line."""
        return self.scope.narrow(limit, ahead, self._few())

    def _few(self) -> dict[str, KindRoom]:
        """The kinds of which there are fewer slots than the worker has. The others are never full before the worker is."""
        threads, processes = self.threads, self.processes
        rooms = {
            "thread": KindRoom(threads.size, threads.running, threads.waiting),
            "process": KindRoom(processes.size, processes.running, processes.waiting),
        }
        return {kind: room for kind, room in rooms.items() if room.size < self.size}

    @property
    def full_kinds(self) -> tuple[str, ...]:
        """Kinds of slots that are all taken while the worker has others."""
        names = {"thread": "threads", "process": "processes"}
        return tuple(names[kind] for kind, room in self._few().items() if room.running >= room.size)

    @property
    def unfinished(self) -> int:
        """Attempts that have not ended and are not written off."""
        given_up = sum(attempt.given_up for slots in self._kinds for attempt in slots.under_way())
        beside = self.loop.stuck + self.suspects.running + self.suspects.waiting
        return self.running + self.waiting + beside - given_up

    # ── in ──────────────────────────────────────────────────────────────────
    def isolates(self, name: str) -> bool:
        """Whether a suspect of this task can run beside other jobs, in a process of its own."""
        known = self._state.known(name)
        if known is None or not self._state.settings.app or name in {TASK, UNDO} or name in self._unfit_tasks:
            return False
        # A task in a process slot is isolated anyway. A task with limits may close them, which a child process cannot
        # do.
        return known.executor == "process" or not known.limits

    def _unfit(self, attempt: Attempt) -> None:
        """Move a suspect that cannot run in a process of its own to an ordinary slot, beside other jobs."""
        log.info("suspect %s of task %s needs the worker's own process", attempt.job.id, attempt.job.task)
        self._unfit_tasks.add(attempt.job.task)
        self._join(attempt)

    def _join(self, attempt: Attempt) -> None:
        self._state.excuse(attempt.held, attempt.job)
        self._by_name[attempt.known.executor].put([attempt])

    def deliver(self, held: HeldLease, lease: Lease, *, alone: bool = False, patient: bool = False) -> None:
        """Add a lease's attempts to the line. `alone`: a suspect in an ordinary slot; `patient`: not beside others."""
        lines: dict[str, list[Attempt]] = {"async": [], "thread": [], "process": []}
        attempts = held.attempts
        known = self._state.known
        paused = self._state.paused_now()
        unknown: list[Attempt] = []
        put_off: list[Attempt] = []
        incomplete: list[Attempt] = []
        name: str | None = None
        task: ResolvedTask = _NO_TASK
        line = unknown
        tracer = self._state.hooks.tracer
        options = None if tracer is None else _EACH
        scope: TraceScope | None = None
        in_span = may_wait = False
        tasks = 0
        for position, job in enumerate(lease.jobs):
            if job.task is not name and job.task != name:
                # Neighbours mostly have the same task. Some stores read its name for each job, as another object.
                name = job.task
                tasks += 1
                if (resolved := known(name)) is None:
                    task, line = UnresolvedTask(name), unknown
                else:
                    task, line = resolved, put_off if name in paused else lines[resolved.executor]
                held.limited = held.limited or bool(task.limits)
            if job.options is not options:
                # Jobs that one call has enqueued share their options, and so their trace.
                options, may_wait = job.options, has_inputs(job)
                if tracer is not None:
                    scope, options = tracer.scope(options), options or _EACH
                    in_span = scope.has_span
            attempt = Attempt(held, position, job, task.in_span if in_span else task, scope)
            if may_wait and line is not unknown and line is not put_off:
                incomplete.append(attempt)
            else:
                line.append(attempt)
            attempts.append(attempt)
        held.jobs = [(job.batch, job.ord, job.attempt) for job in lease.jobs]
        held.open = len(attempts)
        if len(attempts) > MEASURED_WHOLE:
            one_kind = tasks == 1 and (len(self._state.queues) == 1 or are_of_one_queue(lease.jobs))
            held.kinds, held.weights = sample(lease.jobs, one_kind=one_kind)
        self.scope.saw(lines)
        for attempt in unknown:
            self._park(attempt)
        for attempt in put_off:
            pause = paused[attempt.job.task]
            self.end(attempt, outcome_of.too_late(attempt) or outcome_of.paused(pause, self._state.watch.now()))
        if incomplete:
            self.inputs.read(incomplete, partial(self._complete, held, alone=alone, patient=patient))
        self._sort(held, lines, alone=alone, patient=patient)

    def _complete(self, held: HeldLease, attempts: list[Attempt], *, alone: bool, patient: bool) -> None:
        """These attempts have all their arguments."""
        lines: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            lines.setdefault(attempt.known.executor, []).append(attempt)
        self._sort(held, lines, alone=alone, patient=patient)

    def _sort(self, held: HeldLease, lines: dict[str, list[Attempt]], *, alone: bool, patient: bool) -> None:
        for name, line in lines.items():
            if line and held.suspect and not alone and name != "process":
                line[0].patient = patient
                self.suspects.put(line)
            elif line:
                if held.suspect and not alone:
                    self._state.excuse(held, line[0].job)
                self._by_name[name].put(line)
        self.bell.ring()

    def _park(self, attempt: Attempt) -> None:
        name = attempt.job.task
        now = monotonic()
        if now >= self._said_unknown.get(name, 0.0):
            self._said_unknown[name] = now + 60
            log.warning("no worker here knows task %s: the worker puts its jobs off by a minute each time", name)
        self.end(attempt, outcome_of.too_late(attempt) or outcome_of.unknown_task(name))

    # ── out ─────────────────────────────────────────────────────────────────
    def end(self, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt is over."""
        if attempt.given_up:
            return
        if attempt.known.limits or self._state.attentive:
            self._state.feedback.saw(attempt.observed, outcome)
        if attempt.completed and not attempt.held.lost:
            self._completer.end(attempt, outcome)
        else:
            self._settler.take(attempt, outcome)

    def hand_back(self, before: float = inf) -> int:
        """Hand back jobs claimed before that time that have not started. Suspects only when nothing may wait."""
        count = 0
        for slots in self._kinds if before == inf else self._by_name.values():
            for attempt in slots.take_back(before):
                count += 1
                self.end(attempt, Released())
        self.handed_back += count
        return count

    # ── interruptions ───────────────────────────────────────────────────────
    def stop_job(self, held: HeldLease, position: int) -> None:
        """Interrupt a job that was cancelled."""
        attempt = held.attempts[position] if position < len(held.attempts) else None
        if attempt is not None:
            self._interrupt(attempt, STOP)

    def lose(self, held: HeldLease) -> None:
        """Another worker holds the lease: drop its jobs and its outcomes."""
        if held.lost:
            return
        held.lost = True
        if held.ended and self._state.hooks.meter is not None:
            tell_successes(self._state.hooks.meter, held, held.ended, held.measured, plain=not held.others)
        held.ended = []
        for attempt in held.attempts:
            if attempt is not None:
                self._interrupt(attempt, LOST)
        self._state.drop(held)

    def release_running(self) -> None:
        """Interrupt running jobs and hand them back, because the time to drain is over."""
        for slots in self._kinds:
            for attempt in slots.under_way():
                self._interrupt(attempt, RELEASE)
        self._give_up(self.threads)

    def give_up(self) -> None:
        """Hand back jobs that still run when the grace period is over."""
        for slots in self._kinds:
            self._give_up(slots)

    def _give_up(self, slots: Slots) -> None:
        for attempt in slots.under_way():
            if attempt.given_up:
                continue
            log.warning(
                "job %s of task %s still runs and cannot be stopped: the worker hands it back nevertheless",
                attempt.job.id,
                attempt.job.task,
            )
            self.end(attempt, Released())
            attempt.given_up = True

    def _interrupt(self, attempt: Attempt, reason: str) -> None:
        if attempt.reason:
            return
        attempt.reason = reason
        attempt.warned_at = monotonic() + SWALLOWED
        if attempt.slots is not None:
            attempt.slots.interrupt(attempt)

    # ── the sweep ───────────────────────────────────────────────────────────
    async def run(self) -> None:
        while True:
            if not (self.waiting or self.unfinished):
                self._publish(inf)
                await self.bell.wait()
            await asyncio.sleep(SWEEP)
            self._sweep()

    def _sweep(self) -> None:
        now = monotonic()
        earliest = inf
        for slots in self._kinds:
            for attempt in slots.under_way():
                if attempt.reason:
                    if now >= attempt.warned_at:
                        self._remind(attempt, now)
                elif attempt.deadline <= now:
                    self._interrupt(attempt, TIMEOUT)
                earliest = min(earliest, attempt.deadline)
        self._publish(earliest)
        if self.waiting:
            self.hand_back(now - self._max_wait)
        if self.suspects.waiting:
            for attempt in self.suspects.overdue(now - SUSPECT_WAIT):
                self._join(attempt)

    def _remind(self, attempt: Attempt, now: float) -> None:
        """The attempt was interrupted and goes on."""
        again = attempt.reminded
        attempt.warned_at, attempt.reminded = now + 10 * SWALLOWED, True
        log.warning(
            "job %s of task %s was told to end (%s) and goes on: does it swallow CancelledError, or not look at "
            "current_job().cancelled?",
            attempt.job.id,
            attempt.job.task,
            attempt.reason,
            extra={"event": "attempt.stuck", "job_id": str(attempt.job.id), "task": attempt.job.task},
        )
        if attempt.slots is self.loop:
            self.loop.interrupt(attempt)
            if again and self.loop.write_off(attempt):
                log.warning(
                    "job %s of task %s keeps its lease until its code ends; another slot takes its place",
                    attempt.job.id,
                    attempt.job.task,
                )

    def _publish(self, earliest: float) -> None:
        page = self._state.page
        if page is not None and page.deadline != earliest:
            page.write_deadline(earliest)

    async def close(self) -> None:
        for slots in self._kinds:
            await slots.close()
