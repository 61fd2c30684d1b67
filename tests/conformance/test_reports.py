"""report: what a running task says of its job, fenced like every write under a lease."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from conformance.kit import JANITOR, RELEASE, TTL, dump, find_all, look, new, put, put_jobs, run_one, settle_all, take
from headrace.model.job import Job, JobId, LogLine
from headrace.model.lease import MAX_LOG, Report, new_token
from headrace.model.outcome import DONE
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

AT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def lines(*texts: str) -> tuple[LogLine, ...]:
    return tuple(LogLine(AT, text) for text in texts)


def said(job: Job) -> tuple[float | None, str | None, list[str]]:
    return job.progress, job.doing, [line.text for line in job.log]


async def told(store: Store, id: JobId) -> tuple[float | None, str | None, list[str]]:
    return said(await look(store, id))


async def test_what_was_said_is_seen(store: Store):
    first, second = await put(store, 2)
    lease = await take(store)
    assert await told(store, first) == (None, None, [])
    report = Report(progress=0.25, note="reading", lines=lines("one", "two"))
    assert await store.report(lease.token, [(0, report)]) == frozenset()
    assert await told(store, first) == (0.25, "reading", ["one", "two"])
    assert (await look(store, first)).log[0] == LogLine(AT, "one")
    assert await told(store, second) == (None, None, [])


async def test_what_is_not_said_stays_and_lines_are_added(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.report(lease.token, [(0, Report(progress=0.5, note="half", lines=lines("a")))])
    await store.report(lease.token, [(0, Report(lines=lines("b", "c")))])
    assert await told(store, id) == (0.5, "half", ["a", "b", "c"])
    await store.report(lease.token, [(0, Report(progress=0.0)), (0, Report(note=""))])
    assert await told(store, id) == (0.0, "", ["a", "b", "c"])


async def test_the_last_lines_are_kept(store: Store):
    [id] = await put(store)
    lease = await take(store)
    for start in range(0, 250, 50):
        await store.report(lease.token, [(0, Report(lines=lines(*[f"{n}" for n in range(start, start + 50)])))])
    assert (await told(store, id))[2] == [f"{n}" for n in range(250 - MAX_LOG, 250)]
    await store.report(lease.token, [(0, Report(lines=lines(*[f"x{n}" for n in range(300)])))])
    assert (await told(store, id))[2] == [f"x{n}" for n in range(300 - MAX_LOG, 300)]


async def test_any_text(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.report(lease.token, [(0, Report(note="ünï\n", lines=lines("\N{PILE OF POO}", "", "a\tb")))])
    assert await told(store, id) == (None, "ünï\n", ["\N{PILE OF POO}", "", "a\tb"])
    assert await store.report(lease.token, [(0, Report(note="a\0b", lines=lines("\ud800")))]) == frozenset()


async def test_who_may_not_speak_changes_nothing(store: Store, clock: FakeClock):
    await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE)])
    before = await dump(store)
    loud = Report(progress=1.0, note="no", lines=lines("no"))
    assert await store.report(lease.token, [(0, loud), (3, loud), (-1, loud)]) == {0, 3, -1}
    assert await store.report(new_token(), [(0, loud)]) == {0}
    assert await store.report(lease.token, []) == frozenset()
    assert await dump(store) == before
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert await store.report(lease.token, [(1, loud)]) == {1}
    assert await store.report(orphan.token, [(1, loud)]) == frozenset()


async def test_it_outlives_the_attempt_and_the_job_s_end(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.report(lease.token, [(0, Report(progress=0.9, note="nearly", lines=lines("x")))])
    await settle_all(store, lease, RELEASE)
    assert await told(store, id) == (0.9, "nearly", ["x"])
    await run_one(store)
    assert await told(store, id) == (0.9, "nearly", ["x"])
    [found] = await find_all(store)
    assert said(found) == (None, None, [])


async def test_it_goes_with_the_job(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.report(lease.token, [(0, Report(progress=0.9))])
    await settle_all(store, lease)
    assert await store.delete([id]) == {id}
    assert await store.get([id]) == [None]


async def test_many_jobs_at_once(store: Store):
    wanted = await put_jobs(store, *[new() for _ in range(50)])
    lease = await take(store)
    await store.report(lease.token, [(at, Report(progress=at / 50)) for at in range(50)])
    jobs = await store.get(wanted)
    assert [job and job.progress for job in jobs] == [at / 50 for at in range(50)]


async def test_a_detached_job_speaks_under_its_own_lease(store: Store):
    [id] = await put(store)
    lease, fresh = await take(store), new_token()
    assert await store.detach(lease.token, 0, fresh)
    assert await store.report(lease.token, [(0, Report(progress=0.1))]) == {0}
    assert await store.report(fresh, [(0, Report(progress=0.2))]) == frozenset()
    assert (await look(store, id)).progress == 0.2


async def test_time_of_lines_is_the_tasks_own(store: Store):
    [id] = await put(store)
    lease = await take(store)
    late = LogLine(AT + timedelta(days=400), "late")
    await store.report(lease.token, [(0, Report(lines=(late,)))])
    assert (await look(store, id)).log == (late,)
