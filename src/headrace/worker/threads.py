"""Thread slots: sync tasks in long-lived threads, which cannot be stopped."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import Any

from headrace.model.outcome import Outcome
from headrace.task import context
from headrace.worker import faults, outcome_of
from headrace.worker.attempt import Attempt
from headrace.worker.state import WorkerState
from headrace.worker.steps import End, end_safely, set_deadline, tell_start


class ThreadSlot:
    """One thread and what it runs."""

    __slots__ = ("attempt", "thread")

    def __init__(self, serve: Callable[[ThreadSlot], None]) -> None:
        self.attempt: Attempt | None = None
        self.thread = threading.Thread(target=serve, args=(self,), name="headrace-slot", daemon=True)


class ThreadSlots:
    """Slots for sync tasks: long-lived threads fed by a queue. The event loop picks their outcomes up in groups."""

    def __init__(self, state: WorkerState, size: int, *, end: End, low: Callable[[], None]) -> None:
        self._state = state
        self.size = size
        self._end = end
        self._low = low
        self._loop = asyncio.get_running_loop()
        self._base = contextvars.copy_context()
        self._line: deque[Attempt] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        """One True per attempt in line. False: the thread ends. A thread that finds the line empty waits again."""
        self._slots: list[ThreadSlot] = []
        self._ended: deque[tuple[Attempt, Outcome]] = deque()
        self._notified = False

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        return sum(slot.attempt is not None for slot in self._slots) + len(self._ended)

    def put(self, attempts: list[Attempt]) -> None:
        self._line.extend(attempts)
        wanted = min(self.size, self.running + len(self._line))
        while len(self._slots) < wanted:
            slot = ThreadSlot(self._serve)
            self._slots.append(slot)
            slot.thread.start()
        for _ in attempts:
            self._calls.put(True)

    def take_back(self, before: float) -> list[Attempt]:
        attempts: list[Attempt] = []
        while True:
            try:
                attempt = self._line.popleft()
            except IndexError:
                return attempts
            if attempt.held.claimed_at > before:
                self._line.appendleft(attempt)
                return attempts
            attempts.append(attempt)

    def under_way(self) -> list[Attempt]:
        return [attempt for slot in self._slots if (attempt := slot.attempt) is not None]

    def interrupt(self, attempt: Attempt) -> None:
        """A thread cannot be stopped. `job.cancelled` is True now, and the attempt ends when its code returns."""

    async def close(self) -> None:
        for _ in self._slots:
            self._calls.put(False)
        # Threads between two jobs end at once. The others end when their job returns, and `close` does not wait for
        # them.
        while any(slot.thread.is_alive() and slot.attempt is None for slot in self._slots):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.001)

    def _serve(self, slot: ThreadSlot) -> None:
        while self._calls.get():
            try:
                attempt = self._line.popleft()
            except IndexError:
                continue
            attempt.slots = self
            attempt.started = monotonic()
            if attempt.position >= attempt.held.mark:
                self._state.mark(attempt.held, attempt.position)
            slot.attempt = attempt
            try:
                outcome = self._run(attempt)
            except BaseException as error:  # noqa: BLE001  # e.g. SystemExit of a type that is decoded or encoded
                outcome = outcome_of.of_error(attempt, error)
            # In this order, so that `running` counts the attempt without a gap.
            self._ended.append((attempt, outcome))
            slot.attempt = None
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._pick_up)
                except RuntimeError:
                    return  # the event loop has ended, so no code waits for the outcome

    def _run(self, attempt: Attempt) -> Outcome:
        if attempt.reason:
            return outcome_of.of_error(attempt, asyncio.CancelledError())
        known = attempt.known
        if (late := outcome_of.too_late(attempt)) is not None:
            return late
        if (timeout := attempt.timeout) != inf:
            set_deadline(self._state, attempt, monotonic() + timeout)
        if self._state.observed:
            self._state.job_log.started(attempt.job)
            self._loop.call_soon_threadsafe(tell_start, self._state, attempt)
        if faults.ARMED:
            faults.reach("start")
        try:
            args, kwargs = attempt.arguments()
        except Exception as error:  # noqa: BLE001  # whatever a user's type does while it is decoded
            return outcome_of.bad_arguments(attempt, error)
        own = self._base.copy()
        own.run(context.enter, attempt)
        try:
            result: Any = own.run(known.function, *args, **kwargs)
            if known.is_async:
                result = own.run(asyncio.run, result)
        except BaseException as error:  # noqa: BLE001  # no job ends its worker
            return outcome_of.of_error(attempt, error)
        if faults.ARMED:
            faults.reach("ran")
        return outcome_of.of_result(attempt, result)

    def _pick_up(self) -> None:
        self._notified = False
        while self._ended:
            attempt, outcome = self._ended.popleft()
            attempt.slots = None
            end_safely(self._end, attempt, outcome)
        self._low()
