"""What a look costs: not in proportion to queues, to history or to the length of a lane, and bounded in each script and call."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from conformance.kit import DEAD, TTL, find_all, new, put, put_jobs, settle_all, take
from headrace.model.job import JobId, JobState, job_id, new_batch
from headrace.model.lease import Report, new_token, new_worker_id
from headrace.model.outcome import DONE
from headrace.model.records import CancelAnswer, Filter, LimitRule
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import put_many
from stores.redis.test_bounds import scripts_run

ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)


def commands_run(server: RedisServer) -> int:
    """Those inside scripts included."""
    return sum(map(int, re.findall(r"cmdstat_[^:]+:calls=(\d+)", server.command("INFO", "commandstats"))))


async def stranger(server: RedisServer, clock: FakeClock) -> RedisStore:
    """Another process: it does not know which queue has which job."""
    store = RedisStore(server.url(), clock=clock)
    await store.open()
    return store


# ── many queues ─────────────────────────────────────────────────────────────


async def test_a_look_takes_a_few_scripts_whatever_the_queues(store: RedisStore, server: RedisServer, clock: FakeClock):
    made = await put_jobs(store, *[new(queue=f"q{n}") for n in range(400)])
    [dead] = await put(store, queue="dead")
    await settle_all(store, await take(store, 1, "dead"), DEAD)
    other = await stranger(server, clock)
    warm = [job.id for job in (await other.find(Filter(), limit=1)).jobs]
    assert warm == [dead]

    before = scripts_run(server)
    assert await other.get([job_id(new_batch(), 0)]) == [None]
    assert scripts_run(server) - before <= 4
    before = scripts_run(server)
    assert [job and job.queue for job in await other.get(made[:3])] == ["q0", "q1", "q2"]
    assert scripts_run(server) - before <= 405  # the call has jobs in all of these queues
    before = scripts_run(server)
    assert [job.id for job in (await other.find(Filter(states=frozenset({JobState.DEAD})))).jobs] == [dead]
    assert scripts_run(server) - before <= 8
    before = scripts_run(server)
    assert len(await other.ended(ALWAYS)) == 1
    assert scripts_run(server) - before <= 4
    before = scripts_run(server)
    assert await other.cancel([job_id(new_batch(), 0)]) != {}
    assert scripts_run(server) - before <= 4
    before = scripts_run(server)
    assert await other.abandon(new_worker_id(), "gone") == 0
    assert scripts_run(server) - before <= 4
    await other.close()


async def test_pages_over_queues_are_in_order(store: RedisStore):
    made: list[JobId] = []
    for n in range(30):
        made += await put_jobs(store, *[new(queue=f"q{(n * 7 + m) % 11}") for m in range(n % 5 + 1)])
    for limit in (1, 7, 100):
        assert [job.id for job in await find_all(store, Filter(), limit=limit)] == made[::-1]


async def test_stats_asks_only_queues_with_waiting_jobs_one_by_one(store: RedisStore, server: RedisServer):
    await put_jobs(store, *[new(queue=f"q{n}", due=TTL) for n in range(400)])
    await put_jobs(store, *[new(queue=f"busy{n}") for n in range(3)])
    assert len((await store.stats()).queues) == 403
    before = scripts_run(server)
    found = {each.queue: each for each in (await store.stats()).queues}
    assert scripts_run(server) - before <= 2 + 3
    assert (found["q7"].scheduled, found["q7"].oldest_ready) == (1, None)
    assert (found["busy1"].ready, found["busy1"].oldest_ready) == (1, timedelta(0))


async def test_stats_and_lanes_do_not_grow_with_the_tenants(store: RedisStore, server: RedisServer):
    async def commands(tenants: int) -> tuple[int, int]:
        await put_many(store, [new(tenant=f"{tenants}-{n}") for n in range(tenants)])
        before = commands_run(server)
        assert (await store.stats()).queues[0].oldest_at_least is (tenants > 1000)
        between = commands_run(server)
        assert len(await store.lanes(["default"], 10_000)) == min(1000, tenants)
        return between - before, commands_run(server) - between

    await commands(1000)
    stats, lanes = await commands(2000)
    more_stats, more_lanes = await commands(4000)
    assert more_stats <= stats + 10
    assert more_lanes <= lanes + 10


async def test_stats_reads_over_a_bounded_number_of_cancelled_jobs(store: RedisStore, server: RedisServer):
    """Cancelled jobs leave empty places in their lane, which a look for the first job reads over."""
    made = await put_many(store, [new(tenant=f"t{n % 4}") for n in range(8000)])
    await store.cancel(made[:-4])
    [figures] = (await store.stats()).queues
    assert figures.ready == 4
    assert figures.oldest_ready == timedelta(0) or figures.oldest_at_least


async def test_jobs_of_higher_priority_in_many_lanes_are_at_least_as_many(store: RedisStore, server: RedisServer):
    await put_many(store, [new(tenant=f"t{n}", priority=1) for n in range(3000)])
    [low] = await put(store)
    before = commands_run(server)
    found = await store.ahead(low)
    assert found is not None
    assert found.higher == 3000
    assert commands_run(server) - before <= 3 * 1000 + 50


async def test_the_holder_of_a_limit_is_named(store: RedisStore, server: RedisServer):
    await store.limit("shop", LimitRule(concurrency=1), None)
    [holder] = await put(store, limits=("shop:1",))
    await take(store, 1)
    [waits] = await put(store, limits=("shop:1",))
    found = await store.ahead(waits)
    assert found is not None
    assert found.blocked[0].by == (holder,)


# ── find ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("queues", [1, 5])
async def test_a_page_looks_at_so_many_jobs_and_says_where_to_go_on(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, queues: int
):
    made = [
        id for n in range(60) for id in await put(store, 10, queue=f"q{n % queues}", task="rare" if n == 7 else "t")
    ]
    monkeypatch.setattr("headrace.store.redis.verbs.find._LOOKS", 100)
    looked: list[int] = []
    look = store.looks.look

    async def counted(queue: str, ids: list[JobId], *, history: bool) -> object:
        looked[-1] += len(ids)
        return await look(queue, ids, history=history)

    monkeypatch.setattr(store.looks, "look", counted)
    found: list[JobId] = []
    before = None
    while True:
        looked.append(0)
        page = await store.find(Filter(task="rare"), before=before, limit=20)
        found += [job.id for job in page.jobs]
        if page.next is None:
            break
        assert before is None or page.next.int < before.int
        before = page.next
    assert found == made[70:80][::-1]
    assert max(looked) <= 100 + 200
    assert len(looked) >= 4


async def test_a_call_over_more_queues_than_a_page_looks_at_comes_to_an_end(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.store.redis.verbs.find._LOOKS", 3)
    await put_jobs(store, *[new(queue=f"q{n}") for n in range(20)])
    before, pages = None, 0
    while (page := await store.find(Filter(task="nobody"), before=before)).next is not None:
        before, pages = page.next, pages + 1
    assert pages <= 20


async def test_jobs_from_another_time_count_as_looked_at(store: RedisStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.store.redis.verbs.find._LOOKS", 50)
    for _ in range(200):
        await put(store)
    page = await store.find(Filter(until=ALWAYS), limit=20)
    assert page.jobs == []
    assert page.next is not None


# ── history ─────────────────────────────────────────────────────────────────


async def test_ended_does_not_walk_through_leases_settled_in_parts(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    async def asked_after(leases: int) -> int:
        for _ in range(leases):
            clock.advance(1)
            await put(store, 6)
            lease = await take(store, 6)
            await store.settle(lease.token, [(0, DONE)])
            await store.settle(lease.token, [(at, DONE) for at in range(1, 6)])
        before = commands_run(server)
        assert len(await store.ended(ALWAYS, 1)) == 1
        return commands_run(server) - before

    await asked_after(1)
    few = await asked_after(40)
    assert await asked_after(80) == few


async def test_ended_is_complete_in_steps(store: RedisStore, clock: FakeClock):
    """Far more than one script reads, of every kind, in two queues, some deleted since."""
    made: list[JobId] = []
    for n in range(60):
        queue = f"q{n % 2}"
        made += await put(store, 100, queue=queue)
        lease = await take(store, 100, queue)
        if n % 3 == 0:
            await settle_all(store, lease)
        elif n % 3 == 1:
            await store.settle(lease.token, [(at, DONE) for at in range(0, 100, 2)])
            await store.settle(lease.token, [(at, DONE) for at in range(1, 100, 2)])
        else:
            await settle_all(store, lease, DEAD)
        clock.advance(1)
    gone = await store.delete(made[:2000])
    assert len(gone) == 2000
    ended = await store.ended(ALWAYS, 10_000)
    assert sorted(ending.id for ending in ended) == sorted(made[2000:])
    assert ended == sorted(ended, key=lambda ending: (ending.at, ending.id))
    for limit in (1, 150, 2001):
        assert await store.ended(ALWAYS, limit) == ended[:limit]
        assert await store.ended(ended[777].at, limit) == [one for one in ended if one.at >= ended[777].at][:limit]


# ── long lanes ──────────────────────────────────────────────────────────────


async def test_neighbours_are_read_in_one_walk(store: RedisStore, server: RedisServer):
    made = await put(store, 5000)
    await store.get(made[:1])
    for some in (made[2000:2200], made[2000:2200][::-1]):
        before = commands_run(server)
        jobs = await store.get(some)
        assert [job and job.id for job in jobs] == some
        # Each costs looks into the index, and no walk of its own.
        assert commands_run(server) - before <= 200 * 4 + 20


async def test_far_inside_a_long_lane_a_script_does_less(store: RedisStore, server: RedisServer):
    made: list[JobId] = []
    for _ in range(20):
        made += await put(store, 1000, payload=b"x" * 2000)
    scattered = made[9_000:11_000:10]
    others = [made[at + 5] for at in range(9_000, 11_000, 10)]
    await store.get(scattered[:1])
    before = scripts_run(server)
    assert [job and job.id for job in await store.get(scattered)] == scattered
    assert scripts_run(server) - before >= 3
    before = scripts_run(server)
    assert set((await store.cancel(scattered)).values()) == {CancelAnswer.CANCELLED}
    assert scripts_run(server) - before >= 3
    before = scripts_run(server)
    assert await store.delete(others) == frozenset(others)
    assert scripts_run(server) - before >= 3


# ── leases from elsewhere ───────────────────────────────────────────────────


async def test_a_lease_from_elsewhere_is_found_in_a_few_scripts(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    await put_jobs(store, *[new(queue=f"q{n}") for n in range(300)])
    one, two, three = [await take(store, 1, f"q{n}") for n in range(3)]
    other = await stranger(server, clock)
    await other.heartbeat([], TTL)
    for act in (
        lambda: other.heartbeat([one.token, two.token, three.token], TTL),
        lambda: other.report(one.token, [(0, Report(progress=0.5))]),
        lambda: other.detach(two.token, 0, new_token()),
        lambda: other.settle(three.token, [(0, DONE)]),
        lambda: other.settle(new_token(), [(0, DONE)]),
    ):
        before = scripts_run(server)
        await act()
        assert scripts_run(server) - before <= 15
    assert (await other.heartbeat([one.token, two.token, three.token], TTL)).lost == {two.token, three.token}
    await other.close()
