"""Every error that headrace raises on purpose.

    HeadraceError
    ├── ConfigError             a setting, URL or declaration is wrong
    │   └── InvalidCron         a cron expression is malformed
    │       └── NeverFires      no date will ever fit it
    ├── TaskError
    │   ├── UnknownTask         no task of that name is registered
    │   ├── BadArguments        a call does not fit the task's signature
    │   │   └── SerializerNotAllowed  a payload is neither MessagePack nor JSON
    │   └── ResultTooLarge      a task's result is over the limit
    ├── EnqueueError
    │   ├── SerializationError  a value cannot be stored; names its place
    │   ├── PayloadTooLarge     the encoded arguments are over the limit
    │   ├── IdempotencyConflict the key was used before with other arguments
    │   ├── QueueFull           the queue is as long as its max_length says
    │   ├── GroupOver           all jobs of the group have ended, so it takes no further ones
    │   └── BadTransaction      the `tx=` object cannot be used for this job
    ├── StoreError
    │   ├── Unavailable         the store cannot be reached; nothing was done
    │   │   └── KeyHeld         a transaction that has not ended holds the key or the unique lock
    │   ├── OutcomeUnknown      the connection broke while the store was writing
    │   ├── StoreFull           no room left to write; nothing was done
    │   ├── StoreDamaged        the store's file is gone, replaced or damaged
    │   ├── SchemaMismatch      the schema is missing, too old or too new
    │   └── Unsupported         this store cannot do that
    ├── ScheduleNotFound        no schedule of that name
    ├── LimitNotFound           no limit of that name
    ├── LeaseLost               another worker holds the job now
    ├── WaitTimeout             an event was not signalled in time
    ├── HookFailed              a hook for the start of a worker raised an error
    └── ResultError
        ├── JobNotFound         no such job (or it was pruned)
        ├── ResultTimeout       the job did not end in time
        ├── JobHeld             the job waits for a job that is dead
        ├── ResultExpired       the job ended, its result's time to live too
        ├── JobDead             the job ended dead
        │   └── RemoteTaskError by an error that its task raised
        └── JobCancelled        the job was cancelled

`code` is stable and is what HTTP answers carry. Messages say what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID


class HeadraceError(Exception):
    """The base of every error raised on purpose."""

    code: ClassVar[str] = "error"


class ConfigError(HeadraceError):
    """A setting, URL or declaration is wrong."""

    code = "config"


class InvalidCron(ConfigError):
    """A cron expression is malformed."""

    code = "invalid_cron"


class NeverFires(InvalidCron):
    """No date will ever fit the cron expression."""

    code = "never_fires"


class InvalidTimezone(ConfigError):
    """No time zone has that name."""

    code = "invalid_timezone"


class TaskError(HeadraceError):
    """Something about a task is wrong."""

    code = "task"


class UnknownTask(TaskError):
    """No task of that name is registered."""

    code = "unknown_task"

    def __init__(self, task: str, known: Iterable[str] = ()) -> None:
        """`known`: the names of the tasks that there are, one of which may be meant."""
        from difflib import get_close_matches  # imported here, because only an error needs it

        close = get_close_matches(task, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "is the module that declares it imported?"
        super().__init__(f"unknown task {task!r}: {hint}")
        self.task = task


class BadArguments(TaskError):
    """A call does not fit the task's signature."""

    code = "bad_arguments"


class SerializerNotAllowed(BadArguments):
    """A stored payload is neither MessagePack nor JSON, and nothing else is ever read: no pickle, no YAML."""

    code = "serializer_not_allowed"


class ResultTooLarge(TaskError):
    """A task's result is over the limit."""

    code = "result_too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the result takes {size:,} bytes, the limit is {limit:,}: "
            "store the data elsewhere and return a reference, or raise max_result"
        )
        self.size = size
        self.limit = limit


class EnqueueError(HeadraceError):
    """A job was refused; nothing was stored."""

    code = "enqueue"


class SerializationError(EnqueueError):
    """A value cannot be stored. `path` is its place, e.g. `args[0].x`."""

    code = "not_serializable"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class PayloadTooLarge(EnqueueError):
    """The encoded arguments, or the value of an event, are over the limit."""

    code = "payload_too_large"

    def __init__(
        self, size: int, limit: int, *, what: str = "the arguments take", setting: str = "max_payload"
    ) -> None:
        """`setting`: what raises the limit. Empty: it is fixed."""
        super().__init__(
            f"{what} {size:,} bytes, the limit is {limit:,}: store the data elsewhere and pass a reference"
            + (f", or raise {setting}" if setting else "")
        )
        self.size = size
        self.limit = limit


class IdempotencyConflict(EnqueueError):
    """The key was used before with other arguments."""

    code = "idempotency_conflict"

    def __init__(self, task: str, key: str, existing: UUID) -> None:
        super().__init__(
            f"key {key!r} of task {task!r} already made job {existing} with other arguments: "
            "use another key, or the same arguments"
        )
        self.task = task
        self.key = key
        self.existing = existing


class QueueFull(EnqueueError):
    """The queue is as long as its `max_length` says; nothing was stored, trying again later is safe."""

    code = "queue_full"

    def __init__(self, queue: str, max_length: int) -> None:
        super().__init__(
            f"queue {queue} is full, its max_length is {max_length:,}: try again later, or start more workers"
        )
        self.queue = queue
        self.max_length = max_length


class GroupOver(EnqueueError):
    """A group takes no further jobs, because it is complete and all its jobs have ended, or because there is no such group."""

    code = "group_over"

    def __init__(self, group: UUID) -> None:
        super().__init__(f"group {group} has ended, or does not exist: open a new group for further jobs")
        self.group = group


class BadTransaction(EnqueueError):
    """The `tx=` object cannot be used for this job."""

    code = "bad_transaction"


class StoreError(HeadraceError):
    """The store did not do what was asked."""

    code = "store"


class Unavailable(StoreError):
    """The store cannot be reached; nothing was done, trying again is safe."""

    code = "store_unavailable"


class KeyHeld(Unavailable):
    """A transaction that has not ended has enqueued with the same key or unique lock; nothing was done."""

    code = "key_held"


class OutcomeUnknown(StoreError):
    """The connection broke while the store was writing: it may or may not have happened."""

    code = "outcome_unknown"


class StoreFull(StoreError):
    """There is no room left to write; nothing was done."""

    code = "store_full"


class StoreDamaged(StoreError):
    """The store's file was deleted, replaced or damaged. Trying again fails; an operator has to restore it.

    The write is not in any file that a new process would find.
    """

    code = "store_damaged"


class SchemaMismatch(StoreError):
    """The schema is missing, too old or too new for this version."""

    code = "schema_mismatch"


class Unsupported(StoreError):
    """This store cannot do that."""

    code = "unsupported"


class ScheduleNotFound(HeadraceError):
    """There is no schedule of that name."""

    code = "schedule_not_found"


class LimitNotFound(HeadraceError):
    """There is no limit of that name."""

    code = "limit_not_found"


class LeaseLost(HeadraceError):
    """Another worker holds the job now; nothing was written."""

    code = "lease_lost"


class WaitTimeout(HeadraceError):
    """An event was not signalled before the `timeout` of a task's wait was over."""

    code = "wait_timeout"


class HookFailed(HeadraceError):
    """A hook for the start of a worker raised an error, which is its `__cause__`. The worker did not start."""

    code = "hook_failed"


class ResultError(HeadraceError):
    """There is no result to give."""

    code = "result"
    of_child: bool = False
    """True: a task awaited that job. If the task does not catch the error, its own job is dead, because every attempt gets it."""


class JobNotFound(ResultError):
    """No such job, or it was pruned."""

    code = "job_not_found"


class ResultTimeout(ResultError):
    """The job did not end in time; it goes on."""

    code = "result_timeout"


class JobHeld(ResultError):
    """The job waits for a job that is dead. It goes on when that job is replayed, and is cancelled when it is discarded."""

    code = "job_held"

    def __init__(self, message: str, dead: UUID | None = None) -> None:
        super().__init__(message)
        self.dead = dead
        """The dead job. None: several jobs of a group are dead."""


class ResultExpired(ResultError):
    """The job is done, but its result is not kept: its `result_ttl` is over, or 0."""

    code = "result_expired"


class JobDead(ResultError):
    """The job ended dead."""

    code = "job_dead"


class RemoteTaskError(JobDead):
    """The job ended dead by an error of its task: `type` is the error's name as text; nothing is imported to make one."""

    def __init__(self, message: str, type: str) -> None:
        super().__init__(message)
        self.type = type


class JobCancelled(ResultError):
    """The job was cancelled."""

    code = "job_cancelled"
