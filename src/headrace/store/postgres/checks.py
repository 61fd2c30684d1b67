"""Checks: findings for the operator of a PostgreSQL that stores jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, Literal

from headrace.errors import ConfigError
from headrace.model.records import Finding
from headrace.store.postgres import migrations
from headrace.store.postgres.address import Address
from headrace.store.postgres.faults import POOLER

_OLD_SNAPSHOT: Final = 300
_DEAD_ROWS: Final = 100_000
_SETTINGS: Final[tuple[tuple[str, Literal["error", "warning"], str], ...]] = (
    ("fsync", "error", "a crash of the machine can destroy the database: set fsync = on"),
    ("full_page_writes", "error", "a crash of the machine can destroy the database: set full_page_writes = on"),
    ("track_counts", "warning", "autovacuum cannot see changed rows: set track_counts = on"),
    ("autovacuum", "warning", "waiting jobs get slower to find: set autovacuum = on"),
)
_OLDEST: Final = """
select coalesce(extract(epoch from max(clock_timestamp() - xact_start)), 0)::int8 as age, count(*) filter (where backend_xmin is not null)
from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_xmin is not null"""
_DEAD: Final = "select coalesce(sum(n_dead_tup), 0)::int8 from pg_stat_user_tables where schemaname = 'headrace' and relname = 'ready'"
_AHEAD: Final = (
    "select count(*) from headrace.partition_days() d where d > (clock_timestamp() at time zone 'UTC')::date"
)


_OWNER: Final = """
select pg_get_userbyid(c.relowner) as name, pg_has_role(c.relowner, 'usage') as own
from pg_class c where c.oid = 'headrace.job'::regclass"""


async def findings(connection: Any, address: Address) -> list[Finding]:
    """All findings, also those that are ok."""
    version = connection.get_server_version()
    report = [Finding("ok", "server", f"PostgreSQL {version.major}.{version.micro} at {address.shown}")]
    report += [finding async for finding in _settings(connection)]
    report.append(await _commit(connection, address))
    report += await _schema(connection)
    report += await _upkeep(connection)
    if address.pooler is None and connection.get_server_pid() != await connection.fetchval("select pg_backend_pid()"):
        report.append(Finding("error", "pooler", f"{address.shown} {POOLER}"))
    if address.pooled and not address.listen_dsns:
        report.append(Finding("ok", "wake-up", "behind a pooler, by polling: add ?listen=<direct URL> for less delay"))
    return report


async def _settings(connection: Any) -> AsyncGenerator[Finding]:
    for name, level, saying in _SETTINGS:
        value = await connection.fetchval("select current_setting($1)", name)
        bad = value == "off"
        yield Finding(level if bad else "ok", name, f"{name} = {value}: {saying}" if bad else f"{name} = {value}")


async def _commit(connection: Any, address: Address) -> Finding:
    """What commits of this store wait for, which may differ from the server's setting."""
    value = await connection.fetchval("select current_setting('synchronous_commit')")
    default = await connection.fetchval("select reset_val from pg_settings where name = 'synchronous_commit'")
    if not address.strict:
        return Finding(
            "warning", "synchronous_commit", f"{value}: a crash can lose the last acknowledged jobs, as asked"
        )
    raised = "" if value == default else f" (headrace raises the server's {default})"
    return Finding("ok", "synchronous_commit", f"synchronous_commit = {value}{raised}")


async def check_durability(connection: Any, address: Address) -> None:
    """Raise ConfigError if durability is strict and the server never waits for the disk."""
    if address.strict and await connection.fetchval("select current_setting('fsync')") == "off":
        raise ConfigError(
            f"PostgreSQL at {address.shown} has fsync = off, so a crash of the machine can destroy the database:"
            " set fsync = on, or durability = relaxed where that does not matter"
        )


async def _schema(connection: Any) -> list[Finding]:
    version, newest = await migrations.version(connection), migrations.steps()[-1].version
    if version == newest:
        return [Finding("ok", "schema", f"version {version}")]
    return [Finding("error", "schema", f"version {version}, this headrace needs {newest}: run: headrace migrate")]


async def _upkeep(connection: Any) -> list[Finding]:
    age: int = (await connection.fetchrow(_OLDEST))["age"]
    dead: int = await connection.fetchval(_DEAD)
    ahead: int = await connection.fetchval(_AHEAD)
    owner = await connection.fetchrow(_OWNER)
    return [
        Finding("ok", "owner", f"{owner['name']} owns the headrace tables")
        if owner["own"]
        else Finding(
            "warning",
            "owner",
            f"this user does not own the headrace tables and cannot make or drop days of history, so old jobs are deleted"
            f" row by row: grant it {owner['name']}, or let one worker run as {owner['name']}",
        ),
        Finding("warning", "transactions", f"one is open for {age} s: vacuum cannot remove dead rows meanwhile; end it")
        if age > _OLD_SNAPSHOT
        else Finding("ok", "transactions", f"the oldest is open for {age} s"),
        Finding("warning", "bloat", f"{dead:,} dead rows in headrace.ready: look for old transactions, run vacuum")
        if dead > _DEAD_ROWS
        else Finding("ok", "bloat", f"{dead:,} dead rows in headrace.ready"),
        Finding("ok", "partitions", f"made for {ahead} days ahead")
        if ahead
        else Finding("warning", "partitions", "none made ahead: run a worker (it prunes), or headrace migrate"),
    ]
