"""Slots in the event loop; threads and processes have files of their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic

from headrace.model.outcome import Outcome, Released, Succeeded
from headrace.policy.effective import only_marks
from headrace.policy.explain.sentences import count
from headrace.runtime import faults
from headrace.task import context
from headrace.task.tracing import TraceScope
from headrace.worker import outcome_of
from headrace.worker.attempt import Attempt
from headrace.worker.service import log
from headrace.worker.state import HeldLease, WorkerState
from headrace.worker.steps import End, announce, end_as_failed, set_deadline

SLICE = 0.002
"""Seconds after which a consumer yields the event loop, even if its jobs never suspend."""


class LoopSlot:
    """One consumer of the event loop and what it runs."""

    __slots__ = ("attempt", "interrupted", "leaves", "task")

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self.task: asyncio.Task[None] | None = None
        self.leaves = False
        """The job that runs here is the last one."""
        self.interrupted: KeyboardInterrupt | None = None
        """Ctrl-C interrupted a job here. The slot raises it again when that job is handed back."""


class LoopSlots:
    """Async tasks: long-lived consumers over one deque. Nothing is created per job but the attempt itself."""

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
        self._size = size
        self._done = done
        self._end = end
        self._low = low
        self.low_mark = 0
        """When so few are left in line, the slot calls `low` and the fetcher claims more."""
        self._line: deque[Attempt] = deque()
        self._slots: list[LoopSlot] = []
        self._stuck: list[LoopSlot] = []
        """Slots whose jobs ignore their cancellation. Other slots replace them."""
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False
        self._closed = False
        self._base = contextvars.copy_context()
        self._marks = b""
        """Options of a recent job that only say where it comes from."""

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        return len(self._slots) - len(self._idle)

    def put(self, attempts: list[Attempt]) -> None:
        self._line.extend(attempts)
        self._wake()

    def take_back(self, before: float) -> list[Attempt]:
        line = self._line
        attempts: list[Attempt] = []
        while line and line[0].held.claimed_at <= before:
            attempts.append(line.popleft())
        return attempts

    @property
    def stuck(self) -> int:
        """Jobs that ignore their cancellation and have lost their slot."""
        return len(self._stuck)

    def under_way(self) -> list[Attempt]:
        return [slot.attempt for slot in (*self._slots, *self._stuck) if slot.attempt is not None]

    def interrupt(self, attempt: Attempt) -> None:
        for slot in (*self._slots, *self._stuck):
            if slot.attempt is attempt and slot.task is not None:
                # A slot with an attempt is suspended inside user code, so CancelledError is raised there.
                slot.task.cancel()

    def write_off(self, attempt: Attempt) -> bool:
        """Replace the slot that runs this attempt by another one. False: too many were replaced already."""
        for slot in self._slots:
            if slot.attempt is attempt and len(self._stuck) < self._size:
                slot.leaves = True
                self._slots.remove(slot)
                self._stuck.append(slot)
                self._low()
                if self._line:
                    self._wake()
                return True
        return False

    async def close(self) -> None:
        self._closed = True
        tasks = [slot.task for slot in (*self._slots, *self._stuck) if slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=1.0)
            if stuck:
                log.warning(
                    "the worker stops without %s that ignored its cancellation", count(len(stuck), "async task")
                )

    def _wake(self) -> None:
        """Wake one consumer, which wakes the next while there is work: jobs that never suspend need only one."""
        if self._waking:
            return
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                self._waking = True
                sleeper.set_result(None)
                return
        if len(self._slots) < self._size and not self._closed:
            self._waking = True
            slot = LoopSlot()
            self._slots.append(slot)
            self._staff(slot)

    def _staff(self, slot: LoopSlot) -> None:
        if slot.leaves:
            self._stuck.remove(slot)
            return
        slot.task = asyncio.create_task(self._consume(slot), context=self._base.copy(), name="headrace-slot")

    async def _consume(self, slot: LoopSlot) -> None:
        self._waking = False
        while not self._closed:
            try:
                await self._serve(slot)
                # A job changed context variables. The next job must not see the changes.
                return self._staff(slot)
            except asyncio.CancelledError:
                # A job cancelled its own task and then returned, so the cancellation arrives here.
                _forget_cancellation(slot)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001  # no job takes its slot with it
                log.exception("an unexpected error in a slot ended an attempt: the attempt fails, and the slot goes on")
                attempt, slot.attempt = slot.attempt, None
                if attempt is not None:
                    attempt.slots = None
                    end_as_failed(self._end, attempt, error)
                return self._staff(slot)
        return None

    async def _serve(self, slot: LoopSlot) -> None:
        """Run jobs until one changes the context."""
        line, done = self._line, self._done
        enter, copy_context = context.enter, contextvars.copy_context
        scope: TraceScope | None = None
        slice_end = monotonic() + SLICE
        while not self._closed:
            if not line:
                await self._sleep()
                slice_end = monotonic() + SLICE
                continue
            attempt = slot.attempt = line.popleft()
            # The slot awaits only user code from here to the end of the job. A cancellation elsewhere would lose the
            # attempt.
            left = len(line)
            if left and not self._waking:
                self._wake()
            pause = False
            if not left or left == self.low_mark:
                self._low()
                pause = True
            if attempt.reason:
                self._end(attempt, outcome_of.of_error(attempt, asyncio.CancelledError()))
                slot.attempt = None
                continue
            now = monotonic()
            enter(attempt)
            if attempt.scope is not scope and (scope := attempt.scope) is not None:
                scope.enter()
            before = copy_context()
            outcome = await self._run(slot, attempt, now)
            if outcome is not None:
                self._end(attempt, outcome)
            elif self._state.observed or self._state.attentive:
                self._end(attempt, Succeeded())
            elif done(attempt.held, attempt.position):
                pause = True
            slot.attempt = None
            if slot.leaves:
                if slot.interrupted is not None:
                    raise slot.interrupted
                return
            try:
                if copy_context() != before:
                    return
            except Exception:  # noqa: BLE001  # a job set a variable whose `==` raises, as numpy's arrays do
                return
            if pause or now > slice_end:
                # Give the settler and the fetcher a turn of the loop.
                await asyncio.sleep(0)
                slice_end = monotonic() + SLICE

    async def _run(self, slot: LoopSlot, attempt: Attempt, now: float) -> Outcome | None:
        """Decode and run; None: it succeeded and returned nothing."""
        known, job = attempt.known, attempt.job
        options = job.options
        plain = (options is None or options is self._marks or self._only_marks(options)) and not known.has_webhook
        if plain and not known.timed:
            timeout = known.timeout
        elif (late := outcome_of.too_late(attempt)) is not None:
            return late
        else:
            timeout = attempt.timeout
        attempt.slots = self
        attempt.started = now
        if attempt.position >= attempt.held.mark:
            self._state.mark(attempt.held, attempt.position)
        if timeout != inf:
            set_deadline(self._state, attempt, now + timeout)
        if self._state.observed:
            announce(self._state, attempt)
        if faults.ARMED:
            faults.reach("start")
        outcome: Outcome | None = None
        try:
            args, kwargs = known.decode(job.payload) if plain or options is None else attempt.arguments()
        except Exception as error:  # noqa: BLE001  # whatever a user's type does while it is decoded
            outcome = outcome_of.bad_arguments(attempt, error)
        else:
            try:
                result = await known.function(*args, **kwargs)
            except BaseException as error:  # a job must not end its worker
                if isinstance(error, GeneratorExit) and (self._closed or not _is_current(slot.task)):
                    raise  # the slot's coroutine is closed while the loop ends
                if isinstance(error, KeyboardInterrupt):
                    slot.interrupted, slot.leaves, outcome = error, True, Released()
                else:
                    outcome = outcome_of.of_error(attempt, error)
                _forget_cancellation(slot)
            else:
                if result is not None or attempt.reason or attempt.completed or not plain:
                    outcome = outcome_of.of_result(attempt, result)
                    _forget_cancellation(slot)
        attempt.slots = None
        if faults.ARMED:
            faults.reach("ran")
        return outcome

    def _only_marks(self, options: bytes) -> bool:
        """Whether these options change nothing about an attempt. Jobs that one call has enqueued share them."""
        if only_marks(options):
            self._marks = options
            return True
        return False

    async def _sleep(self) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(sleeper)
        try:
            await sleeper
        except asyncio.CancelledError:
            if sleeper in self._idle:
                self._idle.remove(sleeper)
            raise
        finally:
            self._waking = False


def _is_current(task: asyncio.Task[None] | None) -> bool:
    try:
        return task is asyncio.current_task()
    except RuntimeError:
        return False  # the event loop has ended


def _forget_cancellation(slot: LoopSlot) -> None:
    task = slot.task
    while task is not None and task.cancelling():
        task.uncancel()
