"""History over HTTP, in the command line and through the http store: what is counted, and which caller sees it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

import httpx2
import pytest
from msgspec.structs import replace

from headrace import Headrace
from headrace.errors import ConfigError, Unsupported
from headrace.model.histogram import Histogram
from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.rollup import (
    ALL_QUEUES,
    HOUR,
    MINUTES_FROM,
    USAGE_FROM,
    AttemptEnd,
    HistoryPage,
    Rollup,
    RollupKey,
    usage_rollup,
)
from headrace.model.usage import Usage
from headrace.operate import history
from headrace.operate.history import HistoryOperations, Percentiles
from headrace.store.http.store import HttpStore
from headrace.store.memory import MemoryStore
from headrace.testing.clock import FakeClock
from headrace.worker.history import HistoryUpkeep
from server.running import Running, running

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
MINUTE = int(NOW.timestamp()) // 60


def rollup(
    ago: int = 1,
    *,
    queue: str = "default",
    task: str = "t",
    end: AttemptEnd = AttemptEnd.DONE,
    seconds: float = 1.0,
    count: int = 1,
    now: int = MINUTE,
) -> Rollup:
    times = Histogram()
    times.add([seconds], count)
    return Rollup(
        start=now - ago,
        id=uuid4(),
        queue=queue,
        task=task,
        end=end,
        count=count,
        wait=times.pack(),
        run=times.pack(),
        sent=0,
    )


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=FakeClock(NOW))


async def test_points_by_queue_task_and_end(store: MemoryStore) -> None:
    await store.add_history(
        [
            rollup(2, queue="a", seconds=1.0, count=90),
            rollup(2, queue="a", seconds=10.0, count=10),
            rollup(2, queue="a", task="u", end=AttemptEnd.FAILED, count=5),
            rollup(1, queue="b", end=AttemptEnd.DEAD, count=2),
        ]
    )
    operations = HistoryOperations(store)
    answer = await operations.read(NOW - timedelta(hours=1))
    assert (answer.step, answer.next) == (60.0, None)
    first, second = answer.items
    assert (first.at, first.name, first.count, first.ends) == (
        NOW - timedelta(minutes=2),
        "a",
        105,
        {"done": 100, "failed": 5},
    )
    assert first.run.p50 == pytest.approx(1.0, rel=0.05)
    assert first.run.p99 == pytest.approx(10.0, rel=0.05)
    assert (second.name, second.ends) == ("b", {"dead": 2})
    by_task = await operations.read(NOW - timedelta(hours=1), by="task", queue="a")
    assert [(point.name, point.count) for point in by_task.items] == [("t", 100), ("u", 5)]
    by_end = await operations.read(NOW - timedelta(hours=1), by="end", step=timedelta(hours=1))
    assert {point.name: point.count for point in by_end.items if point.at < NOW} == {
        "dead": 2,
        "done": 100,
        "failed": 5,
    }
    [only] = (await operations.read(NOW - timedelta(hours=1), task="u")).items
    assert only.count == 5


async def test_without_times_the_counts_are_the_same_and_percentiles_are_null(store: MemoryStore) -> None:
    await store.add_history([rollup(ago, count=ago, task=f"t{ago % 2}") for ago in range(1, 5)])
    operations, since = HistoryOperations(store), NOW - timedelta(minutes=10)
    whole = await operations.read(since, by="task")
    counts = await operations.read(since, by="task", times=False)
    assert [replace(point, wait=Percentiles(), run=Percentiles()) for point in whole.items] == counts.items
    assert sum(point.count for point in counts.items) == 10
    assert all(point.run.p50 is not None for point in whole.items)


async def test_steps_fit_the_length_of_time(store: MemoryStore) -> None:
    operations = HistoryOperations(store)
    steps = {
        timedelta(hours=1): 60,
        timedelta(hours=8): 300,
        timedelta(hours=23): 900,
        timedelta(days=3): 3600,
        timedelta(days=8): 6 * 3600,
        timedelta(days=30): 24 * 3600,
    }
    for length, step in steps.items():
        assert (await operations.read(NOW - length)).step == step
    # What is older than a day is exact to the hour, and what is older than a week to the day.
    assert (await operations.read(NOW - timedelta(days=2), step=timedelta(minutes=1))).step == 3600
    assert (await operations.read(NOW - timedelta(days=20), step=timedelta(hours=50))).step == 48 * 3600
    # A chart of 24 hours is asked for a moment before it is read.
    assert (await operations.read(NOW - timedelta(hours=24, minutes=1))).step == 900
    with pytest.raises(ConfigError, match="at most 1500 steps"):
        await operations.read(NOW - timedelta(days=3000), step=timedelta(hours=1))


async def test_one_step_may_cover_the_whole_time(store: MemoryStore) -> None:
    """Percentiles of several steps cannot be added up, so the server computes those of the whole time."""
    await store.add_history(
        [rollup(ago, seconds=seconds, count=50) for ago, seconds in ((6 * 60, 1.0), (7 * 60 + 7, 10.0), (60 * 60, 0.1))]
    )
    operations = HistoryOperations(store)
    answer = await operations.read(NOW - timedelta(hours=9), by="task", step="all")
    [point] = answer.items
    assert (point.at, point.count) == (NOW - timedelta(hours=9), 100)
    assert point.run.p50 == pytest.approx(1.0, rel=0.05)
    assert point.run.p95 == pytest.approx(10.0, rel=0.05)
    assert (answer.next, answer.step) == (None, 9 * 3600 + 60)
    [older] = (await operations.read(NOW - timedelta(days=3, minutes=7), step="all")).items
    assert (older.at, older.count) == (NOW - timedelta(days=3, hours=1), 150)


async def test_an_hour_counts_although_the_time_asked_for_begins_inside_it(store: MemoryStore) -> None:
    hour = (MINUTE - 3 * 24 * 60) // HOUR * HOUR
    old = rollup(MINUTE - hour)
    await store.add_history([replace(old, span=HOUR)])
    answer = await HistoryOperations(store).read(NOW - timedelta(days=3) + timedelta(minutes=30))
    assert [point.count for point in answer.items] == [1]


async def test_folded_history_is_read_without_loss_in_every_step(store: MemoryStore) -> None:
    clock = FakeClock(NOW)
    store = MemoryStore(clock=clock)
    now = int(NOW.timestamp())
    ages = [*range(0, 180, 7), *range(180, 26 * 60, 61), *range(26 * 60, 12 * 24 * 60, 607)]
    await store.add_history([replace(rollup(ago, count=ago + 1), sent=now) for ago in ages])
    operations = HistoryOperations(store)
    clock.advance(timedelta(minutes=3))
    # The first one has its details dropped by the fold. The others lie whole in what is asked for.
    asked: list[tuple[timedelta, timedelta | None, timedelta | Literal["all"] | None]] = [
        (timedelta(days=13), None, None),
        (timedelta(days=13), None, "all"),
        (timedelta(days=5), None, timedelta(hours=2)),
        (timedelta(days=5), timedelta(days=2), "all"),
        (timedelta(days=5), timedelta(days=2), timedelta(hours=1)),
        (timedelta(hours=24), None, timedelta(minutes=5)),
        (timedelta(hours=24), timedelta(hours=5), "all"),
        (timedelta(minutes=90), None, None),
    ]

    async def answers() -> list[dict[datetime, tuple[int, Percentiles]]]:
        end = clock.now()
        histories = [
            await operations.read(end - since, None if until is None else end - until, step=step)
            for since, until, step in asked
        ]
        return [{point.at: (point.count, point.run) for point in one.items} for one in histories]

    before = await answers()
    assert sum(count for count, _ in before[0].values()) == sum(ago + 1 for ago in ages)
    upkeep = HistoryUpkeep(store, timedelta(days=30))
    while await upkeep.tidy() <= 1.0:
        pass
    assert await answers() == before


# 31 days, 23 hours, 3 quarters and 30 minutes. A week has another 24 hours at its beginning.
@pytest.mark.parametrize(("days", "step", "most"), [(30, "all", 87), (30, None, 87), (7, "all", 87), (1, None, 200)])
async def test_a_long_time_is_read_in_few_rollups(days: int, step: Literal["all"] | None, most: int) -> None:
    class Counting(MemoryStore):
        rollups = 0

        async def read_history(self, *args: Any, **options: Any) -> HistoryPage:
            page = await super().read_history(*args, **options)
            self.rollups += len(page.rollups)
            return page

    clock = FakeClock(NOW + timedelta(hours=11, minutes=44))
    store = Counting(clock=clock)
    now = int(clock.now().timestamp()) // 60
    starts = [*range(now - 6 * HOUR, now), *range(now - 30 * 24 * HOUR, now - 6 * HOUR, 60)]
    await store.add_history([rollup(now - start) for start in starts])
    upkeep = HistoryUpkeep(store, timedelta(days=30))
    while await upkeep.tidy() <= 1.0:
        pass
    store.rollups = 0
    answer = await HistoryOperations(store).read(clock.now() - timedelta(days=days), step=step)
    assert sum(point.count for point in answer.items) > 300
    assert store.rollups <= most


async def test_pages_end_between_two_steps(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_POINTS", 3)
    await store.add_history([rollup(ago, queue=queue) for ago in (3, 2, 1) for queue in ("a", "b")])
    operations = HistoryOperations(store)
    names: list[tuple[datetime, str]] = []
    since: datetime | None = NOW - timedelta(hours=1)
    pages = 0
    while since is not None:
        answer = await operations.read(since)
        names += [(point.at, point.name) for point in answer.items]
        since, pages = answer.next, pages + 1
    assert pages == 3
    assert names == sorted(set(names))
    assert len(names) == 6


async def test_a_fold_between_two_pages_makes_the_reading_begin_again() -> None:
    class Folding(MemoryStore):
        folded = False

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
            if after is not None and not self.folded:
                self.folded = True
                keys = sorted(self._rollups)
                await self.fold_history(keys, [rollup(count=2)])
            return await super().read_history(since, until, queue=queue, task=task, after=after, limit=1)

    store = Folding(clock=FakeClock(NOW))
    await store.add_history([rollup(), rollup()])
    [point] = (await HistoryOperations(store).read(NOW - timedelta(hours=1))).items
    assert point.count == 2


# ── over HTTP ────────────────────────────────────────────────────────────────


@pytest.fixture
async def server() -> AsyncGenerator[Running]:
    async with running(Headrace("memory://")) as server:
        yield server


def recent(ago: int = 1, **fields: Any) -> Rollup:
    return rollup(ago, now=int(time.time()) // 60, **fields)


FOREVER = 2**31 - 1


async def get(client: httpx2.AsyncClient, **query: str) -> httpx2.Response:
    return await client.get("/v1/history", params=query)


async def test_history_over_http(server: Running) -> None:
    await server.store.add_history([recent(queue="a", count=3), recent(60 * 5, queue="b")])
    answer = (await get(server.http, since="2h", by="queue")).json()
    assert [(point["name"], point["count"], point["ends"]) for point in answer["items"]] == [("a", 3, {"done": 3})]
    assert answer["items"][0]["run"]["p95"] == pytest.approx(1.0, rel=0.05)
    assert answer["next"] is None
    whole = (await get(server.http, since="9h", by="end", step="all")).json()
    assert [(point["name"], point["count"]) for point in whole["items"]] == [("done", 4)]
    long_ago = (datetime.now(UTC) - timedelta(hours=6)).isoformat()
    assert [point["name"] for point in (await get(server.http, since=long_ago, until="2h")).json()["items"]] == ["b"]


@pytest.mark.parametrize(
    "query",
    [
        {"since": "yesterday"},
        {"since": "2026-01-01T06:00:00"},
        {"step": "often"},
        {"by": "tenant"},
        {"since": "2001-01-01T06:00:00Z", "step": "1h"},
        {"other": "1"},
    ],
)
async def test_what_history_cannot_answer_is_refused(server: Running, query: dict[str, str]) -> None:
    assert (await get(server.http, **query)).status_code == 422


async def test_a_token_sees_its_queues_and_a_tenant_sees_nothing(server: Running) -> None:
    await server.store.add_history([recent(queue="a"), recent(queue="b")])
    async with server.client(await server.token("read", queues=["a"])) as client:
        answer = (await get(client, by="task")).json()
        assert [point["count"] for point in answer["items"]] == [1]
        assert (await get(client, queue="b")).json()["items"] == []
    async with server.client(await server.token("read", tenant="acme")) as client:
        assert (await get(client)).status_code == 404
    async with server.client(await server.token("work")) as client:
        assert (await get(client)).status_code == 403


async def test_the_server_counts_for_workers_in_other_languages(server: Running) -> None:
    await server.store.enqueue(Batch(new_batch(), [NewJob("t", b"\x92\x90\x80", Lane("q"))]))
    claimed = (await server.http.post("/v1/claim", json={"worker": "w", "queues": ["q"], "wait": 0})).json()
    [job] = claimed["jobs"]
    settled = await server.http.post(
        "/v1/settle",
        json={"lease": claimed["lease"], "settlements": [{"position": 0, "id": job["id"], "outcome": "succeeded"}]},
    )
    assert settled.status_code == 200
    await server.service.leases.history.flush()
    [point] = (await get(server.http)).json()["items"]
    assert (point["name"], point["ends"]) == ("q", {"done": 1})


# ── through the http store ───────────────────────────────────────────────────


async def test_a_bound_worker_adds_for_its_queues_only(server: Running) -> None:
    token = await server.token("work", queues=["a"])
    remote = HttpStore(f"{server.url.replace('http://', f'http://{token}@')}")
    await remote.open()
    try:
        await remote.add_history([recent(queue="a")])
        with pytest.raises(Unsupported):
            await remote.add_history([recent(queue="b")])
        with pytest.raises(Unsupported):
            await remote.read_history(0, FOREVER)
        with pytest.raises(Unsupported):
            await remote.fold_history([], [])
    finally:
        await remote.close()
    assert len((await server.store.read_history(0, FOREVER)).rollups) == 1


def usage(tenants: dict[str, float], *, queue: str = ALL_QUEUES) -> Rollup:
    packed = Usage(tenants, busy=1.0, available=2.0).pack()
    return usage_rollup(packed, minute=int(time.time()) // 60, span=HOUR, queue=queue)


async def test_a_bound_worker_adds_its_slots_and_the_usage_that_it_may_know(server: Running) -> None:
    for token, good, bad in (
        (await server.token("work", queues=["a"]), usage({"acme": 1.0}, queue="a"), usage({}, queue="b")),
        (await server.token("work", tenant="acme"), usage({"acme": 1.0}, queue="a"), usage({"zenith": 1.0}, queue="a")),
    ):
        remote = HttpStore(server.url.replace("http://", f"http://{token}@"))
        await remote.open()
        try:
            await remote.add_history([usage({}), good])
            with pytest.raises(Unsupported):
                await remote.add_history([bad])
        finally:
            await remote.close()
    rollups = (await server.store.read_history(USAGE_FROM, FOREVER)).rollups
    assert sorted(one.queue for one in rollups) == [ALL_QUEUES, ALL_QUEUES, "a", "a"]
    token = await server.token("read", queues=["a"])
    remote = HttpStore(server.url.replace("http://", f"http://{token}@"))
    await remote.open()
    try:
        page = await remote.read_history(USAGE_FROM, FOREVER)
    finally:
        await remote.close()
    assert {one.queue for one in page.rollups} == {"a"}


async def test_a_reader_sees_its_queues_through_the_http_store(server: Running) -> None:
    await server.store.add_history([recent(queue="a"), recent(queue="b")])
    for queues, names in (["a"], {"a"}), ([], {"a", "b"}):
        token = await server.token("read", queues=queues)
        remote = HttpStore(server.url.replace("http://", f"http://{token}@"))
        await remote.open()
        try:
            page = await remote.read_history(0, FOREVER)
        finally:
            await remote.close()
        assert {one.queue for one in page.rollups} == names


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": FOREVER},
        {"count": 0},
        {"span": 7},
        {"run": b"no"},
        {"task": "no task"},
        {"queue": "no queue!"},
        {"start": -1},
        {"queue": ALL_QUEUES},
        {"start": MINUTES_FROM + 1},
        {"start": USAGE_FROM + 1},
        {"start": USAGE_FROM + 1, "run": Usage({"a tenant": 1.0}).pack()},
        {"run": Usage().pack()},
    ],
)
async def test_rollups_that_no_worker_sends_are_refused(server: Running, wrong: dict[str, Any]) -> None:
    good = recent()
    remote = HttpStore(server.url)
    await remote.open()
    try:
        with pytest.raises(ConfigError):
            await remote.add_history([replace(good, **wrong)])
    finally:
        await remote.close()
    assert (await server.store.read_history(0, FOREVER)).rollups == []
