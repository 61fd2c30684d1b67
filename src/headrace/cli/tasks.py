"""`headrace tasks`: the tasks of an app, as its code declares them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import emit_list, say, table
from headrace.cli.target import app_argument, json_option, must_have_app, resolve, url_option
from headrace.model import duration

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.task.retry import Retry
    from headrace.task.task import Task


@click.command()
@app_argument
@url_option
@json_option
def command(app: str | None, url: str | None, as_json: bool) -> None:
    """List the tasks of APP: queue, kind, retries, limits and schedules. Reads the code only, not the store."""
    loaded = must_have_app(resolve(app=app, url=url, create=True)).app
    assert loaded is not None  # `must_have_app` has checked this.
    tasks = [loaded.tasks[name] for name in sorted(loaded.tasks)]
    if as_json:
        emit_list([_document(loaded, task) for task in tasks])
        return
    if not tasks:
        say("no tasks: declare one with @app.task, and import its module where the app is made")
        return
    headers = ("task", "queue", "kind", "retry", "limits", "schedule")
    cut, drop = {"task": 24, "limits": 12, "schedule": 12}, ("retry", "schedule", "limits", "kind")
    table(headers, [_row(loaded, task) for task in tasks], cut=cut, drop=drop)


def _row(app: Headrace, task: Task[..., Any]) -> tuple[str, ...]:
    options = task.options
    return (
        task.name,
        options.queue,
        options.executor,
        _retry(options.retry),
        ", ".join(limit.name for limit in options.limits),
        ", ".join(f"{name}: {rule}" for name, rule in _schedules(app, task).items()),
    )


def _retry(retry: Retry) -> str:
    if retry.max_attempts == 1:
        return "no"
    return f"{retry.max_attempts} attempts, {_shown(retry.base)} to {_shown(retry.cap)}"


def _shown(value: duration.Duration) -> str:
    return duration.show(duration.parse(value))


def _schedules(app: Headrace, task: Task[..., Any]) -> dict[str, str]:
    declared = app.schedules.declared
    return {name: schedule.rule for name, schedule in sorted(declared.items()) if schedule.job.task == task.name}


def _document(app: Headrace, task: Task[..., Any]) -> dict[str, Any]:
    options = task.options
    retry = options.retry
    return {
        "name": task.name,
        "does": (inspect.getdoc(task.function) or "").partition("\n")[0],
        "queue": options.queue,
        "priority": options.priority,
        "kind": options.executor,
        "timeout": None if options.timeout is None else duration.show(options.timeout),
        "max_attempts": retry.max_attempts,
        "retry_base": _shown(retry.base),
        "retry_cap": _shown(retry.cap),
        "limits": [limit.name for limit in options.limits],
        "schedules": [{"name": name, "rule": rule} for name, rule in _schedules(app, task).items()],
    }
