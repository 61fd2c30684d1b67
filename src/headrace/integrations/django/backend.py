"""The backend for `django.tasks`. Jobs are part of the transaction in which they are enqueued."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from headrace.app import Headrace
from headrace.client.enqueue_hooks import Enqueueing
from headrace.errors import ConfigError, OutcomeUnknown, Unavailable
from headrace.integrations.django import place, registry, results
from headrace.integrations.django.frame import BaseTaskBackend, InvalidTask, TaskResultDoesNotExist, signals
from headrace.integrations.django.place import Place
from headrace.model.job import REFERENCE, Batch, JobId, NewJob, job_id, new_batch, parse_id
from headrace.model.lane import check_queue, check_task_name
from headrace.runtime.portal import portal
from headrace.task.large_results import fetched

PATIENCE = 5.0
"""Seconds for which a call is repeated after a commit while the store does not answer."""


class HeadraceBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """`TASKS = {"default": {"BACKEND": "headrace.integrations.django.backend.HeadraceBackend"}}`

    Django makes one for every thread. `registry` holds what they share.
    """

    PATH: ClassVar = "headrace.integrations.django.backend.HeadraceBackend"

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.on_commit = bool(params.get("ENQUEUE_ON_COMMIT", True))
        """A job that cannot be written in the transaction is enqueued after its commit."""

    @property
    def place(self) -> Place:
        """Where the jobs are stored. Looked up each time, because tests rename Django's databases."""
        return place.find(self.alias, self.options)

    @property
    def app(self) -> Headrace:
        """The headrace app of this backend, for everything that Django's framework does not offer."""
        return self._home.app

    @property
    def _home(self) -> registry.BackendHome:
        return registry.home(self.alias, self.place, self.options, frozenset(self.queues))

    def lives_in(self, database: str) -> bool:
        """Whether the store itself is in this Django database."""
        return "url" not in self.options and self.options.get("database", DEFAULT_DB_ALIAS) == database

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """For `manage.py check`."""
        try:
            if not self._in_a_test:
                place.find(self.alias, self.options)
        except (ImproperlyConfigured, ConfigError) as error:
            yield checks.Error(str(error), obj=f"TASKS[{self.alias!r}]", id="headrace.E001")

    @property
    def _in_a_test(self) -> bool:
        """Django's test runner keeps databases in memory. Only enqueueing there is an error."""
        database = self.options.get("database", DEFAULT_DB_ALIAS)
        return self.lives_in(database) and place.in_memory(database)

    def close(self) -> None:
        """Close the store's connections, for example before a test database is dropped."""
        self._home.close()

    # ── tasks ────────────────────────────────────────────────────────────────

    def validate_task(self, task: Any) -> None:
        """Django calls this for every task. The call also registers the task for workers."""
        super().validate_task(task)
        try:
            check_queue(task.queue_name)
            check_task_name(task.module_path)
        except ConfigError as error:
            raise InvalidTask(str(error)) from None
        registry.remember(task)

    def discover(self) -> None:
        """Import the modules with tasks: `tasks` of every app, and OPTIONS["modules"]."""
        autodiscover_modules("tasks")
        for module in self.options.get("modules", ()):
            import_module(module)
        home = self._home
        for task in registry.known():
            home.declared(task)

    # ── jobs ─────────────────────────────────────────────────────────────────

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue in the current transaction, if the store is in that database; see `docs/guide/django.md`."""
        self.validate_task(task)
        result = results.fresh(task, "", args, kwargs, backend=self.alias)
        home = self._home
        ours = home.declared(task)
        later = task.run_after
        if later is not None and timezone.is_naive(later):
            later = timezone.make_aware(later)
        bound = ours.using(queue=task.queue_name, priority=task.priority, run_at=later)
        job = bound.job(*result.args, **result.kwargs).job
        with Enqueueing(home.app.hooks.on_enqueue, job) as hooked:
            id = self._put(home, hooked.traced(job))
            hooked.stored(1, id)
        results.put(result, id=str(id), enqueued_at=timezone.now())
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _put(self, home: registry.BackendHome, job: NewJob) -> JobId:
        database = home.place.database
        if database is not None and connections[database].in_atomic_block:
            return home.app.put_in(database, [job]).id(0)
        # Checked before the commit, because a refusal after it would lose the job.
        if any(queue.max_length is not None for queue in home.app.queues.values()):
            portal.run(lambda: home.admit([job]))
        batch = Batch(new_batch(), [job])
        if database is None and self.on_commit and _in_transaction():
            transaction.on_commit(lambda: _send(home, batch))
        else:
            _send(home, batch)
        return job_id(batch.id, 0)

    def get_result(self, result_id: str) -> Any:
        """A job by its id."""
        try:
            job = self.app.get(parse_id(result_id))
        except ConfigError:
            job = None
        if job is None:
            raise TaskResultDoesNotExist(result_id)
        task = registry.find(job.task)
        if task is None:
            self.discover()
            task = registry.find(job.task)
        if task is None:
            raise TaskResultDoesNotExist(f"{result_id}: it is a job of {job.task}, which is not a task of this project")
        if job.result is not None and job.result.startswith(REFERENCE):
            job = portal.run(functools.partial(fetched, job, self.app.hooks.large_results))
        return results.of_job(task, job, self._home.declared(task).codec, backend=self.alias)


def _in_transaction() -> bool:
    return DEFAULT_DB_ALIAS in set(connections) and bool(connections[DEFAULT_DB_ALIAS].in_atomic_block)


def _send(home: registry.BackendHome, batch: Batch) -> None:
    """Enqueue under the id that the caller already has, so that the call can be repeated."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            portal.run(lambda: home.enqueue(batch))
        except (Unavailable, OutcomeUnknown):
            if time.monotonic() >= give_up:
                raise
            time.sleep(0.1)
        else:
            break
    if home.app.inline_runner is not None:
        home.app.inline_runner.run([job_id(batch.id, ord) for ord in range(len(batch.jobs))])
