"""Tasks for process slots: their child imports this module."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import time

from headrace.app import Headrace
from headrace.task.context import current_job
from headrace.task.retry import Retry

app = Headrace("memory://")
ONCE = Retry(max_attempts=1)


@app.task(executor="process", timeout="100ms", retry=ONCE)
def sleep_long() -> None:
    time.sleep(60)


@app.task(executor="process", timeout="100ms", retry=ONCE)
def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


@app.task(executor="process", retry=ONCE)
def sleep_for_ever() -> None:
    time.sleep(60)


@app.task(executor="process", retry=ONCE)
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


@app.task(executor="process")
def double(number: int) -> int:
    return 2 * number


@app.task(executor="process", retry=ONCE)
def fail() -> None:
    raise ValueError("in a process")


@app.task(executor="process")
def who() -> str:
    return str(current_job().id)


@app.task(executor="process")
async def in_a_loop() -> str:
    await asyncio.sleep(0)
    return "looped"


@app.task(executor="process")
def large(size: int) -> bytes:
    return b"x" * size


_kept: list[bytearray] = []


@app.task(executor="process")
def pid_after(megabytes: int = 0, farewell: str = "") -> int:
    """Grows by so much, and leaves a file when its process ends by itself."""
    _kept.append(bytearray(os.urandom(1) * (megabytes << 20)))
    if farewell:
        atexit.register(lambda: os.close(os.open(farewell, os.O_CREAT | os.O_WRONLY)))
    return os.getpid()
