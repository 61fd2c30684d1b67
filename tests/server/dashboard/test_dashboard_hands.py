"""What an operator does at night, with the keyboard only and on a phone: pause and resume a queue, and replay dead letters."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from headrace import Headrace, JobDead, Retry
from server.dashboard.hands import Hand, Keyboard
from server.running import Running


async def test_a_queue_is_paused_and_resumed(server: Running, hand: Hand) -> None:
    await server.app.tasks["charge"].aenqueue(7, "acme")
    await hand.open("Queues")
    row = hand.page.get_by_role("row", name=re.compile("billing"))
    await hand.press(row.get_by_role("button", name="Pause"))
    await expect(row).to_contain_text("paused by local")
    assert [(pause.kind, pause.name) for pause in await server.store.pauses()] == [("queue", "billing")]
    button = row.get_by_role("button", name="Resume")
    if isinstance(hand, Keyboard):
        await expect(button).to_be_focused()
    await hand.press(button)
    await expect(row.get_by_role("button", name="Pause")).to_be_visible()
    await expect(row).not_to_contain_text("paused")
    assert list(await server.store.pauses()) == []


async def test_a_dead_group_is_replayed_behind_canaries(server: Running, app: Headrace, hand: Hand) -> None:
    mended: list[bool] = []

    @app.task(name="invoice", queue="mail", retry=Retry(max_attempts=1))
    async def invoice(order: int) -> int:
        if not mended:
            raise KeyError("vat_id")
        return order

    invoices = [await invoice.aenqueue(order) for order in range(12)]
    async with app.worker(queues=["mail"]):
        for each in invoices:
            with pytest.raises(JobDead):
                await each.aresult(timeout=60)
    mended.append(True)
    await hand.open("Dead letters")
    await expect(hand.page.locator(".bugs .ct")).to_have_text("12")
    await hand.press(hand.page.get_by_role("button", name="Replay 10, then the rest"))
    await expect(hand.page.locator("main")).to_contain_text("watching the first 10: 0 done, 0 dead again")
    await expect(hand.page.locator(".bugs .ct")).to_have_text("2")
    if isinstance(hand, Keyboard):
        panel = hand.page.get_by_role("status").filter(has_text="watching the first 10").locator("..")
        await expect(panel).to_be_focused()
    async with app.worker(queues=["mail"]):
        await expect(hand.page.get_by_role("heading", name="No dead letters")).to_be_visible()
        await expect(hand.page.get_by_role("row", name=re.compile("12 jobs made ready"))).to_contain_text("done")
        assert sorted([await each.aresult(timeout=60) for each in invoices]) == list(range(12))


async def test_a_replay_is_stopped(server: Running, hand: Hand) -> None:
    for _ in range(3):
        await server.app.tasks["fail"].aenqueue()
    async with server.app.worker(queues=["broken"]):
        for job in (await server.http.get("/v1/jobs")).json()["items"]:
            with pytest.raises(JobDead):
                await server.app.tasks["fail"].handle(job["id"]).aresult(timeout=60)
    [bug] = (await server.http.get("/v1/dead")).json()["items"]
    await server.http.post("/v1/dead/replays", json={"group": bug["fingerprint"], "rate": "1/h"})
    await hand.open("Dead letters")
    panel = hand.page.get_by_role("status").filter(has_text="1 job made ready")
    await hand.press(panel.get_by_role("button", name="Stop"))
    await expect(hand.page.get_by_role("row", name=re.compile("local stopped it"))).to_be_visible()
    await expect(hand.page.locator(".bugs .ct")).to_have_text("2")
    if isinstance(hand, Keyboard):
        # The button has gone. The next one is a few presses away, not at the top of the page.
        await hand.page.keyboard.press("Tab")
        await expect(hand.page.get_by_role("button", name=re.compile("^Replay"))).to_be_focused()
