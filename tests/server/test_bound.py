"""Tokens bound to a tenant or to queues: what answers tell of others, which is counts and never names or ids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from conftest import opened
from headrace import Headrace, Limit
from headrace.errors import StoreError
from headrace.model.job import Batch, JobId, Key, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Presence, new_token, new_worker_id
from headrace.model.records import Filter, LimitRule
from headrace.store import connect
from headrace.store.contract import Store
from headrace.task.unique import Unique
from server.running import Running, make_app, running

BOUND: list[dict[str, Any]] = [
    {"tenant": "own"},
    {"queues": ("mail",)},
    {"queues": ("mail",), "tenant": "own"},
]
bound_to = pytest.mark.parametrize("bound", BOUND, ids=str)


@pytest.fixture
def app(store_url: str) -> Headrace:
    app = make_app(store_url)

    @app.task(name="sent", queue="mail", limits=[Limit("gate", concurrency=2)])
    async def sent() -> None: ...

    return app


async def put(store: Store, queue: str, tenant: str, **more: Any) -> JobId:
    batch = Batch(
        new_batch(), [NewJob("sent", msgspec.msgpack.encode(([], {})), Lane(queue=queue, tenant=tenant, **more))]
    )
    await store.enqueue(batch)
    return job_id(batch.id, 0)


def present(name: str, *queues: str) -> Presence:
    return Presence(
        id=new_worker_id(), name=name, queues=queues, slots=5, running=0, version="1", started_at=datetime.now(UTC)
    )


async def claim(store: Store, queue: str) -> None:
    lease = await store.claim(Ask(new_worker_id(), (queue,), 1, timedelta(seconds=60), new_token()))
    assert lease is not None


def tells(answer: httpx2.Response | str, *words: object) -> list[str]:
    """Which of these are in there."""
    text = answer if isinstance(answer, str) else answer.text
    return [str(word) for word in words if str(word) in text]


@bound_to
async def test_a_full_limit_does_not_name_who_holds_it(server: Running, bound: dict[str, Any]) -> None:
    store = server.store
    await store.limit("gate", LimitRule(concurrency=2), None)
    theirs = await put(store, "hidden", "covert", limits=("gate",))
    await claim(store, "hidden")
    running = await put(store, "mail", "own", limits=("gate",))
    await claim(store, "mail")
    id = await put(store, "mail", "own", limits=("gate",))
    await store.heartbeat([], timedelta(seconds=15), present("host:1", "mail", "hidden"))
    everything = (await server.http.get(f"/v1/jobs/{id}/explain")).json()
    assert tells(everything["sentence"], theirs, running) == [str(theirs), str(running)]
    token = await server.token("read", **bound)
    async with server.client(token) as client:
        answer = await client.get(f"/v1/jobs/{id}/explain")
        assert answer.json()["reason"] == "limited", answer.text
        assert tells(answer, theirs, "hidden", "covert", "another") == []
        # What is theirs they may know, and how full it is.
        assert f"limit gate is full: 2 of 2 held by job {running}" in answer.json()["sentence"]
        assert answer.json()["details"]["limits"][0]["by"] == [str(running)]
    async with opened(connect(f"http://{token}@127.0.0.1:{server.port}")) as remote:
        ahead = await remote.ahead(id)
        assert ahead is not None
        (blocked,) = ahead.blocked
        assert (blocked.held, blocked.by) == (2, (running,))
        assert await remote.ahead(theirs) is None


@bound_to
async def test_a_queue_without_workers_does_not_name_those_that_have(server: Running, bound: dict[str, Any]) -> None:
    store = server.store
    id = await put(store, "mail", "own")
    await store.heartbeat([], timedelta(seconds=15), present("covert:1", "hidden", "backstage"))
    assert tells((await server.http.get(f"/v1/jobs/{id}/explain")), "hidden", "backstage") == ["hidden", "backstage"]
    async with server.client(await server.token("read", **bound)) as client:
        answer = await client.get(f"/v1/jobs/{id}/explain")
        assert answer.json()["reason"] == "no_worker"
        assert "no live worker serves queue mail: start one" in answer.json()["sentence"]
        assert tells(answer, "hidden", "backstage", "covert") == []


@bound_to
async def test_who_paused_it_is_told_to_whom_it_belongs(server: Running, bound: dict[str, Any]) -> None:
    store = server.store
    id = await put(store, "mail", "own")
    await store.pause("mail", by="queue-keeper")
    await store.pause("own", kind="tenant", by="tenant-keeper")
    await store.pause("sent", kind="task", by="task-keeper")
    keepers = ("queue-keeper", "tenant-keeper", "task-keeper")
    assert tells(await server.http.get(f"/v1/jobs/{id}/explain"), *keepers) == list(keepers)
    whose: dict[tuple[str, ...], list[str]] = {("tenant",): ["tenant-keeper"], ("queues",): ["queue-keeper"]}
    told = whose.get(tuple(bound), [])
    token = await server.token("read", "work", **bound)
    async with server.client(token) as client:
        answer = await client.get(f"/v1/jobs/{id}/explain")
        assert answer.json()["reason"] == "paused"
        assert tells(answer, *keepers) == told
        assert "queue mail is paused" in answer.json()["sentence"]
        assert tells(await client.get("/v1/pauses"), *keepers) == told
    async with opened(connect(f"http://{token}@127.0.0.1:{server.port}")) as remote:
        ahead = await remote.ahead(id)
        assert tells(f"{ahead} {await remote.pauses()}", *keepers) == told


@bound_to
async def test_jobs_ahead_are_counted_and_not_named(server: Running, bound: dict[str, Any]) -> None:
    store = server.store
    others = [await put(store, "mail", "covert", priority=5) for _ in range(3)]
    id = await put(store, "mail", "own")
    await store.heartbeat([], timedelta(seconds=15), present("host:1", "mail"))
    async with server.client(await server.token("read", **bound)) as client:
        answer = await client.get(f"/v1/jobs/{id}/explain")
        assert (answer.json()["reason"], answer.json()["details"]["ahead_of_higher_priority"]) == ("behind", 3)
        assert tells(answer, "covert", *others) == []


# ── what stands in for a job ─────────────────────────────────────────────────


async def test_a_key_of_others_names_no_job(server: Running) -> None:
    store = server.store
    key = Key("k", timedelta(hours=1), b"1" * 16)
    theirs = Batch(new_batch(), [NewJob("sent", b"\x92\x90\x80", Lane(queue="hidden", tenant="covert"), key=key)])
    await store.enqueue(theirs)
    token = await server.token("enqueue", "read", queues=("mail",))
    async with opened(connect(f"http://{token}@127.0.0.1:{server.port}")) as remote:
        for again in (key, Key("k", timedelta(hours=1), b"2" * 16)):
            mine = Batch(new_batch(), [NewJob("sent", b"\x92\x90\x80", Lane(queue="mail"), key=again)])
            with pytest.raises(StoreError) as caught:
                await remote.enqueue(mine)
            assert "(409)" in str(caught.value)
            assert tells(str(caught.value), job_id(theirs.id, 0)) == []
    async with server.client(token) as client:
        answer = await client.post("/v1/jobs", json={"task": "sent", "key": "k"})
        assert answer.status_code == 409
        assert tells(answer, job_id(theirs.id, 0)) == []


async def test_a_lock_of_others_names_no_job(store_url: str) -> None:
    app = make_app(store_url)

    @app.task(name="once", queue="mail", unique=Unique())
    async def once() -> None: ...

    async with running(app) as server:
        token = await server.token("enqueue", tenant="own")
        (await server.service.client.put(once.using(tenant="covert").job().job))
        async with opened(connect(f"http://{token}@127.0.0.1:{server.port}")) as remote:
            batch = Batch(new_batch(), [once.using(tenant="own").job().job])
            with pytest.raises(StoreError, match="409"):
                await remote.enqueue(batch)


# ── where tenants do not take turns ──────────────────────────────────────────


async def test_where_tenants_do_not_take_turns_lists_are_still_theirs(store_url: str) -> None:
    app = make_app(store_url)
    app.queue("unfair", fair="off")
    async with running(app) as server:
        made: dict[str, list[str]] = {"t1": [], "t2": []}
        for number in range(12):
            tenant = "t1" if number % 3 == 0 else "t2"
            asked = {"task": "echo", "queue": "unfair" if number % 2 else "default", "tenant": tenant}
            made[tenant].append((await server.http.post("/v1/jobs", json=asked)).json()["id"])
        mine = await server.token("read", "operate", "work", tenant="t1")
        narrow = await server.token("read", tenant="t1", queues=("unfair",))
        async with server.client(mine) as one, server.client(narrow) as two:
            assert (await _pages(one, limit=2)) == made["t1"][::-1]
            assert (await _pages(two, limit=1)) == made["t1"][1::2][::-1]
            assert (await _pages(one, queue="unfair")) == made["t1"][1::2][::-1]
            assert (await _pages(one, queue="default")) == made["t1"][::2][::-1]
            assert (await _pages(one, tenant="t2")) == []
            for id in made["t2"]:
                assert (await one.get(f"/v1/jobs/{id}")).status_code == 404
            for id in made["t1"]:
                assert (await one.get(f"/v1/jobs/{id}")).json()["tenant"] == "t1"
            # In such a queue claims do not see tenants, so a worker that is bound to a tenant gets no job of it.
            claimed = await one.post("/v1/claim", json={"queues": ["unfair"], "limit": 100})
            assert claimed.status_code == 204
            gone = await one.post("/v1/jobs/bulk", json={"action": "delete", "everything": True})
            assert (gone.json()["found"], gone.json()["changed"]) == (4, 4)
        left = await server.store.find(Filter(), limit=100)
        assert {str(job.id) for job in left.jobs} == set(made["t2"])


async def _pages(client: httpx2.AsyncClient, **query: Any) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    while True:
        page = (await client.get("/v1/jobs", params=query)).json()
        found += [each["id"] for each in page["items"]]
        if page["next"] is None:
            return found
        query["before"] = page["next"]
