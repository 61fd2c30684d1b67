"""The page of jobs in a real browser: a job is found by its argument, and all jobs that match are moved."""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import Page, expect

from server.dashboard.browsing import axe, barriers
from server.running import Running


async def search(page: Page, text: str) -> None:
    await page.get_by_label("Find jobs").fill(text)
    await page.get_by_role("button", name="Find", exact=True).click()


async def test_a_job_is_found_by_its_argument(server: Running, page: Page) -> None:
    for number in range(60):
        await server.app.tasks["charge"].aenqueue(1000 + number, "acme")
    await server.app.tasks["login"].aenqueue("ann", "hunter2")
    await page.goto(f"{server.url}/#/jobs")
    await expect(page.get_by_role("row")).to_have_count(51)
    await search(page, "order=1007")
    rows = page.get_by_role("row")
    await expect(rows).to_have_count(2)
    await expect(page.locator("main")).to_contain_text("looked at 61 jobs")
    await expect(page.locator(".facets")).to_contain_text("ready1")
    await rows.nth(1).get_by_role("link", name="charge").click()
    await expect(page.locator("main")).to_contain_text("1007")
    await page.goto(f"{server.url}/#/jobs")
    await search(page, "hunter2")
    await expect(page.locator("main")).to_contain_text("No job matches.")


async def test_a_time_ago_becomes_a_chip(server: Running, page: Page) -> None:
    await server.app.tasks["add"].aenqueue(1)
    await page.goto(f"{server.url}/#/jobs")
    await search(page, "since:2h task:add")
    await expect(page.locator(".chip")).to_have_count(2)
    await expect(page.get_by_role("row")).to_have_count(2)
    await search(page, "until:2h")
    await expect(page.locator("main")).to_contain_text("No job matches.")


async def test_all_that_match_are_counted_and_cancelled(server: Running, page: Page) -> None:
    for number in range(70):
        await server.app.tasks["charge"].aenqueue(number, "acme")
    other = await server.app.tasks["charge"].aenqueue(7, "other")
    await page.goto(f"{server.url}/#/jobs?text=shop%3Dacme")
    await expect(page.get_by_role("row")).to_have_count(51)
    await page.get_by_label("Select all on this page").check()
    await page.get_by_role("button", name="Select all that match").click()
    bar = page.get_by_role("region", name="Selected jobs")
    await expect(bar).to_contain_text("All 70 that match")
    assert await barriers(page, axe()) == []
    await bar.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Cancel 70 jobs").click()
    await expect(page.get_by_role("status")).to_contain_text("70 of 70 jobs cancelled or asked to stop.")
    figures = {queue.queue: queue.ready for queue in (await server.store.stats()).queues}
    assert figures["billing"] == 1
    assert (await server.app.aget(other.id)) is not None


async def test_an_action_on_all_that_match_can_be_stopped(server: Running, page: Page) -> None:
    for number in range(1200):
        await server.app.tasks["charge"].aenqueue(number, "acme")
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: object) -> None:
        asked.set()
        await go_on.wait()
        await route.continue_()  # type: ignore[attr-defined]

    await page.goto(f"{server.url}/#/jobs?task=charge")
    await expect(page.get_by_role("row")).to_have_count(51)
    await page.get_by_label("Select all on this page").check()
    await page.get_by_role("button", name="Select all that match").click()
    bar = page.get_by_role("region", name="Selected jobs")
    await expect(bar).to_contain_text("All 1,200 that match")
    await page.route(re.compile("/v1/jobs/bulk"), hold)
    await bar.get_by_role("button", name="Delete…").click()
    await page.get_by_role("button", name="Delete 1,200 jobs").click()
    await asked.wait()
    await expect(bar.get_by_role("progressbar")).to_be_visible()
    await bar.get_by_role("button", name="Stop").click()
    go_on.set()
    await expect(page.get_by_role("status")).to_contain_text("Stopped: 500 of 500 jobs deleted.")
    assert [queue.ready for queue in (await server.store.stats()).queues if queue.queue == "billing"] == [700]
