"""The child's side of process slots: `python -m headrace.worker.process FD` runs one job after the other until EOF."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from types import FrameType
from typing import Any

from headrace.errors import HookFailed, LeaseLost, UnknownTask, Unsupported
from headrace.model.job import Failure
from headrace.model.lease import WorkerId, new_token
from headrace.model.outcome import Failed, Lost, Outcome, Released
from headrace.runtime import logs
from headrace.runtime.sighup import leave_to_parent
from headrace.supervisor.handover import frame
from headrace.task import context
from headrace.task.hooks import Hooks, WorkerInfo
from headrace.task.task import Task
from headrace.worker import outcome_of, parent_watch, wire
from headrace.worker.attempt import Attempt, ResolvedTask, trace
from headrace.worker.child_steps import ChildSteps
from headrace.worker.lifecycle import Lifecycle
from headrace.worker.service import log
from headrace.worker.state import HeldLease, WorkerState


class Terminated(BaseException):
    """TERM arrived while a task ran: its `finally` blocks run, then the process ends."""


class Alone:
    """A job's context in a child: it has no store, only the pipe to its worker."""

    def __init__(self, order: wire.Order, known: ResolvedTask, pipe: socket.socket) -> None:
        self.job = order.job
        self._known = known
        self.worker = order.worker
        self._successors = 0
        self._steps = ChildSteps(order.job, self._ask, order.clock)
        self._pipe = pipe
        self._lock = threading.Lock()
        """A task may report from several threads of its own, some of which outlive it."""
        self._over = False
        self.needs_worker = False
        """The task asked for what only the worker's own process can do."""
        self.cancelled = False
        self.deadline_at: datetime | None = (
            None if order.timeout == inf else datetime.now(UTC) + timedelta(seconds=order.timeout)
        )

    def report(self, *, progress: float | None = None, note: str | None = None, line: str | None = None) -> None:
        message = wire.Said(progress, None if note is None else _plain(note), None if line is None else _plain(line))
        with self._lock:
            if not self._over:
                self._pipe.sendall(wire.pack_report(message))

    def secrets(self) -> Sequence[str]:
        return self._known.secrets(self.job)

    def successor(self) -> int:
        self._successors += 1
        return self._successors

    def steps(self) -> ChildSteps:
        return self._steps

    def _ask(self, message: wire.StepCallMessage) -> wire.StepAnswer:
        """Ask the worker, and wait for its answer."""
        with self._lock:
            if self._over:
                raise LeaseLost("the attempt has ended: only its task can call steps")
            self._pipe.sendall(wire.pack_report(message))
            answer = wire.receive(self._pipe)
        if not isinstance(answer, wire.StepAnswer):
            raise LeaseLost("the worker has ended")
        return answer

    def close(self) -> None:
        """Send nothing more, because the worker would take it for a message of the next job."""
        with self._lock:
            self._over = True

    async def complete(self, result: Any, tx: object) -> None:
        self.complete_sync(result, tx)

    def complete_sync(self, result: Any, tx: object) -> None:
        del result, tx
        self.needs_worker = True
        raise Unsupported(
            'a task with executor="process" cannot complete its job in a transaction: use async or a thread'
        )


def _plain(text: str) -> str:
    """Short enough for the pipe, and without what MessagePack cannot carry."""
    return outcome_of.bounded(text, outcome_of.MAX_MESSAGE)


class Lifecycles:
    """The hooks of each app whose tasks run in this process, which needs pools and models of its own."""

    def __init__(self, info: WorkerInfo | None) -> None:
        self._info = info
        self._started: list[tuple[Hooks, Lifecycle]] = []

    @property
    def present(self) -> bool:
        return bool(self._started)

    def start(self, hooks: Hooks) -> None:
        """Run the hooks for the start, once. Raises HookFailed."""
        if self._info is None or not hooks.life or any(hooks is started for started, _ in self._started):
            return
        lifecycle = Lifecycle(hooks.life, self._info)
        _runner.run(lifecycle.start())
        self._started.append((hooks, lifecycle))

    def stop(self) -> None:
        if self._started:
            # The process ends already. When the time for its hooks is over, the worker kills it.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while self._started:
            _, lifecycle = self._started.pop()
            _runner.run(lifecycle.stop())


class Library:
    """Tasks by name, from the app or from the module that declares them."""

    def __init__(self, app: str, lifecycles: Lifecycles) -> None:
        self._app = app
        self.lifecycles = lifecycles
        self._tasks: dict[str, Task[..., Any]] = {}

    def open(self) -> None:
        if self._app:
            app = parent_watch.load_app(self._app)
            self.lifecycles.start(app.duties.hooks)
            self._tasks.update(app.tasks)

    def find(self, name: str, module: str, main: str) -> Task[..., Any]:
        if name not in self._tasks:
            self.open()
        if name not in self._tasks:
            self._tasks.update(_tasks_in(self._names(module, main)))
        try:
            task = self._tasks[name]
        except KeyError:
            raise UnknownTask(name) from None
        self.lifecycles.start(task.hooks)
        return task

    def _names(self, module: str, main: str) -> dict[str, Any]:
        if module != "__main__":
            return vars(importlib.import_module(module))
        # A script's own tasks: run it under another name, so that its `if __name__ == "__main__"` part stays out.
        return runpy.run_path(main, run_name="__headrace_main__") if main else {}


def _tasks_in(names: dict[str, Any]) -> dict[str, Task[..., Any]]:
    tasks: dict[str, Task[..., Any]] = {}
    for value in names.values():
        if isinstance(value, Task):
            tasks[value.name] = value
    return tasks


def run(order: wire.Order, library: Library, pipe: socket.socket) -> Outcome:
    """One job, from payload to outcome."""
    attempt = _attempt(order, library.find(order.job.task, order.module, order.main))
    try:
        args, kwargs = attempt.arguments()
    except Exception as error:  # noqa: BLE001  # whatever a user's type does while it is decoded
        return outcome_of.bad_arguments(attempt, error)
    own = contextvars.copy_context()
    alone = Alone(order, attempt.known, pipe)
    own.run(context.enter, alone)
    if attempt.scope is not None:
        own.run(attempt.scope.enter)
    try:
        result: Any = own.run(attempt.known.function, *args, **kwargs)
        if attempt.known.is_async:
            # What async hooks opened belongs to the loop in which they ran.
            shared = order.suspect or library.lifecycles.present
            result = _in_loop(result, own) if shared else own.run(asyncio.run, result)
    except Terminated:
        raise
    except BaseException as error:  # noqa: BLE001  # no job ends its slot
        return Released() if _unfit(order, alone) else outcome_of.of_error(attempt, error)
    finally:
        alone.close()
    return Released() if _unfit(order, alone) else outcome_of.of_result(attempt, result)


def _unfit(order: wire.Order, alone: Alone) -> bool:
    return order.suspect and alone.needs_worker


_runner = asyncio.Runner()
"""One event loop for hooks and all suspects of a child: what an async task keeps between jobs belongs to the loop that made it."""


def _in_loop(coroutine: Coroutine[Any, Any, Any], own: contextvars.Context) -> Any:
    """Run an async task as a worker does: TERM cancels it, and does not interrupt code that blocks the loop."""
    loop = _runner.get_loop()
    terminated = False

    async def supervised() -> Any:
        task = asyncio.ensure_future(coroutine)

        def cancel() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        loop.add_signal_handler(signal.SIGTERM, cancel)
        try:
            return await task
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, _terminate)

    try:
        return _runner.run(supervised(), context=own)
    except asyncio.CancelledError:
        if terminated:
            raise Terminated from None
        raise


def _attempt(order: wire.Order, task: Task[..., Any]) -> Attempt:
    held = HeldLease(_NoState(order.worker, order.max_result), new_token(), suspect=False)
    attempt = Attempt(held, 0, order.job, ResolvedTask(task), deadline=monotonic() + order.timeout)
    if task.hooks.tracer is not None:
        trace(attempt, task.hooks.tracer)
    return attempt


class _NoState(WorkerState):
    """Only the worker's name and its limit of results are known here."""

    def __init__(self, name: str, max_result: int) -> None:
        self.name = name
        self.max_result = max_result
        self.id = WorkerId(new_token())


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    # A second TERM must not interrupt the `finally` blocks and the hooks for the end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def main() -> None:
    pipe = socket.socket(fileno=int(sys.argv[1]))
    hello = wire.receive(pipe)
    if not isinstance(hello, wire.Hello):
        return
    parent_watch.settle_in(hello.path, hello.pythonpath)
    leave_to_parent()
    parent_watch.die_with_parent(hello.parent, signal.SIGKILL)
    if hello.log is not None:
        logs.configure(hello.log.level, hello.log.format, worker=hello.log.worker)
    lifecycles = Lifecycles(hello.info)
    library = Library(hello.app, lifecycles)
    # Importing the app and its hooks for the start are not part of any job's time.
    try:
        library.open()
    except HookFailed as error:
        log.error("a process slot cannot start: %s", error, exc_info=error.__cause__)
        sys.exit(1)
    pipe.sendall(frame(b""))
    try:
        _serve(pipe, library)
    except Terminated:
        sys.exit(128 + signal.SIGTERM)
    finally:
        lifecycles.stop()


def _serve(pipe: socket.socket, library: Library) -> None:
    """Run one job after the other until EOF."""
    while (order := wire.receive(pipe)) is not None:
        assert isinstance(order, wire.Order)
        try:
            signal.signal(signal.SIGTERM, _terminate)
            outcome = run(order, library, pipe)
            if not library.lifecycles.present:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        except Exception as error:  # noqa: BLE001  # the task cannot be imported: that is the job's failure
            outcome = Released() if order.suspect else _could_not_start(order, error)
        assert not isinstance(outcome, Lost)
        pipe.sendall(wire.pack_report(wire.SlotReport(outcome)))


def _could_not_start(order: wire.Order, error: Exception) -> Outcome:
    message, trace = outcome_of.describe(error)
    failure = Failure(order.job.attempt, outcome_of.kind_of(error), message, trace, datetime.now(UTC), order.worker)
    return Failed(failure)


if __name__ == "__main__":
    main()
