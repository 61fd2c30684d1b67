"""headrace: a durable task queue that starts as a file and grows into a cluster."""

from headrace.app import Headrace
from headrace.client import once
from headrace.client.handles import Handles
from headrace.client.once import Once
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
from headrace.model.job import Failure, Job, JobId, JobState
from headrace.model.outcome import Cancel, Dead, RetryAfter, Snooze
from headrace.model.records import Page
from headrace.policy.explain.explain import Explanation
from headrace.policy.flow import ageing, weighted
from headrace.policy.queue import DeadAlert, QueueOptions
from headrace.policy.schedule import Schedule
from headrace.task.context import JobContext, NoCurrentJob, current_job
from headrace.task.handle import Handle
from headrace.task.limit import Limit
from headrace.task.retry import Retry
from headrace.task.task import JobCall, Task
from headrace.task.unique import Unique
from headrace.webhooks import declare as webhook

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
    "once",
    "webhook",
    "weighted",
]
