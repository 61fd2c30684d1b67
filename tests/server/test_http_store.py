"""The http store against a real server: permissions, error messages, and workers behind a firewall."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from conftest import opened
from headrace import Headrace, current_job
from headrace.errors import (
    ConfigError,
    HeadraceError,
    IdempotencyConflict,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    SchemaMismatch,
    StoreError,
    Unavailable,
    Unsupported,
)
from headrace.model.job import Batch, Job, JobId, JobState, Key, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Band, Presence, Report, new_token, new_worker_id
from headrace.model.masked_url import mask_url
from headrace.model.outcome import DONE, Finish
from headrace.model.records import CancelAnswer, Filter, Promoted, Retention
from headrace.operate import tokens
from headrace.operate.limits import Limits
from headrace.operate.operations import Operations
from headrace.operate.schedules import Schedules
from headrace.policy.recovery import LimitObservation, What
from headrace.policy.schedule import Schedule, declare
from headrace.server import ServerSettings
from headrace.store import connect
from headrace.store.contract import Store
from headrace.store.http import address, wire
from headrace.store.http.store import HttpStore
from headrace.task.limit import LimitDeclaration, LimitFigures
from server.running import Running, running
from servers.process import free_port

TTL = timedelta(seconds=15)
HOUR = timedelta(hours=1)
SECRET = "hr_0123456789ab_aSecretThatNobodyMaySee00000"


@pytest.fixture
def store_name() -> str:
    return "memory"


@pytest.fixture
async def server(app: Headrace) -> AsyncIterator[Running]:
    """One that does not tidy: these tests do it themselves."""
    async with running(app, ServerSettings(port=0, tidy=False)) as found:
        yield found


@asynccontextmanager
async def as_(server: Running, *scopes: str, **bound: Any) -> AsyncGenerator[Store]:
    """A store with a token of its own."""
    text, _ = await tokens.create(server.store, f"t{new_token().hex}", scopes=scopes, **bound)
    server.service.auth._asked = float("-inf")
    async with opened(connect(f"http://{text}@127.0.0.1:{server.port}")) as store:
        yield store


def ask(*queues: str, limit: int = 10) -> Ask:
    return Ask(new_worker_id(), queues or ("default",), limit, TTL, new_token())


def batch(*lanes: Lane, task: str = "t", key: Key | None = None) -> Batch:
    return Batch(new_batch(), [NewJob(task, b"\x92\x90\x80", lane, key=key) for lane in lanes or (Lane(),)])


async def put(store: Store, *lanes: Lane) -> list[JobId]:
    made = batch(*lanes)
    await store.enqueue(made)
    return [job_id(made.id, ord) for ord in range(len(made.jobs))]


async def look(store: Store, id: JobId) -> Job:
    [job] = await store.get([id])
    assert job is not None
    return job


# ── scopes ───────────────────────────────────────────────────────────────────


async def test_a_work_token_works_and_does_nothing_else(server: Running) -> None:
    [id] = await put(server.store)
    async with as_(server, "work") as store:
        lease = await store.claim(ask())
        assert lease is not None
        assert (await store.heartbeat([lease.token], TTL)).lost == frozenset()
        assert await store.report(lease.token, [(0, Report(progress=0.5))]) == frozenset()
        assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
        assert (await look(server.store, id)).state is JobState.DONE
        await store.promote()
        assert await store.reap(new_worker_id(), TTL) == []
        assert (await store.prune(Retention(done=timedelta(0), dead=timedelta(0)))).jobs == 0
        assert await store.wait(["default"], 0.01) is False
        assert await store.records("schedule") == {}
        with pytest.raises(Unsupported, match="lacks the scope enqueue"):
            await store.enqueue(batch())
        with pytest.raises(Unsupported, match="lacks the scope read"):
            await store.find(Filter())
        with pytest.raises(Unsupported, match="lacks the scope read"):
            await store.get([id])
        with pytest.raises(Unsupported, match="lacks the scope operate"):
            await store.cancel([id])


@pytest.mark.parametrize("kind", ["token", "secret", "audit.days", "audit.2026-01-01", "webhook", "anything"])
async def test_no_worker_reads_or_writes_what_is_not_its_own(server: Running, kind: str) -> None:
    async with as_(server, "work", "read", "operate", "enqueue") as store:
        with pytest.raises(Unsupported, match="no records"):
            await store.records(kind)
        with pytest.raises(Unsupported, match="no records"):
            await store.record(kind, "x", b"mine", None)


async def test_an_admin_does_not_get_the_secret_either(server: Running) -> None:
    async with as_(server, "admin") as store:
        assert await store.records("token")
        with pytest.raises(Unsupported):
            await store.records("secret")
        with pytest.raises(Unsupported):
            await store.record("secret", "lease", b"known", None)


def every_hour(name: str) -> Schedule:
    return declare(name, every="1h", job=NewJob("t", b"", Lane()))


async def test_what_is_an_operators_takes_an_operators_token(server: Running) -> None:
    declared = LimitDeclaration(figures=LimitFigures(concurrency=9))
    await Limits(server.store).declare({"shop": declared})
    async with as_(server, "work", "enqueue") as store:
        with pytest.raises(Unsupported, match="lacks the scope operate"):
            await Operations(store).limits.set("shop", LimitFigures(concurrency=3))
        now = datetime.now(UTC)
        closed = await Limits(store).observe("shop", declared, [LimitObservation(What.REFUSED, now, now + HOUR)], now)
        assert closed.closed_until == now + HOUR
        await Schedules(store).declare({"nightly": every_hour("nightly")}, app="shop", tasks={"t"})
        with pytest.raises(Unsupported, match="lacks the scope operate"):
            await Operations(store, actor="me").schedules.pause("nightly")
        with pytest.raises(Unsupported, match="lacks the scope operate"):
            await Operations(store).schedules.remove("nightly")
        with pytest.raises(Unsupported, match="lacks the scope operate"):
            await Operations(store).schedules.add(every_hour("mine"))
    assert (await Limits(server.store).all())["shop"].override is None
    assert set(await Schedules(server.store).all()) == {"nightly"}
    async with as_(server, "work") as store:
        with pytest.raises(Unsupported, match="lacks the scope enqueue"):
            await Schedules(store).declare({"planted": every_hour("planted")}, app="shop", tasks={"t"})


async def test_jobs_that_an_operator_prunes_are_noted(server: Running) -> None:
    [id] = await put(server.store)
    lease = await server.store.claim(ask())
    assert lease is not None
    await server.store.settle(lease.token, [(0, DONE)])
    async with as_(server, "operate") as store:
        assert (await store.prune(Retention())).jobs == 0
        assert (await store.prune(Retention(done=timedelta(0)))).jobs == 1
    [entry] = await server.service.audit.read(await server.store.now() - timedelta(hours=1), limit=10)
    assert (entry.action, entry.jobs) == ("jobs.prune", 1)
    assert await server.store.get([id]) == [None]


async def test_what_an_operator_does_is_noted(server: Running) -> None:
    [id] = await put(server.store)
    async with as_(server, "operate") as store:
        assert await store.cancel([id], "enough") == {id: CancelAnswer.CANCELLED}
        await store.pause("mail", by="ada")
        await store.resume("mail")
    entries = await server.service.audit.read(await server.store.now() - timedelta(hours=1), limit=10)
    assert {entry.action for entry in entries} == {"jobs.cancel", "queues.pause", "queues.resume"}


# ── tokens bound to a tenant or to queues ────────────────────────────────────


async def test_a_bound_worker_sees_its_tenant_only(server: Running) -> None:
    own, theirs = await put(server.store, Lane(tenant="t1"), Lane(tenant="t2"))
    async with as_(server, "work", "read", "operate", "enqueue", tenant="t1") as store:
        lease = await store.claim(ask())
        assert lease is not None
        assert [job.id for job in lease.jobs] == [own]
        assert await store.claim(ask()) is None
        assert [job and job.id for job in await store.get([own, theirs])] == [own, None]
        assert [job.id for job in (await store.find(Filter())).jobs] == [own]
        assert (await store.find(Filter(tenant="t2"))).jobs == []
        assert await store.cancel([theirs]) == {theirs: CancelAnswer.UNKNOWN}
        assert await store.retry([theirs]) == await store.delete([theirs]) == frozenset()
        assert await store.ahead(theirs) is None
        assert await store.limits() == {}
        assert await store.records("schedule") == {}
        assert (await store.promote()).moved == 0
        assert await store.reap(new_worker_id(), TTL) == []
        assert (await store.prune(Retention(done=timedelta(0)))).jobs == 0
        for lane in (Lane(tenant="t2"), Lane()):
            with pytest.raises(Unsupported):
                await store.enqueue(batch(lane))
        await store.enqueue(batch(Lane(tenant="t1")))
        # As /v1/stats and /v1/workers: a queue is the affair of all its tenants, so one of them sees none as a whole.
        assert (await store.stats()).queues == []
        assert await store.workers() == []
        with pytest.raises(Unsupported):
            await store.check()
        with pytest.raises(Unsupported):
            await store.pause("default")
        with pytest.raises(Unsupported):
            await store.pause("t2", kind="tenant")
        await store.pause("t1", kind="tenant")
        await store.resume("t1", kind="tenant")
        with pytest.raises(Unsupported):
            await store.limit("stripe", None, None)
        assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
        assert [each.id for each in await store.ended(await store.now() - timedelta(hours=1))] == [own]
    assert (await look(server.store, theirs)).state is JobState.READY


async def test_somebody_else_s_token_is_worth_nothing(server: Running) -> None:
    """A tenant cannot use another tenant's lease token or worker id, even if it knows them."""
    [id] = await put(server.store, Lane(tenant="t2"))
    question = ask()
    async with as_(server, "work", tenant="t2") as two, as_(server, "work", tenant="t1") as one:
        lease = await two.claim(question)
        assert lease is not None
        assert lease.token == question.token
        before = await look(server.store, id)
        assert await one.settle(lease.token, [(0, DONE)]) == {0}
        assert await one.report(lease.token, [(0, Report(note="mine"))]) == {0}
        assert (await one.heartbeat([lease.token], timedelta(days=1))).lost == {lease.token}
        assert not await one.detach(lease.token, 0, new_token())
        assert await one.abandon(question.worker, "dead") == 0
        # The token as the server's own store has it is not to be had, and not to be used, either.
        assert before.worker != question.worker
        assert await look(server.store, id) == before
        # Its owner, on the other hand, goes on, from any process that has the same token.
        assert (await two.heartbeat([lease.token], TTL)).lost == frozenset()
        fresh = new_token()
        assert await two.detach(lease.token, 0, fresh)
        assert await two.settle(fresh, [(0, DONE)]) == frozenset()
    assert (await look(server.store, id)).state is JobState.DONE


async def test_a_worker_bound_to_queues(server: Running) -> None:
    await put(server.store, Lane("a"), Lane("b"))
    async with as_(server, "work", "read", "operate", queues=["a"]) as store:
        with pytest.raises(Unsupported):
            await store.claim(ask("a", "b"))
        with pytest.raises(Unsupported):
            await store.wait(["b"], 0.01)
        with pytest.raises(Unsupported):
            await store.lanes(["b"])
        with pytest.raises(Unsupported):
            await store.claim(replace(ask("a"), bands=(Band(-1000, 1000, 10, ("b",)),)))
        lease = await store.claim(ask("a"))
        assert lease is not None
        assert [each.queue for each in (await store.stats()).queues] == ["a"]
        assert [job.queue for job in (await store.find(Filter())).jobs] == ["a"]
        await store.pause("a")
        with pytest.raises(Unsupported):
            await store.pause("b")
        await server.store.pause("b")
        assert [each.name for each in await store.pauses()] == ["a"]
        presence = Presence(
            id=new_worker_id(), name="w", queues=("a",), slots=1, running=0, version="1", started_at=await store.now()
        )
        await store.heartbeat([], TTL, presence)
        [seen] = await server.store.workers()
        assert seen.id != presence.id
        await store.retire(presence.id)
        assert await server.store.workers() == []


# ── bad input ────────────────────────────────────────────────────────────────


async def send(server: Running, verb: str, body: bytes, media: str = wire.MEDIA) -> httpx2.Response:
    return await server.http.post(f"/v1/store/{verb}", content=body, headers={"Content-Type": media})


@pytest.mark.parametrize("verb", wire.VERBS)
async def test_bytes_that_are_no_arguments(server: Running, verb: str) -> None:
    for body in (b"", b"\xc1", b"{}", b"\x90" * 10, b"\xff" * 100, msgspec.msgpack.encode([{}] * 9), b"\x91" * 2000):
        reply = await send(server, verb, body)
        assert reply.status_code in {200, 422}, (body, reply.text)
        if reply.status_code == 200:
            assert body == b"\x90" * 10  # trailing bytes are refused, so only an empty array is none
    reply = await send(server, verb, b"\x90", "application/json")
    assert (reply.status_code, reply.json()["code"]) == (415, "content_type_not_allowed")


BAD_JOBS = [
    Batch(new_batch(), [NewJob("t", b"", Lane(queue="Not A Queue"))]),
    Batch(new_batch(), [NewJob("t", b"", Lane(priority=10**9))]),
    Batch(new_batch(), [NewJob("t", b"", Lane(tenant="a b"))]),
    Batch(new_batch(), [NewJob("t", b"", Lane(limits=("x" * 300,)))]),
    Batch(new_batch(), [NewJob("t\n", b"", Lane())]),
    Batch(new_batch(), [NewJob("t", b"", Lane(), key=Key("k" * 1000, TTL, b""))]),
    Batch(job_id(new_batch(), 7), [NewJob("t", b"", Lane())]),  # type: ignore[arg-type]  # that is what is wrong
]


@pytest.mark.parametrize("bad", BAD_JOBS, ids=range(len(BAD_JOBS)))
async def test_jobs_that_no_client_of_ours_would_make(server: Running, bad: Batch) -> None:
    async with as_(server, "enqueue") as store:
        with pytest.raises(ConfigError):
            await store.enqueue(bad)
    assert (await server.store.find(Filter())).jobs == []


async def test_figures_that_no_store_of_ours_would_send(server: Running) -> None:
    await put(server.store)
    async with as_(server, "work", "read") as store:
        for ttl in (timedelta(seconds=-1), timedelta(days=1_000_000)):
            with pytest.raises(ConfigError, match="a lease lasts"):
                await store.claim(replace(ask(), ttl=ttl))
            with pytest.raises(ConfigError, match="a lease lasts"):
                await store.heartbeat([], ttl)
        assert await store.claim(ask(limit=-5)) is None
        lease = await store.claim(ask(limit=2**60))
        assert lease is not None
        for position in (-1, 2**31, 2**62):
            assert await store.settle(lease.token, [(position, DONE)]) == {position}
            assert await store.report(lease.token, [(position, Report(progress=0.5))]) == {position}
        assert await store.settle(lease.token, [(0, DONE), (2**40, DONE)]) == {2**40}
        assert len((await store.find(Filter(), limit=2**62)).jobs) == 1
        assert await store.lanes(["default"], -(2**62)) == []


async def test_errors_come_back_as_they_were(server: Running) -> None:
    async with as_(server, "enqueue") as store:
        made = batch(key=Key("k", TTL, b"one"))
        await store.enqueue(made)
        with pytest.raises(IdempotencyConflict) as conflict:
            await store.enqueue(batch(key=Key("k", TTL, b"two")))
        assert (conflict.value.task, conflict.value.key) == ("t", "k")
        assert conflict.value.existing == job_id(made.id, 0)
        with pytest.raises(QueueFull, match="queue short is full, its max_length is 3"):
            await store.enqueue(batch(*[Lane("short")] * 4))
        with pytest.raises(HeadraceError, match="bytes"):
            await store.enqueue(Batch(new_batch(), [NewJob("t", bytes(300_000), Lane())]))
        assert PayloadTooLarge.code == "payload_too_large"


class Broken:
    """A store whose verbs fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def now(self) -> None:
        raise self._error

    async def settle(self, *_: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [Unavailable("db.internal is away"), OutcomeUnknown("db.internal broke"), SchemaMismatch("db.internal is old")],
    ids=lambda error: error.code,
)
async def test_a_server_whose_store_fails(server: Running, error: StoreError, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(connect(server.url)) as store:
        monkeypatch.setattr(server.service, "store", Broken(error))
        with pytest.raises(type(error)) as raised:
            await store.settle(new_token(), [(0, DONE)])
        assert "db.internal" not in str(raised.value)


async def test_a_server_that_fails_itself(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(connect(server.url)) as store:
        monkeypatch.setattr(server.service, "store", Broken(KeyError("oops")))
        with pytest.raises(Unavailable, match="answered 500"):
            await store.now()
        with pytest.raises(OutcomeUnknown, match="answered 500"):
            await store.settle(new_token(), [(0, DONE)])


# ── addresses, and secrets that stay secret ──────────────────────────────────


@pytest.mark.parametrize(
    ("url", "base", "token"),
    [
        ("https://tok@host", "https://host", "tok"),
        ("https://:tok@host/", "https://host", "tok"),
        ("https://any:tok@host:8443/queue/", "https://host:8443/queue", "tok"),
        ("http://127.0.0.1:8200", "http://127.0.0.1:8200", None),
        ("http://t%2Bk@[::1]:8200", "http://[::1]:8200", "t+k"),
    ],
)
def test_addresses(url: str, base: str, token: str | None) -> None:
    found = address.parse(url)
    assert (found.base, found.token) == (base, token)
    assert token is None or token not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        f"https://{SECRET}@",
        f"https://{SECRET}@host?x=1",
        f"https://{SECRET}@host#x",
        f"https://{SECRET}@host:port",
        f"https://{SECRET}%0a@host",
        f"https://{SECRET}%20x@host",
        f"https://{SECRET}é@host",
    ],
)
def test_bad_addresses_do_not_say_the_token(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(url)
    assert SECRET not in str(raised.value)


def test_masked_urls() -> None:
    assert SECRET not in mask_url(f"https://{SECRET}@host/x")
    assert SECRET not in mask_url(f"http://user:{SECRET}@host")
    assert SECRET not in repr(Headrace(f"https://{SECRET}@host"))


async def test_what_is_said_when_nobody_is_there(server: Running) -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as raised:
        await connect(f"http://{SECRET}@127.0.0.1:1").open()
    assert SECRET not in str(raised.value)
    with pytest.raises(Unavailable, match="is not open"):
        await connect(f"http://{SECRET}@127.0.0.1:1").now()
    await tokens.create(server.store, "somebody", scopes=["work"])
    server.service.auth._asked = float("-inf")
    with pytest.raises(ConfigError, match="refuses access") as refused:
        await connect(f"http://{SECRET}@127.0.0.1:{server.port}").open()
    assert SECRET not in str(refused.value)


async def test_a_server_of_something_else(server: Running) -> None:
    with pytest.raises(StoreError) as raised:
        await connect(f"{server.url}/elsewhere").open()
    assert "elsewhere" in str(raised.value)


async def test_no_way_round_tls(server: Running) -> None:
    with pytest.raises(Unavailable, match="TLS"):
        await connect(f"https://{SECRET}@127.0.0.1:{server.port}").open()


def test_a_clock_is_the_server_s() -> None:
    with pytest.raises(ConfigError, match="its server's clock"):
        HttpStore("http://127.0.0.1", clock=object())  # type: ignore[arg-type]  # any will do


async def test_large_results_go_in_several_calls(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SPLIT", 1000)
    await put(server.store, *[Lane()] * 5)
    async with opened(connect(server.url)) as store:
        lease = await store.claim(ask())
        assert lease is not None
        ends = [(position, Finish(JobState.DONE, result=bytes(400))) for position in range(5)]
        assert await store.settle(lease.token, ends) == frozenset()
        assert await store.settle(lease.token, ends) == frozenset(range(5))
        assert await store.settle(lease.token, []) == frozenset()
    assert {job.state for job in (await server.store.find(Filter())).jobs} == {JobState.DONE}


async def test_a_call_that_is_too_large(server: Running) -> None:
    async with opened(connect(server.url)) as store:
        with pytest.raises(StoreError, match="413"):
            await store.record("notes", "long", bytes(3_000_000), None)


async def test_many_ids_go_in_several_calls(server: Running) -> None:
    async with opened(connect(server.url)) as store:
        assert await store.get([job_id(new_batch(), 0)] * 2500) == [None] * 2500


async def test_what_the_server_tidies_it_is_not_asked_for(app: Headrace) -> None:
    async with running(app) as server, opened(connect(server.url)) as store:
        made = Batch(new_batch(), [NewJob("t", b"", Lane(), timedelta(milliseconds=20))])
        await store.enqueue(made)
        assert await store.promote() == Promoted(0, None)
        assert await store.reap(new_worker_id(), TTL) == []
        async with asyncio.timeout(60):
            while (lease := await store.claim(ask())) is None:
                await store.wait(["default"], 1)
        assert lease.jobs[0].id == job_id(made.id, 0)


# ── connections that break ───────────────────────────────────────────────────


class Wire:
    """Between a store and its server; can be cut after the server has heard and before it is heard."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cuts = 0
        self.calls = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        there = asyncio.create_task(self._pass_on(reader, up_writer))
        try:
            while data := await up_reader.read(1 << 16):
                self.calls += 1
                if self.cuts:
                    self.cuts -= 1
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            there.cancel()
            up_writer.close()
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def between(server: Running) -> AsyncGenerator[tuple[Store, Wire]]:
    made = Wire(server.port)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with opened(connect(f"http://127.0.0.1:{port}")) as store:
        yield store, made
    listening.close()


async def test_an_answer_that_is_lost(server: Running) -> None:
    async with between(server) as (store, cable):
        # Asked again, which is safe: by the batch's id, by the lease's token.
        cable.cuts = 1
        made = batch(Lane(), Lane())
        assert (await store.enqueue(made)).existing == {}
        assert len((await server.store.find(Filter())).jobs) == 2
        cable.cuts = 1
        question = ask(limit=1)
        lease = await store.claim(question)
        assert lease is not None
        assert lease.token == question.token
        assert [job.state for job in (await server.store.find(Filter())).jobs].count(JobState.RUNNING) == 1
        cable.cuts = 1
        assert (await store.heartbeat([lease.token], TTL)).lost == frozenset()
        # Not this one: whether it happened is for the worker's settler to find out, which knows what a refusal means.
        cable.cuts = 1
        with pytest.raises(OutcomeUnknown, match="broke during settle"):
            await store.settle(lease.token, [(0, DONE)])
        assert (await look(server.store, lease.jobs[0].id)).state is JobState.DONE
        cable.cuts = 2
        with pytest.raises(Unavailable, match="broke before"):
            await store.now()
        cable.cuts = 2
        with pytest.raises(OutcomeUnknown):
            await store.enqueue(made)


# ── apps and workers without a database ──────────────────────────────────────


async def test_an_app_on_a_server(server: Running) -> None:
    app = Headrace(server.url)

    @app.task
    async def add(a: int, b: int) -> int:
        await current_job().progress(0.5, "adding")
        current_job().log(f"{a} and {b}")
        return a + b

    async with app, app.worker(poll="50ms"):
        handle = await add.aenqueue(2, 3)
        assert await handle.aresult(timeout=60) == 5
        job = await app.aget(handle)
        assert job is not None
        assert (job.progress, job.doing, [line.text for line in job.log]) == (0.5, "adding", ["2 and 3"])
        with pytest.raises(Unsupported, match="cannot join your transaction"):
            await add.using(tx=object()).aenqueue(1, 2)
        assert (await app.astats()).queues[0].done_total == 1


async def test_a_worker_outlives_its_server(tmp_path: Path) -> None:
    """The server is restarted while jobs run: their results are kept and handed in, none is lost, none runs twice."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = connect(url)
    await store.migrate()
    runs: list[int] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async with opened(store):
        # No other process gets this port while no server has it.
        async with running(Headrace(url), ServerSettings(port=free_port())) as first:
            remote = Headrace(first.url)

            @remote.task(name="t")
            async def work(number: int) -> None:
                runs.append(number)
                begun.set()
                await go_on.wait()

            jobs = [NewJob("t", work.codec.encode((number,), {}), Lane()) for number in range(20)]
            made = Batch(new_batch(), jobs)
            await store.enqueue(made)
            worker = remote.worker(concurrency=5, poll="50ms", heartbeat="100ms")
            await worker.__aenter__()
            await begun.wait()
        go_on.set()  # with no server to take the results
        async with running(Headrace(url), ServerSettings(port=first.port)):
            async with asyncio.timeout(60):
                while (await store.stats()).queues[0].done_total < 20:
                    await store.wait(["default"], 0.05)
            await worker.__aexit__(None, None, None)
        await remote.aclose()
    assert sorted(runs) == list(range(20))


APP = """
from headrace import Headrace, current_job

app = Headrace()


@app.task
async def double(number: int) -> int:
    await current_job().progress(1.0)
    return 2 * number


@app.task(executor="process")
def triple(number: int) -> int:
    current_job().log("in a process")
    return 3 * number
"""


@pytest.mark.parametrize(
    ("bound", "flag"),
    [({}, "--store"), ({"queues": ["default"]}, ""), ({"tenant": "t1"}, "")],
    ids=["free", "queue", "tenant"],
)
async def test_a_worker_behind_a_firewall(server: Running, tmp_path: Path, bound: dict[str, Any], flag: str) -> None:
    """`headrace worker APP` with nothing but a URL and a token with the scope `work`."""
    (tmp_path / "remote_app.py").write_text(APP)
    text, _ = await tokens.create(server.store, "remote", scopes=["work"], **bound)
    jobs = [
        NewJob(f"remote_app.{task}", msgspec.msgpack.encode(([number], {})), Lane(tenant=bound.get("tenant", "")))
        for number, task in enumerate(["double", "triple", "double"])
    ]
    made = Batch(new_batch(), jobs)
    await server.store.enqueue(made)
    url = f"http://{text}@127.0.0.1:{server.port}"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **({} if flag else {"HEADRACE_URL": url})}
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "worker", "remote_app:app", *((flag, url) if flag else ())),
        cwd=tmp_path,
        env=environment,
        stdout=PIPE,
        stderr=STDOUT,
    )
    ids = [job_id(made.id, ord) for ord in range(3)]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(server.service.hub.finished(id, 60) for id in ids))
        found = [await look(server.store, id) for id in ids]
    finally:
        if worker.returncode is None:
            worker.send_signal(signal.SIGTERM)
        output = (await worker.communicate())[0].decode()
    assert worker.returncode == 0, output
    assert [msgspec.msgpack.decode(job.result or b"") for job in found] == [0, 3, 4]
    assert [line.text for line in found[1].log] == ["in a process"]
    assert text not in output
    assert "Traceback" not in output
    assert await server.store.workers() == []
