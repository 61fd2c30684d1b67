"""headrace: a durable task queue that starts as a file and grows into a cluster."""

from headrace.app import Headrace
from headrace.context import JobContext, NoCurrentJob, current_job
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
    KeyHeld,
    LeaseLost,
    LimitNotFound,
    NeverFires,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    RemoteTaskError,
    ResultExpired,
    ResultTimeout,
    ScheduleNotFound,
    SchemaMismatch,
    SerializationError,
    StoreDamaged,
    StoreError,
    StoreFull,
    Unavailable,
    UnknownTask,
    Unsupported,
)
from headrace.explain import Explanation
from headrace.flow import ageing, weighted
from headrace.handle import Handle
from headrace.handles import Handles
from headrace.job import Failure, Job, JobId, JobState
from headrace.limit import Limit
from headrace.once import Once
from headrace.outcome import Cancel, Dead, RetryAfter, Snooze
from headrace.queue import DeadAlert, QueueOptions
from headrace.retry import Retry
from headrace.schedule import Schedule
from headrace.store.terms import Page
from headrace.task import JobCall, Task
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
    "Failure",
    "Handle",
    "Handles",
    "Headrace",
    "HeadraceError",
    "IdempotencyConflict",
    "InvalidCron",
    "Job",
    "JobCall",
    "JobCancelled",
    "JobContext",
    "JobDead",
    "JobId",
    "JobNotFound",
    "JobState",
    "KeyHeld",
    "LeaseLost",
    "Limit",
    "LimitNotFound",
    "NeverFires",
    "NoCurrentJob",
    "Once",
    "OutcomeUnknown",
    "Page",
    "PayloadTooLarge",
    "QueueFull",
    "QueueOptions",
    "RemoteTaskError",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Schedule",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SerializationError",
    "Snooze",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
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
