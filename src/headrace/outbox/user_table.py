"""A table of headrace in the user's own database: that of the outbox, and that of `Once`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headrace.errors import BadTransaction, ConfigError
from headrace.outbox.database import Database, Session


async def dialect_of(database: Database, subject: str) -> str:
    """`postgresql` or `sqlite`. Raises ConfigError for another database; `subject` begins its message."""
    dialect = await database.dialect()
    if dialect not in {"postgresql", "sqlite"}:
        raise ConfigError(f"{subject} in PostgreSQL or SQLite: {dialect} has none")
    return dialect


async def create(database: Database, session: Session, table: str, *statements: str) -> None:
    """Create a table by these statements, if it is missing."""
    # Checked first, because PostgreSQL refuses even "create if not exists" to a role that may only use the table.
    if await _exists(database, session, table):
        return
    try:
        await session.ask(*((statement, ()) for statement in statements))
    except database.errors():
        # PostgreSQL refuses the second of two connections that create a table at the same time.
        if not await _exists(database, session, table):
            raise


async def _exists(database: Database, session: Session, table: str) -> bool:
    try:
        await session.ask((f"select 1 from {table} limit 1", ()))
    except database.errors() as error:
        if not lacks_table(error, table):
            raise
        return False
    return True


@contextmanager
def must_exist(table: str, *, prepare: str, module: str) -> Generator[None]:
    """Raise a BadTransaction that says how to create the table, if a statement finds it missing."""
    try:
        yield
    except Exception as error:
        if not lacks_table(error, table):
            raise
        raise BadTransaction(
            f"there is no table {table} in this database: run `await {prepare}()` once before, or create it in a "
            f"migration of yours ({module}.POSTGRES, SQLITE)"
        ) from error


def lacks_table(error: BaseException | None, table: str) -> bool:
    """Whether this is a driver's error for a missing table."""
    while error is not None:
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if code == "42P01" or f"no such table: {table}" in str(error):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False
