"""Autoscaling over HTTP: what it is estimated from, which caller sees it, and what it costs the store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from click.testing import CliRunner

from headrace import Headrace
from headrace.cli.root import root
from headrace.model.histogram import Histogram
from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Presence, new_token, new_worker_id
from headrace.model.rollup import AttemptEnd, HistoryPage, Rollup, RollupKey
from headrace.operate import autoscale
from headrace.operate.autoscale import AutoscaleOperations
from headrace.server import ServerSettings
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.testing.clock import FakeClock
from server.running import Running, running

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = int(NOW.timestamp()) // 60


def rollup(
    ago: int = 5,
    *,
    queue: str = "mail",
    end: AttemptEnd = AttemptEnd.DONE,
    seconds: float = 1.0,
    count: int = 1,
    now: int = MINUTE,
) -> Rollup:
    times = Histogram()
    times.add([seconds], count)
    return Rollup(
        start=now - ago, id=uuid4(), queue=queue, task="t", end=end, count=count, run=times.pack(), sent=60 * now
    )


def recent(ago: int = 1, **fields: Any) -> Rollup:
    return rollup(ago, now=int(time.time()) // 60, **fields)


async def put(store: Store, queue: str, count: int) -> None:
    await store.enqueue(Batch(new_batch(), [NewJob("t", b"\x92\x90\x80", Lane(queue)) for _ in range(count)]))


async def worker(store: Store, queues: Sequence[str], *, slots: int, hindered: tuple[str, ...] = ()) -> None:
    presence = Presence(
        id=new_worker_id(),
        name="host:1",
        queues=tuple(queues),
        slots=slots,
        running=0,
        version="0",
        started_at=await store.now(),
        hindered=hindered,
    )
    await store.heartbeat([], timedelta(seconds=60), presence)


# ── what history says ────────────────────────────────────────────────────────


async def test_recent_work_by_queue() -> None:
    store = MemoryStore(clock=FakeClock(NOW))
    await store.add_history(
        [
            rollup(5, count=300, seconds=1.0),
            rollup(1, count=30, seconds=12.0, end=AttemptEnd.FAILED),
            rollup(0, queue="new", count=6, seconds=2.0, end=AttemptEnd.SNOOZED),
            rollup(6, queue="old"),
        ]
    )
    work = await AutoscaleOperations(store).recent()
    assert work.keys() == {"mail", "new"}
    # Five whole minutes, and half of the minute that has begun.
    assert (work["mail"].ended, work["mail"].returned) == (1.0, pytest.approx(30 / 330))
    assert work["mail"].run == pytest.approx(2.0, rel=0.05)
    # The time counts from the first end of the queue, and at least a minute.
    assert (work["new"].ended, work["new"].returned) == (0.1, 0.1)


class Paged(MemoryStore):
    """Answers one rollup per page, and may fold between two pages."""

    reads = 0
    fold_after = 0

    async def read_history(
        self,
        since: int,
        until: int,
        *,
        queue: str | None = None,
        task: str | None = None,
        after: RollupKey | None = None,
        limit: int = 1,
    ) -> HistoryPage:
        self.reads += 1
        if self.reads == self.fold_after:
            await self.fold_history(sorted(self._rollups), [rollup(count=9)])
        return await super().read_history(since, until, queue=queue, task=task, after=after, limit=1)


async def test_a_fold_between_two_pages_makes_the_reading_begin_again() -> None:
    store = Paged(clock=FakeClock(NOW))
    await store.add_history([rollup(count=5), rollup(count=4)])
    store.fold_after = 2
    work = await AutoscaleOperations(store).recent()
    assert work["mail"].ended == pytest.approx(9 / 330)


async def test_a_long_history_is_cut_at_a_whole_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "MOST_PAGES", 3)
    store = Paged(clock=FakeClock(NOW))
    await store.add_history([rollup(ago, count=60) for ago in (5, 4, 3, 3, 2, 1)])
    assert (await AutoscaleOperations(store).recent())["mail"].ended == 1.0
    assert store.reads == 3
    await store.add_history([rollup(5, count=60) for _ in range(5)])
    assert (await AutoscaleOperations(store).recent())["mail"].ended == 3.0


# ── over HTTP ────────────────────────────────────────────────────────────────


@pytest.fixture
def app() -> Headrace:
    app = Headrace("memory://", concurrency=10)
    app.queue("night", open="00:00-24:00")
    app.queue("idle")
    return app


@pytest.fixture
async def server(app: Headrace) -> AsyncGenerator[Running]:
    async with running(app) as server:
        yield server


async def get(client: httpx2.AsyncClient, **query: str) -> dict[str, Any]:
    reply = await client.get("/v1/autoscale", params=query)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def test_autoscale_over_http(server: Running) -> None:
    await put(server.store, "mail", 595)
    # So many ended that any reading of the clock gives a rate above one per second.
    await server.store.add_history([recent(count=600, seconds=1.0)])
    answer = await get(server.http)
    assert answer["next"] is None
    items = {item["queue"]: item for item in answer["items"]}
    assert items.keys() == {"idle", "mail", "night"}
    mail = items["mail"]
    assert (mail["ready"], mail["running"], mail["slots"], mail["stopped"]) == (595, 0, 10, False)
    assert mail["run_seconds"] == pytest.approx(1.0, rel=0.06)
    assert mail["oldest_seconds"] >= 0
    assert mail["enqueued_per_second"] is None
    assert mail["seconds_to_drain"] == pytest.approx(595 / mail["jobs_per_second"], rel=0.02)
    assert answer["workers"] == mail["workers"] >= 2
    assert (items["idle"]["workers"], items["idle"]["seconds_to_drain"]) == (0, 0)
    sooner = await get(server.http, queue="mail", within="10s")
    assert [item["queue"] for item in sooner["items"]] == ["mail"]
    assert sooner["workers"] > mail["workers"]
    assert (await get(server.http, queue="mail", within="10s", max="3"))["workers"] == 3
    assert await get(server.http, queue="none") == {"items": [], "workers": 0, "next": None}


async def test_the_slots_are_those_of_the_workers_that_serve_the_queue(server: Running) -> None:
    await put(server.store, "mail", 50)
    await worker(server.store, ["mail"], slots=25)
    await worker(server.store, ["other"], slots=3)
    answer = await get(server.http, queue="mail")
    # Nothing is known of the time that a job takes, so each one gets a slot.
    assert [(item["slots"], item["workers"], item["seconds_to_drain"]) for item in answer["items"]] == [(25, 2, None)]


async def test_the_server_measures_how_many_jobs_are_enqueued(server: Running) -> None:
    server.service.arrivals.measure(time.monotonic() - 100, {"mail": 0})
    await put(server.store, "mail", 50)
    [item] = (await get(server.http, queue="mail"))["items"]
    assert 0 < item["enqueued_per_second"] <= 0.5


async def test_paused_and_closed_queues_keep_workers_for_what_runs(server: Running) -> None:
    for queue in ("mail", "shut"):
        await put(server.store, queue, 50)
        await server.store.claim(Ask(new_worker_id(), (queue,), 15, timedelta(seconds=60), new_token()))
    await put(server.store, "night", 50)
    await worker(server.store, ["shut", "night"], slots=10, hindered=("closed shut", "closed night"))
    await server.store.pause("mail", by="test")
    answer = await get(server.http)
    needs = {item["queue"]: (item["stopped"], item["workers"]) for item in answer["items"]}
    # The one worker of `shut` has ten slots, so ten of its jobs can run.
    assert needs == {"idle": (False, 0), "mail": (True, 2), "night": (True, 0), "shut": (True, 1)}


async def test_a_queue_outside_the_hours_of_its_app_is_stopped() -> None:
    closed = Headrace("memory://")
    now = datetime.now(UTC)
    first, last = now + timedelta(hours=10), now + timedelta(hours=12)
    closed.queue("night", open=f"{first:%H:%M}-{last:%H:%M}")
    async with running(closed) as server:
        await put(server.store, "night", 5)
        [item] = (await get(server.http))["items"]
    assert (item["stopped"], item["workers"], item["seconds_to_drain"]) == (True, 0, None)


@pytest.mark.parametrize(
    "query", [{"within": "soon"}, {"within": "0s"}, {"within": "60"}, {"max": "-1"}, {"max": "many"}, {"other": "1"}]
)
async def test_what_autoscale_cannot_answer_is_refused(server: Running, query: dict[str, str]) -> None:
    assert (await server.http.get("/v1/autoscale", params=query)).status_code == 422


async def test_a_token_sees_its_queues_and_a_tenant_sees_none(server: Running) -> None:
    await put(server.store, "mail", 30)
    await put(server.store, "other", 30)
    async with server.client(await server.token("read", queues=["mail"])) as client:
        answer = await get(client)
        assert ([item["queue"] for item in answer["items"]], answer["workers"]) == (["mail"], 3)
        assert (await get(client, queue="other"))["items"] == []
    async with server.client(await server.token("read", tenant="acme")) as client:
        assert await get(client) == {"items": [], "workers": 0, "next": None}
    async with server.client(await server.token("work")) as client:
        assert (await client.get("/v1/autoscale")).status_code == 403


async def test_many_reads_cost_the_store_one(app: Headrace) -> None:
    store = Paged()
    await store.open()
    settings = ServerSettings(port=0, stats_ttl=3600, tidy=False)
    async with running(app, settings, store=store) as server:
        answers = [await get(server.http, within=within) for within in ("10s", "60s") for _ in range(10)]
    await store.close()
    assert len(answers) == 20
    assert store.reads == 1


async def test_stats_show_the_figures_to_a_token_that_may_not_read_history(server: Running) -> None:
    await put(server.store, "mail", 3)
    for scope, known in (("work", False), ("read", True)):
        url = server.url.replace("http://", f"http://{await server.token(scope)}@")
        result = await asyncio.to_thread(CliRunner().invoke, root, ["stats", "--json", "--url", url])
        assert result.exit_code == 0, result.output
        [queue] = json.loads(result.stdout)["items"]
        assert (queue["ready"], queue["seconds_to_drain"]) == (3, None)
        assert (queue["workers"] is not None) == known
