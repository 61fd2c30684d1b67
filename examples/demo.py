"""The demo of `make run`: a steady stream of jobs of several kinds.

Some jobs fail and are tried again, some end as dead, and several dead jobs have one cause. Charges wait for the rate of a
limit. Each shop is a tenant, so that shops take turns. One shop is paused for a while, and a schedule makes a job every ten
seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time

from headrace import Dead, Headrace, Limit, Retry, Snooze, current_job

app = Headrace()  # HEADRACE_URL, else sqlite:///headrace.db in this folder

SHOPS = ("acme", "globex", "initech")
PAUSE_EVERY = 120


def per_shop(shop: str, *_: object) -> str:
    """The tenant of a job, so that shops take turns."""
    return shop


bank = Limit("bank", rate="45/m", burst=3)  # fewer than there are charges, so some wait
one_call = Limit("shop", concurrency=1, key=per_shop)  # one call at a time to each shop


class Declined(Exception):
    """The bank refuses the card, and would refuse it again."""


@app.task(queue="mail", name="mail.welcome")
async def welcome(user: int) -> str:
    """A quick async task: most of the stream."""
    await asyncio.sleep(random.uniform(0.01, 0.08))
    return f"welcomed {user}"


@app.task(queue="mail", name="mail.newsletter", priority=-5)
async def newsletter(issue: int, user: int) -> str:
    """Low priority: runs when nothing else waits."""
    await asyncio.sleep(random.uniform(0.02, 0.1))
    return f"issue {issue} to {user}"


@app.task(name="images.resize")
def resize(image: int, width: int = 640) -> str:
    """A sync function runs in a thread."""
    time.sleep(random.uniform(0.05, 0.3))
    return f"{image}-{width}.webp"


@app.task(name="reports.build", executor="process", timeout="10s")
def report(month: int) -> str:
    """Heavy work in a process of its own, which can be killed."""
    digest = b"report"
    for _ in range(200_000):
        digest = hashlib.sha256(digest).digest()
    return f"{month}: {digest.hex()[:12]}"


@app.task(name="shop.sync", tenant=per_shop, limits=[one_call], retry=Retry(max_attempts=4, base="1s", cap="5s"))
async def sync_shop(shop: str) -> None:
    """Fails at times, and succeeds on a later attempt."""
    await asyncio.sleep(random.uniform(0.05, 0.4))
    if random.random() < 0.4:
        raise ConnectionError(f"{shop} does not answer (attempt {current_job().attempt})")


@app.task(
    name="billing.charge",
    priority=5,
    tenant=per_shop,
    retry=Retry(max_attempts=3, base="500ms", never=(Declined,)),
    redact=("card",),
    limits=[bank],
)
async def charge(shop: str, order: int, card: str = "4242 4242 4242 4242") -> str:
    """High priority. A job with a declined card is dead at once."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    if order % 9 == 0:
        raise Declined(f"order {order}: card declined")
    return f"{shop}: order {order} paid with {card[-4:]}"


@app.task(name="legacy.import", retry=Retry(max_attempts=2, base="1s"))
async def legacy_import(path: str) -> None:
    """Always ends as dead."""
    if random.random() < 0.5:
        raise Dead(f"{path}: this format is not supported")
    raise ValueError(f"{path}: cannot be read")


@app.task(name="shop.poll", tenant=per_shop)
async def poll(shop: str) -> str:
    """Snoozes while the data are not ready: it runs again later, without a failure."""
    if current_job().attempt < 3:
        raise Snooze("2s")
    return f"{shop} is ready"


@app.task(name="mail.digest", queue="mail")
async def digest() -> str:
    """Made by a schedule."""
    return "sent"


app.schedule("digest", every="10s", job=digest.job())


async def produce() -> None:
    """Enqueues about a dozen jobs a second until cancelled."""
    number = 0
    while True:
        if number % PAUSE_EVERY == 0:
            # The jobs of this shop wait. The pause ends by itself.
            await app.apause(tenant=SHOPS[-1], until="15s", by="demo")
        number += 1
        shop = random.choice(SHOPS)
        await app.aenqueue_many(welcome.job(number * 10 + i) for i in range(random.randint(2, 8)))
        await app.aenqueue_many(newsletter.job(number // 50, user) for user in range(random.randint(0, 3)))
        await resize.aenqueue(number)
        if number % 2 == 0:
            await charge.aenqueue(shop, number)
            await sync_shop.aenqueue(shop)
        if number % 4 == 0:
            await welcome.using(delay="5s").aenqueue(number)
        if number % 10 == 0:
            await report.aenqueue(number % 12 + 1)
            await poll.aenqueue(shop)
        if number % 15 == 0:
            await legacy_import.aenqueue(f"export-{number}.wk1")
        await asyncio.sleep(random.uniform(0.3, 0.7))
