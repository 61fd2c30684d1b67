"""`enqueued`, `assert_enqueued`, `assert_not_enqueued`, and what they say when they fail."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from headrace import ConfigError, Headrace, JobState
from headrace.testing import FakeClock, assert_enqueued, assert_not_enqueued, drain, enqueued, use_memory

app = Headrace("memory://")


@app.task(name="billing.charge", queue="billing")
def charge(order: int, shop: str, *, fee: float = 0.5) -> None: ...


@app.task(name="mail.send", tenant=lambda to, queue="none": to)
def send(to: str, queue: str = "none") -> None: ...


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    with use_memory(app, clock=FakeClock(datetime(2027, 1, 1, tzinfo=UTC))) as stand:
        yield stand.clock


def test_arguments() -> None:
    handle = charge.enqueue(7, "acme")
    [job] = assert_enqueued(charge, 7, "acme")
    assert (job.id, job.args, job.kwargs, job.queue, job.state) == (
        handle.id,
        (7, "acme"),
        {},
        "billing",
        JobState.READY,
    )
    assert_enqueued(charge)
    assert_enqueued(charge, order=7)
    assert_enqueued(charge, shop="acme", fee=0.5)  # a default counts as given
    assert_enqueued(charge, ANY, "acme")
    assert_enqueued("billing.charge")
    assert_not_enqueued(charge, 8)
    assert_not_enqueued(send)
    with pytest.raises(TypeError, match=r"billing\.charge: got an unexpected keyword argument 'ordr'"):
        assert_enqueued(charge, ordr=7)


def test_options(clock: FakeClock) -> None:
    send.using(delay="5m", priority=3, key="k").enqueue("ann")
    send.using(run_at=clock.now() + timedelta(hours=1), queue="slow").enqueue("bob")
    assert_enqueued(send, "ann", delay="5m", priority=3, key="k", tenant="ann", queue="default", state="scheduled")
    assert_enqueued(send, "ann", run_at=clock.now() + timedelta(minutes=5))
    assert_enqueued(send, "bob", delay=timedelta(hours=1))
    assert_not_enqueued(send, delay="6m")
    assert_not_enqueued(send, state="ready")
    with pytest.raises(ValueError, match="waiting"):
        assert_enqueued(send, state="waiting")


def test_whole_jobs() -> None:
    send.using(delay="5m").enqueue("ann", queue="an argument")
    assert_enqueued(send.using(delay="5m").job("ann", "an argument"))
    with pytest.raises(AssertionError, match="delay is 5m, not None"):
        assert_enqueued(send.job("ann", "an argument"))
    assert_not_enqueued(send.using(delay="5m").job("bob"))
    with pytest.raises(ConfigError, match="has its arguments already"):
        assert_enqueued(send.job("ann"), 3)


def test_counts() -> None:
    for order in (1, 1, 2):
        charge.enqueue(order, "acme")
    assert len(assert_enqueued(charge, count=3)) == 3
    assert_enqueued(charge, 1, count=2)
    assert_enqueued(charge, 3, count=0)
    with pytest.raises(AssertionError, match=r"2 jobs were enqueued like billing\.charge\(order=1\), not 1"):
        assert_enqueued(charge, 1, count=1)


def test_jobs_that_have_run_count() -> None:
    charge.enqueue(1, "acme")
    drain(app)
    assert_enqueued(charge, 1)
    assert_enqueued(charge, 1, state=JobState.DONE)
    assert_not_enqueued(charge, 1, state="ready")
    assert [str(job.state) for job in enqueued(app)] == ["done"]
    assert enqueued(app, send) == []
    assert enqueued(app, charge, state="ready") == []


def test_the_message_shows_the_closest_jobs_first() -> None:
    with pytest.raises(AssertionError) as nothing:
        assert_enqueued(charge, 7)
    assert str(nothing.value) == "no job like billing.charge(order=7) was enqueued; no job at all was"
    send.enqueue("ann")
    charge.enqueue(8, "globex")
    charge.using(delay="1m").enqueue(7, "globex")
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(charge, 7, "acme", queue="billing")
    assert str(raised.value).splitlines() == [
        "no job like billing.charge(order=7, shop='acme') with queue='billing' was enqueued; these 3 were, the closest first:",
        "  billing.charge(7, 'globex')  queue='billing', delay='1m': scheduled  (shop is 'globex', not 'acme')",
        "  billing.charge(8, 'globex')  queue='billing': ready  (order is 8, not 7; shop is 'globex', not 'acme')",
        "  mail.send('ann')  queue='default', tenant='ann': ready",
    ]
    with pytest.raises(AssertionError) as unwanted:
        assert_not_enqueued(send)
    assert str(unwanted.value).splitlines() == [
        "1 job was enqueued that must not be, like mail.send(…):",
        "  mail.send('ann')  queue='default', tenant='ann': ready",
    ]


def test_the_message_has_an_end() -> None:
    for order in range(30):
        charge.enqueue(order, "x" * 200)
    with pytest.raises(AssertionError, match="and 20 more") as raised:
        assert_enqueued(charge, 99)
    assert len(str(raised.value).splitlines()) == 12


def test_a_task_of_an_app_that_does_not_use_memory() -> None:
    other = Headrace("memory://")

    @other.task(name="other.task")
    def task() -> None: ...

    with pytest.raises(ConfigError, match=r"no app that uses memory now declares a task other\.task"):
        assert_enqueued(task)
