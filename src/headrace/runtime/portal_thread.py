"""A daemon thread that runs an event loop, for the portal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class PortalThread:
    """The loop runs when the object is made, until `end`."""

    loop: asyncio.AbstractEventLoop
    _stop: asyncio.Event

    def __init__(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="headrace", daemon=True)
        self._thread.start()
        ready.wait()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start `make()` in the loop."""
        return asyncio.run_coroutine_threadsafe(make(), self.loop)

    async def answer_of(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `make()`, run in the loop, for a caller in another event loop."""
        return await asyncio.wrap_future(self.start(make))

    def end(self) -> None:
        """Close everything in the loop, and wait for the end of the thread."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)

    def _main(self, ready: threading.Event) -> None:
        self.loop = loop = asyncio.new_event_loop()
        threads = ThreadPoolExecutor(thread_name_prefix="headrace-call")
        loop.set_default_executor(threads)
        self._stop = stop = asyncio.Event()
        ready.set()
        try:
            loop.run_until_complete(_until(stop))
        finally:
            # asyncio waits for a loop's threads in one more thread, and none may start while the process ends.
            threads.shutdown()
            loop.close()


async def _until(stop: asyncio.Event) -> None:
    """Run the loop, then cancel what is left, and close the async generators that hold the apps' stores."""
    await stop.wait()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
