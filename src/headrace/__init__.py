"""headrace: a durable task queue that starts as a file and grows into a cluster.

Every public name except the errors is imported when it is first used. A program that needs one name, such as the command
line that prints its help, then does not pay for the modules of all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import (
    BadArguments,
    BadTransaction,
    ConfigError,
    GroupOver,
    HeadraceError,
    HookFailed,
    IdempotencyConflict,
    InvalidCron,
    JobCancelled,
    JobDead,
    JobHeld,
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
    WaitTimeout,
)

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.client import once
    from headrace.client.groups import GroupStatus, OpenGroup
    from headrace.client.handles import Handles
    from headrace.client.once import Once
    from headrace.model.job import Failure, Job, JobId, JobState
    from headrace.model.outcome import Cancel, Dead, RetryAfter, Snooze
    from headrace.model.records import Page
    from headrace.policy.explain.answer import Explanation
    from headrace.policy.flow import ageing, weighted
    from headrace.policy.queue import DeadAlert, QueueOptions
    from headrace.policy.schedule import Schedule
    from headrace.runtime.logs import JobLogFilter
    from headrace.task.call import JobCall
    from headrace.task.context import JobContext, JobLogHandler, NoCurrentJob, current_job
    from headrace.task.event import Event
    from headrace.task.gather import gather, gather_sync
    from headrace.task.group import JobGroup, group
    from headrace.task.handle import Handle
    from headrace.task.hooks import AsyncCall, EnqueueCall, FollowUp, SyncCall, WorkerInfo
    from headrace.task.journal import StepChanged, StepTooLarge
    from headrace.task.large_results import FolderResults, ResultStorage, S3Results
    from headrace.task.limit import Limit
    from headrace.task.results import Results
    from headrace.task.retry import Retry
    from headrace.task.steps import sleep, sleep_sync, step, step_sync
    from headrace.task.task import Task
    from headrace.task.undo import undo, undo_sync
    from headrace.task.unique import Unique
    from headrace.webhooks import declare as webhook

__version__ = "0.1.0"
"""The version of the package."""

__all__ = [
    "AsyncCall",
    "BadArguments",
    "BadTransaction",
    "Cancel",
    "ConfigError",
    "Dead",
    "DeadAlert",
    "EnqueueCall",
    "Event",
    "Explanation",
    "Failure",
    "FolderResults",
    "FollowUp",
    "GroupOver",
    "GroupStatus",
    "Handle",
    "Handles",
    "Headrace",
    "HeadraceError",
    "HookFailed",
    "IdempotencyConflict",
    "InvalidCron",
    "Job",
    "JobCall",
    "JobCancelled",
    "JobContext",
    "JobDead",
    "JobGroup",
    "JobHeld",
    "JobId",
    "JobLogFilter",
    "JobLogHandler",
    "JobNotFound",
    "JobState",
    "KeyHeld",
    "LeaseLost",
    "Limit",
    "LimitNotFound",
    "NeverFires",
    "NoCurrentJob",
    "Once",
    "OpenGroup",
    "OutcomeUnknown",
    "Page",
    "PayloadTooLarge",
    "QueueFull",
    "QueueOptions",
    "RemoteTaskError",
    "ResultExpired",
    "ResultStorage",
    "ResultTimeout",
    "Results",
    "Retry",
    "RetryAfter",
    "S3Results",
    "Schedule",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SerializationError",
    "Snooze",
    "StepChanged",
    "StepTooLarge",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "SyncCall",
    "Task",
    "Unavailable",
    "Unique",
    "UnknownTask",
    "Unsupported",
    "WaitTimeout",
    "WorkerInfo",
    "__version__",
    "ageing",
    "current_job",
    "gather",
    "gather_sync",
    "group",
    "once",
    "sleep",
    "sleep_sync",
    "step",
    "step_sync",
    "undo",
    "undo_sync",
    "webhook",
    "weighted",
]

# The block above tells type checkers where each name is, and this table tells the interpreter.
_NAMES = {
    "headrace.app": ("Headrace",),
    "headrace.client.groups": ("GroupStatus", "OpenGroup"),
    "headrace.client.handles": ("Handles",),
    "headrace.client.once": ("Once",),
    "headrace.model.job": ("Failure", "Job", "JobId", "JobState"),
    "headrace.model.outcome": ("Cancel", "Dead", "RetryAfter", "Snooze"),
    "headrace.model.records": ("Page",),
    "headrace.policy.explain.answer": ("Explanation",),
    "headrace.policy.flow": ("ageing", "weighted"),
    "headrace.policy.queue": ("DeadAlert", "QueueOptions"),
    "headrace.policy.schedule": ("Schedule",),
    "headrace.runtime.logs": ("JobLogFilter",),
    "headrace.task.context": ("JobContext", "JobLogHandler", "NoCurrentJob", "current_job"),
    "headrace.task.call": ("JobCall",),
    "headrace.task.event": ("Event",),
    "headrace.task.gather": ("gather", "gather_sync"),
    "headrace.task.group": ("JobGroup", "group"),
    "headrace.task.handle": ("Handle",),
    "headrace.task.hooks": ("AsyncCall", "EnqueueCall", "FollowUp", "SyncCall", "WorkerInfo"),
    "headrace.task.journal": ("StepChanged", "StepTooLarge"),
    "headrace.task.large_results": ("FolderResults", "ResultStorage", "S3Results"),
    "headrace.task.limit": ("Limit",),
    "headrace.task.retry": ("Retry",),
    "headrace.task.steps": ("sleep", "sleep_sync", "step", "step_sync"),
    "headrace.task.results": ("Results",),
    "headrace.task.task": ("Task",),
    "headrace.task.undo": ("undo", "undo_sync"),
    "headrace.task.unique": ("Unique",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {"once": "headrace.client.once", "webhook": "headrace.webhooks.declare"}
"""Public names that are modules themselves."""

if not TYPE_CHECKING:  # A type checker that sees `__getattr__` accepts every name.

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name]), name)
        elif name in _MODULES:
            value = import_module(_MODULES[name])
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations"})
