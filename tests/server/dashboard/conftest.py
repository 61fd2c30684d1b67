"""Fixtures of the dashboard's tests: a real browser for each module, and a page that fails its test at an error of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from server.dashboard.browsing import launched, opened_page
from server.dashboard.hands import PHONE, Hand, Keyboard, Thumb
from server.running import Running


@pytest.fixture
def store_name() -> str:
    """The dashboard reads only the API, and the server's own tests cover the stores."""
    return "memory"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """A browser without a window."""
    async with launched() as browser:
        yield browser


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """An empty page of the browser."""
    async with opened_page(browser) as page:
        yield page


@pytest.fixture(params=["keyboard", "phone"])
async def hand(request: pytest.FixtureRequest, browser: Browser, server: Running) -> AsyncIterator[Hand]:
    """The overview, in the hands of a person without a mouse."""
    phone = request.param == "phone"
    settings = {"viewport": PHONE, "has_touch": True, "is_mobile": True} if phone else {}
    async with opened_page(browser, **settings) as page:
        await page.goto(server.url)
        await expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
        yield Thumb(page) if phone else Keyboard(page)
