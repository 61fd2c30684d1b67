"""Feeds: server-sent events for one listener. A bounded buffer, and a stream over HTTP."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.errors import StoreError
from headrace.server.http.call import encode
from headrace.server.http.problems import Problem

MEDIA: Final = "text/event-stream"
MOST: Final = 1000
"""Events that may wait for a slow listener. One more ends its stream."""
CHUNK: Final = 16 * 1024
"""Bytes after which no further event is written in the same step. A listener that does not read takes this much memory
and its socket's buffer, because waiting events are shared with other listeners."""
HEARTBEAT: Final = 15.0
"""Seconds without an event after which a comment keeps the stream alive."""
LONGEST: Final = 15 * 60.0
"""Seconds of one stream. A listener connects again after that, with a token that is still valid."""
RETRY: Final = b"retry: 2000\n\n"


def event(name: str, data: Any, id: str = "") -> bytes:
    """One event as it is sent. JSON has no line breaks outside strings, and escapes those inside."""
    head = f"id: {id}\nevent: {name}\n" if id else f"event: {name}\n"
    return head.encode() + b"data: " + encode(data) + b"\n\n"


class Feed:
    """The events that one listener has not received yet."""

    def __init__(self, most: int = MOST) -> None:
        self._waiting: deque[bytes] = deque()
        self._most = most
        self._bell = asyncio.Event()
        self.ended = False

    @property
    def empty(self) -> bool:
        """Whether the listener has received everything."""
        return not self._waiting

    def put(self, event_: bytes) -> None:
        """Add an event. A listener that is too slow gets a last event instead, and its stream ends."""
        if self.ended:
            return
        if len(self._waiting) >= self._most:
            self._waiting.clear()
            detail = f"more than {self._most:,} events wait: connect again with Last-Event-ID"
            self.end(event("dropped", {"reason": "slow", "detail": detail}))
            return
        self._waiting.append(event_)
        self._bell.set()

    def end(self, last: bytes = b"") -> None:
        """Nothing more will come."""
        if not self.ended:
            self.ended = True
            if last:
                self._waiting.append(last)
            self._bell.set()

    async def next(self, seconds: float) -> bytes | None:
        """The next events, up to one chunk. Empty: nothing came in time. None: the feed has ended."""
        if not self._waiting and not self.ended:
            self._bell.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._bell.wait()
            except TimeoutError:
                return b""
        if not self._waiting:
            return None
        some, size = list[bytes](), 0
        while self._waiting and size < CHUNK:
            some.append(self._waiting.popleft())
            size += len(some[-1])
        return b"".join(some)


class EventStream(Response):
    """The HTTP answer that streams a feed."""

    media_type = MEDIA

    def __init__(self, feed: Feed, close: Callable[[], None], welcome: Callable[[], Awaitable[None]]) -> None:
        """`close` is called when the listener has gone. `welcome` raises if its token is no longer valid."""
        self.status_code = 200
        self.body = b""
        self.background = None
        self._feed = feed
        self._close = close
        self._welcome = welcome
        self.init_headers({"X-Accel-Buffering": "no"})
        # The length of the body is unknown.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listening = asyncio.create_task(self._until_gone(receive), name="headrace-listener")
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await self._pour(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            listening.cancel()
            self._close()

    async def _pour(self, send: Send) -> None:
        until = monotonic() + LONGEST
        some: bytes | None = RETRY
        while some is not None:
            await send({"type": "http.response.body", "body": some or b": \n\n", "more_body": True})
            if monotonic() > until:
                self._feed.end()
            some = await self._feed.next(HEARTBEAT)
            if some is not None and not await self._may_hear():
                some = None

    async def _may_hear(self) -> bool:
        """Whether the token is still valid. If not, the listener must see no further events."""
        try:
            await self._welcome()
        except Problem:
            return False
        except StoreError:
            # The store is away, so there are no new events either, and the stream waits for it.
            return True
        return True

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._feed.end()
