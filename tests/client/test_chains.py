"""Jobs that follow others: chains, graphs, order without data, from sync and async code."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from headrace import (
    BadArguments,
    ConfigError,
    Handle,
    Headrace,
    JobState,
    Retry,
    SerializationError,
    Unique,
    current_job,
)
from headrace.client import graph
from headrace.model.gate import Needs, Wait, is_gate
from headrace.model.job import split_id
from headrace.task.task import Task

BLOCKED, READY, DONE = JobState.BLOCKED, JobState.READY, JobState.DONE


class Shop:
    """Tasks of one app, and what they did."""

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.ran: list[Any] = []

        @app.task
        async def charge(order: int, shop: str) -> dict[str, int]:
            self.ran.append(("charge", order))
            return {"order": order}

        @app.task
        def mail(receipt: dict[str, int], lang: str, *, copy: bool = False) -> str:
            self.ran.append(("mail", receipt, lang, copy))
            return f"{lang} {receipt['order']}"

        @app.task
        async def join(one: str, more: list[str], *, day: int = 1) -> list[str]:
            return [one, *more, str(day)]

        @app.task
        async def note(text: str) -> None:
            self.ran.append(text)

        @app.task
        async def fail() -> int:
            raise ConnectionError("down")

        self.charge, self.mail, self.join, self.note, self.fail = charge, mail, join, note, fail


@pytest.fixture
def shop(app: Headrace) -> Iterator[Shop]:
    yield Shop(app)
    app.close()


@pytest.fixture
def memory_shop() -> Iterator[Shop]:
    app = Headrace("memory://")
    yield Shop(app)
    app.close()


def states(*handles: Handle[Any]) -> list[JobState]:
    return [handle.status().state for handle in handles]


# ── chains and graphs ────────────────────────────────────────────────────────


async def test_a_chain_passes_each_result_to_the_next_job(shop: Shop):
    call = shop.charge.job(7, "acme").then(shop.mail, "en", copy=True).then(shop.note)
    last = await shop.app.aenqueue(call)
    assert (await last.astatus()).state is BLOCKED
    async with shop.app.worker():
        await last.aresult(30)
    assert shop.ran == [("charge", 7), ("mail", {"order": 7}, "en", True), "en 7"]


def test_a_chain_is_one_batch_in_its_order(shop: Shop):
    last = shop.app.enqueue(shop.charge.job(7, "acme").then(shop.mail, "en"))
    batch, place = split_id(last.id)
    assert place == 1
    job = last.status()
    assert job.waits == (Wait(shop.charge.handle(batch).id, Needs.DONE),)
    assert job.task == shop.mail.name
    assert shop.charge.handle(batch).status().state is READY


async def test_a_graph_enqueues_a_shared_job_once(shop: Shop):
    charge = shop.charge.job(7, "acme")
    en, de = charge.then(shop.mail, "en"), charge.then(shop.mail, "de")
    last = await shop.app.aenqueue(shop.join.job(en.out, [de.out, "x"], day=3))
    assert split_id(last.id)[1] == 3
    async with shop.app.worker():
        assert await last.aresult(30) == ["en 7", "de 7", "x", "3"]
    assert [ran for ran in shop.ran if ran[0] == "charge"] == [("charge", 7)]


def test_a_plain_call_can_be_enqueued_too(shop: Shop):
    handle = shop.app.enqueue(shop.charge.job(1, "acme"))
    assert handle.created
    assert states(handle) == [READY]


async def test_then_takes_a_task_with_options(shop: Shop):
    call = shop.charge.job(7, "acme").then(shop.mail.using(queue="post", priority=3).job, "en")
    job = await (await shop.app.aenqueue(call)).astatus()
    assert (job.queue, job.priority) == ("post", 3)


async def test_a_handle_is_followed_before_and_after_its_job_has_ended(shop: Shop):
    first = await shop.charge.aenqueue(7, "acme")
    before = await first.athen(shop.mail, "en")
    assert (await before.astatus()).state is BLOCKED
    async with shop.app.worker():
        assert await before.aresult(30) == "en 7"
        after = await first.athen(shop.mail, "de")
        assert await after.aresult(30) == "de 7"
        both = await shop.join.aenqueue(before.out, [after.out])
        assert await both.aresult(30) == ["en 7", "de 7", "1"]


def test_a_handle_is_followed_from_sync_code(shop: Shop):
    first = shop.charge.enqueue(7, "acme")
    assert states(first.then(shop.mail, "en"), shop.mail.enqueue(first.out, "de")) == [BLOCKED, BLOCKED]
    assert states(shop.mail.using(delay="1h").enqueue(first.out, "de")) == [BLOCKED]


# ── order without data ───────────────────────────────────────────────────────


def test_after_waits_for_one_job_by_its_id_and_for_several_by_a_gate(shop: Shop):
    one, two = shop.charge.enqueue(1, "acme"), shop.charge.enqueue(2, "acme")
    alone = shop.note.using(after=one).enqueue("a").status()
    assert alone.waits == (Wait(one.id, Needs.DONE),)
    [wait] = shop.note.using(after=[one, two, two], when="ended").enqueue("a").status().waits
    assert is_gate(wait.gate)
    assert wait.needs is Needs.ENDED


async def test_after_a_failure_only_what_waits_for_one_runs(shop: Shop):
    fail = await shop.fail.using(max_attempts=1).aenqueue()
    ended = await shop.note.using(after=fail, when="ended").aenqueue("ended")
    failed = await shop.note.using(after=fail, when="failed").aenqueue("failed")
    done = await shop.note.using(after=fail).aenqueue("done")
    async with shop.app.worker():
        await ended.aresult(30)
        await failed.aresult(30)
    assert sorted(shop.ran) == ["ended", "failed"]
    assert (await done.astatus()).state is BLOCKED


async def test_calls_and_handles_are_followed_together(shop: Shop):
    stored = await shop.charge.aenqueue(1, "acme")
    last = shop.note.using(after=[stored, shop.charge.job(2, "acme")]).job("both")
    handle = await shop.app.aenqueue(last)
    async with shop.app.worker():
        await handle.aresult(30)
    assert shop.ran[-1] == "both"
    assert len(shop.ran) == 3


def test_many_jobs_can_follow_one(shop: Shop):
    first = shop.charge.enqueue(1, "acme")
    handles = shop.app.enqueue_many(shop.note.using(after=first).job(str(n)) for n in range(20))
    assert {handle.status().state for handle in handles} == {BLOCKED}


# ── successors of the running job ────────────────────────────────────────────


async def test_a_running_job_enqueues_its_successor_once(shop: Shop):
    over = asyncio.Event()

    @shop.app.task(retry=Retry(max_attempts=3, base="0s"))
    async def crawl(page: int) -> None:
        shop.ran.append((page, current_job().tenant))
        if page < 3:
            await current_job().then(crawl.job(page + 1))
        if page == 2 and not current_job().failures:
            raise ConnectionError("again")
        if page == 3:
            over.set()

    async with shop.app.worker():
        await crawl.using(tenant="acme").aenqueue(1)
        await over.wait()
    assert shop.ran == [(1, "acme"), (2, "acme"), (2, "acme"), (3, "acme")]
    found = await shop.app.afind(task=crawl.name)
    assert len(found.jobs) == 3


async def test_a_task_in_a_thread_enqueues_a_chain_as_its_successor(shop: Shop):
    last: list[Handle[None]] = []

    @shop.app.task
    def begin() -> None:
        last.append(current_job().then_sync(shop.charge.job(1, "a").then(shop.mail, "en").then(shop.note)))
        assert states(*last) == [BLOCKED]
        [first] = shop.app.find(task=shop.charge.name).jobs
        assert first.state is BLOCKED

    async with shop.app.worker():
        handle = await begin.aenqueue()
        await handle.aresult(30)
        await last[0].aresult(30)
    assert shop.ran[-1] == "en 1"


def test_a_job_without_a_tenant_gets_that_of_what_it_follows(shop: Shop):
    first = shop.charge.using(tenant="acme").enqueue(1, "acme")
    assert first.then(shop.mail, "en").status().tenant == "acme"
    chain = shop.app.enqueue(shop.charge.using(tenant="b").job(1, "b").then(shop.mail, "en").then(shop.note))
    assert chain.status().tenant == "b"
    own = shop.app.enqueue(shop.charge.using(tenant="b").job(1, "b").then(shop.mail.using(tenant="c").job, "en"))
    assert own.status().tenant == "c"


# ── what is refused ──────────────────────────────────────────────────────────


def test_a_placeholder_outside_a_graph_says_what_to_do(memory_shop: Shop):
    shop = memory_shop
    first = shop.charge.job(7, "acme")
    with pytest.raises(BadArguments, match=r"enqueue both in one call, app.enqueue\(mail.job\(…\)\)"):
        shop.mail.enqueue(first.out, "en")
    with pytest.raises(BadArguments, match="enqueue both in one call"):
        shop.mail.using(delay="1h").enqueue(first.out, "en")
    with pytest.raises(BadArguments, match="enqueue both in one call"):
        shop.note.using(after=first).enqueue("x")
    with pytest.raises(
        ConfigError, match=r"enqueue_many: a job of .*mail follows other jobs: enqueue it with app.enqueue"
    ):
        shop.app.enqueue_many([first.then(shop.mail, "en")])


def test_a_placeholder_is_no_value(memory_shop: Shop):
    out: Any = memory_shop.charge.job(7, "acme").out
    for use in (
        lambda: f"{out}",
        lambda: str(out),
        lambda: out + 1,
        lambda: bool(out),
        lambda: list(out),
        lambda: out["order"],
    ):
        with pytest.raises(TypeError, match="is not known yet: pass it as an argument of another job"):
            use()
    with pytest.raises(AttributeError, match="has no 'order'"):
        _ = out.order
    archive: Any = memory_shop.note
    with pytest.raises(SerializationError, match=r"args\[0\]: the result of another job is a key of a mapping"):
        archive.job({out: 1})
    assert repr(out).startswith("<the result of a job of ")


def test_other_arguments_are_checked_when_the_call_is_made(memory_shop: Shop):
    first = memory_shop.charge.job(7, "acme")
    mail = cast("Task[..., Any]", memory_shop.mail)
    with pytest.raises(BadArguments, match="argument 'lang'"):
        first.then(mail, 5)
    with pytest.raises(BadArguments, match="has no parameter 'lnag'"):
        first.then(mail, lnag="en")
    with pytest.raises(BadArguments, match="is missing 'lang'"):
        first.then(mail)
    with pytest.raises(ConfigError, match=r"then takes a task, or task.using\(…\).job"):
        first.then(print)


def test_wrong_options_are_refused(memory_shop: Shop):
    note: Task[..., Any] = memory_shop.note
    with pytest.raises(ConfigError, match=r"after = 5: a handle, task.job\(…\), a group"):
        note.using(after=cast("Any", 5))
    with pytest.raises(ConfigError, match="after = 'x'"):
        note.using(after=cast("Any", ["x"]))
    with pytest.raises(ConfigError, match="when = 'never': one of done, ended, failed"):
        note.using(after=[], when=cast("Any", "never"))
    with pytest.raises(ConfigError, match="when without after"):
        note.using(when="ended")
    first = memory_shop.charge.job(1, "a").then(memory_shop.mail, "en")
    with pytest.raises(ConfigError, match='leave when="ended" out'):
        note.using(after=first, when="ended").job(first.out)


def test_a_graph_has_a_bound(memory_shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph, "MOST_JOBS", 10)

    @memory_shop.app.task
    def count(number: int) -> int:
        return number + 1

    call = count.job(0)
    for _ in range(9):
        call = call.then(count)
    memory_shop.app.enqueue(call)
    with pytest.raises(ConfigError, match="more than 10 jobs follow each other in one call"):
        memory_shop.app.enqueue(call.then(count))


def test_what_the_jobs_of_a_graph_follow_has_a_bound(memory_shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph, "MOST_EDGES", 10)
    note = memory_shop.note
    calls = [note.job(str(number)) for number in range(12)]
    # Neighbours are one edge, and jobs that follow the same share a gate.
    memory_shop.app.enqueue(
        note.using(after=[note.using(after=calls).job("a"), note.using(after=calls).job("b")]).job("c")
    )
    joins = [note.using(after=[calls[place], calls[place + 6]]).job("join") for place in range(6)]
    with pytest.raises(ConfigError, match="follow other jobs at more than 10 places"):
        memory_shop.app.enqueue(note.using(after=joins).job("last"))


def test_a_long_chain_is_enqueued_and_forgotten(memory_shop: Shop):
    @memory_shop.app.task
    def count(number: int) -> int:
        return number + 1

    call = count.job(0)
    for _ in range(graph.MOST_JOBS - 1):
        call = call.then(count)
    assert memory_shop.app.enqueue(call).status().state is BLOCKED
    for _ in range(30_000):
        call = call.then(count)
    del call  # Deeper than the interpreter's stack.
    gc.collect()


def test_jobs_with_keys_are_followed_by_their_handles(memory_shop: Shop):
    shop = memory_shop
    keyed = shop.charge.using(key="k").job(7, "acme")
    with pytest.raises(ConfigError, match="has a key or a unique lock"):
        shop.app.enqueue(keyed.then(shop.mail, "en"))
    first, same = shop.charge.using(key="k").enqueue(7, "acme"), shop.charge.using(key="k").enqueue(7, "acme")
    assert same.then(shop.mail, "en").status().waits == (Wait(first.id),)
    # Waiting alone for one that met a key is waiting for the job that stands for it.
    last = shop.app.enqueue(shop.note.using(after=keyed).job("x"))
    assert last.status().waits == (Wait(first.id),)


def test_a_key_does_not_depend_on_the_ids_of_inputs(memory_shop: Shop):
    first = memory_shop.charge.enqueue(7, "acme")
    other = memory_shop.charge.enqueue(7, "acme")
    one = memory_shop.mail.using(key="m").enqueue(first.out, "en")
    assert memory_shop.mail.using(key="m").enqueue(other.out, "en") == one


def test_uniqueness_by_all_arguments_needs_a_key_function(memory_shop: Shop):
    @memory_shop.app.task(unique=Unique())
    def once(receipt: dict[str, int]) -> None: ...

    with pytest.raises(ConfigError, match="is unique by all its arguments"):
        memory_shop.charge.job(1, "a").then(once)


def test_a_tenant_function_of_a_result_is_refused(memory_shop: Shop):
    @memory_shop.app.task(tenant=lambda receipt: receipt["shop"])
    def bill(receipt: dict[str, int]) -> None: ...

    with pytest.raises(BadArguments, match=r"tenant= function raised TypeError: .* is not known yet"):
        memory_shop.charge.job(1, "a").then(bill)
