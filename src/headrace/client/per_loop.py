"""Clients by event loop: each loop that uses an app gets a store of its own, closed with the loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import contextmanager

from headrace.client import enqueue_log
from headrace.client.blocking import BlockingClient
from headrace.client.client import Client
from headrace.errors import OutcomeUnknown
from headrace.model.job import Batch, NewJob
from headrace.model.records import Enqueued
from headrace.policy.queue import QueueOptions
from headrace.runtime import event_loop
from headrace.runtime.portal import Portal
from headrace.store.contract import Store
from headrace.task.handle import Put


class _LoopClient:
    """One loop's client, and the generator that closes it."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.client: Client | None = None
        self.blocking: BlockingClient | None = None
        """Of the portal's loop, if its store has one: for sync code."""
        self.keeper: AsyncGenerator[None, None] | None = None


class Clients:
    """One client per event loop, opened when first asked for."""

    def __init__(
        self,
        connect: Callable[[], Store],
        queues: Mapping[str, QueueOptions] | None = None,
        *,
        portal: Portal | None = None,
    ) -> None:
        """`portal`: where the sync calls run for which `put_here` has no other way."""
        self._connect = connect
        self._queues = queues
        self._portal = portal
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._retired: list[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient]] = []

    async def here(self) -> Client:
        """The running loop's client, with an open store."""
        opened = self._by_loop.get(asyncio.get_running_loop())
        if opened is not None and opened.client is not None:
            return opened.client
        return await self._open()

    async def _open(self) -> Client:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[other]
            opened = self._by_loop.setdefault(loop, _LoopClient())
        async with opened.opening:
            if opened.client is None:
                store = self._connect()
                try:
                    await store.open()
                except BaseException:
                    await store.close()
                    raise
                client = Client(store, queues=self._queues)
                opened.blocking = self._blocking(store, loop)
                opened.keeper = self._keep(loop, opened, client)
                await anext(opened.keeper)
                opened.client = client
            return opened.client

    async def _keep(
        self, loop: asyncio.AbstractEventLoop, opened: _LoopClient, client: Client
    ) -> AsyncGenerator[None, None]:
        # An event loop has no hook for its end, but it closes the async generators that were started in it. So a store
        # that a script leaves open is closed while its loop still runs.
        try:
            yield
        finally:
            with self._lock:
                if self._by_loop.get(loop) is opened:
                    del self._by_loop[loop]
            if opened.blocking is not None:
                await self._close(opened.blocking)
            await client.close()

    async def close_here(self) -> None:
        """Close the running loop's client, if there is one; the next call opens another."""
        opened = self._by_loop.get(asyncio.get_running_loop())
        if opened is not None and opened.keeper is not None:
            await opened.keeper.aclose()

    def opened_in(self, portal: Portal) -> bool:
        """Whether sync calls have opened a client."""
        return portal.started is not None and portal.started in self._by_loop

    @contextmanager
    def set_aside(self) -> Generator[None]:
        """Use other clients until the end, then the present ones again. The present ones stay open meanwhile."""
        with self._lock:
            before, self._by_loop = self._by_loop, weakref.WeakKeyDictionary()
        try:
            yield
        finally:
            if self._portal is not None and self.opened_in(self._portal):
                self._portal.run(self.close_here)
            with self._lock:
                # Each loop closes its own client when it ends. A client that was collected earlier would need its loop.
                self._retired = [clients for clients in (*self._retired, self._by_loop) if clients]
                self._by_loop = before

    # ── sync code ────────────────────────────────────────────────────────────

    def put_here(self, job: NewJob) -> Put | None:
        """Enqueue in the calling thread. None: the portal must do it.

        The first call goes through the portal, which opens the store. So do jobs for bounded queues, whose lengths the
        portal's client knows, and calls from a thread that runs an event loop.
        """
        loop = None if self._portal is None else self._portal.started
        opened = None if loop is None else self._by_loop.get(loop)
        if opened is None or opened.client is None or opened.blocking is None:
            return None
        if opened.client.bounds(job.lane.queue) or event_loop.runs_here():
            return None
        put = opened.blocking.put(job)
        if put is not None and enqueue_log.is_on():
            enqueue_log.tell(job, put.id, created=put.created)
        return put

    def _blocking(self, store: Store, loop: asyncio.AbstractEventLoop) -> BlockingClient | None:
        if self._portal is None or loop is not self._portal.started:
            return None
        writer = store.blocking()
        if writer is None:
            return None
        blocking = BlockingClient(writer, self._repeat)
        self._portal.before_close.add(blocking.close)
        return blocking

    async def _close(self, blocking: BlockingClient) -> None:
        if self._portal is not None and blocking.close in self._portal.before_close:
            self._portal.before_close.discard(blocking.close)
            # Its connection may have an event loop of its own, which cannot run in a thread that runs one.
            await asyncio.get_running_loop().run_in_executor(None, blocking.close)

    def _repeat(self, batch: Batch, began: float, unknown: OutcomeUnknown | None) -> Enqueued:
        async def repeat() -> Enqueued:
            return await (await self.here()).repeat(batch, began, unknown)

        assert self._portal is not None  # only its loop has a blocking client
        return self._portal.run(repeat)
