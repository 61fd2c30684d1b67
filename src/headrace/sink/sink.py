"""SINK: reads the ends of jobs from the store in their order and writes them to ClickHouse, each at least once.

An end may become visible late: its time is taken before its transaction commits. So the sink looks twice. The first look
reads everything new, so that rows arrive within seconds. The second look reads the same span again once the store shows every
end of that span, and adds the ends that the first look missed. Only the second look moves the place that is kept in the store.
A sink that is killed begins again at that place. Rows that arrive twice are equal, and the table keeps one of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, cast
from uuid import uuid4

from msgspec.structs import replace

from headrace.errors import HeadraceError, Unavailable
from headrace.model.job import Job, JobId
from headrace.model.records import Ending
from headrace.sink.address import parse
from headrace.sink.clickhouse import ClickHouse
from headrace.sink.state import BEGINNING, Place, SinkState, read_states, write_state
from headrace.sink.table import row
from headrace.store.contract import Store
from headrace.store.history import LateEnding

EVERY: Final = 4.0
"""Seconds between two passes, so that an end is in the table within five seconds."""
STANDBY: Final = 10.0
"""Seconds between two looks whether the process that writes is still there."""
HOLD: Final = timedelta(seconds=30)
"""How long a process that writes keeps its role without a sign of life. It is longer than one call may take."""
OVERLAP: Final = timedelta(seconds=5)
"""How long after its time an end may become visible. A store with longer transactions has `ended_until`."""
PAGE: Final = 4000
"""Ends of one call. A page begins with the moment at which the last one ended, and a thousand jobs may have ended at once."""
BATCH: Final = 4000
"""Rows of one insert, at least, if so many wait. It may have up to a page more of each look."""
CHUNK: Final = 100
"""Jobs of one call of `get`, if they are small."""
CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Bytes of arguments, results and failures that one call of `get` should bring."""
REMEMBERED: Final = 50_000
"""Rows that the second look recognises. Rows beyond that are written again."""
_CLOCK_NOISE: Final = 1.0
"""Seconds by which the store's clock may be behind without having been set."""


def place_of(ending: Ending) -> Place:
    return ending.at, ending.id


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows for one insert, and how far the looks got when the table has them."""

    rows: bytes
    places: list[Place]
    read: Place
    sure: Place
    is_last: bool = field(kw_only=True)
    """The store has shown no further ends to either look."""
    token: str = field(default_factory=lambda: uuid4().hex)
    """ClickHouse ignores a second insert with the same token, but takes equal rows of another batch."""


class HistorySink:
    """One process's part in writing the ends of one store to one table. One of the processes writes, the others stand by."""

    def __init__(
        self,
        store: Store,
        target: ClickHouse,
        name: str,
        *,
        holder: str,
        share: float = 1.0,
        force: bool = False,
        afresh: bool = False,
    ) -> None:
        """What a process does with one table.

        `holder`: a name that no other process has. `share`: the part of the time for which the sink works while many ends wait.
        `force`: take over from another process at the start. `afresh`: begin with the first end that the store has.
        """
        self._store = store
        self._target = target
        self._name = name
        self._holder = holder
        self._share = share
        self._force = force
        self._afresh = afresh
        self._state: SinkState | None = None
        """What this process has written to the store. None: it stands by."""
        self._version: int | None = None
        self._kept = 0.0
        """When that was, on the monotonic clock."""
        self._read = self._sure = BEGINNING
        """How far the first and the second look got."""
        self._sent: set[Place] = set()
        """The ends between these two places that the table has."""
        self._order: deque[Place] = deque()
        """The same in the order in which they were sent."""
        self._batch: _Batch | None = None
        """Rows that the table may not have. The same batch is sent again, because ClickHouse recognises it."""
        self._chunk = CHUNK // 5
        self._clock: tuple[datetime, float] | None = None
        """The store's time and the monotonic time of the last pass."""
        self.rows = 0
        """The rows that this process has written."""
        self.standby = False
        self.caught_up = False
        """The last pass has reached the end."""

    async def tidy(self) -> float:
        """One pass. Returns the seconds until the next one. Raises what the store or ClickHouse raises."""
        began = monotonic()
        now = await self._store.now()
        self.standby = not await self._lead(now)
        if self.standby:
            return STANDBY
        self._follow_clock(now)
        try:
            rows = await self._pass(now)
        except HeadraceError as error:
            await self._keep(now, error=str(error))
            raise
        self.rows += rows
        await self._keep(now, rows=rows)
        if self.caught_up:
            return EVERY
        return (monotonic() - began) * (1 - self._share) / self._share

    async def drain(self) -> int:
        """Pass until the table has every end that the store shows. Returns the rows that were written."""
        while not self.caught_up:
            await self.tidy()
            if self.standby:
                raise Unavailable(f"another process writes to {self._name} now")
        return self.rows

    # ── the role ────────────────────────────────────────────────────────────
    async def _lead(self, now: datetime) -> bool:
        """Whether this process writes. It takes the role if no other process has it."""
        version, state = (await read_states(self._store)).get(self._name, (None, None))
        if self._state is not None and version == self._version:
            return True
        self._state = None
        if state is not None and state.holder != self._holder and state.until > now and not self._force:
            return False
        state = state or SinkState(holder=self._holder, until=now)
        # A place in the future was kept before the clock was set back.
        at, id = BEGINNING if self._afresh else min(state.place, (now - OVERLAP, BEGINNING[1]))
        fresh = replace(state, holder=self._holder, until=now + HOLD, at=at, id=id)
        self._version = await write_state(self._store, self._name, fresh, version)
        if self._version is None:
            return False
        self._force = self._afresh = False
        self._state, self._kept = fresh, monotonic()
        self._read = self._sure = fresh.place
        self._batch = None
        self._sent.clear()
        self._order.clear()
        return True

    async def _keep(self, now: datetime, *, rows: int = 0, error: str = "") -> None:
        """Write to the store how far this process got, if that is news."""
        state = self._state
        if state is None:
            return  # Another process has taken over in the middle of the pass.
        reached = state.reached if error else now if self.caught_up else self._read[0]
        at, id = self._sure
        fresh = replace(state, until=now + HOLD, at=at, id=id, rows=state.rows + rows, reached=reached, error=error)
        is_news = (fresh.place, fresh.rows, bool(fresh.error)) != (state.place, state.rows, bool(state.error))
        if not is_news and state.until - now > HOLD / 2:
            return
        self._version = await write_state(self._store, self._name, fresh, self._version)
        self._state = None if self._version is None else fresh
        self._kept = monotonic()

    async def _stay(self) -> None:
        """Keep the role in a pass that takes long."""
        if self._state is not None and monotonic() - self._kept > HOLD.total_seconds() / 3:
            fresh = replace(self._state, until=await self._store.now() + HOLD)
            self._version = await write_state(self._store, self._name, fresh, self._version)
            self._state = None if self._version is None else fresh
            self._kept = monotonic()

    def _follow_clock(self, now: datetime) -> None:
        """Go back if the store's clock was set back, because new ends have earlier times than those that were read."""
        if self._clock is not None:
            last, at = self._clock
            back = (last - now).total_seconds() + monotonic() - at
            if back > _CLOCK_NOISE:
                floor = last - timedelta(seconds=back) - OVERLAP, BEGINNING[1]
                self._read, self._sure, self._batch = min(self._read, floor), min(self._sure, floor), None
        self._clock = now, monotonic()

    # ── reading and writing ─────────────────────────────────────────────────
    async def _pass(self, now: datetime) -> int:
        """Write up to about BATCH rows. Returns how many."""
        batch = self._batch
        if batch is None:
            batch = self._batch = await self._next(await self._complete_until(now))
        if batch.places:
            await self._stay()
            await self._target.insert(batch.rows, batch.token)
        self._batch = None
        self._read, self._sure, self.caught_up = batch.read, batch.sure, batch.is_last
        self._sent.update(batch.places)
        self._order.extend(batch.places)
        while self._order and (len(self._order) > REMEMBERED or self._order[0] <= self._sure):
            self._sent.discard(self._order.popleft())
        return len(batch.places)

    async def _next(self, until: datetime) -> _Batch:
        """What both looks find next. Every end before `until` was visible before this call."""
        missed, sure = await self._look_again(until)
        # New ends do not wait for a second look that has much to add.
        fresh, read, is_last = await self._look(max(BATCH // 2, BATCH - len(missed)))
        if sure == self._read:
            # The first look has read what is complete already, so a second one has nothing to add.
            sure = max((place_of(ending) for ending in fresh if ending.at < until), default=sure)
        endings = missed + fresh
        rows = b"\n".join(await self._rows(endings))
        is_last = is_last and len(missed) < BATCH
        return _Batch(rows, [place_of(ending) for ending in endings], read, sure, is_last=is_last)

    async def _complete_until(self, now: datetime) -> datetime:
        """Every end before this time is visible."""
        if hasattr(self._store, "ended_until"):
            now = min(now, await cast("LateEnding", self._store).ended_until())
        return now - OVERLAP

    async def _look_again(self, until: datetime) -> tuple[list[Ending], Place]:
        """The ends that the first look has missed, and how far this one got."""
        missed: list[Ending] = []
        sure, read = self._sure, self._read
        while sure < read and sure[0] < until and len(missed) < BATCH:
            page, more = await self._page(sure)
            complete = [ending for ending in page if ending.at < until and place_of(ending) <= read]
            missed += [ending for ending in complete if place_of(ending) not in self._sent]
            if complete:
                sure = place_of(complete[-1])
            if len(complete) < len(page) or not more:
                return missed, read if read[0] < until else sure
        return missed, sure

    async def _look(self, most: int) -> tuple[list[Ending], Place, bool]:
        """The next ends, how far they go, and whether these are all."""
        fresh: list[Ending] = []
        read = self._read
        while len(fresh) < most:
            page, more = await self._page(read)
            fresh += [ending for ending in page if place_of(ending) not in self._sent]
            if page:
                read = place_of(page[-1])
            if not more:
                return fresh, read, True
        return fresh, read, False

    async def _page(self, after: Place) -> tuple[list[Ending], bool]:
        """The next ends after a place, and whether there are more."""
        size = PAGE
        while True:
            await self._stay()
            page = await self._store.ended(after[0], size)
            fresh = [ending for ending in page if place_of(ending) > after]
            if len(page) < size or 2 * len(fresh) >= size:
                return fresh, len(page) >= size
            # `ended` begins with a moment, and most of the page was read before: many jobs have ended at that moment.
            size *= 2

    async def _rows(self, endings: list[Ending]) -> list[bytes]:
        """The rows of these ends. Large jobs are read a few at a time."""
        rows: list[bytes] = []
        while len(rows) < len(endings):
            await self._stay()
            some = endings[len(rows) : len(rows) + self._chunk]
            jobs = await self._store.get([JobId(ending.id) for ending in some])
            rows += map(row, some, jobs)
            size = sum(map(_size, jobs))
            grown = 2 * self._chunk if 2 * size <= CHUNK_BYTES else self._chunk * CHUNK_BYTES // max(size, 1)
            self._chunk = min(CHUNK, max(1, grown))
        return rows


def sink_of(
    store: Store, url: str, *, holder: str, share: float = 1.0, force: bool = False, afresh: bool = False
) -> HistorySink:
    """The sink of the setting `history_url`."""
    address = parse(url)
    return HistorySink(
        store, ClickHouse(address), address.shown, holder=holder, share=share, force=force, afresh=afresh
    )


def _size(job: Job | None) -> int:
    if job is None:
        return 0
    return len(job.payload) + len(job.result or b"") + sum(len(failure.traceback) for failure in job.history)
