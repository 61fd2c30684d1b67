"""The cases of test_django.py, run in a process of their own: Django's settings are there once per process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

SITE = Path(__file__).parents[2] / "examples" / "django_site"
sys.path.insert(0, str(SITE))

import django  # noqa: E402 - the project must be importable first

django.setup()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402
from shop import tasks  # noqa: E402
from shop.models import Order  # noqa: E402

from headrace import JobContext, SyncCall  # noqa: E402
from headrace.errors import QueueFull  # noqa: E402
from headrace.integrations.django import place, registry  # noqa: E402
from headrace.integrations.django.backend import HeadraceBackend  # noqa: E402
from headrace.integrations.django.frame import (  # noqa: E402
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
    task_backends,
)
from headrace.model.job import JobState  # noqa: E402
from headrace.policy.queue import declare as declare_queue  # noqa: E402
from headrace.task.hooks import Hooks  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def migrated() -> Iterator[None]:
    call_command("migrate", verbosity=0)
    yield
    backend().close()
    connection.close()


@pytest.fixture(autouse=True)
def empty() -> None:
    Order.objects.all().delete()
    app = backend().app
    ids = [job.id for job in app.find(limit=1000).jobs]
    app.cancel(*ids)
    app.delete(*ids)


def backend() -> HeadraceBackend:
    found = task_backends["default"]
    assert isinstance(found, HeadraceBackend)
    return found


def jobs() -> list[str]:
    return [job.task for job in backend().app.find().jobs]


def work(*results: Any) -> None:
    """Run a worker of the project until these have ended, here."""

    async def until_done() -> None:
        app = backend().app
        async with app.worker(concurrency=4):
            for result in results:
                while not ((await app.aget(result.id)) or pytest.fail("no job")).state.finished:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await app.aclose()

    backend().discover()
    asyncio.run(until_done())


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction that ends badly."""
    with suppress(ZeroDivisionError), transaction.atomic():
        yield
        raise ZeroDivisionError


# ── transactions ─────────────────────────────────────────────────────────────


def test_a_job_goes_with_the_transaction() -> None:
    with transaction.atomic():
        order = Order.objects.create(item="tea", count=2)
        result = tasks.ship.enqueue(order.pk)
        assert jobs() == []
        with pytest.raises(TaskResultDoesNotExist):
            tasks.ship.get_result(result.id)
    assert jobs() == ["shop.tasks.ship"]
    assert tasks.ship.get_result(result.id).status == TaskResultStatus.READY


def test_a_rollback_leaves_no_job() -> None:
    with rolled_back():
        tasks.ship.enqueue(1)
    assert jobs() == []


def test_a_savepoint_leaves_no_job() -> None:
    with transaction.atomic():
        tasks.count.enqueue("kept")
        with rolled_back():
            tasks.ship.enqueue(1)
    assert jobs() == ["shop.tasks.count"]


def test_without_a_transaction_it_is_there_at_once() -> None:
    result = tasks.ship.enqueue(1)
    assert tasks.ship.get_result(result.id).args == [1]


async def test_async_views_can_enqueue() -> None:
    result = await tasks.ship.aenqueue(order=1)
    found = await tasks.ship.aget_result(result.id)
    assert (found.args, found.kwargs) == ([], {"order": 1})


def elsewhere(**params: Any) -> Any:
    """Jobs in a store of their own, which no transaction of Django's can reach."""
    options = {"url": os.environ["ELSEWHERE_URL"], **params.pop("OPTIONS", {})}
    default = {"BACKEND": HeadraceBackend.PATH, "QUEUES": [], "OPTIONS": options, **params}
    return override_settings(TASKS={"default": default})


def test_elsewhere_jobs_wait_for_the_commit() -> None:
    with elsewhere():
        with rolled_back():
            tasks.count.enqueue("lost")
        with transaction.atomic():
            result = tasks.count.enqueue("kept")
            assert jobs() == []
        assert jobs() == ["shop.tasks.count"]
        assert tasks.count.get_result(result.id).args == ["kept"]
        backend().app.delete(result.id)
        backend().close()


def test_a_full_queue_refuses_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (elsewhere(), nullcontext()):
        with where:
            monkeypatch.setitem(backend().app.queues, "default", declare_queue("default", max_length=1))
            with transaction.atomic():
                result = tasks.count.enqueue("kept")
                with pytest.raises(QueueFull):
                    tasks.count.enqueue("too many")
            assert jobs() == ["shop.tasks.count"]
            with pytest.raises(QueueFull):
                tasks.count.enqueue("too many")
            monkeypatch.delitem(backend().app.queues, "default")
            backend().app.delete(result.id)
            backend().close()


def test_elsewhere_they_need_not_wait() -> None:
    with elsewhere(ENQUEUE_ON_COMMIT=False):
        with rolled_back():
            result = tasks.count.enqueue("there all the same")
        assert jobs() == ["shop.tasks.count"]
        backend().app.delete(result.id)
        backend().close()


def test_elsewhere_with_an_outbox() -> None:
    with elsewhere(OPTIONS={"outbox": "default"}):
        call_command("migrate", verbosity=0)  # makes the outbox's table
        with rolled_back():
            tasks.count.enqueue("lost")
        with transaction.atomic():
            result = tasks.count.enqueue("kept")
        assert jobs() == []  # it is in the outbox, and any worker relays it

        async def relayed() -> None:
            app = backend().app
            async with app.worker():
                await app.tasks["shop.tasks.count"].handle(result.id).aresult(timeout=30)
            await app.aclose()

        backend().discover()
        asyncio.run(relayed())
        assert jobs() == ["shop.tasks.count"]
        backend().app.delete(result.id)
        backend().close()


# ── running ──────────────────────────────────────────────────────────────────


def test_a_worker_runs_it() -> None:
    order = Order.objects.create(item="tea", count=2)
    heard: list[tuple[str, str]] = []

    def listen(name: str) -> Any:
        def heard_it(*, task_result: Any, **_: Any) -> None:
            heard.append((name, task_result.status))

        return heard_it

    listeners = {name: listen(name) for name in ("task_enqueued", "task_started", "task_finished")}
    for name, listener in listeners.items():
        getattr(signals, name).connect(listener)
    try:
        result = tasks.ship.enqueue(order.pk)
        work(result)
    finally:
        for name, listener in listeners.items():
            getattr(signals, name).disconnect(listener)
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, "2 × tea shipped")
    assert (result.attempts, result.errors, result.is_finished) == (1, [], True)
    assert result.enqueued_at <= result.finished_at
    order.refresh_from_db()
    assert order.shipped
    assert heard == [("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "SUCCESSFUL")]


def test_async_tasks_and_contexts() -> None:
    order = Order.objects.create(item="tea", count=2)
    reminded, counted = tasks.remind.enqueue(order.pk), tasks.count.enqueue(word="one")
    work(reminded, counted)
    assert tasks.remind.get_result(reminded.id).return_value == "remember the tea"
    assert tasks.count.get_result(counted.id).return_value == ["one", 1]


def test_a_failure() -> None:
    with override_settings(TASKS={"default": {"BACKEND": HeadraceBackend.PATH, "OPTIONS": {"max_attempts": 1}}}):
        result = tasks.break_down.enqueue("as asked")
        work(result)
        result.refresh()
        backend().close()
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert "as asked" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_failure_is_tried_again() -> None:
    result = tasks.break_down.enqueue("as asked")

    async def first_attempt() -> None:
        app = backend().app
        async with app.worker():
            while ((await app.aget(result.id)) or pytest.fail("no job")).failures == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await app.aclose()

    backend().discover()
    asyncio.run(first_attempt())
    result.refresh()
    job = backend().app.get(result.id)
    # On a slow machine the second attempt may begin before the worker ends.
    assert job is not None
    assert job.failures >= 1
    assert (result.status, len(result.errors)) == (TaskResultStatus.READY, job.failures)


def test_priority_queue_and_time() -> None:
    later = timezone.now() + timedelta(hours=1)
    result = tasks.ship.using(priority=7, queue_name="default", run_after=later).enqueue(1)
    job = backend().app.get(result.id)
    assert job is not None
    assert (job.priority, job.queue, job.state, job.run_at) == (7, "default", JobState.SCHEDULED, later)
    assert registry.find("shop.tasks.ship").queue_name == "shipping"  # as it was declared


# ── mistakes ─────────────────────────────────────────────────────────────────


def test_what_is_refused() -> None:
    with pytest.raises(TypeError):
        tasks.count.enqueue(object())
    with pytest.raises(InvalidTask):
        tasks.count.using(queue_name="unknown")
    with override_settings(TASKS={"default": {"BACKEND": HeadraceBackend.PATH, "QUEUES": []}}):
        with pytest.raises(InvalidTask, match="not a valid queue name"):
            tasks.count.using(queue_name="No Name")
        assert tasks.count.using(queue_name="any").queue_name == "any"
    for id in ("nonsense", str(uuid4())):
        with pytest.raises(TaskResultDoesNotExist):
            backend().get_result(id)
    assert jobs() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"uri": "x"}, "unknown OPTIONS uri"),
        ({"url": "redis://x", "database": "default"}, "where the jobs live"),
        ({"outbox": "default"}, "give its url"),
    ],
)
def test_mistakes_in_the_settings(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=words):
        place.find("default", options)
    with override_settings(TASKS={"default": {"BACKEND": HeadraceBackend.PATH, "OPTIONS": options}}):
        (message,) = backend().check()
        assert words in message.msg


# ── the site and its command ─────────────────────────────────────────────────


def manage(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", *args],
        cwd=SITE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_example_ships() -> None:
    client = Client()
    sold_out = client.post("/orders", {"item": "nothing", "count": 1}, content_type="application/json")
    assert sold_out.status_code == 409
    assert (jobs(), Order.objects.count()) == ([], 0)
    made = client.post("/orders", {"item": "tea", "count": 2}, content_type="application/json").json()
    assert client.get(f"/jobs/{made['job']}").json() == {"status": "READY", "receipt": None}
    assert client.get(f"/jobs/{uuid4()}").status_code == 404

    listed = manage("headrace", "jobs", "list", "--queue", "shipping", "--json")
    assert [job["id"] for job in json.loads(listed.communicate(timeout=60)[0])["items"]] == [made["job"]]
    worker = manage("headrace", "worker", "--processes", "2", "--log-level", "warning")
    try:
        handle = backend().app.tasks["shop.tasks.ship"].handle(made["job"])
        assert handle.result(timeout=60) == "2 × tea shipped"
    finally:
        worker.terminate()
        _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 0, errors
    assert "Traceback" not in errors
    assert client.get(f"/jobs/{made['job']}").json() == {"status": "SUCCESSFUL", "receipt": "2 × tea shipped"}
    assert Order.objects.get(pk=made["order"]).shipped


def test_the_command_names_mistakes() -> None:
    wrong = manage("headrace", "--backend", "other", "jobs", "list")
    assert "TASKS has no 'other'" in wrong.communicate(timeout=60)[1]
    assert wrong.returncode == 78


def test_migrate_is_safe_to_repeat() -> None:
    again = manage("migrate", "--no-input")
    out, errors = again.communicate(timeout=60)
    assert (again.returncode, errors) == (0, "")
    assert "No migrations to apply" in out


# ── hooks ────────────────────────────────────────────────────────────────────


def test_hooks_of_the_app_may_use_the_database_and_surround_its_tasks() -> None:
    app, seen = backend().app, list[str]()
    declared, app.hooks = app.hooks, Hooks()
    order = Order.objects.create(item="tea", count=2)

    @app.lifespan
    def with_a_connection() -> Iterator[None]:
        seen.append(f"{Order.objects.count()} orders")
        yield
        connection.close()
        seen.append("closed")

    @app.middleware
    def around(job: JobContext, call: SyncCall) -> Any:
        seen.append(job.task)
        return call()

    backend().discover()
    task = app.tasks["shop.tasks.ship"]
    task.hooks = app.hooks
    try:
        work(tasks.ship.enqueue(order.pk))
    finally:
        app.hooks = task.hooks = declared
    assert seen == ["1 orders", "shop.tasks.ship", "closed"]
