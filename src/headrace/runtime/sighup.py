"""A closed terminal, to processes that run for long: a request to stop, and nowhere left to write to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from weakref import WeakSet

_children: WeakSet[subprocess.Popen[bytes]] = WeakSet()


def on_hangup(stop: Callable[[], None]) -> None:
    """Have the running loop call `stop` when the terminal is closed; under nohup, never."""
    loop = asyncio.get_running_loop()
    _handle(lambda: loop.call_soon_threadsafe(stop))


def leave_to_parent() -> None:
    """In a child of such a process: it is the parent who hears of Ctrl-C and of a closed terminal, and says what follows."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _handle(lambda: None)


def pass_on(child: subprocess.Popen[bytes]) -> None:
    """A child in a process group of its own, which no terminal tells."""
    _children.add(child)


def _handle(tell: Callable[[], object]) -> None:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    shown = [stream for stream in (1, 2) if os.isatty(stream)]

    def heard(*_: object) -> None:
        # The system tells a session's leader twice; the second signal has nothing to add.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Here and not in a loop: whatever is written to a terminal that is gone fails, and with it what should be finished.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in shown:
            os.dup2(nowhere, stream)
        os.close(nowhere)
        for child in list(_children):
            child.send_signal(signal.SIGHUP)
        tell()

    signal.signal(signal.SIGHUP, heard)
