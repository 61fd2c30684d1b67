"""From a job's end to its receiver: told before it is settled, told once it is true, and told again until it is taken."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conftest import nothing_left_behind
from headrace import Headrace, Limit, webhook, worker
from headrace.errors import ConfigError, OutcomeUnknown, Unavailable
from headrace.model.job import Batch, Job, JobId, JobState, NewJob, parse_id
from headrace.model.lane import Lane
from headrace.model.lease import Token
from headrace.model.outcome import Cancel, Dead, Finish, Settlement, Snooze
from headrace.model.records import Enqueued, Filter
from headrace.policy.queue import DeadAlert
from headrace.store import pages
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.webhooks import deliver
from headrace.webhooks.declare import UnsafeWebhook
from headrace.webhooks.deliver import PER_HOST, QUEUE, TASK, DeliveryMaker, batch_of, batches_of
from headrace.webhooks.http_post import Poster
from headrace.worker import Worker
from headrace.worker import dead_alert as dead_alerts
from webhooks.receiver import Got, Receiver, answer, receiver

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "RETRY", Retry(max_attempts=3, base="10ms", cap="20ms"))
    monkeypatch.setattr(worker, "FLUSH_SECONDS", 0.2)  # some stores here never answer


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made


class Scene:
    """An app with a store that the test can look into, and workers for it."""

    def __init__(self, store: Store | None = None, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "webhook_secret": SECRET,
            "webhook_allow": ["127.0.0.1"],
            "poll": "50ms",
            "reap": "20ms",
            "lease": "15s",
            "heartbeat": "50ms",
            "drain": "2s",
        }
        self.app = Headrace("memory://", **(defaults | settings))
        self.store: Store = store or MemoryStore()
        self.written = asyncio.Event()
        """Set whenever something may have changed in the store."""
        for verb in ("enqueue", "claim", "settle", "promote", "reap"):
            setattr(self.store, verb, self._noticed(getattr(self.store, verb)))

    def _noticed(self, verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def called(*given: Any, **named: Any) -> Any:
            try:
                return await verb(*given, **named)
            finally:
                self.written.set()

        return called

    def worker(self, **options: Any) -> Worker:
        return Worker(self.app.tasks, self.store, self.app.settings, duties=self.app.duties, **options)

    async def put(self, *calls: Any) -> list[JobId]:
        batch = batch_of(call.job for call in calls)
        await self.store.enqueue(batch)
        return [parse_id(str(batch.id).removesuffix("0000") + f"{ord:04x}") for ord in range(len(calls))]

    async def deliveries(self, count: int | None = None, *states: JobState) -> list[Job]:
        """Those there are, or as soon as there are so many in one of these states."""
        async with asyncio.timeout(60):
            while True:
                self.written.clear()
                page = await pages.fill(self.store, Filter(queue=QUEUE), limit=1000)
                found = await self.store.get([job.id for job in page.jobs])
                jobs = [job for job in found if job is not None and (not states or job.state in states)]
                if count is None or len(jobs) >= count:
                    return sorted(jobs, key=lambda job: job.id)
                await self.written.wait()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with nothing_left_behind():
        yield Scene()


def check(got: Got) -> str:
    """Signed as it should be; answers the delivery's id."""
    return webhook.verify(SECRET, got.headers, got.body)


# ── what is told ─────────────────────────────────────────────────────────────


async def test_every_end_of_an_apps_jobs(scene: Scene, there: Receiver):
    app = scene.app
    app.webhook(there.url("/all"))

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="hopeless")
    async def hopeless() -> None:
        raise Dead("never")

    @app.task(name="nothing")
    async def nothing() -> None:
        pass

    [added, dead, void] = await scene.put(
        add.using(tenant="acme").job(2, 3), hopeless.using(tenant="acme").job(), nothing.using(tenant="acme").job()
    )
    async with scene.worker():
        await there.gets(3)
        jobs = await scene.deliveries(3, JobState.DONE)
    told = {got.json["data"]["id"]: got for got in there.got}
    assert set(told) == {str(added), str(dead), str(void)}
    assert check(told[str(added)]) == f"{added}.1"
    first = told[str(added)].json
    [job] = await scene.store.get([added])
    assert job is not None
    assert job.finished_at is not None
    assert first["type"] == "job.done"
    assert first["timestamp"] == job.finished_at.isoformat()
    about = {"task": "add", "queue": "default", "tenant": "acme", "attempt": 1, "state": "done", "result": 5}
    assert first["data"].items() >= (about | {"note": None, "failures": 0, "result_omitted": False}).items()
    second = told[str(dead)].json
    assert second["type"] == "job.dead"
    assert second["data"]["note"] == "never"
    assert (
        second["data"]["failure"].items()
        >= {"attempt": 1, "kind": "headrace.model.outcome.Dead", "message": "never"}.items()
    )
    assert "traceback" not in second["data"]["failure"]
    assert told[str(void)].json["data"]["result"] is None
    assert {(job.task, job.tenant) for job in jobs} == {(TASK, "acme")}
    assert {job.limits for job in jobs} == {(f"headrace.webhooks:127.0.0.1:{there.port}",)}


async def test_one_jobs_own_webhook(scene: Scene, there: Receiver):
    @scene.app.task(name="quiet")
    async def quiet() -> None:
        pass

    [_, loud] = await scene.put(quiet.job(), quiet.using(webhook=there.url("/mine")).job())
    async with scene.worker(queues=("default",)) as worker:
        assert worker.queues == ("default", QUEUE)
        await there.gets(1)
        await scene.deliveries(1, JobState.DONE)
    assert [(got.line, got.json["data"]["id"]) for got in there.got] == [("POST /mine HTTP/1.1", str(loud))]
    with pytest.raises(UnsafeWebhook):
        quiet.using(webhook="http://10.0.0.1/")


async def test_only_what_was_asked_for_and_only_ends(scene: Scene, there: Receiver):
    app = scene.app
    app.webhook(there.url("/dead"), on="dead", queue="mail")
    app.webhook(there.url("/task"), on=("done", "dead"), task="again")
    app.webhook(there.url("/task"), on="done", task="again")

    @app.task(name="again", retry=Retry(base="1ms"))
    async def again(how: str) -> None:
        if current_job().attempt == 1 and how == "fail":
            raise ValueError(how)
        if current_job().attempt == 1 and how == "snooze":
            raise Snooze("1ms")
        if how == "cancel":
            raise Cancel("no")

    @app.task(name="die", queue="mail")
    async def die(*, dead: bool) -> None:
        if dead:
            raise Dead("no")

    calls = [again.job("fail"), again.job("snooze"), again.job("cancel"), die.job(dead=True), die.job(dead=False)]
    [failed, snoozed, _, died, _] = await scene.put(*calls)
    async with scene.worker():
        await there.gets(3)
        await scene.deliveries(3, JobState.DONE)
    told = sorted((got.line.split()[1], got.json["data"]["id"], got.json["data"]["attempt"]) for got in there.got)
    assert told == sorted([("/task", str(failed), 2), ("/task", str(snoozed), 2), ("/dead", str(died), 1)])
    assert len(await scene.deliveries()) == 3


async def test_a_result_that_is_too_large_is_left_out(scene: Scene, there: Receiver):
    @scene.app.task(name="large")
    async def large() -> str:
        return "x" * 70_000

    await scene.put(large.using(webhook=there.url()).job())
    async with scene.worker():
        [got] = await there.gets(1)
    assert got.json["data"].items() >= {"result": None, "result_omitted": True}.items()


async def test_a_job_that_is_gone_is_told_all_the_same(there: Receiver):
    class Forgetful(MemoryStore):
        async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
            return [None for _ in ids]

    scene = Scene(Forgetful())

    @scene.app.task(name="brief")
    async def brief() -> int:
        return 1

    [id] = await scene.put(brief.using(webhook=there.url()).job())
    async with scene.worker():
        [got] = await there.gets(1)
    data = got.json["data"]
    assert data.items() >= {"id": str(id), "state": "done", "task": "brief", "kept": False}.items()
    assert "result" not in data


async def test_an_alert(scene: Scene, there: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_alerts, "LOOK_EVERY", 0.01)
    app = scene.app
    app.queue("mail", dead_alert=2)
    app.webhook(there.url("/alerts"), on="alert", queue="mail")
    app.webhook(there.url("/others"), on="alert", queue="other")

    @app.task(name="die", queue="mail")
    async def die() -> None:
        raise Dead("no")

    await scene.put(die.job(), die.job())
    # Both workers see the queue cross its threshold; it is told once.
    async with scene.worker(), scene.worker():
        [got] = await there.gets(1)
        await scene.deliveries(1, JobState.DONE)
    check(got)
    assert got.line == "POST /alerts HTTP/1.1"
    assert got.json["type"] == "dead.alert"
    assert got.json["data"] == {"queue": "mail", "dead": 2, "threshold": 2}
    assert len(await scene.deliveries()) == 1


# ── at least once, and true ──────────────────────────────────────────────────


class Stopping(MemoryStore):
    """Enqueues deliveries and then, as if its worker had died, never settles the first end."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = asyncio.Event()

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        if not self.stopped.is_set() and any(isinstance(each, Finish) for _, each in settlements):
            self.stopped.set()
            await asyncio.Event().wait()
        return await super().settle(token, settlements)


async def test_a_worker_that_dies_between_telling_and_settling(there: Receiver):
    store = Stopping()
    scene = Scene(store)
    scene.app.webhook(there.url())

    @scene.app.task(name="work")
    async def work() -> int:
        return current_job().attempt

    [id] = await scene.put(work.job())
    first = scene.worker(queues=("default",))
    await first.start()
    await store.stopped.wait()
    # The delivery is there, and the job is not settled: nothing is told yet.
    [early] = await scene.deliveries(1)
    await store.abandon(first.id, "killed")
    async with scene.worker():
        [got] = await there.gets(1)
        deliveries = await scene.deliveries(2, JobState.DONE)
    assert got.json["data"].items() >= {"id": str(id), "attempt": 2, "result": 2}.items()
    assert check(got) == f"{id}.2"
    by_id = {job.id: deliver.result_of(job.result)[0] for job in deliveries}
    assert by_id[early.id] == "nothing to deliver: the job went on"
    first.hurry()
    await first.drain(0)
    assert len(there.got) == 1


async def test_death_by_a_lost_worker_is_told_too(there: Receiver):
    store = Stopping()
    scene = Scene(store)
    scene.app.webhook(there.url(), on="dead")

    @scene.app.task(name="killer", retry=Retry(max_crashes=1))
    async def killer() -> None:
        pass

    [id] = await scene.put(killer.job())
    first = scene.worker(queues=("default",))
    await first.start()
    await store.stopped.wait()
    await store.abandon(first.id, "killed by SIGSEGV")
    # Alone with its crash from the second time on: a suspect that kills again is dead.
    store.stopped.clear()
    second = scene.worker(queues=("default",))
    await second.start()
    await store.stopped.wait()
    await store.abandon(second.id, "killed by SIGSEGV")
    async with scene.worker():
        [got] = await there.gets(1)
    assert got.json["data"].items() >= {"id": str(id), "state": "dead", "note": "worker_lost"}.items()
    assert got.json["data"]["failure"]["message"] == "killed by SIGSEGV"
    for victim in (first, second):
        victim.hurry()
        await victim.drain(0)


async def test_a_store_that_is_away_while_it_is_told(there: Receiver):
    class Away(MemoryStore):
        calls = 0

        async def enqueue(self, batch: Batch) -> Enqueued:
            if batch.jobs[0].task == TASK:
                self.calls += 1
                if self.calls == 1:
                    raise Unavailable("gone for lunch")
                if self.calls == 2:
                    await super().enqueue(batch)
                    raise OutcomeUnknown("did it arrive?")
            return await super().enqueue(batch)

    scene = Scene(Away())

    @scene.app.task(name="work")
    async def work() -> None:
        pass

    [id] = await scene.put(work.using(webhook=there.url()).job())
    async with scene.worker():
        [got] = await there.gets(1)
        await scene.deliveries(1, JobState.DONE)
    assert got.json["data"]["id"] == str(id)
    assert len(await scene.deliveries()) == 1


async def test_told_twice_is_one_delivery(scene: Scene):
    @scene.app.task(name="work")
    async def work() -> None:
        pass

    [id] = await scene.put(work.using(webhook="https://example.com/").job())
    [job] = await scene.store.get([id])
    assert job is not None
    delivery_maker = DeliveryMaker(())
    for state in (JobState.DONE, JobState.DEAD):
        await scene.store.enqueue(batch_of(delivery_maker.news(job, Finish(state))))
    assert len(await scene.deliveries()) == 1
    assert delivery_maker.news(job, Finish(JobState.CANCELLED)) == []


async def test_completed_in_a_transaction_told_with_its_commit(tmp_path: Path, there: Receiver):
    path = tmp_path / "jobs.db"
    app = Headrace(
        f"sqlite:///{path}", webhook_secret=SECRET, webhook_allow=["127.0.0.1"], poll="50ms", reap="20ms", drain="2s"
    )

    @app.task(name="sync")
    def work(*, commit: bool) -> None:
        job = current_job()
        with sqlite3.connect(path, isolation_level=None) as connection:
            connection.execute("begin immediate")
            job.complete_sync(tx=connection)
            connection.execute("commit" if commit else "rollback")
        connection.close()

    handle = await work.using(webhook=there.url(), max_attempts=1).aenqueue(commit=True)
    async with app.worker():
        [got] = await there.gets(1)
        assert got.json["data"].items() >= {"id": str(handle.id), "state": "done"}.items()
        broken = await work.using(webhook=there.url(), max_attempts=1).aenqueue(commit=False)
        await there.gets(2)
    assert there.got[1].json["data"].items() >= {"id": str(broken.id), "state": "dead"}.items()
    await app.aclose()


# ── until it is taken ────────────────────────────────────────────────────────


async def test_tried_again_with_the_same_id(scene: Scene, there: Receiver):
    there.answers = [answer(500), answer(404, body=b"no such hook")]

    @scene.app.task(name="work")
    async def work() -> None:
        pass

    await scene.put(work.using(webhook=there.url()).job())
    async with scene.worker():
        await there.gets(3)
        [delivery] = await scene.deliveries(1, JobState.DONE)
    assert len({check(got) for got in there.got}) == 1
    assert [failure.message for failure in delivery.history] == [
        f"http://127.0.0.1:{there.port}/… answered 500",
        f"http://127.0.0.1:{there.port}/… answered 404: no such hook",
    ]


@pytest.mark.parametrize(
    ("said", "note", "tries"),
    [
        (answer(410), "answered 410", 1),
        (answer(500), "max_attempts", 3),
        (answer(302, "Location: http://169.254.169.254/"), "max_attempts", 3),
        (answer(429, "Retry-After: 0"), "max_attempts", 1),
    ],
)
async def test_s60_given_up_as_a_dead_letter(scene: Scene, there: Receiver, said: bytes, note: str, tries: int):
    there.answers = [said] * tries

    @scene.app.task(name="work")
    async def work() -> None:
        pass

    await scene.put(work.using(webhook=there.url()).job())
    async with scene.worker():
        await there.gets(tries)
        if said.startswith(b"HTTP/1.1 429"):
            # Its own word on when: not the policy's 10 ms.
            [delivery] = await scene.deliveries(1, JobState.SCHEDULED)
            assert delivery.history[-1].kind == "headrace.model.outcome.RetryAfter"
            return
        [delivery] = await scene.deliveries(1, JobState.DEAD)
    assert note in (delivery.note or "")
    assert len(there.got) == tries


async def test_s58_a_receiver_that_moved_inside_is_dead_at_once(scene: Scene):
    scene.app.webhooks.allow = webhook.NOTHING

    async def inside(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    @scene.app.task(name="work")
    async def work() -> None:
        pass

    await scene.put(work.using(webhook="http://rebinding.example/").job())
    worker = scene.worker()
    sender = deliver.Sender(scene.app.webhooks, scene.store, slots=10, poster=Poster(webhook.NOTHING, resolve=inside))
    worker._state.tasks.maps[0][TASK] = sender.task()  # type: ignore[attr-defined]
    async with worker:
        [delivery] = await scene.deliveries(1, JobState.DEAD)
    assert (delivery.note or "").startswith("unsafe_callback_url: ")


async def test_s60_a_slow_receiver_keeps_nobody_else_waiting(there: Receiver):
    scene = Scene(concurrency=100)
    most = under_way = 0
    released = asyncio.Event()

    async def hang(got: Got, writer: asyncio.StreamWriter) -> None:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await released.wait()
        under_way -= 1
        writer.write(answer(200))

    there.behave = hang

    @scene.app.task(name="work")
    async def work() -> None:
        pass

    async with receiver() as quick:
        slow = [work.using(webhook=there.url()).job() for _ in range(3 * PER_HOST)]
        async with scene.worker():
            await scene.put(slow[0])
            await there.gets(1)  # from here on the limit's rule is there
            await scene.put(*slow[1:])
            await there.gets(PER_HOST)
            await scene.put(work.using(webhook=quick.url()).job())
            await quick.gets(1)
            assert under_way == PER_HOST
            released.set()
            await there.gets(len(slow))
            await scene.deliveries(len(slow) + 1, JobState.DONE)
    assert most == PER_HOST


async def test_deliveries_leave_slots_for_the_apps_own_tasks(there: Receiver):
    scene = Scene(concurrency=4)
    released = asyncio.Event()

    async def hang(got: Got, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.write(answer(200))

    there.behave = hang
    done = asyncio.Semaphore(0)

    @scene.app.task(name="work")
    async def work() -> None:
        done.release()

    async def worked(count: int) -> None:
        async with asyncio.timeout(60):
            for _ in range(count):
                await done.acquire()

    async with scene.worker():
        await scene.put(*[work.using(webhook=there.url()).job() for _ in range(8)])
        await worked(8)
        await there.gets(2)
        await scene.put(*[work.job() for _ in range(5)])
        await worked(5)
        assert len(there.got) == 2
        released.set()
        await there.gets(8)
        await scene.deliveries(8, JobState.DONE)


# ── made by hand ─────────────────────────────────────────────────────────────


async def test_a_delivery_that_somebody_else_made_tells_nothing_of_others(scene: Scene, there: Receiver):
    """A producer could enqueue a delivery that sends another tenant's result to its own URL."""

    @scene.app.task(name="secret")
    async def secret() -> str:
        return "theirs"

    [id] = await scene.put(secret.using(tenant="t2").job())
    async with scene.worker() as worker, asyncio.timeout(60):
        await worker.idle.wait()
    [job] = await scene.store.get([id])
    assert job is not None
    assert job.state is JobState.DONE
    arguments = (there.url(), "done", str(id), 1, {})
    forged = [
        NewJob(TASK, deliver._signature.encode(arguments, {}), lane)
        for lane in (Lane(QUEUE, 0, "t1"), Lane(QUEUE, 0, ""), Lane("default", 0, "t2"))
    ]
    await scene.store.enqueue(batch_of(forged))
    async with scene.worker() as worker, asyncio.timeout(60):
        await worker.idle.wait()
    dead = await scene.store.find(Filter(states=frozenset({JobState.DEAD})))
    assert len(dead.jobs) == 3
    assert all("by hand" in (each.note or "") for each in dead.jobs)
    assert there.connections == 0


@pytest.mark.parametrize(
    ("queue", "threshold", "told"),
    [("mail", 2, True), ("mail", 3, False), ("mail", 0, False), ("other", 1, False), ("hidden", 1, False)],
)
async def test_an_alert_from_elsewhere_is_made_anew(scene: Scene, queue: str, threshold: int, told: bool):
    @scene.app.task(name="die")
    async def die() -> None:
        raise Dead("no")

    for name in ("mail", "mail", "hidden"):
        batch = batch_of([NewJob("die", b"\x92\x90\x80", Lane(name))])
        await scene.store.enqueue(batch)
    async with scene.worker(queues=("mail", "hidden")) as worker, asyncio.timeout(60):
        await worker.idle.wait()
    delivery_maker = DeliveryMaker([webhook.declare("https://example.com/ours", on="alert")])
    lie = {"queue": "lies", "dead": 10**6, "threshold": threshold, "at": "never"}
    forged = NewJob(TASK, deliver._signature.encode(("https://evil.example/", "alert", queue, 0, lie), {}), Lane(QUEUE))
    made = await delivery_maker.remade(scene.store, batch_of([forged]), lambda _: True, lambda name: name != "hidden")
    about = [deliver._signature.decode(each.payload)[0] for each in made.jobs]
    assert bool(about) is told
    for url, event, subject, _, data in about:
        assert (url, event, subject, data["dead"], data["threshold"]) == (
            "https://example.com/ours",
            "alert",
            "mail",
            2,
            2,
        )


# ── declared ─────────────────────────────────────────────────────────────────


async def test_without_a_secret_deliveries_wait(there: Receiver, caplog: pytest.LogCaptureFixture):
    scene = Scene(webhook_secret="")
    scene.app.webhook(there.url())

    @scene.app.task(name="work")
    async def work() -> None:
        pass

    await scene.put(work.job())
    async with scene.worker() as worker:
        assert worker.queues == ("default",)
        await scene.deliveries(1, JobState.READY)
    assert "HEADRACE_WEBHOOK_SECRET" in caplog.text
    scene.app.webhooks.secrets = (SECRET,)
    async with scene.worker():
        [got] = await there.gets(1)
        await scene.deliveries(1, JobState.DONE)
    check(got)


async def test_a_webhooks_own_secret(there: Receiver):
    scene = Scene(webhook_secret="")
    own = webhook.new_secret()
    scene.app.webhook(there.url(), secret=own)

    @scene.app.task(name="work")
    async def work() -> None:
        pass

    await scene.put(work.job())
    async with scene.worker():
        [got] = await there.gets(1)
    assert webhook.verify(own, got.headers, got.body)
    with pytest.raises(ConfigError, match="different secrets"):
        scene.app.webhook(there.url(), secret=SECRET)


def test_refused_where_it_is_declared():
    app = Headrace("memory://")
    with pytest.raises(UnsafeWebhook):
        app.webhook("http://127.0.0.1/")
    with pytest.raises(ConfigError, match="some of"):
        app.webhook("https://example.com/", on="sometimes")


def test_deliveries_are_not_told_themselves():
    delivery_maker = DeliveryMaker([webhook.declare("https://example.com/")])
    [delivery] = delivery_maker.alert(DeadAlert("mail", 1, 1), deliver.datetime.now(deliver.UTC))
    assert delivery.lane.queue == QUEUE
    job = Job(
        id=parse_id("01890a5d-ac96-774b-bcce-b302099a0001"),
        task=TASK,
        queue=QUEUE,
        priority=0,
        tenant="",
        limits=(),
        state=JobState.RUNNING,
        attempt=1,
        failures=0,
        crashes=0,
        enqueued_at=deliver.datetime.now(deliver.UTC),
        payload=b"",
    )
    assert delivery_maker.news(job, Finish(JobState.DEAD)) == []


def test_the_limit_is_one_that_operators_can_set():
    assert Limit(deliver.LIMIT, concurrency=PER_HOST).name == deliver.LIMIT
    assert timedelta(hours=1) == deliver.REPEATED_WITHIN


def test_deliveries_go_in_calls_that_every_store_takes():
    """A store may refuse a call of jobs in more than a thousand lanes, and every tenant has its own."""
    news = [NewJob("t", b"", Lane("q", 0, f"t{n}")) for n in range(2500)]
    batches = batches_of(news)
    assert [len(batch.jobs) for batch in batches] == [1000, 1000, 500]
    assert [job for batch in batches for job in batch.jobs] == news
    assert batches_of([]) == []
