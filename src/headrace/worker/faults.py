"""Crash on purpose: CRASH_HEADRACE_AT=point:n ends the process the n-th time it comes by that point. For tests.

Not HEADRACE_…: those are settings, and an unknown one is refused.
"""

from __future__ import annotations

import os

EXIT_CODE = 137

POINTS = ("claimed", "start", "ran", "settle", "settled")
"""After a claim's commit; before a task starts; after it ran; before and after a settlement.

Where jobs have webhooks also `announced`: after their deliveries were enqueued, before the settlement.
"""


class _CrashPoint:
    def __init__(self, text: str) -> None:
        self.point, _, count = text.partition(":")
        self.left = int(count or 1)


_armed = _CrashPoint(text) if (text := os.environ.get("CRASH_HEADRACE_AT")) else None

ARMED = _armed is not None
"""Looked at before every call of `reach`, so that nothing is paid when nobody asked."""


def reach(point: str) -> None:
    """Die here, if this is the place and the time."""
    if _armed is not None and _armed.point == point:
        _armed.left -= 1
        if _armed.left <= 0:
            os._exit(EXIT_CODE)
