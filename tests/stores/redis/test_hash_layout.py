"""The layout that the benchmark stands beside keeps the same promises: every job once, fenced, released ones again."""

from __future__ import annotations

from benchmarks.hash_layout import PREFIX, HashLayoutStore
from conformance.kit import RELEASE, TTL, claim, ids, put, take
from headrace.model.lease import new_token
from headrace.model.outcome import DONE
from servers.redis import RedisServer


async def test_a_hash_per_job(server: RedisServer):
    server.command("FLUSHALL")
    store = HashLayoutStore(server.url())
    await store.open()
    made = await put(store, 5)
    assert server.command("KEYS", f"{PREFIX}*:j:*").count(PREFIX) == 5  # ids are bytes: they may hold any line end
    lease = await take(store, 3)
    assert ids(lease) == made[:3]
    assert [job.attempt for job in lease.jobs] == [1, 1, 1]
    lost = new_token()
    store.layout.held[lost] = store.layout.held[lease.token]
    assert await store.settle(lost, [(0, DONE), (2, DONE)]) == {0, 2}
    assert (await store.heartbeat([lease.token, lost], TTL)).lost == {lost}
    assert await store.settle(lease.token, [(0, DONE), (1, RELEASE), (2, DONE)]) == frozenset()
    assert await store.settle(lease.token, [(0, DONE)]) == {0}
    assert await store.wait(["default"], 30.0)
    again = await take(store, 10)
    assert ids(again) == [made[1], made[3], made[4]]
    assert [job.attempt for job in again.jobs] == [2, 1, 1]
    assert await store.settle(again.token, [(at, DONE) for at in range(3)]) == frozenset()
    assert await claim(store) is None
    await store.close()
