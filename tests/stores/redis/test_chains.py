"""Chains: every case about jobs that wait, with each job that waits for the one before it in a chain; what chains cost, and what they leave."""

from __future__ import annotations

import pytest

from conformance import test_gates as cases
from conformance import test_workflow_prune as retention
from conformance.kit import DEAD, claim, counts, expire, ids, settle_all, states, take
from conformance.test_chains import chain
from conformance.test_gates import promote_all
from headrace.model.job import JobState
from headrace.model.outcome import DONE, Settlement
from headrace.model.records import CancelAnswer
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.test_gates import calls
from stores.redis.test_leftovers import AT_ONCE, FOR_GOOD, kept


@pytest.fixture(autouse=True)
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.store.redis.arguments._LONG", 1)


for module in (cases, retention):
    globals().update({name: case for name, case in vars(module).items() if name.startswith("test_")})


async def test_the_jobs_of_a_chain_cost_few_commands(store: RedisStore, server: RedisServer):
    await chain(store, 100)
    await settle_all(store, await take(store))
    server.command("CONFIG", "RESETSTAT")
    chains = [await chain(store, 100) for _ in range(50)]
    assert calls(server) < 50 * 25
    await settle_all(store, await take(store, 51))
    server.command("CONFIG", "RESETSTAT")
    for _ in range(10):
        lease = await take(store, 51)
        assert len(lease.jobs) == 51
        await settle_all(store, lease)
    assert calls(server, "lpop") < 10 * 55
    assert calls(server) < 10 * (51 + 90)
    assert await states(store, [links[10] for links in chains]) == [JobState.DONE] * 50


async def test_a_chain_of_any_length_is_cancelled_in_bounded_scripts(store: RedisStore, server: RedisServer):
    links = await chain(store, 5000)
    server.command("CONFIG", "RESETSTAT")
    assert await store.cancel([links[10]]) == {links[10]: CancelAnswer.CANCELLED}
    assert (await counts(store))["blocked"] > 4600
    assert calls(server) < 300 * 12
    await promote_all(store)
    assert await counts(store) == {"ready": 1, "blocked": 9}
    for link in links[:10]:
        lease = await take(store)
        assert ids(lease) == [link]
        server.command("CONFIG", "RESETSTAT")
        await settle_all(store, lease)
        assert calls(server) < 100
    assert await counts(store) == {}


@pytest.mark.parametrize("end", [DONE, DEAD])
async def test_nothing_is_left_of_chains(store: RedisStore, server: RedisServer, clock: FakeClock, end: Settlement):
    """Of some whose jobs all end, and of some whose jobs are cancelled and deleted."""
    for _ in range(3):
        links = await chain(store, 30)
        await settle_all(store, await take(store))
        await store.cancel([links[20], links[25], links[1]])
        await store.delete([links[-1], links[10]])
        links = await chain(store, 30)
        await settle_all(store, await take(store))
        await store.cancel([links[20], links[2]])
    await promote_all(store)
    while (lease := await claim(store)) is not None:
        await settle_all(store, lease, end)
        await promote_all(store)
    assert set(await counts(store)) <= {"dead"}
    clock.advance(1)
    await expire(store, AT_ONCE)
    await promote_all(store)
    while (await store.prune(AT_ONCE)).more:
        pass
    await store.prune(AT_ONCE)
    assert kept(server) <= FOR_GOOD
