"""Calls that must not type-check: every line marked `# error`, and no other, in pyright and in mypy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headrace import (
    FollowUp,
    Handle,
    Handles,
    Headrace,
    JobContext,
    Limit,
    Unique,
    WorkerInfo,
    ageing,
    current_job,
    gather,
    gather_sync,
    group,
    sleep,
    step,
    step_sync,
    undo,
    undo_sync,
    weighted,
)

app = Headrace("memory://")


class Receipt:
    pass


@app.task(queue="billing")
async def charge(order_id: int, shop: str) -> Receipt:
    return Receipt()


@app.task
def resize(image_id: int, *, width: int = 100) -> None: ...


async def calls() -> None:
    charge.enqueue("7", "acme")  # error
    charge.enqueue(7)  # error
    charge.enqueue(7, "acme", 3)  # error
    charge.enqueue(7, shpo="acme")  # error
    charge.enqueue(7, "acme", delay="5m")  # error
    await charge.aenqueue(7, b"acme")  # error
    charge.job(None, "acme")  # error
    charge.using(delay="5m").enqueue("7", "acme")  # error
    charge.using(delay="5m").job(7)  # error
    await charge.using(priority=1).aenqueue()  # error
    charge(7)  # error
    resize("1")  # error
    resize.enqueue(1, 2)  # error
    resize.enqueue(1, width="wide")  # error
    charge.delay(7, "acme")  # error
    charge.apply_async((7, "acme"))  # error
    resize.send(1)  # error
    charge.using(delay="5m").defer(7, "acme")  # error


async def options() -> None:
    charge.using("5m")  # error
    charge.using(delay=5)  # error
    charge.using(run_at="2030-01-01")  # error
    charge.using(priority="high")  # error
    charge.using(expires=600)  # error
    charge.using(deadline=7.5)  # error
    app.task(expires=600)  # error
    app.task(deadline=datetime(2030, 1, 1, tzinfo=UTC))  # error
    charge.using(dealy="5m")  # error
    app.task(queue=7)  # error
    app.task(executor="fiber")  # error
    app.task(timeout=30)  # error
    app.task(retry=5)  # error
    app.task(quue="billing")  # error
    app.task(redact=7)  # error
    app.task(limits=Limit("stripe", rate="90/s"))  # error
    app.task(limits=["stripe"])  # error
    app.task(unique=True)  # error
    Limit("stripe", rate=90)  # error
    Limit("stripe", concurency=4)  # error
    Unique(on_conflict="raise")  # error
    Unique(within=5)  # error
    app.queue("billing", fair="random")  # error
    app.queue("billing", weights={"acme": "3"})  # error
    app.queue("billing", priority=5)  # error
    weighted([("high", 80)])  # error
    ageing(60)  # error
    app.pause("billing", until=7)  # error


def sync_twins() -> None:
    app.cancel(7)  # error
    app.cancel("01890a5d-ac96-774b-bcce-b302099a0001", raeson="late")  # error
    app.find("dead")  # error
    app.limits.set("stripe", rate=50)  # error
    app.limits.set()  # error
    app.schedules.add("nightly", cron="0 3 * * *")  # error
    app.dead.groups(quue="billing")  # error
    app.dead.groups(queue=7)  # error
    app.dead.discard(everything=True)  # error
    charge.enqueue(7, "acme").cancel(7)  # error
    print(app.stats().quues)  # error
    pauses: list[str] = app.pauses()  # error
    print(pauses)


async def results() -> None:
    number: int = charge.enqueue(7, "acme").result()  # error
    text: str = await (await charge.aenqueue(7, "acme")).aresult()  # error
    wrong: Handle[int] = charge.enqueue(7, "acme")  # error
    handles: Handles[int] = await app.aenqueue_many([charge.job(7, "acme")])  # error
    app.enqueue_many([charge])  # error
    app.enqueue_many([charge.enqueue(7, "acme")])  # error
    charge.enqueue(7, "acme").reslut()  # error
    print(charge.enqueue(7, "acme").explain().reasno)  # error
    print(number, text, wrong, handles)


def two(info: WorkerInfo, other: str) -> None: ...


def number(info: int) -> None: ...


def only_job(job: JobContext) -> None: ...


def swapped(job: JobContext, follows: FollowUp, failure: int) -> None: ...


async def no_scope() -> None: ...


def hooks() -> None:
    app.on_start(two)  # error
    app.on_start(number)  # error
    app.on_stop(two)  # error
    app.lifespan(no_scope)  # error
    app.lifespan(only_job)  # error
    app.middleware(only_job)  # error
    app.middleware("trace")  # error
    app.on_failure(only_job)  # error
    app.on_failure(swapped)  # error
    app.on_event(number)  # error


async def book(day: datetime) -> Receipt:
    return Receipt()


async def steps() -> None:
    await step(book)  # error
    await step(book, "today")  # error
    await step.using(key=1.5)(book, datetime.now(UTC))  # error
    await step.using(delay="1h")  # error
    number: int = await step(book, datetime.now(UTC))  # error
    text: str = step_sync(len, "a")  # error
    await sleep(None)  # error
    print(number, text)


@app.task
async def mail(receipt: Receipt, lang: str, *, copy: bool = False) -> str:
    return lang


@app.task
def archive(path: str) -> None: ...


@app.task
async def users_of(day: str) -> list[int]:
    return []


@app.task
async def orders_of(day: str) -> dict[str, int]:
    return {}


@app.task
async def join_day(users: list[int], orders: dict[str, int], *, day: str) -> float:
    return 1.0


@app.task
async def add_up(counts: Sequence[int]) -> int:
    return sum(counts)


async def workflows() -> None:
    first, handle = charge.job(7, "acme"), await charge.aenqueue(7, "acme")
    first.then(archive)  # error
    first.then(mail)  # error
    first.then(mail, 5)  # error
    first.then(mail, "en", cpy=True)  # error
    first.then(mail.using(delay="1h").job, 5)  # error
    await handle.athen(archive)  # error
    handle.then(mail, 5)  # error
    join_day.job(orders_of.job("mon").out, users_of.job("mon").out, day="mon")  # error
    group(users_of.job(day) for day in ["mon"]).then(add_up)  # error
    group([first]).then(mail, "en")  # error
    archive.using(after=5).enqueue("x")  # error
    archive.using(after=first, when="never").enqueue("x")  # error
    await app.aenqueue(first.out)  # error
    app.open_group(7)  # error
    app.open_group("x", on_done=archive)  # error
    current_job().group.enqueue_many([archive])  # error
    await current_job().then(archive)  # error


@app.task
async def parent(day: str) -> int:
    resize((await gather(charge.job(7, day), users_of.job(day)))[0])  # error
    resize(await charge.job(7, "acme"))  # error
    _, two = await gather(charge.job(7, day), users_of.job(day))
    resize(two)  # error
    _, _ = await gather(charge.job(7, day), users_of.job(day), orders_of.job(day))  # error
    resize(await group([users_of.job(day)]))  # error
    await gather(charge)  # error
    gather_sync(handle=charge.job(7, day))  # error
    resize(charge.job(7, "acme").wait_sync())  # error
    return await users_of.job(day)  # error


paid = app.event("order.paid", Receipt)


@app.task
async def saga(order: int) -> None:
    await paid.asignal(order, 5)  # error
    paid.signal(1.5, charge)  # error
    await paid.wait([order])  # error
    number: int = await paid.wait(order)  # error
    resize(paid.wait_sync(order))  # error
    app.event(7, Receipt)  # error
    await undo(charge)  # error
    undo_sync(order)  # error
    print(number)
