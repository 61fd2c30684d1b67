"""The values that a task redacts, for integrations that send errors to other services."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.policy.effective import effective, usual
from headrace.task.codec import secrets

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.model.job import Claimed


def hidden_values(app: Headrace, job: Claimed) -> Collection[str] | None:
    """The values of the job's redacted fields, as they could appear in a text. None: they cannot be read."""
    task = app.tasks.get(job.task)
    own = effective(job, usual(None if task is None else task.options))
    if not own.redact:
        return ()
    try:
        if task is None:
            return list(secrets(job.payload, own.redact, own.names))
        return list(task.codec.secrets(job.payload, own.redact))
    except Exception:  # noqa: BLE001  # a user's type may do anything while it is decoded
        return None
