"""The tail: ends of all jobs as they come, read once for everybody who listens and only while somebody does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from time import monotonic
from typing import Final, Protocol
from uuid import UUID

import msgspec

from headrace.errors import HeadraceError
from headrace.model.job import JobId, JobState
from headrace.model.records import Ending
from headrace.server.events.feed import Feed, event
from headrace.store.contract import Store

log = logging.getLogger("headrace.server")

EVERY: Final = 0.25
"""Seconds between two looks, at least."""
SHARE: Final = 0.1
"""Of the time that looking may take."""
OVERLAP: Final = timedelta(seconds=3)
"""How far back a look begins: an end that is committed late has an earlier time than others seen already."""
OVERLAP_JOBS: Final = 500
"""And how many ends back at most, so that a busy queue is not read twice over."""
PAGE, PAGES = 1000, 4
"""Ends of one call, and calls of one look: beyond, the rest is passed over and listeners are told so."""
RATE: Final = 200
"""Events a second for one listener; beyond, it hears how many it did not get."""
REMEMBERED: Final = 5000
TURN: Final = 0.01
"""Seconds for which listeners are told in one go."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ID = re.compile(r"(\d{1,17})-([0-9a-f]{32})", re.ASCII)


class EndedEvent(msgspec.Struct, kw_only=True):
    """`ended`: a job came to its end."""

    id: UUID
    state: JobState
    at: datetime
    queue: str
    task: str
    tenant: str


class SkippedEvent(msgspec.Struct, kw_only=True):
    """`skipped`: there were more than can be told."""

    count: int
    more: bool = False
    """And others that nobody has counted."""


Place = tuple[datetime, JobId]
"""Of an end, in the order of the tail."""


def place(ending: Ending) -> Place:
    return ending.at, ending.id


def event_id(ending: Ending) -> str:
    """The id of its event: when, and which job."""
    return f"{(ending.at - _EPOCH) // timedelta(microseconds=1)}-{ending.id.hex}"


def read_id(given: str | None) -> Place | None:
    """From a Last-Event-ID; one that cannot be read is none."""
    found = _ID.fullmatch(given or "")
    return None if found is None else (_EPOCH + timedelta(microseconds=int(found[1])), JobId(UUID(found[2])))


class Hears(Protocol):
    """One who is told of ends."""

    def begin(self, missed: Iterable[Ending] = (), *, more: bool = False) -> None:
        """What was missed, once, before anything else."""
        ...

    def hear(self, endings: Iterable[Ending], *, more: bool = False) -> None:
        """What has just ended; `more`: and something else that was passed over."""
        ...

    def end(self) -> None:
        """There will be nothing more."""
        ...


class Listener:
    """One who listens over HTTP: what concerns them, and how much they get."""

    def __init__(self, feed: Feed, wants: Callable[[Ending], bool], *, rate: int = RATE) -> None:
        self.feed = feed
        self._wants = wants
        self._rate = rate
        self._left = float(rate)
        self._at = monotonic()
        self._had: set[Place] = set()
        self._held: list[Ending] | None = []
        """What came while it was being told what came before; None: that is over."""

    def hear(self, endings: Iterable[Ending], *, more: bool = False) -> None:
        """Tell these, as far as the rate allows, and how many not."""
        if self._held is not None:
            self._held += endings
            return
        if self.feed.ended:
            return
        now = monotonic()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        skipped, had, wants = 0, self._had, self._wants
        last: Ending | None = None
        for ending in endings:
            if (had and place(ending) in had) or not wants(ending):
                continue
            last = ending
            if self._left < 1:
                skipped += 1
                continue
            self._left -= 1
            self.feed.put(_told(ending))
        if skipped or more:
            at = "" if last is None else event_id(last)
            self.feed.put(event("skipped", SkippedEvent(count=skipped, more=more), at))

    def end(self) -> None:
        self.feed.end()

    def begin(self, missed: Iterable[Ending] = (), *, more: bool = False) -> None:
        """Tell what was missed, once, up to a page of it whatever the rate; and then what came meanwhile."""
        held, self._held = self._held or [], None
        all_ = list(missed)
        wanted = [each for each in all_ if self._wants(each)]
        events = [_told(each) for each in wanted[:PAGE]]
        if more or len(wanted) > PAGE:
            skipped = SkippedEvent(count=max(0, len(wanted) - PAGE), more=more)
            events.append(event("skipped", skipped, event_id(all_[-1]) if all_ else ""))
        if events:
            # As one: who has come back for them is not too slow to take them.
            self.feed.put(b"".join(events))
        self._had.update(place(each) for each in all_)
        self.hear(held)


@lru_cache(maxsize=REMEMBERED)
def _told(ending: Ending) -> bytes:
    """Its event, made once: all who listen are sent the same bytes, and those who are slow wait with the same bytes."""
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
        """The last look passed something over: the next one does not go back for it."""
        self._seen: dict[Place, None] = {}
        """What was told, in the order in which it was, as far back as a look reads again."""
        self._recent: deque[Ending] = deque(maxlen=REMEMBERED)
        """For those who come back."""
        self._bell = asyncio.Event()

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def join(self, listener: Hears, after: Place | None) -> None:
        """Tell it what comes from now on and, first, what came after that place."""
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
                self.leave(listener)  # it went meanwhile
        except BaseException:
            self.leave(listener)
            raise

    async def _start(self) -> None:
        """From now on: what ended before is not news, though looks begin a little earlier."""
        self._cursor, self._jumped = await self._store.now(), False
        self._seen.clear()
        self._recent.clear()
        await self._read()
        self._task = asyncio.create_task(self._run(), name="headrace-tail")

    def leave(self, listener: Hears) -> None:
        """It has gone; may be called twice. With the last one the looking ends."""
        self._listeners.discard(listener)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    def wake(self) -> None:
        """Something ended, it is said."""
        self._bell.set()

    def close(self) -> None:
        """Every stream ends; who wants more comes again, to whoever is there then."""
        for listener in list(self._listeners):
            listener.end()
            self.leave(listener)

    async def _catch_up(self, listener: Hears, after: Place) -> None:
        known = list(self._recent)
        places = [place(each) for each in known]
        if after in places:
            # In the order in which they were told, so that nothing that came late is missed.
            listener.begin(known[places.index(after) + 1 :])
            return
        page = await self._store.ended(after[0], PAGE)
        listener.begin([each for each in page if place(each) > after], more=len(page) >= PAGE)

    # ── looking ─────────────────────────────────────────────────────────────
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
            # However many ends pass through this server, looks stay apart.
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
            for listener in list(self._listeners):
                listener.hear(fresh, more=more)
                if monotonic() - since > TURN:
                    # However many listen, other callers are answered in between.
                    await asyncio.sleep(0)
                    since = monotonic()

    async def _read(self) -> tuple[list[Ending], bool]:
        """What has ended since; True: there was more, and it is passed over."""
        since, fresh, more = self._begin(), list[Ending](), True
        for _ in range(PAGES):
            page = await self._store.ended(since, PAGE)
            new = [each for each in page if place(each) not in self._seen]
            self._seen.update(dict.fromkeys(place(each) for each in new))
            fresh += new
            if len(page) < PAGE:
                more = False
                break
            # A page of one and the same moment cannot be turned: what else there is of it is passed over.
            since = page[-1].at if page[-1].at > since else page[-1].at + timedelta(microseconds=1)
        if fresh:
            self._cursor = max(self._cursor, *(each.at for each in fresh))
        self._jumped = more
        if more:
            self._cursor = await self._store.now()
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
        old = [each for each in self._seen if each[0] < horizon]
        for each in old:
            del self._seen[each]
