"""The event loop: uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def runs_here() -> bool:
    """Whether an event loop runs in this thread."""
    # The public function raises an error instead, which costs a call of sync code more than the answer.
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - it is made for this question


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
