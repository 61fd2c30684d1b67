"""The settings of a Redis server that decide whether jobs are safe: version, eviction, durability. They are read at start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import ConfigError, SchemaMismatch, Unavailable
from headrace.model.records import Finding
from headrace.store.redis.client import faults
from headrace.store.redis.client.connection import Pool
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.url import Address

_OLDEST = (7, 0)
_MENDED: dict[str, dict[tuple[int, int], int]] = {
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""By release line: the first patch in which a user that may run scripts cannot take over the server (CVE-2025-49844)."""


@dataclass(frozen=True, slots=True)
class Health:
    """One server, as it describes itself."""

    where: str
    server: str
    """Redis or Valkey."""
    version: tuple[int, ...]
    policy: str
    aof: bool
    fsync: str
    """`always`, `everysec` or `no`; empty if the server does not tell."""
    clustered: bool
    replica: bool
    read_only: bool
    """Whether the server, as a replica, accepts writes from its primary only."""
    replicas: int
    """The number of its replicas that are up to date."""
    max_memory: int
    used_memory: int
    lazy_expire: bool


async def examine(pool: Pool) -> Health:
    """Ask a server about itself. Raises headrace's errors."""
    try:
        sections, config = await pool.ask([("INFO",), ("CONFIG", "GET", "*")])
    except (Cut, Refused) as error:
        raise faults.translated(error, pool.where) from error
    if isinstance(sections, Exception):
        raise faults.translated(sections, pool.where)
    # Managed services forbid CONFIG, so INFO alone must do there.
    pairs = [] if isinstance(config, Exception) else [item.decode(errors="replace") for item in config]
    settings = dict(zip(pairs[::2], pairs[1::2], strict=True))
    info = dict(line.split(":", 1) for line in sections.decode(errors="replace").splitlines() if ":" in line)
    valkey = info.get("valkey_version")
    return Health(
        where=pool.where,
        server="Valkey" if valkey else "Redis",
        version=_version(valkey or info.get("redis_version", "0")),
        policy=info.get("maxmemory_policy") or settings.get("maxmemory-policy", ""),
        aof=info.get("aof_enabled") == "1",
        fsync=settings.get("appendfsync", ""),
        clustered=info.get("cluster_enabled") == "1",
        replica=info.get("role") == "slave",
        read_only=info.get("slave_read_only") != "0",
        replicas=sum("state=online" in state for name, state in info.items() if re.fullmatch(r"slave\d+", name)),
        max_memory=int(info.get("maxmemory", "0")),
        used_memory=int(info.get("used_memory", "0")),
        lazy_expire=settings.get("lazyfree-lazy-expire", "yes") == "yes",
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def refuse(health: Health, address: Address) -> None:
    """Raise if jobs would not be safe on this server, or could not run."""
    where = health.where
    if health.version < _OLDEST:
        shown = ".".join(map(str, health.version))
        raise SchemaMismatch(f"{health.server} at {where} is {shown}: headrace needs Redis 7.0 or newer, or Valkey")
    if health.clustered and address.kind != "cluster":
        raise ConfigError(f"{health.server} at {where} is part of a cluster: write redis+cluster:// in the URL")
    if not health.clustered and address.kind == "cluster":
        raise ConfigError(f"{health.server} at {where} is no cluster: write redis:// in the URL")
    if health.replica:
        _refuse_replica(health, address)
    if health.policy not in {"noeviction", ""}:
        raise ConfigError(
            f"{health.server} at {where} throws keys away when it is full (maxmemory-policy {health.policy}), "
            "jobs among them: set maxmemory-policy noeviction"
        )
    if address.strict and health.aof and not health.fsync:
        raise ConfigError(
            f'durability="strict", but {health.server} at {where} does not tell its appendfsync: let this user run '
            "CONFIG GET (+config|get), or leave durability out of the URL if you know that it is always"
        )
    if address.strict and not (health.aof and health.fsync == "always"):
        raise ConfigError(
            f'durability="strict", but {health.server} at {where} acknowledges before it is on disk '
            f"({_persistence(health)}): set appendonly yes and appendfsync always"
        )


def _refuse_replica(health: Health, address: Address) -> None:
    """A replica loses what clients wrote to it when it next follows its primary."""
    what = f"{health.server} at {health.where} is a replica"
    if address.kind != "single":
        raise Unavailable(f"{what}, while another takes over: try again")
    if health.read_only:
        raise Unavailable(f"{what}: point the URL at the primary, or use Sentinel or a cluster")
    raise ConfigError(
        f"{what} that takes writes (replica-read-only no) and loses them when it next follows its primary: "
        "point the URL at the primary, or use Sentinel or a cluster"
    )


def findings(health: Health, address: Address) -> Iterator[Finding]:
    """The findings of `headrace doctor` about one server."""
    shown = ".".join(map(str, health.version))
    yield Finding("ok", "server", f"{health.server} {shown} at {health.where}")
    if _open_to_scripts(health):
        yield Finding(
            "warning",
            "version",
            f"{health.where}: a user that may run scripts on {health.server} {shown} may be able to take it over "
            "(CVE-2025-49844): use a newer patch of it, or make sure that your distribution has mended this one",
        )
    yield _durability(health)
    if health.max_memory == 0:
        yield Finding(
            "warning", "memory", f"{health.where} has no maxmemory: it grows until the system kills it; set one"
        )
    elif health.used_memory > 0.8 * health.max_memory:
        share = round(100 * health.used_memory / health.max_memory)
        yield Finding(
            "warning", "memory", f"{health.where} uses {share} % of its maxmemory: at 100 % enqueues are refused"
        )
    else:
        yield Finding("ok", "memory", f"{health.where} has room, and evicts nothing")
    if not health.lazy_expire:
        yield Finding(
            "warning", "expiry", f"{health.where}: set lazyfree-lazy-expire yes, so that old keys cost no pause"
        )
    if address.replicas:
        yield _replication(health, address.replicas)


def _replication(health: Health, wanted: int) -> Finding:
    if health.replicas < wanted:
        return Finding(
            "error",
            "replicas",
            f"{health.where} has {health.replicas} replicas that are up to date and replicas={wanted} waits for {wanted}: "
            "every enqueue and settlement takes a second longer and ends as OutcomeUnknown; "
            "connect replicas, or lower replicas= in the URL",
        )
    return Finding(
        "ok",
        "replicas",
        f"{health.where} has {health.replicas}, writes wait for {wanted}: "
        "this narrows what a failover loses, it does not close it",
    )


def _open_to_scripts(health: Health) -> bool:
    mended = _MENDED.get(health.server, {})
    line, patch = health.version[:2], health.version[2] if len(health.version) > 2 else 0
    if line in mended:
        return patch < mended[line[0], line[1]]
    return bool(mended) and line < max(mended)


def _durability(health: Health) -> Finding:
    if health.aof and health.fsync == "always":
        return Finding("ok", "durability", f"{health.where} has every job on disk before it says so (AOF always)")
    if health.aof and not health.fsync:
        return Finding(
            "warning",
            "durability",
            f"{health.where} does not tell its appendfsync: unless it is always, it may lose about the last second when "
            "its machine fails",
        )
    if health.aof:
        return Finding(
            "warning",
            "durability",
            f"{health.where} may lose about the last second when its machine fails ({_persistence(health)}): "
            "set appendfsync always to lose nothing",
        )
    return Finding(
        "warning",
        "durability",
        f"{health.where} loses all since its last snapshot when it stops ({_persistence(health)}): set appendonly yes",
    )


def _persistence(health: Health) -> str:
    return f"AOF {health.fsync}" if health.aof else "AOF off"
