"""What the backends of all threads share: Django's tasks, and one app for each place where jobs are stored."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from headrace.app import Headrace
from headrace.integrations.django import results
from headrace.integrations.django.frame import TaskContext, TaskError, TaskResultStatus, normalize_json, signals
from headrace.integrations.django.place import Place
from headrace.model.job import Batch, NewJob
from headrace.model.outcome import Cancel, Dead, RetryAfter, Snooze
from headrace.settings import Settings
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.task.task import Task

_lock = threading.RLock()
_tasks: dict[str, Any] = {}
_homes: dict[tuple[Any, ...], BackendHome] = {}


def remember(task: Any) -> None:
    """The declared task, also for the object that `task.using(…)` returns."""
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        _tasks[task.module_path] = task


def find(path: str) -> Any | None:
    """The task at `package.module.function`, if it was imported."""
    return _tasks.get(path)


def known() -> list[Any]:
    """Every task that was imported."""
    return list(_tasks.values())


@dataclass(eq=False)
class BackendHome:
    """One place and the app for it."""

    alias: str
    place: Place
    app: Headrace
    retry: Retry
    timeout: Any

    def declared(self, task: Any) -> Task[..., Any]:
        """The headrace task for a Django task."""
        path = task.module_path
        with _lock:
            if path not in self.app.tasks:
                declared = find(path) or task
                self.app.task(
                    name=path,
                    queue=declared.queue_name,
                    priority=declared.priority,
                    retry=self.retry,
                    timeout=self.timeout,
                )(_runner(path, self, asynchronous=inspect.iscoroutinefunction(task.func)))
            return self.app.tasks[path]

    async def enqueue(self, batch: Batch) -> None:
        """Enqueue a batch whose id is known already, and whose jobs were admitted before."""
        await (await self.app.clients.here()).store.enqueue(batch)

    async def admit(self, jobs: Sequence[NewJob]) -> None:
        """Count jobs, or raise QueueFull."""
        await (await self.app.clients.here()).admit(jobs)

    def close(self) -> None:
        """Close the store's connections. The next call opens others."""
        self.app.close()


def home(alias: str, place: Place, options: Mapping[str, Any], queues: frozenset[str]) -> BackendHome:
    """The one for this place."""
    max_attempts, timeout = options.get("max_attempts"), options.get("timeout")
    key = (alias, place, max_attempts, timeout, queues)
    with _lock:
        if key not in _homes:
            retry = Retry() if max_attempts is None else Retry(max_attempts=max_attempts)
            settings = Settings.load(url=place.url)
            if queues and not settings.queues:
                # Workers serve all of these queues, also those that no task names.
                settings = settings.replace(queues=tuple(sorted(queues)))
            app = Headrace(settings=settings)
            if place.outbox:
                app.outbox(place.database)
            _homes[key] = BackendHome(alias, place, app, retry, timeout)
        return _homes[key]


# ── running, in a worker ─────────────────────────────────────────────────────


def _runner(path: str, home: BackendHome, *, asynchronous: bool) -> Callable[..., Any]:
    """The function that a worker runs for a Django task."""

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(path, home, args, kwargs)
        await sync_to_async(attempt.begin)()
        try:
            value = await attempt.task.acall(*attempt.arguments, **kwargs)
        except Exception as error:
            await sync_to_async(attempt.failed)(error)
            raise
        return await sync_to_async(attempt.done)(value)

    def run(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(path, home, args, kwargs)
        attempt.begin()
        try:
            value = attempt.task.call(*attempt.arguments, **kwargs)
        except Exception as error:
            attempt.failed(error)
            raise
        return attempt.done(value)

    return run_async if asynchronous else run


class _Attempt:
    """Send Django's signals around one attempt. Django's connections are closed as after a request."""

    def __init__(self, path: str, home: BackendHome, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._home = home
        self._job = current_job()
        self.task = _tasks[path]
        self._result = results.under_way(self.task, self._job, args, kwargs, backend=home.alias, now=timezone.now())
        self.arguments = (TaskContext(task_result=self._result), *args) if self.task.takes_context else args

    def begin(self) -> None:
        close_old_connections()
        self._send(signals.task_started)

    def done(self, value: Any) -> Any:
        value = normalize_json(value)
        results.put(self._result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        self._end()
        return value

    def failed(self, error: Exception) -> None:
        kind = type(error)
        self._result.errors.append(
            TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="")
        )
        again = not isinstance(error, Dead | Cancel) and self._job.failures + 1 < self._home.retry.max_attempts
        if again or isinstance(error, Snooze | RetryAfter):
            close_old_connections()
            return
        results.put(self._result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        self._end()

    def _end(self) -> None:
        try:
            self._send(signals.task_finished)
        finally:
            close_old_connections()

    def _send(self, signal: Any) -> None:
        from headrace.integrations.django.backend import HeadraceBackend

        signal.send(sender=HeadraceBackend, task_result=self._result)
