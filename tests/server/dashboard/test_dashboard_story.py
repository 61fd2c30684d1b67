"""One night with the dashboard: a queue backs up, a job says why, the queue goes on, and a mended bug is replayed.

`DASHBOARD_PICTURES=docs/screenshots` writes the pictures of the documentation. Otherwise the test writes no file.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, ViewportSize, expect

from headrace import Headrace, JobDead, Limit, Retry
from server.dashboard.browsing import PICTURES, ROOT, opened_page, picture, use_theme
from server.running import Running, running

LARGEST = 150_000
"""Bytes of one picture in the repository."""
NAMES = ("overview-light", "overview-dark", "job-light", "dead-light", "tokens-light", "overview-phone")
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


@pytest.fixture
def shop(store_url: str) -> Shop:
    return Shop(store_url)


@pytest.fixture
async def server(shop: Shop) -> AsyncIterator[Running]:
    async with running(shop.app) as server:
        await shop.open_for_business()
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
        await page.get_by_role("link", name="Dead letters").first.click()
        await expect(page.locator(".bugs .ct")).to_have_text("40")
        shop.mended = True
        await page.get_by_role("button", name="Replay 10, then the rest").click()
        await expect(page.locator("main")).to_contain_text("watching the first 10: 0 done")
        await page.get_by_role("status").get_by_role("button", name="Close").click()
        await expect(page.locator(".bugs .ct")).to_have_text("30")
        await picture(page, "dead-light")
        async with shop.app.worker(queues=["mail"]):
            await expect(page.get_by_role("heading", name="No dead letters")).to_be_visible()
            await expect(page.get_by_role("row", name=re.compile("40 jobs made ready"))).to_contain_text("done")
        await page.get_by_role("link", name="Tokens").first.click()
        await expect(page.get_by_role("row", name=re.compile("acme-support"))).to_be_visible()
        await picture(page, "tokens-light")


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_shown(name: str) -> None:
    path = ROOT / "docs" / "screenshots" / f"{name}.png"
    assert path.stat().st_size <= LARGEST, f"write it again with {PICTURES}"
    pages = [ROOT / "README.md", ROOT / "docs" / "operate" / "dashboard.md"]
    assert any(f"screenshots/{name}.png" in page.read_text(encoding="utf-8") for page in pages)
    assert {file.stem for file in Path(path.parent).glob("*.png")} == set(NAMES)
