"""SIGHUP: a long-running process stops when its terminal is closed, and writes nothing more to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet


class Signalled(Protocol):
    """A child process that can be sent a signal. It ignores the call if it has ended."""

    def send_signal(self, number: int, /) -> None: ...


_children: WeakSet[Signalled] = WeakSet()


def on_hangup(stop: Callable[[], None]) -> None:
    """Make the running loop call `stop` when the terminal is closed. Under nohup it never does."""
    import asyncio  # not above, because the supervisor has no event loop of asyncio and does not load it

    loop = asyncio.get_running_loop()
    handle_hangup(lambda: loop.call_soon_threadsafe(stop))


def leave_to_parent() -> None:
    """In a child of such a process: ignore Ctrl-C and a closed terminal, because the parent handles them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle_hangup(lambda: None)


def pass_on(child: Signalled) -> None:
    """Pass the signal on to a child in a process group of its own, because the terminal does not signal it."""
    _children.add(child)


def handle_hangup(tell: Callable[[], object]) -> None:
    """Call `tell` in the signal's handler when the terminal is closed. Under nohup it never is called."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    shown = [stream for stream in (1, 2) if os.isatty(stream)]

    def heard(*_: object) -> None:
        # The system signals the leader of a session twice. The second signal is ignored.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Done in the handler, not in the event loop, because a write to a closed terminal raises and would interrupt
        # the stop.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in shown:
            os.dup2(nowhere, stream)
        os.close(nowhere)
        for child in list(_children):
            child.send_signal(signal.SIGHUP)
        tell()

    signal.signal(signal.SIGHUP, heard)
