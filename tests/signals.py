"""Signals that the test run was started with: what the tests start must begin with the system's defaults."""

from __future__ import annotations

import signal

SENT_TO_PROCESSES = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP, signal.SIGUSR1)
"""Signals that some test sends to a process it has started."""


def hand_down_defaults() -> None:
    """Let new processes start with default signal handling, though this one was started with some signals ignored.

    `nohup`, `&` in a script and some CI runners start a process with SIGHUP or SIGINT ignored. An ignored signal stays
    ignored across `exec`, so a server under test would never hear the signal that ends it. A handler does not survive
    `exec`: with one that does nothing, this process goes on ignoring the signal and its children do not.
    """
    for number in SENT_TO_PROCESSES:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)


def _do_nothing(*_: object) -> None:
    """Python calls this in place of ignoring the signal."""
