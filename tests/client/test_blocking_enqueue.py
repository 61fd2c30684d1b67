"""Single enqueues of sync code: the calling thread writes, with the same outcome as through the portal."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from client.test_portal import run
from conformance.kit import claim
from headrace import Headrace, Limit, Unique
from headrace.client.blocking import BlockingClient
from headrace.errors import (
    ConfigError,
    IdempotencyConflict,
    KeyHeld,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
)
from headrace.model.job import Batch, JobId, JobState, Key, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.records import Enqueued
from headrace.runtime.portal import portal
from headrace.settings import Settings
from headrace.store import connect
from headrace.task.handle import Put
from headrace.testing.clock import FakeClock

LONG = 60
"""Seconds that no test waits: an event ends every wait."""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app(store_url: str) -> Iterator[Headrace]:
    app = Headrace(settings=Settings(url=store_url))
    yield app
    app.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Put]:
    """What the calling threads have written by themselves."""
    written: list[Put] = []
    put = BlockingClient.put

    def noted(self: BlockingClient, job: NewJob) -> Put | None:
        answer = put(self, job)
        if answer is not None:
            written.append(answer)
        return answer

    monkeypatch.setattr(BlockingClient, "put", noted)
    return written


def blocking_of(app: Headrace) -> BlockingClient:
    """The client of an app that has enqueued before."""
    (loop_client,) = app.clients._by_loop.values()
    assert loop_client.blocking is not None
    return loop_client.blocking


# ── the same as through the portal ───────────────────────────────────────────

AT = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "delay": {"delay": "90s"},
    "run_at": {"run_at": AT},
    "priority": {"priority": 7},
    "tenant": {"tenant": "acme"},
    "options": {"max_attempts": 9, "timeout": "7s", "expires": "1h"},
    "key": {"key": "order-1"},
    "all": {"delay": "5s", "priority": -3, "tenant": "b", "key": "k", "max_attempts": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_the_stored_job_is_the_same(store_url: str, clock: FakeClock, here: list[Put], name: str):
    app = Headrace(settings=Settings(url=store_url), clock=clock)
    options = CASES[name]

    def add(a: int, b: str = "ü" * 300) -> int:
        return a

    # A key is a key of one task: so there are two.
    limits = [Limit("api", rate="5/s")]
    add_here, add_there = (app.task(name=each, limits=limits)(add) for each in ("here", "there"))

    def stored(handle: Any) -> dict[str, Any]:
        job = app.get(handle)
        assert job is not None
        return {each: getattr(job, each) for each in job.__struct_fields__ if each not in {"id", "task"}}

    add_here.enqueue(0)  # opens the store
    before = len(here)
    mine = add_here.using(**options).enqueue(1)
    other = portal.run(lambda: add_there.using(**options).aenqueue(1))
    keyed = "key" in options and store_url.startswith("postgres")
    assert len(here) - before == (0 if keyed else 1)  # a key may wait for a lock there
    assert mine.created
    assert stored(mine) == stored(other)
    app.close()


def test_a_key_and_a_unique_lock_answer_with_the_job_that_is_there(app: Headrace, here: list[Put]):
    @app.task(name="one", unique=Unique())
    def one(n: int) -> None: ...

    @app.task(name="keyed")
    def keyed(n: int) -> None: ...

    keyed.enqueue(0)
    first, second = one.enqueue(1), one.enqueue(1)
    assert (first.created, second.created, second.id) == (True, False, first.id)
    key = keyed.using(key="k")
    first, second = key.enqueue(1), key.enqueue(1)
    assert (first.created, second.created, second.id) == (True, False, first.id)
    with pytest.raises(IdempotencyConflict, match="k") as refused:
        key.enqueue(2)
    with pytest.raises(IdempotencyConflict) as through_portal:
        portal.run(lambda: key.aenqueue(2))
    assert str(refused.value) == str(through_portal.value)


def test_a_full_queue_refuses(store_url: str):
    app = Headrace(settings=Settings(url=store_url))
    app.queue("small", max_length=2)

    @app.task(name="noop", queue="small")
    def noop() -> None: ...

    noop.enqueue()
    noop.enqueue()
    with pytest.raises(QueueFull):
        noop.enqueue()
    app.close()


def test_a_call_inside_a_running_event_loop_goes_through_the_portal(app: Headrace, here: list[Put]):
    @app.task(name="noop")
    def noop() -> None: ...

    noop.enqueue()

    async def main() -> None:
        noop.enqueue()

    asyncio.run(main())
    assert not here
    noop.enqueue()
    assert len(here) == 1
    assert app.stats().queues[0].ready == 3


def test_many_threads_store_every_job_once(app: Headrace, here: list[Put]):
    @app.task(name="noop")
    def noop(n: int) -> None: ...

    noop.enqueue(-1)
    ids: list[JobId] = []

    def produce(number: int) -> None:
        ids.extend(noop.enqueue(number * 100 + n).id for n in range(25))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 200
    assert app.stats().queues[0].ready == 201


def test_a_closed_app_opens_again(app: Headrace, here: list[Put]):
    @app.task(name="noop")
    def noop() -> None: ...

    for _ in range(2):
        noop.enqueue()
        noop.enqueue()
        app.close()
    assert len(here) == 2
    assert app.stats().queues[0].ready == 4


def test_a_forked_child_has_a_connection_of_its_own(store_url: str):
    body = """
        import logging, warnings

        logging.disable(logging.WARNING)  # of a server that may lose the last second
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        for n in range(3):
            add.enqueue(n, 1)
        pid = os.fork()
        if pid == 0:
            for n in range(3):
                add.enqueue(n, 2)
            app.close()
            os._exit(0)
        for n in range(3):
            add.enqueue(n, 3)
        assert os.waitpid(pid, 0)[1] == 0
        add.enqueue(0, 4)
        print(app.stats().queues[0].ready)
    """
    assert run(store_url, body) == "10\n"


async def test_each_job_wakes_a_worker(store_url: str, here: list[Put]):
    store = connect(store_url)
    await store.open()
    app = Headrace(settings=Settings(url=store_url))

    @app.task(name="noop")
    def noop(n: int) -> None: ...

    async def take(count: int) -> None:
        while count:
            lease = await claim(store)
            if lease is None:
                assert await store.wait(["default"], LONG), "no hint came"
            else:
                count -= len(lease.jobs)

    # Of several in a row, the hint of the last goes out a moment later.
    for count in (1, 1, 1, 2, 5, 10, 1, 3):
        sleeper = asyncio.create_task(take(count))
        await asyncio.to_thread(lambda count=count: [noop.enqueue(n) for n in range(count)])
        await sleeper
    assert here
    await app.aclose()
    await store.close()


# ── threads together ─────────────────────────────────────────────────────────


def job(name: str, key: str | None = None) -> NewJob:
    made = None if key is None else Key(key, timedelta(days=1), b"d")
    return NewJob(name, b"", Lane(), key=made)


class Gate:
    """A `Blocking` that lets a batch through when told to, and remembers the batches."""

    waits_for_keys = False

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.ids: list[Any] = []
        self.repeated: list[tuple[Any, OutcomeUnknown | None]] = []
        self.existing = JobId(job_id(new_batch(), 7))
        """The job that a repetition finds in place of the first one of its batch."""
        self.entered = threading.Event()
        self.open = threading.Event()
        self.trouble: dict[str, BaseException] = {}
        self.closed = 0
        self.during: Callable[[], None] | None = None

    def enqueue(self, batch: Batch) -> Enqueued:
        self.batches.append([each.task for each in batch.jobs])
        self.ids.append(batch.id)
        self.entered.set()
        assert self.open.wait(LONG)
        if self.during is not None:
            self.during()
        for each in batch.jobs:
            if each.task in self.trouble:
                raise self.trouble[each.task]
        return Enqueued({})

    def close(self) -> None:
        self.closed += 1

    def repeat(self, batch: Batch, began: float, unknown: OutcomeUnknown | None) -> Enqueued:
        self.repeated.append((batch.id, unknown))
        return Enqueued({0: self.existing})


class Line(deque[Any]):
    """The line of a client, which tells when a call has joined it."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = threading.Semaphore(0)

    def append(self, call: Any) -> None:
        super().append(call)
        self.joined.release()


class Crowd:
    """Threads that enqueue through one client; the first is under way before the others come."""

    def __init__(self, client: BlockingClient, gate: Gate, jobs: list[NewJob]) -> None:
        self.answers: dict[str, Any] = {}
        client._line = line = Line()
        self.threads = [threading.Thread(target=self._put, args=(client, each)) for each in jobs]
        self.threads[0].start()
        assert gate.entered.wait(LONG)
        for thread in self.threads[1:]:
            thread.start()
            assert line.joined.acquire(timeout=LONG)

    def _put(self, client: BlockingClient, each: NewJob) -> None:
        try:
            self.answers[each.task] = client.put(each)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.answers[each.task] = error

    def join(self) -> None:
        for thread in self.threads:
            thread.join(LONG)
            assert not thread.is_alive()


def crowd(gate: Gate, *jobs: NewJob) -> dict[str, Any]:
    client = BlockingClient(gate, gate.repeat)
    threads = Crowd(client, gate, list(jobs))
    gate.open.set()
    threads.join()
    assert client._under_way is None
    return threads.answers


def test_calls_that_come_meanwhile_share_a_batch():
    gate = Gate()
    answers = crowd(gate, *map(job, "abcd"))
    assert gate.batches == [["a"], ["b", "c", "d"]]
    assert len({answers[name].id for name in "abcd"}) == 4
    assert [answers[name].id for name in "bcd"] == [job_id(gate.ids[1], place) for place in range(3)]


def test_a_refused_key_is_no_trouble_of_others():
    gate = Gate()
    refusal = gate.trouble["c"] = IdempotencyConflict("c", "k", job_id(new_batch(), 0))
    answers = crowd(gate, job("a"), job("b"), job("c", "k"), job("d"))
    assert gate.batches == [["a"], ["b", "c", "d"], ["b"], ["c"], ["d"]]
    assert answers["c"] is refusal
    assert answers["b"].created
    assert answers["d"].created


@pytest.mark.parametrize("error", [Unavailable("gone"), OutcomeUnknown("cut"), ConfigError("wrong")])
def test_whatever_goes_wrong_is_repeated_with_the_same_batch(error: Exception):
    gate = Gate()
    gate.trouble["b"] = error
    answers = crowd(gate, *map(job, "abc"))
    assert gate.repeated == [(gate.ids[1], error if isinstance(error, OutcomeUnknown) else None)]
    assert (answers["b"].created, answers["c"].created) == (False, True)


@pytest.mark.parametrize("error", [KeyHeld("held"), ValueError("a bug")])
def test_what_no_repetition_mends_is_raised(error: Exception):
    gate = Gate()
    gate.trouble["a"] = error
    assert crowd(gate, job("a"))["a"] is error
    assert not gate.repeated


def test_an_interrupted_thread_leaves_the_jobs_of_others_to_them():
    gate = Gate()
    gate.trouble["b"] = KeyboardInterrupt()
    answers = crowd(gate, *map(job, "abcd"))
    [(batch, unknown)] = gate.repeated
    assert batch == gate.ids[1]
    assert isinstance(unknown, OutcomeUnknown)
    # Any of the three threads may have got the lock, written the group and been interrupted.
    stored = {"b": gate.existing, "c": job_id(batch, 1), "d": job_id(batch, 2)}
    [interrupted] = [name for name in "bcd" if isinstance(answers[name], KeyboardInterrupt)]
    del stored[interrupted]
    assert {name: answers[name].id for name in stored} == stored


def test_an_interrupted_thread_leaves_no_call_behind():
    gate = Gate()
    gate.trouble["a"] = KeyboardInterrupt()
    gate.open.set()
    client = BlockingClient(gate, gate.repeat)
    with pytest.raises(KeyboardInterrupt):
        client.put(job("a"))
    assert client.put(job("b")) is not None
    assert gate.batches == [["a"], ["b"]]
    assert not gate.repeated


def test_a_call_that_interrupts_a_call_of_its_thread_goes_through_the_portal():
    """As a signal handler or a finalizer may."""
    gate = Gate()
    gate.open.set()
    client = BlockingClient(gate, gate.repeat)
    inner: list[Put | None] = []
    gate.during = lambda: inner.append(client.put(job("inner")))
    assert client.put(job("outer")) is not None
    assert inner == [None]


def test_closing_waits_for_no_thread_and_the_last_one_closes():
    gate = Gate()
    client = BlockingClient(gate, gate.repeat)
    threads = Crowd(client, gate, [job("a")])
    client.close()
    assert gate.closed == 0
    gate.open.set()
    threads.join()
    assert gate.closed == 1
    assert threads.answers["a"].created
    assert client.put(job("b")) is None


def test_jobs_with_keys_go_through_the_portal_where_a_key_can_be_held():
    gate = Gate()
    gate.open.set()
    gate.waits_for_keys = True
    client = BlockingClient(gate, gate.repeat)
    assert client.put(job("a", "k")) is None
    assert client.put(job("a")) is not None


def test_a_client_without_a_blocking_store_uses_the_portal(here: list[Put]):
    app = Headrace(settings=Settings(url="memory://"))

    @app.task(name="noop")
    def noop() -> None: ...

    handles = [noop.enqueue(), noop.enqueue()]
    assert [handle.status().state for handle in handles] == [JobState.READY] * 2
    assert not here
