"""A deploy in the middle of many workflows: the journal of the old code and the new code together lose and repeat nothing.

The new code has a step more and a step less, and two steps in another order. A step that was under way when the old worker stopped
runs again, as the guide says. 300 workflows here; `HEADRACE_TEST_WORKFLOWS=10000` makes it ten thousand.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace import Event, Handle, Headrace, Job, JobId, JobState, Retry, Task, step
from headrace.settings import Settings

MANY = int(os.environ.get("HEADRACE_TEST_WORKFLOWS", "300"))
PATIENCE = max(300, MANY)
"""Seconds for each of the two versions."""
PAGE = 500
OLD, NEW = ("reserve", "charge", "pack", "notify"), ("reserve", "check", "pack", "charge")
"""The steps of the two versions."""
BETWEEN, INSIDE, SUSPENDED = "between two steps", "inside a step", "suspended"


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def place_of(order: int) -> tuple[int, str]:
    """How many steps of an order have finished when the old worker stops, and where it is then."""
    where = (BETWEEN, INSIDE, SUSPENDED)[order % 3]
    return order // 3 % len(OLD), where


class Version:
    """One version of the code, as one app."""

    def __init__(self, url: str, steps: tuple[str, ...], ran: Counter[tuple[str, int]], stops: bool) -> None:
        self.app = app = Headrace(settings=Settings(url=url))
        self.approved: Event[str] = app.event("approved", str)
        self.arrived = 0
        """Orders that have come to their place."""
        self._ran, self._stops = ran, stops

        @app.task(name="order", retry=Retry(max_attempts=1))
        async def order(number: int) -> list[str]:
            done: list[str] = []
            finished, where = place_of(number)
            for count, name in enumerate(steps):
                if count == finished and where == BETWEEN:
                    await self._stop()
                if count == finished and where == SUSPENDED:
                    self.arrived += 1
                    done.append(await self.approved.wait(number))
                done.append(await step.using(name=name)(self._act, name, number))
            return done

        @app.task(name="ship")
        async def ship(done: list[str], number: int) -> int:
            ran["ship", number] += 1
            return number

        @app.task(name="bill")
        async def bill(shipped: int) -> int:
            ran["bill", shipped] += 1
            return shipped

        self.order: Task[[int], list[str]] = order
        self.ship, self.bill = ship, bill

    async def suspended(self) -> int:
        stats = await self.app.astats()
        # The two jobs behind each order are blocked, too.
        return sum(queue.blocked for queue in stats.queues) - 2 * MANY

    async def jobs(self) -> AsyncIterator[Job]:
        """All jobs, in pages."""
        before: JobId | None = None
        while True:
            page = await self.app.afind(limit=PAGE, before=before)
            for job in page.jobs:
                yield job
            if (before := page.next) is None:
                return

    async def _act(self, name: str, number: int) -> str:
        self._ran[name, number] += 1
        finished, where = place_of(number)
        if where == INSIDE and name == OLD[finished]:
            await self._stop()
        return name

    async def _stop(self) -> None:
        if self._stops:
            self.arrived += 1
            await asyncio.Event().wait()


async def test_a_deploy_in_the_middle_of_many_workflows(store_url: str):
    ran: Counter[tuple[str, int]] = Counter()
    old, new = Version(store_url, OLD, ran, stops=True), Version(store_url, NEW, ran, stops=False)
    handles: list[Handle[Any]] = []
    async with asyncio.timeout(PATIENCE), old.app:
        for number in range(MANY):
            handles += [await old.app.aenqueue(old.order.job(number).then(old.ship, number).then(old.bill))]
        async with old.app.worker(concurrency=MANY, drain="0s", lease="1m"):
            while old.arrived < MANY or await old.suspended() < MANY // 3:  # noqa: ASYNC110  # the store decides
                await asyncio.sleep(0.01)
    before = Counter(ran)
    for number in range(MANY):
        finished, where = place_of(number)
        began = OLD[: finished + (where == INSIDE)]
        assert all(before[name, number] == (name in began) for name in (*OLD, *NEW))

    async with asyncio.timeout(PATIENCE), new.app, new.app.worker(concurrency=100, lease="1m"):
        for number in range(MANY):
            if place_of(number)[1] == SUSPENDED:
                assert await new.approved.asignal(number, "approved")
        assert [await handle.aresult() for handle in handles] == list(range(MANY))
        ended = Counter([job.state async for job in new.jobs()])
    assert ended == {JobState.DONE: 3 * MANY}
    for number in range(MANY):
        finished, _ = place_of(number)
        for name in {*OLD, *NEW}:
            again = name in NEW and name not in OLD[:finished]
            assert ran[name, number] == before[name, number] + again, (name, place_of(number))
        assert (ran["ship", number], ran["bill", number]) == (1, 1)
