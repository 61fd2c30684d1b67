"""`assert_idempotent`: runs one job under every fault and compares what it leaves behind."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.job import Batch, Job, JobId, JobState, job_id, new_batch
from headrace.task.call import JobCall
from headrace.testing import faults
from headrace.testing.assertions import stand_with
from headrace.testing.faults import Fault
from headrace.testing.lifespan import ahooks_around, hooks_around
from headrace.testing.script import Here, Script, StoreCall, aplay, play
from headrace.testing.stand_in import StandIn
from headrace.testing.steps import Ran, steps
from headrace.worker.attempt import Attempt

MOST_LINES = 500
"""Lines of a task's function before which a crash is tried."""
MOST_ATTEMPTS = 20

State = Callable[[], Any]
Reset = Callable[[], Any]


def assert_idempotent(call: JobCall[Any], *, state: State, reset: Reset | None = None) -> list[str]:
    """Fail if a second attempt of this job changes what the first one left behind. Returns what was tried.

    ```py
    assert_idempotent(charge.job(7, "acme"), state=lambda: list(ledger), reset=ledger.clear)
    ```

    The job runs once without a fault, and `state()` is what it must leave behind. Then the same job runs again under each
    fault: run twice, lease lost before and after the effect, worker crashed before and after it, store too slow. After each
    of them `state()` must be equal. `reset` empties the state: with it each fault begins afresh with a job of its own, and
    the worker also crashes before every line of the task's function.
    """
    stand = _stand_for(call)
    with hooks_around(stand) as run:
        return play(_script(stand, call, state, reset), run)


async def aassert_idempotent(
    call: JobCall[Any],
    *,
    state: Callable[[], Any | Awaitable[Any]],
    reset: Callable[[], Any | Awaitable[Any]] | None = None,
) -> list[str]:
    """The same for async code. `state` and `reset` may be async functions."""
    stand = _stand_for(call)
    async with ahooks_around(stand):
        return await aplay(_script(stand, call, state, reset))


def _stand_for(call: JobCall[Any]) -> StandIn:
    if not isinstance(call, JobCall):
        raise ConfigError(f"assert_idempotent takes task.job(…), not {call!r:.80}")
    return stand_with(call.job.task)


def _script(stand: StandIn, call: JobCall[Any], state: State, reset: Reset | None) -> Script[list[str]]:
    trial = _Trial(stand, call, state, reset)
    yield from trial.begin()
    lease = stand.app.settings.lease
    for fault in (
        faults.run_twice(),
        faults.lose_lease("before"),
        faults.crash("before"),
        faults.crash("after"),
        faults.slow_store(lease * 2),
    ):
        yield from trial.under(fault)
        if trial.problems and reset is None:
            # The state is wrong from here on, so that the other faults would show nothing.
            trial.problems.append("  give reset=… to try the other faults as well")
            break
    if reset is not None:
        for line in range(1, MOST_LINES):
            fault = faults.Crash(f"crash before line {line} of the function", line)
            yield from trial.under(fault)
            if fault.missed:
                trial.tried.pop()
                break
    if trial.problems:
        raise AssertionError("\n".join([f"{call.job.task} is not idempotent:", *trial.problems]))
    return trial.tried


class _Trial:
    def __init__(self, stand: StandIn, call: JobCall[Any], state: State, reset: Reset | None) -> None:
        self._stand = stand
        # Each trial needs a job of its own, now, and must not meet the key or lock of another.
        self._job = replace(call.job, key=None, unique=None, due=None)
        self._state = state
        self._reset = reset
        self._id: JobId | None = None
        self._wanted: Any = None
        self.tried: list[str] = []
        self.problems: list[str] = []

    def begin(self) -> Script[None]:
        """Run the job without a fault, for the state that is wanted."""
        yield from self._afresh()
        job, ran = yield from self._run(None)
        if job.state is not JobState.DONE:
            error = next((attempt.error for attempt in reversed(ran) if attempt.error is not None), None)
            raise AssertionError(f"{job.task} is {job.state} after a run without faults") from error
        self._wanted = yield from self._look()

    def under(self, fault: Fault) -> Script[None]:
        """Run the job under a fault, and compare."""
        self.tried.append(fault.label)
        yield from self._afresh()
        job, ran = yield from self._run(fault)
        state = yield from self._look()
        if job.state not in {JobState.DONE, JobState.CANCELLED}:
            errors = [
                f"attempt {attempt.attempt} raised {attempt.error!r}" for attempt in ran if attempt.error is not None
            ]
            self.problems.append(f"  {fault.label}: the job is {job.state}; {'; '.join(errors) or 'no attempt raised'}")
        elif state != self._wanted:
            self.problems.append(f"  {fault.label}: the state is {state!r}, not {self._wanted!r}")

    def _afresh(self) -> Script[None]:
        store = self._stand.store
        if self._reset is not None:
            yield from _call(self._reset)
        if self._reset is not None or self._id is None:
            batch = Batch(new_batch(), [self._job])
            yield StoreCall(partial(store.enqueue, batch))
            self._id = job_id(batch.id, 0)
        else:
            # The same job once more: guards by job id must hold.
            yield StoreCall(partial(store.retry, [self._id]))

    def _run(self, fault: Fault | None) -> Script[tuple[Job, list[Ran]]]:
        stand, ran = self._stand, list[Ran]()
        assert self._id is not None
        while len(ran) < MOST_ATTEMPTS:
            attempt: Attempt | None = yield StoreCall(partial(stand.claim, (self._job.lane.queue,), self._id))
            if attempt is None:
                break
            ran += yield from steps(stand, attempt, () if fault is None else (fault,))
        [job] = yield StoreCall(partial(stand.store.get, [self._id]))
        if not ran:
            raise AssertionError(f"the job of {self._job.task} cannot start: a pause or a limit keeps it")
        return job, ran

    def _look(self) -> Script[Any]:
        state = yield from _call(self._state)
        # A state that the next attempt changes in place would always be equal to itself.
        return copy.deepcopy(state)


def _call(function: Callable[[], Any]) -> Script[Any]:
    value = function()
    if inspect.isawaitable(value):
        waiting = value

        async def wait() -> Any:
            return await waiting

        value = yield Here(wait)
    return value
