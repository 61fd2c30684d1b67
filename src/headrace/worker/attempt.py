"""An attempt of a job in a worker, the resolved task, and the interface of the slots that run it."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from headrace.model.job import Claimed
from headrace.policy.effective import Effective, effective, usual
from headrace.task.codec import Signature, decode_options
from headrace.task.limit import Limit
from headrace.worker.middleware import surrounded

if TYPE_CHECKING:
    from headrace.task.task import Task
    from headrace.worker.journal import AttemptSteps
    from headrace.worker.state import HeldLease

# Why an attempt was interrupted. Empty: it was not.
TIMEOUT: Final = "timeout"
STOP: Final = "stop"
LOST: Final = "lost"
RELEASE: Final = "release"
SUSPEND: Final = "suspend"


class ResolvedTask:
    """A task as the worker uses it. Everything that an attempt needs is looked up once."""

    __slots__ = (
        "codec",
        "decode",
        "executor",
        "function",
        "has_webhook",
        "is_async",
        "limits",
        "name",
        "shape",
        "timed",
        "timeout",
        "usual",
    )

    def __init__(self, task: Task[..., Any], *, has_webhook: bool = False) -> None:
        options = task.options
        self.name = task.name
        self.is_async = inspect.iscoroutinefunction(task.function)
        self.function = surrounded(task.function, task.hooks, is_async=self.is_async)
        if (results := task.hooks.large_results) is not None:
            self.function = results.around(self.function, task.codec, is_async=self.is_async)
        self.codec: Signature | None = task.codec
        self.decode = task.codec.decode
        self.executor = options.executor
        self.usual = usual(options)
        """What holds for jobs without options of their own."""
        self.timeout = self.usual.timeout
        self.timed = self.usual.timed
        """False: no attempt has to look at the store's clock before it starts."""
        self.limits = options.limits
        self.shape = task.shape
        self.has_webhook = has_webhook
        """The app has webhooks for its ends."""

    def arguments(self, job: Claimed) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a job, decoded; raises BadArguments."""
        if job.options is not None:
            decode_options(job.options)
        return self.decode(job.payload)


class ObservedAttempt(NamedTuple):
    """What the limits of a job have to know about an attempt of it."""

    job: Claimed
    known: ResolvedTask
    claimed_at: float
    """On the monotonic clock."""
    started: float = 0.0
    """On the monotonic clock; 0: it did not start here."""


class Slots(Protocol):
    """The slots of one kind (event loop, threads, processes) in which attempts run."""

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    def put(self, attempts: list[Attempt]) -> None:
        """Add an attempt to the line."""
        ...

    def take_back(self, before: float) -> list[Attempt]:
        """Remove from the line the attempts that were claimed before that time and have not started."""
        ...

    def under_way(self) -> list[Attempt]: ...

    def interrupt(self, attempt: Attempt) -> None:
        """Interrupt the attempt's code, because `attempt.reason` was just set."""
        ...

    async def close(self) -> None: ...


class Attempt(msgspec.Struct, eq=False):
    """One job of a lease in this worker. `current_job()` reads it."""

    held: HeldLease
    position: int
    job: Claimed
    known: ResolvedTask
    slots: Slots | None = None
    """The slots that run it. None: it waits, or it has ended."""
    started: float = 0.0
    """The time of its start on the monotonic clock. 0: it has not started."""
    deadline: float = inf
    """Its deadline on the monotonic clock, set when it starts."""
    reason: str = ""
    """Why it was interrupted."""
    completed: bool = False
    """The task completed it in a transaction of its own."""
    given_up: bool = False
    """The worker handed its job back although its code goes on. The worker ignores what the code returns."""
    warned_at: float = inf
    patient: bool = False
    """A suspect that was lost beside other jobs before. It waits for a process of its own without a limit of time."""
    reminded: bool = False
    """It was interrupted, went on, and the log has a line about it."""
    cap: float = inf
    """Seconds that were left to the job's deadline when it started."""
    journal: AttemptSteps | None = None
    """None: its task has called no step yet."""

    @property
    def worker(self) -> str:
        return self.held.state.name

    @property
    def cancelled(self) -> bool:
        return bool(self.reason)

    @property
    def deadline_at(self) -> datetime | None:
        if self.deadline == inf:
            return None
        return datetime.now(UTC) + timedelta(seconds=self.deadline - monotonic())

    @property
    def observed(self) -> ObservedAttempt:
        return ObservedAttempt(self.job, self.known, self.held.claimed_at, self.started)

    @property
    def own(self) -> Effective:
        """The options that hold for its job."""
        return effective(self.job, self.known.usual)

    @property
    def timeout(self) -> float:
        """Seconds since its start."""
        return min(self.known.timeout if self.job.options is None else self.own.timeout, self.cap)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decoded; raises BadArguments."""
        return self.known.arguments(self.job)

    async def complete(self, result: Any, tx: object) -> None:
        await self.held.state.completer.complete(self, result, tx)

    def complete_sync(self, result: Any, tx: object) -> None:
        self.held.state.completer.complete_sync(self, result, tx)

    def report(self, *, progress: float | None = None, note: str | None = None, line: str | None = None) -> None:
        self.held.state.reporter.take(self, progress=progress, note=note, line=line)

    def steps(self) -> AttemptSteps:
        if self.journal is None:
            self.journal = self.held.state.step_writer.keeper(self)
        return self.journal

    def trip(self, limit: Limit, until: timedelta | datetime) -> None:
        self.held.state.feedback.trip(self.observed, limit, until)
