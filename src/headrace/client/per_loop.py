"""Clients by event loop: each loop that uses an app gets a store of its own, closed with the loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping

from headrace.client.client import Client
from headrace.policy.queue import QueueOptions
from headrace.runtime.portal import Portal
from headrace.store.contract import Store


class _LoopClient:
    """One loop's client, and the generator that closes it."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.client: Client | None = None
        self.keeper: AsyncGenerator[None, None] | None = None


class Clients:
    """One client per event loop, opened when first asked for."""

    def __init__(self, connect: Callable[[], Store], queues: Mapping[str, QueueOptions] | None = None) -> None:
        self._connect = connect
        self._queues = queues
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    async def here(self) -> Client:
        """The running loop's client, with an open store."""
        opened = self._by_loop.get(asyncio.get_running_loop())
        if opened is not None and opened.client is not None:
            return opened.client
        return await self._open()

    async def _open(self) -> Client:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [each for each in self._by_loop if each.is_closed()]:
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
                opened.keeper = self._keep(loop, client)
                await anext(opened.keeper)
                opened.client = client
            return opened.client

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: Client) -> AsyncGenerator[None, None]:
        # An event loop has no hook for its end, but it closes the async generators that were started in it. So a store
        # that a script leaves open is closed while its loop still runs.
        try:
            yield
        finally:
            with self._lock:
                self._by_loop.pop(loop, None)
            await client.close()

    async def close_here(self) -> None:
        """Close the running loop's client, if there is one; the next call opens another."""
        opened = self._by_loop.get(asyncio.get_running_loop())
        if opened is not None and opened.keeper is not None:
            await opened.keeper.aclose()

    def opened_in(self, portal: Portal) -> bool:
        """Whether sync calls have opened a client."""
        return portal.started is not None and portal.started in self._by_loop
