"""The event loop: uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def runs_here() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes the event loop. None: asyncio makes its own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on the fastest loop there is."""
    with asyncio.Runner(loop_factory=factory()) as runner:
        return runner.run(main)
