"""Hooks: functions of an app that its producers call around an enqueue, and its workers around everything they do."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from headrace.errors import ConfigError
from headrace.model.job import Failure, JobId

if TYPE_CHECKING:
    from headrace.task.context import JobContext
    from headrace.task.large_results import LargeResults
    from headrace.task.tracing import AttemptMeter, AttemptTracer


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that runs a hook."""

    id: str
    """The id of the worker, as `app.workers()` lists it."""
    name: str
    """host:pid of the worker, for display."""
    queues: tuple[str, ...]
    """The queues that the worker serves."""
    concurrency: int
    """The number of jobs that the worker runs at the same time."""
    slot: bool = False
    """True in a process of its own, in which the worker runs tasks with executor="process"."""


class FollowUp(msgspec.Struct, frozen=True, kw_only=True):
    """What follows a failed attempt: another attempt, or a dead letter."""

    retry_at: datetime | None = None
    """When the job may start again, by the store's clock. None: the job is dead."""
    reason: str = ""
    """Why the job is dead, as its dead letter says."""

    @property
    def dead(self) -> bool:
        """Whether this was the last attempt."""
        return self.retry_at is None


class EnqueueCall(msgspec.Struct, kw_only=True):
    """One call that enqueues, as `on_enqueue` hooks see it."""

    task: str | None = None
    """The task of the job. None: a bulk call, whose jobs may be of several tasks."""
    queue: str | None = None
    """The queue of the job. None: a bulk call."""
    count: int = 0
    """The number of jobs that the store has accepted. It is 0 until then."""
    id: JobId | None = None
    """The id of the job, when the store has accepted it. None: a bulk call."""


AsyncCall: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
"""Runs the rest of an attempt of an `async def` task. It may be called once."""
SyncCall: TypeAlias = Callable[[], Any]
"""Runs the rest of an attempt of a `def` task. It may be called once."""
AsyncMiddleware: TypeAlias = Callable[["JobContext", AsyncCall], Coroutine[Any, Any, Any]]
SyncMiddleware: TypeAlias = Callable[["JobContext", SyncCall], Any]
EnqueueHook: TypeAlias = Callable[[EnqueueCall], AbstractContextManager[str | None, bool | None]]
FailureHook: TypeAlias = Callable[["JobContext", Failure, FollowUp], object]
Listener: TypeAlias = Callable[[str, Mapping[str, Any]], None]
Scope: TypeAlias = (
    AsyncIterator[object]
    | Iterator[object]
    | AbstractAsyncContextManager[object, bool | None]
    | AbstractContextManager[object, bool | None]
)
"""What a lifespan function returns: with `yield` it is a generator, without it returns a context manager."""

L = TypeVar("L", bound=Callable[[], object] | Callable[[WorkerInfo], object])
S = TypeVar("S", bound=Callable[[], Scope] | Callable[[WorkerInfo], Scope])
M = TypeVar("M", bound=AsyncMiddleware | SyncMiddleware)
Q = TypeVar("Q", bound=EnqueueHook | Callable[[EnqueueCall], Iterator[str | None]])
F = TypeVar("F", bound=FailureHook)
E = TypeVar("E", bound=Listener)

LifeKind = Literal["on_start", "on_stop", "lifespan"]


class LifeHook(NamedTuple):
    """A hook for the start or the end of a worker."""

    kind: LifeKind
    function: Callable[..., Any]
    wants_info: bool

    @property
    def label(self) -> str:
        return label_of(self.kind, self.function)


class Hooks:
    """All hooks of one app, each kind in the order of its declarations."""

    def __init__(self) -> None:
        self.life: list[LifeHook] = []
        self.async_middleware: list[AsyncMiddleware] = []
        """For `async def` tasks."""
        self.sync_middleware: list[SyncMiddleware] = []
        """For `def` tasks, in threads and in processes."""
        self.on_enqueue: list[EnqueueHook] = []
        self.on_failure: list[FailureHook] = []
        self.listeners: list[Listener] = []
        self.large_results: LargeResults | None = None
        """None: every result is in the store."""
        self.tracer: AttemptTracer | None = None
        """Its spans surround all middleware."""
        self.meter: AttemptMeter | None = None


class AppHooks:
    """The decorators of the app that declare hooks. Each one returns the function unchanged."""

    def __init__(self) -> None:
        self.hooks = Hooks()

    def on_start(self, hook: L) -> L:
        """Call this in each worker process before its first claim. It takes no argument, or the `WorkerInfo`.

        If it raises, the worker does not start.
        """
        self._add_life("on_start", hook)
        return hook

    def on_stop(self, hook: L) -> L:
        """Call this in each worker process when its last job has ended; the hook that was declared last comes first.

        If it raises, the worker logs the error and calls the other hooks.
        """
        self._add_life("on_stop", hook)
        return hook

    def lifespan(self, hook: S) -> S:
        """Run the part before `yield` as `on_start` does, and the part after it as `on_stop` does.

        The function is a generator or an async generator, or it returns a context manager.
        """
        if inspect.iscoroutinefunction(hook):
            label = label_of("lifespan", hook)
            raise ConfigError(f"{label} has no `yield`: add one between start and end, or use on_start")
        self._add_life("lifespan", hook)
        return hook

    def middleware(self, hook: M) -> M:
        """Call this around each attempt: an `async def` around `async def` tasks, a `def` around `def` tasks.

        It gets the job and `call`, which runs the rest and returns its result. The first one is the outermost.
        """
        function: Any = hook
        _check_arguments("middleware", function, 2, "the job and `call`")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            label = label_of("middleware", function)
            raise ConfigError(f"{label} is a generator: return what `call()` returns, without `yield`")
        if _is_async(function):
            self.hooks.async_middleware.append(function)
        else:
            self.hooks.sync_middleware.append(function)
        return hook

    def on_enqueue(self, hook: Q) -> Q:
        """Call this around each call that enqueues, in the code of the producer. It gets the `EnqueueCall`.

        The function is a generator that yields once, or it returns a context manager. What it yields is the trace that the
        jobs carry, as the text of a W3C traceparent, or None. If it raises before that, nothing is stored.
        """
        _check_arguments("on_enqueue", hook, 1, "the EnqueueCall")
        function: Any = hook
        self.hooks.on_enqueue.append(contextmanager(function) if inspect.isgeneratorfunction(function) else function)
        return hook

    def on_failure(self, hook: F) -> F:
        """Call this in the worker after each failed attempt, with the job, the failure and what follows.

        If it raises, the worker logs the error.
        """
        _check_arguments("on_failure", hook, 3, "the job, the failure and what follows")
        self.hooks.on_failure.append(hook)
        return hook

    def on_event(self, listener: E) -> E:
        """Call `listener(name, fields)` at every event of each worker. It runs in the event loop: return quickly."""
        _check_arguments("on_event", listener, 2, "the event's name and its fields")
        self.hooks.listeners.append(listener)
        return listener

    def _add_life(self, kind: LifeKind, hook: Callable[..., Any]) -> None:
        wants_info = not _accepts(kind, hook, 0)
        if wants_info:
            _check_arguments(kind, hook, 1, "nothing, or the WorkerInfo")
        self.hooks.life.append(LifeHook(kind, hook, wants_info))


def label_of(kind: str, function: object) -> str:
    """How errors and log lines call a hook."""
    name = getattr(function, "__qualname__", None)
    return f"the {kind} hook {getattr(function, '__module__', '')}.{name}" if name else f"the {kind} hook {function!r}"


def _accepts(kind: str, function: object, count: int) -> bool:
    if not callable(function):
        raise ConfigError(f"{label_of(kind, function)} is not a function: decorate a def or async def")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # A function written in C may have no signature.
    return True


def _check_arguments(kind: str, function: object, count: int, which: str) -> None:
    if not _accepts(kind, function, count):
        raise ConfigError(f"{label_of(kind, function)} has other parameters: it gets {which}")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
