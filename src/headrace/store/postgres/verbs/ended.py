"""ENDED: finished jobs in the order of their ends."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from headrace.model.records import Ending
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Int4, Time, Uuid, call
from headrace.store.postgres.rows import NEVER
from headrace.store.postgres.server import Server


class EndedArgs(NamedTuple):
    """See `sql/ended.sql`."""

    p_from: Time
    p_to: Time
    p_many: Int4
    p_limit: Int4
    a_batch: Uuid | None
    a_ord: Int4 | None


_ENDED: Final = call("ended_span", EndedArgs)
_SORTED: Final = 5000
"""Endings that one statement sorts."""
_PAGE: Final = 500
"""Endings that it answers."""
_MOMENT: Final = timedelta(microseconds=1)
_NO_JOB: Final = (None, None)
_MARK: Final = "select statement_timestamp(), pg_current_xact_id()::text::int8"
_OLDEST: Final = "select pg_snapshot_xmin(pg_current_snapshot())::text::int8"
_MARKS: Final = 100
"""Marks that are kept while a long transaction runs. With more, every second one is dropped."""


async def ended(server: Server, since: datetime, limit: int) -> list[Ending]:
    """Reads one span of time after another. A span with too many endings is read again in parts."""
    now = await server.clock_time()
    width = max(now - since, timedelta(seconds=1))
    begin, end, after = since, NEVER, _NO_JOB
    endings: list[Ending] = []
    while len(endings) < limit:
        most = min(_PAGE, limit - len(endings))
        args = EndedArgs(begin, end, _SORTED, most, a_batch=after[0], a_ord=after[1])
        page = await server.pool.rows(_ENDED, *args, write=False, timeout=60)
        if page and page[0]["batch"] is None:
            width = max(width / 32, _MOMENT)
            end = begin + width
            continue
        endings += [rows.ending(row) for row in page]
        if len(page) == most:
            begin, after = page[-1]["finished_at"], (page[-1]["batch"], page[-1]["ord"])
        elif end == NEVER:
            break
        else:
            # The next span may have fewer endings. After the present only a test's own clock has any.
            begin, after, width = end, _NO_JOB, width * 4
            end = NEVER if begin + width > now else begin + width
    return endings


class EndHorizon:
    """Learns before which time every end is visible, from the transactions that have ended between two calls.

    A call of `settle` takes the time of an end at its beginning, and its transaction gets its id a moment later, if it has none
    yet. So each call here marks a time and takes an id of its own. When all transactions with lower ids have ended, the ends
    before that time are visible, or were rolled back.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._marks: deque[tuple[datetime, int]] = deque()
        """Times, and the id of a transaction that began then, the earliest first."""
        self._until = datetime(1970, 1, 1, tzinfo=UTC)

    async def ended_until(self) -> datetime:
        # The time of the statement is earlier than its id.
        [[time, own]] = await self._server.pool.rows(_MARK, write=False)
        [[oldest]] = await self._server.pool.rows(_OLDEST, write=False)
        if self._marks and own < self._marks[-1][1]:
            self._marks.clear()  # This is another server, with ids of its own.
        if len(self._marks) >= _MARKS:
            self._marks = deque(list(self._marks)[::2])
        self._marks.append((self._server.injected or time, own))
        while self._marks and self._marks[0][1] < oldest:
            self._until = self._marks.popleft()[0]
        return self._until
