"""Writes `docs/reference/options.md` from the declarations of the options. Run it after you change one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.policy import queue, schedule_options
from headrace.task import job_options, limit_options, task_options
from headrace.task.option import Option

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "options.md"

HEAD = """# Options

The tables list every option of tasks, jobs, queues, schedules and limits. Leaving an option out and giving None is the same.
Durations are written `"250ms"`, `"30s"`, `"5m"`, `"2h"` or `"7d"`, in Python also as a `timedelta`. In Python, a time is a
`datetime` with a time zone. In JSON and on the command line it is written `2030-01-31T08:00:00Z`. The flag of an option
has hyphens in place of underscores: `max_attempts` is `--max-attempts`.
"""

SUBJECTS: tuple[tuple[str, str, Mapping[str, Option]], ...] = (
    (
        "Options of a task",
        "`@app.task(…)` takes these options. [Tasks and arguments](../guide/tasks.md) explains them.",
        task_options.OPTIONS,
    ),
    (
        "Options of a job",
        (
            "`task.using(…)` takes these options, and so do the body of `POST /v1/jobs` and `headrace enqueue`, except those that\n"
            "are marked as Python only. An option of a job replaces that of its task."
        ),
        job_options.OPTIONS,
    ),
    (
        "Options of a queue",
        (
            "`app.queue(name, …)` takes these options. [Tenants](../guide/tenants.md) and [Priorities](../guide/priorities.md)\n"
            "explain them."
        ),
        queue.OPTIONS,
    ),
    (
        "Options of a schedule",
        (
            "`app.schedule(name, job=…, …)` takes these options, and so do `app.schedules.add`, the body of `POST /v1/schedules` and\n"
            "`headrace schedules add`. [Schedules](../guide/schedules.md) explains them."
        ),
        schedule_options.OPTIONS,
    ),
    (
        "Options of a limit",
        (
            "`Limit(name, …)` takes these options. `app.limits.set`, the body of `PUT /v1/limits/{name}` and `headrace limits set`\n"
            "take those that are not marked as Python only. [Limits](../guide/limits.md) explains them."
        ),
        limit_options.LIMIT_OPTIONS,
    ),
)


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n## {title}\n\n{intro}\n\n{table(options)}" for title, intro, options in SUBJECTS)


def table(options: Mapping[str, Option]) -> str:
    """One row for each option."""
    mixed = len({each.code_only for each in options.values()}) > 1
    rows = [
        f"| `{each.name}` | {_meaning(each, mixed=mixed)} | {each.default or 'none'} |" for each in options.values()
    ]
    return "\n".join(("| option | meaning | default |", "| --- | --- | --- |", *rows)) + "\n"


def _meaning(option: Option, *, mixed: bool) -> str:
    return option.doc + (" Python only." if mixed and option.code_only else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
