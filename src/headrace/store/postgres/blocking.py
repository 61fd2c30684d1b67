"""The enqueue of sync code: the calling thread runs the driver by itself, on a connection of its own."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from headrace.errors import Unavailable
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.postgres import faults, rows
from headrace.store.postgres.driver import TROUBLE, Connection, socket_of
from headrace.store.postgres.pool import connect
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.enqueue import ENQUEUE, enqueue_args, hints_of

T = TypeVar("T")

_PATIENCE: Final = 3.0
"""Seconds to wait for the server. After that the store's pool repeats the batch, and asks whether the server still works."""
_TURNS: Final = 3
"""Turns of the loop in which the driver lets go of a connection that ends."""


class BlockingEnqueue:
    """See `contract.Blocking`. Its event loop runs only while a thread enqueues, in that thread."""

    waits_for_keys = True

    def __init__(self, server: Server) -> None:
        self._server = server
        self._address = server.address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection = None
        self._unread: select.poll | None = None
        self._closed = False

    def enqueue(self, batch: Batch) -> Enqueued:
        if self._closed:
            raise Unavailable("the store is closed")
        if not batch.jobs:
            return Enqueued({})
        answer = rows.enqueued(batch, self._row(enqueue_args(batch, self._server.injected)))
        self._server.bell.ring_from_thread(hints_of(batch))
        return answer

    def close(self) -> None:
        self._closed = True
        self._drop()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _row(self, args: tuple[Any, ...]) -> Any:
        connection = self._ready()
        try:
            return self._run(connection.fetch(ENQUEUE, *args, timeout=_PATIENCE))[0]
        except TROUBLE as error:
            self._drop()
            raise faults.in_call(error, self._address.shown, wrote=True) from error
        except BaseException:
            # An interrupt: what the server still sends would be the next call's answer.
            self._drop()
            raise

    def _ready(self) -> Connection:
        """A connection that is open, as far as can be told without asking the server."""
        if self._unread is not None and self._unread.poll(0):
            # Between two calls a server has only its farewell to say, and the end of the connection may follow later.
            self._drop()
        if self._connection is None or self._connection.is_closed():
            self._drop()
            self._connection = self._run(connect(self._address))
            wire = socket_of(self._connection)
            if wire is not None:
                self._unread = select.poll()
                self._unread.register(wire, select.POLLIN)
        return self._connection

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            # Not the kind that the program chose: uvloop takes over the signals of the thread in which it runs.
            self._loop = asyncio.SelectorEventLoop()
        return self._loop.run_until_complete(work)

    def _drop(self) -> None:
        connection, self._connection, self._unread = self._connection, None, None
        if connection is not None:
            connection.terminate()
        if self._loop is not None:
            # What an interrupt has left in the loop ends here.
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(_ended(left))


def blocking(server: Server) -> BlockingEnqueue | None:
    """Without a pooler in between: behind one, a statement that is prepared once may meet another server."""
    return None if server.address.pooler is not None else BlockingEnqueue(server)


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    await _turns()
