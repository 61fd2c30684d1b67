"""What jobs that wait for an event cost a worker: `python -m benchmarks.suspended --jobs 100000`, on SQLite.

A worker suspends so many jobs. Its memory before and after, its processor time while all of them wait, and the size of the file are
printed. The memory includes SQLite's page cache, which grows with the file up to 32 MiB for each of the worker's two
connections: so the bytes a job become fewer with more jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace import Headrace, Task
from headrace.runtime.memory import resident
from headrace.settings import Settings

WARM = 2000
"""Jobs that a worker has suspended before it is measured. It has loaded all its code then."""
IDLE = 5.0
"""Seconds over which the processor time is measured."""


def waiting_task(url: str) -> tuple[Headrace, Task[[int], int]]:
    app = Headrace(settings=Settings(url=url))
    go = app.event("go", int)

    @app.task(name="suspended.waits")
    async def waits(number: int) -> int:
        return await go.wait(number)

    return app, waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        asyncio.run(_work(options.work))
        return
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder, "jobs.db"), options.jobs)


async def _work(url: str) -> None:
    app, _ = waiting_task(url)
    async with app.worker(concurrency=200):
        await asyncio.Event().wait()


def _measure(file: Path, jobs: int) -> None:
    url = f"sqlite:///{file}"
    subprocess.run(
        [sys.executable, "-m", "headrace.cli", "migrate", "--store", url], check=True, stdout=subprocess.DEVNULL
    )
    app, waits = waiting_task(url)
    worker = subprocess.Popen([sys.executable, "-m", "benchmarks.suspended", "--work", url])
    try:
        app.enqueue_many(waits.job(number) for number in range(WARM))
        _until_blocked(app, WARM)
        before, size, began = resident(worker.pid), file.stat().st_size, time.monotonic()
        app.enqueue_many(waits.job(number) for number in range(WARM, WARM + jobs))
        _until_blocked(app, WARM + jobs)
        took, after = time.monotonic() - began, resident(worker.pid)
        spent = -_processor_time(worker.pid)
        time.sleep(IDLE)
        spent += _processor_time(worker.pid)
    finally:
        worker.terminate()
        worker.wait()
        app.close()
    print(f"{jobs:,} jobs suspended in {took:.1f} s, {jobs / took:,.0f} a second")
    print(
        f"worker memory: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after, {(after - before) / jobs:+.1f} bytes a job"
    )
    print(f"worker processor time while they wait: {spent / IDLE:.1%}")
    print(f"file: {(file.stat().st_size - size) / jobs:,.0f} bytes a job")


def _processor_time(pid: int) -> float:
    """Seconds, in its own code and in the system's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until_blocked(app: Headrace, count: int) -> None:
    while sum(queue.blocked for queue in app.stats().queues) < count:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
