"""Runs the hooks for the start and the end of a process: in order, and their ends in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import ConfigError, HookFailed
from headrace.task.hooks import LifeHook, WorkerInfo
from headrace.worker.service import log

CallSync: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a sync function for async code."""


class _End(NamedTuple):
    """What remains to be done for a hook when the worker stops."""

    hook: LifeHook
    call: Callable[[], Awaitable[object]]


class Lifecycle:
    """The hooks of one process. All async hooks run in one asyncio task, and all sync hooks in one thread.

    A context manager must often be left by the task or the thread that entered it.
    """

    def __init__(self, hooks: Sequence[LifeHook], info: WorkerInfo, call_sync: CallSync | None = None) -> None:
        """`call_sync`: how sync hooks are called. None: in a thread of their own."""
        self._hooks = hooks
        self._info = info
        self._call_sync = call_sync
        self.uses_loop = False
        """A hook is async, so that what it opens belongs to the event loop. Known after the start."""
        self._task: asyncio.Task[None] | None = None
        self._starting = False
        self._stop = asyncio.Event()
        self._thread: ThreadPoolExecutor | None = None
        self._left_alone = False
        """A sync hook goes on although its worker no longer waits for it."""

    async def start(self) -> None:
        """Run the hooks for the start. If one fails, undo those before it and raise HookFailed."""
        if not self._hooks:
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._live(ready), name="headrace-hooks")
        try:
            await ready
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            if not ready.done() or ready.cancelled() or ready.exception() is not None:
                self._task = None
                await asyncio.wait([task])

    def hurry(self) -> None:
        """Interrupt the hooks for the start, if they run: the start fails."""
        if self._starting and self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Run the hooks for the end. A hook that fails is logged."""
        task, self._task = self._task, None
        if task is not None:
            self._stop.set()
            await asyncio.wait([task])

    async def _live(self, ready: asyncio.Future[None]) -> None:
        ends: list[_End] = []
        try:
            self._starting = True
            error = await self._begin_all(ends)
            self._starting = False
            if error is None and not ready.done():
                ready.set_result(None)
                # If the event loop ends without a drain, it cancels this task. The hooks run nevertheless.
                with contextlib.suppress(asyncio.CancelledError):
                    await self._stop.wait()
            await self._end_all(ends)
            if error is not None and not ready.done():
                ready.set_exception(error)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=not self._left_alone)

    async def _begin_all(self, ends: list[_End]) -> HookFailed | None:
        for hook in self._hooks:
            try:
                await self._begin(hook, ends)
            except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001  # the worker reports it
                return _failed(hook, error)
        return None

    async def _begin(self, hook: LifeHook, ends: list[_End]) -> None:
        arguments = (self._info,) if hook.wants_info else ()
        match hook.kind:
            case "on_start":
                await self._call(hook.function, *arguments)
            case "on_stop":
                self.uses_loop |= inspect.iscoroutinefunction(hook.function)
                ends.append(_End(hook, partial(self._call, hook.function, *arguments)))
            case "lifespan":
                ends.append(_End(hook, await self._enter(_scope(hook.function, arguments))))

    async def _enter(self, scope: Any) -> Callable[[], Awaitable[object]]:
        """Enter the context manager. Returns the call that leaves it."""
        if hasattr(scope, "__aenter__"):
            self.uses_loop = True
            await scope.__aenter__()
            return partial(scope.__aexit__, None, None, None)
        if hasattr(scope, "__enter__"):
            await self._in_thread(scope.__enter__)
            return partial(self._in_thread, scope.__exit__, None, None, None)
        raise ConfigError("a lifespan is a function with `yield`, or returns a context manager")

    async def _end_all(self, ends: list[_End]) -> None:
        while ends:
            hook, call = ends.pop()
            try:
                await call()
            except (Exception, SystemExit, asyncio.CancelledError):  # noqa: BLE001  # the other hooks must run
                log.exception("%s failed while the worker stopped: the other hooks go on", hook.label)

    async def _call(self, function: Callable[..., Any], *arguments: WorkerInfo) -> None:
        if inspect.iscoroutinefunction(function):
            self.uses_loop = True
            await function(*arguments)
            return
        result = await self._in_thread(function, *arguments)
        if inspect.isawaitable(result):
            self.uses_loop = True
            await result

    async def _in_thread(self, function: Callable[..., Any], *arguments: object) -> Any:
        call = partial(contextvars.copy_context().run, _kept, function, *arguments)
        if self._call_sync is not None:
            return await self._call_sync(call)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-hooks")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except asyncio.CancelledError:
            self._left_alone = True
            raise


def _kept(function: Callable[..., Any], *arguments: object) -> Any:
    """Call it. An asyncio future cannot carry StopIteration."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("the hook raised StopIteration") from error


def _scope(function: Callable[..., Any], arguments: Sequence[WorkerInfo]) -> Any:
    if inspect.isasyncgenfunction(function):
        return contextlib.asynccontextmanager(function)(*arguments)
    if inspect.isgeneratorfunction(function):
        return contextlib.contextmanager(function)(*arguments)
    return function(*arguments)


def _failed(hook: LifeHook, error: BaseException) -> HookFailed:
    failed = HookFailed(f"{hook.label} failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
