"""The app of the tests in which workers with limited and unique jobs are killed. Every task tells a witness file."""

from __future__ import annotations

import asyncio

from crash.crash_app import tell
from headrace.app import Headrace
from headrace.task.limit import Limit
from headrace.task.unique import Unique

app = Headrace()

TOGETHER, PER_SHOP = 5, 2
together = Limit("together", concurrency=TOGETHER)
per_shop = Limit("shop", concurrency=PER_SHOP, key=lambda shop, number: shop)


@app.task(name="visit", limits=[together, per_shop])
async def visit(shop: int, number: int) -> int:
    tell("start", shop)
    await asyncio.sleep(0.03)
    tell("end", shop)
    return number


@app.task(name="once", unique=Unique(key=lambda shop, number: shop))
async def once(shop: int, number: int) -> None:
    tell("start", shop)
    await asyncio.sleep(0.1)
    tell("end", shop)
