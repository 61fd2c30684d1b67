"""The hub: all callers that wait for a job's end or listen to events share one read of the store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Any, Final, Self

from headrace.client.results import Waiter
from headrace.errors import HeadraceError, JobNotFound, ResultTimeout
from headrace.model.job import Job, JobId
from headrace.model.records import Ending
from headrace.server.events.feed import EventStream, Feed
from headrace.server.events.figures import FigureSender
from headrace.server.events.follow import Follower, Heard
from headrace.server.events.tail import EndFilter, Listener, Place, Tail
from headrace.store.contract import Store


class _Stopping(Exception):
    """The server stops, so long polls answer now."""


log = logging.getLogger("headrace.server")

MANY: Final = 200
"""The number of awaited jobs from which reading all ends is cheaper than reading each job."""


class _EndListener:
    """Passes ends on to the waiter. This is only a hint: the next read of all jobs finds what it missed."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self.filter = None

    def begin(self, missed: Iterable[Ending] = (), *, more: bool = False) -> None:
        self.hear(missed, more=more)

    def hear(self, endings: Iterable[Ending], *, more: bool = False) -> None:
        del more
        self._waiter.wake(ending.id for ending in endings)

    def end(self) -> None:
        """Nothing to do: `Waiter.dismiss` ends the waiting calls."""


class Hub:
    """One for each server process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiter = Waiter(store)
        self._tail = Tail(store)
        self._ear: _EndListener | None = None
        self._stopping = False
        self._feeds: set[Feed] = set()
        """Feeds with figures, which the tail does not know."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.dismiss()
        self._waiter.close()

    @property
    def waiting(self) -> int:
        """The number of awaited jobs."""
        return self._waiter.watched

    @property
    def listening(self) -> int:
        """Streams of all events, and the hub itself if very many calls wait."""
        return self._tail.listeners

    async def look(self, id: JobId) -> Job | None:
        """One job as it is now. Calls that come at the same time share one read."""
        try:
            return await self._waiter.look(id)
        except _Stopping:
            [job] = await self._store.get([id])  # The shared read was cancelled.
            return job

    async def finished(self, id: JobId, timeout: float) -> Job | None:
        """The job when it has ended, or as it is when the time is over or the server stops. None: there is none."""
        until = monotonic() + timeout
        job = await self.look(id)
        if job is None or job.state.finished or self._stopping:
            return job
        try:
            await self._listen()
            return await self._waiter.finished(id, max(0.0, until - monotonic()))
        except (ResultTimeout, _Stopping):
            return job
        except JobNotFound:
            return None
        finally:
            if self._ear is not None and self._waiter.watched < MANY // 2:
                self._tail.leave(self._ear)
                self._ear = None

    async def _listen(self) -> None:
        if self._ear is None and self._waiter.watched >= MANY:
            self._ear = ear = _EndListener(self._waiter)
            try:
                await self._tail.join(ear, None)
                self._waiter.wake()  # The tail does not report what ended before it began.
            except HeadraceError as error:
                log.warning("following the ends of jobs failed, reading each job instead: %s", error)
                self._ear = None

    def settled(self, ids: Iterable[JobId]) -> None:
        """These jobs ended through this server, so waiting calls get them at once."""
        self._waiter.wake(ids)
        self._tail.wake()

    def follow(
        self, id: JobId, heard: Heard, ending: Callable[[Job], Any], welcome: Callable[[], Awaitable[None]]
    ) -> EventStream:
        """Everything that happens to one job, until it ends. `ending` makes the data of the last event."""
        feed = Feed()
        follower = Follower(feed, heard, ending)
        if self._stopping:
            feed.end()
        else:
            self._waiter.watch(id, follower)
        return EventStream(feed, lambda: self._waiter.leave(id, follower), welcome)

    async def follow_all(
        self,
        filter: EndFilter | None,
        after: Place | None,
        welcome: Callable[[], Awaitable[None]],
        *,
        figures: Callable[[], Awaitable[bytes]] | None = None,
    ) -> EventStream:
        """The ends of all jobs that match the listener's filter, from now on or from that position.

        `filter`: None for no ends. `figures` makes an event with the figures of queues, which is sent when they change.
        """
        feed = Feed()
        listener = None if filter is None else Listener(feed, filter)
        sender: FigureSender | None = None

        def leave() -> None:
            if listener is not None:
                self._tail.leave(listener)
            if sender is not None:
                sender.stop()
            self._feeds.discard(feed)

        if self._stopping:
            feed.end()
            return EventStream(feed, leave, welcome)
        if listener is not None:
            await self._tail.join(listener, after)
        if figures is not None:
            sender = FigureSender(feed, figures)
            self._feeds.add(feed)
        return EventStream(feed, leave, welcome)

    def dismiss(self) -> None:
        """Answer every long poll and end every stream, because the server stops."""
        self._stopping = True
        self._waiter.dismiss(_Stopping())
        self._tail.close()
        for feed in self._feeds:
            feed.end()
