"""Chains of one call: a store may keep many links as one, and each of them is a job by itself to everything that looks at it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from conformance.kit import CANCELLED, DEAD, claim, ids, key, look, new, queue_stats, settle_all, states, take
from conformance.test_gates import a_gate, chain, counts, promote_all, settle_one, waiting
from headrace.model.gate import Counts, Edge, Needs, Wait, why_cancelled
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.outcome import DONE as WELL
from headrace.model.records import CancelAnswer, Filter
from headrace.store.contract import Store

READY, BLOCKED, RUNNING, DONE = JobState.READY, JobState.BLOCKED, JobState.RUNNING, JobState.DONE
GONE = JobState.CANCELLED


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


async def test_each_link_says_what_it_waits_for_and_what_waits_for_it(store: Store):
    links = await chain(store, 6)
    await settle_one(store)
    await settle_one(store)
    assert await states(store, links) == [DONE, DONE, READY, BLOCKED, BLOCKED, BLOCKED]
    for before, link in pairwise(links[2:]):
        assert (await look(store, link)).waits == (Wait(before),)
        assert (await store.links(before)).blocked == (link,)
    assert (await look(store, links[2])).waits == ()
    assert (await store.links(links[1])).blocked == ()
    assert (await store.links(links[5])).blocked == ()
    found = await store.find(Filter(states=frozenset({BLOCKED})))
    assert [job.id for job in found.jobs] == links[:2:-1]
    assert [(job.attempt, job.failures, job.crashes) for job in found.jobs] == [(0, 0, 0)] * 3
    assert await store.ahead(links[4]) is None


@pytest.mark.parametrize("at", [1, 3, 5])
async def test_a_link_that_is_cancelled_takes_those_behind_it_along(store: Store, at: int):
    links = await chain(store, 6)
    assert await store.cancel([links[at]], "enough") == {links[at]: CancelAnswer.CANCELLED}
    await promote_all(store)
    assert await states(store, links) == [READY, *[BLOCKED] * (at - 1), *[GONE] * (6 - at)]
    assert (await queue_stats(store)).blocked == at - 1
    for before, link in pairwise(links[at:]):
        assert (await look(store, link)).note == why_cancelled(Needs.DONE, before)
    assert await run_all(store) == links[:at]
    assert (await queue_stats(store)).blocked == 0


@pytest.mark.parametrize("at", [1, 3, 5])
async def test_a_link_that_is_deleted_takes_those_behind_it_along(store: Store, at: int):
    links = await chain(store, 6)
    assert await store.delete([links[at]]) == {links[at]}
    await promote_all(store)
    assert await states(store, links) == [READY, *[BLOCKED] * (at - 1), None, *[GONE] * (5 - at)]
    assert await run_all(store) == links[:at]


async def test_a_link_that_dies_holds_the_rest_until_it_is_replayed_or_discarded(store: Store):
    links = await chain(store, 6)
    await settle_one(store)
    await settle_one(store, DEAD)
    assert await states(store, links[2:]) == [BLOCKED] * 4
    assert await store.retry([links[1]], afresh=True) == {links[1]}
    assert await settle_one(store) == links[1]
    await settle_one(store, DEAD)
    assert (await queue_stats(store)).blocked == 3
    assert await store.delete([links[2]]) == {links[2]}
    await promote_all(store)
    assert await states(store, links) == [DONE, DONE, None, GONE, GONE, GONE]
    assert (await look(store, links[3])).note == why_cancelled(Needs.DONE, links[2])


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
    assert await store.settle(lease.token, [(at, ends.get(at, WELL)) for at in range(9)]) == frozenset()
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
    assert await states(store, links) == [DONE] * 7
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
    assert await states(store, links) == [*[DONE] * 4, GONE, GONE, *[DONE] * 3]
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
