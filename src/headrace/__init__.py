"""headrace: a durable task queue that starts as a file and grows into a cluster."""

from headrace.app import Headrace
from headrace.context import current_job
from headrace.errors import (
    BadArguments,
    BadTransaction,
    ConfigError,
    HeadraceError,
    IdempotencyConflict,
    InvalidCron,
    JobCancelled,
    JobDead,
    JobNotFound,
    LeaseLost,
    LimitNotFound,
    NeverFires,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    ResultExpired,
    ResultTimeout,
    ScheduleNotFound,
    SchemaMismatch,
    SerializationError,
    Unavailable,
    UnknownTask,
    Unsupported,
)
from headrace.explain import Explanation
from headrace.flow import ageing, weighted
from headrace.handle import Handle
from headrace.handles import Handles
from headrace.job import Job, JobState
from headrace.limit import Limit
from headrace.outcome import Cancel, Dead, RetryAfter, Snooze
from headrace.queue import DeadAlert, QueueOptions
from headrace.retry import Retry
from headrace.schedule import Schedule
from headrace.task import Task
from headrace.unique import Unique

__version__ = "0.1.0"

__all__ = [
    "BadArguments",
    "BadTransaction",
    "Cancel",
    "ConfigError",
    "Dead",
    "DeadAlert",
    "Explanation",
    "Handle",
    "Handles",
    "Headrace",
    "HeadraceError",
    "IdempotencyConflict",
    "InvalidCron",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobNotFound",
    "JobState",
    "LeaseLost",
    "Limit",
    "LimitNotFound",
    "NeverFires",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "QueueFull",
    "QueueOptions",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Schedule",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SerializationError",
    "Snooze",
    "Task",
    "Unavailable",
    "Unique",
    "UnknownTask",
    "Unsupported",
    "__version__",
    "ageing",
    "current_job",
    "weighted",
]
