"""One night with the dashboard: a queue backs up, a job says why, the queue goes on, and a mended bug is replayed. And one order,
which is held by a dead job of a group.

`DASHBOARD_PICTURES=docs/screenshots` writes the pictures of the documentation. Otherwise the test writes no file.
"""

from __future__ import annotations

import asyncio
import linecache
import math
import re
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.async_api import Browser, ViewportSize, expect

from headrace import Handle, Headrace, JobDead, Limit, Retry, step
from headrace.model.histogram import Histogram
from headrace.model.rollup import HOUR, AttemptEnd, Rollup
from server.dashboard.browsing import PICTURES, ROOT, opened_page, picture, use_theme
from server.running import Running, running

LARGEST = 150_000
"""Bytes of one picture in the repository."""
NAMES = (
    "overview-light",
    "overview-dark",
    "job-light",
    "dead-light",
    "tokens-light",
    "overview-phone",
    "reports-light",
    "workers-light",
    "workflow-light",
    "workflow-dark",
    "steps-light",
    "groups-light",
)
SCREEN: ViewportSize = {"width": 1280, "height": 800}


SOURCE = """\
async def invoice(order: int) -> str:
    customer = await customer_of(order)
    return f"Invoice {order}, VAT {customer['vat_id']}"
"""
FILE = "/app/shop/mail.py"
"""The name of a file that tracebacks have, in pictures on every machine."""


class Shop:
    """A shop whose invoices have a bug."""

    def __init__(self, url: str) -> None:
        self.app = Headrace(url)
        self.mended = False
        names: dict[str, Any] = {"customer_of": self._customer_of}
        lines = [str(line) for line in SOURCE.splitlines(keepends=True)]
        linecache.cache[FILE] = (len(SOURCE), None, lines, FILE)
        exec(compile(SOURCE, FILE, "exec"), names)
        self.app.task(name="mail.invoice", queue="mail", retry=Retry(max_attempts=1))(names["invoice"])
        self.app.task(name="billing.charge", queue="billing", limits=[Limit("stripe", rate="1000/s")])(self._charge)
        self.app.task(name="images.resize", queue="images")(self._resize)

    async def _customer_of(self, order: int) -> dict[str, str]:
        return {"vat_id": f"DE{order:09}"} if self.mended else {}

    async def _charge(self, order: int, shop: str) -> int:
        return order

    async def _resize(self, image: str) -> str:
        return image

    async def open_for_business(self) -> None:
        """Three hundred charges, and forty invoices that die of the bug."""
        charges = [
            await self.app.tasks["billing.charge"].using(tenant=shop).aenqueue(number, shop)
            for number in range(100)
            for shop in ("acme", "globex", "initech")
        ]
        invoices = [await self.app.tasks["mail.invoice"].aenqueue(number) for number in range(40)]
        async with self.app.worker():
            for charge in charges:
                await charge.aresult(timeout=60)
            for invoice in invoices:
                with pytest.raises(JobDead):
                    await invoice.aresult(timeout=60)


def last_week(now: datetime) -> Iterator[Rollup]:
    """What workers have counted: more by day than by night, and failures since yesterday."""
    hour = int(now.timestamp()) // 3600
    for ago in range(2, 7 * 24):
        by_day = 1 + math.sin((hour - ago) % 24 / 24 * math.tau - 2)
        for queue, task, seconds in (("mail", "mail.invoice", 0.08), ("billing", "billing.charge", 0.4)):
            ends = {AttemptEnd.DONE: int(40 + 400 * by_day)}
            if task == "mail.invoice" and ago < 20:
                ends[AttemptEnd.DEAD] = int(1 + 9 * by_day)
            for end, count in ends.items():
                times = Histogram()
                times.add([seconds * (1 + by_day) * 1.1 ** (place % 9) for place in range(max(1, count // 10))], 10)
                yield Rollup(
                    start=(hour - ago) * 60,
                    id=uuid4(),
                    span=HOUR,
                    queue=queue,
                    task=task,
                    end=end,
                    count=count,
                    wait=times.pack(),
                    run=times.pack(),
                    sent=0,
                )


@pytest.fixture
def shop(store_url: str) -> Shop:
    return Shop(store_url)


@pytest.fixture
async def server(shop: Shop) -> AsyncIterator[Running]:
    async with running(shop.app) as server:
        await shop.open_for_business()
        await server.store.add_history([*last_week(await server.store.now())])
        yield server


async def test_one_night(server: Running, shop: Shop, browser: Browser) -> None:
    token = await server.token("admin", name="ann")
    await server.token("enqueue", name="website")
    await server.token("read", name="acme-support", tenant="acme")
    async with opened_page(browser, viewport=SCREEN, color_scheme="light") as page:
        await page.goto(server.url)
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()

        # A queue backs up.
        for number in range(24):
            await shop.app.tasks["images.resize"].using(tenant="acme").aenqueue(f"photo-{number}.jpg")
        async with shop.app.worker(concurrency=24, queues=["billing", "mail"]):
            await page.get_by_role("link", name="Queues", exact=False).first.click()
            await page.get_by_role("row", name=re.compile("images")).get_by_role("button", name="Pause").click()
            await expect(page.get_by_role("status")).to_contain_text("images is paused")
            await page.get_by_role("link", name="Overview").first.click()
            verdict = page.get_by_role("list", name="What needs an operator")
            await expect(verdict).to_contain_text("No worker serves images: 24 waiting")
            await expect(verdict).to_contain_text("images is paused by ann, 24 waiting")
            await expect(verdict).to_contain_text("40 jobs died of a new bug")
            await expect(page.locator(".stats")).to_contain_text("slots")
            await page.get_by_role("status").get_by_role("button", name="Close").click()
            await picture(page, "overview-light")
            await page.set_viewport_size({"width": 375, "height": 800})
            await picture(page, "overview-phone")
            await page.set_viewport_size(SCREEN)
            await use_theme(page, "dark")
            await expect(verdict).to_contain_text("images is paused by ann, 24 waiting")
            await expect(page.locator(".stats")).to_contain_text("slots")
            await picture(page, "overview-dark")
            await use_theme(page, "light")

            await page.get_by_role("link", name="Workers").first.click()
            await expect(page.locator("main")).to_contain_text(re.compile(r"Memory\s*[1-9][0-9,]* MB"))
            await picture(page, "workers-light")
            await page.get_by_role("link", name="Overview").first.click()

        # A job says why it waits, and the button that helps.
        await verdict.get_by_role("link", name="See jobs").click()
        await page.get_by_role("link", name="images.resize").first.click()
        why = page.locator(".why")
        await expect(why).to_contain_text("queue images is paused by ann")
        await picture(page, "job-light")
        async with shop.app.worker(queues=["images"]):
            await page.get_by_role("button", name="Resume queue images").click()
            await expect(why).to_contain_text("done: it ended well")

        # The bug is mended: a few jobs first, then the rest.
        await page.get_by_role("link", name="Overview").first.click()
        await verdict.get_by_role("link", name="See bug").click()
        await expect(page.locator(".bugs .ct")).to_have_text("40")
        shop.mended = True
        await page.get_by_role("button", name="Replay 10, then the rest").click()
        await expect(page.locator("main")).to_contain_text("watching the first 10: 0 done")
        await page.get_by_role("status").get_by_role("button", name="Close").click()
        await expect(page.locator(".bugs .ct")).to_have_text("30")
        await expect(page.get_by_role("img", name="30 died in the last 24 hours")).to_be_visible()
        await picture(page, "dead-light")
        async with shop.app.worker(queues=["mail"]):
            await expect(page.get_by_role("heading", name="No dead letters")).to_be_visible()
            await expect(page.get_by_role("row", name=re.compile("40 jobs made ready"))).to_contain_text("done")
        await page.get_by_role("link", name="Overview").first.click()
        await expect(page.get_by_text("Nothing needs you.")).to_be_visible()
        await page.get_by_role("link", name="Reports").first.click()
        await expect(page.get_by_role("region", name="Tasks")).to_contain_text("mail.invoice")
        await expect(page.get_by_role("img").first).to_be_visible()
        await picture(page, "reports-light")
        await page.get_by_role("link", name="Tokens").first.click()
        await expect(page.get_by_role("row", name=re.compile("acme-support"))).to_be_visible()
        await picture(page, "tokens-light")


class Warehouse:
    """An order of 240 items: one is not where it should be, 12 are being picked, and a person has to approve the payout."""

    def __init__(self, url: str) -> None:
        self.app = app = Headrace(url)
        self.found = False
        self.at_the_end = asyncio.Event()
        self.approved = app.event("payout.approved", str)
        self.place = app.task(name="orders.place")(self._same)
        self.charge = app.task(name="billing.charge")(self._same)
        self.fulfil = app.task(name="orders.fulfil")(self._fulfil)
        self.receipt = app.task(name="mail.receipt")(self._same)
        self.pick = app.task(name="stock.pick", queue="stock", retry=Retry(max_attempts=1))(self._pick)
        self.pack = app.task(name="stock.pack")(self._same)
        self.ship = app.task(name="orders.ship")(self._same)

    async def _same(self, order: int) -> int:
        return order

    async def _fulfil(self, order: int) -> int:
        await step.using(name="load_order")(self._load, order)
        await step.using(name="book_courier")(str, "dhl")
        await self.approved.wait(order, timeout="3d")
        return order

    async def _load(self, order: int) -> dict[str, int]:
        return {"order": order, "items": 240}

    async def _pick(self, item: int) -> int:
        if item == 171 and not self.found:
            raise LookupError("bin A-17 is empty")
        if item > 171:
            await self.at_the_end.wait()
        return item

    async def enqueue(self) -> Handle[int]:
        """The job that ships the order."""
        charged = await (await self.place.aenqueue(88213)).athen(self.charge)
        fulfilled = await charged.athen(self.fulfil)
        await fulfilled.athen(self.receipt)
        async with self.app.open_group("pick items 88213") as items:
            await items.aenqueue_many(self.pick.job(item) for item in range(240))
        packed = await self.pack.using(after=items).aenqueue(88213)
        return await self.ship.using(after=[fulfilled, packed]).aenqueue(88213)

    async def other_groups(self) -> None:
        """One that is done, and one of which a part was cancelled."""
        async with self.app.open_group("import catalogue") as rows:
            jobs = await rows.aenqueue_many(self.place.job(row) for row in range(120))
        for job in jobs:
            await job.aresult(timeout=60)
        async with self.app.open_group("thumbnails", tenant="acme") as rows:
            jobs = await rows.aenqueue_many(self.place.using(delay="1h").job(row) for row in range(40))
        for job in jobs[:15]:
            await job.acancel()


async def test_one_order(store_url: str, browser: Browser) -> None:
    warehouse = Warehouse(store_url)
    app, settings = warehouse.app, {"viewport": SCREEN, "color_scheme": "light"}
    async with (
        running(app) as server,
        app.worker(queues=["default"]),
        app.worker(queues=["stock"], concurrency=12),
        app.open_group("newsletter November") as readers,
        opened_page(browser, **settings) as page,
    ):
        await readers.aenqueue_many(warehouse.receipt.using(delay="1h").job(reader) for reader in range(300))
        await warehouse.other_groups()
        last = await warehouse.enqueue()
        await page.goto(server.url)
        await page.get_by_role("link", name="Groups").first.click()
        row = page.get_by_role("row", name=re.compile("pick items"))
        await expect(row.get_by_role("img")).to_have_accessible_name("171 of 240 done, 1 dead, 0 cancelled, 68 to go")
        await expect(page.get_by_role("row")).to_have_count(5)
        await picture(page, "groups-light")

        # A dead job of the group holds what follows, and a person has not answered.
        await page.goto(f"{server.url}/#/jobs/{last.id}")
        graph = page.get_by_role("list", name="Workflow").get_by_role("listitem")
        await expect(graph).to_have_count(8)
        await expect(graph.filter(has_text="orders.fulfil").first).to_contain_text("suspended")
        await expect(page.locator(".why")).to_contain_text("of group 'pick items 88213' is dead")
        await picture(page, "workflow-light")
        await use_theme(page, "dark")
        await expect(graph).to_have_count(8)
        await picture(page, "workflow-dark")
        await use_theme(page, "light")
        await graph.get_by_role("link", name=re.compile("^orders.fulfil")).click()
        await expect(page.get_by_role("list", name="Steps").get_by_role("listitem")).to_have_count(4)
        await expect(graph).to_have_count(8)
        await page.get_by_role("list", name="Steps").scroll_into_view_if_needed()
        await picture(page, "steps-light")

        # The item is found, the person answers, and the order ends green.
        await page.go_back()
        warehouse.found = True
        warehouse.at_the_end.set()
        await page.get_by_role("button", name="Replay what holds this").click()
        await warehouse.approved.asignal(88213, "ann")
        await expect(page.locator(".why")).to_contain_text("done: it ended well")
        await expect(graph.filter(has_text="240 of 240 done")).to_have_count(1)
        await expect(page.locator(".flow .w-dead")).to_have_count(0)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_shown(name: str) -> None:
    path = ROOT / "docs" / "screenshots" / f"{name}.png"
    assert path.stat().st_size <= LARGEST, f"write it again with {PICTURES}"
    names = ("operate/dashboard.md", "operate/history.md", "guide/workflows.md", "guide/steps.md")
    pages = [ROOT / "README.md", *(ROOT / "docs" / page for page in names)]
    assert any(f"screenshots/{name}.png" in page.read_text(encoding="utf-8") for page in pages)
    assert {file.stem for file in Path(path.parent).glob("*.png")} == set(NAMES)
