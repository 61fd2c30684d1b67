"""The worker's side of process slots: long-lived children that run one job at a time and can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from math import inf
from time import monotonic, time
from typing import Any, NamedTuple

import msgspec

from headrace.errors import HeadraceError
from headrace.model.outcome import Lost, Outcome, Released
from headrace.runtime import faults, logs
from headrace.runtime.memory import worn
from headrace.supervisor.exits import cause_of
from headrace.task.hooks import WorkerInfo
from headrace.worker import outcome_of, parent_watch, wire
from headrace.worker.attempt import TIMEOUT, Attempt
from headrace.worker.child_steps import keep_steps
from headrace.worker.service import log
from headrace.worker.state import WorkerState
from headrace.worker.steps import End, announce, end_safely, set_deadline

KILLED = signal.SIGKILL.name
FAREWELL = 5.0
"""Seconds that a child without a job gets to end by itself, for what its code does at exit."""


KeepSteps = Callable[[wire.StepCallMessage], Coroutine[Any, Any, wire.StepAnswer]]


class Child:
    """One spawned interpreter and the socket to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.jobs = 0
        """Jobs that it has run."""

    @classmethod
    async def spawn(cls, app: str, info: WorkerInfo | None) -> Child:
        ours, theirs = socket.socketpair()
        with theirs:
            # Fork and exec take a millisecond. The call of asyncio would add a thread.
            process = parent_watch.spawn("headrace.worker.process", theirs.fileno())
        reader, writer = await asyncio.open_connection(sock=ours)
        hello = wire.Hello(
            path=sys.path,
            pythonpath=os.environ.get("PYTHONPATH"),
            app=app,
            parent=os.getpid(),
            info=info,
            log=logs.current(),
        )
        writer.write(wire.pack(hello))
        child = cls(process, reader, writer)
        try:
            await reader.readexactly(wire.HEADER)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise HeadraceError(f"a process slot could not start, it {await child.reap()}: see its output") from None
        except asyncio.CancelledError:
            # The worker stops while the child starts, and no other code can end the child yet.
            child.signal(signal.SIGKILL)
            await child.reap()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def run(self, order: wire.Order, hear: Callable[[wire.Said], None], keep: KeepSteps) -> Outcome | None:
        """Returns the outcome, or None if the child died. Calls `hear` and `keep` for what the task reports."""
        try:
            self._writer.write(wire.pack(order))
            await self._writer.drain()
            while True:
                header = await self._reader.readexactly(wire.HEADER)
                report = wire.read_report(await self._reader.readexactly(wire.length(header)))
                if isinstance(report, wire.SlotReport):
                    self.jobs += 1
                    return report.outcome
                if isinstance(report, wire.Said):
                    hear(report)
                    continue
                self._writer.write(wire.pack(await keep(report)))
                await self._writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            self._process.send_signal(number)

    async def end(self, patience: float) -> None:
        """End a child that has no job. With patience it ends by itself, after its hooks."""
        if not patience:
            self.signal(signal.SIGKILL)
        await self.reap(patience)

    async def reap(self, seconds: float = 0.0) -> str:
        """Wait for the child's end, and return the cause. `seconds`: for its hooks."""
        self._writer.close()
        patience = monotonic() + max(seconds, 1.0)
        while self._process.poll() is None:
            if monotonic() > patience:
                # It closed the socket and still lives. The worker would not receive what it sends.
                self._process.kill()
            await asyncio.sleep(0.005)
        return cause_of(self._process.returncode)


class ProcessSlot:
    __slots__ = ("attempt", "child", "task")

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self.child: Child | None = None
        self.task: asyncio.Task[None] | None = None


class Isolation(NamedTuple):
    """For slots in which suspects of other kinds of tasks run."""

    unfit: Callable[[Attempt], None]
    """Called with an attempt that cannot run in a child."""
    idle: float
    """Seconds after which a child without a job ends."""


class ProcessSlots:
    """Tasks with executor="process", and suspects of every kind."""

    def __init__(
        self, state: WorkerState, size: int, *, end: End, low: Callable[[], None], isolates: Isolation | None = None
    ) -> None:
        self._state = state
        self._isolates = isolates
        self.size = size
        self._end = end
        self._low = low
        self._line: deque[Attempt] = deque()
        self._slots: list[ProcessSlot] = []
        self._idle: list[asyncio.Future[None]] = []
        self._closing = False
        self._info = msgspec.structs.replace(state.info, slot=True) if state.hooks.life else None
        self._patience = state.settings.kill_grace.total_seconds() if state.hooks.life else 0.0
        """Seconds that a child gets for its hooks when it ends."""

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        return sum(slot.attempt is not None for slot in self._slots)

    def put(self, attempts: list[Attempt]) -> None:
        self._line.extend(attempts)
        for _ in attempts:
            self._wake()

    def take_back(self, before: float) -> list[Attempt]:
        attempts: list[Attempt] = []
        while self._line and self._line[0].held.claimed_at <= before:
            attempts.append(self._line.popleft())
        return attempts

    def overdue(self, before: float) -> list[Attempt]:
        """Remove the waiting attempts if every child has run its job since before that time."""
        busy = [slot.attempt.started for slot in self._slots if slot.attempt is not None and slot.attempt.started]
        if len(busy) < self.size or max(busy) > before:
            return []
        attempts = [attempt for attempt in self._line if not attempt.patient]
        for attempt in attempts:
            self._line.remove(attempt)
        return attempts

    @property
    def pids(self) -> list[int]:
        """The child processes that run."""
        return [slot.child.pid for slot in self._slots if slot.child is not None]

    def under_way(self) -> list[Attempt]:
        return [slot.attempt for slot in self._slots if slot.attempt is not None]

    def interrupt(self, attempt: Attempt) -> None:
        """Send TERM, and KILL when the grace period is over."""
        for slot in self._slots:
            if slot.attempt is attempt and slot.child is not None:
                child = slot.child
                child.signal(signal.SIGTERM)
                grace = self._state.settings.kill_grace.total_seconds()
                asyncio.get_running_loop().call_later(grace, self._kill, slot, attempt, child)

    async def close(self) -> None:
        self._closing = True
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        ends = [
            # A child that has a job does not end by itself.
            slot.child.end(self._patience if slot.attempt is None else 0.0)
            for slot in self._slots
            if slot.child is not None
        ]
        await asyncio.gather(*ends)

    def _kill(self, slot: ProcessSlot, attempt: Attempt, child: Child) -> None:
        if slot.attempt is attempt and slot.child is child:
            child.signal(signal.SIGKILL)

    def _wake(self) -> None:
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if len(self._slots) < self.size:
            slot = ProcessSlot()
            self._slots.append(slot)
            slot.task = asyncio.create_task(self._serve(slot), name="headrace-process-slot")

    async def _serve(self, slot: ProcessSlot) -> None:
        while not self._closing:
            if not self._line:
                self._low()
                await self._sleep(slot)
                continue
            attempt = self._line.popleft()
            if attempt.reason:
                self._end(attempt, outcome_of.of_error(attempt, asyncio.CancelledError()))
                continue
            slot.attempt, attempt.slots = attempt, self
            if attempt.position >= attempt.held.mark:
                self._state.mark(attempt.held, attempt.position)
            try:
                outcome = await self._run(slot, attempt)
            except Exception as error:  # noqa: BLE001  # a slot that cannot start fails its job, not the worker
                log.exception("a process slot failed to run a job")
                outcome = outcome_of.of_error(attempt, error) if self._isolates is None else None
            slot.attempt = attempt.slots = None
            if outcome is not None:
                end_safely(self._end, attempt, outcome)
                await self._recycle(slot)
            elif self._isolates is not None:
                attempt.started, attempt.deadline = 0.0, inf
                self._isolates.unfit(attempt)

    async def _recycle(self, slot: ProcessSlot) -> None:
        """End a child that has run many jobs or uses much memory. The slot starts another one for its next job."""
        child, settings = slot.child, self._state.settings
        limits = {"max_jobs": settings.max_jobs_per_child, "max_memory": settings.max_memory_per_child}
        if child is None or not (why := worn(child.pid, child.jobs, **limits)):
            return
        log.info("child process %d %s: another one replaces it", child.pid, why)
        slot.child = None
        try:
            await child.reap(max(self._patience, FAREWELL))
        except asyncio.CancelledError:
            child.signal(signal.SIGKILL)
            raise

    async def _sleep(self, slot: ProcessSlot) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(sleeper)
        if self._isolates is None or slot.child is None:
            await sleeper
            return
        done, _ = await asyncio.wait([sleeper], timeout=self._isolates.idle)
        if not done:
            child, slot.child = slot.child, None
            await child.end(self._patience)
            if sleeper in self._idle:
                self._idle.remove(sleeper)

    async def _run(self, slot: ProcessSlot, attempt: Attempt) -> Outcome | None:
        """The outcome. None: a suspect that cannot run in a child."""
        try:
            attempt.arguments()
        except Exception as error:  # noqa: BLE001  # whatever a user's type does while it is decoded
            return outcome_of.bad_arguments(attempt, error)
        child = slot.child
        if child is None or not child.alive:
            child = slot.child = await Child.spawn(self._state.settings.app, self._info)
            if attempt.reason:
                return outcome_of.of_error(attempt, asyncio.CancelledError())
        if (late := outcome_of.too_late(attempt)) is not None:
            return late
        if attempt.timeout != inf:
            set_deadline(self._state, attempt, monotonic() + attempt.timeout)
        if self._state.observed:
            announce(self._state, attempt)
        if faults.ARMED:
            faults.reach("start")

        def hear(message: wire.Said) -> None:
            attempt.report(progress=message.progress, note=message.note, line=message.line)

        if attempt.held.suspect:
            self._state.excuse(attempt.held, attempt.job)
        attempt.started = monotonic()
        outcome = await child.run(self._order(attempt), hear, partial(keep_steps, attempt))
        if faults.ARMED:
            faults.reach("ran")
        if attempt.reason or outcome is None:
            # A child that got TERM is ending, even if it has sent an outcome.
            child.signal(signal.SIGTERM)
            slot.child = None
            cause = await child.reap(self._patience)
            if attempt.reason == TIMEOUT and self._isolates is not None and KILLED in cause:
                # It did not react to TERM. In the event loop it would have blocked the whole worker.
                return Lost(cause="timeout: it blocked its process beyond its deadline", own=True, at=datetime.now(UTC))
            if attempt.reason and outcome is None:
                return outcome_of.of_error(attempt, asyncio.CancelledError())
            if outcome is None:
                log.warning("a process slot %s while it ran job %s of task %s", cause, attempt.job.id, attempt.job.task)
                return Lost(cause=cause, own=True, at=datetime.now(UTC))
        if self._isolates is not None and isinstance(outcome, Released):
            return None
        return outcome

    def _order(self, attempt: Attempt) -> wire.Order:
        module = attempt.known.function.__module__
        main = getattr(sys.modules["__main__"], "__file__", None) or "" if module == "__main__" else ""
        return wire.Order(
            attempt.job,
            module,
            main,
            attempt.timeout,
            self._state.name,
            self._state.max_result,
            self._state.watch.about() - time(),
            self._isolates is not None,
        )
