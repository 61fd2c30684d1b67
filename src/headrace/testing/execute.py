"""Runs the task of one attempt in the calling thread or event loop, and makes its outcome as a worker does."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from math import inf
from time import monotonic
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

from headrace.model.outcome import Outcome, Released, Succeeded
from headrace.runtime import event_loop
from headrace.task import context
from headrace.task.journal import Suspended
from headrace.testing.clock import FakeClock
from headrace.worker import outcome_of
from headrace.worker.attempt import TIMEOUT, Attempt, trace
from headrace.worker.state import WorkerState
from headrace.worker.steps import announce

T = TypeVar("T")


class WorkerCrash(BaseException):
    """A fault ends the task here, as the death of its process would."""


@dataclass(slots=True)
class RunEnd:
    """How an attempt ended in its own code."""

    outcome: Outcome
    error: BaseException | None = None
    value: Any = None
    crashed: bool = False


class _Slots:
    """The place of an attempt that runs here. It marks the attempt as running."""

    waiting = 0
    running = 1

    def __init__(self) -> None:
        self._tasks: dict[Attempt, asyncio.Task[Any] | None] = {}

    def put(self, attempts: list[Attempt]) -> None: ...

    def take_back(self, before: float) -> list[Attempt]:
        del before
        return []

    def under_way(self) -> list[Attempt]:
        return []

    def interrupt(self, attempt: Attempt) -> None:
        """Cancel the async task that runs the attempt."""
        if (task := self._tasks.get(attempt)) is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    @contextmanager
    def runs(self, attempt: Attempt) -> Generator[None]:
        """The current asyncio task runs the attempt."""
        task = self._tasks[attempt] = asyncio.current_task()
        assert task is not None
        try:
            yield
        finally:
            del self._tasks[attempt]

    async def close(self) -> None: ...


_SLOTS = _Slots()
_Bound = Callable[[], Any]


class RunCoroutine(Protocol):
    """Runs a coroutine for sync code."""

    def __call__(self, make: Callable[[], Coroutine[Any, Any, T]], /) -> T: ...


def execute(attempt: Attempt, crash_at: int | None, run: RunCoroutine) -> RunEnd:
    """Run the attempt in this thread. `run` runs the coroutine of an async task."""
    call = _prepare(attempt)
    if not callable(call):
        return call
    own = _context_of(attempt)
    began = _clock_of(attempt).now()
    try:
        if attempt.known.is_async:
            value = own.run(run, functools.partial(_atraced, attempt, crash_at, call))
        else:
            value = own.run(_traced, attempt, crash_at, call)
    except BaseException as error:  # noqa: BLE001  # the outcome says what it means
        return _failed(attempt, error, began)
    return _returned(attempt, value, began)


async def aexecute(attempt: Attempt, crash_at: int | None) -> RunEnd:
    """Run the attempt from this event loop. A sync task runs in a thread."""
    call = _prepare(attempt)
    if not callable(call):
        return call
    own = _context_of(attempt)
    began = _clock_of(attempt).now()
    try:
        if attempt.known.is_async:
            coroutine = _atraced(attempt, crash_at, call)
            value = await asyncio.get_running_loop().create_task(coroutine, context=own)
        else:
            value = await in_thread(functools.partial(own.run, functools.partial(_traced, attempt, crash_at, call)))
    except BaseException as error:  # noqa: BLE001  # the outcome says what it means
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            return RunEnd(Released(), error)
        return _failed(attempt, error, began)
    return _returned(attempt, value, began)


def run_coroutine(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine, for sync code, also in a thread whose event loop is busy."""
    if event_loop.runs_here():
        return beside(functools.partial(_run_alone, make))
    asgiref: Any = sys.modules.get("asgiref.sync")
    if asgiref is not None:
        # Async code of Django calls the database in the thread of this test, and so in its transaction.
        bridged: T = asgiref.async_to_sync(make)()
        return bridged
    return _run_alone(make)


def _run_alone(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner() as runner:
        return runner.run(make(), context=contextvars.copy_context())


def beside(call: Callable[[], T]) -> T:
    """Call this in another thread, and wait for it: this thread has a running event loop."""
    answer: list[T] = []
    errors: list[BaseException] = []
    own = contextvars.copy_context()

    def serve() -> None:
        try:
            answer.append(own.run(call))
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=serve, name="headrace-testing")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answer[0]


async def in_thread(call: _Bound) -> Any:
    """Call a sync function from this event loop."""
    asgiref: Any = sys.modules.get("asgiref.sync")
    if asgiref is not None:
        # Django's tests keep their transaction in one thread.
        return await asgiref.sync_to_async(call, thread_sensitive=True)()
    return await asyncio.to_thread(call)


def _traced(attempt: Attempt, crash_at: int | None, call: _Bound) -> Any:
    with _Crash(attempt, crash_at):
        return call()


async def _atraced(attempt: Attempt, crash_at: int | None, call: _Bound) -> Any:
    # Inside the coroutine, because its event loop may run in another thread than the caller.
    with _Crash(attempt, crash_at), _SLOTS.runs(attempt):
        return await call()


def _prepare(attempt: Attempt) -> RunEnd | _Bound:
    """The call of the task's function, or the outcome of a job that must not start."""
    state, known, name = _state(attempt), attempt.known, attempt.job.task
    if known.codec is None:
        return RunEnd(outcome_of.too_late(attempt) or outcome_of.unknown_task(name))
    if (late := attempt.unready or outcome_of.too_late(attempt)) is not None:
        return RunEnd(late)
    if (pause := state.paused_now().get(name)) is not None:
        return RunEnd(outcome_of.paused(pause, state.watch.now()))
    try:
        args, kwargs = attempt.arguments()
    except Exception as error:  # noqa: BLE001  # whatever a user's type does while it is decoded
        return RunEnd(outcome_of.bad_arguments(attempt, error), error)
    attempt.slots = _SLOTS
    attempt.started = monotonic()
    if (timeout := attempt.timeout) != inf:
        attempt.deadline = attempt.started + timeout
    if state.listeners:
        announce(state, attempt)
    if (tracer := state.hooks.tracer) is not None:
        trace(attempt, tracer)
    return functools.partial(attempt.known.function, *args, **kwargs)


def _context_of(attempt: Attempt) -> contextvars.Context:
    own = contextvars.copy_context()
    own.run(context.enter, attempt)
    if attempt.scope is not None:
        own.run(attempt.scope.enter)
    return own


def _returned(attempt: Attempt, value: Any, began: datetime) -> RunEnd:
    _check_time(attempt, began)
    if attempt.completed and not attempt.reason:
        return RunEnd(Succeeded(), value=value)
    outcome = outcome_of.of_result(attempt, value)
    return RunEnd(outcome, value=value if isinstance(outcome, Succeeded) else None)


def _failed(attempt: Attempt, error: BaseException, began: datetime) -> RunEnd:
    if isinstance(error, WorkerCrash):
        return RunEnd(Released(), crashed=True)
    if not isinstance(error, Exception | SystemExit | asyncio.CancelledError | Suspended):
        # Ctrl-C, or a test framework that ends the test: the job is handed back, and the script raises the error.
        return RunEnd(Released(), error)
    _check_time(attempt, began)
    attempt.completed = False
    return RunEnd(outcome_of.of_error(attempt, error), error)


def _check_time(attempt: Attempt, began: datetime) -> None:
    """The test's clock decides whether the attempt took longer than its timeout."""
    if not attempt.reason and (_clock_of(attempt).now() - began).total_seconds() > attempt.timeout:
        attempt.reason = TIMEOUT


def _state(attempt: Attempt) -> WorkerState:
    return attempt.held.state


def _clock_of(attempt: Attempt) -> FakeClock:
    watch: Any = attempt.held.state.watch
    clock: FakeClock = watch.clock
    return clock


class _Crash:
    """Ends the task's function before the n-th line that it would run. `finally` blocks and context managers still run."""

    def __init__(self, attempt: Attempt, line: int | None) -> None:
        self._line = line
        self._code: CodeType | None = None
        self._lines = 0
        if line is not None:
            task = attempt.held.state.tasks[attempt.job.task]
            function: Any = task.function
            while hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            self._code = function.__code__

    def __enter__(self) -> None:
        if self._line is not None:
            self._before = sys.gettrace()
            sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        del arg
        if frame.f_code is not self._code:
            return None
        if event == "line":
            self._lines += 1
            if self._lines == self._line:
                raise WorkerCrash
        return self._trace
