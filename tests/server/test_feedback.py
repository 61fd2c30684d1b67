"""What workers in any language report closes limits, opens breakers and heeds pauses, as what a Python worker reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from headrace import Headrace, Limit
from headrace.model.job import JobState
from headrace.model.outcome import PAUSED
from headrace.operate.limits import LimitEntry, Limits
from headrace.operate.operations import Operations
from headrace.policy.recovery import LimitObservation, What
from headrace.server import ServerSettings
from server.running import Running, running
from server.test_work import claim, look, lose, post, settle


@pytest.fixture
def app(store_url: str) -> Headrace:
    app = Headrace(store_url)

    @app.task(name="charge", queue="foreign", limits=[Limit("stripe", rate="100/s")])
    async def charge() -> None: ...

    site = Limit("site", key=lambda host: host, concurrency=9, breaker=2, cool_down="1h")

    @app.task(name="crawl", queue="foreign", limits=[site])
    async def crawl(host: str) -> None: ...

    return app


class Heard:
    """Waits for what a server says of limits."""

    def __init__(self, server: Running) -> None:
        self._store = server.store
        self._news: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        server.service.leases._state.listeners.append(self._hear)

    def _hear(self, event: str, fields: Mapping[str, Any]) -> None:
        self._news.put_nowait((event, fields["limit"]))

    async def next(self) -> tuple[str, str]:
        async with asyncio.timeout(60):
            return await self._news.get()

    async def limit(self, name: str) -> LimitEntry:
        return (await Limits(self._store).all())[name]


@pytest.fixture
async def server(app: Headrace) -> AsyncIterator[Running]:
    async with running(app) as found:
        await found.service.leases._feedback.declared.wait()
        yield found
    await app.aclose()


async def test_retry_after_closes_the_limit(server: Running, app: Headrace) -> None:
    heard = Heard(server)
    await app.tasks["charge"].aenqueue()
    await settle(server.http, await claim(server.http), "failed", message="429", retry_after="30m")
    assert await heard.next() == ("limit.closed", "stripe")
    assert (await heard.limit("stripe")).rule.closed_until is not None
    await app.tasks["charge"].aenqueue()
    await post(server.http, "claim", 204, queues=["foreign"])


async def test_failures_open_the_breaker_of_their_key(server: Running, app: Headrace) -> None:
    heard = Heard(server)
    for _ in range(2):
        await app.tasks["crawl"].aenqueue("acme")
        await settle(server.http, await claim(server.http), "failed", message="down", final=True)
    assert await heard.next() == ("limit.closed", "site:acme")
    await app.tasks["crawl"].aenqueue("acme")
    await app.tasks["crawl"].aenqueue("zeta")
    lease = await claim(server.http, limit=2)
    assert [job["args"] for job in lease["jobs"]] == [["zeta"]]


async def test_a_success_opens_a_limit_that_another_process_closed(server: Running, app: Headrace) -> None:
    heard = Heard(server)
    limits = Limits(server.store)
    now = await server.store.now()
    await limits.observe("stripe", app.limits.declared["stripe"], [LimitObservation(What.REFUSED, now, now)], now)
    await app.tasks["charge"].aenqueue()
    await settle(server.http, await claim(server.http))
    assert await heard.next() == ("limit.opened", "stripe")


async def test_a_settlement_that_is_refused_changes_no_limit(app: Headrace) -> None:
    async with running(app, ServerSettings(port=0, tidy=False)) as server:
        await server.service.leases._feedback.declared.wait()
        await app.tasks["charge"].aenqueue()
        lease = await claim(server.http)
        await lose(server)
        await settle(server.http, lease, "failed", 409, message="429", retry_after="30m")
        assert server.service.leases._feedback._news == {}
        assert (await Limits(server.store).all())["stripe"].rule.closed_until is None
    await app.aclose()


async def test_jobs_of_a_paused_task_are_put_off_and_come_back(server: Running, app: Headrace) -> None:
    pauses = Operations(server.store, actor="ann").pauses
    held = await app.tasks["charge"].aenqueue()
    free = await app.tasks["crawl"].aenqueue("acme")
    await pauses.pause("charge", kind="task")
    lease = await claim(server.http, limit=2)
    assert [job["id"] for job in lease["jobs"]] == [str(free.id)]
    job = await look(server, held.id)
    assert (job.state, job.note) == (JobState.SCHEDULED, f"{PAUSED} by ann")
    await post(server.http, "pauses/resume", task="charge")
    lease = await claim(server.http, limit=2)
    assert [job["id"] for job in lease["jobs"]] == [str(held.id)]
