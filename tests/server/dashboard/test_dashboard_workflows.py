"""Chains, groups and steps in a real browser: what holds a graph, how a group fills, and what a task has done so far."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from headrace import Handle, Headrace, JobDead, JobHeld, Retry, sleep, step
from headrace.client.groups import OpenGroup
from server.dashboard.browsing import MARKUP, axe, barriers, opened_page, use_theme
from server.dashboard.hands import Hand
from server.running import Running


class Shop:
    """Tasks of a shop. Its charges fail until the card is good."""

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.card_is_good = False
        self.place = app.task(name="orders.place")(self._same)
        self.charge = app.task(name="billing.charge", retry=Retry(max_attempts=1))(self._charge)
        self.pack = app.task(name="stock.pack")(self._same)
        self.ship = app.task(name="orders.ship")(self._same)

    async def _same(self, order: int) -> int:
        return order

    async def _charge(self, order: int) -> int:
        if not self.card_is_good:
            raise RuntimeError("card declined")
        return order

    async def held(self) -> Handle[int]:
        """The last job of a chain whose second job is dead."""
        last = await self.app.aenqueue(self.place.job(7).then(self.charge).then(self.pack).then(self.ship))
        async with self.app.worker():
            with pytest.raises(JobHeld):
                await last.aresult(timeout=60)
        return last


@pytest.fixture
def shop(app: Headrace) -> Shop:
    return Shop(app)


def nodes(page: Page) -> Locator:
    return page.get_by_role("list", name="Workflow").get_by_role("listitem")


async def expect_states(page: Page, **states: str) -> None:
    """The nodes from left to right, each with its name and its state."""
    wanted = [re.compile(rf"{name.replace('_', '.')}\s+{state}") for name, state in states.items()]
    await expect(nodes(page)).to_have_text(wanted)


# ── graphs ───────────────────────────────────────────────────────────────────


async def test_what_holds_a_graph_is_replayed_and_the_graph_ends_green(server: Running, shop: Shop, hand: Hand) -> None:
    page, last = hand.page, await shop.held()
    await page.goto(f"{server.url}/#/jobs/{last.id}")
    await expect_states(page, orders_place="done", billing_charge="dead", stock_pack="held", orders_ship="held")
    await expect(nodes(page).last).to_contain_text("after stock.pack")
    await expect(page.locator(".why")).to_contain_text("of billing.charge is dead")
    shop.card_is_good = True
    await hand.press(page.get_by_role("button", name="Replay what holds this"))
    await expect_states(page, orders_place="done", billing_charge="ready", stock_pack="blocked", orders_ship="blocked")
    async with shop.app.worker():
        await expect_states(page, orders_place="done", billing_charge="done", stock_pack="done", orders_ship="done")
        await expect(page.locator(".why")).to_contain_text("done: it ended well")
    await expect(page.locator(".flow .w-done")).to_have_count(3)
    await expect(page.get_by_role("button", name="Replay what holds this")).to_have_count(0)
    await hand.press(nodes(page).first.get_by_role("link"))
    await expect(page.get_by_role("heading", name="orders.place")).to_be_visible()


async def test_the_page_of_a_job_in_the_middle_shows_how_the_rest_goes_on(
    server: Running, shop: Shop, page: Page
) -> None:
    """The store forgets what a job waited for when the job becomes ready. The page that showed it does not."""
    last = await shop.held()
    await page.goto(f"{server.url}/#/jobs/{last.id}")
    await nodes(page).get_by_role("link", name=re.compile(r"^billing\.charge")).click()
    await expect(page.get_by_role("heading", name="billing.charge")).to_be_visible()
    await expect_states(page, orders_place="done", billing_charge="dead", stock_pack="held", orders_ship="held")
    shop.card_is_good = True
    async with shop.app.worker():
        await page.get_by_role("button", name="Run again").click()
        await expect_states(page, orders_place="done", billing_charge="done", stock_pack="done", orders_ship="done")


async def test_branches_meet_again_and_a_wait_for_any_end_is_named(server: Running, shop: Shop, page: Page) -> None:
    first = shop.place.job(7)
    packed = first.then(shop.pack)

    @shop.app.task(name="orders.close")
    async def close(one: int, two: int) -> int:
        return one + two

    @shop.app.task(name="audit.write")
    async def write() -> None:
        pass

    closed = await shop.app.aenqueue(close.job(packed.out, first.then(shop.charge).out))
    written = await write.using(after=closed, when="ended").aenqueue()
    await page.goto(f"{server.url}/#/jobs/{written.id}")
    await expect(nodes(page)).to_have_count(5)
    await expect(nodes(page).nth(3)).to_contain_text(re.compile("orders.close.*after .*stock.pack", re.DOTALL))
    await expect(nodes(page).last).to_contain_text("after orders.close has ended")
    await expect(page.locator(".flow svg text")).to_have_text("when ended")
    boxes = [await node.bounding_box() for node in await nodes(page).all()]
    left = [box["x"] for box in boxes if box is not None]
    assert left == sorted(left)
    assert len(set(left)) == 4, "jobs of one layer are below each other"


async def test_a_job_alone_has_no_graph(server: Running, shop: Shop, page: Page) -> None:
    handle = await shop.place.aenqueue(7)
    async with page.expect_response(re.compile("/workflow")):
        await page.goto(f"{server.url}/#/jobs/{handle.id}")
    await expect(page.locator(".why")).to_contain_text("no live worker")
    await expect(page.get_by_role("region", name="Workflow")).to_have_count(0)


# ── groups ───────────────────────────────────────────────────────────────────


async def test_the_bar_of_a_group_fills(server: Running, shop: Shop, page: Page) -> None:
    doors = [asyncio.Event() for _ in range(4)]

    @shop.app.task(name="rows.load", retry=Retry(max_attempts=1))
    async def load(row: int) -> int:
        await doors[row].wait()
        if row == 3 and not shop.card_is_good:
            raise RuntimeError("no such row")
        return row

    await page.goto(f"{server.url}/#/groups")
    await expect(page.get_by_role("heading", name="No groups")).to_be_visible()
    row = page.get_by_role("row", name=re.compile("import 7"))
    async with shop.app.worker():
        async with shop.app.open_group("import 7", on_done=shop.ship.job(7)) as rows:
            await rows.aenqueue_many(load.job(number) for number in range(4))
            await expect(row).to_contain_text("still filling")
            await expect(row.get_by_role("img")).to_have_accessible_name("0 of 4 done, 0 dead, 0 cancelled, 4 to go")
        await expect(row).not_to_contain_text("still filling")
        doors[0].set()
        doors[1].set()
        await expect(row.get_by_role("img")).to_have_accessible_name("2 of 4 done, 0 dead, 0 cancelled, 2 to go")
        await page.get_by_role("link", name="import 7").click()
        progress = page.get_by_role("region", name="Progress")
        await expect(progress).to_contain_text("2 of 4 done")
        doors[2].set()
        doors[3].set()
        await expect(progress.get_by_role("img")).to_have_accessible_name("3 of 4 done, 1 dead, 0 cancelled, 0 to go")
        await expect(nodes(page)).to_contain_text(["import 7", "held"])
        jobs = page.get_by_role("region", name="Jobs of the group")
        await expect(jobs.get_by_role("row")).to_have_count(5)
        await jobs.get_by_role("link", name="dead").click()
        await expect(jobs.get_by_role("row")).to_have_count(2)
        shop.card_is_good = True
        await page.get_by_role("button", name="Replay its dead jobs").click()
        await expect(progress.get_by_role("img")).to_have_accessible_name("4 of 4 done, 0 dead, 0 cancelled, 0 to go")
        await expect(nodes(page)).to_contain_text(
            [re.compile("import 7.*done", re.DOTALL), re.compile("ship.*done", re.DOTALL)]
        )
    await progress.get_by_role("link", name="orders.ship").click()
    await expect(page.locator(".why")).to_contain_text("done: it ended well")


async def test_a_group_is_cancelled(server: Running, shop: Shop, hand: Hand) -> None:
    async with shop.app.open_group("import 8") as rows:
        await rows.aenqueue_many(shop.place.job(number) for number in range(3))
    await hand.open("Groups")
    await hand.press(hand.page.get_by_role("link", name="import 8"))
    await hand.press(hand.page.get_by_role("button", name="Cancel…"))
    await hand.press(hand.page.get_by_role("button", name="Cancel 3 jobs"))
    progress = hand.page.get_by_role("region", name="Progress")
    await expect(progress.get_by_role("img")).to_have_accessible_name("0 of 3 done, 0 dead, 3 cancelled, 0 to go")


async def test_a_group_that_is_not_stored_is_an_error_in_words(server: Running, page: Page) -> None:
    await page.goto(f"{server.url}/#/groups/00000000-0000-8000-8000-000000000000")
    await expect(page.get_by_role("alert")).to_contain_text("there is no such group")


# ── steps ────────────────────────────────────────────────────────────────────


def steps(page: Page) -> Locator:
    return page.get_by_role("list", name="Steps").get_by_role("listitem")


async def test_a_job_shows_its_steps_and_that_it_sleeps(server: Running, page: Page) -> None:
    @server.app.task(name="trial")
    async def trial(user: str) -> None:
        await step.using(key=user)(str.upper, user)
        await sleep("14d")

    handle = await trial.aenqueue(MARKUP)
    async with server.app.worker():
        await page.goto(f"{server.url}/#/jobs/{handle.id}")
        await expect(steps(page)).to_contain_text([f"str.upper[{MARKUP}]", "sleep", "its task sleeps until"])
        await expect(steps(page).first).to_contain_text(MARKUP.upper())
        await expect(steps(page).nth(1)).to_contain_text(re.compile(r"\+ [0-9.]+(ms|s|m)"))
        await expect(steps(page).last).to_contain_text("so far")
        await expect(page.locator(".why")).to_contain_text("its task sleeps until")


async def test_a_job_shows_the_event_that_it_waits_for_until_it_comes(server: Running, page: Page) -> None:
    approved = server.app.event("payout.approved", str)

    @server.app.task(name="payout")
    async def payout(amount: int) -> str:
        await step(str, amount)
        return await approved.wait(MARKUP, timeout="3d")

    handle = await payout.aenqueue(7)
    async with server.app.worker():
        await page.goto(f"{server.url}/#/jobs/{handle.id}")
        await expect(steps(page).last).to_contain_text(f"its task waits for event payout.approved of {MARKUP}")
        await expect(steps(page).last).to_contain_text("gives up")
        await expect(steps(page)).to_contain_text(["str", "time limit of event payout.approved", "waits for"])
        await expect(page.locator(".why")).to_contain_text(f"event payout.approved of {MARKUP} is signalled")
        await expect(nodes(page)).to_contain_text(["not signalled", "suspended"])
        await expect(nodes(page).first.get_by_role("link")).to_have_count(0)
        await approved.asignal(MARKUP, "ann")
        await expect(page.locator(".why")).to_contain_text("done: it ended well")
        await expect(steps(page).last).to_contain_text(f"event payout.approved[{MARKUP}]")
        await expect(steps(page).last).to_contain_text("ann")


# ── what users send, and what keeps people out ───────────────────────────────


async def hostile_group(shop: Shop) -> OpenGroup[Any]:
    """A group with a dead job, and a callback that is held. Labels may be any text."""
    async with shop.app.open_group(f"{MARKUP} \"'", on_done=shop.ship.job(7), tenant=MARKUP) as rows:
        handles = await rows.aenqueue_many([shop.charge.job(1), shop.place.job(2)])
    async with shop.app.worker():
        with pytest.raises(JobDead):
            await handles[0].aresult(timeout=60)
        await handles[1].aresult(timeout=60)
    return rows


async def test_s41_markup_in_groups_stays_text(server: Running, shop: Shop, page: Page) -> None:
    rows = await hostile_group(shop)
    label = f"{MARKUP} \"'"
    await page.goto(f"{server.url}/#/groups")
    await expect(page.get_by_role("link", name=label)).to_be_visible()
    await expect(page.get_by_role("row").last).to_contain_text(MARKUP)
    await page.goto(f"{server.url}/#/groups/{rows.id}")
    await expect(page.get_by_role("heading", name=label)).to_be_visible()
    await expect(nodes(page).first).to_contain_text(label)
    await page.get_by_role("region", name="Progress").get_by_role("link", name="orders.ship").click()
    await expect(page.locator(".why")).to_contain_text(MARKUP)
    await expect(nodes(page).last).to_contain_text(f"after {label}")
    await expect(page.get_by_role("link", name="See the dead jobs")).to_be_visible()
    assert await page.locator("img, main script").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_barrier_in_workflows(server: Running, shop: Shop, browser: Browser, theme: str) -> None:
    last, rows = await shop.held(), await hostile_group(shop)
    approved = server.app.event("payout.approved", str)

    @server.app.task(name="payout")
    async def payout(amount: int) -> str:
        await step(str, amount)
        return await approved.wait(amount, timeout="3d")

    waiting = await payout.aenqueue(7)
    ready: dict[str, Callable[[Page], Locator]] = {
        "groups": lambda page: page.get_by_role("row").nth(1),
        f"groups/{rows.id}": lambda page: nodes(page).first,
        f"jobs/{last.id}": lambda page: nodes(page).first,
        f"jobs/{waiting.id}": lambda page: nodes(page).first,
    }
    problems: dict[tuple[str, int], list[str]] = {}
    # The test puts axe into the page, which the policy of the page forbids.
    async with server.app.worker(), opened_page(browser, bypass_csp=True) as page:
        await page.goto(server.url)
        await use_theme(page, theme)
        for width in (1440, 390):
            await page.set_viewport_size({"width": width, "height": 844})
            for name, part in ready.items():
                await page.goto(f"{server.url}/#/{name}")
                await expect(part(page)).to_be_visible()
                await expect(page.get_by_text("Reading…")).to_have_count(0)
                problems[name, width] = await barriers(page, axe())
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
    assert {where: what for where, what in problems.items() if what} == {}
