"""A bench for limits, uniqueness and policies: jobs made by the app's own tasks, workers with the app's duties."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from headrace.client.client import Client
from headrace.model.job import Job, JobId, JobState
from headrace.model.records import Filter
from headrace.task.handle import Put
from headrace.task.task import JobCall
from headrace.worker import Worker
from worker.harness import Bench


class FlowBench(Bench):
    """As `Bench`, with lanes, locks and rules as an app makes them."""

    async def put(self, *calls: JobCall[Any]) -> list[Put]:
        placed = await Client(self.store).enqueue([call.job for call in calls])
        return [placed.put(place) for place in range(len(calls))]

    async def ids(self, *calls: JobCall[Any]) -> list[JobId]:
        return [put.id for put in await self.put(*calls)]

    @asynccontextmanager
    async def working(self, *queues: str, **settings: Any) -> AsyncGenerator[Worker]:
        own = self.settings.replace(**settings) if settings else self.settings
        worker = Worker(self.app.tasks, self.store, own, queues=queues or None, duties=self.app.duties)
        if (events := self.events) is not None:
            worker.on_event(lambda name, fields: events.append((name, dict(fields))))
        async with worker:
            yield worker

    async def states(self, **where: Any) -> list[JobState]:
        return [job.state for job in await self.found(**where)]

    async def found(self, **where: Any) -> list[Job]:
        return (await self.store.find(Filter(**where), limit=1000)).jobs
