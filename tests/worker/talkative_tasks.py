"""Tasks that report from a process slot: their child imports this module."""

from __future__ import annotations

import logging
import threading
import time

from headrace.app import Headrace
from headrace.model.outcome import Snooze
from headrace.task.context import JobLogHandler, current_job

app = Headrace("memory://")
log = logging.getLogger("talkative")
log.addHandler(JobLogHandler(logging.WARNING))


@app.task(executor="process")
def talk(path: str) -> str:
    """Says something, and waits for a file before it ends."""
    job = current_job()
    job.progress_sync(0.25, "in a process")
    job.log("one")
    job.log("\ud800 two")
    while not _exists(path):
        time.sleep(0.005)
    job.progress_sync(1)
    return "said"


@app.task(executor="process")
async def talk_in_a_loop() -> None:
    job = current_job()
    await job.progress(0.5, "looped")
    job.log("three")


@app.task(executor="process", redact=["password"])
def complain(password: str) -> None:
    log.info("this is not kept")
    log.warning("wrong: %s", password)


@app.task(executor="process")
def outlived() -> None:
    """Leaves a thread behind that goes on talking."""
    job = current_job()
    job.log("mine")

    def go_on() -> None:
        for _ in range(200):
            job.log("late")
            time.sleep(0.005)

    threading.Thread(target=go_on, daemon=True).start()


@app.task(executor="process")
def silent() -> None:
    time.sleep(0.3)


@app.task(executor="process")
def put_off() -> None:
    raise Snooze("1h")


def _exists(path: str) -> bool:
    try:
        with open(path, encoding="utf-8"):  # noqa: PTH123  # a child starts quicker without pathlib
            return True
    except FileNotFoundError:
        return False
