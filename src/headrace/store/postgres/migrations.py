"""Migrations: numbered schema steps, each applied once. Every run creates the functions again.

A changed function needs a step of its own (it may hold nothing but `select;`), so that `open` sees the difference.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Final

from headrace.errors import ConfigError, SchemaMismatch, Unavailable
from headrace.model.records import Progress
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.faults import MIGRATE
from headrace.store.postgres.pool import transaction

OLDEST_SERVER: Final = 13
_LOCK: Final = (1214538830, 2)
_DAYS_AHEAD: Final = 2
_TRIES: Final = 20
"""How often a migration tries to get its locks, for about half a minute in all."""
_LONG: Final = 600.0


@dataclass(frozen=True, slots=True)
class Step:
    version: int
    name: str
    statements: str


@cache
def steps() -> tuple[Step, ...]:
    """The schema steps in order."""
    folder = files("headrace.store.postgres").joinpath("schema")
    named = [(re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name), file) for file in folder.iterdir()]
    unordered = [Step(int(match[1]), match[2], file.read_text("utf-8")) for match, file in named if match]
    return tuple(sorted(unordered, key=lambda step: step.version))


@cache
def functions() -> tuple[tuple[str, str], ...]:
    """(verb, statements), in an order in which each may use the earlier ones."""
    folder = files("headrace.store.postgres").joinpath("sql")
    return tuple(
        (f.name.removesuffix(".sql"), f.read_text("utf-8")) for f in sorted(folder.iterdir(), key=lambda f: f.name)
    )


def check_server(connection: Any, shown: str) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST_SERVER:
        raise ConfigError(
            f"PostgreSQL at {shown} is version {version.major}.{version.micro}: headrace needs {OLDEST_SERVER} or newer"
        )


async def check_schema(connection: Any, shown: str) -> None:
    """Raise SchemaMismatch unless the schema has exactly the version that this headrace needs."""
    current = await version(connection)
    newest = steps()[-1].version
    if current is None:
        raise SchemaMismatch(f"there is no headrace schema in {shown}: {MIGRATE}")
    if current < newest:
        raise SchemaMismatch(f"the headrace schema in {shown} is at version {current}, {newest} is needed: {MIGRATE}")
    if current > newest:
        raise SchemaMismatch(
            f"the headrace schema in {shown} is at version {current}, newer than {newest}: upgrade headrace"
        )


async def version(connection: Any) -> int | None:
    """The schema's version; None: there is none."""
    if not await connection.fetchval("select to_regclass('headrace.migration') is not null"):
        return None
    newest: int | None = await connection.fetchval("select max(version) from headrace.migration")
    return newest


async def migrate(connection: Any, progress: Progress | None, shown: str) -> list[str]:
    """Apply missing steps in one transaction. A second caller waits, and finds nothing to do.

    All calls that read or write jobs queue up behind a waiting lock. So each wait is short, and the migration tries
    again after a pause in which other calls go on.
    """
    for attempt in range(_TRIES):
        try:
            taken = await _apply(connection, progress, shown)
        except asyncpg.LockNotAvailableError:
            blocking = await _blocking(connection)
            if progress is not None:
                progress(0, 1, f"waiting for {blocking}")
            await asyncio.sleep(min(2.0, 0.25 * 2**attempt) * (0.5 + random.random()))
        else:
            await make_partitions(connection)
            return taken
    raise Unavailable(
        f"the headrace schema in {shown} cannot be changed while others use it: end {await _blocking(connection)}, or try again"
    )


async def _apply(connection: Any, progress: Progress | None, shown: str) -> list[str]:
    taken: list[str] = []
    async with transaction(connection):
        await connection.execute("set local client_min_messages = warning")
        await connection.execute(f"select pg_advisory_xact_lock({_LOCK[0]}, {_LOCK[1]})")
        await connection.execute("set local lock_timeout = '500ms'")
        await connection.execute(_JOURNAL)
        applied = {row["version"] for row in await connection.fetch("select version from headrace.migration")}
        if applied and max(applied) > steps()[-1].version:
            raise SchemaMismatch(f"the headrace schema in {shown} is newer than this version: upgrade headrace")
        missing = [step for step in steps() if step.version not in applied]
        total = len(missing) + len(functions())
        for step in missing:
            await connection.execute(step.statements)
            await connection.execute(
                "insert into headrace.migration (version, name) values ($1, $2)", step.version, step.name
            )
            taken.append(f"{step.version:04}_{step.name}")
            if progress is not None:
                progress(len(taken), total, step.name)
        for number, (verb, statements) in enumerate(functions(), start=1):
            await connection.execute(statements)
            if progress is not None:
                progress(len(taken) + number, total, verb)
    return taken


async def _blocking(connection: Any) -> str:
    """The sessions that hold locks on headrace's tables, the oldest transactions first, for a message."""
    holders = await connection.fetch(_HOLDERS)
    return ", ".join(_HOLDER.format(**row) for row in holders) or "the other session"


def days_ahead(today: date) -> list[date]:
    """The days that need partitions: today and the next ones."""
    return [today + timedelta(days=ahead) for ahead in range(_DAYS_AHEAD + 1)]


async def make_partitions(connection: Any) -> None:
    """Make the partitions of today and the next days, each in a transaction of its own, because it locks the tables."""
    today: date = await connection.fetchval("select (clock_timestamp() at time zone 'UTC')::date")
    for day in days_ahead(today):
        async with transaction(connection):
            guarded: bool = await connection.fetchval("select headrace.guard_default($1)", day)
        if guarded:
            for table in ("job", "ending", "failure"):
                async with transaction(connection):
                    await connection.execute(
                        f"alter table headrace.{table}_default validate constraint not_{day:%Y%m%d}", timeout=_LONG
                    )
        async with transaction(connection):
            await connection.fetchval("select headrace.make_partition($1)", day)


_HOLDER: Final = "pid {pid} ({usename}, {state}, in a transaction for {age} s)"
_HOLDERS: Final = """
select a.pid, a.usename, a.state, extract(epoch from clock_timestamp() - a.xact_start)::int8 as age
from pg_stat_activity a
where a.pid <> pg_backend_pid() and exists (
    select from pg_locks l join pg_class c on c.oid = l.relation
    where l.pid = a.pid and l.granted and l.database = (select oid from pg_database where datname = current_database())
        and c.relnamespace = (select oid from pg_namespace where nspname = 'headrace'))
order by a.xact_start limit 3"""
_JOURNAL: Final = """
create schema if not exists headrace;
create table if not exists headrace.migration (
    version int4 not null primary key,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);
"""
