"""Chains of one call, whose links a store may keep together: each link is a job like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conformance.kit import (
    CANCELLED,
    DEAD,
    claim,
    find_all,
    ids,
    key,
    look,
    new,
    put,
    queue_stats,
    run_one,
    settle_all,
    states,
    take,
)
from conformance.test_gates import a_gate, chain, counts, promote_all, settle_one, waiting
from headrace.model.gate import Counts, Edge, Needs, Wait, why_cancelled
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch, split_id
from headrace.model.outcome import DONE
from headrace.model.records import CancelAnswer, Filter
from headrace.store.contract import Store

READY, BLOCKED, ENDED_WELL, GONE = JobState.READY, JobState.BLOCKED, JobState.DONE, JobState.CANCELLED
LAST_PLACE = 65_535


async def notes(store: Store, links: Sequence[JobId]) -> list[str | None]:
    return [job and job.note for job in await store.get(links)]


async def test_each_link_waits_for_the_one_before_it(store: Store):
    links = await chain(store, 6)
    await settle_one(store)
    await settle_one(store)
    expected = [(Wait(before, Needs.DONE),) for before in links[2:-1]]
    assert [job and job.waits for job in await store.get(links)] == [(), (), (), *expected]
    assert [(await store.links(link)).blocked for link in links] == [(), (), *((after,) for after in links[3:]), ()]


async def test_links_are_found_and_counted_like_any_blocked_job(store: Store):
    links = await chain(store, 4)
    assert [job.id for job in await find_all(store, Filter(states=frozenset({BLOCKED})), limit=2)] == links[:0:-1]
    assert (await queue_stats(store)).blocked == 3
    await settle_one(store)
    assert (await queue_stats(store)).blocked == 2
    assert [job.id for job in await find_all(store, Filter(states=frozenset({BLOCKED})))] == links[:1:-1]


@pytest.mark.parametrize("place", range(1, 5))
async def test_a_cancelled_link_cancels_those_after_it_each_because_of_the_one_before(store: Store, place: int):
    links = await chain(store, 5)
    assert await store.cancel([links[place]], "enough") == {links[place]: CancelAnswer.CANCELLED}
    await promote_all(store)
    assert await states(store, links) == [READY, *[BLOCKED] * (place - 1), *[JobState.CANCELLED] * (5 - place)]
    causes = ["enough", *(why_cancelled(Needs.DONE, before) for before in links[place:-1])]
    assert await notes(store, links[place:]) == causes
    assert (await queue_stats(store)).blocked == place - 1
    for link in links[:place]:
        assert await settle_one(store) == link
    assert await claim(store) is None


@pytest.mark.parametrize("place", range(5))
async def test_a_deleted_link_cancels_those_after_it(store: Store, place: int):
    links = await chain(store, 5)
    assert await store.delete([links[place]]) == {links[place]}
    await promote_all(store)
    assert await states(store, links[place:]) == [None, *[JobState.CANCELLED] * (4 - place)]
    assert await notes(store, links[place + 1 :]) == [why_cancelled(Needs.DONE, link) for link in links[place:-1]]
    for link in links[:place]:
        assert await settle_one(store) == link


async def test_a_link_after_a_cancelled_one_goes_on_when_an_operator_retries_it(store: Store):
    links = await chain(store, 4)
    await store.cancel([links[1]], None)
    await promote_all(store)
    assert await store.retry([links[2]]) == {links[2]}
    assert {await settle_one(store), await settle_one(store)} == {links[0], links[2]}
    assert (await states(store, links))[3] is JobState.CANCELLED


async def test_a_dead_link_holds_the_rest_until_it_is_retried(store: Store):
    links = await chain(store, 4)
    await settle_one(store)
    assert await settle_one(store, DEAD) == links[1]
    assert await states(store, links[2:]) == [BLOCKED, BLOCKED]
    assert await claim(store) is None
    await store.retry([links[1]])
    for link in links[1:]:
        assert await settle_one(store) == link


async def test_a_dead_link_that_is_deleted_cancels_the_rest(store: Store):
    links = await chain(store, 4)
    await settle_one(store, DEAD)
    await store.delete([links[0]])
    await promote_all(store)
    assert await states(store, links) == [None, *[JobState.CANCELLED] * 3]
    assert await notes(store, links[1:]) == [why_cancelled(Needs.DONE, link) for link in links[:-1]]


async def test_jobs_and_groups_follow_a_link_within_a_chain(store: Store):
    links = await chain(store, 5)
    id, gate = new_batch(), a_gate()
    followers = Batch(
        id,
        [waiting(links[2]), waiting(links[2], Needs.ENDED), waiting(links[3], Needs.FAILED), waiting(gate.id)],
        (gate,),
        (Edge(links[1], links[1], gate.id), Edge(links[3], links[3], gate.id)),
    )
    await store.enqueue(followers)
    after = [job_id(id, ord) for ord in range(4)]
    for _ in range(3):
        await run_one(store)
        await promote_all(store)
    assert await counts(store, gate.id) == Counts(2, done=1)
    assert await states(store, [*links[3:], *after]) == [READY, BLOCKED, READY, READY, BLOCKED, BLOCKED]
    await store.cancel([links[3]], None)
    await promote_all(store)
    assert await states(store, [*links[3:], *after[2:]]) == [
        JobState.CANCELLED,
        JobState.CANCELLED,
        READY,
        JobState.CANCELLED,
    ]


async def test_chains_of_one_call_go_on_apart(store: Store):
    id = new_batch()
    jobs = [new() if ord % 4 == 0 else waiting(job_id(id, ord - 1)) for ord in range(12)]
    await store.enqueue(Batch(id, jobs))
    links = [job_id(id, ord) for ord in range(12)]
    lease = await take(store)
    assert ids(lease) == [links[0], links[4], links[8]]
    await store.settle(lease.token, [(1, DONE)])
    await promote_all(store)
    assert ids(await claim(store)) == [links[5]]
    await store.settle(lease.token, [(0, DONE), (2, DEAD)])
    await promote_all(store)
    assert ids(await claim(store)) == [links[1]]
    assert await states(store, links[9:]) == [BLOCKED] * 3


async def test_a_chain_behind_a_job_that_is_not_stored_waits_for_the_one_that_stands_for_it(store: Store):
    [first] = await put(store, key=key("once"))
    id = new_batch()
    batch = Batch(id, [new(key=key("once")), *(waiting(job_id(id, ord)) for ord in range(3))])
    assert (await store.enqueue(batch)).existing == {0: first}
    assert (await look(store, job_id(id, 1))).waits == (Wait(first, Needs.DONE),)
    assert [await settle_one(store) for _ in range(4)] == [first, *(job_id(id, ord) for ord in range(1, 4))]


async def test_a_repeated_call_does_not_store_a_chain_twice(store: Store):
    id = new_batch()
    batch = Batch(id, [new(), *(waiting(job_id(id, ord)) for ord in range(3))])
    await store.enqueue(batch)
    await settle_one(store)
    await store.enqueue(batch)
    assert (await queue_stats(store)).blocked == 2
    assert [await settle_one(store) for _ in range(3)] == [job_id(id, ord) for ord in range(1, 4)]
    assert await claim(store) is None


async def test_a_wait_for_a_place_that_a_call_does_not_have_leaves_its_chain_alone(store: Store):
    links = await chain(store, 4)
    id = new_batch()
    await store.enqueue(Batch(id, [waiting(job_id(split_id(links[0])[0], LAST_PLACE))]))
    await promote_all(store)
    assert await states(store, [*links, job_id(id, 0)]) == [READY, *[BLOCKED] * 3, JobState.CANCELLED]
    assert (await store.links(job_id(split_id(links[0])[0], LAST_PLACE))).blocked == ()


async def test_many_chains_go_on_with_one_settlement(store: Store):
    heads = [(await chain(store, 3))[0] for _ in range(40)]
    for _ in range(3):
        lease = await take(store)
        assert len(lease.jobs) == len(heads)
        await settle_all(store, lease)
        await promote_all(store)
    assert await claim(store) is None
    assert (await queue_stats(store)).blocked == 0


async def link_up(store: Store, *jobs: dict[str, Any]) -> list[JobId]:
    """A chain of unlike jobs, in one call."""
    id = new_batch()
    links = [new(**jobs[0]), *(waiting(job_id(id, ord), **job) for ord, job in enumerate(jobs[1:]))]
    await store.enqueue(Batch(id, links))
    return [job_id(id, ord) for ord in range(len(jobs))]


async def run_all(store: Store) -> list[JobId]:
    """Run what is ready until nothing is; the jobs in their order."""
    ran: list[JobId] = []
    while (lease := await claim(store)) is not None:
        ran += ids(lease)
        await settle_all(store, lease)
        await promote_all(store)
    return ran


async def test_a_running_link_that_is_cancelled_takes_the_rest_along(store: Store):
    links = await chain(store, 4)
    await settle_one(store)
    assert await settle_one(store, CANCELLED) == links[1]
    assert await states(store, links[2:]) == [GONE, GONE]


async def test_many_chains_go_on_together_however_their_links_end(store: Store):
    chains = [await chain(store, 4) for _ in range(9)]
    lease = await take(store)
    assert ids(lease) == [links[0] for links in chains]
    ends = {2: DEAD, 5: CANCELLED}
    assert await store.settle(lease.token, [(at, ends.get(at, DONE)) for at in range(9)]) == frozenset()
    await promote_all(store)
    assert await states(store, chains[2]) == [JobState.DEAD, BLOCKED, BLOCKED, BLOCKED]
    assert await states(store, chains[5]) == [GONE] * 4
    others = [links for at, links in enumerate(chains) if at not in {2, 5}]
    assert ids(await take(store)) == [links[1] for links in others]
    assert (await queue_stats(store)).blocked == 3 + 2 * 7


async def test_a_chain_leads_through_queues_tenants_and_limits(store: Store):
    kinds: list[dict[str, Any]] = [
        {},
        {"tenant": "a"},
        {"tenant": "a"},
        {"priority": 7},
        {"limits": ("api",)},
        {"limits": ("api",)},
        {},
    ]
    links = await link_up(store, *kinds)
    assert await run_all(store) == links
    assert await states(store, links) == [ENDED_WELL] * 7
    assert (await queue_stats(store)).blocked == 0


async def test_others_follow_and_count_a_link_in_the_middle(store: Store):
    id, gate = new_batch(), a_gate()
    jobs: list[NewJob] = [new(), *(waiting(job_id(id, ord)) for ord in range(5))]
    jobs += [waiting(job_id(id, 2)), waiting(job_id(id, 2), Needs.ENDED), waiting(gate.id)]
    edges = (Edge(job_id(id, 1), job_id(id, 3), gate.id),)
    await store.enqueue(Batch(id, jobs, (gate,), edges))
    links = [job_id(id, ord) for ord in range(9)]
    later = new_batch()
    await store.enqueue(Batch(later, [waiting(links[4])]))
    assert sorted((await store.links(links[2])).blocked) == [links[3], links[6], links[7]]
    for _ in range(3):
        await settle_one(store)
    assert await counts(store, gate.id) == Counts(3, done=2)
    assert await states(store, links[3:]) == [READY, BLOCKED, BLOCKED, READY, READY, BLOCKED]
    assert await store.cancel([links[4]]) == {links[4]: CancelAnswer.CANCELLED}
    await promote_all(store)
    assert await states(store, [links[4], links[5], job_id(later, 0)]) == [GONE] * 3
    await run_all(store)
    assert await states(store, links) == [*[ENDED_WELL] * 4, GONE, GONE, *[ENDED_WELL] * 3]
    assert await counts(store, gate.id) == Counts(3, done=3)


async def test_a_link_that_meets_a_key_waits_for_nothing_and_the_next_one_for_the_job_of_the_key(store: Store):
    [first] = await link_up(store, {"key": key("k")})
    links = await link_up(store, {}, {}, {"key": key("k")}, {}, {})
    assert await states(store, links) == [READY, BLOCKED, None, BLOCKED, BLOCKED]
    assert (await look(store, links[3])).waits == (Wait(first),)
    assert sorted(ids(await take(store))) == sorted([first, links[0]])


async def test_links_of_one_lane_run_in_the_order_of_their_calls(store: Store):
    one, two = await chain(store, 3), await chain(store, 3)
    assert await run_all(store) == [one[0], two[0], one[1], two[1], one[2], two[2]]


async def test_a_call_with_members_that_is_repeated_when_their_group_is_over_changes_nothing(store: Store):
    id, gate = new_batch(), a_gate()
    made = Batch(id, [new(), new()], (gate,), (Edge(job_id(id, 0), job_id(id, 1), gate.id),))
    await store.enqueue(made)
    await run_all(store)
    assert (await store.enqueue(made)).existing == {}
    assert await counts(store, gate.id) == Counts(2, done=2)
    assert await claim(store) is None
