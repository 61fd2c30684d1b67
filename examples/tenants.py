"""Fair tenants, live: one shop enqueues thousands of jobs at once, others have a few, and no shop waits for long.

python examples/tenants.py

Three shops share one queue of a SQLite file in a temporary folder. `acme` enqueues 3,000 jobs in one go; `globex` and
`initech` come a second later with a handful, then with some more. In a plain queue they would wait behind all of acme's.
Here tenants take turns, and globex has paid for two jobs in a turn. It ends by itself within some seconds.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace import Headrace, current_job

BURST = 3000
SHOPS = {"acme": "red", "globex": "green", "initech": "cyan"}
WIDTH = 40


class Tally:
    """Which jobs ran, for which shop, and how long they had waited."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.recent: Counter[str] = Counter()
        self.waits: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, shop: str, waited: float) -> None:
        self.done[shop] += 1
        self.recent[shop] += 1
        self.waits[shop].append(waited)


def shop_of(shop: str) -> str:
    """The tenant of a job."""
    return shop


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await show(Headrace(f"sqlite:///{Path(folder) / 'jobs.db'}"))


async def show(app: Headrace) -> None:
    tally = Tally()
    app.queue("orders", weights={"globex": 2})

    @app.task(name="orders.pack", queue="orders", tenant=shop_of)
    async def pack(shop: str) -> None:
        tally.add(shop, time.time() - current_job().enqueued_at.timestamp())
        await asyncio.sleep(0.01)

    async def shops() -> None:
        await app.aenqueue_many(pack.job("acme") for _ in range(BURST))
        for _ in range(3):
            await asyncio.sleep(1)
            await app.aenqueue_many(pack.job("globex") for _ in range(200))
            await app.aenqueue_many(pack.job("initech") for _ in range(100))

    total = BURST + 3 * 300
    console = Console()
    async with app, app.worker(concurrency=10):
        producing = asyncio.create_task(shops())
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            while tally.done.total() < total:
                await asyncio.sleep(0.25)
                if console.is_terminal:
                    live.update(bars(tally))
                tally.recent.clear()
        await producing
    console.print(summary(tally))


def bars(tally: Tally) -> Table:
    """Each shop's share of the jobs in the last quarter of a second."""
    grid = Table(title="who runs now", title_justify="left", box=None)
    for header, align in (("shop", "left"), ("share", "left"), ("done", "right"), ("last wait", "right")):
        grid.add_column(header, justify="right" if align == "right" else "left")
    for shop, colour in SHOPS.items():
        share = tally.recent[shop] / (tally.recent.total() or 1)
        waited = f"{tally.waits[shop][-1]:.2f} s" if tally.waits[shop] else ""
        grid.add_row(
            shop, f"[{colour}]{'█' * round(share * WIDTH):<{WIDTH}}[/] {share:4.0%}", f"{tally.done[shop]:,}", waited
        )
    return grid


def summary(tally: Tally) -> Table:
    """How long each shop's jobs waited."""
    grid = Table(title="how long jobs waited", title_justify="left")
    for header in ("shop", "jobs", "median", "longest"):
        grid.add_column(header, justify="left" if header == "shop" else "right")
    figure: Callable[[float], str] = "{:.2f} s".format
    for shop in SHOPS:
        waits = tally.waits[shop]
        grid.add_row(shop, f"{len(waits):,}", figure(statistics.median(waits)), figure(max(waits)))
    return grid


if __name__ == "__main__":
    asyncio.run(main())
