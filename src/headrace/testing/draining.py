"""`drain`: runs the jobs that are ready, in the calling test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Literal

from headrace.errors import HeadraceError
from headrace.model.job import JobId
from headrace.model.lane import check_queue
from headrace.testing.faults import Fault
from headrace.testing.lifespan import ahooks_around, hooks_around
from headrace.testing.script import Script, StoreCall, aplay, play
from headrace.testing.stand_in import AppUnderTest, StandIn, stand_of
from headrace.testing.steps import Ran, is_failure, steps
from headrace.worker.attempt import Attempt

Errors = Literal["raise", "retry"]
MOST = 10_000
"""Attempts after which `drain` without `max_jobs` gives up."""


def drain(
    app: AppUnderTest,
    queue: str | Sequence[str] | None = None,
    *,
    until_empty: bool = True,
    max_jobs: int | None = None,
    advance: bool = False,
    errors: Errors = "retry",
    fault: Fault | Iterable[Fault] = (),
) -> list[Ran]:
    """Run the jobs that are ready now, one after the other, in this thread. Returns what ran, in its order.

    ```py
    [ran] = drain(app)
    assert ran.outcome == "succeeded"
    ```

    Jobs that those jobs enqueue run, too, and so do retries, delayed jobs and slots of schedules that are due by the
    test's clock. `queue`: only these queues. `until_empty=False`: only the jobs that are ready at the call. `max_jobs`:
    stop after so many attempts. `advance=True`: when nothing is ready, move the clock to the next job that becomes due,
    until no job waits for time. `errors="raise"`: raise the error of the first attempt that fails. `fault`: what happens
    to each job once; see `headrace.testing.faults`.

    The app's hooks `@app.on_start`, `@app.on_stop` and `@app.lifespan` run around the jobs, as around those of a worker.
    """
    stand, only = stand_of(app), _names(queue)
    with hooks_around(stand, only) as run:
        return play(_drain(stand, only, until_empty, max_jobs, advance, errors, fault), run)


async def adrain(
    app: AppUnderTest,
    queue: str | Sequence[str] | None = None,
    *,
    until_empty: bool = True,
    max_jobs: int | None = None,
    advance: bool = False,
    errors: Errors = "retry",
    fault: Fault | Iterable[Fault] = (),
) -> list[Ran]:
    """The same for async code: async tasks run in this event loop, and sync tasks in a thread."""
    stand, only = stand_of(app), _names(queue)
    async with ahooks_around(stand, only):
        return await aplay(_drain(stand, only, until_empty, max_jobs, advance, errors, fault))


def _names(queue: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return None if queue is None else tuple(map(check_queue, (queue,) if isinstance(queue, str) else queue))


def _drain(
    stand: StandIn,
    only: tuple[str, ...] | None,
    until_empty: bool,
    max_jobs: int | None,
    advance: bool,
    errors: Errors,
    fault: Fault | Iterable[Fault],
) -> Script[list[Ran]]:
    faults = (fault,) if isinstance(fault, Fault) else tuple(fault)
    most = MOST if max_jobs is None else max_jobs
    done: list[Ran] = []
    yield StoreCall(stand.catch_up)
    now: list[JobId] | None = None
    if not until_empty:
        queues = yield from _served(stand, only)
        now = yield StoreCall(partial(stand.store.ready, queues))
    moves = 0
    while len(done) < most and moves < MOST:
        attempt: Attempt | None = None
        if now is None:
            attempt = yield StoreCall(partial(stand.next_attempt, only))
        while now and attempt is None:
            attempt = yield StoreCall(partial(stand.next_attempt, only, now.pop(0)))
        if attempt is not None:
            ran = yield from steps(stand, attempt, faults)
            done += ran
            if errors == "raise":
                raise_first(ran)
            continue
        if not advance or now is not None:
            return done
        queues = yield from _served(stand, only)
        next_at: datetime | None = yield StoreCall(partial(stand.next_change, queues))
        if next_at is None:
            return done
        moves += 1
        stand.clock.advance(next_at - stand.clock.now())
    if max_jobs is None:
        raise AssertionError(
            f"drain ran {len(done):,} attempts, the last one of task {done[-1].task if done else '?'}, and jobs are still "
            "ready: does a task enqueue itself? Give max_jobs to stop earlier"
        )
    return done


def _served(stand: StandIn, only: tuple[str, ...] | None) -> Script[tuple[str, ...]]:
    if only is not None:
        return only
    queues: tuple[str, ...] = yield StoreCall(stand.queues)
    return queues


def raise_first(ran: Iterable[Ran]) -> None:
    """Raise the error of the first failed attempt, if there is one."""
    for attempt in ran:
        if is_failure(attempt):
            raise attempt.error or HeadraceError(
                f"job {attempt.id} of {attempt.task} failed in attempt {attempt.attempt}"
            )
