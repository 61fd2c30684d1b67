"""Tasks with steps for process slots: their child imports this module."""

from __future__ import annotations

from pathlib import Path

from headrace.app import Headrace
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.task.steps import sleep_sync, step_sync

app = Headrace("memory://")


def write(path: str, word: str, fails: bool = False) -> None:
    with Path(path).open("a") as file:
        file.write(f"{word} ")
    if fails:
        raise ConnectionError(word)


@app.task(executor="process", retry=Retry(max_attempts=3, base="0s"))
def in_process(path: str) -> None:
    step_sync(write, path, "a")
    step_sync.using(key="b")(write, path, "b", fails=current_job().attempt == 1)
    sleep_sync("1s")
    step_sync(write, path, "c")


go = app.event("process.go", str)


@app.task(executor="process")
def waits_in_process(path: str) -> None:
    write(path, go.wait_sync("k"))
