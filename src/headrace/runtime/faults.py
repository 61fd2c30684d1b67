"""Crash on purpose: with CRASH_HEADRACE_AT=point:n a process kills itself when it reaches that point for the n-th time. For tests.

The name does not begin with HEADRACE_, because those are settings, and an unknown setting is an error.
"""

from __future__ import annotations

import os
import signal

EXIT_CODE = -signal.SIGKILL
"""Of a process that has reached its point, as its parent sees it."""

POINTS = ("claimed", "start", "ran", "settle", "settled")
"""After a claim's commit; before a task starts; after it ran; before and after a settlement.

Where jobs have webhooks also `announced`: after their deliveries were enqueued, before the settlement. Where tasks have
steps also `stepped`: after a step was stored, before its task goes on. Where jobs wait for others also

* `tolled`: after a settlement that counts on a gate, before the store has followed it (PostgreSQL);
* `opening`: after a part of what waits for a gate was released or cancelled;
* `suspended`: after a job began to wait for a gate, before its worker knows it;
* `attached`: after a job that follows others was enqueued, before its caller knows it;
* `children`: after the jobs that a task awaits were enqueued, before the task gives its slot back;
* `filled`: between two calls that add members to a group;
* `told`: after a queue of a cluster was told something, before that is noted.
"""


class _CrashPoint:
    def __init__(self, text: str) -> None:
        self.point, _, count = text.partition(":")
        self.left = int(count or 1)


_armed = _CrashPoint(text) if (text := os.environ.get("CRASH_HEADRACE_AT")) else None

ARMED = _armed is not None
"""Callers test this before each call of `reach`, so that production pays nothing."""


def reach(point: str) -> None:
    """Kill the process here, if this is the requested point and count."""
    if _armed is not None and _armed.point == point:
        _armed.left -= 1
        if _armed.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
