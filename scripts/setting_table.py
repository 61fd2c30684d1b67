"""Writes `docs/reference/settings.md` from `Settings`. Run it after you change a setting."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import griffe

from headrace.settings import Settings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "settings.md"

HEAD = """# Settings

A setting can be given in four places. The first of these that has a value is used:

1. an option of the command line, or an argument of `Headrace(…)`;
2. the environment, for example `HEADRACE_LEASE=30s`;
3. the table `[tool.headrace]` in `pyproject.toml`;
4. the default.

`headrace doctor` shows each value and where it came from, and warns of values that do not fit together. Write durations
as `500ms`, `15s`, `2m`, `1h` or `1d`.

```toml
[tool.headrace]
app = "shop:app"
queues = ["billing", "mail"]
keep_done = "6h"
```

```python
from headrace import Headrace

app = Headrace(lease="30s", heartbeat="10s")
assert app.settings.lease.total_seconds() == 30
```

"""

MORE = {
    "url": "See [SQLite](../operate/sqlite.md), [PostgreSQL](../operate/postgres.md), [Redis](../operate/redis.md) and [a server](../operate/remote-workers.md).",
    "threads": "See [Threads and database connections](../guide/workers.md#threads-and-database-connections).",
    "max_jobs": "See [Replacing processes](../guide/workers.md#replacing-processes).",
    "log_format": "See [Logs](../operate/logs.md).",
    "job_log_level": "See [Lines about jobs](../operate/logs.md#lines-about-jobs).",
    "trace_url": "See [The trace of a job](../operate/tracing.md#the-trace-of-a-job).",
    "reserve": "See [Reserved slots](../guide/priorities.md#reserved-slots).",
    "history_url": "See [A row for every job](../operate/history.md#a-row-for-every-job-in-clickhouse).",
    "key_ttl": "See [Idempotency keys](../guide/tasks.md#idempotency-keys).",
    "webhook_secret": "See [Verify them](../guide/webhooks.md#verify-them).",
    "webhook_allow": "See [Where webhooks may go](../guide/webhooks.md#where-webhooks-may-go).",
    "durability": "See [What survives what](../operate/index.md#what-survives-what).",
}
"""Pages that explain a setting. A docstring cannot link to them."""


def page() -> str:
    """The whole page."""
    rows = "\n".join(
        f"| `{each.name}` |{f' {shown(each.value)}' if each.value else ''} | {meaning(each.name)} |"
        for each in Settings().explain()
    )
    return f"{HEAD}| setting | default | meaning |\n| --- | --- | --- |\n{rows}\n"


def shown(value: str) -> str:
    """A default. A URL is code, because it is copied."""
    return f"`{value}`" if "://" in value else value


def meaning(name: str) -> str:
    """What the docstring of the field says, and where to read more."""
    text = " ".join(docs()[name].split())
    return " ".join(filter(None, (text, MORE.get(name))))


@cache
def docs() -> dict[str, str]:
    """The docstrings of the fields. They are read when first needed, because every test process imports this module."""
    settings = griffe.load("headrace.settings", search_paths=[str(ROOT / "src")])["Settings"]
    return {name: field.docstring.value for name, field in settings.attributes.items() if field.docstring is not None}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
