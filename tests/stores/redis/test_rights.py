"""A user with the few rights that docs/operate/security.md names can do everything; what another lacks is named."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from conformance.kit import JANITOR, TTL, claim, put, settle_all, take
from conformance.test_workers import presence
from headrace import Headrace
from headrace.errors import ConfigError
from headrace.model.records import Retention
from headrace.store.contract import Store
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore
from servers.redis import Flavour, RedisCluster, RedisServer
from stores.redis.kit import eventually

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "security.md"
[LINE] = re.findall(r"^ACL SETUSER clerk on >… (.*)$", PAGE.read_text(), re.MULTILINE)
RIGHTS = LINE.split()


@pytest.fixture(params=["redis", "valkey"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    found: Flavour = request.param
    return found


def let_in(server: RedisServer, *rights: str) -> str:
    """A URL for a user with these rights."""
    server.command("ACL", "SETUSER", "clerk", "reset", "on", ">pw", *rights)
    return f"redis://clerk:pw@127.0.0.1:{server.port}/0"


async def used(store: Store) -> None:
    """Every verb that a worker, a janitor and an operator use."""
    await store.open()
    await put(store, 3, queue="billing")
    await put(store, 1)
    assert await store.wait(["default"], 30.0)
    lease = await take(store, 1)
    assert (await store.heartbeat([lease.token], TTL, replace(presence(), upkeep="app"))).upkeep
    await settle_all(store, lease)
    assert len(await store.workers()) == 1
    await store.pause("billing", by="ada")
    assert await claim(store, 1, "billing") is None
    await store.resume("billing")
    await settle_all(store, await take(store, 3, "billing"))
    await store.reap(JANITOR, TTL)
    await store.promote()
    await store.prune(Retention())
    await store.stats()
    await store.check()


async def test_the_line_of_the_docs_is_enough_for_one_server(flavour: Flavour):
    with RedisServer.start(flavour) as server:
        store = RedisStore(let_in(server, *RIGHTS))
        await used(store)
        await store.close()


async def test_the_line_of_the_docs_is_enough_to_wait_for_replicas(own_server: RedisServer):
    follows = {"replicaof": f"127.0.0.1 {own_server.port}"}
    with RedisServer.start(None, follows, password=own_server.password):
        await eventually(lambda: "state=online" in own_server.command("INFO", "replication"))
        store = RedisStore(let_in(own_server, *RIGHTS) + "?replicas=1")
        await used(store)
        await store.close()


async def test_the_line_of_the_docs_is_enough_for_a_cluster(flavour: Flavour):
    with RedisCluster.start(3, flavour=flavour) as cluster:
        for node in cluster.nodes:
            let_in(node, *RIGHTS)
        url = cluster.url().replace(f":{cluster.nodes[0].password}@", "clerk:pw@")
        store = ShardedRedisStore(url, shards={"billing": 4})
        await used(store)
        await store.close()


@pytest.mark.parametrize(
    ("taken", "named"),
    [("-info", "info"), ("-evalsha", "evalsha"), ("-time", "time"), ("-script", "script"), ("-rpush", "rpush")],
)
async def test_what_a_user_lacks_is_named(own_server: RedisServer, taken: str, named: str):
    store = RedisStore(let_in(own_server, *RIGHTS, taken))
    with pytest.raises(ConfigError, match=rf"lacks a right.*{named}.*docs/operate/security.md") as caught:
        await used(store)
    assert "pw" not in str(caught.value)
    await store.close()


async def test_keys_that_a_user_may_not_touch_are_named(own_server: RedisServer):
    store = RedisStore(let_in(own_server, "~app:*", "&*", "+@all"))
    with pytest.raises(ConfigError, match=r"lacks a right.*key"):
        await used(store)
    await store.close()


async def test_a_right_taken_away_and_given_back_loses_no_result(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    app = Headrace(let_in(own_server, *RIGHTS))
    started, go = asyncio.Event(), asyncio.Event()

    @app.task(name="work")
    async def work() -> int:
        started.set()
        await go.wait()
        return 7

    handle = await work.aenqueue()
    async with app.worker():
        await started.wait()
        own_server.command("ACL", "SETUSER", "clerk", "-evalsha")
        go.set()
        await eventually(lambda: "settling failed" in caplog.text)
        own_server.command("ACL", "SETUSER", "clerk", "+evalsha")
        assert await handle.aresult(timeout=60) == 7
    await app.aclose()
    # Said once, in one line.
    assert len([record for record in caplog.records if "settling failed" in record.message]) == 1
    assert not [record for record in caplog.records if record.exc_info and "settling" in record.message]
    assert "pw@" not in caplog.text
