"""Steps of many attempts go together, as far as their bytes allow."""

from __future__ import annotations

import pytest

from conformance.kit import put, take
from conformance.test_steps import a_step
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer
from stores.redis.test_gates import calls


@pytest.mark.parametrize(("size", "scripts"), [(10, 1), (9_000, 1), (300_000, 34)])
async def test_steps_of_a_lease_take_few_scripts(real_store: RedisStore, server: RedisServer, size: int, scripts: int):
    ids = await put(real_store, 100)
    lease = await take(real_store, 100)
    await real_store.add_steps(lease.token, [(0, a_step(number=at)) for at in range(2)])  # loads the script
    server.command("CONFIG", "RESETSTAT")
    steps = [(place, a_step("more", value=b"x" * size)) for place in range(100)]
    assert not await real_store.add_steps(lease.token, steps)
    assert calls(server, "evalsha") == scripts
    assert await real_store.read_steps(ids[99]) == [a_step("more", value=b"x" * size)]
    assert server.command("SCARD", "hr:{default}:J").strip() == "100"
