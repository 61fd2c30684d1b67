"""Runs the app's hooks for the start and the end of a worker around a run of its jobs.

In async code the hooks run in the event loop of the test, as its async tasks do. In sync code no event loop runs between
two tasks. A `HookLoop` is then the event loop of the async hooks and of all async tasks, because what a hook opens works
in one event loop only. Sync hooks are called in the thread of the test, so that they share its database transaction.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from headrace.runtime import event_loop
from headrace.task.hooks import WorkerInfo
from headrace.testing.execute import RunCoroutine, beside, in_thread, run_coroutine
from headrace.testing.stand_in import StandIn, ain_portal, in_portal
from headrace.worker.lifecycle import Lifecycle

T = TypeVar("T")


class HookLoop:
    """An event loop for sync code. It runs while a call waits for it, and stands still while a sync hook runs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._calls: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._called = asyncio.Event()
        self._closing = False

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """The result of a coroutine in this event loop."""
        if self._runner.get_loop().is_running():
            # An async task calls sync code that runs another async task, and waits for it.
            return run_coroutine(make)
        call = partial(self._run, make, contextvars.copy_context())
        return beside(call) if event_loop.runs_here() else call()

    def _run(self, make: Callable[[], Coroutine[Any, Any, T]], own: contextvars.Context) -> T:
        return self._runner.run(make(), context=own)

    def run_hooks(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine that calls hooks. This thread calls the sync ones."""
        task = self.run(partial(_begin, make))
        while not task.done():
            self.run(partial(self._until_call, task))
            while self._calls:
                function, answer = self._calls.pop()
                try:
                    value = function()
                except (Exception, SystemExit) as error:  # noqa: BLE001  # the lifecycle decides what it means
                    answer.set_exception(error)
                else:
                    answer.set_result(value)
        task.result()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Let the thread that waits for this event loop call a sync function."""
        if self._closing:
            return function()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.append((function, answer))
        self._called.set()
        return await answer

    async def _until_call(self, task: asyncio.Task[None]) -> None:
        called = asyncio.ensure_future(self._called.wait())
        await asyncio.wait([task, called], return_when=asyncio.FIRST_COMPLETED)
        called.cancel()
        self._called.clear()

    def close(self) -> None:
        """Close the event loop. If the start was interrupted, the hooks that have begun end here."""
        # No thread waits for calls any more.
        self._closing = True
        if event_loop.runs_here():
            beside(self._runner.close)
        else:
            self._runner.close()


async def _begin(make: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    return asyncio.create_task(make())


@contextmanager
def hooks_around(stand: StandIn, queues: tuple[str, ...] | None = None) -> Generator[RunCoroutine]:
    """Run the hooks around sync code, unless they run already. Gives the function that runs async tasks."""
    if not stand.must_run_hooks:
        yield stand.run_coroutine or run_coroutine
        return
    info = _info(stand, in_portal(stand.queues) if queues is None else queues)
    loop = HookLoop()
    try:
        lifecycle = Lifecycle(stand.state.hooks.life, info, loop.call)
        loop.run_hooks(lifecycle.start)
        # Without async hooks, an async task of Django may call the database in the thread of the test.
        stand.run_coroutine = loop.run if lifecycle.uses_loop else run_coroutine
        try:
            yield stand.run_coroutine
        finally:
            loop.run_hooks(lifecycle.stop)
    finally:
        stand.run_coroutine = None
        loop.close()


@asynccontextmanager
async def ahooks_around(stand: StandIn, queues: tuple[str, ...] | None = None) -> AsyncGenerator[None]:
    """Run the hooks around async code, unless they run already."""
    if not stand.must_run_hooks:
        yield
        return
    info = _info(stand, await ain_portal(stand.queues) if queues is None else queues)
    # Django's tests keep their transaction in one thread. Other hooks have a thread of their own, as in a worker.
    lifecycle = Lifecycle(stand.state.hooks.life, info, in_thread if "asgiref.sync" in sys.modules else None)
    await lifecycle.start()
    stand.run_coroutine = run_coroutine
    try:
        try:
            yield
        finally:
            await lifecycle.stop()
    finally:
        stand.run_coroutine = None


def _info(stand: StandIn, queues: tuple[str, ...]) -> WorkerInfo:
    return msgspec.structs.replace(stand.state.info, queues=queues, concurrency=1)
