"""Reports: failure rates and run times by week, the use of slots, run seconds by tenant, and which caller sees what."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from headrace import Headrace
from headrace.model.histogram import Histogram
from headrace.model.rollup import ALL_QUEUES, DAY, HOUR, AttemptEnd, Rollup, usage_rollup
from headrace.model.usage import Usage
from headrace.operate.report import ReportOperations
from headrace.store.memory import MemoryStore
from headrace.testing.clock import FakeClock
from headrace.worker.history import HistoryUpkeep
from server.running import Running, running

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
"""A Thursday."""


def attempts(
    at: datetime,
    *,
    task: str = "t",
    queue: str = "q",
    end: AttemptEnd = AttemptEnd.DONE,
    seconds: float = 1.0,
    count: int = 1,
) -> Rollup:
    times = Histogram()
    times.add([seconds], count)
    minute = int(at.timestamp()) // 60
    return Rollup(
        start=minute,
        id=uuid4(),
        queue=queue,
        task=task,
        end=end,
        count=count,
        wait=times.pack(),
        run=times.pack(),
        sent=minute * 60,
    )


def usage(at: datetime, queue: str, tenants: dict[str, float], *, busy: float = 0.0, available: float = 0.0) -> Rollup:
    minute = int(at.timestamp()) // 60
    packed = Usage(tenants, busy=busy, available=available).pack()
    return usage_rollup(packed, minute=minute, span=HOUR, queue=queue, sent=minute * 60)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def ago(**length: float) -> datetime:
    return NOW - timedelta(**length)


async def filled(store: MemoryStore) -> None:
    await store.add_history(
        [
            attempts(ago(days=20), task="mail", count=90),
            attempts(ago(days=20), task="mail", end=AttemptEnd.FAILED, count=10),
            attempts(ago(days=2), task="mail", count=100, seconds=10.0),
            attempts(ago(hours=1), task="charge", queue="r", end=AttemptEnd.DEAD, count=1),
            attempts(ago(hours=1), task="charge", queue="r", count=3),
            attempts(ago(hours=1), task="nap", end=AttemptEnd.SNOOZED, count=3),
            usage(ago(days=20), ALL_QUEUES, {}, busy=10.0, available=100.0),
            usage(ago(hours=1), ALL_QUEUES, {}, busy=80.0, available=100.0),
            usage(ago(days=20), "q", {"acme": 30.0, "": 10.0}),
            usage(ago(hours=1), "q", {"acme": 30.0, "zenith": 20.0}),
            usage(ago(hours=1), "r", {"zenith": 10.0}),
        ]
    )


@pytest.mark.parametrize("folded", [False, True])
async def test_a_report_of_weeks(store: MemoryStore, *, folded: bool) -> None:
    await filled(store)
    if folded:
        upkeep = HistoryUpkeep(store, timedelta(days=30))
        while await upkeep.tidy() <= 1.0:
            pass
    report = await ReportOperations(store).read(ago(days=28))
    assert report.step == 7 * 86_400
    assert report.since == datetime(2025, 12, 4, tzinfo=UTC)
    charge, mail, nap = report.items
    assert (charge.task, charge.count, charge.failure_rate) == ("charge", 4, 0.25)
    assert (mail.task, mail.ends, mail.failure_rate) == ("mail", {"done": 190, "failed": 10}, 0.05)
    assert (nap.task, nap.failure_rate) == ("nap", None)
    # Weeks begin on Monday.
    assert [(step.at, step.count, step.failure_rate) for step in mail.steps] == [
        (datetime(2025, 12, 8, tzinfo=UTC), 100, 0.1),
        (datetime(2025, 12, 29, tzinfo=UTC), 100, 0.0),
    ]
    assert mail.run.p50 == pytest.approx(1.0, rel=0.05)
    assert [step.run.p95 for step in mail.steps] == pytest.approx([1.0, 10.0], rel=0.05)
    slots = report.slots
    assert slots is not None
    assert (slots.busy_seconds, slots.available_seconds, slots.utilisation) == (90.0, 200.0, 0.45)
    assert [step.utilisation for step in slots.steps] == [0.1, 0.8]
    assert [(one.tenant, one.run_seconds, one.share) for one in report.tenants] == [
        ("acme", 60.0, 0.6),
        ("zenith", 30.0, 0.3),
        ("", 10.0, 0.1),
    ]


async def test_a_report_of_one_queue_has_no_slots_because_they_serve_several(store: MemoryStore) -> None:
    await filled(store)
    report = await ReportOperations(store).read(ago(days=28), queue="r")
    assert [task.task for task in report.items] == ["charge"]
    assert report.slots is None
    assert [(one.tenant, one.share) for one in report.tenants] == [("zenith", 1.0)]


async def test_steps_fit_the_length_of_time(store: MemoryStore) -> None:
    await filled(store)
    operations = ReportOperations(store)
    day = await operations.read(ago(hours=24))
    assert (day.step, day.since) == (3600, ago(hours=24))
    assert [task.task for task in day.items] == ["charge", "nap"]
    week = await operations.read(ago(days=7), ago(days=1))
    assert (week.step, week.since) == (86_400, ago(days=7))
    assert [task.task for task in week.items] == ["mail"]


async def test_the_first_week_begins_with_the_report(store: MemoryStore) -> None:
    await store.add_history([attempts(ago(days=9))])
    [task] = (await ReportOperations(store).read(ago(days=9))).items
    assert [step.at for step in task.steps] == [datetime(2025, 12, 23, tzinfo=UTC)]


async def test_tenants_that_are_not_named_count_together(store: MemoryStore) -> None:
    many = {f"t{number:03}": 1.0 for number in range(99)} | {"acme": 50.0, "small": 0.5, "tiny": 0.5}
    await store.add_history([usage(ago(hours=1), "q", many)])
    tenants = (await ReportOperations(store).read(ago(days=1))).tenants
    assert len(tenants) == 101
    assert (tenants[0].tenant, tenants[0].run_seconds) == ("acme", 50.0)
    assert (tenants[-1].tenant, tenants[-1].run_seconds) == (None, 1.0)


async def test_what_a_newer_version_has_written_is_left_out(store: MemoryStore) -> None:
    await store.add_history(
        [replace(attempts(ago(hours=1)), run=b"\x63"), replace(usage(ago(hours=1), "q", {}), run=b"\x63")]
    )
    report = await ReportOperations(store).read(ago(days=1))
    assert [task.count for task in report.items] == [1]
    assert report.tenants == []


# ── over HTTP ────────────────────────────────────────────────────────────────


@pytest.fixture
async def server() -> AsyncGenerator[Running]:
    async with running(Headrace("memory://")) as server:
        now = datetime.fromtimestamp(time.time(), UTC)
        await server.store.add_history(
            [
                attempts(now, queue="a", task="mail", count=3),
                attempts(now, queue="b", task="charge", end=AttemptEnd.FAILED),
                usage(now, ALL_QUEUES, {}, busy=1.0, available=4.0),
                usage(now, "a", {"acme": 3.0, "zenith": 1.0}),
                usage(now, "b", {"acme": 5.0}),
            ]
        )
        yield server


async def report_for(server: Running, token: str, **query: str) -> Any:
    async with server.client(token) as client:
        answer = await client.get("/v1/report", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def test_a_report_over_http(server: Running) -> None:
    report = await report_for(server, await server.token("read"))
    assert [task["task"] for task in report["items"]] == ["charge", "mail"]
    assert report["next"] is None
    assert report["slots"]["utilisation"] == 0.25
    assert [(one["tenant"], one["run_seconds"]) for one in report["tenants"]] == [("acme", 8.0), ("zenith", 1.0)]
    async with server.client(await server.token("read")) as client:
        assert (await client.get("/v1/report", params={"since": "yesterday"})).status_code == 422
    async with server.client(await server.token("work")) as client:
        assert (await client.get("/v1/report")).status_code == 403


async def test_a_token_that_is_bound_to_queues_gets_a_report_of_these(server: Running) -> None:
    token = await server.token("read", queues=["a"])
    report = await report_for(server, token)
    assert [task["task"] for task in report["items"]] == ["mail"]
    assert report["slots"] is None
    assert [(one["tenant"], one["share"]) for one in report["tenants"]] == [("acme", 0.75), ("zenith", 0.25)]
    assert (await report_for(server, token, queue="b"))["tenants"] == []


async def test_a_token_that_is_bound_to_a_tenant_sees_its_own_run_seconds(server: Running) -> None:
    report = await report_for(server, await server.token("read", tenant="zenith"))
    assert (report["items"], report["slots"]) == ([], None)
    assert report["tenants"] == [{"tenant": "zenith", "run_seconds": 1.0, "share": None}]
    both = await report_for(server, await server.token("read", tenant="zenith", queues=["b"]))
    assert both["tenants"] == []


async def test_days_are_read_when_hours_are_folded(clock: FakeClock, store: MemoryStore) -> None:
    await filled(store)
    clock.advance(timedelta(days=10))
    upkeep = HistoryUpkeep(store, timedelta(days=60))
    while await upkeep.tidy() <= 1.0:
        pass
    rollups = (await store.read_history(0, 2**31 - 1)).rollups
    assert {one.span for one in rollups} == {DAY}
    report = await ReportOperations(store).read(ago(days=28))
    assert sum(task.count for task in report.items) == 207
    assert sum(one.run_seconds for one in report.tenants) == 100.0
