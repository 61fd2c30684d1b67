"""A limit that finds its own rate, live: the API answers 429, the limit closes, tries one job, and rises again.

python examples/rate_limited_api.py

The code believes that the API takes 100 requests a second; it takes 25 and refuses the rest. A task that is refused
raises RetryAfter, which closes the limit for every worker; then one request at a time probes, the rate is halved, and
successes let it grow. Watch the refused ones fade. It ends by itself within some seconds.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace import Headrace, Limit, Retry, RetryAfter
from headrace.operate.limits import LimitEntry

REQUESTS = 220
TAKES = 25
"""Requests a second, and as many at once."""
WIDTH = 50

api = Limit("api", rate="100/s", burst=10)


class FakeApi:
    """Answers 200, or 429 when too many requests come at once."""

    def __init__(self) -> None:
        self._units = float(TAKES)
        self._at = time.monotonic()
        self.answers: Counter[int] = Counter()
        self.recent: Counter[int] = Counter()

    async def get(self) -> int:
        now = time.monotonic()
        self._units = min(TAKES, self._units + (now - self._at) * TAKES)
        self._at = now
        status = 200 if self._units >= 1 else 429
        self._units -= status == 200
        self.answers[status] += 1
        self.recent[status] += 1
        await asyncio.sleep(0.01)
        return status


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await show(Headrace(f"sqlite:///{Path(folder) / 'jobs.db'}"))


async def show(app: Headrace) -> None:
    fake = FakeApi()

    @app.task(name="api.call", limits=[api], retry=Retry(max_attempts=100))
    async def call() -> None:
        if await fake.get() == 429:
            raise RetryAfter("300ms", "429 Too Many Requests")

    console = Console()
    async with app, app.worker(concurrency=20):
        await app.aenqueue_many(call.job() for _ in range(REQUESTS))
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            while fake.answers[200] < REQUESTS:
                await asyncio.sleep(0.5)
                entry = (await app.limits.alist())["api"]
                seen = Counter({status: 2 * number for status, number in fake.recent.items()})
                fake.recent.clear()
                if console.is_terminal:
                    live.update(bars(seen, entry))
                else:
                    console.print(f"accepted {seen[200]:3}/s  refused {seen[429]:3}/s  {state(entry)}")
    refused = fake.answers[429] / fake.answers.total()
    console.print(f"{REQUESTS} requests got through; {fake.answers[429]} answers were 429 ({refused:.0%})")


def bars(seen: Counter[int], entry: LimitEntry) -> Table:
    """Requests per second, beside what the API accepts and what the limit allows."""
    grid = Table(title="requests a second", title_justify="left", box=None)
    for header in ("", "", ""):
        grid.add_column(header)
    rows = (
        ("accepted", seen[200], "green"),
        ("refused", seen[429], "red"),
        ("the API takes", TAKES, "blue"),
        ("the limit allows", round(entry.rule.rate or 0), "yellow"),
    )
    for name, number, colour in rows:
        grid.add_row(name, f"[{colour}]{'█' * min(number // 2, WIDTH):<{WIDTH}}[/]", str(number))
    grid.caption = state(entry)
    return grid


def state(entry: LimitEntry) -> str:
    """The state of the limit right now."""
    if entry.half_open:
        return "closed, then one at a time until one succeeds"
    return f"open at {entry.health.factor:.0%} of 100/s"


if __name__ == "__main__":
    logging.getLogger("headrace").addHandler(logging.NullHandler())  # log lines would disturb the live view
    asyncio.run(main())
