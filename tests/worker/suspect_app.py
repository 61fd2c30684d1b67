"""Tasks for suspects, importable in a child; a gate is a file that appears."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from headrace.app import Headrace
from headrace.errors import Unsupported
from headrace.task.context import current_job
from headrace.task.limit import Limit
from headrace.task.retry import Retry

app = Headrace("memory://")


def tell(folder: str, number: int) -> None:
    (Path(folder) / f"{number}-{current_job().attempt}-{os.getpid()}").touch()


async def gate(folder: str) -> None:
    while not (Path(folder) / "open").exists():  # noqa: ASYNC110  # another process opens it
        await asyncio.sleep(0.01)


@app.task(name="wait")
async def wait(folder: str, number: int) -> int:
    tell(folder, number)
    await gate(folder)
    return os.getpid()


@app.task(name="limited", limits=[Limit("suspects-few", concurrency=100)])
async def limited(folder: str, number: int) -> int:
    tell(folder, number)
    await gate(folder)
    return os.getpid()


@app.task(name="poison")
async def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="completes", retry=Retry(max_attempts=1))
async def completes() -> str:
    try:
        await current_job().complete(None, tx=object())
    except Unsupported as error:
        return str(error)
    return ""


@app.task(name="in_a_thread")
def in_a_thread() -> int:
    return os.getpid()


@app.task(name="loops")
async def loops() -> int:
    """The loop's own id: the same for every job of one child."""
    return id(asyncio.get_running_loop())


@app.task(name="fails", retry=Retry(max_attempts=1))
async def fails() -> None:
    raise ValueError("as it does everywhere")


@app.task(name="quick")
async def quick() -> int:
    return os.getpid()
