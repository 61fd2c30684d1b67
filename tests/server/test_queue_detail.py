"""One queue in detail, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from headrace import Headrace, Limit
from headrace.cli.root import root
from headrace.operate import queue_detail
from server.running import Running, make_app


@pytest.fixture
def app(store_url: str) -> Headrace:
    app = make_app(store_url)
    app.queue("billing", weights={"acme": 3}, max_length=100)

    def shop_of(order: int, shop: str) -> str:
        return shop

    @app.task(name="refund", queue="billing", tenant=shop_of, limits=[Limit("stripe", concurrency=50)])
    async def refund(order: int, shop: str) -> None: ...

    return app


async def show(server: Running, name: str = "billing") -> dict[str, Any]:
    answer = await server.http.get(f"/v1/queues/{name}")
    assert answer.is_success, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def test_backlog_by_tenant_and_task(server: Running, app: Headrace) -> None:
    for number, shop in enumerate(("acme", "acme", "other", "acme")):
        await app.tasks["charge"].aenqueue(number, shop)
    await app.tasks["refund"].aenqueue(1, "other")
    await server.http.post("/v1/pauses", json={"tenant": "other"})
    view = await show(server)
    assert (view["ready"], view["fair"], view["max_length"], view["workers"]) == (5, "round_robin", 100, 0)
    rows = [(one["tenant"], one["ready"], one["running"], one["weight"], one["paused"]) for one in view["tenants"]]
    assert rows == [("acme", 3, 0, 3, False), ("other", 2, 0, 1, True)]
    assert all(one["oldest"] >= 0 for one in view["tenants"])
    assert [(one["task"], one["ready"]) for one in view["tasks"]] == [("charge", 4), ("refund", 1)]
    assert (view["limits"], view["whole"], view["all_tenants"]) == (["stripe"], True, 2)


async def test_the_share_of_tenants_in_what_runs(server: Running, app: Headrace) -> None:
    started, gate = asyncio.Semaphore(0), asyncio.Event()

    def shop_of(shop: str) -> str:
        return shop

    @app.task(name="gated", queue="billing", tenant=shop_of)
    async def gated(shop: str) -> None:
        started.release()
        await gate.wait()

    jobs = [await gated.aenqueue(shop) for shop in ("acme", "acme", "acme", "other")]
    async with app.worker(queues=["billing"]):
        async with asyncio.timeout(60):
            for _ in jobs:
                await started.acquire()
        view = await show(server)
        assert [(one["tenant"], one["share"]) for one in view["tenants"]] == [("acme", 0.75), ("other", 0.25)]
        gate.set()
        for job in jobs:
            await job.aresult(timeout=60)


async def test_an_empty_and_an_unknown_queue(server: Running) -> None:
    assert (await show(server))["tenants"] == []
    assert (await server.http.get("/v1/queues/nothing")).status_code == 404


async def test_a_bound_token_sees_its_own_queue_without_limits(server: Running, app: Headrace) -> None:
    await app.tasks["refund"].aenqueue(1, "other")
    async with server.client(await server.token("read", queues=["billing"])) as client:
        assert (await client.get("/v1/queues/billing")).json()["limits"] == []
        assert (await client.get("/v1/queues/default")).status_code == 404
    async with server.client(await server.token("read", tenant="acme")) as client:
        assert (await client.get("/v1/queues/billing")).status_code == 404


async def test_a_large_queue_is_read_in_part(server: Running, app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_detail, "LOOK", 3)
    monkeypatch.setattr(queue_detail, "TOP", 2)
    for number in range(5):
        await app.tasks["charge"].aenqueue(number, f"shop{number}")
    view = await show(server)
    assert (view["whole"], len(view["tenants"]), view["all_tenants"]) == (False, 2, 5)
    assert [one["ready"] for one in view["tasks"]] == [3]


@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_the_command_line_shows_a_queue(server: Running, app: Headrace) -> None:
    await app.tasks["refund"].aenqueue(1, "acme")
    shown = await asyncio.to_thread(CliRunner().invoke, root, ["queues", "show", "billing", "--url", app.settings.url])
    assert shown.exit_code == 0, shown.output
    assert "acme" in shown.output
    assert "refund" in shown.output
    assert "limits: stripe" in shown.output
