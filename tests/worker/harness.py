"""A worker on a memory store, and how to wait for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from headrace.app import Headrace
from headrace.model.job import Batch, Job, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.settings import Settings
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.task.codec import JobOptions, encode_options
from headrace.task.task import Task
from headrace.worker import Duties, Worker

WAIT = 60.0
"""Seconds until a condition that should hold soon counts as broken."""


async def until(condition: Callable[[], Any], what: str = "") -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.005)
    assert condition(), what


class Tally:
    """Counts what happens in the event loop, and comes back when there was so much of it."""

    def __init__(self) -> None:
        self.count = 0
        self._bell = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        self._bell.set()

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(WAIT):
            while self.count < count:
                self._bell.clear()
                await self._bell.wait()


class Events(list[tuple[str, dict[str, Any]]]):
    """What workers tell, and how to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._bell = asyncio.Event()

    def append(self, event: tuple[str, dict[str, Any]]) -> None:
        super().append(event)
        self._bell.set()

    async def heard(self, name: str) -> None:
        async with asyncio.timeout(WAIT):
            while not any(each == name for each, _ in self):
                self._bell.clear()
                await self._bell.wait()


class Bench:
    """One app, one store, as many workers as a test wants."""

    def __init__(self, store: Store | None = None, **settings: Any) -> None:
        self.app = Headrace("memory://")
        self.store: Store = store or MemoryStore()
        defaults: dict[str, Any] = {
            "url": "memory://",
            "concurrency": 10,
            "lease": timedelta(seconds=15),
            "heartbeat": timedelta(milliseconds=50),
            "poll": timedelta(milliseconds=200),
            "reap": timedelta(milliseconds=100),
            "drain": timedelta(seconds=1),
            "kill_grace": timedelta(milliseconds=500),
        }
        self.settings = Settings(**(defaults | settings))
        self.events: list[tuple[str, dict[str, Any]]] | None = None
        """Set to a list to get the workers' events; most tests take the path of a worker without listeners."""

    async def enqueue(self, task: Task[..., Any] | str, *args: Any, options: JobOptions | None = None) -> JobId:
        [id] = await self.enqueue_many(task, [args], options=options)
        return id

    async def enqueue_many(
        self, task: Task[..., Any] | str, calls: list[tuple[Any, ...]], *, options: JobOptions | None = None
    ) -> list[JobId]:
        lane = Lane()
        own = encode_options(options) if options else None
        jobs = [
            NewJob(task, b"\x92\x90\x80", lane, options=own)
            if isinstance(task, str)
            else NewJob(task.name, task.codec.encode(args, {}), lane, options=own)
            for args in calls
        ]
        batch = Batch(new_batch(), jobs)
        await self.store.enqueue(batch)
        return [job_id(batch.id, ord) for ord in range(len(jobs))]

    @asynccontextmanager
    async def worker(self, **settings: Any) -> AsyncGenerator[Worker]:
        own = self.settings.replace(**settings) if settings else self.settings
        duties = Duties(hooks=self.app.hooks)
        worker = Worker(self.app.tasks, self.store, own, queues=("default",), duties=duties)
        if (events := self.events) is not None:
            worker.on_event(lambda name, fields: events.append((name, dict(fields))))
        async with worker:
            yield worker

    async def get(self, id: JobId) -> Job:
        [job] = await self.store.get([id])
        assert job is not None
        return job

    async def reach(self, id: JobId, *states: JobState) -> Job:
        """Wait until the job is in one of these states."""
        async with asyncio.timeout(WAIT):
            while True:
                job = await self.get(id)
                if job.state in states:
                    return job
                await asyncio.sleep(0.005)

    async def work(self, task: Task[..., Any] | str, *args: Any, options: JobOptions | None = None) -> Job:
        """Enqueue one job, run it, and answer what became of it when the worker had nothing left to do."""
        id = await self.enqueue(task, *args, options=options)
        async with self.worker() as worker:
            async with asyncio.timeout(WAIT):
                await worker.idle.wait()
        return await self.get(id)
