"""Tasks with inputs for process slots: their child imports this module."""

from __future__ import annotations

import os

from headrace.app import Headrace

app = Headrace("memory://")


@app.task
async def make(count: int) -> list[int]:
    return list(range(count))


@app.task(executor="process")
def add_in_process(numbers: list[int], more: int) -> tuple[int, int]:
    return sum(numbers) + more, os.getpid()
