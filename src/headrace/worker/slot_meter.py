"""Utilisation: for how many seconds the slots of a worker were busy, and for how many they were there."""

from __future__ import annotations

from time import monotonic
from typing import Final

from headrace.worker.state import WorkerState

IDLE: Final = 300.0
"""Seconds between two counts of a worker that runs nothing, so that it writes history rarely."""


class SlotMeter:
    """Adds busy and available seconds to the tally whenever history is written, so that no job costs anything for it."""

    def __init__(self, state: WorkerState, slots: int) -> None:
        self._state = state
        self._slots = slots
        self._last = state.tally.credited = monotonic()

    def read(self, *, final: bool = False) -> None:
        """Count the seconds since the last count. Attempts that go on count with the part that is over."""
        last, now = self._last, monotonic()
        busy = 0.0
        for held in self._state.leases.values():
            for attempt in held.attempts:
                if attempt is not None and attempt.started:
                    busy += now - max(attempt.started, last)
            # These have ended, and the store does not have their outcomes yet.
            for attempt, ended, end in held.measured:
                if attempt.started and ended > last:
                    weight = held.weights[attempt.position] if end is None else 1
                    busy += (ended - max(attempt.started, last)) * weight
        tally = self._state.tally
        if not (busy or tally.counted or final or now - last >= IDLE):
            return
        tally.use_slots(busy, available=self._slots * (now - last))
        self._last = tally.credited = now
