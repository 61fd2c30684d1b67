"""PgBouncer in transaction mode: nothing rests on a session; waking is polling unless a direct address is given."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from headrace.errors import ConfigError, Unavailable
from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Presence, new_token
from headrace.model.outcome import DONE, Again
from headrace.model.records import CancelAnswer, Filter, LimitRule, Retention
from headrace.store.postgres.store import PostgresStore
from servers.postgres import PostgresServer
from servers.process import free_port
from stores.postgres.kit import TTL, WORKER, a_batch, claim, put, take


def find_pgbouncer() -> str:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    assert found, "pgbouncer is missing: apt-get install pgbouncer"
    return found


@pytest.fixture(scope="module")
def bouncer(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a pooler with two server connections per database, so that sessions are really mixed."""
    yield from running(postgres_server, tmp_path_factory.mktemp("pgbouncer"), "pool_mode = transaction")


@pytest.fixture(scope="module")
def session_bouncer(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a pooler in session mode."""
    yield from running(postgres_server, tmp_path_factory.mktemp("pgbouncer"), "pool_mode = session", pool=20)


@pytest.fixture(scope="module")
def lenient_bouncer(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a pooler that lets settings of a session pass unheard."""
    ignored = (
        "jit, plan_cache_mode, tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count, tcp_user_timeout"
    )
    ignored += ", default_transaction_isolation"
    mode = f"pool_mode = session\nignore_startup_parameters = {ignored}"
    yield from running(postgres_server, tmp_path_factory.mktemp("pgbouncer"), mode, pool=20)


def running(server: PostgresServer, folder: Path, mode: str, *, pool: int = 2) -> Iterator[str]:
    parts = urlsplit(server.url())
    users = folder / "users.txt"
    users.write_text(f'"{parts.username}" "{parts.password}"\n')
    for _ in range(5):
        port = free_port()
        config = folder / "pgbouncer.ini"
        config.write_text(CONFIG.format(server=parts.port, port=port, folder=folder, mode=mode, pool=pool))
        command = [find_pgbouncer(), "-q", config]
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(command, user=_unprivileged(folder), cwd="/", stdout=said, stderr=said)
        try:
            # Another process may take the free port before the pooler does.
            if not asyncio.run(_answers(port, process)):
                continue
            yield f"127.0.0.1:{port}"
            return
        finally:
            process.kill()
            process.wait()
    pytest.fail(f"pgbouncer did not start: {(folder / 'said').read_text()}{(folder / 'log').read_text()}")


CONFIG = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users.txt
{mode}
default_pool_size = {pool}
max_client_conn = 200
logfile = {folder}/log
"""


def _unprivileged(folder: Path) -> str | None:
    """PgBouncer refuses to run as root, too; the folders above must let the other user through."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, "nobody")
    for parent in folder.parents[:3]:
        if parent.stat().st_uid == 0 and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return "nobody"


async def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until it takes connections; False: it ended."""
    while process.poll() is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return process.poll() is None
    return False


@pytest.fixture
def pooled_url(url: str, bouncer: str) -> str:
    return through(bouncer, url) + "?pooler=transaction"


def through(bouncer: str, url: str) -> str:
    return url.replace(f"127.0.0.1:{urlsplit(url).port}", bouncer)


@pytest.fixture
async def pooled(pooled_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(pooled_url)
    await store.open()
    yield store
    await store.close()


async def test_a_whole_life(pooled: PostgresStore):
    ids = await put(pooled, 5)
    later = Batch(new_batch(), [NewJob("t", b"", Lane("slow"), timedelta(hours=1))])
    await pooled.enqueue(later)
    lease = await take(pooled, 4)
    here = Presence(
        id=WORKER, name="h:1", queues=("default",), slots=4, running=4, version="1", started_at=await pooled.now()
    )
    assert (await pooled.heartbeat([lease.token], TTL, here)).lost == frozenset()
    assert await pooled.cancel([ids[3], ids[4]], "why not") == {
        ids[3]: CancelAnswer.ASKED,
        ids[4]: CancelAnswer.CANCELLED,
    }
    assert [stop.position for stop in (await pooled.heartbeat([lease.token], TTL)).stops] == [3]
    settled = [(0, DONE), (1, Again(0, 0)), (2, Again(1, 0, timedelta(minutes=1))), (3, Again(0, 0))]
    assert await pooled.settle(lease.token, settled) == frozenset()
    states = [job.state for job in await pooled.get(ids) if job]
    assert states == [JobState.DONE, JobState.READY, JobState.SCHEDULED, JobState.CANCELLED, JobState.CANCELLED]
    assert (await pooled.promote()).moved == 0
    assert await pooled.retry([ids[0]]) == {ids[0]}
    assert await pooled.delete([ids[4]]) == {ids[4]}
    assert len((await pooled.find(Filter())).jobs) == 5
    assert [p.name for p in await pooled.workers()] == ["h:1"]
    await pooled.retire(WORKER)
    await pooled.pause("default")
    assert await claim(pooled) is None
    await pooled.resume("default")
    lease = await take(pooled)
    assert [job.id for job in lease.jobs] == ids[:2]
    assert await pooled.abandon(WORKER, "killed") == 1
    [orphan] = await pooled.reap(WORKER, TTL)
    assert (len(orphan.jobs), orphan.cause) == (2, "killed")
    assert await pooled.settle(orphan.token, [(0, DONE), (1, DONE)]) == frozenset()
    assert (await pooled.prune(Retention())).jobs == 0
    assert {q.queue: q.done_total for q in (await pooled.stats()).queues} == {"default": 3, "slow": 0}
    assert {finding.level for finding in await pooled.check()} == {"ok"}


async def test_many_at_once_over_two_server_connections(pooled_url: str):
    """Statements of six stores are mixed over two sessions; every job is claimed once."""
    stores = [PostgresStore(pooled_url) for _ in range(6)]
    for store in stores:
        await store.open()
    batches = [a_batch(5) for _ in range(30)]
    await asyncio.gather(*[stores[n % 6].enqueue(batch) for n, batch in enumerate(batches)])

    async def work(store: PostgresStore) -> list[object]:
        done: list[object] = []
        while lease := await claim(store, 7):
            assert await store.settle(lease.token, [(n, DONE) for n in range(len(lease.jobs))]) == frozenset()
            done += [job.id for job in lease.jobs]
        return done

    done = [id for some in await asyncio.gather(*[work(store) for store in stores]) for id in some]
    assert sorted(map(str, done)) == sorted(str(job_id(batch.id, n)) for batch in batches for n in range(5))
    for store in stores:
        await store.close()


async def test_lanes_take_turns_though_sessions_are_mixed(pooled: PostgresStore):
    batch = Batch(new_batch(), [NewJob("t", b"", Lane(tenant=t)) for t in "abc" for _ in range(4)])
    await pooled.enqueue(batch)
    order = [(await take(pooled, 1)).jobs[0].tenant for _ in range(12)]
    assert order == ["a", "b", "c"] * 4


async def test_waiting_is_polling(pooled: PostgresStore):
    assert await pooled.wait(["default"], 0.01) is False


async def test_a_direct_address_brings_the_ear_back(pooled_url: str, url: str):
    store = PostgresStore(f"{pooled_url}&listen={quote(url, safe='')}")
    other = PostgresStore(pooled_url)
    await store.open()
    await other.open()
    assert await claim(store) is None
    assert await store.wait(["default"], 60)
    assert await claim(store) is None
    sleeper = asyncio.create_task(store.wait(["default"], 60))
    await other.enqueue(a_batch())
    assert await sleeper
    await store.close()
    await other.close()


async def test_migrating_through_the_pooler(postgres_server: PostgresServer, bouncer: str):
    fresh = postgres_server.create_database()
    pooled = fresh.replace(f"127.0.0.1:{urlsplit(fresh).port}", bouncer) + "?pooler=transaction"
    store = PostgresStore(pooled)
    assert await store.migrate() != []
    await store.open()
    await store.enqueue(a_batch())
    assert await claim(store) is not None
    await store.close()


async def test_a_pooler_that_is_gone(url: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that no other process gets it meanwhile
        nobody = f":{taken.getsockname()[1]}/"
        store = PostgresStore(url.replace(f":{urlsplit(url).port}/", nobody) + "?pooler=transaction")
        with pytest.raises(Unavailable):
            await store.open()
        await store.close()


async def test_shares_hold_over_claims_of_one_through_the_pooler(pooled: PostgresStore, pooled_url: str):
    """Turns, what a tenant is still owed, and limits: none of it is kept in a session."""
    other = PostgresStore(pooled_url)
    await other.open()
    await pooled.limit("api", LimitRule(concurrency=3), None)
    for tenant in ("a", "b", "c"):
        await put(pooled, 400, lane=Lane(tenant=tenant))
    await put(pooled, 20, lane=Lane(tenant="d", limits=("api",)))
    got: Counter[str] = Counter()

    async def serve(store: PostgresStore) -> None:
        for _ in range(200):
            lease = await store.claim(Ask(WORKER, ("default",), 1, TTL, new_token(), weights={"default": {"a": 3}}))
            assert lease is not None
            got.update(job.tenant for job in lease.jobs)

    await asyncio.gather(serve(pooled), serve(other))
    await other.close()
    assert got["d"] == 3
    assert abs(got["a"] - 3 * got["b"]) <= 0.05 * got["a"] + 4
    assert abs(got["b"] - got["c"]) <= 0.05 * got["b"] + 4


async def test_a_pooler_that_the_url_does_not_name(url: str, bouncer: str):
    store = PostgresStore(through(bouncer, url))
    with pytest.raises(ConfigError, match=r"pooler.*add \?pooler=transaction to the URL"):
        await store.open()
    await store.close()


async def test_a_pooler_in_session_mode(url: str, session_bouncer: str, sql: Any):
    await sql.execute("alter database " + urlsplit(url).path[1:] + " set synchronous_commit = off")
    store = PostgresStore(through(session_bouncer, url) + "?pooler=session")
    await store.open()
    ids = await put(store)
    lease = await take(store)
    assert [job.id for job in lease.jobs] == ids
    assert (await store.heartbeat([lease.token], TTL)).lost == frozenset()
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    assert {finding.level for finding in await store.check()} == {"ok"}
    await store.close()


async def test_doctor_knows_a_pooler_by_the_session_it_answers_with(url: str, lenient_bouncer: str, pg: PostgresStore):
    store = PostgresStore(through(lenient_bouncer, url))
    await store.open()
    [finding] = [finding for finding in await store.check() if finding.about == "pooler"]
    await store.close()
    assert finding.level == "error"
    assert "add ?pooler=transaction to the URL" in finding.message
    assert "pooler" not in {finding.about for finding in await pg.check()}


@pytest.mark.parametrize(
    ("server", "asked", "level", "says"),
    [
        ("off", "", "ok", "= on (headrace raises the server's off)"),
        ("local", "", "ok", "= on (headrace raises the server's local)"),
        ("remote_apply", "", "ok", "= remote_apply"),
        ("on", "&synchronous_commit=off", "warning", "off: a crash can lose"),
    ],
)
async def test_how_commits_wait_for_the_disk(
    pooled_url: str, url: str, sql: Any, server: str, asked: str, level: str, says: str
):
    await sql.execute("alter database " + urlsplit(url).path[1:] + f" set synchronous_commit = {server}")
    for address in (pooled_url + asked, url + asked.replace("&", "?")):
        store = PostgresStore(address)
        await store.open()
        [finding] = [finding for finding in await store.check() if finding.about == "synchronous_commit"]
        await put(store)
        await store.close()
        assert finding.level == level
        assert says in finding.message
