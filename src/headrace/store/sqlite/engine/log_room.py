"""Room in the write-ahead log: its file is longer than what SQLite has written to it, so that a commit does not lengthen it.

A commit syncs the log. If the log has become longer, the file system writes the file's new size in the same sync, and the
commit takes about twice as long. SQLite begins the log again at its start after a checkpoint, so each commit pays for this
until the log has once been as long as it gets, and again after the last process has closed the file. The room is made of
zeros. SQLite reads the log up to the first frame that does not continue it, as it does before the old frames of a log that
has begun again, and a frame of zeros never does: pages number from 1.
"""

from __future__ import annotations

import logging
import os

from headrace.store.sqlite.engine.files import Files

_log = logging.getLogger("headrace.sqlite")

_LEAST = 1 << 20
"""Bytes of a log that has room."""
_MOST = 16 << 20
"""Bytes above which a log gets no more room: about as many pages as make a commit move the log into the file."""
_TAIL = 4096


class LogRoom:
    """Lengthens the log of one file. Used by the threads that write, each with the lock of the connection."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._size = 0
        """Bytes at the last look."""
        self.is_short = False
        """Whether commits lengthen the log. The next transaction extends it."""

    def look(self) -> None:
        size = self._files.log_size()
        self.is_short = self._size < size < _MOST
        self._size = size

    def extend(self) -> None:
        """Double the log. The caller has SQLite's write lock, so no other connection appends to the log meanwhile."""
        self.is_short = False
        try:
            with self._files.open_log() as fd:
                size = os.fstat(fd).st_size
                if any(os.pread(fd, _TAIL, max(0, size - _TAIL))):  # otherwise another process has made room
                    _append_zeros(fd, size, min(max(_LEAST, 2 * size), _MOST))
                self._size = os.fstat(fd).st_size
        except OSError as error:
            _log.debug("no room in the log: %s", error)


def _append_zeros(fd: int, size: int, wanted: int) -> None:
    end = size
    try:
        while end < wanted:
            end += os.pwrite(fd, bytes(min(wanted - end, _LEAST)), end)
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, size)  # the space is needed by jobs
        raise
