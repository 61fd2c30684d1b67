"""The load: the tasks that every workload runs, with a payload of about 100 bytes."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from headrace.app import Headrace
from headrace.store.contract import Store
from headrace.task.call import JobCall
from headrace.task.context import current_job
from headrace.task.event import Event
from headrace.task.limit import Limit
from headrace.task.retry import Retry
from headrace.task.steps import step
from headrace.task.task import Task

TEXT = "x" * 90
"""With the envelope around it a job's payload is about 100 bytes."""


Traffic = Literal["fifo", "uniform", "skewed", "limited", "keyed"]
"""Kinds of traffic: without tenants; equal tenants; nine in ten jobs of one tenant; without tenants under one limit;
equal tenants, each with its own limit. No limit is ever reached, so its overhead is measured."""


Body = Literal["noop", "sync", "fail_once"]
"""What a job does: nothing, as a coroutine or as a plain function in a thread; or it fails at the first attempt."""


class Load:
    """An app with a few tasks on one queue. Some do nothing, one notes its start."""

    def __init__(self, url: str, queue: str, *, app: Callable[[str], Headrace] = Headrace) -> None:
        self.app = app(url)
        self.began: list[tuple[int, float]] = []
        """(number, time.monotonic()): that clock is the same in every process of a machine."""

        @self.app.task(name="bench.noop", queue=queue)
        async def noop(text: str) -> None:
            del text

        @self.app.task(name="bench.mark", queue=queue)
        async def mark(number: int, text: str) -> None:
            del text
            self.began.append((number, time.monotonic()))

        @self.app.task(name="bench.limited", queue=queue, limits=[Limit("bench", concurrency=1_000_000)])
        async def limited(text: str) -> None:
            del text

        @self.app.task(name="bench.keyed", queue=queue, limits=[Limit("bench-tenant", concurrency=10_000, key=_whose)])
        async def keyed(text: str, tenant: str) -> None:
            del text, tenant

        @self.app.task(name="bench.sync", queue=queue)
        def plain(text: str) -> None:
            del text

        @self.app.task(name="bench.fail_once", queue=queue, retry=Retry(base="0s"))
        async def fail_once(text: str) -> None:
            del text
            if current_job().attempt == 1:
                raise ValueError("this job fails once")

        @self.app.task(name="bench.steps", queue=queue)
        async def steps(number: int, count: int) -> None:
            self.began.append((number, time.monotonic()))
            for _ in range(count):
                await step(_nothing)
                self.began.append((number, time.monotonic()))

        event = self.app.event("bench.event", int, queue=queue)

        @self.app.task(name="bench.wait", queue=queue)
        async def wait(number: int) -> None:
            await event.wait((queue, number))
            self.began.append((number, time.monotonic()))

        self._bodies: dict[Body, Task[[str], None]] = {"noop": noop, "sync": plain, "fail_once": fail_once}
        self.limited: Task[[str], None] = limited
        self.keyed: Task[[str, str], None] = keyed
        self.noop: Task[[str], None] = noop
        self.mark: Task[[int, str], None] = mark
        self.steps: Task[[int, int], None] = steps
        self.wait: Task[[int], None] = wait
        self.event: Event[int] = event

    def jobs(self, traffic: Traffic, count: int, tenants: int) -> Iterator[JobCall[Any]]:
        """Jobs of this kind of traffic, with the tenants mixed."""
        if traffic in {"fifo", "limited"}:
            task = self.limited if traffic == "limited" else self.noop
            return (task.job(TEXT) for _ in range(count))
        names = [f"tenant-{number}" for number in range(tenants)]
        if traffic == "keyed":
            keyed = [(self.keyed.using(tenant=name), name) for name in names]
            return (task.job(TEXT, name) for task, name in random.choices(keyed, k=count))
        tasks = [self.noop.using(tenant=name) for name in names]
        chances = None if traffic == "uniform" else [9 * (tenants - 1), *[1] * (tenants - 1)]
        return (task.job(TEXT) for task in random.choices(tasks, chances, k=count))

    def bodies(self, body: Body, count: int, size: int) -> Iterator[JobCall[Any]]:
        """Jobs of this kind, each with a random text of that length."""
        text = "".join(random.choices("0123456789abcdef", k=size))
        return itertools.repeat(self._bodies[body].job(text), count)

    async def open(self) -> None:
        """Open the app's store, so that no timed call does it."""
        await self.app.clients.here()

    def connect(self) -> Store:
        """A store for a worker, not yet opened."""
        return self.app.connect()


async def _nothing() -> None:
    """A step of no work, so that its cost is that of remembering it."""


def _whose(text: str, tenant: str) -> str:
    del text
    return tenant
