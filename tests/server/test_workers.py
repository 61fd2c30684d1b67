"""Orders to workers over HTTP: which token may give them, and that they reach remote workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from msgspec.structs import replace

from conformance.test_workers import presence
from headrace import Headrace
from headrace.model.lease import ORDERS, Presence, WorkerOrder
from headrace.operate.operations import Operations
from headrace.store import connect
from headrace.store.audit import Audit
from server.running import Running

TTL = timedelta(minutes=1)


async def worker_of(server: Running, *queues: str) -> Presence:
    worker = replace(presence(), queues=queues)
    await server.store.heartbeat([], TTL, worker)
    return worker


async def ordered(server: Running, worker: Presence) -> str | None:
    answer = (await server.store.heartbeat([], TTL, worker)).order
    return msgspec.json.decode(answer, type=WorkerOrder).kind if answer else None


async def test_an_order_stands_until_it_is_taken_back(server: Running) -> None:
    worker = await worker_of(server, "mail")
    answer = await server.http.post(f"/v1/workers/{worker.id}/quiet")
    assert answer.json() == {"id": str(worker.id), "name": worker.name, "order": "quiet"}
    assert await ordered(server, worker) == "quiet"
    [view] = (await server.http.get("/v1/workers")).json()["items"]
    assert (view["order"], view["ordered_by"]) == ("quiet", "local")
    assert view["memory"] == worker.memory == 5 << 30
    metrics = (await server.http.get("/metrics")).text
    assert f"headrace_memory_bytes {5 << 30}\n" in metrics
    assert f"headrace_memory_bytes_most {5 << 30}\n" in metrics
    answer = await server.http.post(f"/v1/workers/{worker.id}/resume")
    assert answer.json()["order"] is None
    assert await ordered(server, worker) is None
    await server.http.post(f"/v1/workers/{worker.id}/drain")
    # A worker that drains may have left already, so nothing takes a drain back.
    assert (await server.http.post(f"/v1/workers/{worker.id}/resume")).json()["order"] == "drain"


async def test_an_unknown_worker_is_not_found(server: Running) -> None:
    for id, status in ((str(uuid4()), 404), ("host:1", 422)):
        assert (await server.http.post(f"/v1/workers/{id}/quiet")).status_code == status
    assert await server.store.records(ORDERS) == {}


@pytest.mark.parametrize(
    ("bound", "status"),
    [
        ({"queues": ["mail"]}, 200),
        ({"queues": ["mail", "other"]}, 200),
        ({"queues": ["other"]}, 404),
        ({"tenant": "acme"}, 404),
    ],
)
async def test_a_bound_token_orders_only_workers_whose_queues_it_sees(
    server: Running, bound: dict[str, Any], status: int
) -> None:
    worker, both = await worker_of(server, "mail"), await worker_of(server, "mail", "billing")
    async with server.client(await server.token("operate", "read", **bound)) as client:
        assert (await client.post(f"/v1/workers/{worker.id}/quiet")).status_code == status
        assert (await client.post(f"/v1/workers/{both.id}/drain")).status_code == 404


async def test_an_operator_with_a_remote_store_gives_orders_under_the_name_of_its_token(server: Running) -> None:
    worker = await worker_of(server, "mail")
    token = await server.token("operate", "read", name="ann")
    remote = connect(f"http://{token}@127.0.0.1:{server.port}")
    await remote.open()
    try:
        assert await Operations(remote, actor="another name").workers.order(worker.id, "quiet") is not None
    finally:
        await remote.close()
    [order] = [msgspec.json.decode(one.value) for one in (await server.store.records(ORDERS)).values()]
    assert (order["kind"], order["by"]) == ("quiet", "ann")
    [entry] = await Audit(server.store).read(await server.store.now() - timedelta(days=1))
    assert (entry.who, entry.action, entry.what) == ("ann", "workers.quiet", worker.name)


async def test_a_worker_token_can_neither_read_nor_write_orders(server: Running) -> None:
    await worker_of(server, "mail")
    token = await server.token("work", "read")
    remote = connect(f"http://{token}@127.0.0.1:{server.port}")
    await remote.open()
    try:
        with pytest.raises(Exception, match="no records of kind 'orders'"):
            await remote.records(ORDERS)
        with pytest.raises(Exception, match="no records of kind 'orders'"):
            await remote.record(ORDERS, str(uuid4()), b"{}", None)
    finally:
        await remote.close()


@pytest.mark.parametrize("bound", [{}, {"queues": ["default"]}])
async def test_an_order_reaches_a_remote_worker(server: Running, bound: dict[str, Any]) -> None:
    token = await server.token("work", "enqueue", "read", **bound)
    app = Headrace(f"http://{token}@127.0.0.1:{server.port}", heartbeat="100ms")

    @app.task(name="add")
    async def add(a: int, b: int = 0) -> int:
        return a + b

    async with app.worker(queues=["default"]) as worker, asyncio.timeout(60):
        assert await (await add.aenqueue(1)).aresult(timeout=60) == 1
        while not (known := await server.store.workers()):  # noqa: ASYNC110  # the first heartbeat has no event here
            await asyncio.sleep(0.01)
        answer = await server.http.post(
            f"/v1/workers/{known[0].id}/drain",
            headers={"Authorization": f"Bearer {await server.token('operate', 'read')}"},
        )
        assert answer.is_success, answer.text
        await worker.dismissed.wait()
        while await server.store.workers():  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.01)
    await app.aclose()
