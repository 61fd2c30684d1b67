"""Helpers for tests with real servers: wait for a condition, wait for an answer, many jobs in calls of a thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from conformance.kit import put_jobs
from headrace.errors import StoreError
from headrace.model.job import JobId, NewJob
from headrace.store.redis.store import RedisStore

T = TypeVar("T")


async def eventually(so: Callable[[], bool]) -> None:
    """Until it is so; a server's state has no event to await. The test's own time limit ends it."""
    while not await asyncio.to_thread(so):  # noqa: ASYNC110 - asks another process
        await asyncio.sleep(0.005)


async def asked_until_answered(verb: Callable[..., Awaitable[T]], *args: object) -> T:
    """What a worker does through an outage: ask again."""
    while True:
        try:
            return await verb(*args)
        except StoreError:
            await asyncio.sleep(0.01)


async def put_many(store: RedisStore, jobs: Sequence[NewJob]) -> list[JobId]:
    """As many as the store takes in one call, until all are there."""
    return [id for at in range(0, len(jobs), 1000) for id in await put_jobs(store, *jobs[at : at + 1000])]
