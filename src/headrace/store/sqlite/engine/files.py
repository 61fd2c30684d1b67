"""The file that a store has open, compared with what its path names now.

SQLite goes on writing to a file that was deleted or replaced: commits succeed, and every job in them is lost. The store
compares the file and its two companions, the write-ahead log and its index, after each commit and before it answers. A
folder's time of change tells in one system call whether any name in it was removed or given to another file; the three
names are looked at only if it has changed, and four times a second for what a folder does not tell: the file's size.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from headrace.errors import StoreDamaged
from headrace.store.sqlite.engine.address import Address

_log = logging.getLogger("headrace.sqlite")

Seen = tuple[int, int] | None
"""Device and inode; None: there is no such file."""

LONG_LOG = 256 << 20
"""Bytes of the write-ahead log above which the store warns."""
_REST = 0.25
"""Seconds between two looks at all names."""
_TICK = 0.05
"""Seconds. Two changes of a folder within less may leave it with the same time."""
_WAY_OUT = "Stop every process that uses it, restore the file, and start them again"


class Files:
    """The files that one store has open. A store that lost one of them stays so until it is opened again."""

    def __init__(self, address: Address) -> None:
        path = os.fspath(address.path)
        self._path = path
        self._folder = os.fspath(address.path.parent)
        self._companions = (f"{path}-wal", f"{path}-shm")
        self._file: Seen = None
        self._known: list[Seen] = [None, None]
        self._size = 0
        self._long_log = LONG_LOG
        self._folder_changed = -1
        """The folder's time of change, in nanoseconds, and when it was first seen so."""
        self._first_seen = self._looked = 0.0
        self.lost: StoreDamaged | None = None

    def before_connect(self) -> None:
        """Note the file that the path names. The connection must open this one."""
        self._file, self._size = _look(self._path)

    def after_connect(self) -> None:
        """Note the companions, which the connection has made or found."""
        self._known = [_look(path)[0] for path in self._companions]
        self.check()

    def changed(self) -> bool:
        """Whether a call of `compare` has something to do. This takes microseconds and may run in the event loop."""
        seen, size = _look(self._path)
        return (
            self.lost is not None
            or seen != self._file
            or size < self._size
            or any(
                known not in {None, _look(path)[0]} for path, known in zip(self._companions, self._known, strict=True)
            )
        )

    def check(self) -> None:
        """Raise StoreDamaged if the paths no longer name the files that the connection writes."""
        if self.lost is not None:
            raise self.lost
        now = monotonic()
        try:
            changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - as below
        except OSError:
            changed = 0
        if changed != self._folder_changed:
            self._folder_changed, self._first_seen = changed, now
        elif self._looked >= self._first_seen + _TICK and now < self._looked + _REST:
            return
        self.compare()
        self._looked = now

    def compare(self) -> None:
        """The same by a look at every name."""
        seen, size = _look(self._path)
        if seen != self._file:
            self._lose(self._path, gone=seen is None)
        if size < self._size:
            self._verify()
        self._size = size
        for nth, path in enumerate(self._companions):
            seen, size = _look(path)
            if nth == 0 and size > self._long_log:
                self._long_log = 2 * size
                _log.warning(
                    "%s has grown to %d MiB: a transaction that stays open keeps it from being reset; end it",
                    path,
                    size >> 20,
                )
            if seen != self._known[nth]:
                if self._known[nth] is not None:
                    self._lose(path, gone=seen is None)
                self._known[nth] = seen

    def log_size(self) -> int:
        """Bytes of the write-ahead log."""
        return _look(self._companions[0])[1]

    @contextmanager
    def open_log(self) -> Generator[int]:
        """A descriptor of the write-ahead log. Raises OSError if it is another file than the connection writes.

        SQLite has no locks on this file, which the close of a descriptor would drop.
        """
        fd = os.open(self._companions[0], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != self._known[0]:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._companions[0])
            yield fd
        finally:
            os.close(fd)

    def lose(self, error: StoreDamaged) -> None:
        """SQLite itself has found the damage."""
        self.lost = self.lost or error

    def _lose(self, path: str, *, gone: bool) -> None:
        what = "was deleted or moved" if gone else "was replaced by another file"
        self.lost = StoreDamaged(f"{path} {what} while headrace had it open: nothing more is stored. {_WAY_OUT}")
        raise self.lost

    def _verify(self) -> None:
        """A file that became shorter was vacuumed or truncated. Only a new connection, without cached pages, can tell."""
        conn = sqlite3.connect(self._path, isolation_level=None)
        try:
            (answer,) = conn.execute("pragma quick_check(1)").fetchone()
            if not conn.execute("pragma page_count").fetchone()[0]:
                answer = "it is empty"  # which is a sound database to SQLite
        except sqlite3.DatabaseError as error:
            answer = str(error)
        finally:
            conn.close()
        if answer != "ok":
            self.lost = StoreDamaged(f"{self._path} was truncated ({answer}): nothing more is stored. {_WAY_OUT}")
            raise self.lost


def _look(path: str) -> tuple[Seen, int]:
    """Which file a path names, and its size."""
    try:
        status = os.stat(path)  # noqa: PTH116 - pathlib takes twice as long, and this happens at every commit
    except (FileNotFoundError, NotADirectoryError):
        return None, 0
    return (status.st_dev, status.st_ino), status.st_size
