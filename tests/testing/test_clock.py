"""The clock of a test moves delays, schedules, retries, leases and expirations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from headrace import ConfigError, Headrace, JobState, ResultExpired, Unique
from headrace.testing import FakeClock, StandIn, assert_enqueued, drain, enqueued, use_memory

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Headrace:
    return Headrace("memory://")


@pytest.fixture
def stand(app: Headrace) -> Iterator[StandIn]:
    with use_memory(app, clock=FakeClock(NOON)) as stand:
        yield stand


def test_move_and_set() -> None:
    clock = FakeClock(NOON)
    assert clock.move("2h") == NOON + timedelta(hours=2)
    assert clock.move(30) == NOON + timedelta(hours=2, seconds=30)
    assert clock.move(timedelta(seconds=30)) == clock.now()
    assert clock.set(NOON + timedelta(days=1)) == clock.now()
    with pytest.raises(ConfigError, match="never goes back"):
        clock.set(NOON)
    with pytest.raises(ConfigError, match="time zone"):
        clock.set(datetime(2028, 1, 1))  # noqa: DTZ001 - the mistake
    with pytest.raises(ConfigError, match="duration"):
        clock.move("soon")


def test_delays(app: Headrace, stand: StandIn) -> None:
    @app.task
    def note() -> None: ...

    note.using(delay="5m").enqueue()
    stand.clock.move("4m")
    assert drain(app) == []
    stand.clock.move("1m")
    assert_enqueued(note, state="ready")
    assert len(drain(app)) == 1


def test_a_slot_of_a_schedule(app: Headrace, stand: StandIn) -> None:
    @app.task(name="report")
    def report() -> None: ...

    app.schedule("hourly", every="1h", job=report.job())
    stand.clock.move("59m")
    assert enqueued(app) == []
    stand.clock.move("1m")
    assert_enqueued(report, count=1)
    assert len(drain(app)) == 1
    assert drain(app, advance=True) == []  # a schedule has no end, so it does not move the clock


@pytest.mark.parametrize(("catch_up", "jobs"), [("none", 0), ("last", 1), ("all(24)", 3)])
def test_missed_slots_follow_the_catch_up_policy(catch_up: str, jobs: int) -> None:
    app = Headrace("memory://")

    @app.task(name="report")
    def report() -> None: ...

    app.schedule("nightly", cron="0 3 * * *", tz="UTC", job=report.job(), overlap="allow", catch_up=catch_up)  # type: ignore[arg-type]
    with use_memory(app, clock=FakeClock(NOON)) as stand:
        stand.clock.move(timedelta(days=2, hours=20))
        assert len(drain(app)) == jobs


def test_open_hours(app: Headrace, stand: StandIn) -> None:
    app.queue("nights", open="22:00-06:00 UTC")

    @app.task(queue="nights")
    def sweep() -> None: ...

    sweep.enqueue()
    assert drain(app) == []
    assert len(drain(app, advance=True)) == 1
    assert stand.clock.now() == NOON + timedelta(hours=10)
    with app.inline():
        sweep.enqueue()
        assert_enqueued(sweep, state="done", count=2)


def test_expirations(app: Headrace, stand: StandIn) -> None:
    @app.task(result_ttl="1h", unique=Unique(within="10m"))
    def answer() -> int:
        return 42

    @app.task(expires="1m")
    def soon() -> None: ...

    handle = answer.enqueue()
    assert not answer.enqueue().created
    stand.clock.move("11m")
    assert answer.enqueue().created
    drain(app)
    assert handle.result() == 42
    stand.clock.move("2h")
    with pytest.raises(ResultExpired):
        handle.result()
    late = soon.enqueue()
    stand.clock.move("2m")
    drain(app)
    assert late.status().state is JobState.CANCELLED


def test_a_task_that_moves_the_clock_keeps_its_lease(app: Headrace, stand: StandIn) -> None:
    @app.task
    def long() -> None:
        stand.clock.move("1h")
        drain(app)

    handle = long.enqueue()
    assert [ran.outcome for ran in drain(app)] == ["succeeded"]
    assert handle.status().attempt == 1
