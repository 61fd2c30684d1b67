"""The dashboard in a real browser, used as a person uses it: reading, pausing, replaying, signing in, with the keyboard."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from headrace import JobDead
from server.running import Running

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
PAGES = ["overview", "queues", "jobs", "dead", "schedules", "workers", "limits"]
PATIENCE = 60_000
"""Milliseconds that an expectation waits on a loaded machine. It ends as soon as it holds."""


@pytest.fixture
def store_name() -> str:
    return "memory"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    async with async_playwright() as playwright:
        # Root, as in a container, has no sandbox.
        found = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        await found.close()


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page that fails the test at an error of its own, and at everything that the content security policy refuses."""
    context = await browser.new_context()
    context.set_default_timeout(PATIENCE)
    found = await context.new_page()
    errors: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # A browser reports every answer that is an error. The pages show those themselves.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            errors.append(message.text)

    found.on("console", heard)
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.on("dialog", lambda dialog: errors.append(f"a script opened a dialog: {dialog.message}"))
    yield found
    await context.close()
    assert errors == []


async def dead(server: Running, count: int, why: str = "as asked") -> None:
    """Jobs that have failed for good."""
    made = [await server.http.post("/v1/jobs", json={"task": "fail", "args": [why]}) for _ in range(count)]
    async with server.app.worker():
        for each in made:
            with pytest.raises(JobDead):
                await server.app.tasks["fail"].handle(each.json()["id"]).aresult(timeout=60)


async def test_every_page_opens_without_an_error_and_no_page_scrolls_sideways(server: Running, page: Page) -> None:
    await dead(server, 2)
    await server.http.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": "acme"}})
    for width in (1440, 1000, 375, 320):
        await page.set_viewport_size({"width": width, "height": 800})
        for name in PAGES:
            await page.goto(f"{server.url}/#/{name}")
            await expect(page.locator("main h1")).to_have_count(1)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)


async def test_a_paused_queue_is_named_first_and_resumed(server: Running, page: Page) -> None:
    await server.http.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": "acme"}})
    await page.goto(f"{server.url}/#/queues")
    await page.get_by_role("row", name=re.compile("billing")).get_by_role("button", name="Pause").click()
    await page.goto(f"{server.url}/#/overview")
    verdict = page.get_by_role("listitem").filter(has_text="billing is paused by local, 1 waiting")
    await verdict.get_by_role("button", name="Resume").click()
    await expect(verdict).to_have_count(0)
    assert list(await server.store.pauses()) == []


async def test_a_job_says_why_it_waits_with_the_button_that_helps(server: Running, page: Page) -> None:
    made = await server.http.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": "acme"}})
    await server.http.post("/v1/pauses", json={"tenant": "acme"})
    await page.goto(f"{server.url}/#/jobs?tenant=acme")
    await page.get_by_role("link", name="charge billing").click()
    await expect(page.locator(".why")).to_contain_text("tenant acme is paused by local")
    await expect(page).to_have_url(f"{server.url}/#/jobs/{made.json()['id']}")
    await page.get_by_role("button", name="Resume acme").click()
    await expect(page.locator(".why")).to_contain_text("no live worker serves queue billing")


async def test_dead_letters_are_replayed_and_discarded_with_a_reason(server: Running, page: Page) -> None:
    await dead(server, 12)
    await page.goto(f"{server.url}/#/dead")
    await page.get_by_role("button", name="Replay 10 first").click()
    await expect(page.get_by_role("status")).to_contain_text("10 jobs made ready")
    await expect(page.locator(".bugs .ct")).to_have_text("2")
    await page.get_by_role("button", name="Discard…").click()
    button = page.get_by_role("dialog").get_by_role("button", name="Discard 2 jobs")
    await expect(button).to_be_disabled()
    await page.get_by_label("Reason").fill("tested")
    await page.get_by_label("Type 2 to confirm").fill("2")
    await button.click()
    await expect(page.get_by_role("heading", name="No dead letters")).to_be_visible()


async def test_s41_what_users_sent_stays_text(server: Running, page: Page) -> None:
    await dead(server, 1, MARKUP)
    await server.http.post("/v1/jobs", json={"task": "echo", "args": [MARKUP], "key": MARKUP, "tenant": "acme"})
    await page.goto(f"{server.url}/#/dead")
    await expect(page.locator(".exc")).to_contain_text(MARKUP)
    for job in (await server.http.get("/v1/jobs")).json()["items"]:
        await page.goto(f"{server.url}/#/jobs/{job['id']}")
        await expect(page.locator("pre.trace").filter(has_text="<script>alert(2)")).not_to_have_count(0)
    await page.goto(f"{server.url}/#/jobs?q={MARKUP}")
    await expect(page.locator("#find")).to_have_value(MARKUP)
    await page.goto(f"{server.url}/#/queues/{quote(MARKUP, safe='')}")
    await expect(page.locator("main h1")).to_have_text(MARKUP)
    assert await page.locator("img, main script").count() == 0


async def test_a_token_is_asked_for_and_kept_in_memory_only(server: Running, page: Page) -> None:
    token = await server.token("read")
    await page.goto(server.url)
    field = page.get_by_label("Token")
    await field.fill("hr_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("that token is not valid")
    await field.fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    kept = await page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    )
    assert "hr_" not in kept
    # The token may read, and the server refuses what it may not do. The page shows the sentence of the server.
    await page.goto(f"{server.url}/#/queues")
    await page.get_by_role("button", name="Pause").first.click()
    await expect(page.get_by_role("status")).to_contain_text("operate")
    await page.reload()
    await expect(field).to_be_visible()


async def test_the_keyboard_is_enough(server: Running, page: Page) -> None:
    await server.http.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": "acme"}})
    await page.goto(server.url)
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("j")
    await expect(page.get_by_role("link", name="charge billing")).to_be_visible()
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(page.get_by_role("region", name="Selected jobs")).to_contain_text("1 selected")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("work")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Workers")).to_be_visible()
