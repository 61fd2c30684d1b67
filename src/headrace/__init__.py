"""headrace: a durable task queue that starts as a file and grows into a cluster."""

from headrace.app import Headrace
from headrace.context import current_job
from headrace.errors import (
    BadArguments,
    BadTransaction,
    ConfigError,
    HeadraceError,
    IdempotencyConflict,
    JobCancelled,
    JobDead,
    JobNotFound,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooLarge,
    ResultExpired,
    ResultTimeout,
    SchemaMismatch,
    SerializationError,
    Unavailable,
    UnknownTask,
    Unsupported,
)
from headrace.handle import Handle
from headrace.job import Job, JobState
from headrace.outcome import Cancel, Dead, RetryAfter, Snooze
from headrace.retry import Retry
from headrace.task import Task

__version__ = "0.1.0"

__all__ = [
    "BadArguments",
    "BadTransaction",
    "Cancel",
    "ConfigError",
    "Dead",
    "Handle",
    "Headrace",
    "HeadraceError",
    "IdempotencyConflict",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobNotFound",
    "JobState",
    "LeaseLost",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "SchemaMismatch",
    "SerializationError",
    "Snooze",
    "Task",
    "Unavailable",
    "UnknownTask",
    "Unsupported",
    "__version__",
    "current_job",
]
