"""Thread slots: sync tasks in long-lived threads, which cannot be stopped."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from headrace.model.outcome import Outcome, Succeeded
from headrace.policy.effective import only_marks
from headrace.runtime import faults
from headrace.task import context
from headrace.task.tracing import TraceScope
from headrace.worker import outcome_of
from headrace.worker.attempt import Attempt
from headrace.worker.state import HeldLease, WorkerState
from headrace.worker.steps import End, end_safely, set_deadline, tell_start

STREAK = 16
"""Jobs that a thread ends one after the other before they count as brief."""
BRIEF = 25e-6
"""Seconds that each of them takes at most."""
GLANCE = 0.002
"""Seconds between two looks at a line of brief jobs."""
FEW = 8
"""If the threads take fewer jobs than this between two looks, jobs wait."""


class ThreadSlot:
    """One thread and what it runs."""

    __slots__ = ("attempt", "bell", "thread")

    def __init__(self, serve: Callable[[ThreadSlot], None]) -> None:
        self.attempt: Attempt | None = None
        self.bell = threading.Lock()
        """Released to wake the thread, which sleeps by acquiring it."""
        self.bell.acquire()
        self.thread = threading.Thread(target=serve, args=(self,), name="headrace-slot", daemon=True)


class ThreadSlots:
    """Slots for sync tasks: long-lived threads over one deque. The event loop picks their outcomes up in groups.

    A thread that has ended a job takes the next one from the line without a wake-up. A wake-up is therefore needed only
    for a thread that sleeps: `put` wakes one, and each thread that takes a job wakes the next one while jobs are left. So
    jobs that wait get all threads one after the other.

    Jobs that never wait become slower with more threads, because only one thread runs Python at a time. So after a streak
    of brief jobs no thread wakes another, nor does `put` while one is awake, and the event loop is woken only when the line
    is empty. While it is not, the event loop looks at it every few milliseconds: it picks up outcomes, and if the line
    hardly moves, jobs wait, and get all threads again.
    """

    def __init__(
        self,
        state: WorkerState,
        size: int,
        *,
        done: Callable[[HeldLease, int], bool],
        end: End,
        low: Callable[[], None],
    ) -> None:
        self._state = state
        self.size = size
        self._done = done
        self._end = end
        self._low = low
        self._loop = asyncio.get_running_loop()
        self._base = contextvars.copy_context()
        self._line: deque[Attempt] = deque()
        self._asleep: list[ThreadSlot] = []
        """The one that fell asleep last is woken first. Its memory is most likely still in the caches of a processor."""
        self._closed = False
        self._waking = False
        """A wake-up is under way. The thread that receives it sets this to False and only then looks at the line."""
        self._spreads = True
        """Each job in line gets a thread as soon as it can. Only the event loop changes it."""
        self._brief = False
        """A thread has ended a streak of brief jobs."""
        self._glance: asyncio.TimerHandle | None = None
        """The next look at the line. None: no look is needed."""
        self._added = 0
        """Attempts that were ever in line, without those that were taken back."""
        self._taken = 0
        """How many of them had left the line at the last look."""
        self._slots: list[ThreadSlot] = []
        self._open = 0
        """Attempts in line, in threads and in `_ended`. Only the event loop changes it, so it counts without a gap."""
        self._ended: deque[tuple[Attempt, Outcome | None]] = deque()
        """None: it succeeded and returned nothing."""
        self._notified = False
        self._lasted = 0.0
        """Seconds from the start of the last job until the event loop picked it up."""

    @property
    def unfinished(self) -> int:
        """Attempts in line and in threads."""
        return self._open

    def was_within(self, seconds: float) -> bool:
        """Whether the last job took at most so long, until the event loop knew."""
        return self._lasted <= seconds

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        return self._open - len(self._line)

    def put(self, attempts: list[Attempt]) -> None:
        self._open += len(attempts)
        self._added += len(attempts)
        wanted = min(self.size, self._open)
        self._line.extend(attempts)
        while len(self._slots) < wanted:
            slot = ThreadSlot(self._serve)
            self._slots.append(slot)
            slot.thread.start()
        if not self._waking and (self._spreads or len(self._asleep) == len(self._slots)):
            self._wake()
        if not self._spreads:
            self._look_later()

    def take_back(self, before: float) -> list[Attempt]:
        attempts: list[Attempt] = []
        while True:
            try:
                attempt = self._line.popleft()
            except IndexError:
                break
            if attempt.held.claimed_at > before:
                self._line.appendleft(attempt)
                # A thread may have found the line empty in between and gone to sleep.
                self._wake()
                break
            attempts.append(attempt)
        self._open -= len(attempts)
        self._added -= len(attempts)
        return attempts

    def under_way(self) -> list[Attempt]:
        return [attempt for slot in self._slots if (attempt := slot.attempt) is not None]

    def interrupt(self, attempt: Attempt) -> None:
        """A thread cannot be stopped. `job.cancelled` is True now, and the attempt ends when its code returns."""

    async def close(self) -> None:
        if self._glance is not None:
            self._glance.cancel()
        self._closed = True
        while self._asleep:
            self._wake()
        # Threads between two jobs end at once. The others end when their job returns, and `close` does not wait for
        # them.
        while any(slot.thread.is_alive() and slot.attempt is None for slot in self._slots):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.001)

    def _wake(self) -> None:
        try:
            sleeper = self._asleep.pop()
        except IndexError:
            return  # A thread looks at the line once more before it sleeps.
        self._waking = True
        sleeper.bell.release()

    def _look_later(self) -> None:
        if self._glance is None and self._line:
            self._taken = self._added - len(self._line)
            self._glance = self._loop.call_later(GLANCE, self._look)

    def _look(self) -> None:
        """See whether brief jobs are still brief, and pick up those that have ended meanwhile."""
        self._glance = None
        if self._line and self._added - len(self._line) < self._taken + FEW:
            self._spreads = True
            self._wake()
        self._pick_up()

    def _sleep(self, slot: ThreadSlot) -> None:
        self._asleep.append(slot)
        if self._line or self._closed:
            # A job came before this thread could be woken for it.
            try:
                self._asleep.remove(slot)
            except ValueError:
                pass  # It is being woken.
            else:
                return
        slot.bell.acquire()
        self._waking = False

    def _serve(self, slot: ThreadSlot) -> None:
        # A job that changed context variables ends the round. The next job must not see the changes.
        while self._base.copy().run(self._serve_round, slot):
            pass

    def _serve_round(self, slot: ThreadSlot) -> bool:
        """Run jobs until one changes the context. False: the thread ends."""
        line, ended = self._line, self._ended
        enter, copy_context = context.enter, contextvars.copy_context
        scope: TraceScope | None = None
        streak, since = 0, 0.0
        while True:
            try:
                attempt = slot.attempt = line.popleft()
            except IndexError:
                if self._closed:
                    return False
                streak = 0
                self._sleep(slot)
                continue
            attempt.slots = self
            attempt.started = now = monotonic()
            if self._spreads:
                if line and not self._waking:
                    self._wake()
                if streak == STREAK:
                    self._brief = now - since <= STREAK * BRIEF
                    streak = 0
                if not streak:
                    since = now
                streak += 1
            if attempt.position >= attempt.held.mark:
                self._state.mark(attempt.held, attempt.position)
            enter(attempt)
            if attempt.scope is not scope and (scope := attempt.scope) is not None:
                scope.enter()
            before = copy_context()
            outcome: Outcome | None
            try:
                outcome = self._run(attempt)
            except BaseException as error:  # noqa: BLE001  # e.g. SystemExit of a type that is decoded or encoded
                outcome = outcome_of.of_error(attempt, error)
            ended.append((attempt, outcome))
            slot.attempt = None
            if not self._notified and (self._spreads or not line):
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._pick_up)
                except RuntimeError:
                    return False  # the event loop has ended, so no code waits for the outcome
            try:
                if copy_context() != before:
                    return True
            except Exception:  # noqa: BLE001  # a job set a variable whose `==` raises, as numpy's arrays do
                return True

    def _run(self, attempt: Attempt) -> Outcome | None:
        """Decode and run; None: it succeeded and returned nothing."""
        if attempt.reason:
            return outcome_of.of_error(attempt, asyncio.CancelledError())
        known, job = attempt.known, attempt.job
        plain = (job.options is None or only_marks(job.options)) and not known.has_webhook
        if plain and not known.timed:
            timeout = known.timeout
        elif (late := outcome_of.too_late(attempt)) is not None:
            return late
        else:
            timeout = attempt.timeout
        if timeout != inf:
            set_deadline(self._state, attempt, attempt.started + timeout)
        if self._state.observed:
            self._state.job_log.started(job)
            self._loop.call_soon_threadsafe(tell_start, self._state, attempt)
        if faults.ARMED:
            faults.reach("start")
        try:
            args, kwargs = known.decode(job.payload) if plain or job.options is None else attempt.arguments()
        except Exception as error:  # noqa: BLE001  # whatever a user's type does while it is decoded
            return outcome_of.bad_arguments(attempt, error)
        try:
            result: Any = known.function(*args, **kwargs)
            if known.is_async:
                result = asyncio.run(result)
        except BaseException as error:  # noqa: BLE001  # no job ends its worker
            return outcome_of.of_error(attempt, error)
        if faults.ARMED:
            faults.reach("ran")
        if result is None and plain and not attempt.reason and not attempt.completed and not known.limits:
            return None
        return outcome_of.of_result(attempt, result)

    def _pick_up(self) -> None:
        self._notified = False
        if self._brief:
            self._brief = self._spreads = False
        ended, done, state = self._ended, self._done, self._state
        now = monotonic()
        while ended:
            attempt, outcome = ended.popleft()
            self._open -= 1
            attempt.slots = None
            self._lasted = now - attempt.started
            if outcome is not None:
                end_safely(self._end, attempt, outcome)
            elif attempt.reason or state.observed or state.attentive:
                # It may have been interrupted after it returned.
                end_safely(self._end, attempt, Succeeded())
            else:
                done(attempt.held, attempt.position)
        self._low()
        if not self._spreads:
            self._look_later()
