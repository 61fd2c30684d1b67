"""Steps and sleeps in the testing kit: the test's clock decides when a sleep is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from headrace import ConfigError, Headrace, JobState, Retry, sleep, sleep_sync, step, step_sync
from headrace.testing import StandIn, adrain, drain, use_memory


@pytest.fixture
def app() -> Headrace:
    return Headrace("postgresql://nowhere.invalid/none")


@pytest.fixture
def stand(app: Headrace) -> Iterator[StandIn]:
    with use_memory(app) as stand:
        yield stand


def test_a_sleep_is_over_when_the_clock_says_so(app: Headrace, stand: StandIn) -> None:
    sent: list[str] = []

    @app.task
    async def trial(user: int) -> None:
        await step(sent.append, f"welcome {user}")
        await sleep("14d")
        await step(sent.append, f"bill {user}")

    trial.enqueue(7)
    [ran] = drain(app)
    assert ran.state is JobState.SCHEDULED
    assert sent == ["welcome 7"]
    stand.clock.move("13d")
    drain(app)
    assert sent == ["welcome 7"]
    stand.clock.move("1d")
    [ran] = drain(app)
    assert sent == ["welcome 7", "bill 7"]
    assert (ran.state, ran.attempt) == (JobState.DONE, 2)


def test_the_key_of_a_step_is_the_same_text_in_every_attempt() -> None:
    wrong: list[Any] = [object(), 1.5, True, "", b"a", ("a", 1)]
    for key in wrong:
        with pytest.raises(ConfigError, match="cannot be the key of a step"):
            step.using(key=key)
        with pytest.raises(ConfigError, match="cannot be the key of a step"):
            step_sync.using(key=key)
    for right in ("a", 7, UUID(int=7)):
        step.using(key=right)


async def test_in_the_event_loop_of_the_test(app: Headrace, stand: StandIn) -> None:
    sent: list[int] = []

    @app.task
    async def work() -> int:
        await step(sent.append, 1)
        await sleep("1h")
        return await step(len, sent)

    handle = await work.aenqueue()
    await adrain(app)
    stand.clock.move("1h")
    await adrain(app)
    assert await handle.aresult() == 1


def test_a_sync_task(app: Headrace, stand: StandIn) -> None:
    sent: list[str] = []

    @app.task
    def work() -> None:
        step_sync(sent.append, "a")
        sleep_sync("1h")
        step_sync(sent.append, "b")

    work.enqueue()
    drain(app)
    stand.clock.move("1h")
    [ran] = drain(app)
    assert sent == ["a", "b"]
    assert ran.attempt == 2


def test_a_failed_attempt_is_resumed_and_a_step_in_a_transaction_is_kept(app: Headrace, stand: StandIn) -> None:
    ran: list[str] = []

    @app.task(retry=Retry(max_attempts=2, base="0s"))
    async def work() -> None:
        await step.using(tx=object())(ran.append, "written")
        ran.append("attempt")
        if ran.count("attempt") == 1:
            raise ConnectionError

    work.enqueue()
    assert [attempt.state for attempt in drain(app)] == [JobState.READY, JobState.DONE]
    assert ran == ["written", "attempt", "attempt"]
