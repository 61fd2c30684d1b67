"""Content: payloads, options and results are bytes that come back unchanged; text may be anything."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from conformance.kit import (
    DEAD,
    JANITOR,
    SECOND,
    TTL,
    claim,
    failure,
    find_all,
    look,
    new,
    put,
    put_jobs,
    run_one,
    settle_all,
    state,
    take,
)
from conformance.test_workers import presence
from headrace.model.job import Failure, JobState
from headrace.model.lease import new_worker_id
from headrace.model.outcome import Again, Finish
from headrace.model.records import Filter
from headrace.store.contract import Store
from headrace.task.codec import encode_options
from headrace.task.job_options import JobOptions
from headrace.testing.clock import FakeClock

LARGEST = 256 * 1024

CONTENTS = {
    "empty": b"",
    "nul": b"\x00",
    "nuls": b"a\x00b\x00\x00c",
    "every byte": bytes(range(256)),
    "no utf-8": b"\xff\xfe\xc0\x80\xed\xa0\x80",
    "quotes": b"'\"\\;--%s$1\\x00{}",
    "json": b'{"a": "\\u0000"}',
    "spaces": b"  \n\t ",
    "largest": os.urandom(LARGEST),
    "over": b"\x00" * (LARGEST + 1),
    "megabytes": b"\x5c" * (3 * 1024 * 1024),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
async def test_bytes_come_back_unchanged_everywhere(store: Store, content: bytes):
    [id] = await put_jobs(store, new(payload=content, options=content))
    for job in (await look(store, id), (await find_all(store))[0]):
        assert (job.payload, job.options) == (content, content)
    lease = await take(store)
    assert (lease.jobs[0].payload, lease.jobs[0].options) == (content, content)
    await settle_all(store, lease, Finish(JobState.DONE, result=content))
    assert (await look(store, id)).result == content
    await store.retry([id])
    await run_one(store, Again(0, 0))
    [again] = (await take(store)).jobs
    assert (again.payload, again.options) == (content, content)


async def test_an_orphan_carries_the_same_bytes(store: Store, clock: FakeClock):
    await put(store, payload=b"\x00p", options=b"\x00o")
    await take(store)
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert [(job.payload, job.options) for _, job in orphan.jobs] == [(b"\x00p", b"\x00o")]


TRACED = encode_options(JobOptions(trace=f"00-{'1' * 32}-{'2' * 16}-00"))
TIMED = encode_options(JobOptions(timeout=3.0))


@pytest.mark.parametrize(
    "options",
    [[TRACED] * 20, [TIMED] * 20, [b""] * 20, [*[TRACED] * 10, None, *[TRACED] * 10], [TRACED, TIMED, None] * 7],
    ids=["one trace", "one timeout", "empty", "one without", "several"],
)
@pytest.mark.parametrize("tenants", [1, 3])
async def test_jobs_of_one_call_have_their_options_everywhere(
    store: Store, clock: FakeClock, options: list[bytes | None], tenants: int
):
    jobs = [new(options=own, tenant=f"t{at % tenants}") for at, own in enumerate(options)]
    made = dict(zip(await put_jobs(store, *jobs), options, strict=True))
    assert {job.id: job.options for job in await store.get(list(made)) if job} == made
    assert {job.id: job.options for job in await find_all(store)} == made
    assert {job.id: job.options for job in (await take(store)).jobs} == made
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert {job.id: job.options for _, job in orphan.jobs} == made


async def test_no_options_and_empty_options_differ(store: Store):
    made = await put_jobs(store, new(options=None), new(options=b""))
    assert [job and job.options for job in await store.get(made)] == [None, b""]
    assert [job.options for job in (await take(store)).jobs] == [None, b""]


async def test_payloads_of_all_sizes_in_one_batch(store: Store):
    payloads = [os.urandom(size) for size in (0, 1, 10, 1000, 100_000, 0, 5, 250_000)]
    await put_jobs(store, *[new(payload=payload) for payload in payloads])
    assert [job.payload for job in (await take(store)).jobs] == payloads


TEXTS = {
    "empty": "",
    "many lines": "a\nb\r\n\tc",
    "emoji": "🚰 headrace ☂",
    "quotes": 'it\'s "quoted" \\ %s $1 {} ;--',
    "long": "x" * 100_000,
    "separators": "\x1e\x1f\u2028\ufeff",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_text_comes_back_unchanged(store: Store, clock: FakeClock, text: str):
    [id] = await put(store)
    why = Failure(1, text, text, text, clock.now(), text)
    await run_one(store, Again(1, 0, due=SECOND, failure=why, note=text))
    job = await look(store, id)
    assert (job.note, job.history) == (text, (why,))
    await store.cancel([id], text)
    assert (await look(store, id)).note == text
    await store.heartbeat([], TTL, presence(name=text))
    assert [worker.name for worker in await store.workers()] == [text]


@pytest.mark.parametrize("nasty", ["\x00", "\ud800", "\udfff and \x00"], ids=["nul", "surrogate", "both"])
async def test_text_that_no_database_holds_stops_no_outcome(store: Store, clock: FakeClock, nasty: str):
    text = f"before {nasty} after"
    [again, dead, cancelled] = await put(store, 3)
    worker = new_worker_id()
    lease = await take(store, worker=worker)
    why = Failure(1, text, text, text, clock.now(), text)
    ends = [Again(1, 0, due=SECOND, failure=why, note=text), Finish(JobState.DEAD, note=text, failure=why, failures=1)]
    assert await store.settle(lease.token, list(enumerate(ends))) == frozenset()
    for id in (again, dead):
        job = await look(store, id)
        assert job.note is not None
        for kept in (job.note, job.history[0].kind, job.history[0].message, job.history[0].traceback):
            assert kept.startswith("before ")
            assert kept.endswith(" after")
    await store.cancel([cancelled], text)
    await store.abandon(worker, text)
    [orphan] = await store.reap(JANITOR, TTL)
    assert orphan.cause.startswith("before ")
    await store.settle(orphan.token, [(2, Again(0, 0))])
    assert await state(store, cancelled) is JobState.CANCELLED
    await store.heartbeat([], TTL, presence(name=text))
    assert len(await store.workers()) == 1
    await store.pause("default", by=text)
    assert len(await find_all(store, Filter(text="before"))) == 3
    await store.find(Filter(text=text))


async def test_names_at_the_edge_of_what_is_allowed(store: Store):
    task, queue, tenant = "T" + "a.b-c_9" * 18 + "x", "0" * 63, "!~'\"\\%_;" * 16
    [id] = await put_jobs(store, new(task, queue=queue, tenant=tenant))
    job = await look(store, id)
    assert (job.task, job.queue, job.tenant) == (task, queue, tenant)
    assert [job.id for job in await find_all(store, Filter(task=task, queue=queue, tenant=tenant))] == [id]
    await store.pause(queue)
    assert await claim(store, 1, queue) is None
    await store.resume(queue)
    assert await claim(store, 1, queue) is not None


async def test_times_keep_their_microseconds(store: Store, clock: FakeClock):
    [id] = await put(store)
    clock.advance(timedelta(microseconds=1))
    await take(store)
    job = await look(store, id)
    assert job.claimed_at is not None
    assert job.claimed_at - job.enqueued_at == timedelta(microseconds=1)
    assert job.claimed_at == clock.now() == await store.now()


async def test_large_counts(store: Store):
    [id] = await put(store)
    await run_one(store, Again(30_000, 20_000, failure=failure(attempt=100_000)))
    job = await look(store, id)
    assert (job.failures, job.crashes, job.history[0].attempt) == (30_000, 20_000, 100_000)
    await run_one(store, DEAD)
    assert (await look(store, id)).failures == 30_000
