"""Connections: half-open ones are found out, heartbeats have one of their own, abandoned calls end on the server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from headrace.errors import OutcomeUnknown
from headrace.model.job import Batch, Key, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Token
from headrace.model.outcome import DONE
from headrace.model.records import Retention
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import TTL, a_batch, claim, put, take, until_waiting

PATIENCE = 90
"""Seconds after which a call counts as stuck; only a failing test waits so long."""
EARLY = 40
"""Well before the minute that an enqueue or a settle may take on a connection that works."""


Way = Literal["to the server", "from the server"]
WAYS: tuple[Way, ...] = ("to the server", "from the server")


class Router:
    """Between store and server. What it forgets stays open, and is silent: nothing arrives on either side, or on one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: list[dict[Way, asyncio.Event]] = []
        self.writers: list[asyncio.StreamWriter] = []

    def forget(self, ways: tuple[Way, ...] = WAYS) -> None:
        """All connections that there are. New ones pass."""
        for dead in self._known:
            for way in ways:
                dead[way].set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, up = await asyncio.open_connection("127.0.0.1", self._port)
        dead: dict[Way, asyncio.Event] = {way: asyncio.Event() for way in WAYS}
        self._known.append(dead)
        self.writers += [writer, up]
        await asyncio.gather(
            self._pass(reader, up, dead["to the server"]), self._pass(there, writer, dead["from the server"])
        )

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dead: asyncio.Event) -> None:
        try:
            while data := await reader.read(65536):
                if dead.is_set():
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        if not dead.is_set():
            writer.close()


@asynccontextmanager
async def routed(url: str) -> AsyncGenerator[tuple[PostgresStore, Router]]:
    port = urlsplit(url).port or 0
    router = Router(port)
    server = await asyncio.start_server(router.serve, "127.0.0.1", 0)
    store = PostgresStore(url.replace(f":{port}/", f":{server.sockets[0].getsockname()[1]}/"))
    await store.open()
    try:
        yield store, router
    finally:
        await store.close()
        server.close()
        for writer in router.writers:
            writer.transport.abort()
        await server.wait_closed()


@pytest.fixture
async def behind_router(url: str) -> AsyncIterator[tuple[PostgresStore, Router]]:
    async with routed(url) as both:
        yield both


async def test_a_heartbeat_gets_through_before_the_lease_is_over(behind_router: tuple[PostgresStore, Router]):
    """Every connection is half-open: found out, and renewed on a new one, well within the lease."""
    store, router = behind_router
    await put(store, 4)
    leases = [await take(store, 1) for _ in range(4)]
    tokens = [lease.token for lease in leases]
    assert (await store.heartbeat(tokens, TTL)).lost == frozenset()
    await asyncio.gather(*[store.stats() for _ in range(4)])
    router.forget()
    async with asyncio.timeout(TTL.total_seconds()):
        assert (await store.heartbeat(tokens, TTL)).lost == frozenset()
        # The idle ones went with the one that broke.
        await asyncio.gather(*[store.settle(token, [(0, DONE)]) for token in tokens])


@pytest.mark.parametrize("ways", [WAYS, WAYS[:1], WAYS[1:]], ids=["both ways", *WAYS])
async def test_a_call_on_a_half_open_connection_is_found_out(
    behind_router: tuple[PostgresStore, Router], ways: tuple[Way, ...]
):
    """Its own time limit is a minute; the server says long before that it does not work on it."""
    store, router = behind_router
    await put(store, 2)
    leases = [await take(store, 1) for _ in range(2)]
    batch = a_batch()
    await asyncio.gather(*[store.stats() for _ in range(4)])
    router.forget(ways)
    async with asyncio.timeout(EARLY):
        await asyncio.gather(store.enqueue(batch), *[_settled(store, lease.token) for lease in leases])
    [queue] = (await store.stats()).queues
    assert (queue.ready, queue.running, queue.done_total) == (1, 0, 2)


async def _settled(store: PostgresStore, token: Token) -> None:
    # Where only the answer was lost, the lease ended with the first sending.
    with suppress(OutcomeUnknown):
        assert await store.settle(token, [(0, DONE)]) == frozenset()


async def test_an_answer_that_is_lost_while_the_server_works_is_found_out(
    behind_router: tuple[PostgresStore, Router], sql: Any
):
    store, router = behind_router
    await put(store)
    lease = await take(store)
    async with sql.transaction():
        await sql.execute("lock table headrace.ending in access exclusive mode")
        settle = asyncio.create_task(_settled(store, lease.token))
        async with asyncio.timeout(PATIENCE):
            await until_waiting(sql, "ending")
        router.forget()
    async with asyncio.timeout(EARLY):
        await settle
    assert (await store.stats()).queues[0].done_total == 1


async def test_a_call_that_waits_for_a_lock_is_left_alone(pg: PostgresStore, sql: Any):
    """However often the server is asked about it."""
    await put(pg)
    lease = await take(pg)
    waiting = "select pid from pg_locks where not granted and relation = 'headrace.ending'::regclass"
    asked = "select query_start from pg_stat_activity where query like '%pg_stat_activity a on%' and pid <> pg_backend_pid()"
    async with sql.transaction():
        await sql.execute("lock table headrace.ending in access exclusive mode")
        settle = asyncio.create_task(pg.settle(lease.token, [(0, DONE)]))
        async with asyncio.timeout(EARLY):
            await until_waiting(sql, "ending")
            before = await sql.fetch(waiting)
            times: set[Any] = set()
            while len(times) < 3:
                await sql.execute("select pg_stat_clear_snapshot()")
                times |= {row["query_start"] for row in await sql.fetch(asked)}
        assert await sql.fetch(waiting) == before
    assert await settle == frozenset()


async def test_no_call_waits_for_ever_for_a_vanished_peer(url: str):
    async def alone(call: str) -> None:
        async with routed(url) as (store, router):
            ids = await put(store)
            await asyncio.gather(*[store.stats() for _ in range(4)])
            router.forget()
            if call == "get":
                assert [job and job.id for job in await store.get(ids)] == ids
            elif call == "check":
                assert await store.check()
            elif call == "open":
                await store.open()
            else:
                await store.prune(Retention())

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*[alone(call) for call in ("get", "check", "open", "prune")])


async def test_heartbeats_and_claims_go_on_while_settles_wait_for_a_lock(pg: PostgresStore, sql: Any):
    await put(pg, 8)
    leases = [await take(pg, 1) for _ in range(7)]
    async with sql.transaction():
        await sql.execute("lock table headrace.ending in access exclusive mode")
        settles = [asyncio.create_task(pg.settle(lease.token, [(0, DONE)])) for lease in leases[:6]]
        async with asyncio.timeout(PATIENCE):
            await until_waiting(sql, "ending")
            for _ in range(3):
                assert (await pg.heartbeat([leases[6].token], TTL)).lost == frozenset()
            assert len((await take(pg)).jobs) == 1
            await pg.promote()
        assert not any(settle.done() for settle in settles)
    assert await asyncio.gather(*settles) == [frozenset()] * 6


async def test_an_abandoned_call_ends_on_the_server(pg: PostgresStore, sql: Any):
    async with sql.transaction():
        await sql.execute("lock table headrace.pause in access exclusive mode")
        call = asyncio.create_task(pg.pause("default"))
        async with asyncio.timeout(PATIENCE):
            await until_waiting(sql, "pause")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until_waiting(sql, "pause", no=True)
    assert await pg.pauses() == []


async def test_sessions_that_became_read_only_are_replaced(url: str, sql: Any):
    """As after a failover behind one address: the old sessions are those of a standby now."""
    database = urlsplit(url).path[1:]
    await sql.execute(f"alter database {database} set default_transaction_read_only = on")
    store = PostgresStore(url)
    await store.open()
    await asyncio.gather(*[store.stats() for _ in range(8)])
    # This session is as old as they are.
    await sql.execute(f"begin read write; alter database {database} reset default_transaction_read_only; commit")
    ids = await put(store)
    lease = await take(store)
    assert (await store.heartbeat([lease.token], TTL)).lost == frozenset()
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    assert [job and job.id for job in await store.get(ids)] == ids
    await store.close()


async def test_several_hosts_of_which_the_first_is_gone(url: str):
    port = urlsplit(url).port
    with socket.socket() as taken, socket.socket() as silent:
        taken.bind(("127.0.0.1", 0))  # so that no other process gets it meanwhile
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # it takes connections, and never says a word
        hosts = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (taken, silent))
        store = PostgresStore(url.replace(f"@127.0.0.1:{port}/", f"@{hosts},127.0.0.1:{port}/"))
        await store.open()
        await put(store)
        assert await claim(store) is not None
        await store.close()


async def test_an_enqueue_in_somebodys_transaction_is_no_concern_of_heartbeats(pg: PostgresStore, sql: Any):
    """A key that another transaction is about to make keeps enqueues waiting, and nothing else."""
    await put(pg)
    lease = await take(pg)
    keyed = [Batch(new_batch(), [NewJob("t", b"", Lane(), key=Key("k", timedelta(hours=1), b""))]) for _ in range(6)]
    async with sql.transaction():
        await sql.execute("lock table headrace.idem in access exclusive mode")
        calls = [asyncio.create_task(pg.enqueue(batch)) for batch in keyed]
        # Less than an enqueue waits: afterwards its connection would be free for others.
        async with asyncio.timeout(PATIENCE / 2):
            await until_waiting(sql, "idem")
            assert (await pg.heartbeat([lease.token], TTL)).lost == frozenset()
    await asyncio.gather(*calls)
    assert (await pg.stats()).queues[0].enqueued_total == 2
    await pg.enqueue(a_batch())


async def _last(sql: Any, function: str) -> set[int]:
    """The sessions whose last statement called this function."""
    rows = await sql.fetch(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and query like '%headrace.' || $1 || '(%'",
        function,
    )
    return {row["pid"] for row in rows}


async def test_claims_stay_on_their_connection(pg: PostgresStore, sql: Any):
    """The first claim on a connection is slow, and no job should meet one."""
    await put(pg)
    lease = await take(pg)
    claimed = await _last(sql, "claim")
    assert len(claimed) == 1
    for _ in range(3):
        await pg.settle(lease.token, [(0, DONE)])
        # As many as the pool has besides.
        await asyncio.gather(*(put(pg) for _ in range(3)))
        assert await _last(sql, "claim") == claimed
        await take(pg, 2)
        lease = await take(pg, 1)
        assert await _last(sql, "claim") == claimed
        assert not claimed & await _last(sql, "settle")


@pytest.mark.parametrize("size", [1, 2])
async def test_a_small_pool_is_shared_by_claims_and_other_calls(url: str, sql: Any, size: int):
    store = PostgresStore(f"{url}?pool={size}")
    await store.open()
    for _ in range(3):
        await asyncio.gather(*(put(store) for _ in range(5)))
        leases = await asyncio.gather(*(take(store, 1) for _ in range(5)))
        await asyncio.gather(*(store.settle(lease.token, [(0, DONE)]) for lease in leases))
    sessions = await sql.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and query not like '%pg_notify%'"
    )
    assert sessions == size
    await store.close()
