"""Fixtures of the dashboard's tests: a real browser for each module, and a page that fails its test at an error of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page

from server.dashboard.browsing import launched, opened_page


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
