"""claim: what a worker gets, in which order."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import (
    RELEASE,
    TTL,
    WORKER,
    claim,
    counts,
    dump,
    failure,
    ids,
    look,
    new,
    put,
    put_jobs,
    rule,
    run_one,
    settle_all,
    state,
    states,
    take,
)
from headrace.model.job import Claimed, JobId, JobState, split_id
from headrace.model.lease import MAX_LEASE, Ask, Lease, new_token, new_worker_id
from headrace.model.outcome import Again
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock


async def test_a_claim_carries_what_the_worker_needs(store: Store, clock: FakeClock):
    given = new("billing.charge", b"\x00\xff", queue="billing", priority=-7, tenant="acme", options=b"opts")
    [id] = await put_jobs(store, given)
    enqueued_at = clock.now()
    clock.advance(5)
    token = new_token()
    lease = await claim(store, 10, "billing", token=token)
    assert lease is not None
    assert (lease.token, lease.suspect) == (token, False)
    [job] = lease.jobs
    assert (job.id, (job.batch, job.ord)) == (id, split_id(id))
    assert (job.attempt, job.failures, job.crashes) == (1, 0, 0)
    assert (job.task, job.payload, job.options) == ("billing.charge", b"\x00\xff", b"opts")
    assert (job.queue, job.priority, job.tenant, job.enqueued_at) == ("billing", -7, "acme", enqueued_at)


async def test_a_claimed_job_is_running(store: Store, clock: FakeClock):
    [id] = await put(store)
    worker = new_worker_id()
    clock.advance(3)
    await take(store, worker=worker)
    job = await look(store, id)
    assert (job.state, job.attempt, job.worker, job.claimed_at) == (JobState.RUNNING, 1, worker, clock.now())
    assert job.finished_at is None
    assert await counts(store) == {"running": 1}


async def test_a_claim_whose_answer_was_lost_may_be_repeated(store: Store):
    [one, two, three] = await put(store, 3)
    token = new_token()
    lease = await claim(store, 2, token=token)
    assert ids(lease) == [one, two]
    for limit in (2, 1, 100):  # whatever else waits
        assert await claim(store, limit, token=token) == lease
    assert ids(await take(store)) == [three]
    assert await claim(store, 2, token=token) == lease  # and also if nothing does
    assert {(await look(store, id)).attempt for id in (one, two, three)} == {1}
    assert lease is not None
    await settle_all(store, lease)
    assert await claim(store, 2, token=token) is None


async def test_a_claimed_job_is_not_claimed_again(store: Store):
    await put(store, 3)
    await take(store, 2)
    assert len(ids(await claim(store))) == 1
    assert await claim(store) is None


async def test_the_attempt_is_counted_by_the_claim(store: Store):
    [id] = await put(store)
    for attempt in (1, 2, 3):
        lease = await take(store)
        assert lease.jobs[0].attempt == attempt
        assert (await look(store, id)).attempt == attempt
        await settle_all(store, lease, RELEASE)
        assert (await look(store, id)).attempt == attempt


async def test_failures_and_crashes_come_with_the_claim(store: Store):
    await put(store)
    await run_one(store, Again(2, 1, failure=failure()))
    [job] = (await take(store)).jobs
    assert (job.attempt, job.failures, job.crashes) == (2, 2, 1)


async def test_at_most_limit_jobs_are_taken(store: Store):
    made = await put(store, 10)
    assert ids(await claim(store, 3)) == made[:3]
    assert ids(await claim(store, 1)) == made[3:4]
    assert ids(await claim(store, 100)) == made[4:]


async def test_a_lease_holds_no_more_than_the_maximum(store: Store):
    made = await put(store, MAX_LEASE + 5)
    assert ids(await claim(store, 10 * MAX_LEASE)) == made[:MAX_LEASE]
    assert ids(await claim(store, MAX_LEASE)) == made[MAX_LEASE:]


async def test_asking_for_nothing_gets_nothing(store: Store):
    await put(store)
    before = await dump(store)
    assert await claim(store, 0) is None
    assert await store.claim(Ask(WORKER, (), 10, TTL, new_token())) is None
    assert await dump(store) == before


async def test_only_the_asked_queues_are_served(store: Store):
    [a] = await put(store, queue="a")
    [b] = await put(store, queue="b", priority=9)
    assert ids(await claim(store, 10, "a", "nothing-here")) == [a]
    assert await state(store, b) is JobState.READY
    assert await claim(store, 10, "nothing-here") is None


async def test_turns_never_lead_into_a_queue_that_is_not_asked_or_paused(store: Store):
    """Whose turn is next is remembered from claims of more queues than this one asks for."""
    for queue in ("a", "b", "c"):
        await put(store, 12, queue=queue, tenant="x")
        await put(store, 12, queue=queue, tenant="y")
    for round in range(8):
        await take(store, 1 + round % 2, "a", "b", "c")
        for queue in ("a", "b", "c"):
            assert {job.queue for job in (await take(store, 1, queue, "none")).jobs} == {queue}
    await store.pause("b")
    for _ in range(4):
        assert {job.queue for job in (await take(store, 2, "a", "b", "c")).jobs} <= {"a", "c"}


async def test_a_queue_named_twice_is_served_once(store: Store):
    made = await put(store, 4)
    assert ids(await claim(store, 10, "default", "default")) == made


async def test_first_in_first_out_inside_a_lane(store: Store):
    made = [id for size in (1, 3, 1, 5, 2) for id in await put(store, size)]
    taken = [id for limit in (2, 1, 4, 100) for id in ids(await claim(store, limit))]
    assert taken == made


async def test_enqueue_calls_in_a_row_keep_their_order(store: Store):
    made = [(await put(store))[0] for _ in range(200)]
    assert ids(await claim(store, 200)) == made


async def test_runs_of_one_batch_keep_their_order_though_lanes_alternate(store: Store):
    made = await put_jobs(store, *[new(tenant="ab"[n % 2]) for n in range(20)])
    taken = ids(await claim(store, 100))
    assert sorted(taken) == made
    assert [id for id in taken if id in made[::2]] == made[::2]
    assert [id for id in taken if id in made[1::2]] == made[1::2]


async def test_a_released_job_takes_its_old_place(store: Store):
    made = await put(store, 6)
    lease = await take(store, 4)
    await store.settle(lease.token, [(1, RELEASE), (3, RELEASE)])
    assert ids(await claim(store)) == [made[1], made[3], *made[4:]]


async def test_a_promoted_job_takes_its_old_place(store: Store, clock: FakeClock):
    [late] = await put(store, due=timedelta(seconds=10))
    rest = await put(store, 2)
    clock.advance(10)
    await store.promote()
    assert ids(await claim(store)) == [late, *rest]


async def test_a_retried_job_takes_its_old_place(store: Store):
    [first] = await put(store)
    rest = await put(store, 2)
    await run_one(store)
    await store.retry([first])
    assert ids(await claim(store)) == [first, *rest]


async def test_higher_priority_runs_first(store: Store):
    low = await put(store, 2, priority=-5)
    mid = await put(store, 2)
    high = await put(store, 2, priority=1000)
    lowest = await put(store, 1, priority=-1000)
    assert ids(await claim(store, 3)) == [*high, mid[0]]
    assert ids(await claim(store)) == [mid[1], *low, *lowest]


async def test_priority_is_strict_across_queues(store: Store):
    a_low = await put(store, 2, queue="a", priority=1)
    b_high = await put(store, 2, queue="b", priority=2)
    a_high = await put(store, 1, queue="a", priority=3)
    assert ids(await claim(store, 10, "a", "b")) == [*a_high, *b_high, *a_low]


async def test_priority_is_strict_across_tenants(store: Store):
    low = await put(store, 3, tenant="quiet", priority=0)
    high = await put(store, 5, tenant="loud", priority=1)
    taken = [id for _ in range(8) for id in ids(await claim(store, 1))]
    assert taken == [*high, *low]


async def test_a_late_high_priority_job_overtakes_the_backlog(store: Store):
    backlog = await put(store, 50)
    await take(store, 10)
    [urgent] = await put(store, priority=1)
    assert ids(await claim(store, 2)) == [urgent, backlog[10]]


async def test_cancelled_and_deleted_jobs_leave_their_lane(store: Store):
    made = await put(store, 7)
    await store.cancel([made[0], made[3]])
    await store.delete([made[4], made[6]])
    assert ids(await claim(store)) == [made[1], made[2], made[5]]
    assert await states(store, made[3:5]) == [JobState.CANCELLED, None]


async def test_many_queues_in_one_ask(store: Store):
    names = [f"q{n}" for n in range(30)]
    made = [(await put(store, queue=name))[0] for name in names]
    assert sorted(ids(await claim(store, 100, *names))) == made


async def test_claims_drain_everything_exactly_once(store: Store):
    made = []
    for n in range(40):
        made += await put(store, n % 7, queue="ab"[n % 2], priority=n % 3, tenant=f"t{n % 5}")
    taken = []
    for limit in [1, 2, 3, 5, 8, 13] * 20:
        taken += ids(await claim(store, limit, "a", "b"))
    assert len(taken) == len(made)
    assert sorted(taken) == sorted(made)


async def test_a_claim_over_many_queues(store: Store):
    """Mostly empty ones; the order is as with few."""
    queues = tuple(f"q{n}" for n in range(150))
    low = await put(store, 2, queue="q3")
    high = await put(store, 2, queue="q140", priority=5)
    paused = await put(store, 2, queue="q77", priority=9)
    await put(store, 2, queue="elsewhere", priority=9)
    await store.pause("q77")
    assert ids(await claim(store, 3, *queues)) == [*high, low[0]]
    await store.resume("q77")
    assert ids(await claim(store, 10, *queues)) == [*paused, low[1]]
    assert await claim(store, 10, *queues) is None


LARGE = 100_000
MOST = 5_000_000
"""Bytes of payload that no lease of several jobs has: what the largest store takes, and some room."""


async def test_a_claim_of_large_jobs_is_bounded_by_bytes(store: Store):
    """The rest comes with the claims that follow, in order, and nothing is lost."""
    payloads = [number.to_bytes(4, "big") * (LARGE // 4) for number in range(120)]
    made = await put_jobs(store, *[new(payload=payload) for payload in payloads])
    leases: list[Lease] = []
    while (lease := await claim(store, MAX_LEASE)) is not None:
        leases.append(lease)
        assert sum(len(job.payload) for job in lease.jobs) <= MOST
    assert [job.id for lease in leases for job in lease.jobs] == made
    assert [job.payload for lease in leases for job in lease.jobs] == payloads
    assert {job.attempt for lease in leases for job in lease.jobs} == {1}
    assert await counts(store) == {"running": 120}
    for lease in leases:
        assert (again := await claim(store, 1, token=lease.token)) is not None
        assert again.jobs == lease.jobs
        await settle_all(store, lease)
    assert await counts(store) == {}


async def test_large_jobs_after_many_small_ones_are_bounded_by_bytes(store: Store):
    """A store may expect small jobs, because the claims before met only such."""
    small = await put(store, 400)
    for _ in range(4):
        await settle_all(store, await take(store, 100))
    large = await put(store, 100, payload=bytes(LARGE))
    found: list[JobId] = []
    while (lease := await claim(store, MAX_LEASE)) is not None:
        assert sum(len(job.payload) for job in lease.jobs) <= MOST
        found += ids(lease)
    assert found == large
    assert not set(small) & set(found)


async def test_one_job_may_be_larger_than_the_bound_of_a_claim(store: Store):
    payloads = [b"a" * 10, b"b" * (MOST + 1), b"c" * (MOST + 1), b"d" * 10]
    made = await put_jobs(store, *[new(payload=payload) for payload in payloads])
    jobs: list[Claimed] = []
    while (lease := await claim(store)) is not None:
        jobs += lease.jobs
    assert [job.id for job in jobs] == made
    assert [job.payload for job in jobs] == payloads


async def test_small_and_large_payloads_come_in_their_order(store: Store):
    lengths = [0, 1, 1999, 2000, 2001, 9000, 5, 70_000, 2001, 3] * 20
    payloads = [bytes([number % 256]) * length for number, length in enumerate(lengths)]
    made = await put_jobs(store, *[new(payload=p, tenant=f"t{n // 7 % 3}") for n, p in enumerate(payloads)])
    found: dict[JobId, bytes] = {}
    while (lease := await claim(store, 60)) is not None:
        found |= {job.id: job.payload for job in lease.jobs}
    assert found == dict(zip(made, payloads, strict=True))


async def test_a_bound_of_bytes_takes_no_units_of_a_limit(store: Store):
    """A claim that gives large jobs back has drawn nothing for them."""
    await rule(store, "api", rate=0.001, burst=100)
    made = await put(store, 100, payload=bytes(LARGE), limits=("api",))
    found: list[JobId] = []
    while (lease := await claim(store, MAX_LEASE)) is not None:
        found += ids(lease)
        await settle_all(store, lease)
    assert found == made
