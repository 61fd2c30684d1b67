"""Dead letters that go, by retention or by delete, leave a record that is written before the job is gone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import DEAD, failure, new, put, put_jobs, run_one, settle_all, states, take
from headrace import Headrace
from headrace.errors import Unavailable
from headrace.model.job import JobId, JobState
from headrace.model.outcome import DONE, Finish
from headrace.model.records import Retention
from headrace.operate.dead import dropped
from headrace.operate.operations import Operations
from headrace.store.audit import Audit
from headrace.store.contract import Recording, Store
from headrace.store.memory import MemoryStore
from headrace.testing.clock import FakeClock
from headrace.worker import Duties, Worker

KEEP = Retention(dead=timedelta(days=3))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines about dead letters, of both ends where the store is remote."""
    return [json.loads(each.getMessage()) for each in caplog.records if getattr(each, "event", "").startswith("dead.")]


async def test_retention_leaves_a_line(store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture):
    [id] = await put_jobs(store, new("mail.send", b"secret", queue="mail", tenant="acme"))
    await run_one(store, Finish(JobState.DEAD, note="max_attempts", failure=failure(), failures=1), "mail")
    died = clock.now()
    clock.advance(KEEP.dead + timedelta(seconds=1))
    assert (await dropped.expire(store, KEEP, by="host:1")).jobs == 1
    assert await states(store, [id]) == [None]
    [line] = lines(caplog)
    assert line["event"] == "dead.expire"
    assert (line["id"], line["task"], line["queue"], line["tenant"]) == (str(id), "mail.send", "mail", "acme")
    assert (line["note"], line["reason"]) == ("max_attempts", "keep_dead is over")
    # A server writes the line itself, and knows its caller by the token.
    assert line["by"] == "host:1" or isinstance(store, Recording)
    assert line["died_at"] == str(died)
    assert line["payload_sha256"] == hashlib.sha256(b"secret").hexdigest()
    assert "secret" not in caplog.text
    assert "not kept in the store" not in caplog.text


async def test_retention_leaves_an_entry_in_the_audit_log(clock: FakeClock):
    store = MemoryStore(clock=clock)
    [id] = await put(store, task="mail.send")
    await run_one(store, DEAD)
    clock.advance(KEEP.dead)
    await dropped.expire(store, KEEP, by="host:1")
    [entry] = await Audit(store).read(clock.now())
    assert (entry.who, entry.action, entry.jobs) == ("host:1", "dead.expire", 1)
    assert entry.what == f"1 of mail.send: {id}"


async def test_a_bounded_number_per_call(store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture):
    made = await put(store, 2 * dropped.PAGE + 10)
    await settle_all(store, await take(store, len(made)), DEAD)
    clock.advance(KEEP.dead)
    first = await dropped.expire(store, KEEP, by="me", limit=dropped.PAGE)
    assert (first.jobs, first.more) == (dropped.PAGE, True)
    rest = await dropped.expire(store, KEEP, by="me")
    assert (rest.jobs, rest.more) == (dropped.PAGE + 10, False)
    assert sorted(line["id"] for line in lines(caplog)) == sorted(str(id) for id in made)
    assert await dropped.expire(store, KEEP, by="me") == type(rest)(0, more=False)


async def test_the_line_comes_before_the_job_goes(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    """A crash in between leaves the job and its line; the next call drops it."""

    class Dying(MemoryStore):
        dies = True

        async def delete(self, ids: Sequence[JobId], **how: Any) -> Any:
            if self.dies:
                raise Unavailable("gone")
            return await super().delete(ids, **how)

    store = Dying(clock=clock)
    [id] = await put(store)
    await run_one(store, DEAD)
    clock.advance(KEEP.dead)
    with pytest.raises(Unavailable):
        await dropped.expire(store, KEEP, by="me")
    assert [line["id"] for line in lines(caplog)] == [str(id)]
    store.dies = False
    assert (await dropped.expire(store, KEEP, by="me")).jobs == 1
    assert [line["id"] for line in lines(caplog)] == [str(id)] * 2


async def test_one_that_is_retried_meanwhile_stays(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    class Retrying(MemoryStore):
        async def delete(self, ids: Sequence[JobId], **how: Any) -> Any:
            await self.retry(ids)
            return await super().delete(ids, **how)

    store = Retrying(clock=clock)
    [id] = await put(store)
    await run_one(store, DEAD)
    clock.advance(KEEP.dead)
    assert (await dropped.expire(store, KEEP, by="me")).jobs == 0
    assert await states(store, [id]) == [JobState.READY]
    assert [line["event"] for line in lines(caplog)] == ["dead.expire", "dead.expire_refused"]


async def test_one_that_dies_once_more_meanwhile_stays(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    """Its line tells of the death before."""

    class Dying(MemoryStore):
        async def delete(self, ids: Sequence[JobId], **how: Any) -> Any:
            await self.retry(ids)
            await run_one(self, DEAD)
            return await super().delete(ids, **how)

    store = Dying(clock=clock)
    [id] = await put(store)
    await run_one(store, DEAD)
    clock.advance(KEEP.dead)
    assert (await dropped.expire(store, KEEP, by="me")).jobs == 0
    assert await states(store, [id]) == [JobState.DEAD]
    assert [line["event"] for line in lines(caplog)] == ["dead.expire", "dead.expire_refused"]


async def test_delete_leaves_a_line_for_the_dead_only(store: Store, caplog: pytest.LogCaptureFixture):
    made = await put(store, 3)
    lease = await take(store, 2)
    await store.settle(lease.token, [(0, DEAD), (1, DONE)])
    assert await Operations(store).jobs.delete(made) == frozenset(made)
    assert [(line["event"], line["id"], line["reason"]) for line in lines(caplog)] == [
        ("dead.delete", str(made[0]), "deleted")
    ]
    assert await Operations(store).jobs.delete(made) == frozenset()


@pytest.mark.parametrize("asked", [False, True])
async def test_a_worker_writes_them_with_arguments_where_asked(
    asked: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.worker.janitor.PRUNE_EVERY", 0.01)
    app = Headrace("memory://", keep_dead="0s")
    app.queue("default", dead_arguments=asked)

    @app.task(name="pay", redact=("card",))
    async def pay(card: str, amount: int) -> None: ...

    gone = asyncio.Event()

    class Watched(MemoryStore):
        async def delete(self, ids: Sequence[JobId], **how: Any) -> Any:
            gone.set()
            return await super().delete(ids, **how)

    store = Watched()
    await put_jobs(store, pay.job("visa-4111", 7).job)
    await run_one(store, DEAD)
    duties = Duties(queues=app.queues)
    async with Worker(app.tasks, store, app.settings, queues=("other",), duties=duties):
        await gone.wait()
    [line] = lines(caplog)
    assert line["by"] == f"{socket.gethostname()}:{os.getpid()}"
    assert ("arguments" in line) == asked
    assert "visa-4111" not in caplog.text
    if asked:
        assert "7" in json.dumps(line["arguments"])
