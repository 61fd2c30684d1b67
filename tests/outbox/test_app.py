"""An app with an outbox: `tx=` commits jobs with the user's rows, any worker relays them into a store that has no SQL."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from headrace import Headrace, JobNotFound, Unsupported, group
from servers.redis import RedisServer


@pytest.fixture
def business(tmp_path: Path) -> str:
    return str(tmp_path / "business.db")


@pytest.fixture
def app(valkey_server: RedisServer, business: str) -> Headrace:
    valkey_server.command("FLUSHALL")
    app = Headrace(valkey_server.url())
    app.outbox(f"sqlite:///{business}")
    return app


async def test_jobs_that_follow_others_arrive_together(app: Headrace, business: str):
    @app.task(name="add")
    async def add(one: int, other: int) -> int:
        return one + other

    @app.task(name="total")
    async def total(numbers: Sequence[int]) -> int:
        return sum(numbers)

    await app.outbox(f"sqlite:///{business}").prepare()
    with closing(sqlite3.connect(business)) as database:
        with database:
            last = app.enqueue(group(add.job(n, n) for n in range(3)).then(total).then(add, 1), tx=database)
        async with app.worker():
            assert await last.aresult(timeout=60) == 7
    await app.aclose()


async def test_members_of_an_open_group_are_refused_because_they_would_come_too_late(app: Headrace, business: str):
    @app.task(name="add")
    async def add(one: int, other: int) -> int:
        return one + other

    await app.outbox(f"sqlite:///{business}").prepare()
    with closing(sqlite3.connect(business)) as database:
        async with app.open_group("import 7") as rows:
            with pytest.raises(Unsupported, match="jobs of an open group do not go through an outbox"):
                rows.enqueue_many([add.job(1, 2)], tx=database)
            with pytest.raises(Unsupported, match="without tx="):
                await rows.aenqueue_many([add.job(1, 2)], tx=database)
        assert not database.in_transaction
    await app.aclose()


async def test_what_was_committed_runs_and_what_was_rolled_back_never_does(app: Headrace, business: str):
    @app.task(name="add")
    async def add(one: int, other: int) -> int:
        return one + other

    await app.outbox(f"sqlite:///{business}").prepare()
    with closing(sqlite3.connect(business)) as database:
        with database:
            kept = add.using(tx=database).enqueue(1, 2)
            many = app.enqueue_many([add.job(n, n) for n in range(3)], tx=database)
        lost = add.using(tx=database).enqueue(5, 6)
        database.rollback()
        with pytest.raises(JobNotFound):
            await kept.astatus()
        async with app.worker():
            assert await kept.aresult(timeout=60) == 3
            assert [await each.aresult(timeout=60) for each in many] == [0, 2, 4]
            assert await app.aget(lost.id) is None
    await app.aclose()
