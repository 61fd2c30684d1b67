"""The tasks of the examples, tested as a user would test them: with `headrace.testing`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from examples import demo, flask_app, hello
from headrace import Headrace, JobState
from headrace.testing import (
    FakeClock,
    adrain,
    assert_enqueued,
    assert_idempotent,
    drain,
    enqueued,
    use_memory,
)


@pytest.fixture
def headrace_app() -> Headrace:
    return demo.app


async def test_hello() -> None:
    async with hello.app.inline():
        handle = await hello.greet.aenqueue("world", times=2)
        assert await handle.aresult() == "Hello world! Hello world!"


def test_a_declined_card_is_dead_at_once(headrace_clock: FakeClock) -> None:
    demo.charge.enqueue("acme", 9)
    demo.charge.enqueue("acme", 10)
    assert_enqueued(demo.charge, "acme", 9, priority=5, tenant="acme", count=1)
    declined, paid = drain(demo.app)
    assert (declined.state, type(declined.error)) == (JobState.DEAD, demo.Declined)
    assert (paid.state, paid.result) == (JobState.DONE, "acme: order 10 paid with 4242")


async def test_polling_snoozes(headrace_clock: FakeClock) -> None:
    handle = await demo.poll.aenqueue("acme")
    began = headrace_clock.now()
    # Only this queue: the clock begins at the present time, and the app's schedule may fire in the four seconds.
    assert [ran.outcome for ran in await adrain(demo.app, "default", advance=True)] == [
        "snoozed",
        "snoozed",
        "succeeded",
    ]
    assert (headrace_clock.now() - began).total_seconds() == 4
    assert await handle.aresult() == "acme is ready"


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    monkeypatch.setattr(flask_app, "engine", engine)
    with use_memory(flask_app.queue):
        yield
    engine.dispose()


def test_a_flask_order_and_its_job(shop: None) -> None:
    client = flask_app.create_app().test_client()
    assert client.post("/orders", json={"item": "nothing", "count": 1}).status_code == 409
    assert enqueued(flask_app.queue) == []
    answer = client.post("/orders", json={"item": "tea", "count": 2})
    order = json.loads(answer.text)["order"]
    assert_enqueued(flask_app.ship, order, queue="shipping", count=1)
    [ran] = drain(flask_app.queue)
    assert ran.result == "the tea shop: 2 × tea shipped"

    def shipped() -> list[bool]:
        with flask_app.Session(flask_app.engine) as session:
            return [found.shipped for found in session.query(flask_app.Order)]

    assert_idempotent(flask_app.ship.job(order), state=shipped)
