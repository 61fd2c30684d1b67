"""Opening: whatever is wrong with the server or the schema is said in one sentence that never shows a password."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.errors import ConfigError, HeadraceError, SchemaMismatch, Unavailable
from headrace.store.postgres import migrations
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from servers.postgres import PostgresServer
from stores.postgres.kit import a_batch, claim, put


async def trouble(url: str, kind: type[HeadraceError]) -> str:
    """What opening says; and that it does not say the password."""
    store = PostgresStore(url)
    with pytest.raises(kind) as caught:
        await store.open()
    await store.close()
    said: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    password = urlsplit(url).password
    assert password is None or not any(password in text for text in said)
    return str(caught.value)


async def test_a_wrong_password(url: str):
    said = await trouble(url.replace(urlsplit(url).password or "", "Wr0ng-secret"), ConfigError)
    assert "check them in the URL" in said


async def test_a_missing_database(postgres_server: PostgresServer):
    assert "no such database" in await trouble(postgres_server.url("nowhere"), ConfigError)


async def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that no other process gets it meanwhile
        port = taken.getsockname()[1]
        assert "is it running?" in await trouble(f"postgresql://u:s3cret@127.0.0.1:{port}/x", Unavailable)


async def test_not_migrated(postgres_server: PostgresServer):
    bare = postgres_server.create_database()
    assert "run: headrace migrate" in await trouble(bare, SchemaMismatch)
    postgres_server.drop_database(bare)


async def test_an_older_and_a_newer_schema(url: str, sql: Any):
    await sql.execute(
        "update headrace.migration set version = 999 where version = (select max(version) from headrace.migration)"
    )
    assert "upgrade headrace" in await trouble(url, SchemaMismatch)
    await sql.execute("delete from headrace.migration where version = 999")
    assert "run: headrace migrate" in await trouble(url, SchemaMismatch)


async def test_a_newer_schema_is_not_migrated(url: str, sql: Any):
    await sql.execute("insert into headrace.migration (version, name) values (999, 'from the future')")
    with pytest.raises(SchemaMismatch, match="upgrade headrace"):
        await PostgresStore(url).migrate()


def test_a_server_that_is_too_old():
    old = SimpleNamespace(get_server_version=lambda: SimpleNamespace(major=12, minor=0, micro=7))
    with pytest.raises(ConfigError, match=r"is version 12\.7: headrace needs 13 or newer"):
        migrations.check_server(old, "host:5432/db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@host:notaport/x",
        "postgresql://h/x?pooler=sometimes",
        "postgresql://h/x?pool=0",
        "postgresql://u:s3cret@a:1,b:x/d",
        "postgresql://h/x?synchronous_commit=maybe",
    ],
)
def test_an_address_that_cannot_be_read(url: str):
    with pytest.raises(ConfigError) as caught:
        PostgresStore(url)
    assert "s3cret" not in str(caught.value)


async def test_an_option_the_driver_does_not_know(url: str):
    assert "s3cret" not in await trouble(f"{url}?sslmode=nonsense", HeadraceError)


async def test_migrations_raced(postgres_server: PostgresServer):
    """Ten migrations at once: one applies each step, and all end with a working schema."""
    fresh = postgres_server.create_database()
    stores = [PostgresStore(fresh) for _ in range(10)]
    taken = await asyncio.gather(*[store.migrate() for store in stores])
    assert sorted(step for steps in taken for step in steps) == [f"{s.version:04}_{s.name}" for s in migrations.steps()]
    await stores[0].open()
    await stores[0].enqueue(a_batch())
    assert await claim(stores[0]) is not None
    for store in stores:
        await store.close()
    postgres_server.drop_database(fresh)


async def test_migrating_again_while_jobs_run(pg: PostgresStore, url: str):
    await pg.enqueue(a_batch(3))
    seen: list[tuple[int, int]] = []
    assert await PostgresStore(url).migrate(lambda done, total, _what: seen.append((done, total))) == []
    assert seen[-1][0] == seen[-1][1]
    assert await claim(pg) is not None


async def test_migrating_beside_a_transaction_that_stays_open(url: str, sql: Any):
    """It names the session that it waits for, and does not block other calls meanwhile."""
    waiting: asyncio.Queue[str] = asyncio.Queue()

    def progress(done: int, _total: int, what: str) -> None:
        if done == 0:
            waiting.put_nowait(what)

    other = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        async with sql.transaction():
            await sql.fetch("select from headrace.jobs")
            migrating = asyncio.create_task(PostgresStore(url).migrate(progress))
            assert f"waiting for pid {sql.get_server_pid()} (" in await waiting.get()
            await other.fetch("select from headrace.jobs")
        await migrating
    await other.close()


async def test_doctor_names_what_is_dangerous():
    with PostgresServer.start(settings={"fsync": "off", "synchronous_commit": "off"}) as server:
        url = server.create_database()
        await PostgresStore(url).migrate()
        assert "set fsync = on, or durability = relaxed" in await trouble(url, ConfigError)
        store = PostgresStore(f"{url}?synchronous_commit=off")
        await store.open()
        found = {finding.about: finding for finding in await store.check()}
        await store.close()
    assert (found["fsync"].level, found["synchronous_commit"].level) == ("error", "warning")
    assert "set fsync = on" in found["fsync"].message
    assert {found[about].level for about in ("server", "schema", "bloat", "transactions", "partitions")} == {"ok"}


async def test_what_is_acknowledged_survives_a_server_that_does_not_wait_for_its_disk():
    with PostgresServer.start(settings={"synchronous_commit": "off", "wal_writer_delay": "10s"}) as server:
        store = PostgresStore(server.create_database())
        await store.migrate()
        await store.open()
        ids = [id for _ in range(20) for id in await put(store)]
        server.crash()
        server.restart()
        found = await store.get(ids)
        await store.close()
    assert [job and job.id for job in found] == ids


@pytest.mark.parametrize("version", ["18"])
async def test_another_major_version(version: str):
    with PostgresServer.start(version=version) as server:
        url = server.create_database()
        store = PostgresStore(url)
        await store.migrate()
        await store.open()
        await store.enqueue(a_batch(3))
        lease = await claim(store, 2)
        assert lease is not None
        assert len(lease.jobs) == 2
        assert [q.ready for q in (await store.stats()).queues] == [1]
        await store.close()
