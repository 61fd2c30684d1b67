"""Helpers for tests with real servers: wait for a condition, wait for an answer, many jobs in calls of a thousand, general scripts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Final, TypeVar

from conformance.kit import put_jobs
from headrace.errors import StoreError
from headrace.model.job import JobId, NewJob
from headrace.store.redis.client.scripts import Script, read_part
from headrace.store.redis.store import RedisStore

T = TypeVar("T")

SHORT: Final = [
    read_part(files("headrace.store.redis") / "lua" / f"{part}.lua")
    for part in ("claim/one", "settle/one", "gates/signal_one")
]
"""The parts with which some scripts begin, for the plainest cases."""


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


def general_script(script: Script) -> Script:
    """The script without the part for the plainest case."""
    source = script.source.decode()
    for part in SHORT:
        source = source.removeprefix(part)
    return Script(script.verb, source.encode(), hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def take_general_scripts(store: RedisStore) -> None:
    """From here on the scripts of this store have no parts for the plainest cases."""
    wire = store.client.wire
    run = wire.run

    def run_general(script: Script, *args: Any, **options: Any) -> Awaitable[Any]:
        return run(general_script(script), *args, **options)

    wire.run = run_general  # type: ignore[method-assign]
