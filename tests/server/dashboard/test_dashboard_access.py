"""The dashboard for callers that may do more or less: signing in and out, read only, one tenant, an admin of tokens."""

from __future__ import annotations

import re

from playwright.async_api import Browser, Locator, Page, expect

from server.dashboard.browsing import fill, opened_page, sign_in
from server.running import Running


def menu(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link")


async def test_a_session_outlasts_a_reload_and_ends_at_the_sign_out(server: Running, page: Page) -> None:
    token = await server.token("read", name="ann")
    await page.goto(f"{server.url}/#/queues")
    field = page.get_by_label("Token")
    await field.fill("hr_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("that token is not valid")
    await field.fill(await server.token("enqueue", name="producer"))
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("Token producer lacks the scope read")
    await field.fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    kept = await page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    )
    assert "hr_" not in kept
    assert "headrace_session" not in kept, "a script must not read it"
    [cookie] = await page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    await page.reload()
    await expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    await expect(page.get_by_text("ann", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_text("You are signed out.")).to_be_visible()
    assert await page.context.cookies() == []
    await page.reload()
    await expect(field).to_be_visible()
    # A copy of the cookie is worth nothing any more.
    value = cookie.get("value", "")
    await page.context.add_cookies([{"name": "headrace_session", "value": value, "url": server.url}])
    await page.reload()
    await expect(page.get_by_text("that session is over: sign in again with a token")).to_be_visible()


async def test_a_read_only_caller_has_no_buttons_that_change_something(server: Running, page: Page) -> None:
    ids = await fill(server)
    await sign_in(page, server.url, await server.token("read"))
    await expect(page.get_by_text("tenant acme is paused")).to_be_visible()
    links = menu(page)
    await expect(links.filter(has_text="Limits")).to_have_count(1)
    await expect(links.filter(has_text=re.compile("Audit|Tokens"))).to_have_count(0)
    changing = re.compile("Pause|Resume|Replay|Discard|Cancel|Delete|Retry|Run|Change|Reset|Open|Select")
    for name, text in {
        "overview": "tenant acme is paused",
        "queues": "billing",
        "jobs": "charge",
        f"jobs/{ids['acme']}": "its tenant acme is paused",
        "dead": "RuntimeError",
        "schedules": "nightly",
        "limits": "smtp",
        "workers": "Workers",
    }.items():
        await page.goto(f"{server.url}/#/{name}")
        await expect(page.locator("main").get_by_text(text).first).to_be_visible()
        await expect(page.locator("main").get_by_role("button", name=changing)).to_have_count(0)
        await expect(page.locator("main").get_by_role("checkbox")).to_have_count(0)
    await page.goto(f"{server.url}/#/tokens")
    await expect(page.get_by_role("heading", name="No such page")).to_be_visible()


async def test_a_tenant_sees_its_own_and_nothing_of_others(server: Running, page: Page) -> None:
    ids = await fill(server)
    async with server.app.open_group("theirs", tenant="other") as theirs:
        await theirs.aenqueue_many([server.app.tasks["add"].job(1)])
    await sign_in(page, server.url, await server.token("read", "operate", tenant="acme"))
    links = menu(page)
    await expect(links).to_have_text(
        ["headrace", "Overview", "Jobs", "Dead letters", "Groups", "Schedules", "HTTP API"]
    )
    await expect(page.get_by_text("Jobs of tenant acme.")).to_be_visible()
    await expect(page.get_by_role("link", name="charge billing")).to_have_count(1)
    for name in ("queues", "reports", "workers", "limits", "audit", "tokens"):
        await page.goto(f"{server.url}/#/{name}")
        await expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    await page.goto(f"{server.url}/#/jobs")
    await expect(page.get_by_role("link", name="charge billing")).to_have_count(1)
    await page.goto(f"{server.url}/#/jobs/{ids['other']}")
    await expect(page.get_by_role("alert")).to_contain_text("there is no such job")
    await page.goto(f"{server.url}/#/jobs/{ids['acme']}")
    await page.get_by_role("button", name="Resume tenant acme").click()
    await expect(page.locator(".why")).not_to_contain_text("paused")
    assert list(await server.store.pauses()) == []
    await page.goto(f"{server.url}/#/dead")
    await expect(page.get_by_role("heading", name="No dead letters")).to_be_visible()
    await page.goto(f"{server.url}/#/groups")
    await expect(page.get_by_role("heading", name="No groups")).to_be_visible()
    await page.goto(f"{server.url}/#/groups/{theirs.id}")
    await expect(page.get_by_role("alert").first).to_contain_text("there is no such group")


async def test_an_admin_makes_and_revokes_a_token_and_reads_the_audit_log(
    server: Running, page: Page, browser: Browser
) -> None:
    await sign_in(page, server.url, await server.token("admin", name="ann"))
    await page.get_by_role("link", name="Tokens").click()
    await page.get_by_role("button", name="Make a token").click()
    form = page.get_by_role("form", name="New token")
    await form.get_by_label("Name").fill("bob")
    await form.get_by_label("Only this tenant").fill("acme")
    await form.get_by_role("button", name="Make it").click()
    secret = page.locator("code.secret")
    await expect(secret).to_have_text(re.compile("hr_"))
    row = page.get_by_role("row", name=re.compile("bob"))
    await expect(row).to_contain_text("acme")
    async with opened_page(browser) as other:
        await sign_in(other, server.url, await secret.inner_text())
        await page.get_by_role("region", name="New token").get_by_role("button", name="Close").click()
        await expect(page.get_by_text("hr_")).to_have_count(0)
        await row.get_by_role("button", name="Revoke…").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke it").click()
        await expect(row).to_contain_text("revoked")
        await expect(other.get_by_label("Token")).to_be_visible()
    await page.get_by_role("link", name="Audit").click()
    await expect(page.get_by_role("row")).to_have_count(3)
    await page.get_by_label("Find entries").fill("revoke")
    await page.get_by_role("button", name="Find", exact=True).click()
    await expect(page.get_by_role("row")).to_have_count(2)
    await expect(page.get_by_role("row").last).to_contain_text("tokens.revoke")
