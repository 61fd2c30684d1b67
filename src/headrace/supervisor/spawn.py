"""Starts interpreters as children of the supervisor, and knows whether they live.

The module `subprocess` would do the same. It costs the supervisor more than a megabyte, and waits for each child on its own,
while the supervisor collects every child that ends: as the first process of a container it is the parent of orphans, too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from headrace.runtime.sighup import pass_on

_PYTHONPATH = "PYTHONPATH"


class Spawned:
    """An interpreter that runs one module. It reads its first message from a socket, whose end tells it to end."""

    def __init__(self, module: str, path: str, *files: int) -> None:
        self.control, theirs = socket.socketpair()
        self.code: int | None = None
        """The exit code, or the negative number of a signal. None: it runs."""
        passed = (theirs.fileno(), *files)
        with theirs:
            for fd in passed:
                os.set_inheritable(fd, True)
            try:
                self.pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-m", module, *map(str, passed)],
                    {**os.environ, _PYTHONPATH: path},
                    file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
                    setpgroup=0,  # Ctrl-C reaches only the supervisor: it would kill a starting child
                    setsigmask=(),
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores both, and children inherit that
                )
            except OSError:
                self.control.close()
                raise
            finally:
                for fd in files:
                    os.set_inheritable(fd, False)
        pass_on(self)

    def send_signal(self, number: int, /) -> None:
        """Send a signal. The number of a process that has ended may belong to another one."""
        if self.code is None:
            os.kill(self.pid, number)


def ended_children() -> list[tuple[int, int]]:
    """Collect the children that have ended: process ids and exit codes."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def keep_files_from_children() -> None:
    """Mark the files that this process inherited, so that its children do not inherit them as well."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  # pathlib costs a megabyte
        fd = int(name)
        if fd > 2:
            try:
                os.set_inheritable(fd, False)
            except OSError:
                continue  # the file that was open while the folder was read
