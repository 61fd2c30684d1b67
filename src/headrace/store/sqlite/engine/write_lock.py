"""The write lock: a file lock in front of SQLite's own, so that processes write in turns without polling.

SQLite's busy handler sleeps and looks again, so under load a process that writes all the time starves the others. The
kernel wakes the next process that waits in `flock` at once. The lock also keeps two processes from checkpointing at the
same time. Correctness does not depend on it: SQLite's own lock stops a user's transaction, which does not take this one.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

_PAUSE = 0.0001
"""Seconds between two tries of `take_soon`."""


class WriteLock:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "turn"
        self._name = os.fspath(self._path)
        self._fd = self._open()

    def take(self) -> None:
        """Wait for the lock, without a limit."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        while not self._current():
            # The last process that closed its store has removed the file.
            os.close(self._fd)
            self._fd = self._open()
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def take_soon(self, seconds: float) -> bool:
        """The same, but give up after this time: False. Others that wait in `take` come first."""
        until = 0.0
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                until = until or monotonic() + seconds
                if monotonic() >= until:
                    return False
                sleep(_PAUSE)
                continue
            if self._current():
                return True
            os.close(self._fd)
            self._fd = self._open()

    def leave(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the file. The last process that does so removes the folder."""
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._current() and [*self._path.parent.iterdir()] == [self._path]:
                self._path.unlink()
                self._path.parent.rmdir()
        os.close(self._fd)

    def _open(self) -> int:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _current(self) -> bool:
        """Whether the locked file is the one that other processes will open: it has its name still."""
        return os.fstat(self._fd).st_nlink > 0
