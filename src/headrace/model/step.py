"""Steps: calls inside a task whose results the store remembers. The steps of a job, in the order written, are its journal."""

from __future__ import annotations

from datetime import datetime

import msgspec

MAX_STEPS = 10_000
"""Steps of one job."""
MAX_STEP_NAME = 400
"""Characters of the name of a step, its key included."""
MAX_STEP_VALUE = 256 * 1024
"""Bytes of the result of one step."""
MAX_JOURNAL = 32 * 1024 * 1024
"""Bytes of all results of the steps of one job."""
UNDO = "headrace.undo"
"""The name of the steps that register undo jobs, and of the task that starts these when their job has failed."""


class Step(msgspec.Struct, frozen=True):
    """A finished step. Among the steps of its job, its name and number are unique."""

    name: str
    """What was called; with a key, the key follows in brackets."""
    number: int
    """Which call of this name, from 0, in the order of the calls."""
    digest: bytes
    """A digest of the arguments. Empty: the name tells such calls apart."""
    value: bytes | None
    """The result, encoded. None: the call returned None."""
    at: datetime
    """When it finished, by the clock of its worker."""
