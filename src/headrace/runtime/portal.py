"""The bridge for sync code: one daemon thread with an event loop, started by the first call that needs it."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.errors import HeadraceError

T = TypeVar("T")

_inherited: list[object] = []
"""Loops that a forked child inherited. They are kept, because destroying them would close the parent's sockets."""


class Portal:
    """Runs coroutines in its own thread for callers in other threads. It works after a fork, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.before_close: set[Callable[[], None]] = set()
        """What `close` calls first, in its own thread: connections that other threads than the portal's use."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The portal's event loop, running."""
        with self._lock:
            if self._loop is None:
                ready = threading.Event()
                self._thread = threading.Thread(target=self._main, args=(ready,), name="headrace", daemon=True)
                self._thread.start()
                ready.wait()
            assert self._loop is not None
            return self._loop

    @property
    def started(self) -> asyncio.AbstractEventLoop | None:
        """The loop if it runs already."""
        return self._loop

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start `make()` in the portal's loop."""
        loop = self.loop
        if threading.current_thread() is self._thread:
            raise HeadraceError("a sync call in headrace's own thread would wait for itself: use its async form (a…)")
        return asyncio.run_coroutine_threadsafe(make(), loop)

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `make()`, run in the portal's loop. Blocks this thread only."""
        future = self.start(make)
        try:
            return future.result()
        except BaseException:
            # An interrupted caller must not leave its call running.
            future.cancel()
            raise

    def close(self) -> None:
        """Close everything in the portal's loop, and end its thread. The next call starts another."""
        while self.before_close:
            self.before_close.pop()()
        with self._lock:
            thread, loop, stop = self._thread, self._loop, self._stop
            self._thread = self._loop = self._stop = None
        if thread is not None and loop is not None and stop is not None:
            loop.call_soon_threadsafe(stop.set)
            thread.join(timeout=10)

    def _main(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        threads = ThreadPoolExecutor(thread_name_prefix="headrace-call")
        loop.set_default_executor(threads)
        self._loop = loop
        self._stop = stop = asyncio.Event()
        ready.set()
        try:
            loop.run_until_complete(_until(stop))
        finally:
            # asyncio waits for a loop's threads in one more thread, and none may start while the process ends.
            threads.shutdown()
            loop.close()

    def forget(self) -> None:
        """Reset the portal in a forked child, which does not have the thread."""
        _inherited.extend((self._thread, self._loop, self._stop, self.before_close))
        self.before_close = set()
        self._lock = threading.Lock()
        self._thread = self._loop = self._stop = None


async def _until(stop: asyncio.Event) -> None:
    """Run the loop, then cancel what is left, and close the async generators that hold the apps' stores."""
    await stop.wait()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


portal = Portal()
"""The portal of this process."""

atexit.register(portal.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=portal.forget)
