"""The app that the worker processes of these tests run. Every task tells a witness file, which no store can make up."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import time

from headrace.app import Headrace
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.task.steps import step

app = Headrace()


def tell(event: str, number: int) -> None:
    job = current_job()
    line = {"event": event, "number": number, "job": str(job.id), "attempt": job.attempt, "pid": os.getpid()}
    fd = os.open(os.environ["CRASH_WITNESS"], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


@app.task(name="quick")
async def quick(number: int) -> int:
    tell("start", number)
    await asyncio.sleep(0)
    tell("end", number)
    return number


def note(number: int, part: int) -> str:
    tell(f"step {part}", number)
    return f"{number}.{part}"


@app.task(name="stepwise")
async def stepwise(number: int) -> list[str]:
    return [await step(note, number, part) for part in range(4)]


@app.task(name="nap")
async def nap(number: int, seconds: float) -> int:
    tell("start", number)
    await asyncio.sleep(seconds)
    tell("end", number)
    return number


@app.task(name="gated")
async def gated(number: int) -> int:
    """Until the test opens the gate."""
    tell("start", number)
    while not os.path.exists(os.environ["CRASH_WITNESS"] + ".open"):  # noqa: ASYNC110, ASYNC240, PTH110  # another process
        await asyncio.sleep(0.01)
    tell("end", number)
    return number


@app.task(name="poison", retry=Retry(max_crashes=3))
async def poison(how: str) -> None:
    tell("start", -1)
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="hold_gil")
async def hold_gil(number: int, seconds: float) -> None:
    tell("start", number)
    # PyDLL does not give the GIL back during the call: no thread of this process runs meanwhile.
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    tell("end", number)


@app.task(name="stuck", timeout="300ms", retry=Retry(max_crashes=1))
async def stuck() -> None:
    tell("start", -1)
    time.sleep(120)  # noqa: ASYNC251  # the fault under test


def is_first() -> bool:
    """Whether no attempt asked before. The number of the attempt does not tell: a job may be claimed, handed back and claimed again
    before it starts."""
    try:
        os.close(os.open(os.environ["CRASH_WITNESS"] + ".first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@app.task(name="zombie", retry=Retry(max_attempts=1))
async def zombie(number: int) -> int:
    tell("start", number)
    if is_first():
        await asyncio.sleep(0.2)
        # Frozen here, for longer than the lease. Woken up it goes on as if nothing had happened.
        os.kill(os.getpid(), signal.SIGSTOP)
    tell("end", number)
    return current_job().attempt
