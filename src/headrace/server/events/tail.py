"""The tail: ends of all jobs as they come, read once for all listeners, and only while there are listeners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from headrace.errors import HeadraceError
from headrace.model.job import JobId, JobState
from headrace.model.records import Ending
from headrace.server.auth import Principal
from headrace.server.events.feed import Feed, event
from headrace.store.contract import Store

log = logging.getLogger("headrace.server")

EVERY: Final = 0.25
"""Seconds between two reads, at least."""
SHARE: Final = 0.1
"""Share of the time that reads may take."""
OVERLAP: Final = timedelta(seconds=3)
"""How far back a read begins, because an end that is committed late has an earlier time than others."""
OVERLAP_JOBS: Final = 500
"""How many ends back a read begins at most, so that a busy queue is not read twice."""
PAGE, PAGES = 1000, 4
"""Ends of one call, and calls of one read, or one call if no listener has a filter. The rest is skipped, and listeners get
an event about it."""
RATE: Final = 200
"""Events per second for one listener. Beyond it, the listener gets the number of skipped events."""
REMEMBERED: Final = 5000
TURN: Final = 0.01
"""Seconds for which the tail notifies listeners without a pause."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ID = re.compile(r"(\d{1,17})-([0-9a-f]{32})", re.ASCII)


class EndedEvent(msgspec.Struct, kw_only=True):
    """`ended`: a job has ended."""

    id: UUID
    state: JobState
    at: datetime
    queue: str
    task: str
    tenant: str


class SkippedEvent(msgspec.Struct, kw_only=True):
    """`skipped`: there were more ends than the rate allows."""

    count: int
    more: bool = False
    """There were others that were not counted."""


Place = tuple[datetime, JobId]
"""The position of an end, in the order of the tail."""


def place(ending: Ending) -> Place:
    return ending.at, ending.id


def event_id(ending: Ending) -> str:
    """The id of its event: when, and which job."""
    return f"{(ending.at - _EPOCH) // timedelta(microseconds=1)}-{ending.id.hex}"


def read_id(given: str | None) -> Place | None:
    """The position from a Last-Event-ID. An unreadable one counts as none."""
    match = _ID.fullmatch(given or "")
    return None if match is None else (_EPOCH + timedelta(microseconds=int(match[1])), JobId(UUID(match[2])))


class EndFilter(NamedTuple):
    """Which ends a listener wants and may see. Listeners with equal filters share the work."""

    queue: str | None = None
    task: str | None = None
    state: JobState | None = None
    bound: Principal | None = None
    """The caller, if it may not see everything."""

    @property
    def wants_all(self) -> bool:
        """Whether it lets every end pass."""
        return self == _EVERYTHING

    def wants(self, ending: Ending) -> bool:
        return (
            self.queue in {None, ending.queue}
            and self.task in {None, ending.task}
            and self.state in {None, ending.state}
            and (self.bound is None or self.bound.sees(ending.queue, ending.tenant))
        )


_EVERYTHING: Final = EndFilter()


class Hears(Protocol):
    """Receives ends."""

    @property
    def filter(self) -> EndFilter | None:
        """What to leave out. None: it has to get every end."""
        ...

    def begin(self, missed: Iterable[Ending] = (), *, more: bool = False) -> None:
        """Take the missed ends, once, before all others."""
        ...

    def hear(self, endings: Iterable[Ending], *, more: bool = False) -> None:
        """Take new ends, which passed the filter. `more`: further ends were skipped."""
        ...

    def end(self) -> None:
        """No further ends will come."""
        ...


class Listener:
    """A listener over HTTP, with its filter and its rate."""

    def __init__(self, feed: Feed, filter: EndFilter, *, rate: int = RATE) -> None:
        self.feed = feed
        self.filter = filter
        self._rate = rate
        self._left = float(rate)
        self._at = monotonic()
        self._had: set[Place] = set()
        self._held: list[Ending] | None = []
        """Ends that came while the missed ones are sent. None: those are sent."""

    def hear(self, endings: Iterable[Ending], *, more: bool = False) -> None:
        """Send these, as far as the rate allows, and the number of skipped ones."""
        if self._held is not None:
            self._held += endings
            return
        if self.feed.ended:
            return
        now = monotonic()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        # Most ends of a busy queue are skipped, so nothing is done for each of them.
        fresh = [ending for ending in endings if place(ending) not in self._had] if self._had else list(endings)
        sent = min(len(fresh), int(self._left))
        self._left -= sent
        for ending in fresh[:sent]:
            self.feed.put(_event_of(ending))
        if len(fresh) > sent or more:
            at = event_id(fresh[-1]) if fresh else ""
            self.feed.put(event("skipped", SkippedEvent(count=len(fresh) - sent, more=more), at))

    def end(self) -> None:
        self.feed.end()

    def begin(self, missed: Iterable[Ending] = (), *, more: bool = False) -> None:
        """Send the missed ends once, up to one page whatever the rate, and then those that came meanwhile."""
        held, self._held = self._held or [], None
        all_ = list(missed)
        wanted = _chosen(all_, self.filter)
        events = [_event_of(ending) for ending in wanted[:PAGE]]
        if more or len(wanted) > PAGE:
            skipped = SkippedEvent(count=max(0, len(wanted) - PAGE), more=more)
            events.append(event("skipped", skipped, event_id(all_[-1]) if all_ else ""))
        if events:
            # As one event, so that a listener that has reconnected is not treated as too slow.
            self.feed.put(b"".join(events))
        self._had.update(place(ending) for ending in all_)
        self.hear(held)


def _chosen(endings: list[Ending], filter: EndFilter) -> list[Ending]:
    return endings if filter.wants_all else [ending for ending in endings if filter.wants(ending)]


@lru_cache(maxsize=REMEMBERED)
def _event_of(ending: Ending) -> bytes:
    """The event of an end, made once. All listeners share the same bytes."""
    return event("ended", _shown(ending), event_id(ending))


def _shown(ending: Ending) -> EndedEvent:
    return EndedEvent(
        id=ending.id, state=ending.state, at=ending.at, queue=ending.queue, task=ending.task, tenant=ending.tenant
    )


class Tail:
    """The ends of all jobs of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: set[Hears] = set()
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._cursor = _EPOCH
        self._jumped = False
        """The last read skipped ends. The next one does not go back for them."""
        self._seen: dict[Place, None] = {}
        """The ends sent so far, in their order, as far back as a read begins again."""
        self._recent: deque[Ending] = deque(maxlen=REMEMBERED)
        """Ends for listeners that reconnect."""
        self._bell = asyncio.Event()

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def join(self, listener: Hears, after: Place | None) -> None:
        """Add a listener. It gets the ends after that position first, then new ones."""
        self._listeners.add(listener)
        try:
            async with self._starting:
                if self._task is None or self._task.done():
                    await self._start()
            if after is None:
                listener.begin()
            else:
                await self._catch_up(listener, after)
            if listener not in self._listeners:
                self.leave(listener)  # The listener left meanwhile.
        except BaseException:
            self.leave(listener)
            raise

    async def _start(self) -> None:
        """Begin now. Earlier ends are not reported, although reads begin a little earlier."""
        self._cursor, self._jumped = await self._store.now(), False
        self._seen.clear()
        self._recent.clear()
        await self._read()
        self._task = asyncio.create_task(self._run(), name="headrace-tail")

    def leave(self, listener: Hears) -> None:
        """Remove a listener. May be called twice. Reading stops with the last listener."""
        self._listeners.discard(listener)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    def wake(self) -> None:
        """A hint that a job has ended."""
        self._bell.set()

    def close(self) -> None:
        """End every stream. Listeners may connect again to another server."""
        for listener in list(self._listeners):
            listener.end()
            self.leave(listener)

    async def _catch_up(self, listener: Hears, after: Place) -> None:
        known = list(self._recent)
        places = [place(ending) for ending in known]
        if after in places:
            # In the order of sending, so that late ends are not missed.
            listener.begin(known[places.index(after) + 1 :])
            return
        page = await self._store.ended(after[0], PAGE)
        listener.begin([ending for ending in page if place(ending) > after], more=len(page) >= PAGE)

    # ── reading ─────────────────────────────────────────────────────────────
    async def _run(self) -> None:
        pause = EVERY
        while True:
            began = monotonic()
            try:
                await self._look()
            except HeadraceError as error:
                log.warning("following the ends of jobs failed, trying again: %s", error)
                pause = 1.0
            else:
                pause = max(EVERY, (monotonic() - began) * (1 - SHARE) / SHARE)
            if pause > EVERY:
                await asyncio.sleep(pause)
                continue
            # Reads keep their distance, however many hints come.
            await asyncio.sleep(EVERY / 5)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY * 4 / 5):
                    await self._bell.wait()
            self._bell.clear()

    async def _look(self) -> None:
        fresh, more = await self._read()
        if fresh or more:
            self._recent.extend(fresh)
            since = monotonic()
            chosen: dict[EndFilter, list[Ending]] = {}
            for listener in list(self._listeners):
                wanted = fresh
                if (filter := listener.filter) is not None:
                    if filter not in chosen:
                        chosen[filter] = _chosen(fresh, filter)
                    wanted = chosen[filter]
                listener.hear(wanted, more=more)
                if monotonic() - since > TURN:
                    # Other callers get a turn of the loop, however many listeners there are.
                    await asyncio.sleep(0)
                    since = monotonic()

    async def _read(self) -> tuple[list[Ending], bool]:
        """The ends since the last read. True: there were more, which are skipped."""
        since, fresh, more = self._begin(), list[Ending](), True
        # Listeners without a filter get fewer events than a page has. Others may look for what is rare.
        selective = any(listener.filter is None or not listener.filter.wants_all for listener in self._listeners)
        for _ in range(PAGES if selective else 1):
            page = await self._store.ended(since, PAGE)
            new = [ending for ending in page if place(ending) not in self._seen]
            self._seen.update(dict.fromkeys(place(ending) for ending in new))
            fresh += new
            if len(page) < PAGE:
                more = False
                break
            # All ends of the page have the same time, so the next page cannot be read. The rest is skipped.
            since = page[-1].at if page[-1].at > since else page[-1].at + timedelta(microseconds=1)
        if fresh:
            self._cursor = max(self._cursor, *(ending.at for ending in fresh))
        self._jumped = more
        if more:
            self._cursor = max(await self._store.now(), since)
        self._forget()
        return fresh, more

    def _begin(self) -> datetime:
        if self._jumped:
            return self._cursor
        begin = self._cursor - OVERLAP
        for at, _ in islice(reversed(self._seen), OVERLAP_JOBS, OVERLAP_JOBS + 1):
            begin = max(begin, at)
        return begin

    def _forget(self) -> None:
        horizon = self._cursor - 2 * OVERLAP
        old = [key for key in self._seen if key[0] < horizon]
        for key in old:
            del self._seen[key]
