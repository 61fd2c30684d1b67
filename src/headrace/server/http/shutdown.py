"""Reacts to the signals that end the process.

Web servers close an application after the last answer. A stream of events has no last answer, and a long poll waits, so
the application must learn of the end before.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def at_signal(stop: Callable[[], None]) -> Generator[None]:
    """Make the running loop call `stop` at TERM or INT, in addition to the web server's own handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread gets signals. Servers in other threads are stopped by other means.
        return
    loop = asyncio.get_running_loop()
    before: dict[int, _Handler] = {}

    def heard(number: int, where: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        before[number](number, where)

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler):  # Else the default action ends the process, or the signal is ignored.
            before[number] = handler
            signal.signal(number, heard)
    try:
        yield
    finally:
        for caught, handler in before.items():
            if signal.getsignal(caught) is heard:
                signal.signal(caught, handler)
