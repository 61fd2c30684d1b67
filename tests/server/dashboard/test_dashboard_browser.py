"""The dashboard in a real browser, used as a person uses it: reading, pausing, replaying, with the keyboard."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from server.dashboard.browsing import MARKUP, PAGES, axe, barriers, dead, fill, opened_page, use_theme
from server.running import Running

HISTORY = ["overview?range=1h", "queues/broken?range=1h", "reports?range=30d"]
"""Pages with charts of history."""


async def test_every_page_opens_without_an_error_and_no_page_scrolls_sideways(server: Running, page: Page) -> None:
    await dead(server, 2)
    await server.http.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": "acme"}})
    for width in (1440, 1000, 375, 320):
        await page.set_viewport_size({"width": width, "height": 800})
        for name in (*PAGES, *HISTORY):
            await page.goto(f"{server.url}/#/{name}")
            await expect(page.locator("main h1")).to_have_count(1)
            if name in HISTORY:
                await expect(page.get_by_role("img").first).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)


async def test_axe_finds_no_barrier(server: Running, browser: Browser) -> None:
    """Every page with data, in both themes, at the width of a screen and of a phone."""
    id = (await fill(server))["acme"]
    await server.http.post("/v1/queues/billing/pause")
    await server.http.post("/v1/dead/replays", json={"everything": True, "rate": "1/h"})
    script, problems = axe(), {}
    # The test puts axe into the page, which the policy of the page forbids.
    async with opened_page(browser, bypass_csp=True) as page:
        await page.goto(server.url)
        for theme in ("light", "dark"):
            for width in (1440, 375):
                await page.set_viewport_size({"width": width, "height": 800})
                await use_theme(page, theme)
                for name in (*PAGES, *HISTORY, f"jobs/{id}"):
                    await page.goto(f"{server.url}/#/{name}")
                    await expect(page.locator("main h1")).to_have_count(1)
                    await expect(page.get_by_text("Reading…")).to_have_count(0)
                    if name in HISTORY:
                        await expect(page.get_by_role("img").first).to_be_visible()
                        problems[theme, width, f"{name} as chart"] = await barriers(page, script)
                        await page.get_by_role("button", name="As table").first.click()
                        await expect(page.get_by_role("button", name="As chart")).to_be_visible()
                    problems[theme, width, name] = await barriers(page, script)
                await page.keyboard.press("Control+k")
                problems[theme, width, "palette"] = await barriers(page, script)
                await page.keyboard.press("Escape")
        await server.token("read")
        await page.reload()
        await expect(page.get_by_label("Token")).to_be_visible()
        problems["dark", 375, "sign-in"] = await barriers(page, script)
        await page.evaluate("document.body.append(document.createElement('img'))")
        assert await barriers(page, script), "axe finds what is wrong"
    assert {where: what for where, what in problems.items() if what} == {}


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
    button = page.get_by_role("button", name="Resume tenant acme")
    await expect(button).to_have_class(re.compile("pri"))
    await button.click()
    await expect(page.locator(".why")).to_contain_text("no live worker serves queue billing")


async def test_dead_letters_are_replayed_and_discarded_with_a_reason(server: Running, page: Page) -> None:
    """The task still fails, so the first ones die again and the rest stays dead."""
    await dead(server, 12)
    await page.goto(f"{server.url}/#/dead")
    await page.get_by_role("button", name="Replay 10, then the rest").click()
    await expect(page.locator(".bugs .ct")).to_have_text("2")
    await expect(page.locator("main")).to_contain_text("watching the first 10: 0 done, 0 dead again")
    await page.reload()  # The server runs the replay.
    async with server.app.worker(queues=["broken"]):
        await expect(page.locator("main")).to_contain_text("canaries died again")
    await expect(page.locator(".bugs .ct")).to_have_text("12")
    await server.http.post("/v1/dead/replays", json={"everything": True, "rate": "1/h"})
    slow = page.get_by_role("row", name=re.compile("everything"))
    await expect(slow).to_contain_text("1 job made ready")
    await slow.get_by_role("button", name="Stop").click()
    await expect(slow).to_contain_text("local stopped it")
    await expect(page.locator(".bugs .ct")).to_have_text("11")
    await page.get_by_role("button", name="Discard…").click()
    button = page.get_by_role("dialog").get_by_role("button", name="Discard 11 jobs")
    await expect(button).to_be_disabled()
    await page.get_by_label("Reason").fill("tested")
    await page.get_by_label("Type 11 to confirm").fill("11")
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
    await page.goto(f"{server.url}/#/jobs?text={MARKUP}")
    await expect(page.locator("#find")).to_have_value(MARKUP)
    await page.goto(f"{server.url}/#/queues/{quote(MARKUP, safe='')}")
    await expect(page.locator("main h1")).to_have_text(MARKUP)
    assert await page.locator("img, main script").count() == 0


async def test_the_keyboard_is_enough(server: Running, page: Page) -> None:
    for shop in ("acme", "other"):
        await server.http.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": shop}})
    await page.goto(server.url)
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    for key, heading in (
        ("g", "Groups"),
        ("r", "Reports"),
        ("t", "Tokens"),
        ("a", "Audit"),
        ("l", "Limits"),
        ("d", "Dead letters"),
    ):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("j")
    await expect(page.get_by_role("link", name="charge billing")).to_have_count(2)
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    await page.keyboard.press("x")
    await expect(page.get_by_role("region", name="Selected jobs")).to_contain_text("1 selected")
    await page.keyboard.press("Enter")
    await expect(page.locator(".why")).to_contain_text("no live worker serves queue billing")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("work")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Workers")).to_be_visible()


async def test_a_job_links_to_its_trace(server: Running, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = server.app.settings.replace(trace_url="https://tempo.example/{trace_id}")
    monkeypatch.setattr(server.app, "settings", settings)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    body = {"task": "add", "args": [1], "delay": "1h", "trace": f"00-{trace_id}-b7ad6b7169203331-01"}
    id = (await server.http.post("/v1/jobs", json=body)).json()["id"]
    await page.goto(f"{server.url}/#/jobs/{id}")
    link = page.get_by_role("link", name=trace_id)
    await expect(link).to_have_attribute("href", f"https://tempo.example/{trace_id}")
