"""Crash on purpose: CRASH_HEADRACE_AT=point:n ends the process when it reaches that point for the n-th time. For tests.

The name does not begin with HEADRACE_, because those are settings, and an unknown setting is an error.
"""

from __future__ import annotations

import os

EXIT_CODE = 137

POINTS = ("claimed", "start", "ran", "settle", "settled")
"""After a claim's commit; before a task starts; after it ran; before and after a settlement.

Where jobs have webhooks also `announced`: after their deliveries were enqueued, before the settlement. Where tasks have
steps also `stepped`: after a step was stored, before its task goes on.
"""


class _CrashPoint:
    def __init__(self, text: str) -> None:
        self.point, _, count = text.partition(":")
        self.left = int(count or 1)


_armed = _CrashPoint(text) if (text := os.environ.get("CRASH_HEADRACE_AT")) else None

ARMED = _armed is not None
"""Callers test this before each call of `reach`, so that production pays nothing."""


def reach(point: str) -> None:
    """End the process here, if this is the requested point and count."""
    if _armed is not None and _armed.point == point:
        _armed.left -= 1
        if _armed.left <= 0:
            os._exit(EXIT_CODE)
