"""Calls that must type-check, in pyright and in mypy."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, assert_type

from headrace import (
    AsyncCall,
    Event,
    Explanation,
    Failure,
    FollowUp,
    GroupStatus,
    Handle,
    Handles,
    Headrace,
    Job,
    JobCall,
    JobContext,
    JobGroup,
    Limit,
    OpenGroup,
    Results,
    Retry,
    SyncCall,
    Task,
    Unique,
    WorkerInfo,
    ageing,
    current_job,
    gather,
    gather_sync,
    group,
    sleep,
    sleep_sync,
    step,
    step_sync,
    undo,
    undo_sync,
    weighted,
)
from headrace.model.job import JobId
from headrace.model.records import CancelAnswer, Page, Pause
from headrace.operate.dead.letters import Group
from headrace.operate.dead.moves import Discarded, Replayed
from headrace.operate.limits import LimitEntry
from headrace.policy.schedule_entry import ScheduleEntry

app = Headrace("memory://")


class Receipt:
    pass


def shop_of(order_id: int, shop: str, *, test: bool = False) -> str:
    return shop


@app.task(queue="billing", priority=5, timeout="2m", retry=Retry(max_attempts=8), tenant=shop_of)
async def charge(order_id: int, shop: str, *, test: bool = False) -> Receipt:
    return Receipt()


def order_of(order_id: int, shop: str) -> int:
    return order_id


stripe = Limit("stripe", rate="90/s", burst=30, breaker=5, cool_down=timedelta(seconds=5))
per_shop = Limit("shop", concurrency=4, key=shop_of, cost=order_of)
shares = {"high": 80, "low": 20}
app.queue("billing", weights={"acme": 3}, priority=weighted(shares), fair_by="time")
app.queue("mail", fair="off", priority=ageing("1m"), max_length=1000)
app.queue("bulk", fair="proportional", priority="strict")


@app.task(limits=[stripe, per_shop], unique=Unique(key=order_of, within="10m", on_conflict="replace"))
async def bill(order_id: int, shop: str) -> None:
    stripe.tripped(until="30s")


@app.task
def resize(image_id: int) -> None: ...


@app.task
async def ping() -> str:
    return "pong"


@app.task(
    executor="process", redact=["password"], result_ttl=timedelta(days=2), max_payload=1024, expires="5m", deadline="1h"
)
def crunch(*numbers: float, scale: float = 1.0) -> float:
    return sum(numbers) * scale


def tell(done: int, total: int, what: str) -> None: ...


def sync_code() -> None:
    assert_type(charge.enqueue(7, "acme"), Handle[Receipt])
    assert_type(charge.enqueue(7, shop="acme", test=True), Handle[Receipt])
    assert_type(charge.enqueue(7, "acme").result(timeout=30), Receipt)
    assert_type(charge.enqueue(7, "acme").status(), Job)
    assert_type(charge.enqueue(7, "acme").cancel(), bool)
    assert_type(charge.enqueue(7, "acme").explain(), Explanation)
    assert_type(app.explain("01890a5d-ac96-774b-bcce-b302099a0001").until, datetime | None)
    charge.using(expires="10m", deadline=datetime.now(UTC)).enqueue(7, "acme")
    assert_type(bill.enqueue(7, "acme").created, bool)
    app.pause("billing")
    app.pause(task="shop.bill", until="2h", by="ann")
    app.resume(tenant="acme")
    app.limits.set("stripe", rate="50/s", concurrency=4)
    assert_type(resize(1), None)
    assert_type(resize.enqueue(1).result("30s"), None)
    assert_type(crunch(1, 2.5, scale=2), float)
    assert_type(crunch.enqueue(1, 2, 3), Handle[float])
    running: Coroutine[Any, Any, Receipt] = charge(7, "acme")
    running.close()
    assert_type(app.enqueue_many(charge.job(i, "acme") for i in range(10)), Handles[Receipt])
    assert_type(app.enqueue_many([charge.job(1, "acme")])[0], Handle[Receipt])
    app.enqueue_many([charge.job(1, "a"), resize.job(2)])
    assert_type(app.get("01890a5d-ac96-774b-bcce-b302099a0001"), Job | None)
    app.cancel(charge.enqueue(7, "acme"), "01890a5d-ac96-774b-bcce-b302099a0001", reason="late")
    app.find(state="dead", queue="billing", limit=10)
    app.find(state=["dead", "done"])
    assert_type(app.find(), Page)
    assert_type(app.cancel("01890a5d-ac96-774b-bcce-b302099a0001"), dict[JobId, CancelAnswer])
    assert_type(app.pauses(), list[Pause])
    assert_type(app.limits.list(), Mapping[str, LimitEntry])
    assert_type(app.limits.set("stripe", burst=3), LimitEntry)
    assert_type(app.schedules.add("nightly", cron="0 3 * * *", job=ping.job()), ScheduleEntry)
    assert_type(app.schedules.run_now("nightly"), JobId)
    assert_type(app.schedules.pause("nightly", by="ann"), None)
    assert_type(app.dead.groups(queue="billing", progress=tell), list[Group])
    assert_type(app.dead.replay(charge.enqueue(7, "acme"), rate="50/s", canary=3, task="bill"), Replayed)
    assert_type(app.dead.discard(group="0123456789ab", reason="fixed"), Discarded)
    cancel: Callable[[str | None], bool] = charge.enqueue(7, "acme").cancel
    cancel("late")
    unbound: Callable[[Headrace], list[Pause]] = Headrace.pauses
    unbound(app)


async def async_code() -> None:
    assert_type(await charge(7, "acme"), Receipt)
    assert_type(await charge.aenqueue(7, shop="acme"), Handle[Receipt])
    assert_type(await (await ping.aenqueue()).aresult(timeout=1.5), str)
    assert_type(await charge.using(delay="5m", priority=9, key="order-7").aenqueue(7, "acme"), Handle[Receipt])
    await charge.using(run_at=datetime.now(UTC), tenant="acme", queue="q", tx=object()).aenqueue(7, "acme")
    assert_type(await app.aenqueue_many([ping.job()]), Handles[str])
    assert_type(await app.aenqueue_many([ping.using(delay="1s").job()], tx=object()), Handles[str])
    assert_type(await app.aexplain(await ping.aenqueue()), Explanation)
    assert_type(await (await ping.aenqueue()).aexplain(), Explanation)
    async with app.worker(concurrency=10, queues=["billing"]):
        pass
    async with app:
        pass


def takes_any_task(task: Task[..., Any]) -> str:
    return task.name


takes_any_task(charge)
takes_any_task(resize)
assert_type(charge.handle("01890a5d-ac96-774b-bcce-b302099a0001"), Handle[Receipt])
handle: Handle[object] = charge.enqueue(7, "acme")


# ── hooks ────────────────────────────────────────────────────────────────────

T = TypeVar("T")


@app.on_start
def open_pool() -> None: ...


@app.on_start
async def load_model(info: WorkerInfo) -> str:
    return info.name


@app.on_stop
async def close_pool() -> None: ...


@app.lifespan
async def connections(info: WorkerInfo) -> AsyncIterator[None]:
    yield


@app.lifespan
def files() -> Iterator[int]:
    yield 7


@app.lifespan
@asynccontextmanager
async def sessions() -> AsyncGenerator[str, None]:
    yield "session"


@app.lifespan
@contextmanager
def locks(info: WorkerInfo) -> Generator[None, None, None]:
    yield


@app.middleware
async def trace(job: JobContext, call: AsyncCall) -> Any:
    print(job.tenant)
    return await call()


@app.middleware
async def generic(job: JobContext, call: Callable[[], Awaitable[T]]) -> T:
    return await call()


@app.middleware
def trace_sync(job: JobContext, call: SyncCall) -> Any:
    return call()


@app.middleware
def generic_sync(job: JobContext, call: Callable[[], T]) -> T:
    return call()


@app.on_failure
async def alarm(job: JobContext, failure: Failure, follows: FollowUp) -> None:
    assert_type(follows.retry_at, datetime | None)
    assert_type(follows.dead, bool)


@app.on_failure
def alarm_sync(job: JobContext, failure: Failure, follows: FollowUp) -> int:
    return failure.attempt


@app.on_event
def listen(name: str, fields: Mapping[str, Any]) -> None: ...


open_pool()
unchanged: Callable[[WorkerInfo], Coroutine[Any, Any, str]] = load_model


async def book(day: datetime, rooms: int = 1) -> Receipt:
    return Receipt()


def count(words: str) -> int:
    return len(words)


@app.task
async def travel(day: datetime) -> None:
    assert_type(await step(book, day, rooms=2), Receipt)
    assert_type(await step(count, "a b"), int)
    assert_type(await step.using(key=7, lazy=True)(count, "a b"), int)
    await sleep("14d")
    await sleep(day, key="until")


@app.task
def travel_sync(day: datetime) -> None:
    assert_type(step_sync(count, "a b"), int)
    assert_type(step_sync.using(name="words")(count, words="a b"), int)
    sleep_sync(3600)


# ── jobs that follow others ──────────────────────────────────────────────────


class GiftReceipt(Receipt):
    pass


@app.task
async def give(order_id: int) -> GiftReceipt:
    return GiftReceipt()


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
async def words(page: str) -> int:
    return 1


@app.task
async def add_up(counts: Sequence[int]) -> int:
    await current_job().then(words.job("next"))
    await current_job().group.aenqueue_many([words.job("more")])
    return sum(counts)


async def workflows() -> None:
    chain = charge.job(7, "acme").then(mail, "en", copy=True).then(archive)
    assert_type(chain, JobCall[None])
    assert_type(charge.job(7, "acme").then(mail, "en"), JobCall[str])
    assert_type(give.job(7).then(mail, "en"), JobCall[str])
    assert_type(give.job(7).then(mail.using(delay="1h").job, "en", copy=True), JobCall[str])
    assert_type(await app.aenqueue(chain), Handle[None])
    assert_type(app.enqueue(chain, tx=object()), Handle[None])
    users, orders = users_of.job("mon"), orders_of.job("mon")
    assert_type(join_day.job(users.out, orders.out, day="mon"), JobCall[float])
    handle = await charge.aenqueue(1, "x")
    assert_type(await mail.using(after=handle).aenqueue(handle.out, "en"), Handle[str])
    assert_type(await handle.athen(mail, "en"), Handle[str])
    assert_type(handle.then(mail.using(delay="1h").job, "en"), Handle[str])
    assert_type(archive.using(after=[chain, handle, users], when="ended").job("x"), JobCall[None])
    counts = group(words.job(page) for page in ["a", "b"])
    assert_type(counts, JobGroup[int])
    assert_type(counts.out, Results[int])
    assert_type(add_up.job(counts.out), JobCall[int])
    assert_type(counts.then(add_up), JobCall[int])
    assert_type(archive.using(after=counts).job("x"), JobCall[None])
    async with app.open_group("import 7", on_done=chain, on_ended=archive.job("x"), on_failed=words.job("x")) as rows:
        assert_type(rows, OpenGroup[Any])
        assert_type(await rows.aenqueue_many(words.job(page) for page in "ab"), Handles[int])
    assert_type(await rows.astatus(), GroupStatus)
    with app.open_group("import 8") as more:
        assert_type(more.enqueue_many([words.job("a")]), Handles[int])
    assert_type(more.status(), GroupStatus)


@app.task
async def parent(day: str) -> int:
    assert_type(await mail.job(Receipt(), "en"), str)
    text, users, count = await gather(mail.job(Receipt(), "en"), users_of.job(day), words.job("a"))
    assert_type(text, str)
    assert_type(users, list[int])
    assert_type(count, int)
    assert_type(await gather(words.job("a")), tuple[int])
    assert_type(await gather(*(words.job(page) for page in "ab")), tuple[int, ...])
    counts = await group(words.job(page) for page in "ab")
    assert_type(counts, Results[int])
    assert_type(counts[0], int)
    return await charge.job(7, "acme").then(mail, "en").then(words)


@app.task
def sync_parent(day: str) -> int:
    assert_type(mail.job(Receipt(), "en").wait_sync(), str)
    text, users = gather_sync(mail.job(Receipt(), "en"), users_of.job(day))
    assert_type(text, str)
    assert_type(users, list[int])
    assert_type(gather_sync(*(words.job(page) for page in "ab")), tuple[int, ...])
    assert_type(group([words.job("a")]).wait_sync(), Results[int])
    return words.job("a").wait_sync()


paid = app.event("order.paid", Receipt)


@app.task
async def saga(order: int) -> Receipt:
    assert_type(paid, Event[Receipt])
    assert_type(await undo(mail.job(Receipt(), "en")), Handle[str])
    assert_type(await paid.wait(("order", order), timeout="3d"), Receipt)
    assert_type(await paid.asignal(order, GiftReceipt(), tenant="acme"), bool)
    return await paid.wait(order)


@app.task
def sync_saga(order: int) -> Receipt:
    assert_type(undo_sync(archive.job("x")), Handle[None])
    assert_type(paid.signal("key", Receipt()), bool)
    return paid.wait_sync(order, timeout=5)
