"""The end of the process, heard as soon as it is told to stop.

Web servers close what runs inside them after the last answer. A stream of events has no last answer, and a long poll has
time: they have to hear of it before.
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
    """Have the running loop call `stop` at TERM or INT, besides whatever the web server does about them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's: whoever runs servers elsewhere stops them by other means
        return
    loop = asyncio.get_running_loop()
    before: dict[int, _Handler] = {}

    def heard(number: int, where: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        before[number](number, where)

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler):  # else the process ends without a word, or not at all
            before[number] = handler
            signal.signal(number, heard)
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is heard:
                signal.signal(each, handler)
