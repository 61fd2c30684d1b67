"""Faults that a queue must survive, made on purpose: jobs that run twice, lost leases, crashes, a slow store.

```py
with faults.crash("after", task=charge):
    drain(app)
```

A fault happens once to each job, and then the job runs again as it would after the real event. Tests of tasks use them
to prove that a second attempt does no harm.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.job import JobId
from headrace.worker.attempt import Attempt

When = Literal["before", "after"]

_active: list[Fault] = []


class Fault:
    """Made by the functions of this module: a context manager, or an argument of `drain`."""

    def __init__(self, label: str, *, task: object = None) -> None:
        self.label: Final = label
        self._task = None if task is None else task_name(task)
        self._met: set[JobId] = set()

    def applies(self, attempt: Attempt) -> bool:
        """Whether it happens to this attempt. It then does not happen to the job again."""
        job = attempt.job
        if job.id in self._met or self._task not in {None, job.task}:
            return False
        self._met.add(job.id)
        return True

    def __repr__(self) -> str:
        return f"<fault: {self.label}>"

    def __enter__(self) -> Self:
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.remove(self)


class LostLease(Fault):
    """Another worker takes the job over."""

    def __init__(self, label: str, when: When, *, task: object = None) -> None:
        super().__init__(label, task=task)
        self.when: Final = _check(when)


class Crash(Fault):
    """The worker dies."""

    def __init__(self, label: str, when: When | int, *, task: object = None) -> None:
        super().__init__(label, task=task)
        if isinstance(when, int) and when >= 1:
            self.when: When | int = when
        else:
            self.when = _check(when)
        self.missed = False
        """The task ended before it reached that line."""


class SlowStore(Fault):
    """The store takes the result late."""

    def __init__(self, label: str, late: timedelta, *, task: object = None) -> None:
        super().__init__(label, task=task)
        self.late: Final = late


def run_twice(task: object = None) -> Fault:
    """The job runs to its end, and a second worker runs it again. Only the second result counts."""
    return LostLease("run twice", "after", task=task)


def lose_lease(when: When = "after", *, task: object = None) -> Fault:
    """The worker loses the lease of its job, and does not notice before its task has ended.

    `"after"`: it loses the lease after the task's effect, and the job runs again. `"before"`: it loses the lease before
    the effect. Another worker runs and settles the job, and only then the first worker runs the task. Its
    `current_job().cancelled` is True, and `complete(tx=…)` raises LeaseLost.
    """
    return LostLease(f"lease lost {when} the effect", when, task=task)


def crash(when: When | int = "after", *, task: object = None) -> Fault:
    """The worker dies before the task's effect, after it, or before the n-th line that the task's function runs.

    A crash in the middle of the function still runs its `finally` blocks and leaves its context managers, which a dead
    process would not.
    """
    label = f"crash before line {when}" if isinstance(when, int) else f"crash {when} the effect"
    return Crash(label, when, task=task)


def slow_store(late: duration.Duration | float = "30s", *, task: object = None) -> Fault:
    """The store takes the job's result so much later, by the test's clock. The lease may be over by then.

    With a lease of 15 s and `"30s"`, another worker has taken the job over, the late result is refused, and the job runs
    again. With `"5s"` the result is accepted.
    """
    by = duration.given_or_seconds(late, name="slow_store")
    return SlowStore(f"store slow by {duration.show(by)}", by, task=task)


def active_for(attempt: Attempt, extra: Collection[Fault] = ()) -> Fault | None:
    """The fault that happens to this attempt."""
    return next((fault for fault in (*extra, *_active) if fault.applies(attempt)), None)


def task_name(task: object) -> str:
    """The name of a task, a Django task, or a name itself."""
    name: Any = task if isinstance(task, str) else getattr(task, "module_path", None) or getattr(task, "name", None)
    if not isinstance(name, str):
        raise ConfigError(f"task = {task!r:.80}: give a task, or the name of one")
    return name


def _check(when: object) -> When:
    if when == "before":
        return "before"
    if when == "after":
        return "after"
    raise ConfigError(f'when = {when!r}: write "before" or "after"')
