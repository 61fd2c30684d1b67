"""Limits, uniqueness, pauses and policies in a worker, on every kind of store."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conftest import nothing_left_behind, opened
from headrace import Limit, RetryAfter, Unique, ageing, current_job, weighted
from headrace.client.client import Client
from headrace.errors import ConfigError
from headrace.model.job import JobId, JobState
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import DONE, PAUSED
from headrace.operate.limits import Limits
from headrace.operate.operations import Operations
from headrace.policy.explain.answer import Reason
from headrace.policy.explain.explain import look
from headrace.policy.flow import Planner
from headrace.policy.queue import declare as declare_queue
from headrace.policy.recovery import LimitObservation, What
from headrace.store import connect
from headrace.store.contract import Store
from headrace.task.handle import Put
from headrace.testing.clock import FakeClock
from headrace.worker import Worker
from worker.flow_bench import FlowBench
from worker.harness import Events, Tally

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "valkey", "http"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def bench(real_store: Store) -> FlowBench:
    return FlowBench(real_store)


@pytest.fixture
async def timeless(store: Store) -> FlowBench:
    """Its store's clock stands still until the test turns it."""
    return FlowBench(store)


class Hall:
    """Counts the calls inside at once."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, name: str) -> None:
        with self._lock:
            self.inside[name] += 1
            self.most[name] = max(self.most[name], self.inside[name])

    def leave(self, name: str) -> None:
        with self._lock:
            self.inside[name] -= 1
            self.done[name] += 1


async def all_done(bench: FlowBench, ids: list[JobId]) -> None:
    async with asyncio.timeout(60):
        while any(job is None or job.state is not JobState.DONE for job in await bench.store.get(ids)):  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.01)


# ── concurrency ──────────────────────────────────────────────────────────────


async def test_a_cap_holds_over_several_workers(bench: FlowBench):
    hall = Hall()
    per_shop = Limit("shop", concurrency=2, key=lambda shop: shop)
    everywhere = Limit("all", concurrency=5)

    @bench.app.task(name="visit", limits=[per_shop, everywhere])
    async def visit(shop: str) -> None:
        for name in (shop, "all"):
            hall.enter(name)
        await asyncio.sleep(0.005)
        for name in (shop, "all"):
            hall.leave(name)

    async with bench.working(), bench.working(), bench.working():
        ids = await bench.ids(*(visit.job(shop) for _ in range(20) for shop in "abc"))
        await all_done(bench, ids)
    assert hall.done == {"a": 20, "b": 20, "c": 20, "all": 60}
    assert hall.most["all"] <= 5
    assert all(hall.most[shop] <= 2 for shop in "abc")
    assert max(hall.most[shop] for shop in "abc") == 2


async def test_a_limit_set_at_run_time_counts_at_once(bench: FlowBench):
    hall, entered, left, go_on = Hall(), Tally(), Tally(), asyncio.Event()

    @bench.app.task(name="visit", limits=[Limit("hall", concurrency=1)])
    async def visit() -> None:
        hall.enter("x")
        entered.add()
        if entered.count > 2:
            await go_on.wait()
        hall.leave("x")
        left.add()

    limits = Operations(bench.store).limits
    ids = await bench.ids(*(visit.job() for _ in range(8)))
    async with bench.working():
        await left.reach(2)
        assert hall.most["x"] == 1
        await limits.set("hall", limits_of(concurrency=4))
        await entered.reach(2 + 4)
        go_on.set()
        await all_done(bench, ids)
    assert hall.most["x"] == 4


def limits_of(**figures: Any) -> Any:
    from headrace.task.limit import LimitFigures

    return LimitFigures(**figures)


# ── declared, set, reset ─────────────────────────────────────────────────────


async def test_a_worker_declares_and_an_operator_overrides(bench: FlowBench):
    @bench.app.task(name="call", limits=[Limit("api", rate="10/s", burst=5)])
    async def call() -> None: ...

    limits = Operations(bench.store).limits
    async with bench.working():
        await declared(limits, "api")
    entry = (await limits.all())["api"]
    assert (entry.rule.rate, entry.rule.burst) == (10.0, 5.0)
    await limits.set("api", limits_of(rate=2.0))
    # A deploy with other figures: the operator's stay, the others change.
    other = FlowBench(bench.store)

    @other.app.task(name="call", limits=[Limit("api", rate="20/s", burst=7)])
    async def call2() -> None: ...

    async with other.working():
        await until_async(lambda: has_burst(limits, 7))
    entry = (await limits.all())["api"]
    assert (entry.rule.rate, entry.rule.burst) == (2.0, 7.0)
    assert (await limits.reset("api")) is not None
    entry = (await limits.all())["api"]
    assert (entry.rule.rate, entry.rule.burst, entry.override) == (20.0, 7.0, None)


async def has_burst(limits: Limits, burst: float) -> bool:
    return (await limits.all())["api"].rule.burst == burst


async def until_async(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.005)


async def declared(limits: Limits, name: str) -> None:
    async def there() -> bool:
        return name in await limits.all()

    await until_async(there)


async def test_two_apps_that_declare_one_limit_are_told(bench: FlowBench, caplog: pytest.LogCaptureFixture):
    limits = Operations(bench.store).limits
    with caplog.at_level(logging.WARNING, "headrace.limits"):
        for app, burst in (("shop:app", 5), ("shop:app", 6), ("mail:app", 6)):
            await limits.declare({"api": Limit("api", rate="10/s", burst=burst).declared}, app=app)
        assert caplog.text == ""  # a deploy, and one that says the same

        other = FlowBench(bench.store, app="mail:app")

        @other.app.task(name="call", limits=[Limit("api", rate="20/s", burst=7)])
        async def call() -> None: ...

        for _ in range(2):
            async with other.working():
                await until_async(lambda: has_burst(limits, 7))
    [record] = caplog.records
    assert record.getMessage().startswith(
        "limit api is declared by two apps of this store: shop:app (10/s burst 6), and now mail:app (20/s burst 7)"
    )


async def test_nonsense_to_an_operator(bench: FlowBench):
    @bench.app.task(name="call", limits=[Limit("api", concurrency=5, cost=3, key=lambda: "x")])
    async def call() -> None: ...

    limits = Operations(bench.store).limits
    await limits.declare(bench.app.limits.declared)
    with pytest.raises(ConfigError, match="concurrency = 2, and one job needs 3 units"):
        await limits.set("api", limits_of(concurrency=2))
    with pytest.raises(ConfigError, match="burst = 9 without a rate"):
        await limits.set("api:x", limits_of(burst=9))
    with pytest.raises(ConfigError, match="give at least one of"):
        await limits.set("api", limits_of())
    with pytest.raises(Exception, match=r"no limit 'apo' \(known: api\)"):
        await limits.set("apo", limits_of(concurrency=4))
    # One key of its own.
    await limits.set("api:x", limits_of(concurrency=3))
    await limits.set("api", limits_of(rate=7.0))
    entry = (await limits.all())["api:x"]
    assert (entry.rule.concurrency, entry.rule.rate) == (3, 7.0)
    assert await limits.reset("api:x") is None
    assert set(await limits.all()) == {"api"}


# ── rates ────────────────────────────────────────────────────────────────────


async def test_a_rate_holds_over_every_window_within_the_burst(timeless: FlowBench, clock: FakeClock):
    started: list[datetime] = []

    @timeless.app.task(name="call", limits=[Limit("api", rate="10/s", burst=4)])
    async def call() -> None:
        started.append(clock.now())

    await Limits(timeless.store).declare(timeless.app.limits.declared)
    ids = await timeless.ids(*(call.job() for _ in range(30)))
    async with timeless.working(poll="20ms") as worker:
        while len(started) < 30:
            await at_rest(worker)
            clock.advance(timedelta(milliseconds=130))
        await all_done(timeless, ids)
    for first in range(len(started)):
        for last in range(first, len(started)):
            window = (started[last] - started[first]).total_seconds()
            assert last - first + 1 <= 4 + 10 * window + 1e-6


async def at_rest(worker: Worker) -> None:
    """Wait until nothing is held and a whole claim has come back empty."""
    for _ in range(2):
        worker.idle.clear()
        await worker.idle.wait()


# ── refusals ─────────────────────────────────────────────────────────────────


async def test_a_refusal_closes_the_limit_and_a_probe_reopens_it(bench: FlowBench):
    events = bench.events = Events()
    calls: list[float] = []
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()
    api = Limit("api", rate="1000/s", burst=100)

    @bench.app.task(name="call", limits=[api], retry=_patient())
    async def call() -> None:
        calls.append(loop.time())
        if len(calls) == 1:
            raise RetryAfter("300ms")
        await looked.wait()  # nothing succeeds before

    limits = Operations(bench.store).limits
    async with bench.working():
        await declared(limits, "api")
        first = await bench.ids(call.job())
        await events.heard("limit.closed")
        closed = (await limits.all())["api"]
        assert closed.half_open
        assert closed.rule.closed_until is not None
        assert closed.rule.rate == 500.0
        more = await bench.ids(*(call.job() for _ in range(5)))
        looked.set()
        await all_done(bench, first + more)
        await events.heard("limit.opened")
    entry = (await limits.all())["api"]
    assert not entry.half_open
    assert 0.5 <= entry.health.factor < 1.0
    assert calls[1] - calls[0] > 0.25


def _patient() -> Any:
    from headrace import Retry

    return Retry(max_attempts=100, base="50ms", cap="100ms")


async def test_a_refusal_in_seconds_closes_the_key_that_the_arguments_leave_out(bench: FlowBench):
    events = bench.events = Events()
    per_shop = Limit("shop", rate="1000/s", key=lambda order, shop: shop)

    @bench.app.task(name="call", limits=[per_shop])
    async def call(order: int, shop: str = "acme") -> None:
        raise RetryAfter(3600)

    limits = Operations(bench.store).limits
    async with bench.working():
        await declared(limits, "shop")
        await bench.ids(call.job(1))
        await events.heard("limit.closed")
        found = await limits.all()
        assert found["shop:acme"].half_open
        assert not found["shop"].half_open
        until = found["shop:acme"].rule.closed_until
        assert until is not None
        assert until > await bench.store.now()


async def test_limits_that_nobody_has_heard_of_for_long_are_well_again(bench: FlowBench):
    events = bench.events = Events()
    per_shop = Limit("shop", rate="1000/s", key=lambda shop: shop)

    @bench.app.task(name="call", limits=[per_shop])
    async def call(shop: str) -> None: ...

    limits, now = Operations(bench.store).limits, await bench.store.now()
    await limits.declare({"shop": per_shop.declared})
    for shop, ago in (("old", timedelta(days=2)), ("young", timedelta(hours=2))):
        at = now - ago
        await limits.observe(f"shop:{shop}", per_shop.declared, [LimitObservation(What.REFUSED, at, at)], at)
    async with bench.working():
        await all_done(bench, await bench.ids(call.job("other")))
        await events.heard("limit.opened")
        assert set(await limits.all()) == {"shop", "shop:young"}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_task_trips_a_limit_itself(bench: FlowBench, kind: str):
    events = bench.events = Events()
    refusing = [True]
    per_shop = Limit("shop", concurrency=4, key=lambda shop: shop)

    async def in_loop(shop: str) -> None:
        if shop == "bad" and refusing:
            per_shop.tripped(until="1h")

    def in_thread(shop: str) -> None:
        if shop == "bad" and refusing:
            per_shop.tripped(until=datetime.now(UTC) + timedelta(hours=1))

    function: Any = in_loop if kind == "async" else in_thread
    call = bench.app.task(name="call", limits=[per_shop])(function)

    limits = Operations(bench.store).limits
    async with bench.working():
        await declared(limits, "shop")
        await all_done(bench, await bench.ids(call.job("bad")))
        await events.heard("limit.closed")
        waiting, fine = await bench.ids(call.job("bad"), call.job("good"))
        await all_done(bench, [fine])
        job = await bench.get(waiting)
        assert job.state is JobState.READY
        found = await look(bench.store, waiting, lambda _: None)
        assert found is not None
        assert found[1].reason is Reason.LIMITED
        assert "limit shop:bad is closed until" in found[1].sentence
        assert found[1].until is not None
        # An operator sets other figures.
        refusing.clear()
        await limits.reset("shop:bad")
        await all_done(bench, [waiting])
    assert "shop:bad" not in await limits.all()


async def test_what_cannot_be_tripped(bench: FlowBench):
    other = Limit("other", concurrency=4)
    errors: list[str] = []

    @bench.app.task(name="call", limits=[Limit("own", concurrency=4)])
    async def call() -> None:
        for moment in ("1s", 7, datetime(2030, 1, 1)):  # noqa: DTZ001  # nonsense
            try:
                other.tripped(until=moment)  # type: ignore[arg-type]  # nonsense
            except ConfigError as error:
                errors.append(str(error))

    async with bench.working():
        await all_done(bench, await bench.ids(call.job()))
    assert errors[0] == "task call does not have the limit 'other': add it to its limits=[…]"
    assert "until = 7" in errors[1]
    assert "has no time zone" in errors[2]


async def test_a_breaker_opens_probes_and_closes(bench: FlowBench):
    events = bench.events = Events()
    repaired = asyncio.Event()
    ran = 0
    db = Limit("db", breaker=3, cool_down="200ms")

    @bench.app.task(name="query", limits=[db], retry=_patient())
    async def query() -> None:
        nonlocal ran
        ran += 1
        if ran <= 3:
            raise RuntimeError("down")
        await repaired.wait()

    limits = Operations(bench.store).limits
    async with bench.working(concurrency=1):
        await declared(limits, "db")
        ids = await bench.ids(*(query.job() for _ in range(10)))
        await events.heard("limit.closed")
        assert (await limits.all())["db"].half_open
        repaired.set()
        await all_done(bench, ids)
        await events.heard("limit.opened")
    assert ran == 10 + 3


# ── uniqueness ───────────────────────────────────────────────────────────────


async def test_unique_jobs_answer_their_holder(bench: FlowBench):
    gate = asyncio.Event()

    @bench.app.task(name="sync", unique=Unique(key=lambda shop, why: shop))
    async def sync(shop: str, why: str) -> None:
        await gate.wait()

    [one] = await bench.put(sync.job("acme", "a"))
    [same, other] = await bench.put(sync.job("acme", "b"), sync.job("zeta", "b"))
    assert one.created
    assert (same.id, same.created) == (one.id, False)
    assert other.created
    async with bench.working():
        await bench.reach(one.id, JobState.RUNNING)
        [while_running] = await bench.put(sync.job("acme", "c"))
        assert while_running.id == one.id
        gate.set()
        await all_done(bench, [one.id, other.id])
        [afterwards] = await bench.put(sync.job("acme", "d"))
        assert afterwards.created
        await all_done(bench, [afterwards.id])


async def test_debounce_runs_once_with_the_last_arguments(timeless: FlowBench, clock: FakeClock):
    ran: list[int] = []

    @timeless.app.task(name="index", unique=Unique(key=lambda page, _: page, within="150ms", on_conflict="debounce"))
    async def index(page: str, version: int) -> None:
        ran.append(version)

    async with timeless.working(poll="20ms") as worker:
        puts: list[Put] = []
        for version in range(5):
            puts += await timeless.put(index.job("home", version))
            clock.advance(0.1)
            await at_rest(worker)
        assert ran == []
        clock.advance(0.1)
        await all_done(timeless, [puts[-1].id])
    assert ran == [4]
    assert Counter(await timeless.states()) == {JobState.CANCELLED: 4, JobState.DONE: 1}


# ── pauses ───────────────────────────────────────────────────────────────────


async def test_a_paused_task_waits_and_resumes_at_once(bench: FlowBench):
    ran: list[str] = []

    @bench.app.task(name="mail")
    async def mail() -> None:
        ran.append("mail")

    @bench.app.task(name="bill")
    async def bill() -> None:
        ran.append("bill")

    pauses = Operations(bench.store, actor="ann").pauses
    await pauses.pause("mail", kind="task")
    async with bench.working():
        held, free = await bench.ids(mail.job(), bill.job())
        await all_done(bench, [free])
        job = await bench.reach(held, JobState.SCHEDULED)
        assert (job.failures, job.note) == (0, f"{PAUSED} by ann")
        found = await look(bench.store, held, lambda _: None)
        assert found is not None
        assert found[1].reason is Reason.PAUSED
        assert "task mail is paused by ann since" in found[1].sentence
        assert "headrace resume --task mail" in found[1].sentence
        assert ran == ["bill"]
        await pauses.resume("mail", kind="task")
        await all_done(bench, [held])
    assert ran == ["bill", "mail"]


async def test_a_task_paused_until_a_time(timeless: FlowBench, clock: FakeClock):
    @timeless.app.task(name="mail")
    async def mail() -> None: ...

    await Operations(timeless.store).pauses.pause("mail", kind="task", until=MINUTE)
    async with timeless.working():
        [held] = await timeless.ids(mail.job())
        job = await timeless.reach(held, JobState.SCHEDULED)
        assert job.run_at is not None
        clock.advance(MINUTE)
        await all_done(timeless, [held])


async def test_a_paused_tenant_waits_alone(bench: FlowBench):
    @bench.app.task(name="mail", tenant=lambda who: who)
    async def mail(who: str) -> None: ...

    pauses = Operations(bench.store, actor="ann").pauses
    await pauses.pause("acme", kind="tenant", until=timedelta(hours=2))
    async with bench.working():
        held, free = await bench.ids(mail.job("acme"), mail.job("zeta"))
        await all_done(bench, [free])
        found = await look(bench.store, held, lambda _: None)
        assert found is not None
        assert found[1].reason is Reason.PAUSED
        assert "its tenant acme is paused by ann" in found[1].sentence
        assert found[1].until is not None
        await pauses.resume("acme", kind="tenant")
        await all_done(bench, [held])


# ── priorities and tenants ───────────────────────────────────────────────────


async def order_of(bench: FlowBench, calls: list[Any], **settings: Any) -> list[str]:
    ran: list[str] = bench.app.ran  # type: ignore[attr-defined]  # put there by the test
    ids = await bench.ids(*calls)
    async with bench.working(concurrency=1, **settings):
        await all_done(bench, ids)
    return ran


def recording(bench: FlowBench, **options: Any) -> Any:
    ran: list[str] = []
    bench.app.ran = ran  # type: ignore[attr-defined]  # where `order_of` finds it

    @bench.app.task(name="note", **options)
    async def note(name: str) -> None:
        ran.append(name)

    return note


async def test_weighted_bands_share_the_slots(bench: FlowBench):
    bench.app.queue("default", priority=weighted({"high": 80, "low": 20}))
    note = recording(bench)
    calls = [note.using(priority=priority).job(name) for name, priority in [("h", 5), ("l", 0)] for _ in range(200)]
    ran = await order_of(bench, calls)
    # A claim takes the high ones of its share first, so what a cut shows may be off by one claim.
    assert 60 <= ran[:100].count("h") < 100


@pytest.mark.timeout(600)  # on the slowest machine
@pytest.mark.parametrize("size", [1, 7, 40])
async def test_shares_hold_within_five_percent_over_10_000_jobs(bench: FlowBench, size: int):
    """The planner's figures, claim by claim of any size, as a worker makes them."""
    options = declare_queue("default", priority=weighted({"high": 80, "low": 20}), weights={"acme": 3})
    planner = Planner(("default",), {"default": options})
    note = recording(bench, tenant=lambda name: name)
    number = 10_000 if size > 1 else 1000
    shares = {(5, "acme"): 0.6, (5, "zeta"): 0.2, (0, "acme"): 0.15, (0, "zeta"): 0.05}
    # A tenth more than its share of each kind, so that a share that is too large shows.
    jobs = [
        note.using(priority=priority).job(tenant).job
        for (priority, tenant), share in shares.items()
        for _ in range(round(number * (share + 0.1)))
    ]
    for start in range(0, len(jobs), 5000):
        await Client(bench.store).enqueue(jobs[start : start + 5000])
    got: Counter[tuple[int, str]] = Counter()
    while got.total() < number:
        order = planner.plan(size)
        ask = Ask(new_worker_id(), ("default",), size, MINUTE, new_token(), bands=order.bands, weights=order.weights)
        lease = await bench.store.claim(ask)
        assert lease is not None
        got.update((job.priority, job.tenant) for job in lease.jobs)
        await bench.store.settle(lease.token, [(place, DONE) for place in range(len(lease.jobs))])
    for which, share in shares.items():
        assert abs(got[which] / got.total() - share) < 0.05


async def test_ageing_lets_the_oldest_go_first(timeless: FlowBench, clock: FakeClock):
    timeless.app.queue("default", priority=ageing("1m"))
    note = recording(timeless)
    old = await timeless.ids(*(note.using(priority=0).job("old") for _ in range(20)))
    clock.advance(10 * MINUTE)
    new = await timeless.ids(*(note.using(priority=5).job("new") for _ in range(20)))
    async with timeless.working(concurrency=1):
        await all_done(timeless, old + new)
    ran: list[str] = timeless.app.ran  # type: ignore[attr-defined]  # put there by `recording`
    assert ran[:20].count("old") >= 19


async def test_a_burst_of_one_tenant_delays_another_by_one_round(bench: FlowBench):
    note = recording(bench, tenant=lambda name: name)
    ran = await order_of(bench, [*(note.job("big") for _ in range(300)), note.job("small")])
    # What was claimed before anything had run is behind it at most.
    assert ran.index("small") <= 3


async def test_tenants_without_turns(bench: FlowBench):
    bench.app.queue("default", fair="off")
    tenants: list[str] = []

    @bench.app.task(name="who", tenant=lambda name: name)
    async def who(name: str) -> None:
        tenants.append(current_job().tenant)

    ids = await bench.ids(*(who.job("big") for _ in range(20)), who.job("small"))
    async with bench.working(concurrency=1):
        await all_done(bench, ids)
    assert tenants == ["big"] * 20 + ["small"]
    assert {job.tenant for job in await bench.found()} == {""}


async def test_equal_time_means_more_of_the_quick(bench: FlowBench):
    bench.app.queue("default", fair_by="time")
    ran: list[str] = []
    began = Tally()

    @bench.app.task(name="note", tenant=lambda name: name)
    async def note(name: str) -> None:
        ran.append(name)
        began.add()
        await asyncio.sleep(0.05 if name == "slow" else 0)

    ids = await bench.ids(*(note.job("slow") for _ in range(100)), *(note.job("quick") for _ in range(400)))
    async with bench.working(concurrency=1):
        await began.reach(150)
        quick, slow = ran[30:150].count("quick"), ran[30:150].count("slow")
        await bench.store.cancel(ids)
    assert quick > 2 * slow


async def test_reserved_slots_ask_by_the_queues_weights(bench: FlowBench, monkeypatch: pytest.MonkeyPatch):
    asks: list[Ask] = []
    claim = bench.store.claim

    async def noted(ask: Ask) -> Any:
        asks.append(ask)
        return await claim(ask)

    monkeypatch.setattr(bench.store, "claim", noted)
    bench.app.queue("default", weights={"acme": 9})

    @bench.app.task(name="work")
    async def work() -> None: ...

    async with bench.working(concurrency=5, reserve=["high=2"]):
        await all_done(bench, await bench.ids(work.job()))
    narrow = [ask for ask in asks if ask.only_bands]
    assert narrow
    assert all(ask.weights == {"default": {"acme": 9}} for ask in narrow)


async def test_reserved_slots_are_free_when_they_are_needed(bench: FlowBench):
    gate = asyncio.Event()
    running = {"low": Tally(), "high": Tally()}

    @bench.app.task(name="work")
    async def work(name: str) -> None:
        running[name].add()
        await gate.wait()

    async with bench.working(concurrency=5, reserve=["high=2"]):
        low = await bench.ids(*(work.job("low") for _ in range(10)))
        await running["low"].reach(3)
        high = await bench.ids(*(work.using(priority=5).job("high") for _ in range(4)))
        await running["high"].reach(2)
        assert {name: each.count for name, each in running.items()} == {"low": 3, "high": 2}
        gate.set()
        await all_done(bench, low + high)


# ── time ─────────────────────────────────────────────────────────────────────


async def test_limits_of_a_store_that_fails_for_a_while(store_url: str):
    """Declaring is tried until it works."""
    from headrace.errors import Unavailable

    async with nothing_left_behind(), opened(connect(store_url)) as store:
        bench = FlowBench(_Shaky(store, Unavailable("away")))  # type: ignore[arg-type]  # delegates everything

        @bench.app.task(name="call", limits=[Limit("api", rate="10/s")])
        async def call() -> None: ...

        async with bench.working():
            await declared(Limits(store), "api")


class _Shaky:
    """A store whose limits cannot be read at first."""

    def __init__(self, store: Store, error: Exception) -> None:
        self._store = store
        self._error = error
        self._left = 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def limits(self) -> Any:
        if self._left:
            self._left -= 1
            raise self._error
        return await self._store.limits()
