"""The stand-in of one app: a memory store, a clock, and what a worker has besides its slots."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from headrace.client.produce import InlineRunner
from headrace.client.queue_guard import bounded
from headrace.errors import ConfigError, LeaseLost, Unsupported
from headrace.model.job import JobId
from headrace.model.lease import Ask, Lease, Orphan, Token, WorkerId, new_token, new_worker_id
from headrace.model.outcome import Lost, Outcome, Settlement
from headrace.model.step import Step
from headrace.operate.children import cancel_children
from headrace.operate.limits import Limits
from headrace.policy.effective import DEFAULTS, effective, settlement
from headrace.policy.flow import Planner
from headrace.runtime.portal import portal
from headrace.settings import Settings
from headrace.store.contract import Store
from headrace.task.task import Task
from headrace.testing.clock import FakeClock
from headrace.testing.execute import RunCoroutine
from headrace.testing.store import FrontStore, TestStore, as_store
from headrace.webhooks.deliver import QUEUE as WEBHOOKS
from headrace.webhooks.deliver import DeliveryMaker, batches_of
from headrace.worker.attempt import LOST, Attempt, ResolvedTask
from headrace.worker.attempt_meter import tell_end
from headrace.worker.children import parent_of
from headrace.worker.completer import GONE
from headrace.worker.duties import Duties
from headrace.worker.executor import UnresolvedTask
from headrace.worker.failure_hooks import FailureHooks
from headrace.worker.inputs import InputReader, has_inputs
from headrace.worker.journal import AttemptSteps
from headrace.worker.limit_feedback import LimitFeedback
from headrace.worker.outcome_of import encode_result
from headrace.worker.reporter import Reporter
from headrace.worker.settler import settlement_of
from headrace.worker.state import DeadlineWatch, HeldLease, WorkerState
from headrace.worker.step_writer import StepWriter
from headrace.worker.ticker import Ticker

T = TypeVar("T")

_active: list[StandIn] = []
_lock = threading.Lock()


class AppUnderTest(Protocol):
    """The parts of a `Headrace` that the kit uses."""

    inline_runner: InlineRunner | None

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def duties(self) -> Duties: ...

    def standing_in(self, store: Store) -> AbstractContextManager[None]: ...


def in_portal(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `make()`, for sync code."""
    return portal.run(make)


async def ain_portal(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The same for async code. The store belongs to the portal's event loop."""
    if asyncio.get_running_loop() is portal.loop:
        return await make()
    return await portal.answer_of(make)


class _ClockWatch(DeadlineWatch):
    """The test's clock in place of the store's estimated one."""

    __slots__ = ("clock",)

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self._ahead = 0.0

    def now(self) -> float:
        return self.clock.now().timestamp()

    about = now


class _Completions:
    """`job.complete(…, tx=)`: the job is done if its task then returns. A task that raises has rolled back."""

    def __init__(self) -> None:
        self.results: dict[JobId, bytes | None] = {}

    async def complete(self, attempt: Attempt, result: Any, tx: object) -> None:
        self.complete_sync(attempt, result, tx)

    def complete_sync(self, attempt: Attempt, result: Any, tx: object) -> None:
        del tx
        if attempt.completed:
            raise Unsupported("this job was completed before: complete it once, inside the task")
        if attempt.held.lost:
            raise LeaseLost(GONE)
        self.results[attempt.job.id] = encode_result(attempt, result)
        attempt.completed = True

    async def detach(self, attempt: Attempt) -> None:
        """Each attempt has a lease of its own already."""


class _StepWriter(StepWriter):
    def keeper(self, attempt: Attempt) -> AttemptSteps:
        return _AttemptSteps(self, attempt)


class _AttemptSteps(AttemptSteps):
    """`step.using(tx=…)`: the memory store is in no transaction, so the step is stored at once."""

    async def add_in(self, step: Step, tx: object) -> None:
        del tx
        await self.add(step, lazy=False)

    def add_in_sync(self, step: Step, tx: object) -> None:
        del tx
        self.add_sync(step, lazy=False)


class StandIn:
    """What `use_memory(app)` gives: the app's jobs are in memory, and its time is the time of `clock`."""

    def __init__(self, app: AppUnderTest, clock: FakeClock | None = None, *, lifespan: bool = True) -> None:
        """`clock`: a new one begins at the present time. `lifespan=`: see `use_memory`."""
        self.app = app
        """The app whose store it replaces."""
        self.clock = clock or FakeClock(datetime.now(UTC))
        """The time of the app's jobs."""
        self.store = TestStore(clock=self.clock)
        """The jobs. It belongs to the portal's event loop."""
        self.front = FrontStore(portal, self.store)
        """The same store, for every event loop."""
        self.completions = _Completions()
        """The results of jobs that their tasks completed in a transaction."""
        self.workers: dict[Token, WorkerId] = {}
        """The worker of each lease. Each attempt has a worker of its own, so that a fault can lose one alone."""
        self.running: set[Token] = set()
        """Leases of attempts that run now. Their workers send heartbeats, however far the clock moves."""
        self.run_coroutine: RunCoroutine | None = None
        """Runs async tasks for sync code. None: the app's hooks for start and end do not run now."""
        self._duties = app.duties
        self._lifespan = lifespan
        self._exit = ExitStack()
        self._state: WorkerState | None = None

    # ── the context manager ─────────────────────────────────────────────────
    def __enter__(self) -> Self:
        with ExitStack() as opening:
            opening.enter_context(self.app.standing_in(as_store(self.front)))
            with _lock:
                _active.append(self)
            opening.callback(self._leave)
            in_portal(self.introduce)
            self.clock.before_move.append(self._introduce)
            self._exit = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _leave(self) -> None:
        with _lock:
            _active.remove(self)
        if self._introduce in self.clock.before_move:
            self.clock.before_move.remove(self._introduce)

    @property
    def must_run_hooks(self) -> bool:
        """The app has hooks for start and end, and they do not run now."""
        return self._lifespan and self.run_coroutine is None and bool(self._duties.hooks.life)

    # ── in the portal's loop ────────────────────────────────────────────────
    @property
    def state(self) -> WorkerState:
        """What a worker would share between its services."""
        if self._state is None:
            duties = self._duties
            state = WorkerState(
                self.app.tasks,
                self.store,
                self.app.settings,
                id=new_worker_id(),
                queues=(),
                delivery_maker=DeliveryMaker(duties.webhooks.declared),
                hooks=duties.hooks,
            )
            state.watch = _ClockWatch(self.clock)
            state.completer = self.completions
            state.reporter = Reporter(state, lose=lambda _: None)
            state.step_writer = _StepWriter(state, lose=lambda _: None)
            self.feedback = LimitFeedback(state, duties.limits, Planner((), duties.queues), opened=lambda: None)
            state.feedback = self.feedback
            state.failure_hooks = FailureHooks(duties.hooks.on_failure)
            self._state = state
        return self._state

    def _introduce(self) -> None:
        in_portal(self.introduce)

    async def introduce(self) -> Ticker:
        """Store what the app declares: limits, and schedules, whose first slot is counted from now."""
        duties, settings = self._duties, self.app.settings
        await Limits(self.store).declare(duties.limits, app=settings.app)
        ticker = Ticker(
            bounded(self.store, duties.queues),
            duties.schedules,
            app=settings.app,
            tasks=frozenset(self.app.tasks),
            emit=self.state.emit,
            poll=3600.0,
        )
        await ticker.introduce()
        return ticker

    async def catch_up(self) -> None:
        """Do what workers do when time has passed: fire slots, take over expired leases, promote what is due."""
        await self.store.heartbeat(tuple(self.running), self.app.settings.lease)
        ticker = await self.introduce()
        changes = -1
        while changes != self.store.changes:
            changes = self.store.changes
            await ticker.tick()
        while orphans := await self.store.reap(self.state.id, self.app.settings.lease):
            for orphan in orphans:
                await self._rehome(orphan)
        while (await self.store.promote()).moved:
            pass

    async def queues(self) -> tuple[str, ...]:
        """Every queue that has had jobs, or whose tasks are declared. Deliveries of webhooks are not run."""
        names = {task.options.queue for task in self.app.tasks.values()} | self.store.queues
        return tuple(sorted(names - {WEBHOOKS}))

    async def next_attempt(self, only: tuple[str, ...] | None, id: JobId | None = None) -> Attempt | None:
        """Catch up with the clock, then claim: from all queues, or only from these. None: nothing may start now."""
        await self.catch_up()
        return await self.claim(await self.queues() if only is None else only, id)

    async def claim(self, queues: tuple[str, ...], id: JobId | None = None) -> Attempt | None:
        """Claim the next job, by the queues' policies, or this one. None: nothing may start now."""
        worker = new_worker_id()
        self.state.paused = {pause.name: pause for pause in await self.store.pauses() if pause.kind == "task"}
        queues = tuple(self._open(queues))
        if id is not None:
            return await self._attempt(await self.store.claim_one(id, self._ask(worker, queues)), worker)
        planner = Planner(queues, self._duties.queues)
        if planner.watched:
            planner.saw(await self.store.lanes(planner.watched), self.clock.now())
        order = planner.plan(1)
        return await self._attempt(
            await self.store.claim(self._ask(worker, queues, order.bands, order.weights)), worker
        )

    async def next_change(self, queues: tuple[str, ...]) -> datetime | None:
        """When time alone makes the next job of these queues claimable. None: no time does."""
        now, open_now = self.clock.now(), set(self._open(queues))
        change = await self.store.next_change(queues, open_now)
        times = [] if change is None else [change]
        for name in set(queues) - open_now:
            hours = self._duties.queues[name].open
            opens = None if hours is None else hours.next_change(now)
            if opens is not None and await self.store.ready((name,)):
                times.append(opens)
        return min(times, default=None)

    def _open(self, queues: tuple[str, ...]) -> Iterator[str]:
        """Those of the queues that are within their open hours."""
        now, declared = self.clock.now(), self._duties.queues
        for name in queues:
            hours = declared[name].open if name in declared else None
            if hours is None or hours.is_open(now):
                yield name

    def _ask(self, worker: WorkerId, queues: tuple[str, ...], bands: Any = (), weights: Any = None) -> Ask:
        ttl = self.app.settings.lease
        return Ask(worker, queues, 1, ttl, new_token(), bands=bands, weights=weights or {})

    async def _attempt(self, lease: Lease | None, worker: WorkerId) -> Attempt | None:
        if lease is None:
            return None
        [job] = lease.jobs
        held = HeldLease(self.state, lease.token, suspect=lease.suspect)
        known: ResolvedTask = self.state.known(job.task) or UnresolvedTask(job.task)
        attempt = Attempt(held, 0, job, known)
        held.attempts.append(attempt)
        self.workers[attempt.held.token] = worker
        if has_inputs(job):
            reader = InputReader(self.store, self._duties.hooks.large_results, self.state.name)
            [(_, attempt.unready)] = await reader.fill([attempt])
        return attempt

    async def lose(self, attempt: Attempt, cause: str) -> None:
        """The attempt's worker is lost. Another one takes the job over, and the retry rule decides what follows."""
        attempt.held.lost = True
        attempt.reason = LOST
        await self.store.abandon(self.workers[attempt.held.token], cause)
        await self.catch_up()

    async def settle(self, attempt: Attempt, outcome: Outcome) -> Settlement | None:
        """Write what follows from an outcome. None: the lease is lost, and nothing was written."""
        state, held = self.state, attempt.held
        follows = settlement_of(attempt, outcome)
        await state.reporter.flush(held)
        for batch in batches_of(state.delivery_maker.news(attempt.job, follows)):
            await self.store.enqueue(batch)
        if await self.store.settle(held.token, [(attempt.position, follows)]):
            return None
        if (parent := parent_of(attempt, follows)) is not None:
            await cancel_children(self.store, [parent])
        if state.hooks.meter is not None:
            tell_end(state.hooks.meter, attempt, outcome)
        state.tell_failure(attempt.job, follows)
        if state.listeners:
            state.emit("attempt.ended", id=attempt.job.id, task=attempt.job.task, outcome=outcome)
        self.feedback.saw(attempt.observed, outcome)
        await self.feedback.flush()
        return follows

    async def _rehome(self, orphan: Orphan) -> None:
        lost = Lost(cause=orphan.cause, own=orphan.suspect, at=self.clock.now())
        decided: list[tuple[int, Settlement]] = []
        for position, job in orphan.jobs:
            known = self.state.known(job.task)
            own = effective(job, DEFAULTS if known is None else known.usual)
            decided.append((position, settlement(job, lost, own, self.state.watch.now)))
        await self.store.settle(orphan.token, decided)
        for (_, job), (_, follows) in zip(orphan.jobs, decided, strict=True):
            self.state.tell_failure(job, follows)


def use_memory(app: AppUnderTest, *, clock: FakeClock | None = None, lifespan: bool = True) -> StandIn:
    """Let an app keep its jobs in a fresh memory store, whatever its URL; `with` or `async with`.

    ```py
    with use_memory(app) as stand:
        charge.enqueue(7, "acme")
        stand.clock.move("2h")
        drain(app)
    ```

    At the end the app has its own store again, which was not touched. `clock`: a new one begins at the present time.
    `lifespan=False`: the hooks `@app.on_start`, `@app.on_stop` and `@app.lifespan` do not run.
    """
    return StandIn(app, clock, lifespan=lifespan)


def find_stand(app: object) -> StandIn | None:
    """The stand-in that the app has now."""
    return next((stand for stand in reversed(_active) if stand.app is app), None)


def stand_of(app: object) -> StandIn:
    """The stand-in that the app has now, or a ConfigError."""
    stand = find_stand(app)
    if stand is None:
        raise ConfigError("this app has no store for tests now: call this inside `with use_memory(app):`")
    return stand


def active_stands() -> Sequence[StandIn]:
    """All stand-ins in force, the newest first."""
    return tuple(reversed(_active))
