"""What a token may do by `/v1/store/…` is what it may do by `/v1`: the same jobs, the same view, the same keys, the same pace."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import msgspec
import pytest

from headrace import Headrace
from headrace.model.job import Batch, Job, JobId, Key, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.records import Filter, LimitRule
from headrace.model.scope import Scope
from headrace.operate.limits import Limits
from headrace.operate.operations import Operations
from headrace.operate.schedules import KIND, Schedules
from headrace.policy.recovery import WELL, LimitHealth, LimitObservation, State, What, pack
from headrace.policy.schedule import Schedule, Template
from headrace.policy.schedule_entry import Decision, ScheduleEntry, encode, fingerprint, slot_job_id
from headrace.server import ServerSettings
from headrace.store import connect
from headrace.store.http import wire
from headrace.task.codec import JobOptions, encode_options
from headrace.task.limit import LimitDeclaration, LimitFigures
from headrace.task.unique import Unique
from headrace.webhooks.deliver import QUEUE, TASK
from server.running import Running, make_app, running

NOTHING = b"\x92\x90\x80"
HOUR = timedelta(hours=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def call(client: httpx2.AsyncClient, verb: str, *arguments: Any) -> httpx2.Response:
    return await client.post(f"/v1/store/{verb}", content=wire.encode(arguments), headers={"Content-Type": wire.MEDIA})


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, "" if answer.is_success else answer.json()["code"]


def entry(template: Template, **more: Any) -> ScheduleEntry:
    schedule = Schedule(name="s", every=timedelta(seconds=1), job=template)
    return ScheduleEntry(schedule=schedule, cursor=NOW, digest=fingerprint(schedule), **more)


def template(task: str = "echo", queue: str = "default", **more: Any) -> Template:
    limits = more.pop("limits", ())
    return Template(task, NOTHING, Lane(queue, limits=limits), **more)


def packed(job: NewJob) -> wire.WireBatch:
    return wire.pack_batch(Batch(new_batch(), [job]))


# ── jobs and schedules pass the same checks ──────────────────────────────────

BAD = {
    "limit key": template(limits=("x@abc",)),
    "no limit": template(limits=("@3",)),
    "signed task": template(TASK, QUEUE),
    "own queue": template(queue="headrace.webhooks"),
    "shard": template(queue="default#63"),
    "task name": template("../x"),
    "attempts": template(options=encode_options(JobOptions(max_attempts=-5))),
    "timeout": template(options=encode_options(JobOptions(timeout=-1.0))),
    "webhook": template(options=encode_options(JobOptions(webhook="http://169.254.169.254/latest"))),
    "lock": template(unique=UniqueLock("\0", frozenset())),
    "size": Template("echo", b"x" * 300_000, Lane()),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("scopes", [("enqueue", "work"), ("admin",)], ids=str)
async def test_a_job_is_refused_at_every_door(server: Running, name: str, scopes: tuple[str, ...]) -> None:
    bad = BAD[name]
    job = NewJob(bad.task, bad.payload, bad.lane, options=bad.options, unique=bad.unique)
    async with server.client(await server.token(*scopes)) as client:
        direct = await call(client, "enqueue", packed(job))
        assert direct.status_code == 422 or (name == "signed task" and direct.status_code == 200), direct.text
        written = await call(client, "record", KIND, "s", encode(entry(bad)), None)
        assert written.status_code == 422, written.text
    assert await server.store.records(KIND) == {}
    assert (await server.store.find(Filter())).jobs == []


# Where webhooks may go and how large a payload may be, only a door knows.
@pytest.mark.parametrize("name", [each for each in BAD if each not in {"webhook", "size"}])
async def test_a_schedule_that_was_stored_all_the_same_is_not_fired(server: Running, name: str) -> None:
    await server.store.record(KIND, "s", encode(entry(BAD[name], pending=(NOW,))), None)
    assert await Schedules(server.store).all() == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"every": timedelta(0)},
        {"every": timedelta(microseconds=1)},
        {"every": None},
        {"every": None, "cron": "61 * * * *"},
        {"every": None, "cron": "nonsense"},
        {"catch_up": "all(9999)"},
        {"jitter": timedelta(seconds=-1)},
        {"name": "other"},
        {"tz": "Nowhere/Atall"},
    ],
    ids=str,
)
async def test_a_rule_that_no_worker_could_follow(server: Running, broken: dict[str, Any]) -> None:
    schedule = msgspec.structs.replace(entry(template()).schedule, **broken)
    made = ScheduleEntry(schedule=schedule, cursor=NOW, digest=fingerprint(schedule))
    async with server.client(await server.token("admin")) as client:
        refused = await call(client, "record", KIND, "s", encode(made), None)
        assert code(refused) in {(422, "invalid_value"), (422, "invalid_cron"), (422, "invalid_timezone")}
        naive = msgspec.structs.replace(entry(template()), cursor=datetime(2026, 1, 1))  # noqa: DTZ001
        assert code(await call(client, "record", KIND, "s", encode(naive), None)) == (422, "invalid_value")
        assert code(await call(client, "record", KIND, "s", b"\xc1", None)) == (422, "invalid_value")


async def test_a_worker_declares_and_ticks_and_does_nothing_else(server: Running) -> None:
    victim = UUID((await server.http.post("/v1/jobs", json={"task": "echo", "delay": "1h"})).json()["id"])
    slot = NOW + timedelta(seconds=1)
    declared = entry(template())
    own = slot_job_id("s", slot)
    decided = msgspec.structs.replace(declared, cursor=slot, pending=(slot,), fired=1)
    fired = msgspec.structs.replace(decided, pending=(), last=own)
    async with server.client(await server.token("enqueue", "work")) as client:
        version: int | None = None

        async def refuses(made: ScheduleEntry | None) -> None:
            value = None if made is None else encode(made)
            assert code(await call(client, "record", KIND, "s", value, version)) == (403, "missing_scope")

        async def takes(made: ScheduleEntry) -> int:
            answer = await call(client, "record", KIND, "s", encode(made), version)
            assert answer.status_code == 200, answer.text
            written: int = msgspec.msgpack.decode(answer.content, type=int)
            return written

        forged: list[dict[str, Any]] = [{"cancel": victim}, {"last": victim}]
        for extra in (*forged, {"paused": True}, {"digest": b"forged"}, {"pending": (slot,)}):
            await refuses(msgspec.structs.replace(declared, **extra))
        version = await takes(declared)
        for extra in forged:
            await refuses(msgspec.structs.replace(decided, **extra))
        version = await takes(decided)
        version = await takes(fired)
        again = msgspec.structs.replace(fired, pending=(slot + timedelta(seconds=1),), cancel=own)
        version = await takes(again)
        await refuses(msgspec.structs.replace(again, recent=(Decision("run", NOW, job=own),)))
        await refuses(None)


# ── what is seen ─────────────────────────────────────────────────────────────


async def _seen(server: Running, token: str, id: JobId, *, lists: bool = True) -> list[Job]:
    store = connect(f"http://{token}@127.0.0.1:{server.port}")
    await store.open()
    try:
        (got,) = await store.get([id])
        assert got is not None
        return [got, *((await store.find(Filter())).jobs if lists else ())]
    finally:
        await store.close()


async def test_arguments_are_masked_or_not_there(server: Running) -> None:
    asked = {"task": "login", "args": ["ann", "hunter2"], "webhook": "https://example.com/secret-path"}
    id = JobId(UUID((await server.http.post("/v1/jobs", json=asked)).json()["id"]))
    for scopes in (("enqueue",), ("read",), ("read", "enqueue"), ("read", "operate"), ("enqueue", "read", "operate")):
        for job in await _seen(server, await server.token(*scopes), id, lists="read" in scopes):
            assert b"hunter2" not in msgspec.msgpack.encode(job), scopes
            assert b"secret-path" not in msgspec.msgpack.encode(job), scopes
            if "read" in scopes:
                assert b"ann" in job.payload
            else:
                assert (job.payload, job.options, job.log, job.history) == (b"", None, (), ())
    for scopes in (("read", "work"), ("admin",)):
        for job in await _seen(server, await server.token(*scopes), id):
            assert b"hunter2" in job.payload


async def test_the_arguments_of_a_schedule_are_masked_and_kept(server: Running) -> None:
    job = server.app.tasks["login"].using(webhook="https://example.com/secret-path").job("ann", "hunter2").job
    made = Schedule(name="s", cron="0 3 * * *", job=Template(job.task, job.payload, job.lane, options=job.options))
    await Operations(server.store).schedules.add(made)
    for scopes in (("read",), ("operate",), ("read", "operate")):
        store = connect(f"http://{await server.token(*scopes)}@127.0.0.1:{server.port}")
        await store.open()
        seen = (await store.records(KIND))["s"].value
        assert b"ann" in seen
        assert b"hunter2" not in seen
        assert b"secret-path" not in seen
        if "operate" in scopes:
            await Operations(store).schedules.pause("s")
            await Operations(store).schedules.resume("s")
        await store.close()
    assert (await Schedules(server.store).all())["s"].schedule == made


async def test_a_producer_still_gets_its_results(server: Running, app: Headrace) -> None:
    token = await server.token("enqueue")
    far = make_app(f"http://{token}@127.0.0.1:{server.port}")
    add, fail = far.tasks["add"], far.tasks["fail"]
    try:
        good, bad = await add.aenqueue(1, b=2), await fail.aenqueue("as asked")
        async with app.worker(queues=["default", "broken"], concurrency=2):
            assert await good.aresult(timeout=60) == 3
            with pytest.raises(Exception, match="as asked"):
                await bad.aresult(timeout=60)
    finally:
        await far.aclose()


# ── keys and locks ───────────────────────────────────────────────────────────


async def test_a_tenants_keys_are_its_own_at_both_doors(server: Running) -> None:
    one = await server.token("enqueue", tenant="t1")
    two = await server.token("enqueue", tenant="t2")
    key = Key("t2 order-7", timedelta(days=30), b"x" * 16)
    async with server.client(one) as first, server.client(two) as second:
        taken = await call(first, "enqueue", packed(NewJob("echo", NOTHING, Lane(tenant="t1"), key=key)))
        assert taken.status_code == 200
        mine = await second.post("/v1/jobs", json={"task": "echo", "key": "order-7"})
        assert mine.status_code == 201, mine.text
        # Both doors call a key by the same name.
        same = NewJob("echo", NOTHING, Lane(tenant="t2"), key=Key("order-7", HOUR, b"other"))
        met = await call(second, "enqueue", packed(same))
        assert code(met) == (409, "idempotency_conflict")
        assert met.json()["key"] == "order-7"


async def test_a_lock_is_the_one_that_the_task_declares(store_url: str) -> None:
    app = make_app(store_url)

    def order_of(order: int) -> int:
        return order

    @app.task(name="once", unique=Unique(key=order_of, on_conflict="replace"))
    async def once(order: int) -> None: ...

    async with running(app) as server:
        theirs = await server.service.client.put(once.using(tenant="t2").job(7).job)
        foreign = NewJob("elsewhere", NOTHING, Lane("foreign", tenant="t2"), unique=once.job(7).job.unique)
        other = Batch(new_batch(), [foreign])
        await server.store.enqueue(other)
        own = once.using(tenant="t1").job(8).job
        forged = msgspec.structs.replace(own, unique=once.job(7).job.unique)
        async with server.client(await server.token("enqueue", tenant="t1")) as client:
            assert code(await call(client, "enqueue", packed(forged))) == (422, "invalid_value")
            assert code(await call(client, "enqueue", packed(own))) == (200, "")
            taken = msgspec.structs.replace(foreign, lane=Lane("foreign", tenant="t1"))
            assert code(await call(client, "enqueue", packed(taken))) == (200, "")
        found = await server.store.get([theirs, job_id(other.id, 0)])
        assert [job is not None and job.state.finished for job in found] == [False, False]


# ── limits ───────────────────────────────────────────────────────────────────

DECLARED = LimitDeclaration(figures=LimitFigures(concurrency=4, rate=10.0, burst=20), breaker=2)
CLOSED = LimitHealth(factor=0.5, closed_at=NOW, closed_until=NOW + HOUR, closings=1)
FORGED: dict[str, tuple[str, LimitRule | None]] = {
    "figures alone": ("shop", LimitRule(concurrency=1000, rate=1e6, burst=1e6)),
    "figures of a key alone": ("shop:acme", LimitRule(concurrency=1000)),
    "another limit's figures alone": ("other", LimitRule(rate=1e-9)),
    "an operator's figures": (
        "shop",
        LimitRule(state=pack(State(declared=DECLARED, override=LimitFigures(concurrency=9)))),
    ),
    "no declaration any more": ("shop", LimitRule(state=pack(State(health=CLOSED)))),
    "a key with a declaration": ("shop:acme", LimitRule(state=pack(State(declared=DECLARED)))),
    "no rule any more": ("shop", None),
    "no job could run": (
        "shop",
        LimitRule(state=pack(State(declared=LimitDeclaration(figures=LimitFigures(concurrency=0))))),
    ),
    "more than it declares": (
        "shop",
        LimitRule(state=pack(State(declared=DECLARED, health=LimitHealth(factor=1000.0)))),
    ),
    "next to nothing": ("shop", LimitRule(state=pack(State(declared=DECLARED, health=LimitHealth(factor=1e-9))))),
    "a breaker of nothing": (
        "new",
        LimitRule(state=pack(State(declared=LimitDeclaration(figures=LimitFigures(), breaker=-1)))),
    ),
}


@pytest.mark.parametrize("name", FORGED)
async def test_a_worker_writes_no_figures_of_its_own(server: Running, name: str) -> None:
    await Limits(server.store).declare({"shop": DECLARED})
    before = await server.store.limits()
    limit, rule = FORGED[name]
    expect = before[limit].version if limit in before else None
    async with server.client(await server.token("work")) as client:
        refused = await call(client, "limit", limit, rule, expect)
        assert code(refused) in {(403, "missing_scope"), (422, "invalid_value")}, refused.text
    assert await server.store.limits() == before


async def test_the_figures_of_a_report_follow_from_what_it_says(server: Running) -> None:
    await Limits(server.store).declare({"shop": DECLARED})
    version = (await server.store.limits())["shop"].version
    said = LimitRule(concurrency=1000, rate=1e6, burst=1e6, state=pack(State(declared=DECLARED, health=CLOSED)))
    async with server.client(await server.token("work")) as client:
        assert code(await call(client, "limit", "shop", said, version)) == (200, "")
    written = (await server.store.limits())["shop"]
    assert (written.concurrency, written.rate, written.burst) == (4, 5.0, 20.0)
    assert written.closed_until == NOW + HOUR


async def test_a_worker_declares_reports_and_recovers(server: Running) -> None:
    """All that a worker does with limits goes with the scope `work` alone."""
    store = connect(f"http://{await server.token('work')}@127.0.0.1:{server.port}")
    await store.open()
    try:
        limits = Limits(store)
        await limits.declare({"shop": DECLARED}, app="a")
        await limits.declare({"shop": msgspec.structs.replace(DECLARED, breaker=3)}, app="b")
        for key in ("shop", "shop:acme"):
            closed = await limits.observe(key, DECLARED, [LimitObservation(What.REFUSED, NOW, NOW + HOUR)], NOW)
            assert closed.closed_until == NOW + HOUR
            assert (await server.store.limits())[key].closed_until == NOW + HOUR
        later = NOW + timedelta(days=3)
        assert await limits.observe("shop:acme", DECLARED, [], later) == WELL
        assert "shop:acme" not in await server.store.limits()
        assert await limits.observe("shop", DECLARED, [], later) == WELL
    finally:
        await store.close()


async def test_a_report_that_an_operator_was_faster_than_is_written_again(server: Running) -> None:
    """The version has changed: the worker is not told that it lacks a scope, it reads again."""
    limits = Operations(server.store).limits
    await limits.declare({"shop": DECLARED})
    read = (await server.store.limits())["shop"]
    await limits.set("shop", LimitFigures(concurrency=2))
    async with server.client(await server.token("work")) as client:
        answer = await call(client, "limit", "shop", read, read.version)
        assert (answer.status_code, msgspec.msgpack.decode(answer.content)) == (200, None)


# ── how often, and how much ──────────────────────────────────────────────────


async def test_looks_are_counted_together_at_both_doors(app: Headrace) -> None:
    async with running(app, ServerSettings(port=0, max_polls=10)) as server:
        token = await server.token("read")
        async with server.client(token) as client:
            answers = [await call(client, "stats") for _ in range(5)]
            answers += [await client.get("/v1/stats") for _ in range(5)]
            assert {each.status_code for each in answers} == {200}
            late = await asyncio.gather(*(call(client, "stats") for _ in range(30)))
            assert (429, "too_many_polls") in [code(each) for each in late]
        # A fleet that shares a token asks for some of it every second.
        async with server.client(await server.token("work")) as client:
            for verb, given in (
                ("pauses", ()),
                ("limits", ()),
                ("records", (KIND,)),
                ("lanes", (["q"], 5)),
                ("stats", ()),
            ):
                answers = [await call(client, verb, *given) for _ in range(30)]
                assert {each.status_code for each in answers} == {200}, verb


async def test_the_http_store_waits_when_it_looks_too_often(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    asleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds >= 1:
            waited.append(seconds)
        await asleep(seconds)

    async with running(app, ServerSettings(port=0, max_polls=5)) as server:
        store = connect(f"http://{await server.token('read')}@127.0.0.1:{server.port}")
        await store.open()
        monkeypatch.setattr("headrace.store.http.store.asyncio.sleep", sleep)
        for _ in range(8):
            await store.find(Filter())
        await store.close()
    assert waited


async def test_figures_are_asked_for_once(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(app, ServerSettings(port=0, stats_ttl=60.0)) as server:
        asked = 0
        stats = server.store.stats

        async def counted() -> Any:
            nonlocal asked
            asked += 1
            return await stats()

        monkeypatch.setattr(server.service.figures._stats, "_ask", counted)
        async with server.client(await server.token("work")) as client:
            for _ in range(20):
                assert (await call(client, "stats")).status_code == 200
        assert asked <= 1


@pytest.mark.parametrize("verb", ["get", "cancel", "retry", "delete"])
async def test_a_call_names_a_thousand_jobs_at_most(server: Running, verb: str) -> None:
    ids = [job_id(new_batch(), 0) for _ in range(1001)]
    more = {"get": (), "cancel": (None,), "retry": (True,), "delete": (None,)}[verb]
    assert code(await call(server.http, verb, ids, *more)) == (422, "invalid_value")
    store = connect(server.url)
    await store.open()
    answer = await getattr(store, verb)(ids)
    assert len(answer) in {0, 1001}
    await store.close()


async def test_s66_queues_that_nobody_declares_are_not_without_number(store_url: str) -> None:
    app = make_app(store_url)
    async with running(app, ServerSettings(port=0, max_queues=5, stats_ttl=0.0)) as server:
        token = await server.token("enqueue")
        async with server.client(token) as client:
            for number in range(5):
                made = await client.post("/v1/jobs", json={"task": "echo", "queue": f"made{number}"})
                assert made.status_code == 201
            for door in (
                lambda: client.post("/v1/jobs", json={"task": "echo", "queue": "more"}),
                lambda: client.post("/v1/jobs/batch", json={"jobs": [{"task": "echo", "queue": "more"}]}),
                lambda: call(client, "enqueue", packed(NewJob("echo", NOTHING, Lane("more")))),
            ):
                answer = await door()
                assert code(answer) == (429, "too_many_queues")
                assert "retry-after" in answer.headers
            # What there is, and what the app declares, is always good.
            for queue in ("made0", "default", "broken", "billing", "short"):
                assert (await client.post("/v1/jobs", json={"task": "echo", "queue": queue})).status_code == 201
        async with server.client(await server.token("enqueue")) as client:
            assert (await client.post("/v1/jobs", json={"task": "echo", "queue": "other"})).status_code == 201
        assert {each.queue for each in (await server.store.stats()).queues} >= {"made0", "other"}


# ── whose word it is ─────────────────────────────────────────────────────────


async def test_a_token_says_who_paused(server: Running) -> None:
    async with server.client(await server.token("operate", name="ann")) as client:
        assert (await call(client, "pause", "q", "queue", "somebody else", None)).status_code == 200
    await Operations(server.store).schedules.add(entry(template()).schedule)
    store = connect(f"http://{await server.token('operate', name='bob')}@127.0.0.1:{server.port}")
    await store.open()
    await Operations(store, actor="somebody else").schedules.pause("s")
    await store.close()
    assert [each.by for each in await server.store.pauses()] == ["ann"]
    assert (await Schedules(server.store).all())["s"].paused_by == "bob"


async def test_reserved_queues_are_reserved_at_v1_too(server: Running) -> None:
    answer = await server.http.post("/v1/jobs", json={"task": "echo", "queue": "headrace.webhooks"})
    assert answer.status_code == 422


# ── every verb beside its call ───────────────────────────────────────────────

ID = job_id(new_batch(), 0)
PAIRS: dict[str, tuple[tuple[Any, ...], str, str, dict[str, Any] | None]] = {
    "enqueue": (
        (packed(NewJob("echo", NOTHING, Lane("mail", tenant="own"))),),
        "POST",
        "/v1/jobs",
        {"task": "echo", "queue": "mail"},
    ),
    "claim": ((Ask(new_worker_id(), ("mail",), 1, HOUR, new_token()),), "POST", "/v1/claim", {"queues": ["mail"]}),
    "find": ((Filter(), None, 5), "GET", "/v1/jobs", None),
    "get": (([ID],), "GET", f"/v1/jobs/{ID}/result", None),
    "ahead": ((ID, 5), "GET", f"/v1/jobs/{ID}/explain", None),
    "cancel": (([ID], None), "POST", f"/v1/jobs/{ID}/cancel", {}),
    "retry": (([ID], True), "POST", f"/v1/jobs/{ID}/retry", {}),
    "delete": (([ID], None), "DELETE", f"/v1/jobs/{ID}", None),
    "pause": (("mail", "queue", "", None), "POST", "/v1/pauses", {"queue": "mail"}),
    "resume": (("mail", "queue"), "POST", "/v1/pauses/resume", {"queue": "mail"}),
    "pauses": ((), "GET", "/v1/pauses", None),
    "stats": ((), "GET", "/v1/stats", None),
    "workers": ((), "GET", "/v1/workers", None),
    "limits": ((), "GET", "/v1/limits", None),
    "limit": (
        ("gate", LimitRule(concurrency=3, state=pack(State(override=LimitFigures(concurrency=3)))), None),
        "PUT",
        "/v1/limits/gate",
        {"concurrency": 3},
    ),
}
WORKERS_READ = {"stats", "pauses", "limits"}
"""Workers need these, which have no call of their own for it below `/v1`."""
BINDINGS: list[dict[str, Any]] = [{}, {"tenant": "own"}, {"queues": ("mail",)}, {"queues": ("mail",), "tenant": "own"}]


@pytest.mark.parametrize("verb", PAIRS)
@pytest.mark.parametrize("bound", BINDINGS, ids=str)
async def test_a_verb_needs_what_its_call_needs(server: Running, verb: str, bound: dict[str, Any]) -> None:
    given, method, path, body = PAIRS[verb]
    for scope in Scope:
        async with server.client(await server.token(scope, **bound)) as client:
            by_verb = await call(client, verb, *given)
            by_call = await client.request(method, path, json=body)
        if scope is Scope.WORK and verb in WORKERS_READ | {"limit"}:
            continue
        assert (by_verb.status_code == 403) == (by_call.status_code == 403), (scope, by_verb.text, by_call.text)
        # What is not theirs is not there. A store that is asked for jobs answers which ones there are, without a 404.
        if verb not in {"get", "ahead", "cancel", "retry", "delete"}:
            assert (by_verb.status_code == 404) == (by_call.status_code == 404), (scope, by_verb.text, by_call.text)
