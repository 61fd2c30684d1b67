"""A guard by job id: effects in a database of your own happen once, on stores that cannot join its transactions.

    once = Once("postgresql://…")            # or sqlite:///…, a SQLAlchemy engine, a Django alias
    if await once.afirst(tx):                # inside your transaction, in a task
        ...                                  # your writes; the mark commits or rolls back with them

A job may run again: after a crash, a lost lease, or an answer that was lost. The committed attempt has left its mark
then, and `first` returns False.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Final

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.task.context import current_job

# The outbox's module imports drivers, which `import headrace` must not do, so it is imported where it is used.

TABLE: Final = "headrace_once"
POSTGRES: Final = f"""
create table if not exists {TABLE} (
    job varchar(36) not null,
    step varchar(200) not null,
    at double precision not null,
    primary key (job, step)
)"""
SQLITE: Final = f"""
create table if not exists {TABLE} (
    job text not null,
    step text not null,
    at real not null,
    primary key (job, step)
) without rowid"""
"""The table, for your own migrations; `Once.prepare` makes it, too."""

_INDEX: Final = f"create index if not exists {TABLE}_at on {TABLE} (at)"
# A second attempt at the same time waits here until the transaction of the first one has ended.
_MARK: Final = f"insert into {TABLE} (job, step, at) values (?, ?, ?) on conflict (job, step) do nothing returning job"
_PORTION: Final = 1000
_FORGET: Final = (
    f"delete from {TABLE} where (job, step) in (select job, step from {TABLE} where at < ? order by at limit {_PORTION}) "
    "returning job"
)
_LONGEST_STEP: Final = 200


class Once:
    """A table of marks in the user's own database."""

    def __init__(self, database: object) -> None:
        from headrace.outbox.database import database_at

        self._database = database_at(database)

    async def prepare(self) -> None:
        """Create the table if it is missing."""
        from headrace.outbox import user_table

        dialect = await user_table.dialect_of(self._database, "the table of `Once` is")
        definition = POSTGRES if dialect == "postgresql" else SQLITE
        async with self._database.session() as session:
            await user_table.create(self._database, session, TABLE, definition, _INDEX)

    async def forget(self, older_than: duration.Duration = "90d") -> int:
        """Delete older marks. Returns how many. Keep marks for as long as their jobs may run again."""
        before = time.time() - duration.parse(older_than, name="older_than").total_seconds()
        gone = 0
        async with self._database.session() as session:
            while some := len(await session.ask((_FORGET, (before,)))):
                gone += some
        return gone

    def first(self, tx: object, step: str = "") -> bool:
        """Whether no attempt of this job has committed this step; marks it in the caller's transaction.

        `step` distinguishes several guarded parts of one task.
        """
        from headrace.outbox.carrier import sync_rows

        with _must_exist():
            return bool(sync_rows(tx)(_MARK, _marked(step)))

    async def afirst(self, tx: object, step: str = "") -> bool:
        """The same for async connections. Sync connections work, too."""
        from headrace.outbox.carrier import async_rows

        rows = async_rows(tx)
        if rows is None:
            return self.first(tx, step)
        with _must_exist():
            return bool(await rows(_MARK, _marked(step)))


def _marked(step: str) -> tuple[str, str, float]:
    if not isinstance(step, str) or len(step) > _LONGEST_STEP or "\0" in step:
        raise ConfigError(f"step = {step!r:.80}: a text of up to {_LONGEST_STEP} characters")
    return str(current_job().id), step, time.time()


def _must_exist() -> AbstractContextManager[None]:
    from headrace.outbox import user_table

    return user_table.must_exist(TABLE, prepare="once.prepare", module="headrace.once")
