"""The time of a file: one for all processes that share it, also where one of them has a wrong clock.

All processes of a machine see the same time since its start. The file says how far its own time is ahead of that, so no
process's wall clock decides when another one's lease expires. Wall clocks only set the difference, and only if they agree:

* A process whose clock is less than a second ahead moves the file's time forward by that.
* A process whose clock is further away notes its doubt. A process whose clock agrees with the file removes the doubt. If it
  stands for half a minute, the machine's clock was set: the file's time follows, and leases keep the time they have left.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.model.clock import Clock
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.rows import micros

_SQL = load("clock")
_SECOND = 1_000_000
_CLOSE = _SECOND
"""Clocks that differ by no more agree."""
_NOISE = _SECOND // 20
"""Differences that are not worth a write."""
_CERTAIN = 30 * _SECOND
"""A doubt that stands for so long is shared by all processes, because idle workers look several times a second."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/timens_offsets")


class Kept(NamedTuple):
    """The row of the file's clock."""

    boot: str
    ahead: int
    kept: int
    doubt: int | None
    doubted_at: int | None


class Timekeeper:
    """The file's time, as one store reads and corrects it."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        wall: Callable[[], int] = lambda: time.time_ns() // 1000,
        uptime: Callable[[], int] | None = None,
        boot: str | None = None,
    ) -> None:
        """`clock`: a test's own, which then is the time. `wall`, `uptime`: in microseconds."""
        self._clock = clock
        self._wall = wall
        self._uptime = uptime or _uptime_of_machine()
        self._boot = _boot_of_machine() if boot is None else boot
        self._ahead: int | None = None
        self.objects = False
        """A doubt stands in the file that this process does not share: its next write removes it."""

    def now(self) -> int:
        """The time by what was last read from the file."""
        if self._clock is not None:
            return micros(self._clock.now())
        return self._wall() if self._ahead is None else self._uptime() + self._ahead

    def read(self, cur: sqlite3.Cursor) -> int:
        """The file's time, for a transaction that may not write."""
        if self._clock is not None:
            return micros(self._clock.now())
        row = _row(cur)
        uptime, wall = self._uptime(), self._wall()
        if row is None or not self._is_current(row, uptime):
            return wall
        self._ahead = row.ahead
        self.objects = row.doubt is not None and abs(wall - uptime - row.ahead) <= _CLOSE
        return uptime + row.ahead

    def keep(self, cur: sqlite3.Cursor) -> int:
        """The file's time, for a transaction that writes: corrected first, if need be."""
        if self._clock is not None:
            return micros(self._clock.now())
        row = _row(cur)
        uptime = self._uptime()
        mine = self._wall() - uptime
        if row is None:
            return self._write(cur, uptime, mine)
        if not self._is_current(row, uptime):
            # The machine was started again. Its time goes on from where the file's was, at least.
            return self._write(cur, uptime, max(mine, row.kept - uptime))
        self._ahead = row.ahead
        self.objects = False
        apart = mine - row.ahead
        if _NOISE < apart <= _CLOSE:
            return self._write(cur, uptime, mine)
        if abs(apart) <= _CLOSE:
            return uptime + row.ahead if row.doubt is None else self._write(cur, uptime, row.ahead)
        if row.doubt is None or row.doubted_at is None or abs(row.doubt - mine) > _CLOSE:
            return self._write(cur, uptime, row.ahead, mine)
        if uptime - row.doubted_at < _CERTAIN:
            return uptime + row.ahead
        cur.execute(_SQL["move_leases"], (apart,))
        return self._write(cur, uptime, mine)

    def _write(self, cur: sqlite3.Cursor, uptime: int, ahead: int, doubt: int | None = None) -> int:
        now = uptime + ahead
        try:
            cur.execute(_SQL["keep"], (self._boot, ahead, now, doubt, None if doubt is None else uptime))
        except sqlite3.OperationalError:
            return now  # there is no such table before the schema's first migration
        self._ahead = ahead
        return now

    def _is_current(self, row: Kept, uptime: int) -> bool:
        """Whether the row is of this start of the machine. Where starts have no names, time that went back tells."""
        return row.boot == self._boot and uptime + row.ahead >= row.kept - _CLOSE


def _row(cur: sqlite3.Cursor) -> Kept | None:
    try:
        row = cur.execute(_SQL["read"]).fetchone()
    except sqlite3.DatabaseError:
        return None  # as above; the verb itself meets any other error
    return None if row is None else Kept(*row)


def _boot_of_machine() -> str:
    try:
        return _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _uptime_of_machine() -> Callable[[], int]:
    """Microseconds since the machine's start, the same in every container on it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    shift = _namespace_shift() if hasattr(time, "CLOCK_BOOTTIME") else 0
    return lambda: time.clock_gettime_ns(clock) // 1000 - shift


def _namespace_shift() -> int:
    """What a time namespace adds to the time since the machine's start."""
    try:
        lines = _NAMESPACE.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        match line.split():
            case ["boottime" | "7", seconds, nanoseconds]:
                return int(seconds) * _SECOND + int(nanoseconds) // 1000
            case _:
                pass
    return 0
