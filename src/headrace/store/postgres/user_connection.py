"""The user's own connection, of any driver: one statement, one row, inside the user's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from headrace.errors import BadTransaction, HeadraceError
from headrace.store.postgres import faults
from headrace.store.postgres.arguments import Arguments, fields, types
from headrace.store.tx import (
    Kind,
    Standing,
    alchemy_connection,
    async_alchemy_connection,
    asyncpg_standing,
    django_connection,
    django_standing,
    kind_of,
    named,
    psycopg_standing,
)

_KNOWN: Final = (
    "a psycopg or asyncpg connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
    'or the alias of a Django database such as "default"'
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as drivers spell its arguments. They get types, because a driver of the user may not infer them."""

    dollars: str
    percents: str

    @classmethod
    def call(cls, function: str, *arguments: Arguments) -> Self:
        named = [pair for part in arguments for pair in zip(fields(part), types(part), strict=True)]
        dollars = ", ".join(f"{name} => ${number}::{type}" for number, (name, type) in enumerate(named, start=1))
        percents = ", ".join(f"{name} => cast(%s as {type})" for name, type in named)
        return cls(f"select * from headrace.{function}({dollars})", f"select * from headrace.{function}({percents})")

    @classmethod
    def plain(cls, text: str) -> Self:
        return cls(text, text)


class Carrier(Protocol):
    """The user's connection, reduced to what the store needs: one statement, one row."""

    @property
    def key(self) -> object:
        """The object by which the connection is remembered."""
        ...

    def row(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]:
        """Run a statement, and return its row."""
        ...


class AsyncCarrier(Protocol):
    @property
    def key(self) -> object: ...

    async def arow(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]: ...


def sync_carrier(tx: object) -> Carrier:
    """The connection behind `tx`, checked to be inside a transaction; BadTransaction if it cannot be used here."""
    match kind_of(tx):
        case Kind.PSYCOPG:
            return _Psycopg(_psycopg_ready(tx))
        case Kind.ALCHEMY:
            return _SqlAlchemy(_alchemy_ready(alchemy_connection(tx)))
        case Kind.DJANGO:
            return _Django(_django_ready(tx))
        case Kind.ASYNCPG | Kind.ASYNC_PSYCOPG | Kind.ASYNC_ALCHEMY:
            raise BadTransaction(
                f"{named(tx)} is async: await the async method (aenqueue, complete), or pass a sync connection"
            )
        case _:
            raise BadTransaction(f"tx = {named(tx)} is not supported: pass {_KNOWN}")


def async_carrier(tx: object) -> AsyncCarrier | None:
    """The async connection behind `tx`; None: it is not async."""
    match kind_of(tx):
        case Kind.ASYNCPG:
            return _Asyncpg(_asyncpg_ready(tx))
        case Kind.ASYNC_PSYCOPG:
            return _AsyncPsycopg(_psycopg_ready(tx))
        case Kind.ASYNC_ALCHEMY:
            return _AsyncAlchemy(tx)
        case _:
            return None


def _one(row: Any) -> Sequence[Any]:
    """A row of any driver."""
    return tuple(row)


def _translated(error: Exception) -> HeadraceError | None:
    """The error of headrace for a driver's error. None: there is none, and the caller gets the driver's error."""
    cause = getattr(error, "orig", None) or error.__cause__ or error
    for candidate in (error, cause, getattr(cause, "__cause__", None)):
        if candidate is not None and faults.sqlstate(candidate) is not None and not faults.broken(candidate):
            return faults.in_call(candidate, "your transaction", wrote=True)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Psycopg:
    key: Any

    def row(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]:
        try:
            with self.key.cursor(row_factory=_plain) as cursor:
                return _one(cursor.execute(statement.percents, args or None).fetchone())
        except Exception as error:
            raise _translated(error) or error from error


@dataclass(frozen=True, slots=True, eq=False)
class _AsyncPsycopg:
    key: Any

    async def arow(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]:
        try:
            async with self.key.cursor(row_factory=_plain) as cursor:
                await cursor.execute(statement.percents, args or None)
                return _one(await cursor.fetchone())
        except Exception as error:
            raise _translated(error) or error from error


def _plain(_cursor: Any) -> Any:
    """A row factory is given, because the user's connection may have another."""
    return tuple


def _psycopg_ready(tx: Any) -> Any:
    match psycopg_standing(tx):
        case Standing.FAILED:
            raise BadTransaction("this transaction has failed already: roll it back first")
        case Standing.CLOSED:
            raise BadTransaction("this connection is closed: pass an open one")
        case Standing.NONE:
            raise BadTransaction(
                "this connection is in autocommit and not in a transaction: use it inside `with conn.transaction():`"
            )
        case Standing.READY:
            return tx


@dataclass(frozen=True, slots=True, eq=False)
class _Asyncpg:
    key: Any

    async def arow(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]:
        try:
            return _one(await self.key.fetchrow(statement.dollars, *args))
        except Exception as error:
            raise _translated(error) or error from error


def _asyncpg_ready(tx: Any) -> Any:
    standing = asyncpg_standing(tx)
    if standing is Standing.CLOSED:
        raise BadTransaction("this connection is closed: pass an open one")
    if standing is Standing.NONE:
        raise BadTransaction("this connection is not in a transaction: use it inside `async with conn.transaction():`")
    return tx


@dataclass(frozen=True, slots=True, eq=False)
class _SqlAlchemy:
    """A SQLAlchemy Connection. Its first execute opens the transaction."""

    key: Any

    def row(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]:
        spelled = statement.dollars if self.key.dialect.driver == "asyncpg" else statement.percents
        try:
            return _one(self.key.exec_driver_sql(spelled, tuple(args) or None).one())
        except Exception as error:
            raise _translated(error) or error from error


def _alchemy_ready(connection: Any) -> Any:
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in {"psycopg", "psycopg_async", "psycopg2", "asyncpg"}:
        raise BadTransaction(
            f"SQLAlchemy uses {dialect.name}+{dialect.driver} here: "
            "use postgresql+psycopg or postgresql+asyncpg on the store's own database"
        )
    raw = connection.connection.dbapi_connection
    if getattr(raw, "autocommit", False) is True or getattr(raw, "isolation_level", None) == "autocommit":
        raise BadTransaction("this SQLAlchemy connection is in AUTOCOMMIT: use one that opens transactions")
    return connection


@dataclass(frozen=True, slots=True, eq=False)
class _AsyncAlchemy:
    """An AsyncSession or AsyncConnection. Its sync connection runs through SQLAlchemy's own bridge."""

    key: Any

    async def arow(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]:
        connection = await async_alchemy_connection(self.key)

        def call(inner: Any) -> Sequence[Any]:
            return _SqlAlchemy(_alchemy_ready(inner)).row(statement, args)

        return _one(await connection.run_sync(call))


@dataclass(frozen=True, slots=True, eq=False)
class _Django:
    key: Any

    def row(self, statement: Statement, args: Sequence[Any]) -> Sequence[Any]:
        try:
            with self.key.cursor() as cursor:
                cursor.execute(statement.percents, list(args) or None)
                return _one(cursor.fetchone())
        except Exception as error:
            raise _translated(error) or error from error


def _django_ready(tx: Any) -> Any:
    try:
        wrapper = django_connection(tx)
    except ModuleNotFoundError:
        raise BadTransaction(f"tx = {tx!r} is a Django database alias, but Django is not installed") from None
    except LookupError as error:
        raise BadTransaction(f"Django has no database {tx!r}: {error}") from None
    if wrapper.vendor != "postgresql":
        raise BadTransaction(
            f"the Django database {wrapper.alias!r} is {wrapper.vendor}: use the store's own PostgreSQL"
        )
    standing = django_standing(wrapper)
    if standing is Standing.NONE:
        raise BadTransaction(
            "Django is in autocommit and not in a transaction: use it inside `with transaction.atomic():`"
        )
    if standing is Standing.FAILED:
        raise BadTransaction("this transaction has failed already: leave its atomic block first")
    return wrapper
