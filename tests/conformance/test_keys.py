"""Idempotency keys: one job per (task, key) within its window; other arguments under the same key are a conflict."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.kit import RELEASE, batch, counts, dump, find_all, key, new, put_jobs, run_one, take
from headrace.errors import IdempotencyConflict
from headrace.model.job import JobId, NewJob, job_id
from headrace.model.outcome import DONE
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

HOUR = timedelta(hours=1)


async def again(store: Store, *jobs: NewJob) -> dict[int, JobId]:
    """Enqueue in a new batch; what was there already."""
    return dict((await store.enqueue(batch(*jobs))).existing)


async def test_the_same_key_answers_the_same_job(store: Store):
    [id] = await put_jobs(store, new(key=key("k")))
    before = await dump(store)
    assert await again(store, new(key=key("k"))) == {0: id}
    assert await dump(store) == before


async def test_repeating_the_same_batch_answers_as_before(store: Store):
    [old] = await put_jobs(store, new(key=key("old")))
    made = batch(new(), new(key=key("old")), new(key=key("fresh")))
    first = await store.enqueue(made)
    assert first.existing == {1: old}
    before = await dump(store)
    assert (await store.enqueue(made)).existing == {1: old}
    assert await dump(store) == before


async def test_repeating_a_batch_that_stored_nothing_answers_as_before(store: Store):
    [id] = await put_jobs(store, new(key=key("k")))
    made = batch(new(key=key("k")))
    assert [(await store.enqueue(made)).existing for _ in range(2)] == [{0: id}, {0: id}]
    assert await counts(store) == {"ready": 1}


async def test_the_rest_of_a_batch_is_stored_around_an_existing_one(store: Store):
    [id] = await put_jobs(store, new(key=key("k")))
    made = batch(new(payload=b"0"), new(key=key("k")), new(payload=b"2"), new(payload=b"3", key=key("other")))
    assert (await store.enqueue(made)).existing == {1: id}
    assert [job and job.payload for job in await store.get([job_id(made.id, ord) for ord in range(4)])] == [
        b"0",
        None,
        b"2",
        b"3",
    ]
    lease = await take(store)
    assert [job.id for job in lease.jobs] == [id, *(job_id(made.id, ord) for ord in (0, 2, 3))]


async def test_other_arguments_under_the_same_key_are_a_conflict(store: Store):
    [id] = await put_jobs(store, new(key=key("k", b"one")))
    before = await dump(store)
    with pytest.raises(IdempotencyConflict) as caught:
        await store.enqueue(batch(new(), new(key=key("k", b"two")), new(key=key("unrelated"))))
    assert (caught.value.task, caught.value.key, caught.value.existing) == ("t", "k", id)
    assert await dump(store) == before


async def test_a_conflict_leaves_no_key_of_its_batch_behind(store: Store):
    await put_jobs(store, new(key=key("k", b"one")))
    with pytest.raises(IdempotencyConflict):
        await store.enqueue(batch(new(key=key("unrelated", b"x")), new(key=key("k", b"two"))))
    assert await again(store, new(key=key("unrelated", b"y"))) == {}


async def test_keys_belong_to_their_task(store: Store):
    await put_jobs(store, new("a", key=key("k", b"one")))
    assert await again(store, new("b", key=key("k", b"two"))) == {}


async def test_keys_do_not_care_for_queue_tenant_or_priority(store: Store):
    [id] = await put_jobs(store, new(key=key("k")))
    assert await again(store, new(queue="other", tenant="x", priority=9, key=key("k"))) == {0: id}
    assert await counts(store, "other") == {}


async def test_inside_one_batch_the_first_job_makes_the_key(store: Store):
    made = batch(new(payload=b"a", key=key("k")), new(payload=b"b", key=key("k")), new(payload=b"c"))
    first = job_id(made.id, 0)
    assert (await store.enqueue(made)).existing == {1: first}
    assert (await store.enqueue(made)).existing == {1: first}
    assert [job.payload for job in await find_all(store)] == [b"c", b"a"]


async def test_inside_one_batch_other_arguments_are_a_conflict(store: Store):
    made = batch(new(), new(key=key("k", b"one")), new(key=key("k", b"two")))
    with pytest.raises(IdempotencyConflict) as caught:
        await store.enqueue(made)
    assert caught.value.existing == job_id(made.id, 1)
    assert await find_all(store) == []


async def test_a_key_is_free_when_its_window_is_over(store: Store, clock: FakeClock):
    [id] = await put_jobs(store, new(key=key("k", ttl=HOUR)))
    clock.advance(HOUR - timedelta(microseconds=1))
    assert await again(store, new(key=key("k", ttl=HOUR))) == {0: id}
    clock.advance(timedelta(microseconds=1))
    [other] = await put_jobs(store, new(key=key("k", b"other arguments", ttl=HOUR)))
    clock.advance(HOUR / 2)
    assert await again(store, new(key=key("k", b"other arguments"))) == {0: other}


async def test_meeting_a_key_does_not_make_its_window_longer(store: Store, clock: FakeClock):
    await put_jobs(store, new(key=key("k", ttl=HOUR)))
    clock.advance(HOUR / 2)
    assert len(await again(store, new(key=key("k", ttl=HOUR)))) == 1
    clock.advance(HOUR / 2)
    assert await again(store, new(key=key("k", ttl=HOUR))) == {}


async def test_a_key_outlives_the_end_of_its_job(store: Store):
    [id] = await put_jobs(store, new(key=key("k")))
    await run_one(store, DONE)
    assert await again(store, new(key=key("k"))) == {0: id}
    assert await counts(store) == {}


async def test_a_key_outlives_cancel_release_retry_and_delete(store: Store):
    [id] = await put_jobs(store, new(key=key("k")))
    await run_one(store, RELEASE)
    assert await again(store, new(key=key("k"))) == {0: id}
    await store.cancel([id])
    assert await again(store, new(key=key("k"))) == {0: id}
    await store.retry([id])
    assert await again(store, new(key=key("k"))) == {0: id}
    await store.delete([id])
    assert await again(store, new(key=key("k"))) == {0: id}
    assert await find_all(store) == []


async def test_a_thousand_keys_in_one_batch(store: Store):
    jobs = [new(key=key(f"order-{n}")) for n in range(1000)]
    made = await put_jobs(store, *jobs)
    assert await again(store, *jobs) == dict(enumerate(made))
    assert await counts(store) == {"ready": 1000}


async def test_a_key_may_be_any_printable_text(store: Store):
    names = ["a'b", 'a"b', "a\\b", "%_", "ключ", "🔑" * 64, " "]
    made = await put_jobs(store, *[new(key=key(name)) for name in names])
    assert await again(store, *[new(key=key(name)) for name in names]) == dict(enumerate(made))
