"""The page of workers in a real browser: what each runs, quiet and back, and a drain."""

from __future__ import annotations

import asyncio

from playwright.async_api import Page, expect

from headrace import Headrace
from server.dashboard.browsing import axe, barriers
from server.running import Running


async def test_a_worker_is_quiet_for_a_while_and_then_drains(server: Running, app: Headrace, page: Page) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    @app.task(name="gated")
    async def gated() -> None:
        started.set()
        await gate.wait()

    async with app.worker(heartbeat="100ms") as worker:
        job = await gated.aenqueue()
        await started.wait()
        await page.goto(f"{server.url}/#/workers")
        card = page.get_by_role("article", name=worker.name)
        await expect(card.get_by_role("link", name="gated")).to_be_visible()
        await card.get_by_role("button", name="Quiet").click()
        await expect(page.get_by_role("status")).to_contain_text("claims nothing more")
        await expect(card).to_contain_text("quiet by local")
        assert await barriers(page, axe()) == []
        later = await app.tasks["add"].aenqueue(1)
        gate.set()
        await job.aresult(timeout=60)
        await card.get_by_role("button", name="Resume").click()
        assert await later.aresult(timeout=60) == 1
        await expect(card.get_by_role("button", name="Quiet")).to_be_visible()
        await card.get_by_role("button", name="Drain…").click()
        await page.get_by_role("button", name=f"Drain {worker.name}").click()
        await expect(page.get_by_role("heading", name="No worker")).to_be_visible()
        assert worker.dismissed.is_set()


async def test_a_reader_has_no_buttons(server: Running, app: Headrace, page: Page) -> None:
    token = await server.token("read")
    async with app.worker(heartbeat="100ms") as worker:
        await page.goto(f"{server.url}/#/workers")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        card = page.get_by_role("article", name=worker.name)
        await expect(card).to_contain_text("busy")
        await expect(card.get_by_role("button")).to_have_count(0)
