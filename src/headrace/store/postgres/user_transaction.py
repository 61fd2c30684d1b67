"""Writing inside the user's own transaction: the same SQL functions through the user's own connection, with any driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self
from uuid import UUID
from weakref import WeakSet

from headrace.errors import BadTransaction, HeadraceError, SchemaMismatch
from headrace.model.gate import Predecessor
from headrace.model.job import Batch
from headrace.model.lease import Token
from headrace.model.outcome import Settlement
from headrace.model.records import Enqueued
from headrace.model.step import Step
from headrace.store.due import AT_ONCE
from headrace.store.postgres import faults, rows
from headrace.store.postgres.arguments import Arguments, fields, types
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.enqueue import FUNCTION as ENQUEUE
from headrace.store.postgres.verbs.enqueue import EnqueueArgs, enqueue_args, hints_of
from headrace.store.postgres.verbs.enqueue_linked import FUNCTION as ENQUEUE_LINKED
from headrace.store.postgres.verbs.enqueue_linked import EnqueueLinkedArgs, linked_args
from headrace.store.postgres.verbs.gates import place_of
from headrace.store.postgres.verbs.settle import FUNCTION as SETTLE
from headrace.store.postgres.verbs.settle import SettleArgs, SuspendArgs, settle_args, suspend_args
from headrace.store.postgres.verbs.settle import hints_of as settle_hints
from headrace.store.postgres.verbs.steps import FUNCTION as ADD_STEPS
from headrace.store.postgres.verbs.steps import AddStepsArgs, steps_args
from headrace.store.postgres.wakeup import due_hint
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

IDENTITY: Final = (
    "select i.id, (select d.oid::int8 from pg_database d where d.datname = current_database()) from headrace.identity i"
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


_ENQUEUE: Final = Statement.call(ENQUEUE, EnqueueArgs)
_ENQUEUE_LINKED: Final = Statement.call(ENQUEUE_LINKED, EnqueueLinkedArgs)
_SETTLE: Final = Statement.call(SETTLE, SettleArgs)
_SUSPEND: Final = Statement.call(SETTLE, SettleArgs, SuspendArgs)
_ADD_STEPS: Final = Statement.call(ADD_STEPS, AddStepsArgs)
_FOLLOWED_TEXT: Final = """
with u as (select * from unnest({batches}, {ords}) with ordinality x(batch, ord, o))
select array_agg(f.o), array_agg(f.tenant), array_agg(f.options) from (
    select u.o, coalesce(j.tenant, '') as tenant, j.options from u join headrace.job j on j.batch = u.batch and j.ord = u.ord
    union all
    select u.o, g.tenant, null from u join headrace.gate g on g.id = u.batch
) f"""
"""One row, because some drivers are asked for one only."""
_FOLLOWED: Final = Statement(
    _FOLLOWED_TEXT.format(batches="$1::uuid[]", ords="$2::int4[]"),
    _FOLLOWED_TEXT.format(batches="cast(%s as uuid[])", ords="cast(%s as int4[])"),
)
_PRESENT: Final = Statement.plain("select to_regclass('headrace.identity') is not null")
_IDENTITY: Final = Statement.plain(IDENTITY)


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


class UserTransactions:
    """The part of the store that writes in the user's transaction. See contract.Transactional."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._identity: tuple[UUID, int] | None = None
        self._checked: WeakSet[Any] = WeakSet()

    def learn_identity(self, row: Sequence[Any]) -> None:
        """The id of this store, to recognise a connection to another one."""
        self._identity = (UUID(str(row[0])), row[1])
        self._checked = WeakSet()

    def followed(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        carrier = sync_carrier(tx)
        self._check(carrier)
        return _as_followed(ids, carrier.row(_FOLLOWED, _places(ids)))

    async def afollowed(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        carrier = async_carrier(tx)
        if carrier is None:
            return self.followed(tx, ids)
        await self._acheck(carrier)
        return _as_followed(ids, await carrier.arow(_FOLLOWED, _places(ids)))

    def enqueue(self, tx: object, batch: Batch) -> Enqueued:
        if not batch.jobs and not batch.linked:
            return Enqueued({})
        carrier = sync_carrier(tx)
        self._check(carrier)
        return self._enqueued(batch, carrier.row(*self._enqueue_call(batch)))

    async def aenqueue(self, tx: object, batch: Batch) -> Enqueued:
        carrier = async_carrier(tx)
        if carrier is None or not (batch.jobs or batch.linked):
            return self.enqueue(tx, batch)
        await self._acheck(carrier)
        return self._enqueued(batch, await carrier.arow(*self._enqueue_call(batch)))

    def _enqueue_call(self, batch: Batch) -> tuple[Statement, tuple[Any, ...]]:
        if batch.linked:
            return _ENQUEUE_LINKED, linked_args(batch, self._server.injected)
        return _ENQUEUE, enqueue_args(batch, self._server.injected)

    def _enqueued(self, batch: Batch, answer: Sequence[Any]) -> Enqueued:
        self._server.bell.echo(hints_of(batch) | ({due_hint(AT_ONCE)} if batch.linked else set()))
        return rows.enqueued(batch, answer)

    def settle(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        carrier = sync_carrier(tx)
        self._check(carrier)
        return self._settled(settlements, carrier.row(*self._settle_call(token, settlements)))

    async def asettle(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        carrier = async_carrier(tx)
        if carrier is None:
            return self.settle(tx, token, settlements)
        await self._acheck(carrier)
        return self._settled(settlements, await carrier.arow(*self._settle_call(token, settlements)))

    def _settle_call(
        self, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> tuple[Statement, tuple[Any, ...]]:
        args = settle_args(token, settlements, None, self._server.injected)
        suspends = suspend_args(settlements)
        return (_SETTLE, args) if suspends is None else (_SUSPEND, (*args, *suspends))

    def add_steps(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        carrier = sync_carrier(tx)
        self._check(carrier)
        return rows.refused(steps, carrier.row(_ADD_STEPS, steps_args(token, steps))[0])

    async def aadd_steps(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        carrier = async_carrier(tx)
        if carrier is None:
            return self.add_steps(tx, token, steps)
        await self._acheck(carrier)
        return rows.refused(steps, (await carrier.arow(_ADD_STEPS, steps_args(token, steps)))[0])

    def _settled(self, settlements: Sequence[tuple[int, Settlement]], answer: Sequence[Any]) -> frozenset[int]:
        refused, follow, woken = answer
        hints = settle_hints(settlements) | set(woken or ())
        if follow:
            # `promote` finds what follows when the transaction has ended.
            hints.add(due_hint(AT_ONCE))
        if hints:
            self._server.bell.echo(hints)
        return rows.refused(settlements, refused)

    # A connection is checked once. The catalogue is read first, because a failing statement would end the user's
    # transaction.

    def _check(self, carrier: Carrier) -> None:
        if self._identity is None or self._known(carrier.key):
            return
        if not carrier.row(_PRESENT, ())[0]:
            raise SchemaMismatch(f"there is no headrace schema in the database of this transaction: {faults.MIGRATE}")
        self._compare(carrier.key, carrier.row(_IDENTITY, ()))

    async def _acheck(self, carrier: AsyncCarrier) -> None:
        if self._identity is None or self._known(carrier.key):
            return
        if not (await carrier.arow(_PRESENT, ()))[0]:
            raise SchemaMismatch(f"there is no headrace schema in the database of this transaction: {faults.MIGRATE}")
        self._compare(carrier.key, await carrier.arow(_IDENTITY, ()))

    def _known(self, key: object) -> bool:
        try:
            return key in self._checked
        except TypeError:
            return False

    def _compare(self, key: object, row: Sequence[Any]) -> None:
        if (UUID(str(row[0])), int(row[1])) != self._identity:
            raise BadTransaction(
                f"this transaction is on another database than the store at {self._server.address.shown}: use a connection to that one"
            )
        try:
            self._checked.add(key)
        except TypeError:
            return  # This driver's connections cannot be remembered, so they are checked each time.


# ── the drivers ──────────────────────────────────────────────────────────────


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


def _places(ids: Sequence[UUID]) -> tuple[list[UUID], list[int]]:
    """The columns of jobs and gates by their ids."""
    places = [place_of(id) for id in ids]
    return [batch for batch, _ in places], [ord for _, ord in places]


def _as_followed(ids: Sequence[UUID], row: Sequence[Any]) -> list[Predecessor | None]:
    stored = {
        place: Predecessor(tenant or "", None if options is None else bytes(options))
        for place, tenant, options in zip(*(column or () for column in row), strict=True)
    }
    return [stored.get(place) for place in range(1, len(ids) + 1)]


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
