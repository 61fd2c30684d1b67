"""`app.dead`: the same verbs in async and in sync code, with a worker beside."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from headrace import Headrace, JobDead, Retry
from headrace.client.handles import Handles
from headrace.errors import ConfigError, JobNotFound
from headrace.model.job import JobState
from headrace.settings import Settings
from headrace.task.task import AsyncTask


class Shop:
    """A task with a bug that can be fixed."""

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.broken = True

        @app.task(name="charge", queue="billing", retry=Retry(max_attempts=1), redact=["card"])
        async def charge(order: int, card: str = "4242") -> int:
            if self.broken:
                raise ValueError(f"order {order} with {card}")
            return order

        self.charge: AsyncTask[..., int] = charge

    async def kill(self, count: int) -> Handles[int]:
        """Dead jobs."""
        handles = await self.app.aenqueue_many(self.charge.job(order) for order in range(count))
        async with self.app.worker(poll="50ms"):
            for handle in handles:
                with suppress(JobDead):
                    await handle.aresult(timeout=30)
        return handles


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    app = Headrace(settings=Settings(url=store_url))
    yield Shop(app)
    await app.aclose()


async def test_from_death_to_life(shop: Shop):
    handles = await shop.kill(12)
    [group] = await shop.app.dead.agroups(queue="billing")
    assert (group.count, group.tasks) == (12, ("charge",))
    assert group.title.startswith("ValueError: order # with")
    assert "4242" not in group.title
    letter = await shop.app.dead.ashow(handles[3])
    assert letter.arguments == {"args": [3], "kwargs": {}}
    assert letter.fingerprint == group.fingerprint

    async with shop.app.worker(poll="50ms"):
        again = await shop.app.dead.areplay(group=group.fingerprint, canary=3)
        assert again.stopped is not None
        assert again.stopped.startswith(("1 of 3", "2 of 3", "3 of 3"))
        shop.broken = False
        [group] = await shop.app.dead.agroups()
        answer = await shop.app.dead.areplay(group=group.fingerprint, canary=3, rate="1000/s")
        assert (answer.stopped, answer.trial and answer.trial.done) == (None, 3)
        for id in answer.replayed:
            async with asyncio.timeout(30):
                while (job := await shop.app.aget(id)) is None or not job.state.finished:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_sync_twins(shop: Shop):
    handles = await shop.kill(4)

    def sync() -> None:
        dead = shop.app.dead
        [group] = dead.groups(task="charge")
        assert dead.show(handles[0].id).fingerprint == group.fingerprint
        assert dead.replay(handles[0], str(handles[1].id)).replayed == [handles[0].id, handles[1].id]
        gone = dead.discard(handles[2], reason="test data", by="me")
        assert [(record.id, record.by) for record in gone.records] == [(handles[2].id, "me")]
        assert len(dead.discard(everything=True, reason="the rest").records) == 1
        assert dead.groups() == []
        with pytest.raises(JobNotFound):
            dead.show(handles[2])

    await asyncio.to_thread(sync)
    states = [job and job.state for job in [await shop.app.aget(handle) for handle in handles]]
    assert states == [JobState.READY, JobState.READY, None, None]


async def test_what_makes_no_sense_is_refused_before_anything_moves(shop: Shop):
    dead = shop.app.dead
    with pytest.raises(ConfigError, match="which dead jobs"):
        await dead.areplay()
    with pytest.raises(ConfigError, match="which dead jobs"):
        await dead.adiscard(reason="r")
    with pytest.raises(ConfigError, match="is not a rate"):
        await dead.areplay(everything=True, rate="fast")
    wrong: list[Any] = [-1, 0, 1.5, True, "3"]
    for canary in wrong:
        with pytest.raises(ConfigError, match=re.escape(f"canary = {canary!r}: a whole number from 1 to 1,000")):
            await dead.areplay(everything=True, canary=canary)
    share: Any = "0.1"
    with pytest.raises(ConfigError, match=re.escape("tolerate = '0.1'")):
        await dead.areplay(everything=True, canary=1, tolerate=share)
    with pytest.raises(ConfigError, match="patience = 'long'"):
        await dead.areplay(everything=True, canary=1, patience="long")
    with pytest.raises(ConfigError, match="not a job id"):
        await dead.ashow("x")
