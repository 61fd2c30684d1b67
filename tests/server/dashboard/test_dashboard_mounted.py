"""The dashboard below a prefix of a FastAPI and of a Django application, in a real browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import httpx2
import pytest
from playwright.async_api import Page, expect

from headrace import Headrace
from headrace.operate import tokens
from headrace.store import connect
from server.dashboard.browsing import sign_in

SITE = Path(__file__).parent / "mounted.py"


@pytest.fixture
def store_name() -> str:
    """One that two processes can share."""
    return "sqlite"


@pytest.fixture(params=["fastapi", "django"])
async def site(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[str]:
    """The address of the site."""
    command = [sys.executable, str(SITE), str(request.param), store_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220  # it starts at once
        assert process.stdout is not None
        try:
            yield (await anyio.to_thread.run_sync(process.stdout.readline)).strip()
        finally:
            process.terminate()
            await anyio.to_thread.run_sync(process.wait)


async def test_sign_in_and_see_a_job(site: str, store_url: str, page: Page) -> None:
    store = connect(store_url)
    await store.open()
    try:
        token, _ = await tokens.create(store, "ann", scopes=("operate", "read"))
    finally:
        await store.close()
    async with Headrace(store_url) as app:

        @app.task(name="greet")
        async def greet(name: str) -> str:
            return f"hello {name}"

        job = await greet.aenqueue("Ada")
    async with httpx2.AsyncClient(base_url=site, timeout=60) as http:
        assert (await http.get("/hello")).json() == "hello"
    await sign_in(page, f"{site}/queue/", token)
    await page.get_by_role("link", name="Jobs").first.click()
    await page.get_by_role("link", name="greet").click()
    await expect(page.locator("main")).to_contain_text("Ada")
    assert page.url.startswith(f"{site}/queue/")
    assert page.url.endswith(str(job.id))
    # The session belongs to the prefix: a reload stays signed in.
    await page.reload()
    await expect(page.locator("main")).to_contain_text("Ada")
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Cancel it").click()
    await expect(page.get_by_role("heading", name="greet cancelled")).to_be_visible()
