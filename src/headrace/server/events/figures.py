"""Sends the figures of queues into a feed, at most once a second, so that a page need not ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from headrace.errors import HeadraceError
from headrace.server.events.feed import Feed

EVERY: Final = 1.0
"""Seconds between two looks at the figures."""
AT_LEAST: Final = 5.0
"""Seconds after which figures are sent again although they are the same, so that a reader knows that the stream lives."""


class FigureSender:
    """Sends figures to one listener. The server keeps them for a second, so many listeners cost the store one read."""

    def __init__(self, feed: Feed, read: Callable[[], Awaitable[bytes]]) -> None:
        self._feed = feed
        self._read = read
        self._task = asyncio.create_task(self._run(), name="headrace-figures")

    def stop(self) -> None:
        """Send nothing more. May be called twice."""
        self._task.cancel()

    async def _run(self) -> None:
        last, sent = b"", 0.0
        while not self._feed.ended:
            try:
                figures = await self._read()
            except HeadraceError:
                figures = last  # The store is away, and the stream waits for it.
            # A listener that has not read the last figures gets the newest ones when it does.
            if self._feed.empty and (figures != last or monotonic() - sent >= AT_LEAST) and figures:
                last, sent = figures, monotonic()
                self._feed.put(figures)
            await asyncio.sleep(EVERY)
