"""The pages of one queue and of limits in a real browser, while jobs run."""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import Page, expect

from headrace import Headrace, Limit
from server.dashboard.browsing import axe, barriers
from server.running import Running


async def test_a_backlog_leads_to_the_job_that_holds_the_limit(server: Running, app: Headrace, page: Page) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    def shop_of(order: int, shop: str) -> str:
        return shop

    @app.task(name="pay", queue="billing", tenant=shop_of, limits=[Limit("stripe", concurrency=1)])
    async def pay(order: int, shop: str) -> None:
        started.set()
        await gate.wait()

    jobs = [await pay.aenqueue(number, shop) for number, shop in enumerate(("acme", "acme", "other"))]
    async with app.worker(queues=["billing"]):
        await started.wait()
        await page.goto(f"{server.url}/#/queues/billing")
        await expect(page.get_by_role("row", name=re.compile("acme"))).to_contain_text("100 %")
        await expect(page.get_by_role("row", name=re.compile("^pay"))).to_contain_text("2")
        assert await barriers(page, axe()) == []
        await page.get_by_role("region", name="State of billing").get_by_role("link", name="stripe").click()
        holders = page.get_by_role("region", name="Holders of stripe")
        await expect(holders.get_by_role("row")).to_have_count(2)
        assert await barriers(page, axe()) == []
        await holders.get_by_role("link", name="pay").click()
        await expect(page.locator("main")).to_contain_text("acme")
        gate.set()
        for job in jobs:
            await job.aresult(timeout=60)


async def test_the_overview_says_what_changed(server: Running, page: Page) -> None:
    await server.http.post("/v1/queues/mail/pause")
    await page.goto(server.url)
    changes = page.get_by_role("region", name="Changes of the last hour")
    await expect(changes.get_by_role("row", name=re.compile("pause queue"))).to_contain_text("mail")
    await changes.get_by_role("link", name="pause queue").click()
    await expect(page.get_by_role("heading", name="mail")).to_be_visible()


async def test_figures_come_by_the_stream_and_are_not_asked_for(server: Running, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{server.url}/#/queues")
    async with asyncio.timeout(60):
        while True:  # until the stream has brought its first figures
            async with page.expect_request(re.compile("/v1/workers")):
                asked.clear()
            async with page.expect_request(re.compile("/v1/workers")):
                pass
            if not any(url.endswith("/v1/queues") for url in asked):
                break
    waiting = page.get_by_role("row", name=re.compile("billing")).locator("[data-l=waiting]")
    for number in (1, 2):
        await server.app.tasks["charge"].aenqueue(number, "acme")
        await expect(waiting).to_have_text(str(number))
    assert [url for url in asked if url.endswith("/v1/queues")] == []
