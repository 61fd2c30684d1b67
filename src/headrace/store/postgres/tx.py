"""Writing inside the user's own transaction: the same SQL verbs through the user's own connection, whatever its driver.

Connections are recognised by the module of their class, so that no driver is imported for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID
from weakref import WeakSet

from headrace.errors import BadTransaction, HeadraceError, SchemaMismatch
from headrace.job import Batch
from headrace.lease import Token
from headrace.outcome import Again, Settlement
from headrace.store.contract import Enqueued
from headrace.store.postgres import faults, rows

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.store.postgres.address import Address
    from headrace.store.postgres.listen import Bell

PRESENT: Final = "select to_regclass('headrace.identity') is not null"
IDENTITY: Final = (
    "select i.id, (select d.oid::int8 from pg_database d where d.datname = current_database()) from headrace.identity i"
)

_KNOWN: Final = (
    "a psycopg or asyncpg connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
    'or the alias of a Django database such as "default"'
)


class Carrier(Protocol):
    """The user's connection, reduced to what is needed: one statement, one row."""

    @property
    def key(self) -> object:
        """What to remember it by."""
        ...

    def row(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        """Call a verb; the statement is `verb` with its arguments, or `verb` itself when there are no types."""
        ...


class AsyncCarrier(Protocol):
    @property
    def key(self) -> object: ...

    async def arow(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]: ...


class InTransaction:
    """The part of the store that writes where the user writes. See contract.Transactional."""

    _address: Address
    _bell: Bell
    _clock: Clock | None
    _identity: tuple[UUID, int] | None = None

    def _now(self) -> datetime | None:
        """The injected clock; None: the server's own."""
        return self._clock.now() if self._clock is not None else None

    def learn_identity(self, row: Sequence[Any]) -> None:
        """Which store this is, so that a connection to another one can be told from it."""
        self._identity = (UUID(str(row[0])), row[1])
        self._checked: WeakSet[Any] = WeakSet()

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        if not batch.jobs:
            return Enqueued({})
        carrier = sync_carrier(tx)
        self._check(carrier)
        answer = carrier.row("enqueue_batch", rows.ENQUEUE_TYPES, rows.enqueue_args(batch, self._now()))
        self._bell.echo(rows.queues_of(batch))
        return rows.enqueued(batch, answer)

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        carrier = async_carrier(tx)
        if carrier is None or not batch.jobs:
            return self.enqueue_in(tx, batch)
        await self._acheck(carrier)
        answer = await carrier.arow("enqueue_batch", rows.ENQUEUE_TYPES, rows.enqueue_args(batch, self._now()))
        self._bell.echo(rows.queues_of(batch))
        return rows.enqueued(batch, answer)

    def settle_in(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        carrier = sync_carrier(tx)
        self._check(carrier)
        answer = carrier.row("settle", rows.SETTLE_TYPES, rows.settle_args(token, settlements, None, self._now()))
        self._settled(settlements)
        return rows.refused(settlements, answer[0])

    async def asettle_in(
        self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> frozenset[int]:
        carrier = async_carrier(tx)
        if carrier is None:
            return self.settle_in(tx, token, settlements)
        await self._acheck(carrier)
        args = rows.settle_args(token, settlements, None, self._now())
        answer = await carrier.arow("settle", rows.SETTLE_TYPES, args)
        self._settled(settlements)
        return rows.refused(settlements, answer[0])

    def _settled(self, settlements: Sequence[tuple[int, Settlement]]) -> None:
        if any(isinstance(s, Again) and s.due is None for _, s in settlements):
            self._bell.echo(("*",))

    # A connection is checked once. The look at the catalogue comes first because a failing statement would end
    # the user's transaction.

    def _check(self, carrier: Carrier) -> None:
        if self._identity is None or self._known(carrier.key):
            return
        if not carrier.row(PRESENT, (), ())[0]:
            raise SchemaMismatch(f"there is no headrace schema in the database of this transaction: {faults.MIGRATE}")
        self._compare(carrier.key, carrier.row(IDENTITY, (), ()))

    async def _acheck(self, carrier: AsyncCarrier) -> None:
        if self._identity is None or self._known(carrier.key):
            return
        if not (await carrier.arow(PRESENT, (), ()))[0]:
            raise SchemaMismatch(f"there is no headrace schema in the database of this transaction: {faults.MIGRATE}")
        self._compare(carrier.key, await carrier.arow(IDENTITY, (), ()))

    def _known(self, key: object) -> bool:
        try:
            return key in self._checked
        except TypeError:
            return False

    def _compare(self, key: object, row: Sequence[Any]) -> None:
        if (UUID(str(row[0])), int(row[1])) != self._identity:
            raise BadTransaction(
                f"this transaction is on another database than the store at {self._address.shown}: use a connection to that one"
            )
        try:
            self._checked.add(key)
        except TypeError:
            return  # this driver's connections cannot be remembered: they are asked each time


# ── the drivers ──────────────────────────────────────────────────────────────


def sync_carrier(tx: object) -> Carrier:
    """The connection behind `tx`, checked to be inside a transaction; BadTransaction if it cannot be used here."""
    module, names = _kin(tx)
    if isinstance(tx, str):
        return _django(tx)
    if module == "django" and hasattr(tx, "in_atomic_block"):
        return _django_wrapper(tx)
    if module == "psycopg" and "Connection" in names:
        return _Psycopg(_psycopg_ready(tx))
    if module == "sqlalchemy" and names & {"Session", "scoped_session", "Connection"}:
        connection: Any = tx
        return _SqlAlchemy(_alchemy_ready(connection if "Connection" in names else connection.connection()))
    if async_carrier(tx, check=False) is not None:
        raise BadTransaction(
            f"{_named(tx)} is async: await the async twin (aenqueue, complete), or pass a sync connection"
        )
    raise BadTransaction(f"tx = {_named(tx)} is nothing that can carry a job: pass {_KNOWN}")


def async_carrier(tx: object, *, check: bool = True) -> AsyncCarrier | None:
    """The async connection behind `tx`; None: it is not async."""
    module, names = _kin(tx)
    if module == "asyncpg" and names & {"Connection", "PoolConnectionProxy"}:
        return _Asyncpg(_asyncpg_ready(tx) if check else tx)
    if module == "psycopg" and "AsyncConnection" in names:
        return _AsyncPsycopg(_psycopg_ready(tx) if check else tx)
    if module == "sqlalchemy" and names & {"AsyncSession", "async_scoped_session", "AsyncConnection"}:
        return _AsyncAlchemy(tx)
    return None


def _kin(tx: object) -> tuple[str, set[str]]:
    """The package that its class (or the nearest one above it) comes from, and the names of all its classes."""
    packages = {"psycopg", "asyncpg", "sqlalchemy", "django"}
    kin = [kind for kind in type(tx).__mro__ if kind.__module__.partition(".")[0] in packages]
    return (kin[0].__module__.partition(".")[0] if kin else "", {kind.__name__ for kind in kin})


def _named(tx: object) -> str:
    return f"{type(tx).__module__}.{type(tx).__qualname__}"


def _dollars(verb: str, types: Sequence[str]) -> str:
    if not types:
        return verb
    return f"select * from headrace.{verb}({', '.join(f'${n}::{t}' for n, t in enumerate(types, start=1))})"


def _percents(verb: str, types: Sequence[str]) -> str:
    if not types:
        return verb
    return f"select * from headrace.{verb}({', '.join(f'cast(%s as {t})' for t in types)})"


def _one(row: Any) -> Sequence[Any]:
    """A row of whatever driver."""
    return tuple(row)


def _translated(error: Exception) -> HeadraceError | None:
    """Our own word for a driver's error, where there is one; otherwise the user meets their driver's."""
    cause = getattr(error, "orig", None) or error.__cause__ or error
    for found in (error, cause, getattr(cause, "__cause__", None)):
        if found is not None and faults.sqlstate(found) is not None and not faults.broken(found):
            return faults.in_call(found, "your transaction", wrote=True)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Psycopg:
    key: Any

    def row(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        try:
            with self.key.cursor(row_factory=_plain) as cursor:
                return _one(cursor.execute(_percents(verb, types), args or None).fetchone())
        except Exception as error:
            raise _translated(error) or error from error


@dataclass(frozen=True, slots=True, eq=False)
class _AsyncPsycopg:
    key: Any

    async def arow(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        try:
            async with self.key.cursor(row_factory=_plain) as cursor:
                await cursor.execute(_percents(verb, types), args or None)
                return _one(await cursor.fetchone())
        except Exception as error:
            raise _translated(error) or error from error


def _plain(_cursor: Any) -> Any:
    """A row factory of our own: the user's connection may have another."""
    return tuple


def _psycopg_ready(tx: Any) -> Any:
    status = tx.info.transaction_status.name
    if status == "INERROR":
        raise BadTransaction("this transaction has failed already: roll it back first")
    if status == "UNKNOWN":
        raise BadTransaction("this connection is closed: pass an open one")
    if tx.autocommit and status == "IDLE":
        raise BadTransaction(
            "this connection is in autocommit and in no transaction: use it inside `with conn.transaction():`"
        )
    return tx


@dataclass(frozen=True, slots=True, eq=False)
class _Asyncpg:
    key: Any

    async def arow(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        try:
            return _one(await self.key.fetchrow(_dollars(verb, types), *args))
        except Exception as error:
            raise _translated(error) or error from error


def _asyncpg_ready(tx: Any) -> Any:
    if tx.is_closed():
        raise BadTransaction("this connection is closed: pass an open one")
    if not tx.is_in_transaction():
        raise BadTransaction("this connection is in no transaction: use it inside `async with conn.transaction():`")
    return tx


@dataclass(frozen=True, slots=True, eq=False)
class _SqlAlchemy:
    """A SQLAlchemy Connection. Its own execute opens the transaction when nobody has yet."""

    key: Any

    def row(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        spell = _dollars if self.key.dialect.driver == "asyncpg" else _percents
        try:
            return _one(self.key.exec_driver_sql(spell(verb, types), tuple(args) or None).one())
        except Exception as error:
            raise _translated(error) or error from error


def _alchemy_ready(connection: Any) -> Any:
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in {"psycopg", "psycopg_async", "psycopg2", "asyncpg"}:
        raise BadTransaction(
            f"SQLAlchemy speaks {dialect.name}+{dialect.driver} here: "
            "use postgresql+psycopg or postgresql+asyncpg on the store's own database"
        )
    raw = connection.connection.dbapi_connection
    if getattr(raw, "autocommit", False) is True or getattr(raw, "isolation_level", None) == "autocommit":
        raise BadTransaction("this SQLAlchemy connection is in AUTOCOMMIT: use one that opens transactions")
    return connection


@dataclass(frozen=True, slots=True, eq=False)
class _AsyncAlchemy:
    """An AsyncSession or AsyncConnection: the sync one inside it, run on SQLAlchemy's own bridge."""

    key: Any

    async def arow(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        is_connection = "AsyncConnection" in _kin(self.key)[1]
        connection = self.key if is_connection else await self.key.connection()

        def call(inner: Any) -> Sequence[Any]:
            return _SqlAlchemy(_alchemy_ready(inner)).row(verb, types, args)

        return _one(await connection.run_sync(call))


@dataclass(frozen=True, slots=True, eq=False)
class _Django:
    key: Any

    def row(self, verb: str, types: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        try:
            with self.key.cursor() as cursor:
                cursor.execute(_percents(verb, types), list(args) or None)
                return _one(cursor.fetchone())
        except Exception as error:
            raise _translated(error) or error from error


def _django(alias: str) -> Carrier:
    try:
        connections: Any = import_module("django.db").connections
        trouble: Any = (
            import_module("django.utils.connection").ConnectionDoesNotExist,
            import_module("django.core.exceptions").ImproperlyConfigured,
        )
    except ModuleNotFoundError:
        raise BadTransaction(f"tx = {alias!r} is a Django database alias, but Django is not installed") from None
    try:
        wrapper = connections[alias]
    except trouble as error:
        raise BadTransaction(f"Django has no database {alias!r}: {error}") from None
    return _django_wrapper(wrapper)


def _django_wrapper(wrapper: Any) -> Carrier:
    if wrapper.vendor != "postgresql":
        raise BadTransaction(
            f"the Django database {wrapper.alias!r} is {wrapper.vendor}: use the store's own PostgreSQL"
        )
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        raise BadTransaction(
            "Django is in autocommit and in no transaction: use it inside `with transaction.atomic():`"
        )
    if wrapper.needs_rollback:
        raise BadTransaction("this transaction has failed already: leave its atomic block first")
    return _Django(wrapper)
