"""get and find: looking changes nothing and misses nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.kit import (
    CANCELLED,
    DEAD,
    LONG,
    dump,
    failure,
    find_all,
    look,
    new,
    put,
    put_jobs,
    run_one,
    take,
)
from headrace.model.gate import Wait
from headrace.model.job import Job, JobId, JobState, job_id, new_batch
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Filter, Page
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)
VISIBLE = [name for name in Job.__struct_fields__ if name not in {"history", "waits"}]


async def found(store: Store, **where: object) -> list[JobId]:
    """Ids by filter, oldest first, read in pages of two."""
    return [job.id for job in reversed(await find_all(store, Filter(**where), limit=2))]  # type: ignore[arg-type]


async def every_state(store: Store) -> dict[JobState, JobId]:
    made = await put(store, 4)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, CANCELLED)])
    [ready] = await put(store)
    [scheduled] = await put(store, due=S)
    [blocked] = await put(store, wait=Wait(ready))
    return {
        JobState.DONE: made[0],
        JobState.DEAD: made[1],
        JobState.CANCELLED: made[2],
        JobState.RUNNING: made[3],
        JobState.READY: ready,
        JobState.SCHEDULED: scheduled,
        JobState.BLOCKED: blocked,
    }


async def test_get_answers_in_the_order_asked(store: Store):
    a, b, c = await put(store, 3)
    unknown = job_id(new_batch(), 0)
    jobs = await store.get([c, unknown, a, b, c])
    assert [job and job.id for job in jobs] == [c, None, a, b, c]
    assert await store.get([]) == []


async def test_get_of_many(store: Store):
    made = await put(store, 1500)
    jobs = await store.get(made[::-1])
    assert [job and job.id for job in jobs] == made[::-1]


async def test_find_shows_what_get_shows_but_for_the_history(store: Store, clock: FakeClock):
    await every_state(store)
    await put_jobs(store, new("x", b"\x00", queue="q", priority=3, tenant="acme", limits=("l:1",), options=b"o"))
    await run_one(store, Again(1, 0, due=S, note="n", failure=failure()), "q")
    for job in await find_all(store):
        known = await look(store, job.id)
        assert (job.history, job.waits) == ((), ())
        assert [getattr(job, name) for name in VISIBLE] == [getattr(known, name) for name in VISIBLE]


async def test_newest_first(store: Store):
    made = [id for size in (1, 4, 1, 2) for id in await put(store, size)]
    assert [job.id for job in (await store.find(Filter())).jobs] == made[::-1]


async def test_pages(store: Store):
    made = (await put(store, 7))[::-1]
    seen: list[list[JobId]] = []
    before = None
    while True:
        page = await store.find(Filter(), before=before, limit=3)
        seen.append([job.id for job in page.jobs])
        before = page.next
        if before is None:
            break
    assert seen == [made[0:3], made[3:6], made[6:7]]


async def test_a_full_last_page_says_that_it_is_the_last(store: Store):
    made = await put(store, 4)
    first = await store.find(Filter(), limit=2)
    assert first.next == made[2]
    assert (await store.find(Filter(), before=first.next, limit=2)).next is None
    assert (await store.find(Filter(), limit=4)).next is None


async def test_jobs_that_come_while_paging_do_not_disturb(store: Store):
    made = await put(store, 4)
    first = await store.find(Filter(), limit=2)
    await put(store, 3)
    await store.delete([made[2]])
    rest = await store.find(Filter(), before=first.next, limit=10)
    assert [job.id for job in rest.jobs] == [made[1], made[0]]


async def test_before_need_not_be_a_job(store: Store):
    made = await put(store, 2)
    assert [job.id for job in (await store.find(Filter(), before=job_id(new_batch(), 0))).jobs] == made[::-1]


async def test_nothing_found(store: Store):
    assert await store.find(Filter()) == Page([], None)
    await put(store)
    assert await store.find(Filter(queue="nobody")) == Page([], None)


@pytest.mark.parametrize("wanted", JobState)
async def test_by_state(store: Store, wanted: JobState):
    made = await every_state(store)
    assert await found(store, states=frozenset({wanted})) == [made[wanted]]


async def test_by_several_states(store: Store):
    made = await every_state(store)
    some = frozenset({JobState.DONE, JobState.READY, JobState.SCHEDULED})
    assert await found(store, states=some) == sorted(made[one] for one in some)
    assert await found(store, states=frozenset(JobState)) == sorted(made.values())


async def test_by_queue_task_and_tenant(store: Store):
    made = await put_jobs(
        store,
        new("a.b", queue="q1", tenant="acme"),
        new("a.c", queue="q1", tenant=""),
        new("a.b", queue="q2", tenant="acme"),
        new("A.b", queue="q2", tenant="Acme"),
    )
    assert await found(store, queue="q1") == made[:2]
    assert await found(store, task="a.b") == [made[0], made[2]]
    assert await found(store, task="a") == []
    assert await found(store, tenant="acme") == [made[0], made[2]]
    assert await found(store, tenant="") == [made[1]]
    assert await found(store, queue="q2", task="a.b", tenant="acme") == [made[2]]
    assert await found(store, queue="q2", tenant="") == []


async def test_by_time_of_enqueue(store: Store, clock: FakeClock):
    made = []
    for _ in range(4):
        made += await put(store)
        clock.advance(10)
    start = clock.now() - 40 * S
    assert await found(store, since=start + 10 * S) == made[1:]
    assert await found(store, until=start + 10 * S) == made[:1]
    assert await found(store, since=start + 10 * S, until=start + 30 * S) == made[1:3]
    assert await found(store, since=clock.now()) == []


async def test_by_text_in_task_note_kind_and_message(store: Store):
    by_task, by_note, by_kind, by_message, other = await put_jobs(store, new("mail.send"), *[new("t")] * 4)
    lease = await take(store)
    ends = [
        DONE,
        Finish(JobState.CANCELLED, note="wrong send-to"),
        Finish(JobState.DEAD, failure=failure(kind="smtp.sendError"), failures=1),
        Again(1, 0, due=S, failure=failure(message="cannot send")),
        DONE,
    ]
    await store.settle(lease.token, list(enumerate(ends)))
    assert await found(store, text="send") == [by_task, by_note, by_kind, by_message]
    assert other not in await found(store, text="send")
    assert await found(store, text="Send") == []
    assert await found(store, text="send", states=frozenset({JobState.DEAD})) == [by_kind]


async def test_text_finds_every_failure_not_only_the_last(store: Store):
    [id] = await put(store)
    await run_one(store, Again(1, 0, failure=failure(message="first of all")))
    await run_one(store, Again(2, 0, failure=failure(message="second")))
    await run_one(store)
    assert await found(store, text="first") == [id]
    assert await found(store, text="second") == [id]


@pytest.mark.parametrize("literal", ["100%", "a_b", "c\\d", "it's", "[x]*?", "日本", '"q"', "--"])
async def test_text_is_literal(store: Store, literal: str):
    made = await put(store, 2)
    lease = await take(store)
    notes = [f"before {literal} after", "100 aXb cd its [y] nothing"]
    await store.settle(lease.token, [(n, Finish(JobState.DEAD, note=note)) for n, note in enumerate(notes)])
    assert await found(store, text=literal) == made[:1]


async def test_filters_and_pages_together(store: Store):
    made = await put_jobs(store, *[new("ab"[n % 2], tenant=f"t{n % 3}") for n in range(60)])
    wanted = [id for n, id in enumerate(made) if n % 2 == 0 and n % 3 == 1]
    assert await found(store, task="a", tenant="t1") == wanted


async def test_following_next_finds_what_is_rare_once(store: Store):
    """A store may end a page early; a caller that goes on by `next` gets every job once, in order."""
    made = await put_jobs(store, *[new("rare" if n % 40 == 7 else "usual") for n in range(200)])
    made += [id for n in range(70) for id in await put(store, task="rare" if n == 3 else "usual")]
    rare = [id for n, id in enumerate(made) if n % 40 == 7 and n < 200] + [made[203]]
    assert await found(store, task="rare") == rare
    assert [job.id for job in await find_all(store, Filter(task="rare"), limit=100)] == rare[::-1]
    assert await found(store, task="none") == []


async def test_looking_changes_nothing(store: Store, clock: FakeClock):
    await every_state(store)
    clock.advance(LONG)
    before = await dump(store)
    await find_all(store, Filter(text="x"))
    await store.workers()
    assert await dump(store) == before
