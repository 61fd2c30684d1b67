"""tx=: a job goes into the user's own transaction, on every driver, and comes and goes with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from headrace.errors import BadTransaction, IdempotencyConflict, SchemaMismatch
from headrace.model.gate import NewGate, Predecessor, new_gate_id
from headrace.model.job import Batch, Failure, JobState, Key, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Token, new_token
from headrace.model.outcome import DONE, Again, Finish
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.transactional import Transactional
from servers.postgres import PostgresServer
from stores.postgres.kit import WORKER, a_batch, claim, put, take


class Rollback(Exception):
    """Ends a transaction badly on purpose."""


# ── the drivers: each yields something to pass as `tx` inside an open transaction ────────────────────────────────────


@contextmanager
def psycopg_sync(url: str) -> Generator[Any]:
    with psycopg.connect(url) as connection, connection.transaction():
        yield connection


@contextmanager
def psycopg_implicit(url: str) -> Generator[Any]:
    """Without an explicit BEGIN: psycopg opens the transaction with the first statement, and leaving the block ends it."""
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def alchemy_session(url: str) -> Generator[Any]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@contextmanager
def alchemy_connection(url: str) -> Generator[Any]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def atomic(alias: str) -> Any:
    from django.db import transaction

    return transaction.atomic(using=alias)


@contextmanager
def django_alias(url: str) -> Generator[Any]:
    with django(url) as connections, atomic("default"):
        assert connections["default"].in_atomic_block
        yield "default"


@contextmanager
def django_connection(url: str) -> Generator[Any]:
    with django(url) as connections, atomic("default"):
        yield connections["default"]


@contextmanager
def django(url: str) -> Generator[Any]:
    from django import setup
    from django.conf import settings
    from django.db import connections

    info = conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": info["dbname"],
        "USER": info["user"],
        "PASSWORD": info["password"],
        "HOST": info["host"],
        "PORT": info["port"],
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database}, USE_TZ=True)
        setup()
    connections.close_all()
    connections._settings = connections.settings = connections.configure_settings({"default": database})
    with suppress(AttributeError):  # the first time there is none yet
        del connections["default"]
    try:
        yield connections
    finally:
        connections.close_all()


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncGenerator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncGenerator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(url: str) -> AsyncGenerator[Any]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


def alchemy_async(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def session(url: str) -> AsyncGenerator[Any]:
        engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))
        try:
            async with AsyncSession(engine) as session, session.begin():
                yield session
        finally:
            await engine.dispose()

    return session


@asynccontextmanager
async def alchemy_async_connection(url: str) -> AsyncGenerator[Any]:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


SYNC = {
    "psycopg": psycopg_sync,
    "psycopg implicit": psycopg_implicit,
    "sqlalchemy session": alchemy_session,
    "sqlalchemy connection": alchemy_connection,
    "django alias": django_alias,
    "django connection": django_connection,
}
ASYNC = {
    "psycopg": psycopg_async,
    "asyncpg": asyncpg_connection,
    "asyncpg pool": asyncpg_pooled,
    "sqlalchemy session on asyncpg": alchemy_async("asyncpg"),
    "sqlalchemy session on psycopg": alchemy_async("psycopg"),
    "sqlalchemy connection": alchemy_async_connection,
}


@pytest.fixture(params=SYNC)
def sync_tx(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    # Django refuses to block a running event loop unless told that this is meant.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    return lambda: SYNC[request.param](url)


@pytest.fixture(params=ASYNC)
def async_tx(request: pytest.FixtureRequest, url: str) -> Callable[[], Any]:
    return lambda: ASYNC[request.param](url)


def rich() -> Batch:
    """A batch that uses every argument: lanes, limits, due times, keys, options, several tasks."""
    at = datetime.now(UTC) + timedelta(hours=1)
    return Batch(
        new_batch(),
        [
            NewJob("a", b"\x00\xff", Lane("q1", 5, "acme", ("shop:acme", "all"))),
            NewJob("b", b"{}", Lane("q1", 5, "acme", ("shop:acme", "all")), options=b"\x01"),
            NewJob("c", b"", Lane("q2"), timedelta(minutes=5)),
            NewJob("d", b"d", Lane("q2"), at, Key("k", timedelta(days=1), b"digest")),
        ],
    )


async def check_rich(pg: PostgresStore, batch: Batch) -> None:
    jobs = await pg.get([job_id(batch.id, n) for n in range(4)])
    assert [(j.task, j.payload, j.queue, j.tenant, j.limits, j.options, j.state) for j in jobs if j] == [
        ("a", b"\x00\xff", "q1", "acme", ("shop:acme", "all"), None, JobState.READY),
        ("b", b"{}", "q1", "acme", ("shop:acme", "all"), b"\x01", JobState.READY),
        ("c", b"", "q2", "", (), None, JobState.SCHEDULED),
        ("d", b"d", "q2", "", (), None, JobState.SCHEDULED),
    ]
    assert jobs[3] is not None
    assert jobs[3].run_at == batch.jobs[3].due


def test_the_store_can_write_in_transactions():
    assert isinstance(PostgresStore("postgresql://nowhere/x"), Transactional)


async def test_a_commit_keeps_the_job_sync(pg: PostgresStore, sync_tx: Callable[[], Any]):
    batch = rich()
    with sync_tx() as tx:
        answer = pg.enqueue_in(tx, batch)
        assert answer.existing == {}
        assert await pg.get([job_id(batch.id, 0)]) == [None]
    await check_rich(pg, batch)


async def test_a_commit_keeps_the_job_async(pg: PostgresStore, async_tx: Callable[[], Any]):
    batch = rich()
    async with async_tx() as tx:
        await pg.aenqueue_in(tx, batch)
        assert await pg.get([job_id(batch.id, 0)]) == [None]
    await check_rich(pg, batch)


async def test_a_sync_connection_serves_the_async_twin(pg: PostgresStore, sync_tx: Callable[[], Any]):
    batch = a_batch()
    with sync_tx() as tx:
        await pg.aenqueue_in(tx, batch)
    assert (await take(pg)).jobs[0].batch == batch.id


async def test_a_rollback_leaves_nothing_sync(pg: PostgresStore, sync_tx: Callable[[], Any]):
    batch = rich()

    def change_of_mind() -> None:
        with sync_tx() as tx:
            pg.enqueue_in(tx, batch)
            raise Rollback

    with pytest.raises(Rollback):
        change_of_mind()
    assert await pg.get([job_id(batch.id, 0)]) == [None]
    assert (await pg.stats()).queues == []


async def test_a_rollback_leaves_nothing_async(pg: PostgresStore, async_tx: Callable[[], Any]):
    batch = rich()

    async def change_of_mind() -> None:
        async with async_tx() as tx:
            await pg.aenqueue_in(tx, batch)
            raise Rollback

    with pytest.raises(Rollback):
        await change_of_mind()
    assert await pg.get([job_id(batch.id, 0)]) == [None]
    assert (await pg.stats()).queues == []


def followed_by() -> tuple[Batch, list[UUID]]:
    """A job with a tenant and options, a gate, and the ids of both."""
    batch = new_batch()
    gate = NewGate(id=new_gate_id(), queue="q", label="group", tenant="globex")
    job = NewJob("a", b"", Lane("q", tenant="acme"), options=b"\x00\x01")
    return Batch(batch, [job], (gate,)), [job_id(batch, 0), gate.id]


async def test_a_transaction_sees_the_jobs_and_gates_that_it_has_added_sync(
    pg: PostgresStore, sync_tx: Callable[[], Any]
):
    batch, [job, gate] = followed_by()
    [stored] = await put(pg)
    with sync_tx() as tx:
        assert pg.followed_in(tx, [job, gate]) == [None, None]
        pg.enqueue_in(tx, batch)
        expected = [Predecessor("globex"), None, Predecessor("acme", b"\x00\x01"), Predecessor()]
        assert pg.followed_in(tx, [gate, new_gate_id(), job, stored]) == expected


async def test_a_transaction_sees_the_jobs_and_gates_that_it_has_added_async(
    pg: PostgresStore, async_tx: Callable[[], Any]
):
    batch, [job, gate] = followed_by()
    [stored] = await put(pg)
    async with async_tx() as tx:
        assert await pg.afollowed_in(tx, [job, gate]) == [None, None]
        await pg.aenqueue_in(tx, batch)
        expected = [Predecessor("globex"), None, Predecessor("acme", b"\x00\x01"), Predecessor()]
        assert await pg.afollowed_in(tx, [gate, new_gate_id(), job, stored]) == expected


async def _one_running(pg: PostgresStore) -> tuple[Token, Any]:
    [id] = await put(pg)
    lease = await take(pg)
    own = new_token()
    assert await pg.detach(lease.token, 0, own)
    return own, id


async def test_completion_commits_with_the_effects_sync(pg: PostgresStore, sync_tx: Callable[[], Any]):
    token, id = await _one_running(pg)
    with sync_tx() as tx:
        finish = Finish(JobState.DONE, result=b"42", result_ttl=timedelta(hours=1))
        assert pg.settle_in(tx, token, [(0, finish)]) == frozenset()
    [job] = await pg.get([id])
    assert job is not None
    assert (job.state, job.result) == (JobState.DONE, b"42")


async def test_completion_commits_with_the_effects_async(pg: PostgresStore, async_tx: Callable[[], Any]):
    token, id = await _one_running(pg)
    async with async_tx() as tx:
        failed = Failure(1, "ValueError", "no\0t this", "Traceback", datetime.now(UTC), "host:1")
        again = Again(1, 0, timedelta(hours=1), note="later", failure=failed)
        assert await pg.asettle_in(tx, token, [(0, again)]) == frozenset()
    [job] = await pg.get([id])
    assert job is not None
    assert (job.state, job.failures, job.note, len(job.history)) == (JobState.SCHEDULED, 1, "later", 1)


async def test_completion_is_undone_with_the_effects(pg: PostgresStore, async_tx: Callable[[], Any]):
    token, id = await _one_running(pg)

    async def change_of_mind() -> None:
        async with async_tx() as tx:
            await pg.asettle_in(tx, token, [(0, DONE)])
            raise Rollback

    with pytest.raises(Rollback):
        await change_of_mind()
    [job] = await pg.get([id])
    assert job is not None
    assert job.state is JobState.RUNNING
    assert await pg.settle(token, [(0, DONE)]) == frozenset()


async def test_a_lost_lease_is_refused_inside_a_transaction_too(pg: PostgresStore, async_tx: Callable[[], Any]):
    async with async_tx() as tx:
        assert await pg.asettle_in(tx, new_token(), [(0, DONE)]) == frozenset({0})


async def test_an_open_completion_blocks_no_heartbeat(pg: PostgresStore, url: str):
    """The user's transaction holds the lease: it is not renewed, lost or reaped, and no call waits for it."""
    token, _ = await _one_running(pg)
    async with asyncpg_connection(url) as tx:
        await pg.asettle_in(tx, token, [(0, DONE)])
        pulse = await pg.heartbeat([token], timedelta(0))
        assert pulse.lost == frozenset()
        assert await pg.reap(WORKER, timedelta(seconds=5)) == []
    assert (await pg.heartbeat([token], timedelta(seconds=1))).lost == {token}


async def test_an_open_completion_blocks_no_settlement_of_a_worker_that_has_not_told_of_itself(
    pg: PostgresStore, url: str
):
    """The first settlement gives the worker its number. If the user's transaction did so, the others would wait for its end."""
    token, _ = await _one_running(pg)
    [other] = await put(pg)
    lease = await take(pg)
    async with asyncpg_connection(url) as tx:
        await pg.asettle_in(tx, token, [(0, DONE)])
        assert await pg.settle(lease.token, [(0, DONE)]) == frozenset()
        [job] = await pg.get([other])
        assert job is not None
        assert (job.state, job.worker) == (JobState.DONE, WORKER)


async def test_a_conflict_leaves_the_transaction_usable(pg: PostgresStore, async_tx: Callable[[], Any]):
    def keyed(digest: bytes) -> Batch:
        return Batch(new_batch(), [NewJob("t", b"{}", Lane(), key=Key("k", timedelta(days=1), digest))])

    first = keyed(b"1")
    await pg.enqueue(first)
    after = a_batch()
    async with async_tx() as tx:
        with pytest.raises(IdempotencyConflict):
            await pg.aenqueue_in(tx, keyed(b"2"))
        assert (await pg.aenqueue_in(tx, keyed(b"1"))).existing == {0: job_id(first.id, 0)}
        await pg.aenqueue_in(tx, after)
    assert {job.batch for job in (await take(pg)).jobs} == {first.id, after.id}


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_psycopg_in_autocommit(pg: PostgresStore, url: str):
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(BadTransaction, match=r"with conn.transaction\(\)"):
            pg.enqueue_in(connection, a_batch())
        with connection.transaction():
            pg.enqueue_in(connection, a_batch())


async def test_asyncpg_without_a_transaction(pg: PostgresStore, sql: Any):
    with pytest.raises(BadTransaction, match=r"async with conn.transaction\(\)"):
        await pg.aenqueue_in(sql, a_batch())


async def test_sqlalchemy_in_autocommit(pg: PostgresStore, url: str):
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(BadTransaction, match="AUTOCOMMIT"):
        pg.enqueue_in(connection, a_batch())
    engine.dispose()
    later = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), isolation_level="AUTOCOMMIT")
    async with later.connect() as connection:
        with pytest.raises(BadTransaction, match="AUTOCOMMIT"):
            await pg.aenqueue_in(connection, a_batch())
    await later.dispose()


async def test_sqlalchemy_on_another_kind_of_database(pg: PostgresStore):
    engine = create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(BadTransaction, match="sqlite"):
        pg.enqueue_in(connection, a_batch())
    engine.dispose()


async def test_django_outside_atomic(pg: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with django(url):
        with pytest.raises(BadTransaction, match=r"transaction.atomic\(\)"):
            pg.enqueue_in("default", a_batch())
        with pytest.raises(BadTransaction, match="'other'"):
            pg.enqueue_in("other", a_batch())


@pytest.mark.parametrize("tx", [None, 7, object(), b"default"])
async def test_things_that_carry_nothing(pg: PostgresStore, tx: object):
    with pytest.raises(BadTransaction, match="psycopg or asyncpg"):
        pg.enqueue_in(tx, a_batch())
    with pytest.raises(BadTransaction, match="psycopg or asyncpg"):
        await pg.aenqueue_in(tx, a_batch())


async def test_an_async_connection_in_a_sync_call(pg: PostgresStore, async_tx: Callable[[], Any]):
    async with async_tx() as tx:
        with pytest.raises(BadTransaction, match="is async"):
            pg.enqueue_in(tx, a_batch())


async def test_a_failed_transaction(pg: PostgresStore, url: str):
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("select 1/0")
        with pytest.raises(BadTransaction, match="roll it back"):
            pg.enqueue_in(connection, a_batch())
        connection.rollback()


async def test_a_connection_to_another_database(
    pg: PostgresStore, postgres_server: PostgresServer, postgres_template: str
):
    other = postgres_server.create_database(template=postgres_template)
    with psycopg.connect(other) as connection:
        with pytest.raises(BadTransaction, match="another database"):
            pg.enqueue_in(connection, a_batch())
        assert connection.execute("select 1").fetchone() == (1,)
    postgres_server.drop_database(other)


async def test_a_database_without_the_schema(pg: PostgresStore, postgres_server: PostgresServer):
    bare = postgres_server.create_database()
    async with asyncpg_connection(bare) as connection:
        with pytest.raises(SchemaMismatch, match="headrace migrate"):
            await pg.aenqueue_in(connection, a_batch())
        assert await connection.fetchval("select 1") == 1
    postgres_server.drop_database(bare)


async def test_the_users_row_factory_does_not_matter(pg: PostgresStore, url: str):
    with psycopg.Connection[dict[str, Any]].connect(url, row_factory=dict_row) as connection:
        pg.enqueue_in(connection, a_batch())
    assert await claim(pg) is not None


async def test_the_users_search_path_and_datestyle_do_not_matter(pg: PostgresStore, url: str):
    with psycopg.connect(url, options="-csearch_path=pg_temp -cDateStyle=German -ctimezone=Asia/Tokyo") as connection:
        pg.enqueue_in(connection, rich())
    assert [q.queue for q in (await pg.stats()).queues] == ["q1", "q2"]
