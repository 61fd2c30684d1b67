"""Workers through kills of their server: SIGKILL under load, restart from its log, and on they go by themselves.

Three kills per kind of server here; `HEADRACE_TEST_KILLS=20` makes it twenty, and `--log-cli-level=INFO` says how long
each took.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from math import inf
from time import monotonic

import pytest

from headrace import Headrace
from headrace.client.client import Client
from headrace.errors import StoreError
from headrace.model.job import JobId, JobState
from headrace.settings import Settings
from headrace.store.redis.store import RedisStore
from headrace.worker import Worker
from servers.redis import Flavour, RedisServer
from stores.redis.kit import asked_until_answered

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
KILLS = int(os.environ.get("HEADRACE_TEST_KILLS", "3"))
AGAIN_WITHIN = 60.0
"""Seconds from the server's return to the first job of after the kill that is done, on the slowest machine."""
WORKERS = 2

log = logging.getLogger(__name__)


class Scene:
    """A producer and some workers, all in this process, on one server. None of them is restarted."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.app = Headrace(server.url())
        self.acknowledged: dict[JobId, float] = {}
        self.kills: list[tuple[float, float]] = []
        """Each happened between two moments."""
        self._round = 0
        self._ran = asyncio.Event()
        self._stopping = False

        @self.app.task(name="note")
        async def note(round: int) -> None:
            if round == self._round:
                self._ran.set()

        self.note = note

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        settings = Settings(
            url=self._server.url(),
            lease=timedelta(seconds=3),
            heartbeat=timedelta(milliseconds=500),
            reap=timedelta(milliseconds=500),
        )
        async with AsyncExitStack() as stack:
            for _ in range(WORKERS):
                store = RedisStore(self._server.url())
                await store.open()
                stack.push_async_callback(store.close)
                await stack.enter_async_context(Worker(self.app.tasks, store, settings))
            yield

    async def produce(self, client: Client) -> None:
        while not self._stopping:
            jobs = [self.note.job(self._round).job for _ in range(20)]
            try:
                placed = await client.enqueue(jobs)
            except StoreError:
                await asyncio.sleep(0.01)
                continue
            self.acknowledged.update(dict.fromkeys([placed.id(place) for place in range(20)], monotonic()))
            await asyncio.sleep(0.005)

    def stop_producing(self) -> None:
        self._stopping = True

    async def ran_in_this_round(self) -> None:
        await self._ran.wait()

    async def kill(self, down: float) -> float:
        """Kill the server under load, start it again; how long until a job enqueued after that was run."""
        before = monotonic()
        await asyncio.to_thread(self._server.crash)
        self.kills.append((before, monotonic()))
        await asyncio.sleep(down)
        await asyncio.to_thread(self._server.restart)
        self._round += 1
        self._ran.clear()
        back = monotonic()
        async with asyncio.timeout(AGAIN_WITHIN):
            await self._ran.wait()
        return monotonic() - back

    def age_at_kill(self, id: JobId) -> float:
        """Seconds from the acknowledgement of a job to the next kill, at least."""
        at = self.acknowledged[id]
        return min((max(0.0, begun - at) for begun, over in self.kills if over >= at), default=inf)


@pytest.mark.parametrize(("flavour", "fsync", "budget"), [("redis", "everysec", 2.0), ("valkey", "always", None)])
async def test_workers_consume_again_and_nothing_acknowledged_is_lost(
    flavour: Flavour, fsync: str, budget: float | None
):
    chance = random.Random(7)
    with RedisServer.start(flavour, {"appendfsync": fsync}) as server:
        scene = Scene(server)
        store = RedisStore(server.url())
        await store.open()
        client = Client(store)
        async with scene.at_work():
            producer = asyncio.create_task(scene.produce(client))
            await scene.ran_in_this_round()
            for number in range(KILLS):
                await asyncio.sleep(chance.uniform(0.0, 0.2))  # somewhere in the middle of things
                took = await scene.kill(down=chance.uniform(0.0, 0.5))
                log.info("kill %d of %s, %s: consuming again after %.2f s", number + 1, flavour, fsync, took)
                assert not producer.done()
            scene.stop_producing()
            await producer
            lost = await ends(store, scene)
        ages = sorted({round(scene.age_at_kill(id), 3) for id in lost})
        log.info("%s, %s: %d acknowledged, %d kills", flavour, fsync, len(scene.acknowledged), KILLS)
        log.info("%d lost, in %d calls, seconds before a kill: %s", len(lost), len({id.int >> 16 for id in lost}), ages)
        assert [id for id in lost if budget is None or scene.age_at_kill(id) > budget] == []
        await client.close()


async def ends(store: RedisStore, scene: Scene) -> list[JobId]:
    """Wait until every job that is there is done; those that are not there."""
    ids = list(scene.acknowledged)
    lost: list[JobId] = []
    async with asyncio.timeout(60):
        while ids:
            found = await asked_until_answered(store.get, ids)
            lost += [id for id, job in zip(ids, found, strict=True) if job is None]
            ids = [id for id, job in zip(ids, found, strict=True) if job and job.state is not JobState.DONE]
            await asyncio.sleep(0.05)
    return lost
