"""At start a server is looked at: what would lose jobs is refused or told, and no password is ever shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from conformance.kit import put, settle_all, take
from headrace.errors import ConfigError, HeadraceError, SchemaMismatch, Unavailable
from headrace.store.redis.client import health
from headrace.store.redis.client.health import Health
from headrace.store.redis.client.sentinel import SentinelWire
from headrace.store.redis.client.url import parse
from headrace.store.redis.client.wire import Patience
from headrace.store.redis.store import RedisStore
from headrace.store.remarks import log_remarks
from servers.redis import RedisCluster, RedisServer
from stores.redis.kit import eventually

GOOD = Health(
    where="h:1",
    server="Redis",
    version=(7, 0, 0),
    policy="noeviction",
    aof=True,
    fsync="always",
    clustered=False,
    replica=False,
    read_only=True,
    replicas=0,
    max_memory=10**9,
    used_memory=10**6,
    lazy_expire=True,
)
PLAIN, STRICT = parse("redis://h:1"), parse("redis://h:1?durability=strict")
EVICTING = ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random"]


async def refusal(url: str) -> HeadraceError:
    store = RedisStore(url)
    with pytest.raises(HeadraceError) as caught:
        await store.open()
    await store.close()
    return caught.value


async def lived(store: RedisStore) -> None:
    """All that a job of one goes through."""
    await store.open()
    await put(store, 1)
    assert await store.wait(["default"], 30.0)
    await settle_all(store, await take(store, 1))
    await store.stats()


@pytest.mark.parametrize("policy", [*EVICTING, "volatile-ttl"])
async def test_a_server_that_evicts_is_refused(server: RedisServer, policy: str):
    server.command("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        error = await refusal(server.url())
    finally:
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert isinstance(error, ConfigError)
    assert policy in str(error)
    assert "noeviction" in str(error)


async def test_strict_means_on_disk_before_the_answer(server: RedisServer):
    error = await refusal(server.url(durability="strict"))
    assert isinstance(error, ConfigError)
    assert "appendfsync always" in str(error)
    server.command("CONFIG", "SET", "appendfsync", "always")
    try:
        store = RedisStore(server.url(durability="strict"))
        await store.open()
        assert "ok" in {finding.level for finding in await store.check() if finding.about == "durability"}
        await store.close()
    finally:
        server.command("CONFIG", "SET", "appendfsync", "everysec")


async def test_otherwise_what_may_be_lost_is_told_once(own_server: RedisServer, caplog: pytest.LogCaptureFixture):
    store = RedisStore(own_server.url())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await store.open()
        assert caplog.text == ""
        log_remarks(store)
        log_remarks(store)
    assert caplog.text.count("may lose about the last second") == 1
    findings = {finding.about: finding for finding in await store.check()}
    assert findings["durability"].level == "warning"
    assert findings["server"].level == "ok"
    await store.close()


async def test_a_server_that_does_not_tell_is_not_called_careless():
    with RedisServer.start("redis", {"rename-command CONFIG": "", "appendfsync": "always"}) as silent:
        error = await refusal(silent.url(durability="strict"))
        assert isinstance(error, ConfigError)
        assert "does not tell its appendfsync" in str(error)
        assert "acknowledges before" not in str(error)
        store = RedisStore(silent.url())
        await store.open()
        [told] = [finding for finding in await store.check() if finding.about == "durability"]
        assert "does not tell" in told.message
        assert told.level == "warning"
        await store.close()


@pytest.mark.parametrize("command", ["EVALSHA", "SCRIPT", "TIME", "BLPOP"])
async def test_a_command_that_the_server_lacks_is_named(command: str):
    with RedisServer.start("redis", {f"rename-command {command}": f"hidden-{command}"}) as server:
        store = RedisStore(server.url())
        with pytest.raises(ConfigError, match=rf"lacks the command {command}\b"):
            await lived(store)
        await store.close()


# ── replicas ─────────────────────────────────────────────────────────────────


@pytest.fixture
def follower(own_server: RedisServer) -> Iterator[RedisServer]:
    """A replica of it."""
    follows = {"replicaof": f"127.0.0.1 {own_server.port}"}
    with RedisServer.start(None, follows, password=own_server.password) as one:
        yield one


def followed(server: RedisServer) -> bool:
    return "state=online" in server.command("INFO", "replication")


async def test_a_replica_is_refused_also_one_that_takes_writes(own_server: RedisServer, follower: RedisServer):
    await eventually(lambda: followed(own_server))
    error = await refusal(follower.url())
    assert isinstance(error, Unavailable)
    assert "is a replica: point the URL at the primary" in str(error)
    follower.command("CONFIG", "SET", "replica-read-only", "no")
    error = await refusal(follower.url())
    assert isinstance(error, ConfigError)
    assert "takes writes" in str(error)
    assert "point the URL at the primary" in str(error)
    follower.command("REPLICAOF", "NO", "ONE")
    store = RedisStore(follower.url())
    await store.open()
    await store.close()


async def test_sentinels_that_are_behind_a_failover_are_asked_again(
    own_server: RedisServer, follower: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    await eventually(lambda: followed(own_server))
    with RedisServer.sentinel(own_server) as sentinel:
        told = [("127.0.0.1", follower.port)] * 2
        discover = SentinelWire._discover

        async def late(self: SentinelWire) -> tuple[str, int]:
            return told.pop() if told else await discover(self)

        monkeypatch.setattr(SentinelWire, "_discover", late)
        secret = own_server.password
        url = f"redis+sentinel://:{secret}@127.0.0.1:{sentinel.port}/mymaster?sentinel_password={secret}"
        store = RedisStore(url)
        await store.open()
        assert not told
        [named] = [finding.message for finding in await store.check() if finding.about == "server"]
        assert named.endswith(f":{own_server.port}")
        await store.close()
        # A node that still names it: the store tries again later and does not give up.
        told += [("127.0.0.1", follower.port)] * 1000
        monkeypatch.setattr("headrace.store.redis.verbs.check.Patience", lambda: Patience(0))
        error = await refusal(url)
        assert isinstance(error, Unavailable)
        assert "another takes over" in str(error)


async def test_replicas_that_are_not_there_are_told_at_start(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
):
    store = RedisStore(own_server.url(replicas="1"))
    await store.open()
    assert "has 0 replicas" in caplog.text
    assert "lower replicas=" in caplog.text
    [told] = [finding for finding in await store.check() if finding.about == "replicas"]
    assert told.level == "error"
    request.getfixturevalue("follower")
    await eventually(lambda: followed(own_server))
    [told] = [finding for finding in await store.check() if finding.about == "replicas"]
    assert told.level == "ok"
    await store.close()


def test_an_old_server_is_refused():
    with pytest.raises(SchemaMismatch, match=r"6\.2\.14.*7\.0"):
        health.refuse(replace(GOOD, version=(6, 2, 14)), PLAIN)
    health.refuse(GOOD, STRICT)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"aof": False}, "AOF off"),
        ({"fsync": "everysec"}, "everysec"),
        ({"fsync": ""}, "does not tell its appendfsync"),
    ],
)
def test_strict_refuses_every_less(bad: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        health.refuse(replace(GOOD, **bad), STRICT)  # type: ignore[arg-type]  # each of its own type
    health.refuse(replace(GOOD, **bad), PLAIN)  # type: ignore[arg-type]


def test_findings_name_what_to_set():
    found = list(
        health.findings(replace(GOOD, aof=False, max_memory=0, lazy_expire=False), parse("redis://h?replicas=1"))
    )
    said = {finding.about: (finding.level, finding.message) for finding in found}
    assert "appendonly yes" in said["durability"][1]
    assert {said[about][0] for about in ("durability", "memory", "expiry")} == {"warning"}
    assert said["replicas"][0] == "error"
    full = {f.about: f.message for f in health.findings(replace(GOOD, used_memory=9 * 10**8), PLAIN)}
    assert "90 %" in full["memory"]


async def test_a_wrong_password_is_never_shown(server: RedisServer, caplog: pytest.LogCaptureFixture):
    secret = "s3cret-and-wrong"
    error = await refusal(f"redis://:{secret}@127.0.0.1:{server.port}/0")
    assert isinstance(error, ConfigError)
    assert "password" in str(error)
    chain, seen = error, []
    while chain is not None:
        seen.append(repr(chain))
        chain = chain.__cause__ or chain.__context__  # type: ignore[assignment]
    assert secret not in "".join(seen) + caplog.text


async def test_no_password_where_one_is_needed(server: RedisServer):
    error = await refusal(f"redis://127.0.0.1:{server.port}/0")
    assert isinstance(error, ConfigError)
    assert "password" in str(error)


async def test_no_such_database(server: RedisServer):
    error = await refusal(f"redis://:{server.password}@127.0.0.1:{server.port}/999")
    assert isinstance(error, ConfigError)
    assert "database" in str(error)


async def test_a_name_that_nobody_knows():
    error = await refusal("redis://no-such-host.invalid:6379/0")
    assert isinstance(error, Unavailable)
    assert "no-such-host.invalid:6379" in str(error)


async def test_the_scheme_must_fit_the_servers(server: RedisServer, cluster: RedisCluster):
    node = cluster.nodes[0]
    error = await refusal(f"redis://:{node.password}@127.0.0.1:{node.port}/0")
    assert "redis+cluster://" in str(error)
    error = await refusal(f"redis+cluster://:{server.password}@127.0.0.1:{server.port}")
    assert isinstance(error, HeadraceError)
    assert "cluster" in str(error)


@pytest.mark.parametrize(
    ("server", "version", "is_open"),
    [
        ("Redis", (7, 0, 15), True),
        ("Redis", (7, 2, 10), True),
        ("Redis", (7, 2, 11), False),
        ("Redis", (8, 2, 1), True),
        ("Redis", (8, 4, 0), False),
        ("Valkey", (8, 0, 5), True),
        ("Valkey", (8, 1, 4), False),
        ("Valkey", (9, 0, 0), False),
    ],
)
def test_s76_versions_that_a_script_can_take_over_are_named(server: str, version: tuple[int, ...], is_open: bool):
    found = health.findings(replace(GOOD, server=server, version=version), PLAIN)
    told = [finding.message for finding in found if finding.level == "warning" and "CVE-2025-49844" in finding.message]
    assert bool(told) == is_open
