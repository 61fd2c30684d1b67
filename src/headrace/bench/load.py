"""The load: the tasks that every workload runs, with a payload of about 100 bytes."""

from __future__ import annotations

import time

from headrace.app import Headrace
from headrace.store.contract import Store
from headrace.task import Task

TEXT = "x" * 90
"""With the envelope around it a job's payload is about 100 bytes."""


class Load:
    """An app with two tasks on one queue: one does nothing, the other notes when it began."""

    def __init__(self, url: str, queue: str) -> None:
        self.app = Headrace(url)
        self.began: list[tuple[int, float]] = []
        """(number, time.monotonic()): that clock is the same in every process of a machine."""

        @self.app.task(name="bench.noop", queue=queue)
        async def noop(text: str) -> None:
            del text

        @self.app.task(name="bench.mark", queue=queue)
        async def mark(number: int, text: str) -> None:
            del text
            self.began.append((number, time.monotonic()))

        self.noop: Task[[str], None] = noop
        self.mark: Task[[int, str], None] = mark

    def connect(self) -> Store:
        """A store for a worker, not yet opened."""
        return self.app.connect()
