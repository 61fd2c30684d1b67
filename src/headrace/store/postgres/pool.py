"""The pool: a few connections, each used by one call at a time, replaced when they break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final, TypeVar

from headrace.errors import HeadraceError, OutcomeUnknown, Unavailable
from headrace.store.postgres import faults
from headrace.store.postgres.address import Address
from headrace.store.postgres.deadlocks import Deadlocks
from headrace.store.postgres.driver import AT_CONNECT, TROUBLE, Connection, asyncpg

T = TypeVar("T")
_CONNECT_TIMEOUT: Final = 10.0
_CALL_TIMEOUT: Final = 15.0
"""Also how long a peer that vanished without a word goes unnoticed."""
_TRIES: Final = 6
_SESSION: Final = {
    "application_name": "headrace",
    "jit": "off",
    # Verbs lock in one statement and read in the next what the last holder of the lock has committed.
    "default_transaction_isolation": "read committed",
    # Our statements are few, and what they are asked does not change how they are best answered.
    "plan_cache_mode": "force_generic_plan",
}


class Pool:
    """Connections of one store object. Heals itself: whatever breaks is thrown away, the next call makes a new one."""

    def __init__(self, address: Address, *, size: int) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._slots = asyncio.Semaphore(size)
        self._closed = False
        self.deadlocks = Deadlocks()

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await _close(connection)
        for connection in list(self._used):
            connection.terminate()

    async def rows(self, statement: str, *args: Any, write: bool, timeout: float = _CALL_TIMEOUT) -> list[Any]:
        """Run one statement in a transaction of its own."""

        async def call(connection: Connection) -> list[Any]:
            # The driver prepares and executes in two steps, which a pooler would send to two servers.
            # Nor does a pooler pass on the isolation level of `_SESSION`.
            async with connection.transaction(isolation="read_committed") if self._address.pooled else nullcontext():
                found: list[Any] = await connection.fetch(statement, *args, timeout=timeout)
            return found

        return await self.run(call, write=write)

    async def run(self, call: Callable[[Connection], Awaitable[T]], *, write: bool) -> T:
        """Run a call on a connection. Rolled-back collisions are tried again; a broken read, too, once."""
        broke = False
        for attempt in range(_TRIES):
            async with self._connection() as connection:
                try:
                    return await call(connection)
                except HeadraceError:
                    raise
                except TROUBLE as error:
                    if faults.broken(error):
                        connection.terminate()
                    self.deadlocks.note(error, self._address.shown)
                    harmless = faults.unsent(error) or faults.sqlstate(error) in faults.TRANSIENT
                    if attempt == _TRIES - 1 or not (harmless or (faults.broken(error) and not write and not broke)):
                        raise faults.in_call(error, self._address.shown, wrote=write) from _safe(error)
                    broke = broke or not harmless
                except BaseException:
                    # Cancelled in the middle: what the server still sends would be the next caller's answer.
                    connection.terminate()
                    raise
            await asyncio.sleep(random.random() * 0.01 * attempt)
        raise Unavailable(f"PostgreSQL at {self._address.shown} keeps breaking the connection: try again")

    async def repeatable(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call that may safely be said twice: once more when nobody knows what became of it."""
        try:
            return await call()
        except OutcomeUnknown:
            return await call()

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Connection]:
        async with self._slots:
            if self._closed:
                raise Unavailable("the store is closed")
            connection = await self._take()
            self._used.add(connection)
            try:
                yield connection
            finally:
                self._used.discard(connection)
                if connection.is_closed() or self._closed:
                    connection.terminate()
                else:
                    self._idle.append(connection)

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._address)


async def connect(address: Address, *, dsn: str | None = None) -> Connection:
    """A connection, or one of our errors; nothing was sent yet, so trying again is safe."""
    direct = dsn is not None or not address.pooled
    try:
        return await asyncpg.connect(
            dsn or address.dsn,
            timeout=_CONNECT_TIMEOUT,
            # Behind a transaction pooler the next call may meet another server: nothing can be kept there.
            statement_cache_size=100 if direct else 0,
            server_settings=_SESSION if direct else None,
        )
    except AT_CONNECT as error:
        raise faults.at_connect(error, address.shown) from _safe(error)


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=2)
    except TROUBLE:
        connection.terminate()


def _safe(error: BaseException) -> BaseException | None:
    """The cause to show, unless it could name a secret: errors about the address quote the address."""
    return error if faults.sqlstate(error) is not None else None
