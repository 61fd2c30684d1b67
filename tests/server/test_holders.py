"""Which running jobs hold the units of a limit, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from headrace import Headrace, Limit
from headrace.cli.root import root
from headrace.operate import holders
from server.running import Running, make_app


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    """One that the command line can share."""
    return str(request.param)


class Gate:
    """A task with limits whose jobs run until the gate is opened."""

    def __init__(self, app: Headrace) -> None:
        self.started = asyncio.Semaphore(0)
        self.open = asyncio.Event()

        def shop_of(order: int, shop: str) -> str:
            return shop

        @app.task(name="pay", limits=[Limit("stripe", concurrency=3), Limit("shop", concurrency=2, key=shop_of)])
        async def pay(order: int, shop: str) -> None:
            self.started.release()
            await self.open.wait()

        self.pay = pay


@pytest.fixture
def app(store_url: str) -> Headrace:
    return make_app(store_url)


@pytest.fixture
def gate(app: Headrace) -> Gate:
    return Gate(app)


async def held(server: Running, name: str) -> dict[str, Any]:
    answer = await server.http.get(f"/v1/limits/{name}/holders")
    assert answer.is_success, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_holders_of_a_limit_and_of_one_key(gate: Gate, server: Running, app: Headrace) -> None:
    async with app.worker():
        jobs = [await gate.pay.aenqueue(number, shop) for number, shop in enumerate(("acme", "acme", "other", "acme"))]
        async with asyncio.timeout(60):
            for _ in range(3):
                await gate.started.acquire()
        running = {str(job.id) for job in jobs[:3]}
        page = await held(server, "stripe")
        assert {one["id"] for one in page["items"]} == running
        assert (page["held"], page["next"]) == ({"stripe": 3}, None)
        assert {one["task"] for one in page["items"]} == {"pay"}
        assert all(one["worker"] and one["since"] and one["units"] == 1 for one in page["items"])
        assert (await held(server, "shop"))["held"] == {"shop:acme": 2, "shop:other": 1}
        assert [one["id"] for one in (await held(server, "shop:other"))["items"]] == [str(jobs[2].id)]
        shown = await asyncio.to_thread(CliRunner().invoke, root, ["limits", "show", "shop", "--url", app.settings.url])
        assert "units held: shop:acme 2, shop:other 1" in shown.output
        assert shown.output.count("pay") == 3
        gate.open.set()
        for job in jobs:
            await job.aresult(timeout=60)
        assert (await held(server, "stripe"))["items"] == []


async def test_a_limit_that_is_not_there(server: Running) -> None:
    answer = await server.http.get("/v1/limits/nothing/holders")
    assert (answer.status_code, answer.json()["code"]) == (404, "limit_not_found")


async def test_a_call_reads_a_bounded_number_of_running_jobs(gate: Gate, server: Running, app: Headrace) -> None:
    async with app.worker(concurrency=10):
        jobs = [await gate.pay.aenqueue(number, "acme") for number in range(2)]
        async with asyncio.timeout(60):
            for _ in jobs:
                await gate.started.acquire()
        first = await holders.holders(server.store, "stripe", look=1)
        assert ([one.id for one in first.items], first.looked_at) == ([jobs[1].id], 1)
        rest = await holders.holders(server.store, "stripe", before=first.next, look=5)
        assert ([one.id for one in rest.items], rest.next) == ([jobs[0].id], None)
        gate.open.set()
