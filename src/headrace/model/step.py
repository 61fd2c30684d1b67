"""Steps: calls inside a task whose results the store remembers. The steps of a job, in the order written, are its journal."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from headrace.model.gate import GateId
from headrace.model.job import JobId

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


class SignalWait(NamedTuple):
    """A wait of a running job for a signal, as a store looks at it."""

    id: JobId
    gate: GateId
    step: Step
    """What remembers the value of the signal, behind the value that this step has already."""
    journal: bool
    """The journal of the job was not read: the answer has it, and a job with any step of this name gets no further one."""


class Answered(msgspec.Struct, frozen=True):
    """What a store says to a job that waits for a signal."""

    value: bytes | None
    """The value of the signal. None: it has not come."""
    stored: bool = False
    """Whether this call has stored the step."""
    steps: list[Step] = []
    """The journal of the job, with that step, if it was asked for."""
