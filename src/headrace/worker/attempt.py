"""An attempt of a job in a worker, the resolved task, and the interface of the slots that run it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from headrace.model.job import Claimed
from headrace.model.outcome import Outcome
from headrace.policy.effective import Effective, effective, usual
from headrace.task.codec import Signature, decode_options, secrets
from headrace.task.limit import Limit
from headrace.task.tracing import AttemptTracer, TraceScope
from headrace.worker.middleware import in_span, surrounded
from headrace.worker.service import log

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
        "in_span",
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
        self.in_span = self
        """The same with its function inside a span, for attempts that are traced."""
        if (tracer := task.hooks.tracer) is not None:
            self.in_span = copy.copy(self)
            self.in_span.function = in_span(self.function, tracer, is_async=self.is_async)
        if (results := task.hooks.large_results) is not None:
            for known in {self, self.in_span}:
                known.function = results.around(known.function, task.codec, is_async=self.is_async)

    def arguments(self, job: Claimed) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a job, decoded; raises BadArguments."""
        if job.options is not None:
            decode_options(job.options)
        return self.decode(job.payload)

    def secrets(self, job: Claimed) -> Sequence[str]:
        """The values of the job's redacted fields, as they could appear in a text."""
        own = effective(job, self.usual)
        if not own.redact:
            return ()
        try:
            if self.codec is None:
                return secrets(job.payload, own.redact, own.names)
            return self.codec.secrets(job.payload, own.redact)
        except Exception:  # noqa: BLE001  # whatever a user's type does while it is decoded
            log.exception("cannot read the redacted fields of task %s", self.name)
            return ()


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
    scope: TraceScope | None = None
    """The trace in which it runs. None: the app has no tracer."""
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
    successors: int = 0
    """The number of calls that it has enqueued to run after it."""
    unready: Outcome | None = None
    """Why it cannot start, if one of its inputs is missing. For `headrace.testing`, which has no line for inputs."""

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

    def secrets(self) -> Sequence[str]:
        return self.known.secrets(self.job)

    def successor(self) -> int:
        self.successors += 1
        return self.successors

    def steps(self) -> AttemptSteps:
        if self.journal is None:
            self.journal = self.held.state.step_writer.keeper(self)
        return self.journal

    def trip(self, limit: Limit, until: timedelta | datetime) -> None:
        self.held.state.feedback.trip(self.observed, limit, until)


def trace(attempt: Attempt, tracer: AttemptTracer) -> None:
    """Give one attempt its scope. The executor does the same for the attempts of a lease."""
    attempt.scope = tracer.scope(attempt.job.options)
    if attempt.scope.has_span:
        attempt.known = attempt.known.in_span
