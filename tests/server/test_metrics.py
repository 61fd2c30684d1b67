"""`/metrics` of the server, read by the parser of Prometheus: what it shows, to which caller, and that counts never fall."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deploy.files import unanswered
from headrace import Headrace
from headrace.errors import Unsupported
from headrace.model.gate import Wait
from headrace.model.job import Batch, JobState, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import Finish
from headrace.model.records import LimitRule
from headrace.model.rollup import AttemptEnd, HistoryPage
from headrace.server import ServerSettings, store_times
from headrace.server.store_times import StoreTimes
from headrace.store.memory import MemoryStore
from headrace.supervisor.series import MOST_PAIRS, RUN, WAIT
from headrace.testing.clock import FakeClock
from headrace.worker.history import HistoryUpkeep
from server.running import Running, running
from server.test_history import NOW, rollup

Samples = list[Sample]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
async def server(store: MemoryStore) -> AsyncGenerator[Running]:
    app = Headrace("memory://")
    # The kept figures are not older than the question, so that no test waits for them.
    async with running(app, ServerSettings(port=0, stats_ttl=0.0), store=store) as running_server:
        yield running_server


async def read(client: httpx2.AsyncClient) -> Samples:
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]


def values(samples: Samples, name: str, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in samples if sample.name == name}


async def test_times_of_the_whole_store(server: Running, store: MemoryStore, clock: FakeClock) -> None:
    await store.add_history([rollup(2, queue="a", task="old", count=1000)])
    assert values(await read(server.http), "headrace_run_seconds_count", "task") == {}
    await store.add_history(
        [
            rollup(0, queue="a", task="mail", seconds=0.2, count=90),
            rollup(0, queue="a", task="mail", seconds=20.0, count=10),
            rollup(0, queue="a", task="mail", seconds=3.0, count=5, end=AttemptEnd.FAILED),
            rollup(0, queue="b", task="charge", seconds=3.0, count=7),
        ]
    )
    # The minute is not over, and workers may still write what they counted in it.
    assert values(await read(server.http), "headrace_run_seconds_count", "task") == {}
    clock.advance(timedelta(seconds=60 + store_times.LATE))
    await read(server.http)
    samples = await read(server.http)
    assert values(samples, "headrace_run_seconds_count", "task") == {"mail": 105, "charge": 7}
    assert values(samples, "headrace_wait_seconds_count", "task") == {"mail": 105, "charge": 7}
    mails = [one for one in samples if one.name == "headrace_run_seconds_bucket" and one.labels["task"] == "mail"]
    counts = {float(sample.labels["le"]): sample.value for sample in mails}
    assert all(low <= high for low, high in pairwise(counts.values()))
    assert (counts[0.102], counts[0.265], counts[5.08], counts[31.1], counts[float("inf")]) == (0, 90, 95, 105, 105)
    [total] = [one.value for one in samples if one.name == "headrace_run_seconds_sum" and one.labels["task"] == "mail"]
    assert total == pytest.approx(90 * 0.2 + 10 * 20 + 5 * 3, rel=0.05)
    await store.add_history([rollup(0, queue="b", task="charge", count=1, now=int(NOW.timestamp()) // 60 + 1)])
    clock.advance(timedelta(seconds=60))
    assert values(await read(server.http), "headrace_run_seconds_count", "task") == {"mail": 105, "charge": 8}


async def test_workers_limits_and_what_a_bound_token_sees(
    server: Running, store: MemoryStore, clock: FakeClock
) -> None:
    await read(server.http)
    later = datetime(2026, 1, 2, tzinfo=UTC)
    await store.limit("stripe", LimitRule(concurrency=4, rate=2.5, closed_until=later), None)
    await store.limit("shop", LimitRule(concurrency=3), None)
    await store.limit("shop:acme", LimitRule(concurrency=1), None)
    await store.add_history([rollup(0, queue="a"), rollup(0, queue="b")])
    clock.advance(timedelta(seconds=60 + store_times.LATE))
    samples = await read(server.http)
    assert values(samples, "headrace_limit_concurrency", "limit") == {"shop": 3, "stripe": 4}
    assert values(samples, "headrace_limit_rate", "limit") == {"stripe": 2.5}
    assert values(samples, "headrace_limit_closed", "limit") == {"shop": 0, "stripe": 1}
    assert values(samples, "headrace_run_seconds_count", "queue") == {"a": 1, "b": 1}
    assert {"headrace_workers", "headrace_slots", "headrace_slots_busy"} <= {sample.name for sample in samples}
    assert not [sample for sample in samples if "tenant" in sample.labels]
    of_queue, of_tenant = await server.token("read", queues=["a"]), await server.token("read", tenant="acme")
    for token, counts in ((of_queue, {"a": 1.0}), (of_tenant, {})):
        async with server.client(token) as client:
            samples = await read(client)
        assert values(samples, "headrace_run_seconds_count", "queue") == counts
        assert values(samples, "headrace_limit_concurrency", "limit") == {}


async def test_held_jobs_and_what_a_bound_token_sees(server: Running, store: MemoryStore, clock: FakeClock) -> None:
    assert values(await read(server.http), "headrace_jobs_held", "queue") == {}
    first, second = new_batch(), new_batch()
    await store.enqueue(Batch(first, [NewJob("t", b"\x92\x90\x80", Lane("a"))]))
    waiting = [NewJob("t", b"\x92\x90\x80", Lane(queue), wait=Wait(first)) for queue in ("b", "c", "c")]
    await store.enqueue(Batch(second, waiting))
    lease = await store.claim(Ask(new_worker_id(), ("a",), 1, timedelta(minutes=1), new_token()))
    assert lease is not None
    await store.settle(lease.token, [(0, Finish(JobState.DEAD))])
    clock.advance(timedelta(seconds=90))
    samples = await read(server.http)
    assert values(samples, "headrace_jobs_held", "queue") == {"b": 1, "c": 2}
    assert values(samples, "headrace_oldest_held_seconds", "queue") == {"b": 90, "c": 90}
    assert [sample.value for sample in samples if sample.name == "headrace_jobs_held_at_least"] == [0]
    of_queue, of_tenant = await server.token("read", queues=["b"]), await server.token("read", tenant="acme")
    for token, counts in ((of_queue, {"b": 1.0}), (of_tenant, {})):
        async with server.client(token) as client:
            assert values(await read(client), "headrace_jobs_held", "queue") == counts


async def test_grafana_and_its_alerts_ask_for_what_the_page_has(
    server: Running, store: MemoryStore, clock: FakeClock
) -> None:
    """Each name and each label of their expressions, on a page of a store in which all of it occurs."""
    await read(server.http)
    first, later = new_batch(), datetime(2027, 1, 2, tzinfo=UTC)
    await store.enqueue(Batch(first, [NewJob("t", b"\x92\x90\x80", Lane("a"))]))
    await store.enqueue(Batch(new_batch(), [NewJob("t", b"\x92\x90\x80", Lane("a"), wait=Wait(first))]))
    lease = await store.claim(Ask(new_worker_id(), ("a",), 1, timedelta(minutes=1), new_token()))
    assert lease is not None
    await store.settle(lease.token, [(0, Finish(JobState.DEAD))])
    await store.limit("stripe", LimitRule(concurrency=4, rate=2.5, closed_until=later), None)
    await store.add_history([rollup(0, queue="a", task="t")])
    clock.advance(timedelta(seconds=60 + store_times.LATE))
    assert unanswered(await read(server.http), of_worker=False) == []


async def test_a_server_without_readers_leaves_old_minutes_out(store: MemoryStore, clock: FakeClock) -> None:
    times = StoreTimes(store)
    await times.read()
    first = int(NOW.timestamp()) // 60
    await store.add_history([rollup(0, count=1), rollup(0, count=2, now=first + 10)])
    clock.advance(timedelta(minutes=store_times.BEHIND + 8))
    runs = [sum(series.counts) for series in (await times.read()).series() if series.family == RUN]
    assert runs == [2]


async def test_tasks_of_a_store_stay_bounded(store: MemoryStore, clock: FakeClock) -> None:
    times = StoreTimes(store)
    await times.read()
    for page in range(3):
        await store.add_history([rollup(0, task=f"t{number}") for number in range(page * 500, page * 500 + 500)])
    clock.advance(timedelta(minutes=2))
    waits = [series for series in (await times.read()).series() if series.family == WAIT]
    assert len(waits) == MOST_PAIRS + 1
    assert sum(sum(series.counts) for series in waits) == 1500


async def test_minutes_that_are_folded_already_count_once(store: MemoryStore, clock: FakeClock) -> None:
    first = int(NOW.timestamp()) // 60
    times = StoreTimes(store)
    for number in range(6):
        await store.add_history([rollup(0, count=2**number, now=first + 7 * number)])
    clock.advance(timedelta(minutes=8))
    await times.read()
    # The client comes back when the quarter that it has read in part is folded.
    clock.advance(timedelta(minutes=42))
    upkeep = HistoryUpkeep(store, timedelta(days=30))
    while await upkeep.tidy() <= 1.0:
        pass
    runs = [sum(series.counts) for series in (await times.read()).series() if series.family == RUN]
    assert runs == [2 + 4 + 8 + 16 + 32]


class Folding(MemoryStore):
    """A store in which rollups are folded between the first two pages."""

    folds = 0

    async def read_history(self, *args: object, **named: object) -> HistoryPage:
        page = await super().read_history(*args, **named)  # type: ignore[arg-type]
        self.folds += 1
        return HistoryPage(page.rollups, page.next, 0 if self.folds == 1 else 1)


async def test_a_fold_between_two_pages_counts_nothing_twice(clock: FakeClock) -> None:
    store = Folding(clock=clock)
    times = StoreTimes(store)
    await times.read()
    for page in range(3):
        await store.add_history([rollup(0) for _ in range(page * 500, page * 500 + 500)])
    clock.advance(timedelta(minutes=2))
    runs = [sum(series.counts) for series in (await times.read()).series() if series.family == RUN]
    assert runs == [1500]


class Closed(MemoryStore):
    """A store whose history this server may not read."""

    async def read_history(self, *args: object, **named: object) -> HistoryPage:
        raise Unsupported("no history")


async def test_without_history_there_are_no_times(clock: FakeClock) -> None:
    times = StoreTimes(Closed(clock=clock))
    await times.read()
    clock.advance(timedelta(minutes=2))
    assert list((await times.read()).series()) == []
