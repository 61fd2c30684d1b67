"""Whose turn it is to write: a file lock in front of SQLite's own, handed over without polling.

SQLite's busy handler sleeps and looks again, so under load a process that writes all the time starves the others. Waiting in
`flock` wakes the next one at once. It also keeps two processes from checkpointing at once. Only a courtesy: who does not take
part (a user's transaction) is held off by SQLite itself.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class WriteLock:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "turn"
        self._name = os.fspath(self._path)
        self._fd, self._inode = self._open()

    def take(self) -> None:
        """Wait for it, as long as it takes."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        while not self._current():
            # Whoever was the last to leave has tidied up.
            os.close(self._fd)
            self._fd, self._inode = self._open()
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def leave(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """The last one to leave removes the folder."""
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._current() and [*self._path.parent.iterdir()] == [self._path]:
                self._path.unlink()
                self._path.parent.rmdir()
        os.close(self._fd)

    def _open(self) -> tuple[int, int]:
        """A descriptor of the file, and its inode, which stays the same for as long as the descriptor is open."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return fd, os.fstat(fd).st_ino

    def _current(self) -> bool:
        """The file we have locked is still the one that others will find."""
        try:
            return os.stat(self._name).st_ino == self._inode  # noqa: PTH116 - pathlib takes longer, and each commit asks
        except FileNotFoundError:
            return False
