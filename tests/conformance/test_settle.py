"""settle: outcomes by position under the lease's token; what follows is told, never decided here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from conformance.kit import (
    CANCELLED,
    DEAD,
    LONG,
    RELEASE,
    SECOND,
    TTL,
    claim,
    counts,
    dump,
    failure,
    find_all,
    ids,
    look,
    put,
    queue_stats,
    run_one,
    settle_all,
    state,
    states,
    take,
)
from conformance.test_workers import presence
from headrace.model.job import Failure, JobId, JobState
from headrace.model.lease import new_token
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.model.records import Filter
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

WHERE_ALL = Filter()
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


async def test_done(store: Store, clock: FakeClock):
    [id] = await put(store)
    lease = await take(store)
    clock.advance(2)
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    job = await look(store, id)
    assert (job.state, job.finished_at, job.attempt, job.failures) == (JobState.DONE, clock.now(), 1, 0)
    assert (job.result, job.result_expired, job.note, job.claimed_at) == (None, False, None, clock.now() - 2 * SECOND)
    assert await counts(store) == {}
    assert (await queue_stats(store)).done_total == 1
    assert await claim(store) is None


async def test_done_with_a_result(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store, Finish(JobState.DONE, result=b"\x00answer\xff"))
    clock.advance(LONG)
    job = await look(store, id)
    assert (job.result, job.result_expired) == (b"\x00answer\xff", False)


async def test_an_empty_result_is_a_result(store: Store):
    [id] = await put(store)
    await run_one(store, Finish(JobState.DONE, result=b""))
    assert (await look(store, id)).result == b""


async def test_a_result_is_over_after_its_time_to_live(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store, Finish(JobState.DONE, result=b"r", result_ttl=TTL))
    clock.advance(TTL - timedelta(microseconds=1))
    assert (await look(store, id)).result == b"r"
    clock.advance(timedelta(microseconds=1))
    job = await look(store, id)
    assert (job.state, job.result, job.result_expired) == (JobState.DONE, None, True)
    assert [(j.result, j.result_expired) for j in (await store.find(WHERE_ALL)).jobs] == [(None, True)]


async def test_each_result_has_its_own_time_to_live(store: Store, clock: FakeClock):
    made = await put(store, 6)
    lease = await take(store)
    lives = [timedelta(0), None, TTL, TTL * 2, None, timedelta(0)]
    ends = [Finish(JobState.DONE, result=b"%d" % n, result_ttl=life) for n, life in enumerate(lives)]
    ends[4] = DONE
    await store.settle(lease.token, list(enumerate(ends)))
    assert [job and job.result for job in await store.get(made)] == [None, b"1", b"2", b"3", None, None]
    assert [job and job.result_expired for job in await store.get(made)] == [True, False, False, False, False, True]
    clock.advance(TTL)
    assert [job and job.result for job in await store.get(made)] == [None, b"1", None, b"3", None, None]


async def test_no_result_never_expires(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store, Finish(JobState.DONE, result=None, result_ttl=TTL))
    clock.advance(TTL * 2)
    assert (await look(store, id)).result_expired is False


async def test_dead_keeps_payload_note_failure_and_counts(store: Store, clock: FakeClock):
    [id] = await put(store, payload=b"arguments")
    why = failure(message="boom")
    await run_one(store, Finish(JobState.DEAD, note="max_attempts", failure=why, failures=1))
    job = await look(store, id)
    assert (job.state, job.note, job.failures, job.crashes) == (JobState.DEAD, "max_attempts", 1, 0)
    assert (job.payload, job.history, job.finished_at) == (b"arguments", (why,), clock.now())
    assert await counts(store) == {"dead": 1}
    assert (await queue_stats(store)).failed_total == 1


async def test_dead_of_crashes(store: Store):
    [id] = await put(store)
    await run_one(store, Again(1, 2))
    await run_one(store, Finish(JobState.DEAD, note="worker_lost", crashes=3))
    job = await look(store, id)
    assert (job.failures, job.crashes, job.note, job.history) == (1, 3, "worker_lost", ())
    assert (await queue_stats(store)).failed_total == 0


async def test_counts_not_given_stay_as_they_were(store: Store):
    [id] = await put(store)
    await run_one(store, Again(4, 2))
    await run_one(store, DONE)
    job = await look(store, id)
    assert (job.failures, job.crashes) == (4, 2)


async def test_cancelled_by_the_task_itself(store: Store):
    [id] = await put(store)
    await run_one(store, CANCELLED)
    job = await look(store, id)
    assert (job.state, job.note) == (JobState.CANCELLED, "enough")
    assert await counts(store) == {}


async def test_again_at_once(store: Store):
    [id] = await put(store)
    await run_one(store, RELEASE)
    job = await look(store, id)
    assert (job.state, job.attempt, job.failures, job.run_at, job.worker) == (JobState.READY, 1, 0, None, None)
    assert await counts(store) == {"ready": 1}
    assert ids(await claim(store)) == [id]


async def test_again_later(store: Store, clock: FakeClock):
    [id] = await put(store)
    why = failure()
    await run_one(store, Again(1, 0, due=timedelta(seconds=8), note="asked to wait", failure=why))
    job = await look(store, id)
    assert (job.state, job.run_at, job.failures) == (JobState.SCHEDULED, clock.now() + timedelta(seconds=8), 1)
    assert (job.note, job.history) == ("asked to wait", (why,))
    assert await claim(store) is None
    assert await counts(store) == {"scheduled": 1}
    assert (await queue_stats(store)).failed_total == 1


async def test_again_at_a_time(store: Store, clock: FakeClock):
    [id] = await put(store)
    at = clock.now() + timedelta(minutes=3)
    await run_one(store, Again(0, 0, due=at))
    assert (await look(store, id)).run_at == at


async def test_again_at_a_time_that_is_over(store: Store, clock: FakeClock):
    made = await put(store, 3)
    lease = await take(store)
    past = [clock.now(), clock.now() - LONG, timedelta(0)]
    await store.settle(lease.token, [(at, Again(0, 0, due=due)) for at, due in enumerate(past)])
    assert await states(store, made) == [JobState.READY] * 3


async def test_every_failure_is_kept_oldest_first(store: Store):
    [id] = await put(store)
    whys = [failure(n, f"Error{n}", "x" * n) for n in range(1, 6)]
    for n, why in enumerate(whys[:4], 1):
        await run_one(store, Again(n, 0, failure=why))
    assert (await look(store, id)).history == tuple(whys[:4])
    await run_one(store, Finish(JobState.DEAD, note="max_attempts", failure=whys[4], failures=5))
    assert (await look(store, id)).history == tuple(whys)
    assert (await queue_stats(store)).failed_total == 5


async def test_a_done_job_keeps_its_earlier_failures(store: Store):
    [id] = await put(store)
    why = failure()
    await run_one(store, Again(1, 0, failure=why))
    await run_one(store)
    job = await look(store, id)
    assert (job.state, job.failures, job.history) == (JobState.DONE, 1, (why,))


async def test_a_batch_may_end_in_every_way_at_once(store: Store, clock: FakeClock):
    made = await put(store, 6)
    lease = await take(store)
    ends = [DONE, DEAD, CANCELLED, RELEASE, Again(1, 0, due=TTL), Finish(JobState.DONE, result=b"5")]
    assert await store.settle(lease.token, list(enumerate(ends))) == frozenset()
    expected = [
        JobState.DONE,
        JobState.DEAD,
        JobState.CANCELLED,
        JobState.READY,
        JobState.SCHEDULED,
        JobState.DONE,
    ]
    assert await states(store, made) == expected
    assert await counts(store) == {"ready": 1, "scheduled": 1, "dead": 1}
    assert (await look(store, made[5])).result == b"5"


async def test_a_lease_may_be_settled_in_parts_and_out_of_order(store: Store):
    made = await put(store, 5)
    lease = await take(store)
    assert await store.settle(lease.token, [(3, DONE), (1, RELEASE)]) == frozenset()
    assert await states(store, made) == [
        JobState.RUNNING,
        JobState.READY,
        JobState.RUNNING,
        JobState.DONE,
        JobState.RUNNING,
    ]
    assert await counts(store) == {"ready": 1, "running": 3}
    assert await store.settle(lease.token, [(4, DONE), (0, DONE), (2, DONE)]) == frozenset()
    assert await counts(store) == {"ready": 1}
    assert (await store.heartbeat([lease.token], TTL)).lost == {lease.token}


async def test_settling_a_position_again_is_neither_refused_nor_applied(store: Store):
    made = await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, Finish(JobState.DONE, result=b"first")), (1, RELEASE)])
    before = await dump(store)
    assert await store.settle(lease.token, [(0, DEAD), (1, DONE)]) == frozenset()
    assert await dump(store) == before
    # What went back may run elsewhere by now: the old lease's word on it still counts for nothing.
    other = await take(store)
    assert ids(other) == [made[1]]
    before = await dump(store)
    assert await store.settle(lease.token, [(1, DEAD)]) == frozenset()
    assert await dump(store) == before


async def test_a_repeat_together_with_the_rest(store: Store):
    made = await put(store, 2)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE)])
    assert await store.settle(lease.token, [(0, DEAD), (1, DEAD)]) == frozenset()
    assert await states(store, made) == [JobState.DONE, JobState.DEAD]


async def test_repeating_the_last_settle_is_refused_and_changes_nothing(store: Store):
    await put(store, 2)
    lease = await take(store)
    await settle_all(store, lease)
    before = await dump(store)
    assert await store.settle(lease.token, [(0, DEAD), (1, RELEASE)]) == {0, 1}
    assert await dump(store) == before


async def test_a_position_twice_in_one_call_counts_once(store: Store):
    [id] = await put(store)
    lease = await take(store)
    assert await store.settle(lease.token, [(0, DONE), (0, DEAD)]) == frozenset()
    assert await state(store, id) is JobState.DONE
    assert (await queue_stats(store)).done_total == 1


async def test_a_position_the_lease_never_had_is_refused(store: Store):
    made = await put(store, 2)
    lease = await take(store)
    assert await store.settle(lease.token, [(7, DONE), (0, DONE), (-1, DONE)]) == {7, -1}
    assert await states(store, made) == [JobState.DONE, JobState.RUNNING]
    assert await store.settle(lease.token, [(1, DONE)]) == frozenset()


async def test_an_unknown_token_is_refused(store: Store):
    await put(store, 2)
    await take(store, 1)
    before = await dump(store)
    assert await store.settle(new_token(), [(0, DONE), (5, RELEASE)]) == {0, 5}
    assert await dump(store) == before


async def test_settling_nothing_changes_nothing(store: Store):
    await put(store)
    lease = await take(store)
    before = await dump(store)
    assert await store.settle(lease.token, []) == frozenset()
    assert await dump(store) == before
    await settle_all(store, lease)


async def test_a_thousand_at_once(store: Store):
    await put(store, 1000)
    lease = await take(store, 1000)
    await settle_all(store, lease, Finish(JobState.DONE, result=b"r"))
    assert (await queue_stats(store)).done_total == 1000
    assert await counts(store) == {}


async def test_a_thousand_failures_at_once(store: Store):
    await put(store, 1000)
    lease = await take(store, 1000)
    again = [(at, Again(1, 0, due=TTL, failure=failure(message=str(at)))) for at in range(1000)]
    assert await store.settle(lease.token, again) == frozenset()
    assert await counts(store) == {"scheduled": 1000}
    assert (await queue_stats(store)).failed_total == 1000
    [last] = await store.get([lease.jobs[-1].id])
    assert last is not None
    assert [why.message for why in last.history] == ["999"]


async def test_failures_alike_and_others_keep_their_own_times_and_come_after_earlier_ones(store: Store):
    """Jobs of one lease that fail at one place, some of them scattered, beside jobs that fail elsewhere and jobs that end well."""
    await put(store, 60)
    whys: dict[JobId, list[Failure]] = {}
    for attempt in (1, 2):
        lease = await take(store, 60)
        ends: list[tuple[int, Settlement]] = []
        for at, job in enumerate(lease.jobs):
            if at % 3 == 2:
                ends.append((at, RELEASE))
                continue
            why = replace(failure(attempt, message="alike" if at % 7 else str(at)), at=MOMENT + at * SECOND)
            whys.setdefault(job.id, []).append(why)
            ends.append((at, Again(attempt, 0, failure=why)))
        assert await store.settle(lease.token, ends) == frozenset()
    jobs = [job for job in await store.get([job.id for job in lease.jobs]) if job is not None]
    assert len(jobs) == 60
    assert {job.id: list(job.history) for job in jobs if job.history} == whys
    assert (await queue_stats(store)).failed_total == sum(map(len, whys.values()))


async def test_a_finished_job_shows_its_last_worker_and_claim(store: Store, clock: FakeClock):
    worker = presence(name="host:7")
    made = await put(store, 6)
    await store.heartbeat([], TTL, worker)
    lease = await take(store, 6, worker=worker.id)
    claimed = clock.now()
    clock.advance(3)
    ends = [DONE, Finish(JobState.DONE, result=b"r"), DEAD, CANCELLED, Again(0, 0)]
    await store.settle(lease.token, list(enumerate(ends)))
    await store.cancel([made[5]])
    await store.settle(lease.token, [(5, Again(0, 0))])
    await store.retire(worker.id)
    clock.advance(2)
    jobs = await store.get(made)
    ended = [(job.worker, job.worker_name, job.claimed_at) for job in jobs if job and job.state.finished]
    assert ended == [(worker.id, "host:7", claimed)] * 5
    assert [(job.worker, job.claimed_at) for job in await find_all(store) if job.state.finished] == [
        (worker.id, claimed)
    ] * 5
    back = await look(store, made[4])
    assert (back.worker, back.worker_name, back.claimed_at) == (None, None, None)
    await store.retry([made[2]])
    again = await look(store, made[2])
    assert (again.worker, again.worker_name, again.claimed_at) == (None, None, None)


async def test_a_whole_lease_that_went_well_shows_its_worker(store: Store, clock: FakeClock):
    worker = presence(name="host:8")
    await store.heartbeat([], TTL, worker)
    for size in (1, 9):
        made = await put(store, size)
        lease = await take(store, size, worker=worker.id)
        claimed = clock.now()
        assert (await look(store, made[0])).worker_name == "host:8"
        clock.advance(1)
        await settle_all(store, lease)
        jobs = await store.get(made)
        assert {(job.worker, job.worker_name, job.claimed_at) for job in jobs if job} == {
            (worker.id, "host:8", claimed)
        }


async def test_a_finished_job_shows_its_worker_though_that_has_not_told_of_itself_yet(store: Store):
    worker = presence(name="host:9")
    ends: list[list[tuple[int, Settlement]]] = [[(0, DONE), (1, DONE)], [(0, DONE)], [(0, DEAD)]]
    for settlements in ends:
        made = await put(store, 2)
        lease = await take(store, 2, worker=worker.id)
        await store.settle(lease.token, settlements)
        jobs = [await look(store, made[position]) for position, _ in settlements]
        assert {(job.worker, job.worker_name) for job in jobs} == {(worker.id, None)}
        await store.heartbeat([], TTL, worker)
        jobs = [await look(store, made[position]) for position, _ in settlements]
        assert {(job.worker, job.worker_name) for job in jobs} == {(worker.id, "host:9")}
        worker = presence(name="host:9")


async def test_one_cancelled_before_it_ran_has_no_worker(store: Store):
    [id] = await put(store)
    await store.cancel([id])
    job = await look(store, id)
    assert (job.worker, job.worker_name, job.claimed_at) == (None, None, None)
