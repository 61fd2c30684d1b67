"""The enqueue of sync code: the calling thread does it by itself, on a connection of its own.

A single plain job is sent without the driver. For other batches, and where the connection is encrypted, the thread runs the
driver in an event loop.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from headrace.errors import Unavailable
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.postgres import faults, rows
from headrace.store.postgres.direct import DirectCall, direct, int2, int8
from headrace.store.postgres.driver import TROUBLE, Connection, socket_of
from headrace.store.postgres.pool import connect
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.enqueue import ENQUEUE, ENQUEUE_ONE, enqueue_args, hints_of, one_args

T = TypeVar("T")

_PATIENCE: Final = 3.0
"""Seconds to wait for the server. After that the store's pool repeats the batch, and asks whether the server still works."""
_TRUE: Final = b"\x01"
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
        self._direct: DirectCall | None = None
        self._unread: select.poll | None = None
        self._closed = False

    def enqueue(self, batch: Batch) -> Enqueued:
        if self._closed:
            raise Unavailable("the store is closed")
        if batch.linked:
            # It may wait for other transactions, and other threads would wait with it.
            raise Unavailable("a call with gates goes through the event loop of the store")
        if not batch.jobs:
            return Enqueued({})
        if self._enqueue_directly(batch):
            answer = Enqueued({})
        else:
            answer = rows.enqueued(batch, self._row(enqueue_args(batch, self._server.injected)))
        self._server.bell.ring_from_thread(hints_of(batch))
        return answer

    def _enqueue_directly(self, batch: Batch) -> bool:
        """False: nothing was stored. The driver stores the batch, or learns why the server refuses it."""
        now = self._server.injected
        if (one := one_args(batch, now)) is None or now is not None:
            return False
        self._ready()
        if self._direct is None:
            return False
        values = (
            one.p_batch.bytes,
            one.p_task.encode(),
            one.p_payload,
            one.p_options,
            one.p_queue.encode(),
            int2(one.p_priority),
            one.p_tenant.encode(),
            int8(one.p_lane),
            None if one.p_limits is None else one.p_limits.encode(),
            None,
        )
        try:
            return self._direct.call(values, _PATIENCE) == _TRUE
        except TROUBLE as error:
            self._drop()
            raise faults.in_call(error, self._address.shown, wrote=True) from error
        except BaseException:
            # An interrupt: what the server still sends would be the next call's answer.
            self._drop()
            raise

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
            self._direct = direct(self._connection, ENQUEUE_ONE)
        return self._connection

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            # Not the kind that the program chose: uvloop takes over the signals of the thread in which it runs.
            self._loop = asyncio.SelectorEventLoop()
        return self._loop.run_until_complete(work)

    def _drop(self) -> None:
        connection, self._connection, self._unread = self._connection, None, None
        call, self._direct = self._direct, None
        if call is not None:
            call.close()
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
