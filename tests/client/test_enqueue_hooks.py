"""`app.on_enqueue`: what an app runs around each call that enqueues, and the trace that its jobs carry."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace import BadArguments, ConfigError, EnqueueCall, Handle, Headrace, current_job
from headrace.task.task import AsyncTask

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


def options(app: Headrace, handle: Handle[Any]) -> bytes | None:
    job = app.get(handle.id)
    assert job is not None
    return job.options


@pytest.fixture
def seen() -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def whose(app: Headrace, seen: list[tuple[Any, ...]]) -> AsyncTask[..., str | None]:
    @app.on_enqueue
    def trace(call: EnqueueCall) -> Iterator[str | None]:
        try:
            yield TRACE
        finally:
            seen.append((call.task, call.queue, call.count, call.id))

    @app.task(name="whose")
    async def whose(word: str = "") -> str | None:
        return current_job().trace

    return whose


async def test_a_job_carries_what_the_hook_yields(
    app: Headrace, whose: AsyncTask[..., str | None], seen: list[tuple[Any, ...]]
) -> None:
    async with app, app.worker():
        handle = await whose.using(queue="default").aenqueue("x")
        assert await handle.aresult(timeout=60) == TRACE
    assert seen == [("whose", "default", 1, handle.id)]


def test_sync_code_has_the_same_hooks(
    app: Headrace, whose: AsyncTask[..., str | None], seen: list[tuple[Any, ...]]
) -> None:
    handles = [whose.enqueue("first, through the portal"), whose.enqueue("second, in this thread")]
    many = app.enqueue_many(whose.job(str(n)) for n in range(3))
    assert [(call[0], call[2]) for call in seen] == [("whose", 1), ("whose", 1), (None, 3)]
    assert [call[3] for call in seen] == [handles[0].id, handles[1].id, None]
    assert {options(app, handle) for handle in (*handles, *many)} == {whose.using(trace=TRACE).job().job.options}
    app.close()


async def test_a_bulk_call_is_one_call_for_the_hooks(
    app: Headrace, whose: AsyncTask[..., str | None], seen: list[tuple[Any, ...]]
) -> None:
    async with app, app.worker():
        calls = [whose.using(tenant=f"t{n % 3}").job(str(n)) for n in range(30)]
        handles = await app.aenqueue_many(calls)
        assert {await handle.aresult(timeout=60) for handle in handles} == {TRACE}
    assert seen == [(None, None, 30, None)]


async def test_a_trace_that_the_caller_gives_counts_first(app: Headrace, whose: AsyncTask[..., str | None]) -> None:
    async with app, app.worker():
        one = await whose.using(trace=OTHER).aenqueue()
        (two,) = await app.aenqueue_many([whose.using(trace=OTHER).job()])
        assert [await each.aresult(timeout=60) for each in (one, two)] == [OTHER, OTHER]


async def test_the_innermost_trace_counts_and_none_adds_none() -> None:
    app, seen = Headrace("memory://"), list[str]()

    @app.on_enqueue
    def outer(_: EnqueueCall) -> Iterator[str | None]:
        seen.append("outer")
        yield OTHER
        seen.append("end of outer")

    @app.on_enqueue
    @contextmanager
    def inner(_: EnqueueCall) -> Generator[str | None]:
        seen.append("inner")
        yield TRACE
        seen.append("end of inner")

    @app.on_enqueue
    def silent(_: EnqueueCall) -> Iterator[str | None]:
        yield None

    @app.task(name="whose")
    async def whose() -> str | None:
        return current_job().trace

    async with app.worker():
        assert await (await whose.aenqueue()).aresult(timeout=60) == TRACE
    assert seen == ["outer", "inner", "end of inner", "end of outer"]


async def test_a_call_that_stores_nothing_tells_its_hooks() -> None:
    app, seen = Headrace("memory://"), list[str]()

    @app.on_enqueue
    def swallows(call: EnqueueCall) -> Iterator[str | None]:
        try:
            yield TRACE
        except ConfigError as error:
            seen.append(f"{call.count} jobs: {error}")

    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    with pytest.raises(ConfigError, match=r"takes task\.job"):
        await app.aenqueue_many([add.job(1), "add"])  # type: ignore[list-item]
    with pytest.raises(BadArguments):
        await add.aenqueue("x")  # type: ignore[arg-type]
    assert seen == ["0 jobs: enqueue_many takes task.job(…), not 'add'"]


async def test_a_hook_that_raises_stores_nothing() -> None:
    app = Headrace("memory://")

    @app.on_enqueue
    def broken(_: EnqueueCall) -> Iterator[str | None]:
        raise OSError("no tracer")
        yield

    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    async with app:
        with pytest.raises(OSError, match="no tracer"):
            await add.aenqueue(1)
        assert (await app.afind()).jobs == []


async def test_a_hook_that_yields_no_trace_is_named() -> None:
    app = Headrace("memory://")

    @app.on_enqueue
    def wrong(_: EnqueueCall) -> Iterator[str | None]:
        yield "my trace"

    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    with pytest.raises(ConfigError, match=r"the on_enqueue hook .*wrong yields 'my trace'"):
        await add.aenqueue(1)


def test_a_hook_with_other_parameters_is_refused() -> None:
    app = Headrace("memory://")
    with pytest.raises(ConfigError, match="it gets the EnqueueCall"):
        app.on_enqueue(lambda: None)  # type: ignore[arg-type, return-value]


def test_a_job_in_the_callers_transaction_has_it_too(tmp_path: Any) -> None:
    url = tmp_path / "jobs.db"
    app = Headrace(f"sqlite:///{url}")

    @app.on_enqueue
    def trace(_: EnqueueCall) -> Iterator[str | None]:
        yield TRACE

    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    expected = add.using(trace=TRACE).job(1).job.options
    app.stats()  # makes the tables
    connection = sqlite3.connect(url)
    one = add.using(tx=connection).enqueue(1)
    (two,) = app.enqueue_many([add.job(2)], tx=connection)
    connection.commit()
    connection.close()
    assert [options(app, each) for each in (one, two)] == [expected, expected]
    app.close()


def test_jobs_that_run_inline_have_it_too() -> None:
    app, seen = Headrace("memory://"), list[str]()

    @app.on_enqueue
    def trace(_: EnqueueCall) -> Iterator[str | None]:
        yield TRACE
        seen.append("stored")

    @app.task(name="whose")
    def whose() -> str | None:
        seen.append("runs")
        return current_job().trace

    with app.inline():
        assert whose.enqueue().result() == TRACE
        assert app.enqueue_many([whose.job()])[0].result() == TRACE
    assert seen == ["stored", "runs", "stored", "runs"]
