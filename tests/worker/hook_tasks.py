"""An app with hooks and process tasks: their child imports this module. Hooks and tasks write what they do to a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from headrace import AsyncCall, Headrace, JobContext, Retry, SyncCall, WorkerInfo, current_job

app = Headrace()
ONCE = Retry(max_attempts=1)
FILE = "HEADRACE_TEST_HOOKS"
"""The environment variable that names the file."""
SLOT = "slot"
WORKER = "worker"
pool: list[str] = []
"""Stands for a connection pool that each process opens for itself."""


def note(text: str) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@app.on_start
def open_pool(info: WorkerInfo) -> None:
    pool.append("open")
    place = SLOT if info.slot else WORKER
    note(f"{place} start {','.join(info.queues)}")
    if os.environ.get("HEADRACE_TEST_FAIL") == place or Path(os.environ[FILE] + ".away").exists():
        raise ConnectionError("no database for you")


@app.on_stop
def close_pool(info: WorkerInfo) -> None:
    pool.clear()
    note(f"{SLOT if info.slot else WORKER} stop")


@app.lifespan
async def loops(info: WorkerInfo) -> AsyncIterator[None]:
    place = SLOT if info.slot else WORKER
    note(f"{place} enter")
    yield
    note(f"{place} exit")


@app.lifespan
def plain() -> Iterator[None]:
    yield


@app.middleware
def around(job: JobContext, call: SyncCall) -> Any:
    assert job.id == current_job().id
    return f"<{call()}>"


@app.middleware
async def around_async(job: JobContext, call: AsyncCall) -> Any:
    return f"[{await call()}]"


@app.task(executor="process")
def use_pool() -> str:
    return f"{pool[0]} in {os.getpid()}"


@app.task(executor="process")
async def use_pool_async() -> str:
    return f"{pool[0]} in {os.getpid()}"


@app.task(executor="process", retry=ONCE, timeout="100ms")
def sleep_long() -> None:
    time.sleep(60)


@app.task(retry=ONCE)
async def in_the_worker() -> str:
    return pool[0]


if __name__ == "__main__":
    sys.exit("this module is imported by workers")
