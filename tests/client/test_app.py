"""The app from the outside: enqueue, wait, look and operate, in async and in sync code, with a worker beside."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from headrace import Dead, Handle, Headrace, JobState, Retry
from headrace.errors import (
    BadArguments,
    ConfigError,
    IdempotencyConflict,
    JobCancelled,
    JobDead,
    JobNotFound,
    ResultExpired,
    ResultTimeout,
)
from headrace.model.records import CancelAnswer
from headrace.settings import Settings
from headrace.task.task import AsyncTask, SyncTask


@dataclass
class Receipt:
    order: int
    shop: str


class Shop:
    """An app with tasks of each kind."""

    def __init__(self, app: Headrace) -> None:
        self.app = app

        @app.task(name="charge")
        async def charge(order_id: int, shop: str = "acme") -> Receipt:
            return Receipt(order_id, shop)

        @app.task(name="double")
        def double(n: int) -> int:
            return 2 * n

        @app.task(name="fail", retry=Retry(max_attempts=1))
        async def fail(why: str) -> None:
            if why == "dead":
                raise Dead("asked for")
            raise ValueError(why)

        self.charge: AsyncTask[..., Receipt] = charge
        self.double: SyncTask[..., int] = double
        self.fail: AsyncTask[..., None] = fail


@pytest.fixture
async def shop(app: Headrace) -> AsyncIterator[Shop]:
    yield Shop(app)
    await app.aclose()


@pytest.fixture
async def busy(shop: Shop) -> AsyncIterator[Shop]:
    """The same with a worker."""
    async with shop.app.worker(concurrency=10, poll="50ms"):
        yield shop


# ── results ──────────────────────────────────────────────────────────────────


async def test_a_task_may_keep_no_result(busy):
    seen = await busy.double.using(result_ttl="0s").aenqueue(4)
    with pytest.raises(ResultExpired, match="result_ttl is over or 0"):
        await seen.aresult(timeout=60)
    kept = await busy.double.using(result_ttl="1h").aenqueue(4)
    assert await kept.aresult(timeout=60) == 8


async def test_a_result_has_the_type_that_was_returned(busy):
    handle = await busy.charge.aenqueue(7, shop="x")
    assert await handle.aresult(timeout=60) == Receipt(7, "x")
    assert (await handle.astatus()).state is JobState.DONE


async def test_sync_calls_inside_a_running_loop_do_not_deadlock(busy):
    handle = busy.double.enqueue(21)
    assert isinstance(handle, Handle)
    assert await handle.aresult("20s") == 42
    assert handle.status().state is JobState.DONE


async def test_sync_code_in_a_thread(busy):
    def work() -> int:
        return busy.double.enqueue(4).result(timeout=60)

    assert await asyncio.gather(*(asyncio.to_thread(work) for _ in range(5))) == [8] * 5


@pytest.mark.parametrize(
    ("why", "message"), [("no", r"is dead \(max_attempts\): ValueError: no"), ("dead", "is dead .*asked for")]
)
async def test_a_dead_job_says_why(busy, why, message):
    handle = await busy.fail.aenqueue(why)
    with pytest.raises(JobDead, match=message):
        await handle.aresult(timeout=60)


async def test_a_cancelled_job_says_so(shop):
    handle = await shop.charge.aenqueue(7)
    assert await handle.acancel("changed my mind") is True
    assert await handle.acancel() is False
    with pytest.raises(JobCancelled, match="was cancelled: changed my mind"):
        await handle.aresult()


async def test_nobody_works(shop):
    handle = await shop.charge.aenqueue(7)
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0.05)
    with pytest.raises(ConfigError, match="timeout = -1"):
        await handle.aresult(timeout=-1)


async def test_a_handle_can_be_made_again_from_its_id(shop):
    handle = await shop.charge.aenqueue(7)
    assert shop.charge.handle(str(handle.id)) == handle
    unknown = shop.charge.handle("01890a5d-ac96-774b-bcce-b302099a0001")
    for ask in (unknown.astatus, unknown.aresult, unknown.acancel):
        with pytest.raises(JobNotFound):
            await ask()


# ── enqueue ──────────────────────────────────────────────────────────────────


async def test_wrong_arguments_store_nothing(shop):
    with pytest.raises(BadArguments):
        await shop.charge.aenqueue("seven")
    with pytest.raises(BadArguments):
        shop.charge.enqueue()
    assert (await shop.app.afind()).jobs == []


async def test_a_key_answers_the_same_job_or_a_conflict(shop):
    keyed = shop.charge.using(key="order-7")
    first = await keyed.aenqueue(7)
    assert (await keyed.aenqueue(7)).id == first.id
    assert keyed.enqueue(order_id=7).id == first.id
    with pytest.raises(IdempotencyConflict):
        await keyed.aenqueue(8)
    handles = await shop.app.aenqueue_many([shop.charge.job(1), keyed.job(7)])
    assert handles[1].id == first.id
    assert handles[0].id != first.id


async def test_bulk_in_chunks(shop):
    handles = await shop.app.aenqueue_many(shop.double.job(i) for i in range(2500))
    assert len({handle.id for handle in handles}) == 2500
    (queue,) = (await shop.app.astats()).queues
    assert queue.ready == 2500
    for place in (0, 999, 1000, 2499):
        job = await handles[place].astatus()
        assert shop.double.codec.decode(job.payload) == ((place,), {})


async def test_bulk_is_taken_from_a_stream_as_it_goes(shop):
    taken = 0

    def stream() -> Iterator[object]:
        nonlocal taken
        for number in range(3000):
            taken += 1
            yield shop.double.job(number) if number < 2100 else shop.double.job("wrong")

    with pytest.raises(BadArguments) as caught:
        await shop.app.aenqueue_many(stream())
    assert taken == 2101
    assert caught.value.__notes__ == ["2,000 jobs of this call had been enqueued before"]
    assert (await shop.app.astats()).queues[0].ready == 2000


async def test_bulk_from_sync_code(shop):
    handles = await asyncio.to_thread(lambda: shop.app.enqueue_many(shop.double.job(i) for i in range(1500)))
    assert (await handles[1400].astatus()).state is JobState.READY

    def wrong() -> Iterator[object]:
        yield from (shop.double.job(i) for i in range(1000))
        yield shop.double.job("wrong")

    with pytest.raises(BadArguments) as caught:
        await asyncio.to_thread(lambda: shop.app.enqueue_many(wrong()))
    assert caught.value.__notes__ == ["1,000 jobs of this call had been enqueued before"]
    assert await shop.app.aenqueue_many([]) == []
    assert shop.app.enqueue_many([]) == []


async def test_bulk_takes_jobs_only(shop):
    with pytest.raises(ConfigError, match=r"enqueue_many takes task.job\(…\), not <Task charge>"):
        await shop.app.aenqueue_many([shop.charge])


async def test_delay_and_tenant_reach_the_store(shop):
    handle = await shop.charge.using(delay="1h", tenant="t", priority=9, queue="q").aenqueue(7)
    job = await handle.astatus()
    assert (job.state, job.tenant, job.priority, job.queue) == (JobState.SCHEDULED, "t", 9, "q")
    assert job.run_at is not None


# ── look and operate ─────────────────────────────────────────────────────────


async def test_operating_from_async_code(shop):
    app = shop.app
    one, two = await app.aenqueue_many([shop.charge.job(1), shop.double.job(2)])
    assert (await app.aget(one.id)).task == "charge"
    assert await app.aget("01890a5d-ac96-774b-bcce-b302099a0001") is None
    assert [job.id for job in (await app.afind(task="double")).jobs] == [two.id]
    assert await app.acancel(one, str(two.id)) == {one.id: CancelAnswer.CANCELLED, two.id: CancelAnswer.CANCELLED}
    assert {job.id for job in (await app.afind(state="cancelled")).jobs} == {one.id, two.id}
    assert (await app.afind(state=[JobState.READY, "dead"])).jobs == []
    assert await app.aretry(one) == {one.id}
    assert await app.adelete(two) == {two.id}
    await app.apause("default", by="me")
    assert [queue.paused for queue in (await app.astats()).queues] == [True]
    await app.aresume("default")
    assert await app.aworkers() == []


async def test_operating_from_sync_code(shop):
    await asyncio.to_thread(operate, shop)


def operate(shop: Shop) -> None:
    app = shop.app
    one, two = app.enqueue_many([shop.charge.job(1), shop.double.job(2)])
    found = app.get(one.id)
    assert found is not None
    assert found.task == "charge"
    page = app.find(limit=1)
    assert [job.id for job in app.find(before=page.next).jobs] == [one.id]
    assert two.cancel() is True
    assert app.cancel(one) == {one.id: CancelAnswer.CANCELLED}
    assert app.retry(one, two) == {one.id, two.id}
    app.pause("default")
    assert app.stats().queues[0].paused
    app.resume("default")
    assert app.delete(one) == {one.id}
    assert app.workers() == []


@pytest.mark.parametrize("wrong", ["1 OR 1=1", "", None])
async def test_what_is_no_id_is_refused(shop, wrong):
    with pytest.raises(ConfigError, match="is not a job id"):
        await shop.app.aget(wrong)


async def test_unknown_states_and_queues_are_refused(shop):
    with pytest.raises(ConfigError, match="scheduled, ready, running"):
        await shop.app.afind(state="waiting")
    with pytest.raises(ConfigError, match="is not a valid queue name"):
        await shop.app.apause("No Queue")


# ── loops and ends ───────────────────────────────────────────────────────────


def test_each_loop_has_a_store_and_its_end_closes_it(app):
    shop = Shop(app)

    async def once(n: int) -> None:
        await shop.double.aenqueue(n)

    for n in range(3):
        asyncio.run(once(n))
        gc.collect()
    assert app.stats().queues[0].ready == 3
    app.close()
    assert app.stats().queues[0].ready == 3
    app.close()


async def test_an_app_can_be_closed_and_used_again(shop):
    await shop.charge.aenqueue(1)
    await shop.app.aclose()
    await shop.app.aclose()
    await shop.charge.aenqueue(2)
    assert (await shop.app.astats()).queues[0].ready == 2


async def test_many_first_calls_open_one_store(app, monkeypatch):
    shop = Shop(app)
    opened = 0
    connect = app.connect

    def counting() -> object:
        nonlocal opened
        opened += 1
        return connect()

    monkeypatch.setattr(app.clients, "_connect", counting)
    async with app:
        await asyncio.gather(*(shop.double.aenqueue(n) for n in range(20)))
    assert opened == 1


async def test_a_store_that_cannot_be_opened_is_tried_again(tmp_path):
    app = Headrace(settings=Settings(url=f"sqlite:///{tmp_path}/missing/jobs.db"))
    shop = Shop(app)
    for _ in range(2):
        with pytest.raises(Exception, match="missing"):
            await shop.charge.aenqueue(1)
    (tmp_path / "missing").mkdir()
    await shop.charge.aenqueue(1)
    await app.aclose()


async def test_relaxed_durability_is_understood_by_every_store(store_url):
    app = Headrace(settings=Settings(url=store_url, durability="relaxed"))
    async with app:
        await Shop(app).charge.aenqueue(1)
        assert (await app.astats()).queues[0].ready == 1


def test_an_app_shows_no_password():
    app = Headrace("postgresql://u:hunter2@h/db")
    assert repr(app) == "<Headrace postgresql://u:•••@h/db, 0 tasks>"


def test_overrides_beat_settings():
    app = Headrace("memory://", settings=Settings(concurrency=5), lease="30s")
    assert (app.settings.url, app.settings.concurrency, app.settings.lease.seconds) == ("memory://", 5, 30)
    with pytest.raises(ConfigError, match="did you mean lease"):
        Headrace("memory://", leese="30s")


# ── explaining ───────────────────────────────────────────────────────────────


async def test_an_app_explains_its_jobs(shop):
    handle = await shop.charge.aenqueue(7)
    assert (await handle.aexplain()).reason == "no_worker"
    await shop.app.apause("default", by="ann")
    found = await shop.app.aexplain(str(handle.id))
    assert (found.reason, found.details["paused_by"]) == ("paused", "ann")
    assert str(found).startswith("queue default is paused by ann since ")
    await shop.app.aresume("default")
    later = await shop.charge.using(delay="1h", expires="2h").aenqueue(7)
    found = await later.aexplain()
    assert (found.reason, found.until) == ("scheduled", (await later.astatus()).run_at)
    assert "it expires" in found.sentence


async def test_sync_code_asks_the_same(shop):
    handle = shop.charge.enqueue(7)
    assert handle.explain() == shop.app.explain(handle)
    await handle.acancel("enough")
    assert "enough" in handle.explain().sentence
    unknown = shop.charge.handle("01890a5d-ac96-774b-bcce-b302099a0001")
    with pytest.raises(JobNotFound):
        unknown.explain()


async def test_a_worker_is_seen(busy):
    handle = await busy.fail.aenqueue("no")
    with pytest.raises(JobDead):
        await handle.aresult(timeout=60)
    found = await handle.aexplain()
    assert found.reason == "dead"
    assert found.details["last_failure"]["message"] == "no"
    assert f"headrace jobs retry {handle.id}" in found.sentence


async def test_an_expired_job_is_cancelled_for_whoever_waits(shop):
    handle = await shop.charge.using(expires=datetime(2020, 1, 1, tzinfo=UTC)).aenqueue(7)
    async with shop.app.worker():
        with pytest.raises(JobCancelled, match="was cancelled: expired"):
            await handle.aresult(timeout=60)
