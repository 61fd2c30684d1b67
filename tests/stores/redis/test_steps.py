"""Looks go in steps: no script of one runs more than so many commands, whatever the lanes, the queues and the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conformance.kit import DEAD, RELEASE, claim, new, put, put_jobs, settle_all, take
from headrace.model.job import JobId, NewJob
from headrace.model.outcome import DONE
from headrace.model.records import LimitRule
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import put_many
from stores.redis.test_looks import commands_run

ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)
MOST = 1600
"""Commands that one script of a look runs."""


class Steps:
    """Counts the commands of each trip to the server, and can do something between two trips."""

    def __init__(self, store: RedisStore, server: RedisServer) -> None:
        self.commands: list[int] = []
        self.answers: list[Any] = []
        self.between: Callable[[], Awaitable[object]] | None = None
        self._store, self._server = store, server
        wire = store.client.wire
        self._command_many = wire.command_many
        wire.command_many = self._counted  # type: ignore[method-assign]

    async def _counted(self, commands: Sequence[tuple[Any, ...]], *args: Any, **options: Any) -> Any:
        before = commands_run(self._server)
        answers = await self._command_many(commands, *args, **options)
        self.commands.append(commands_run(self._server) - before)
        self.answers += answers
        if (between := self.between) is not None:
            self.between = None
            await between()
            self.between = between
        return answers


@pytest.fixture
def steps(store: RedisStore, server: RedisServer) -> Steps:
    return Steps(store, server)


# ── lanes and stats ─────────────────────────────────────────────────────────


def by_tenant(lanes: int) -> list[NewJob]:
    return [new(tenant=f"t{n}") for n in range(lanes)]


def of_one_tenant(lanes: int) -> list[NewJob]:
    return [new(tenant="one", limits=(f"shop:{n}",)) for n in range(lanes)]


def by_priority(lanes: int) -> list[NewJob]:
    return [new(tenant=f"t{n}", priority=n % 200) for n in range(lanes)]


@pytest.mark.parametrize("kind", [by_tenant, of_one_tenant, by_priority])
async def test_lanes_and_stats(store: RedisStore, steps: Steps, kind: Callable[[int], list[NewJob]]):
    await put_many(store, kind(2500))
    for look in (lambda: store.lanes(["default"]), store.stats):
        await look()  # the server knows the script from here on
        steps.commands.clear()
        await look()
        assert max(steps.commands) <= MOST
        assert len(steps.commands) >= 4
    views = await store.lanes(["default"])
    assert len({(view.priority, view.tenant, view.id) for view in views}) == len(views) == 1000


@pytest.mark.parametrize("tenant", [None, "one"])
async def test_parked_lanes(store: RedisStore, steps: Steps, clock: FakeClock, tenant: str | None):
    """Those of a tenant that is paused are parked as one."""
    await put_many(store, [new(tenant=tenant or f"t{n}", limits=(f"shop:{n}",)) for n in range(1500)])
    clock.advance(7)
    await store.limit("shop", LimitRule(concurrency=0), None)
    if tenant is not None:
        await store.pause(tenant, kind="tenant")
    # A claim looks into some hundred lanes and parks those.
    for _ in range(10):
        assert await claim(store, 1) is None
    steps.commands.clear()
    views = await store.lanes(["default"])
    [figures] = (await store.stats()).queues
    assert max(steps.commands) <= MOST
    assert len({(view.tenant, view.id) for view in views}) == len(views) == 1000
    assert (figures.oldest_ready, figures.oldest_at_least) == (timedelta(seconds=7), True)


@pytest.mark.parametrize("lanes", [3, 249, 250, 251, 999, 1000])
@pytest.mark.parametrize("kind", [by_tenant, of_one_tenant, by_priority])
async def test_every_lane_is_met(store: RedisStore, clock: FakeClock, kind: Callable[[int], list[NewJob]], lanes: int):
    jobs = kind(lanes)
    await put_jobs(store, jobs[-1])
    clock.advance(5)
    await put_many(store, jobs)
    views = await store.lanes(["default"])
    assert len({(view.priority, view.tenant, view.id) for view in views}) == len(views) == lanes
    [figures] = (await store.stats()).queues
    assert (figures.oldest_ready, figures.oldest_at_least) == (timedelta(seconds=5), False)


async def test_rings_that_turn_between_two_steps(store: RedisStore, steps: Steps, clock: FakeClock):
    """Claims take lanes from the head of a ring and put them to its end. The walk finds its place again."""
    jobs = by_tenant(900)
    await put_jobs(store, *jobs)
    await put_jobs(store, *jobs)
    clock.advance(5)

    async def turn() -> None:
        await take(store, 100)

    steps.between = turn
    views = await store.lanes(["default"])
    assert len(views) == 900
    [figures] = (await store.stats()).queues
    assert figures.oldest_ready == timedelta(seconds=5)


async def test_many_queues_at_once(store: RedisStore, steps: Steps):
    """A server works through all that it has received from a client before it turns to others."""
    names = [f"q{n}" for n in range(200)]
    await put_jobs(store, *[new(queue=name) for name in names])
    await put_many(store, [new(queue=name, tenant=f"t{n}") for name in names[:4] for n in range(600)])
    await store.stats()
    await store.lanes(names)
    steps.commands.clear()
    assert len(await store.lanes(names)) == 200 + 4 * 600
    assert len((await store.stats()).queues) == 200
    assert max(steps.commands) <= 2 * MOST


async def test_long_stretches_of_cancelled_jobs(store: RedisStore, steps: Steps):
    made = await put_many(store, [new(tenant=f"t{n % 20}") for n in range(40_000)])
    for at in range(0, len(made) - 20, 5000):
        await store.cancel(made[at : at + 5000][: len(made) - 20 - at])
    steps.commands.clear()
    views = await store.lanes(["default"])
    assert all(view.jobs == 1 for view in views)
    assert (await store.stats()).queues[0].ready == 20
    assert max(steps.commands) <= MOST


# ── ended ───────────────────────────────────────────────────────────────────


async def test_leases_settled_one_by_one(store: RedisStore, steps: Steps, clock: FakeClock):
    """Each step of such a lease names the lease, whose header names all its lanes: it is read once in a script."""
    await put_jobs(store, *by_tenant(700))
    made: list[JobId] = []
    for _ in range(2):
        lease = await take(store, 350)
        for at, job in enumerate(lease.jobs):
            clock.advance(0.001)
            await store.settle(lease.token, [(at, DONE)])
            made.append(job.id)
    await store.ended(ALWAYS)
    steps.commands.clear()
    assert [ending.id for ending in await store.ended(ALWAYS)] == made
    assert max(steps.commands) <= MOST


@pytest.mark.parametrize("size", [10, 20_000])
async def test_history_is_read_in_steps(store: RedisStore, steps: Steps, clock: FakeClock, size: int):
    made: list[JobId] = []
    for _ in range(6):
        await put(store, 100, payload=b"x" * size)
        while (lease := await claim(store, 1000)) is not None:
            clock.advance(1)
            await settle_all(store, lease)
            made += sorted(job.id for job in lease.jobs)
    await store.ended(ALWAYS)
    steps.answers.clear()
    assert [ending.id for ending in await store.ended(ALWAYS)] == made
    replies = [answer for answer in steps.answers if isinstance(answer, list) and len(answer) > 12]
    assert max(sum(isinstance(one, list) for one in reply) for reply in replies) <= 2_200_000 / (size + 500)


async def test_ends_of_one_moment(store: RedisStore, steps: Steps, clock: FakeClock):
    """All of them at the same microsecond, of every kind, in more than one step."""
    made = await put_many(store, [new(tenant=f"t{n % 7}", payload=b"x" * 2000) for n in range(1800)])
    ended: list[JobId] = []
    for count, end in ((500, DONE), (300, DEAD), (500, None)):
        lease = await take(store, count)
        ends = [(at, end or (DONE if at % 2 else RELEASE)) for at in range(len(lease.jobs))]
        await store.settle(lease.token, ends)
        ended += [job.id for at, job in enumerate(lease.jobs) if ends[at][1] is not RELEASE]
    rest = [id for id in made if id not in set(ended)][:100]
    await store.cancel(rest)
    found = await store.ended(ALWAYS, 5000)
    assert [ending.id for ending in found] == sorted(ended + rest)
    assert [ending.id for ending in await store.ended(ALWAYS, 70)] == sorted(ended + rest)[:70]
