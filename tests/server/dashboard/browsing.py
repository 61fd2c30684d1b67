"""A real browser for the tests of the dashboard: one per module, and a page that fails its test at an error of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from headrace import JobDead, Limit
from headrace.operate.limits import Limits
from server.running import Running

ROOT = Path(__file__).parents[3]
PATIENCE = 60_000
"""Milliseconds that an expectation waits on a loaded machine. It ends as soon as it holds."""
MARKUP = "<img/src=x/onerror=alert(1)><script>alert(2)</script>"
"""Without spaces, so that a tenant can have this name."""
PAGES = ("overview", "queues", "jobs", "dead", "groups", "reports", "schedules", "workers", "limits", "audit", "tokens")
PICTURES = "DASHBOARD_PICTURES"
"""The environment variable with the folder that pictures are written to, such as `docs/screenshots`."""


@asynccontextmanager
async def launched() -> AsyncGenerator[Browser, None]:
    """A browser without a window."""
    expect.set_options(timeout=PATIENCE)
    async with async_playwright() as playwright:
        # Root, as in a container, has no sandbox.
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        await browser.close()


@asynccontextmanager
async def opened_page(browser: Browser, **settings: Any) -> AsyncGenerator[Page, None]:
    """A page that fails the test at an error of its own, and at everything that the content security policy refuses."""
    context = await browser.new_context(**settings)
    context.set_default_timeout(PATIENCE)
    page = await context.new_page()
    errors: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # A browser reports every answer that is an error. The pages show those themselves.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            errors.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"a script opened a dialog: {dialog.message}"))
    yield page
    await context.close()
    assert errors == []


async def picture(page: Page, name: str) -> None:
    """Write a picture of the page, if the environment asks for pictures. A test run changes no committed file."""
    if folder := os.environ.get(PICTURES):
        await page.wait_for_function("document.fonts.status === 'loaded'")
        await page.screenshot(path=ROOT / folder / f"{name}.png", animations="disabled")


async def use_theme(page: Page, theme: str) -> None:
    """Show the page in the light or the dark theme."""
    await page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    await page.reload()


def axe() -> str:
    """The script of axe-core, which finds what keeps people with a disability from using a page."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import build_dashboard  # type: ignore[import-not-found] # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    build_dashboard.install(ROOT)
    return (ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def barriers(page: Page, script: str) -> list[str]:
    """What axe finds serious or critical on the page."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(script)
    violations: list[dict[str, Any]] = await page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(result => result.violations.map("
        "({id, impact, nodes}) => ({id, impact, where: nodes.slice(0, 3).map(node => node.html.slice(0, 200))})))"
    )
    return [f"{one['id']}: {one['where']}" for one in violations if one["impact"] in {"serious", "critical"}]


async def sign_in(page: Page, url: str, token: str) -> None:
    """Open the dashboard and give it a token."""
    await page.goto(url)
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def dead(server: Running, count: int, why: str = "as asked") -> None:
    """Jobs that have failed for good."""
    answers = [await server.http.post("/v1/jobs", json={"task": "fail", "args": [why]}) for _ in range(count)]
    async with server.app.worker(queues=["broken"]):
        for answer in answers:
            with pytest.raises(JobDead):
                await server.app.tasks["fail"].handle(answer.json()["id"]).aresult(timeout=60)


async def fill(server: Running) -> dict[str, str]:
    """A waiting job of each of two tenants, a dead one, a pause, a schedule and a limit. Returns ids by tenant."""
    ids: dict[str, str] = {}
    for shop in ("acme", "other"):
        answer = await server.http.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": shop}})
        ids[shop] = answer.json()["id"]
    await dead(server, 2)
    nightly = {"name": "nightly", "cron": "0 2 * * *", "job": {"task": "add", "args": [1]}}
    for path, body in {"/v1/pauses": {"tenant": "acme"}, "/v1/schedules": nightly}.items():
        answer = await server.http.post(path, json=body)
        assert answer.is_success, answer.text
    await Limits(server.store).declare({"smtp": Limit("smtp", concurrency=4).declared})
    return ids
