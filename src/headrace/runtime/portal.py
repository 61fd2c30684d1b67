"""The bridge for sync code: one daemon thread with an event loop, started by the first call that needs it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from headrace.runtime.portal_thread import PortalThread

T = TypeVar("T")

_inherited: list[object] = []
"""Loops that a forked child inherited. They are kept, because destroying them would close the parent's sockets."""


class Portal:
    """Runs coroutines in its own thread for callers in other threads. It works after a fork, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: PortalThread | None = None
        self.before_close: set[Callable[[], None]] = set()
        """What `close` calls first, in its own thread: connections that other threads than the portal's use."""

    def _running(self) -> PortalThread:
        with self._lock:
            if self._thread is None:
                # The thread needs asyncio, which costs more than all else that an app imports before its first call.
                from headrace.runtime.portal_thread import PortalThread

                self._thread = PortalThread()
                # Registered last, so that it is called before the log is shut down: closing may log.
                atexit.register(self.close)
            return self._thread

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The portal's event loop, running."""
        return self._running().loop

    @property
    def started(self) -> asyncio.AbstractEventLoop | None:
        """The loop if it runs already."""
        return None if (thread := self._thread) is None else thread.loop

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start `make()` in the portal's loop."""
        return self._other_thread().start(make)

    def _other_thread(self) -> PortalThread:
        thread = self._running()
        if thread.is_current:
            raise HeadraceError("a sync call in headrace's own thread would wait for itself: use its async form (a…)")
        return thread

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `make()`, run in the portal's loop. Blocks this thread only."""
        future = self.start(make)
        try:
            return future.result()
        except BaseException:
            # An interrupted caller must not leave its call running.
            future.cancel()
            raise

    async def answer_of(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same for a caller in another event loop, which goes on meanwhile."""
        return await self._other_thread().answer_of(make)

    def close(self) -> None:
        """Close everything in the portal's loop, and end its thread. The next call starts another."""
        while self.before_close:
            self.before_close.pop()()
        with self._lock:
            thread, self._thread = self._thread, None
        atexit.unregister(self.close)
        if thread is not None:
            thread.end()

    def forget(self) -> None:
        """Reset the portal in a forked child, which does not have the thread."""
        _inherited.extend((self._thread, self.before_close))
        self.before_close = set()
        self._lock = threading.Lock()
        self._thread = None


portal = Portal()
"""The portal of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=portal.forget)
