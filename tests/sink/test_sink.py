"""The sink on every store: which rows an end becomes, that none is missed, and which process writes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from conformance.kit import CANCELLED, DEAD, WORKER, failure, new, put, put_jobs, run_one, settle_all, take
from headrace.errors import Unavailable
from headrace.model.job import JobState
from headrace.model.lease import Presence
from headrace.model.outcome import Finish
from headrace.sink import sink as sinks
from headrace.sink.address import parse
from headrace.sink.sink import EVERY, HOLD, OVERLAP, STANDBY
from headrace.sink.state import KIND, SinkState, read_states
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock
from sink.kit import Table

S = timedelta(seconds=1)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "valkey"])
def store_name(request: pytest.FixtureRequest) -> str:
    """The sink reads the store itself, so a server's HTTP store is no place for it."""
    return str(request.param)


async def state_of(store: Store) -> SinkState:
    [(_, state)] = (await read_states(store)).values()
    assert state is not None
    return state


def time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


async def test_every_kind_of_end_is_a_row(store: Store, clock: FakeClock, table: Table):
    born = clock.now()
    jobs = [new("shop.pay", queue="q", tenant="acme", priority=7), new("fail", queue="q"), new("stop", queue="q")]
    pay, fail, stop = await put_jobs(store, *jobs)
    clock.advance(1.5)
    lease = await take(store, 1, "q")
    clock.advance(0.25)
    await settle_all(store, lease, Finish(JobState.DONE, result=b"secret result"))
    lease = await take(store, 1, "q")
    clock.advance(S)
    await settle_all(store, lease, Finish(JobState.DEAD, note="max_attempts", failures=1, failure=failure()))
    await store.cancel([stop], "a secret reason")
    assert await table.sink(store).tidy() == EVERY
    paid, failed, stopped = table.rows()
    assert UUID(paid["id"]) == pay
    assert (paid["queue"], paid["task"], paid["tenant"], paid["priority"]) == ("q", "shop.pay", "acme", 7)
    assert (paid["state"], paid["attempt"], paid["failures"], paid["known"]) == ("done", 1, 0, 1)
    assert [time(paid[name]) - born for name in ("enqueued_at", "started_at", "ended_at")] == [0 * S, 1.5 * S, 1.75 * S]
    assert (paid["wait_ms"], paid["run_ms"]) == (1500, 250)
    assert (paid["error"], paid["fingerprint"]) == ("", "")
    assert (UUID(failed["id"]), failed["state"], failed["failures"]) == (fail, "dead", 1)
    assert (failed["error"], len(failed["fingerprint"])) == ("ValueError", 12)
    assert (UUID(stopped["id"]), stopped["state"], stopped["attempt"]) == (stop, "cancelled", 0)
    assert (stopped["started_at"], stopped["wait_ms"], stopped["run_ms"]) == (None, None, None)
    assert "secret" not in json.dumps(table.rows())


async def test_a_row_names_the_worker(store: Store, clock: FakeClock, table: Table):
    about: dict[str, Any] = {"queues": ("default",), "slots": 1, "running": 0, "version": "1", "tasks": ()}
    await store.heartbeat([], S, Presence(id=WORKER, name="host:77", started_at=clock.now(), **about))
    await put(store)
    await run_one(store)
    await table.sink(store).tidy()
    assert [row["worker"] for row in table.rows()] == ["host:77"]


async def test_an_end_that_becomes_visible_late_is_not_missed(store: Store, clock: FakeClock, table: Table):
    sink = table.sink(store)
    await put(store, 3)
    clock.advance(3 * S)
    await run_one(store)
    await sink.tidy()
    clock.advance(-2 * S)  # As if the commit of an earlier end had taken two seconds.
    await run_one(store)
    clock.advance(3 * S)
    await run_one(store)
    for _ in range(3):
        await sink.tidy()
        clock.advance(OVERLAP)
    assert len(table.ids()) == 3
    assert table.count() == 3  # The second look recognises the rows of the first.


async def test_a_sink_that_starts_again_goes_on_where_it_was(store: Store, clock: FakeClock, table: Table):
    ids = await put(store, 5)
    for _ in range(3):
        await run_one(store)
        clock.advance(S)
    await table.sink(store, "host:1").tidy()
    clock.advance(HOLD)
    for _ in range(2):
        await run_one(store)
        clock.advance(S)
    again = table.sink(store, "host:2")
    await again.tidy()
    assert table.ids() == sorted(ids)
    clock.advance(HOLD + OVERLAP)
    last = table.sink(store, "host:3")
    await last.tidy()
    assert (again.rows, last.rows) == (5, 2)  # Only ends that may have been incomplete are read again.
    assert table.ids() == sorted(ids)
    state = await state_of(store)
    assert (state.holder, state.error, state.rows) == ("host:3", "", 10)
    assert state.lag(clock.now()) == 0


async def test_a_row_that_was_written_twice_is_one_row(store: Store, clock: FakeClock, table: Table):
    ids = await put(store, 10)
    await settle_all(store, await take(store))
    await table.sink(store, "host:1").tidy()
    await put(store, 1)
    await settle_all(store, await take(store))
    clock.advance(HOLD)
    await table.sink(store, "host:2").tidy()
    assert table.count() == 21
    assert len(table.ids()) == len(ids) + 1


async def test_one_process_writes_and_another_stands_by(store: Store, clock: FakeClock, table: Table):
    first, second = table.sink(store, "host:1"), table.sink(store, "host:2")
    await put(store, 2)
    await run_one(store)
    assert await first.tidy() == EVERY
    assert await second.tidy() == STANDBY
    await run_one(store)
    clock.advance(HOLD / 2)
    assert await second.tidy() == STANDBY
    assert await first.tidy() == EVERY
    clock.advance(HOLD - S)
    assert await second.tidy() == STANDBY
    clock.advance(S)
    assert await second.tidy() == EVERY
    assert await first.tidy() == STANDBY
    third = table.sink(store, "host:3", force=True)
    assert await third.tidy() == EVERY
    assert await second.tidy() == STANDBY
    assert len(table.ids()) == 2


async def test_more_ends_at_one_moment_than_a_page_has(
    store: Store, clock: FakeClock, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sinks, "PAGE", 10)
    monkeypatch.setattr(sinks, "BATCH", 25)
    ids = await put(store, 90)
    for _ in range(3):
        await settle_all(store, await take(store, 30))
    sink = table.sink(store, share=0.5)
    pauses: list[float] = []
    while not sink.caught_up:
        pauses.append(await sink.tidy())
    assert table.ids() == sorted(ids)
    assert len(pauses) > 2
    assert pauses[-1] == EVERY
    assert all(0 < pause < EVERY for pause in pauses[:-1])


async def test_a_job_that_is_gone_is_a_row_with_what_is_known(store: Store, clock: FakeClock, table: Table):
    [id] = await put(store)
    await run_one(store, DEAD)
    sink = table.sink(store)
    missed = await store.ended(clock.now())
    await store.retry([id])
    [row] = [json.loads(line) for line in await sink._rows(missed)]
    assert (UUID(row["id"]), row["state"], row["known"], row["attempt"]) == (id, "dead", 0, 0)


async def test_a_retried_job_has_a_row_for_each_end(store: Store, clock: FakeClock, table: Table):
    [id] = await put(store)
    await run_one(store, DEAD)
    sink = table.sink(store)
    await sink.tidy()
    clock.advance(S)
    await store.retry([id])
    await run_one(store)
    await sink.tidy()
    assert [(UUID(row["id"]), row["state"], row["attempt"]) for row in table.rows()] == [
        (id, "dead", 1),
        (id, "done", 2),
    ]


async def test_a_clock_that_was_set_back_hides_no_end(store: Store, clock: FakeClock, table: Table):
    sink = table.sink(store)
    ids = await put(store, 2)
    await run_one(store)
    await sink.tidy()
    clock.advance(timedelta(minutes=10))
    await sink.tidy()
    clock.advance(-timedelta(hours=1))
    await run_one(store, CANCELLED)
    await sink.tidy()
    assert table.ids() == sorted(ids)


async def test_large_jobs_are_read_a_few_at_a_time(store: Store, table: Table, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sinks, "CHUNK_BYTES", 50_000)
    await put(store, 40, payload=b"x" * 10_000)
    await settle_all(store, await take(store))
    sizes: list[int] = []
    get = store.get

    async def noted(ids: Any) -> Any:
        sizes.append(len(ids))
        return await get(ids)

    monkeypatch.setattr(store, "get", noted)
    await table.sink(store).tidy()
    assert sizes[0] == 20
    assert set(sizes[1:]) <= {1, 2, 3, 4, 5}
    assert sum(sizes) == 40


async def test_an_error_stays_in_the_store_until_a_pass_works(store: Store, clock: FakeClock, table: Table):
    await put(store)
    await run_one(store)
    wrong = Table(table.server, table.name, table.server.url(password="wrong-password", table=table.name))
    sink = wrong.sink(store)
    with pytest.raises(Unavailable, match="403: Code: 516") as refused:
        await sink.tidy()
    assert "wrong-password" not in str(refused.value)
    state = await state_of(store)
    assert "516" in state.error
    assert "wrong-password" not in state.error
    clock.advance(HOLD)
    assert state.lag(clock.now()) >= HOLD.total_seconds()
    await table.sink(store, "host:2").tidy()
    state = await state_of(store)
    assert (state.error, state.lag(clock.now()), state.rows) == ("", 0, 1)


async def test_a_record_that_cannot_be_read_means_a_new_beginning(store: Store, clock: FakeClock, table: Table):
    ids = await put(store, 2)
    await settle_all(store, await take(store))
    assert await store.record(KIND, parse(table.url).shown, b"\xff{", None) is not None
    sink = table.sink(store)
    await sink.tidy()
    assert table.ids() == sorted(ids)
    assert (await state_of(store)).rows == 2


async def test_a_pass_that_takes_long_keeps_its_role(
    store: Store, clock: FakeClock, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sinks, "monotonic", clock.monotonic)
    monkeypatch.setattr(sinks, "CHUNK", 10)
    ids = await put(store, 50)
    await settle_all(store, await take(store))
    first, second = table.sink(store, "host:1"), table.sink(store, "host:2")
    get, answers = store.get, list[float]()

    async def slow(ids: Any) -> Any:
        clock.advance(HOLD * 0.6)
        answers.append(await second.tidy())
        return await get(ids)

    monkeypatch.setattr(store, "get", slow)
    await first.tidy()
    assert len(answers) >= 5
    assert set(answers) == {STANDBY}
    assert (await state_of(store)).holder == "host:1"
    assert table.ids() == sorted(ids)


async def test_a_process_that_lost_its_role_in_a_pass_stands_by(
    store: Store, clock: FakeClock, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sinks, "monotonic", clock.monotonic)
    ids = await put(store, 50)
    await settle_all(store, await take(store))
    first, second = table.sink(store, "host:1"), table.sink(store, "host:2", force=True)
    get = store.get

    async def slow(ids: Any) -> Any:
        monkeypatch.setattr(store, "get", get)
        clock.advance(HOLD * 0.6)
        assert await second.tidy() == EVERY
        return await get(ids)

    monkeypatch.setattr(store, "get", slow)
    await first.tidy()
    assert await first.tidy() == STANDBY
    assert (await state_of(store)).holder == "host:2"
    assert table.ids() == sorted(ids)
