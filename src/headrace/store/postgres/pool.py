"""The pool: a few connections, each used by one call at a time, replaced when they break."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

from headrace.errors import HeadraceError, OutcomeUnknown, Unavailable
from headrace.store.postgres import faults
from headrace.store.postgres.address import Address
from headrace.store.postgres.deadlocks import Deadlocks
from headrace.store.postgres.driver import AT_CONNECT, TROUBLE, Connection, asyncpg, keep_alive
from headrace.store.postgres.half_open import ANSWER, HalfOpenWatch

T = TypeVar("T")
Use = Literal["call", "claim", "settle", "heartbeat"]
_CONNECT_TIMEOUT: Final = 10.0
CALL_TIMEOUT: Final = 15.0
"""How long an ordinary call may take. The half-open watch finds a peer that vanished earlier than that."""
LONG: Final = 600.0
"""Seconds for calls that may have much to do."""
_LEAVE: Final = 1.0
"""Seconds for the cancellation of a statement on the server."""
_TRIES: Final = 6
_SESSION: Final = {
    "application_name": "headrace",
    "jit": "off",
    # Verbs lock in one statement, and read in the next what the last holder of the lock has committed.
    "default_transaction_isolation": "read committed",
    # The store has few statements, and their best plan does not depend on the arguments.
    "plan_cache_mode": "force_generic_plan",
    # The server ends sessions of vanished clients, and with them their locks.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_BEGIN: Final = "begin isolation level read committed"


class _Slots:
    """Places for connections, and the connections that are idle.

    The first claim on a connection takes 20 ms longer, in which the server prepares what the function needs. So claims stay on
    the connections that have claimed before, and other calls take those only when there is no place for another one.
    """

    def __init__(self, size: int) -> None:
        self.free = asyncio.Semaphore(size)
        self._size = size
        self._lent = 0
        self._idle: list[tuple[bool, Connection]] = []
        """Whether the last call was a claim, and the connection."""

    def take(self, *, claims: bool) -> Connection | None:
        """An idle connection, for the place that the caller holds. None: the caller makes a new one."""
        self._idle = [entry for entry in self._idle if not entry[1].is_closed()]
        self._lent += 1
        for at in reversed(range(len(self._idle))):
            if self._idle[at][0] is claims:
                return self._idle.pop(at)[1]
        return self._idle.pop()[1] if self._idle and self._lent + len(self._idle) > self._size else None

    def keep(self, connection: Connection, *, claims: bool) -> None:
        self._idle.append((claims, connection))

    def give_back(self) -> None:
        """The caller leaves its place."""
        self._lent -= 1
        self.free.release()

    def clear(self) -> list[Connection]:
        """Forget the idle connections. The caller ends them."""
        idle, self._idle = self._idle, []
        return [connection for _, connection in idle]

    def drop(self) -> None:
        for connection in self.clear():
            connection.terminate()


class Pool:
    """Connections of one store object. A connection that breaks is closed, and the next call makes a new one.

    Heartbeats have a connection of their own, so no other call can keep them from renewing leases. Settles take at most
    all but two of the others: claims and upkeep go on while settles wait for a lock.
    """

    def __init__(self, address: Address, *, size: int) -> None:
        self._address = address
        self._calls = _Slots(size)
        self._heartbeats = _Slots(1)
        self._settles = asyncio.Semaphore(max(1, size - 2))
        self._watch = HalfOpenWatch(functools.partial(connect, address, timeout=ANSWER, command_timeout=ANSWER))
        self._closed = False
        self.deadlocks = Deadlocks()

    async def close(self) -> None:
        self._closed = True
        await self._watch.close()
        idle = [*self._calls.clear(), *self._heartbeats.clear()]
        await asyncio.gather(*[leave(connection) for connection in idle])
        for connection in self._watch.watched:
            connection.terminate()

    async def rows(
        self, statement: str, *args: Any, write: bool, timeout: float = CALL_TIMEOUT, use: Use = "call"
    ) -> list[Any]:
        """Run one statement in a transaction of its own."""

        async def call(connection: Connection) -> list[Any]:
            rows: list[Any] = await connection.fetch(statement, *args, timeout=timeout)
            return rows

        async def call_pooled(connection: Connection) -> list[Any]:
            # The driver prepares and executes in two steps, which a pooler may send to two servers.
            async with self.transaction(connection):
                return await call(connection)

        patience = min(timeout, _CONNECT_TIMEOUT)
        run = call_pooled if self._address.pooled else call
        if use != "settle":
            return await self.run(run, write=write, use=use, patience=patience)
        async with self._settles:
            return await self.run(run, write=write, patience=patience)

    def transaction(self, connection: Connection) -> contextlib.AbstractAsyncContextManager[None]:
        """A transaction that commits as durably as the address asks for."""
        return transaction(connection, f"{_BEGIN}; {_commit_sql(self._address, local=True)}")

    async def run(
        self,
        call: Callable[[Connection], Awaitable[T]],
        *,
        write: bool,
        use: Use = "call",
        patience: float = _CONNECT_TIMEOUT,
    ) -> T:
        """Run a call on a connection. It is repeated after a rolled-back collision, and once after a broken read."""
        slots = self._heartbeats if use == "heartbeat" else self._calls
        broke = False
        for attempt in range(_TRIES):
            connection = await self._borrow(slots, patience, claims=use == "claim")
            try:
                return await call(connection)
            except HeadraceError:
                raise
            except TROUBLE as error:
                broken, stale = faults.broken(error), faults.stale(error)
                if broken or stale:
                    await self._discard(connection)
                self.deadlocks.note(error, self._address.shown)
                harmless = stale or faults.unsent(error) or faults.sqlstate(error) in faults.TRANSIENT
                if attempt == _TRIES - 1 or not (harmless or (broken and not write and not broke)):
                    raise faults.in_call(error, self._address.shown, wrote=write) from _safe(error)
                broke = broke or not harmless
            except BaseException:
                # The call was cancelled in the middle. The next caller would get the rest of the server's answer.
                await leave(connection)
                raise
            finally:
                self._give_back(slots, connection, claims=use == "claim")
            await asyncio.sleep(random.random() * 0.01 * attempt)
        raise Unavailable(f"PostgreSQL at {self._address.shown} keeps breaking the connection: try again")

    async def repeatable(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call that may safely run twice: once more if its outcome is unknown."""
        try:
            return await call()
        except OutcomeUnknown:
            return await call()

    async def _discard(self, connection: Connection) -> None:
        """Close a broken connection and the idle ones, which are probably broken, too."""
        self._calls.drop()
        self._heartbeats.drop()
        await leave(connection)

    async def _borrow(self, slots: _Slots, patience: float, *, claims: bool) -> Connection:
        await slots.free.acquire()
        idle = slots.take(claims=claims)
        try:
            if self._closed:
                raise Unavailable("the store is closed")
            connection = idle or await connect(self._address, timeout=patience)
        except BaseException:
            slots.give_back()
            raise
        self._watch.begin(connection)
        return connection

    def _give_back(self, slots: _Slots, connection: Connection, *, claims: bool) -> None:
        slots.give_back()
        self._watch.end(connection)
        if connection.is_closed() or self._closed or connection.is_in_transaction():
            connection.terminate()
        else:
            slots.keep(connection, claims=claims)


class transaction:  # noqa: N801  # used like a function
    """A transaction that never waits for a lost peer: it sends a rollback only after an error of the server.

    After any other error the pool closes the connection, and the server rolls back. This is not an async generator,
    because none may start while an event loop shuts down, which is when a script's stores are closed.
    """

    def __init__(self, connection: Connection, begin: str = _BEGIN) -> None:
        self._connection = connection
        self._begin = begin

    async def __aenter__(self) -> None:
        await self._connection.execute(self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._connection.execute("commit")
        elif isinstance(error, (asyncpg.PostgresError, HeadraceError)):
            # The first error is the cause. An error of the rollback would hide it.
            with contextlib.suppress(*TROUBLE):
                await self._connection.execute("rollback")


async def connect(
    address: Address,
    *,
    listen: bool = False,
    timeout: float = _CONNECT_TIMEOUT,
    command_timeout: float = CALL_TIMEOUT,
) -> Connection:
    """A connection, or one of headrace's errors. Nothing was sent yet, so trying again is safe."""
    dsns = address.listen_dsns if listen else address.dsns
    direct = listen or not address.pooled
    trouble: BaseException | None = None
    for dsn in dsns:
        try:
            connection = await asyncpg.connect(
                dsn,
                # Each host gets a part of the time, so that there is time for the next.
                timeout=timeout / len(dsns),
                command_timeout=command_timeout,
                # Behind a transaction pooler the next call may reach another server, so nothing is cached.
                statement_cache_size=100 if direct else 0,
                server_settings=_SESSION if address.pooler is None else None,
            )
        except AT_CONNECT as error:
            # The error of an unusable server is more useful than the fact that a host is a standby.
            if trouble is None or not faults.standby(error):
                trouble = error
            continue
        if direct:
            await _prepare(connection, address)
        keep_alive(connection)
        return connection
    assert trouble is not None
    raise faults.at_connect(trouble, address.shown) from _safe(trouble)


async def _prepare(connection: Connection, address: Address) -> None:
    """Settings of a session. A pooler in session mode accepts no parameters at the start of a session."""
    settings = {} if address.pooler is None else _SESSION
    statements = [f"set {name} = '{value}'" for name, value in settings.items()]
    try:
        await connection.execute("; ".join([*statements, _commit_sql(address, local=False)]))
    except AT_CONNECT as error:
        connection.terminate()
        raise faults.at_connect(error, address.shown) from _safe(error)
    except BaseException:
        connection.terminate()
        raise


def _commit_sql(address: Address, *, local: bool) -> str:
    """The statement that makes commits as durable as the address asks for, in this transaction or in the session."""
    if address.commit is not None:
        return f"set {'local' if local else 'session'} synchronous_commit = {address.commit}"
    # Only raised, never lowered, so that remote_apply stays.
    low = "current_setting('synchronous_commit') in ('off', 'local')"
    if local:
        return f"select set_config('synchronous_commit', 'on', true) where {low}"
    return f"do $$ begin if {low} then set session synchronous_commit = on; end if; end $$"


async def leave(connection: Connection) -> None:
    """Close a connection. The driver cancels running statements on the server, which a dead server never confirms."""
    try:
        await connection.close(timeout=_LEAVE)
    except TROUBLE:
        connection.terminate()


def _safe(error: BaseException) -> BaseException | None:
    """The cause to show, unless it could name a secret: errors about the address quote the address."""
    return error if faults.sqlstate(error) is not None else None
