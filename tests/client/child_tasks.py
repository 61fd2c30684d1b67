"""Tasks with children for process slots: their child process imports this module, and finds the store in its environment."""

from __future__ import annotations

import os

from headrace import Headrace, JobDead, gather_sync, group

app = Headrace(os.environ.get("CHILD_TASKS_STORE", "memory://"))


@app.task
async def double(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number * 2


@app.task(executor="process")
def in_process(numbers: list[int]) -> list[int]:
    one, two = gather_sync(double.job(numbers[0]), double.job(numbers[1]))
    more = group(double.job(number) for number in numbers).wait_sync()
    try:
        double.using(max_attempts=1).job(-1).wait_sync()
    except JobDead:
        return [one, two, *more]
    raise AssertionError
