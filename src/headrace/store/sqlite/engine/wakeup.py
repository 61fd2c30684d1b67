"""Wake-ups between processes: one datagram socket per store that waits, in a private folder named after the file.

A wake-up is only a hint: a worker that misses one finds its jobs when it polls.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

_log = logging.getLogger("headrace.sqlite")
_numbers = itertools.count()

_LONGEST_PATH = 100
"""Bytes; the system's limit for socket names is 104 or 108."""
_LAST_RESORT = "/tmp"  # noqa: S108 - a folder there is used only if no other user can open it
_LONGEST_HINT = 1024
_INTERVAL = 0.002
ALL = "*"
"""Instead of queue names: any queue may have jobs."""


def private_folder(path: Path) -> Path | None:
    """The folder for processes that share a file. None: this user has no private one."""
    name = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    for base in dict.fromkeys((tempfile.gettempdir(), _LAST_RESORT)):
        mine = Path(base) / f"headrace-{os.geteuid()}"
        folder = mine / name
        if len(os.fsencode(folder)) + 24 <= _LONGEST_PATH and _own(mine) and _own(folder):
            return folder
    _log.warning("no private folder for wake-ups beside %s: workers will poll", tempfile.gettempdir())
    return None


def _own(folder: Path) -> bool:
    """Make a folder that only this user can open. False: another user has one of that name."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


class Bell:
    """Sends hints to every other store of the same file, and receives theirs."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._folder_name = "" if folder is None else os.fspath(folder)
        self._name = f"{os.getpid()}-{next(_numbers)}.s"
        self._lock = threading.Lock()
        self._owed: set[str] = set()
        self._last = 0.0
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._ear: socket.socket | None = None

    @property
    def owed(self) -> bool:
        return bool(self._owed)

    def listen(self) -> socket.socket | None:
        """A socket on which hints arrive."""
        if self._folder is None:
            return None
        if self._ear is None:
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            ear.setblocking(False)
            path = self._folder / self._name
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)  # the last store that closes removes it
                path.unlink(missing_ok=True)  # left by an earlier process with the same id
                ear.bind(os.fspath(path))
            except OSError as error:
                _log.warning("no wake-ups by datagram (%s): polling instead", error.strerror)
                ear.close()
                return None
            self._ear = ear
        return self._ear

    def hear(self) -> set[str]:
        """Every queue that a hint has named since the last call."""
        queues: set[str] = set()
        while self._ear is not None:
            try:
                hint = self._ear.recv(_LONGEST_HINT)
            except OSError:
                break
            queues.update(hint.decode("utf-8", "replace").split("\n"))
        return queues

    def ring(self, queues: Iterable[str]) -> None:
        """Send a hint: at once, or when the writer pauses."""
        with self._lock:
            self._owed.update(queues)
            due = time.monotonic() - self._last >= _INTERVAL
        if due:
            self.pay()

    def pay(self) -> None:
        """Send the hints that wait."""
        with self._lock:
            queues, self._owed = self._owed, set()
            self._last = time.monotonic()
        if not queues or self._folder is None:
            return
        hint = "\n".join(sorted(queues)).encode()
        self._send(hint if len(hint) <= _LONGEST_HINT else ALL.encode())

    def close(self) -> None:
        self.pay()
        if self._ear is not None and self._folder is not None:
            self._ear.close()
            self._ear = None
            (self._folder / self._name).unlink(missing_ok=True)
        self._sender.close()

    def _send(self, hint: bytes) -> None:
        assert self._folder is not None
        try:
            names = os.listdir(self._folder_name)  # noqa: PTH208 - ten times faster, and done after every commit
        except OSError:
            return
        for name in names:
            if not name.endswith(".s") or name == self._name:
                continue
            path = self._folder / name
            try:
                self._sender.sendto(hint, os.fspath(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)  # its process is gone
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.ENOBUFS, errno.ENOENT}:
                    _log.debug("no hint to %s: %s", name, error)
