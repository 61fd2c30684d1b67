"""`app.inline()`: each job runs in the code that enqueues it, before the enqueue call returns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from types import TracebackType
from typing import Self

from headrace.errors import ConfigError
from headrace.model.job import JobId, JobState
from headrace.testing.clock import FakeClock
from headrace.testing.draining import Errors, raise_first
from headrace.testing.execute import run_coroutine
from headrace.testing.lifespan import ahooks_around, hooks_around
from headrace.testing.script import Script, StoreCall, aplay, play
from headrace.testing.stand_in import AppUnderTest, StandIn, find_stand, use_memory
from headrace.testing.steps import Ran, steps
from headrace.worker.attempt import Attempt

MOST = 100
"""Attempts of one job under faults."""


class Inline:
    """A context manager, sync and async. It makes a memory store for the app, unless `use_memory(app)` is in force."""

    def __init__(self, app: AppUnderTest, *, errors: Errors = "raise", clock: FakeClock | None = None) -> None:
        if errors not in {"raise", "retry"}:
            raise ConfigError(f'errors = {errors!r}: write "raise" or "retry"')
        self._app = app
        self._errors = errors
        self._clock = clock
        self._exit = ExitStack()
        self._aexit = AsyncExitStack()
        self._stand: StandIn | None = None
        self._blocked: list[JobId] = []
        """Jobs that wait for others. They run as soon as those have ended."""

    @property
    def stand(self) -> StandIn:
        """The app's memory store and clock."""
        if self._stand is None:
            raise ConfigError("use this inside `with app.inline():`")
        return self._stand

    @property
    def clock(self) -> FakeClock:
        """The clock of the app's jobs."""
        return self.stand.clock

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            opening.enter_context(hooks_around(self._stand_in(opening)))
            self._exit = opening.pop_all()
        return self

    def _stand_in(self, opening: ExitStack | AsyncExitStack) -> StandIn:
        """Let the app run each job when it is enqueued, until `opening` ends."""
        self._stand = stand = find_stand(self._app) or opening.enter_context(use_memory(self._app, clock=self._clock))
        opening.callback(setattr, self, "_stand", None)
        before, self._app.inline_runner = self._app.inline_runner, self
        opening.callback(setattr, self._app, "inline_runner", before)
        opening.callback(setattr, stand.front, "committed", stand.front.committed)
        stand.front.committed = self.run
        return stand

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(ahooks_around(self._stand_in(opening)))
            self._aexit = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._aexit.aclose()

    # ── for the app ─────────────────────────────────────────────────────────
    def run(self, ids: Sequence[JobId], *, awaited: bool = False) -> None:
        """Run these jobs in this thread, and those that follow. A job that is delayed, limited or paused waits.

        `awaited`: no error is raised for a job that is dead, because the task that awaits it gets JobDead.
        """
        play(self._script(ids, awaited=awaited), self.stand.run_coroutine or run_coroutine)

    async def arun(self, ids: Sequence[JobId], *, awaited: bool = False) -> None:
        """The same in this event loop."""
        await aplay(self._script(ids, awaited=awaited))

    def _script(self, ids: Sequence[JobId], *, awaited: bool) -> Script[None]:
        for id in ids:
            yield from self._run(id, awaited=awaited)
        waiting = len(self._blocked) + 1
        while len(self._blocked) < waiting:
            waiting = len(self._blocked)
            ready, self._blocked = self._blocked, []
            for id in ready:
                yield from self._run(id)

    def _run(self, id: JobId, *, awaited: bool = False) -> Script[None]:
        stand = self.stand
        ran: list[Ran] = []
        attempt: Attempt | None = yield from _claim(stand, id)
        if attempt is None:
            [job] = yield StoreCall(partial(stand.store.get, [id]))
            if job is not None and job.state is JobState.BLOCKED:
                self._blocked.append(id)
        while attempt is not None and len(ran) < MOST:
            ran += yield from steps(stand, attempt)
            attempt = (yield from _claim(stand, id)) if ran[-1].fault is not None else None
        if self._errors == "raise":
            raise_first(attempt for attempt in ran if not awaited or attempt.state is not JobState.DEAD)


def _claim(stand: StandIn, id: JobId) -> Script[Attempt | None]:
    attempt: Attempt | None = yield StoreCall(partial(stand.next_attempt, None, id))
    return attempt


def inline(app: AppUnderTest, *, errors: Errors = "raise", clock: FakeClock | None = None) -> Inline:
    """Run each job when it is enqueued, in the code that enqueues it; `with` or `async with`. Also `app.inline()`.

    ```py
    with inline(app):
        assert add.enqueue(2, 3).result() == 5
    ```

    Jobs that a job enqueues run, too. A job with a delay, and one that a limit or a pause keeps, waits for `drain`.
    `errors`: `"raise"` raises the error of a failed job from the enqueue call; `"retry"` leaves the job to its retry
    policy. In both cases the failure is stored, as a worker would store it. The hooks `@app.on_start`,
    `@app.on_stop` and `@app.lifespan` run once, around the block. Write `async with` where async tasks use what async
    hooks open.
    """
    return Inline(app, errors=errors, clock=clock)
