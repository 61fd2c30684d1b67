"""`use_memory`: the app's own store is left alone, and is there again afterwards."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace import BadTransaction, ConfigError, Headrace
from headrace.testing import FakeClock, adrain, drain, enqueued, use_memory


def test_the_own_store_comes_back(tmp_path: Path) -> None:
    app = Headrace(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="note")
    def note(n: int) -> None: ...

    before = note.enqueue(1)
    with use_memory(app):
        inside = note.enqueue(2)
        assert [job.args for job in enqueued(app)] == [(2,)]
        assert app.get(before.id) is None
    assert app.get(before.id) is not None
    assert app.get(inside.id) is None
    with use_memory(app):
        assert enqueued(app) == []
    app.close()


async def test_async_loops_and_threads_share_it(tmp_path: Path) -> None:
    app = Headrace(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="note")
    async def note(n: int) -> None: ...

    before = await note.aenqueue(0)
    async with use_memory(app):
        await note.aenqueue(1)
        await asyncio.to_thread(note.enqueue, 2)
        await asyncio.to_thread(asyncio.run, note.aenqueue(3))
        assert [job.args[0] for job in enqueued(app)] == [1, 2, 3]
        assert len(await adrain(app)) == 3
    assert await app.aget(before.id) is not None
    await app.aclose()


def test_it_begins_at_the_present_time_and_stands_still() -> None:
    app = Headrace("memory://")
    began = datetime.now(UTC)
    with use_memory(app) as stand:
        assert began <= stand.clock.now() <= datetime.now(UTC)
        assert stand.clock.now() == stand.clock.now()
    clock = FakeClock()
    with use_memory(app, clock=clock) as stand:
        assert stand.clock is clock


def test_only_once_for_an_app() -> None:
    app = Headrace("memory://")
    with use_memory(app), pytest.raises(ConfigError, match="already"), use_memory(app):
        pass
    with use_memory(app):
        assert drain(app) == []


def test_transactions_of_libraries_that_do_not_tell() -> None:
    app = Headrace("memory://")

    @app.task(name="note")
    def note() -> None: ...

    with use_memory(app), closing(sqlite3.connect(":memory:")) as connection:
        note.using(tx=connection).enqueue()
        assert len(enqueued(app)) == 1
        with pytest.raises(BadTransaction, match="not supported"):
            note.using(tx=3.5).enqueue()


def test_the_transaction_of_sqlalchemy() -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    app = Headrace("memory://")
    ran: list[int] = []

    @app.task(name="note")
    def note(n: int) -> None:
        ran.append(n)

    engine = create_engine("sqlite://")
    with app.inline():
        with Session(engine) as session, session.begin():
            with session.begin_nested():
                note.using(tx=session).enqueue(1)
            savepoint = session.begin_nested()
            note.using(tx=session).enqueue(9)
            savepoint.rollback()
            assert ran == []
        assert ran == [1]
        with Session(engine) as session:
            note.using(tx=session).enqueue(2)
            session.rollback()
            session.commit()
        with engine.begin() as connection:
            app.enqueue_many([note.job(3), note.job(4)], tx=connection)
            assert ran == [1]
    assert ran == [1, 3, 4]
    engine.dispose()


async def test_the_async_transaction_of_sqlalchemy() -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    app = Headrace("memory://")

    @app.task(name="note")
    async def note(n: int) -> None: ...

    engine = create_async_engine("sqlite+aiosqlite://")
    async with use_memory(app):
        async with AsyncSession(engine) as session:
            await note.using(tx=session).aenqueue(1)
            assert enqueued(app) == []
            await session.commit()
            await note.using(tx=session).aenqueue(2)
            await session.rollback()
        assert [ran.args for ran in await adrain(app)] == [(1,)]
    await engine.dispose()


async def test_a_worker_in_the_same_process_can_use_it() -> None:
    app = Headrace("postgresql://nowhere.invalid/none")

    @app.task(name="note")
    async def note() -> str:
        return "by a worker"

    async with use_memory(app), app.worker():
        assert await (await note.aenqueue()).aresult(timeout=60) == "by a worker"


async def test_the_late_end_of_a_client_of_the_test_leaves_the_own_one_alone(tmp_path: Path) -> None:
    app = Headrace(f"sqlite:///{tmp_path}/jobs.db")
    own = await app.clients.here()
    with use_memory(app):
        assert await app.clients.here() is not own
    [opened] = app.clients._retired[0].values()
    assert opened.keeper is not None
    await opened.keeper.aclose()  # as the end of the event loop does
    assert await app.clients.here() is own
    await app.aclose()
