"""Signals as bytes that a selector can wait for, in the order in which they came."""

from __future__ import annotations

import signal
import socket

from headrace.runtime.sighup import handle_hangup

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGCHLD)
HELD_BACK = (*_HANDLED, signal.SIGHUP)
"""Signals that wait while the command becomes the supervisor, because no handler exists in between."""


class SignalPipe:
    """Handles the supervisor's signals from now on. They interrupt nothing: the loop reads them when it is ready."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        # A full pipe loses no meaning: the loop has hundreds of signals to read then.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _HANDLED:
            signal.signal(number, _ignore)
        handle_hangup(_ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)

    def read(self) -> list[int]:
        """The numbers of the signals that came."""
        try:
            return list(self.reader.recv(4096))
        except BlockingIOError:
            return []


def _ignore(*_: object) -> None:
    """The byte in the pipe is what counts. A handler must exist, or Python writes none."""
