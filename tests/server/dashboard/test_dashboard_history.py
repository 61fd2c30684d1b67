"""Charts and tables of history on the dashboard, with the history of real jobs."""

from __future__ import annotations

import re
import time
from typing import Any
from uuid import uuid4

from playwright.async_api import Browser, Locator, Page, expect

from headrace.model.histogram import Histogram
from headrace.model.rollup import ALL_QUEUES, HOUR, AttemptEnd, Rollup, usage_rollup
from headrace.model.usage import Usage
from server.dashboard.browsing import dead, opened_page, sign_in
from server.running import Running

WEEKS = 20 * 24 * 60
"""Minutes: older than the shorter range of the reports, and kept."""


async def work(server: Running) -> None:
    """Three charges that are done and two jobs that fail for good. A worker writes its history when it stops."""
    charges = [await server.app.tasks["charge"].aenqueue(number, "acme") for number in range(3)]
    async with server.app.worker(queues=["billing"]):
        for charge in charges:
            await charge.aresult(timeout=60)
    await dead(server, 2)


async def add_old(server: Running) -> None:
    """A task that ran weeks ago: four attempts of two seconds, of which one failed."""
    times = Histogram()
    times.add([2.0], 1)
    start = int(time.time()) // 60 - WEEKS
    await server.store.add_history(
        [
            Rollup(
                start=start,
                id=uuid4(),
                queue="old",
                task="import",
                end=end,
                count=count,
                wait=times.pack(),
                run=times.pack(),
                sent=0,
            )
            for end, count in ((AttemptEnd.DONE, 3), (AttemptEnd.FAILED, 1))
        ]
    )


async def figures(server: Running, **query: str) -> dict[str, dict[str, Any]]:
    """The points of one step that covers the whole time, by name."""
    answer = await server.http.get("/v1/history", params={"step": "all", **query})
    return {point["name"]: point for point in answer.json()["items"]}


def measured(seconds: float) -> str:
    """A time as the pages write it."""
    unit, size = next((unit, size) for unit, size in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)) if seconds < 1000 * size)
    return f"{seconds / size:.3g} {unit}"


def times(point: dict[str, Any]) -> list[str]:
    return [measured(point[what][share]) for what in ("wait", "run") for share in ("p50", "p95", "p99")]


def cells(page: Page, name: str) -> Locator:
    """The cells of the row of a task."""
    return page.get_by_role("region", name="Tasks").get_by_role("row", name=re.compile(f"^{name} ")).get_by_role("cell")


async def test_the_overview_shows_attempts_of_an_hour_a_day_and_a_week(server: Running, page: Page) -> None:
    await page.goto(f"{server.url}/#/overview?range=24h")
    main = page.locator("main")
    await expect(main).to_contain_text("No attempt ended in the last 24 hours.")
    await expect(page.get_by_role("img")).to_have_count(0)
    await work(server)
    await page.reload()
    for label, name, words in (("1 h", "1h", "the last hour"), ("7 d", "7d", "the last 7 days")):
        await page.get_by_role("navigation", name="Range").get_by_role("link", name=label).click()
        await expect(page).to_have_url(f"{server.url}/#/overview?range={name}")
        sentence = f"3 attempts were done and 2 failed in {words}."
        await expect(page.get_by_role("img", name=sentence)).to_be_visible()
        await page.get_by_role("button", name="As table").click()
        table = page.get_by_role("table", name=sentence)
        await expect(page.get_by_role("img")).to_have_count(0)
        # The jobs may have ended in two steps.
        rows = [
            [int(text) for text in await row.locator("td.n").all_inner_texts()]
            for row in await table.locator("tbody tr").all()
        ]
        assert [sum(column) for column in zip(*rows, strict=True)] == [3, 2]
        await page.get_by_role("button", name="As chart").click()
    await page.get_by_role("navigation", name="Range").get_by_role("link", name="live").click()
    await expect(page.get_by_role("img", name=re.compile("^Jobs per second now"))).to_be_visible()
    await expect(page).to_have_url(f"{server.url}/#/overview")


async def test_a_queue_shows_how_long_its_jobs_waited_and_ran(server: Running, page: Page) -> None:
    await work(server)
    await page.goto(f"{server.url}/#/queues/billing?range=1h")
    for title in ("Wait", "Run time"):
        image = page.get_by_role(
            "img", name=re.compile(f"^{title} of jobs in billing over the last hour: p50 at most ")
        )
        await expect(image).to_be_visible()
    point = (await figures(server, by="task", queue="billing", since="1h"))["charge"]
    await expect(cells(page, "charge")).to_have_text(["charge", "3", "0 %", *times(point)])
    await expect(cells(page, "fail")).to_have_count(0)
    await page.goto(f"{server.url}/#/queues/none?range=7d")
    await expect(page.locator("main")).to_contain_text("No attempt of this queue ended in the last 7 days.")
    await page.goto(f"{server.url}/#/queues/broken?range=7d")
    await expect(cells(page, "fail").nth(2)).to_have_text("100 %")


async def test_reports_show_which_tasks_fail_and_how_long_they_run(server: Running, page: Page) -> None:
    await page.goto(f"{server.url}/#/reports")
    await expect(page.get_by_role("heading", name="No history")).to_be_visible()
    await work(server)
    await add_old(server)
    await page.reload()
    names = page.get_by_role("region", name="Tasks").locator("td.full")
    await expect(names).to_have_text(["fail", "charge"])
    await expect(page.get_by_role("img", name=re.compile("^Failure share of fail .* at most 100 % in"))).to_be_visible()
    await page.get_by_role("link", name="30 d").click()
    await expect(names).to_have_text(["fail", "import", "charge"])
    points = await figures(server, by="task", since="30d")
    await expect(cells(page, "import")).to_have_text(["import", "4", "25 %", *times(points["import"])])
    await expect(cells(page, "fail")).to_have_text(["fail", "2", "100 %", *times(points["fail"])])
    await page.get_by_label("Sort by").select_option("run p95")
    await expect(names.first).to_have_text("import")
    await page.get_by_role("link", name="import").click()
    await expect(page).to_have_url(f"{server.url}/#/reports?range=30d&sort=run&task=import")
    chart = page.get_by_role("region", name="Run time")
    seconds = measured(points["import"]["run"]["p95"])
    await expect(chart.get_by_role("img", name=re.compile(f"p95 at most {seconds}"))).to_be_visible()
    await chart.get_by_role("button", name="As table").click()
    await expect(chart.locator("tbody td.n")).to_have_text([seconds] * 3)
    await page.reload()
    await expect(chart.get_by_role("img")).to_be_visible()


async def test_reports_show_the_use_of_slots_and_of_tenants(server: Running, page: Page) -> None:
    await work(server)
    minute = int(time.time()) // 60 - 26 * 60
    for queue, usage in (
        (ALL_QUEUES, Usage(busy=3 * 3600.0, available=12 * 3600.0)),
        ("old", Usage({"acme": 90 * 60.0, "": 30 * 60.0})),
    ):
        await server.store.add_history([usage_rollup(usage.pack(), minute=minute, span=HOUR, queue=queue)])
    await page.goto(f"{server.url}/#/reports")
    slots = page.get_by_role("region", name="Slots").locator("tbody tr")
    await expect(slots.first.locator("td.n")).to_have_text(["3h", "12h", "25 %"])
    tenants = page.get_by_role("region", name="Tenants").locator("tbody tr")
    await expect(tenants.nth(0).locator("td")).to_have_text(["acme", "1h 30m", "75 %"])
    await expect(tenants.nth(1).locator("td")).to_have_text(["no tenant", "30m", "25 %"])


async def test_a_token_reads_the_history_of_its_queues_and_a_tenant_reads_none(
    server: Running, browser: Browser, page: Page
) -> None:
    await work(server)
    await sign_in(page, server.url, await server.token("read", queues=["billing"]))
    await page.get_by_role("link", name="Reports").click()
    await expect(cells(page, "charge")).to_have_count(9)
    await expect(cells(page, "fail")).to_have_count(0)
    async with opened_page(browser) as other:
        await sign_in(other, server.url, await server.token("read", tenant="acme"))
        await expect(other.get_by_role("link", name="Reports")).to_have_count(0)
        await other.goto(f"{server.url}/#/reports")
        await expect(other.get_by_role("heading", name="No such page")).to_be_visible()
