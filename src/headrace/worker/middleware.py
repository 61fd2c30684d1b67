"""Middleware around a task's function. A task without middleware keeps its function, and its attempts cost no more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.task.context import JobContext, current_job
from headrace.task.hooks import AsyncCall, AsyncMiddleware, Hooks, SyncCall, SyncMiddleware, label_of
from headrace.task.tracing import AttemptTracer


def surrounded(function: Callable[..., Any], hooks: Hooks, *, is_async: bool) -> Callable[..., Any]:
    """The function inside the app's middleware of its kind, or the function itself if there is none."""
    if is_async:
        return _around_async(function, tuple(hooks.async_middleware)) if hooks.async_middleware else function
    return _around_sync(function, tuple(hooks.sync_middleware)) if hooks.sync_middleware else function


def in_span(function: Callable[..., Any], tracer: AttemptTracer, *, is_async: bool) -> Callable[..., Any]:
    """The function inside a span."""
    if is_async:

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with tracer.span():
                return await function(*args, **kwargs)

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with tracer.span():
            return function(*args, **kwargs)

    return run


def _around_async(
    function: Callable[..., Coroutine[Any, Any, Any]], middleware: Sequence[AsyncMiddleware]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        job = current_job()
        call: AsyncCall = functools.partial(function, *args, **kwargs)
        for hook in reversed(middleware):
            call = functools.partial(hook, job, _once_async(hook, call))
        return await call()

    return run


def _around_sync(function: Callable[..., Any], middleware: Sequence[SyncMiddleware]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        job = current_job()
        call: SyncCall = functools.partial(function, *args, **kwargs)
        for hook in reversed(middleware):
            call = functools.partial(hook, job, _once_sync(hook, call))
        return call()

    return run


def _once_async(hook: Callable[[JobContext, AsyncCall], Any], call: AsyncCall) -> AsyncCall:
    used = False

    async def rest() -> Any:
        nonlocal used
        if used:
            raise _called_twice(hook)
        used = True
        return await call()

    return rest


def _once_sync(hook: Callable[[JobContext, SyncCall], Any], call: SyncCall) -> SyncCall:
    used = False

    def rest() -> Any:
        nonlocal used
        if used:
            raise _called_twice(hook)
        used = True
        return call()

    return rest


def _called_twice(hook: object) -> ConfigError:
    return ConfigError(
        f"{label_of('middleware', hook)} called `call` a second time: an attempt runs its task once, and a retry is "
        "another attempt"
    )
