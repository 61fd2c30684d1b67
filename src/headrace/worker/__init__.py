"""The worker: services that claim, execute, settle, keep, tidy and tick. Embeddable: `async with Worker(…)`."""

from __future__ import annotations

import asyncio
import hashlib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from headrace.client.queue_guard import bounded
from headrace.errors import ConfigError, StoreDamaged
from headrace.model.lane import check_queue
from headrace.model.lease import WorkerId, new_worker_id
from headrace.policy.explain.sentences import count
from headrace.policy.flow import Planner
from headrace.policy.queue import dead_alerts, dead_retentions
from headrace.policy.settings_checks import refuse_short_lease
from headrace.settings import Settings
from headrace.store.contract import Store
from headrace.supervisor.figures import AWAY, QUIET, SERVING, WorkerFigures
from headrace.supervisor.series import Series
from headrace.task.hooks import Listener
from headrace.webhooks.deliver import QUEUE, TASK, DeliveryMaker, Sender
from headrace.worker.completer import Completer
from headrace.worker.dead_alert import DeadAlertLog
from headrace.worker.duties import Duties
from headrace.worker.executor import Executor
from headrace.worker.failure_hooks import FailureHooks
from headrace.worker.fetcher import Fetcher
from headrace.worker.history import HistoryWriter
from headrace.worker.janitor import Janitor
from headrace.worker.keeper import Keeper
from headrace.worker.lifecycle import Lifecycle
from headrace.worker.limit_feedback import LimitFeedback
from headrace.worker.open_queues import OpenNow
from headrace.worker.orders import Orders
from headrace.worker.relay import RelayService
from headrace.worker.reporter import Reporter
from headrace.worker.service import Service, log
from headrace.worker.settler import Settler
from headrace.worker.shared_page import PageWriter, SharedPage
from headrace.worker.state import Counters, HeldLease, WorkerState
from headrace.worker.step_writer import StepWriter
from headrace.worker.ticker import Ticker

if TYPE_CHECKING:
    from headrace.task.task import Task

__all__ = ["Counters", "Duties", "Worker"]

NO_DUTIES = Duties()
FLUSH_SECONDS = 10.0
"""How long a stopping worker waits for the store to take its last results."""


class Worker:
    """Runs the jobs of some queues. The caller opens and closes the store."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        store: Store,
        settings: Settings,
        *,
        queues: tuple[str, ...] | None = None,
        id: WorkerId | None = None,
        page: SharedPage | None = None,
        duties: Duties = NO_DUTIES,
    ) -> None:
        served = queues or settings.queues or tuple(sorted({task.options.queue for task in tasks.values()}))
        if not served:
            raise ConfigError("a worker needs a queue to serve: declare a task, or name queues")
        for queue in served:
            check_queue(queue)
        refuse_short_lease(settings)
        webhooks = duties.webhooks
        remote = settings.is_remote
        if webhooks.signs and (QUEUE in served or not remote):
            # Every worker serves the queue of webhooks, so that deliveries do not depend on the queues an operator
            # names. A remote worker does not, because its token may see only its own queues and the server would refuse
            # its claims.
            served = tuple(dict.fromkeys((*served, QUEUE)))
            sender = Sender(webhooks, store, slots=settings.concurrency)
            tasks = ChainMap({TASK: sender.task()}, cast("dict[str, Task[..., Any]]", tasks))
        elif webhooks.declared and not remote:
            log.warning("webhooks are declared and there is no secret to sign with: set HEADRACE_WEBHOOK_SECRET")
        delivery_maker = DeliveryMaker(webhooks.declared)
        self._state = WorkerState(
            tasks,
            store,
            settings,
            id=id or new_worker_id(),
            queues=tuple(served),
            page=page,
            delivery_maker=delivery_maker,
            hooks=duties.hooks,
        )
        self._state.open_now = OpenNow(duties.queues, self._state.watch.now)
        self._state.store = self._state.open_now.only(store)
        self._lifecycle = Lifecycle(duties.hooks.life, self._state.info)
        self._duties = duties
        self._running = False
        self._drain: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self.dismissed = asyncio.Event()
        """An operator has ordered this worker to drain and end. It drains by itself; its process should end afterwards."""
        self._orders = Orders(self._state, hush=self._hush, go_on=self._go_on, drain=self._dismiss)

    # ── looking ─────────────────────────────────────────────────────────────
    @property
    def id(self) -> WorkerId:
        return self._state.id

    @property
    def name(self) -> str:
        """host:pid, for display."""
        return self._state.name

    @property
    def queues(self) -> tuple[str, ...]:
        return self._state.queues

    @property
    def counters(self) -> Counters:
        return self._state.counters

    @property
    def running(self) -> int:
        """Jobs whose tasks are under way."""
        return self._executor.running + self._executor.suspects.running if self._running else 0

    @property
    def waiting(self) -> int:
        """Jobs claimed and not started."""
        return self._executor.waiting if self._running else 0

    def figures(self) -> WorkerFigures:
        """What the supervisor shows of this worker."""
        state = self._state
        figures = WorkerFigures(**state.counters.as_dict(), **state.calls.as_dict())
        if not self._running:
            return figures
        executor = self._executor
        return figures._replace(
            state=SERVING | QUIET * state.quiet | AWAY * (not state.reachable or self._settler.failing),
            slots=executor.size,
            threads=executor.threads.size,
            processes=executor.processes.size,
            running_async=executor.loop.running,
            running_thread=executor.threads.running,
            running_process=executor.processes.running + executor.suspects.running,
            waiting=executor.waiting,
        )

    def series(self) -> Iterator[Series]:
        """What the supervisor shows by queue, task, call and limit."""
        yield from self._state.tally.times().series()
        yield from self._state.calls.series()
        if self._running:
            yield from self._feedback.units()

    @property
    def idle(self) -> asyncio.Event:
        """Set while there is nothing to claim and nothing held."""
        return self._fetcher.idle

    async def until_damaged(self) -> StoreDamaged:
        """Wait until the store is found damaged. The worker can then never settle what it holds."""
        await self._state.damaged.wait()
        assert self._state.damage is not None  # It is set before the event.
        return self._state.damage

    def on_event(self, listener: Listener) -> None:
        """Call `listener(name, fields)` at every event. It runs in the event loop and must return quickly."""
        self._state.listeners.append(listener)
        self._state.observed = True

    # ── life ────────────────────────────────────────────────────────────────
    async def start(self) -> None:
        """Run the app's hooks for the start, then claim. Raises HookFailed if a hook fails."""
        page = self._state.page
        if page is None:
            await self._lifecycle.start()
            self._start_services([])
            return
        # The pulse comes first. Without it, the supervisor would take a slow hook for a blocked event loop.
        seconds = min(0.25, self._state.settings.heartbeat.total_seconds() / 4)
        pulse = PageWriter(page, seconds, self.figures, self.series)
        pulse.start()
        try:
            await self._lifecycle.start()
        except BaseException:
            await pulse.stop()
            raise
        self._start_services([pulse])

    def _start_services(self, started: list[Service]) -> None:
        state = self._state
        self._settler = Settler(state, idle=self._has_room, lose=self._lose, freed=self._freed, due=self._due)
        self._completer = Completer(state, self._settler)
        state.completer = self._completer
        state.reporter = reporter = Reporter(state, lose=self._lose)
        state.step_writer = StepWriter(state, lose=self._lose)
        self._fetcher = Fetcher(state, lambda: self._executor, self._settler, lambda: self._feedback)
        planner = Planner(state.queues, self._duties.queues)
        self._feedback = LimitFeedback(state, self._duties.limits, planner, opened=self._fetcher.nudge.ring)
        state.feedback = self._feedback
        self._executor = Executor(state, self._settler, self._completer, low=self._fetcher.freed)
        self._keeper = Keeper(
            state,
            lambda: self._executor,
            lambda: self._settler.failing,
            upkeep_group=self._upkeep_group(),
            upkeep=self._begin_upkeep,
            orders=self._orders.hear,
            ready=self._fetcher.nudge.ring,
        )
        alert_log = DeadAlertLog(state, dead_alerts(self._duties.queues), self._duties.dead_alert_hooks)
        self._janitor = Janitor(
            state,
            work=self._fetcher.nudge.ring,
            alert_log=alert_log,
            queues=self._duties.queues,
            looks=self._fetcher.looks,
        )
        self._ticker = Ticker(
            bounded(state.store, self._duties.queues),
            self._duties.schedules,
            app=state.settings.app,
            tasks=frozenset(state.tasks),
            emit=state.emit,
            on_duty=lambda: state.upkeep,
        )
        self._services: list[Service] = [self._settler, self._executor, self._keeper, self._ticker, self._fetcher]
        self._services += [
            reporter,
            self._feedback,
            *self._janitor.services,
            HistoryWriter(state, slots=state.settings.concurrency),
        ]
        if self._duties.outbox is not None:
            self._services.append(RelayService(self._duties.outbox, bounded(state.store, self._duties.queues)))
        if self._duties.hooks.on_failure:
            state.failure_hooks = FailureHooks(self._duties.hooks.on_failure)
            self._services.append(state.failure_hooks)
        for service in self._services:
            service.start()
        self._services += started
        self._running = True
        log.info("worker %s serves %s", state.name, ", ".join(state.queues), extra={"worker": state.name})
        state.emit("worker.joined", worker=state.id, name=state.name, queues=state.queues)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Run until told to stop, by the event or by an operator's order, then drain."""
        async with self:
            waits = [asyncio.create_task(event.wait()) for event in (stop, self.dismissed)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def quiet(self) -> None:
        """Claim nothing more. Jobs that the worker holds go on."""
        self._orders.forget()
        self._hush()

    def _hush(self) -> None:
        self._state.quiet = True
        if self._running:
            self._fetcher.hush()

    def _go_on(self) -> None:
        if self._drain is None:
            self._state.quiet = False
            self._fetcher.bell.ring()
            self._fetcher.nudge.ring()

    def _dismiss(self) -> None:
        """Drain in a task of its own, because the drain stops the service that read the order."""
        self.dismissed.set()
        if self._drain is None:
            seconds = self._state.settings.drain.total_seconds()
            self._drain = asyncio.create_task(self._wind_down(seconds), name="headrace-drain")

    def hurry(self) -> None:
        """Drain without waiting for running jobs. A worker that has not started yet interrupts its hooks and ends."""
        self._hurry.set()
        self._lifecycle.hurry()

    async def drain(self, seconds: float | None = None) -> None:
        """Claim nothing more, hand back jobs that have not started, let the others finish, and hand back the rest."""
        if not self._running:
            return
        if self._drain is None:
            limit = self._state.settings.drain.total_seconds() if seconds is None else seconds
            self._drain = asyncio.create_task(self._wind_down(limit), name="headrace-drain")
        elif seconds == 0:
            self._hurry.set()
        await asyncio.shield(self._drain)

    async def _wind_down(self, seconds: float) -> None:
        self._fetcher.hush()
        until = asyncio.get_running_loop().time() + seconds
        self._executor.hand_back()
        await self._until_still(until)
        await self._fetcher.stop()
        if left := self._executor.unfinished:
            log.info(
                "%s did not end in time: the worker hands back what runs, and counts no attempt", count(left, "job")
            )
            self._executor.hand_back()
            self._executor.release_running()
            grace = self._state.settings.kill_grace.total_seconds() + 1.0
            self._hurry.clear()
            await self._until_still(asyncio.get_running_loop().time() + grace)
            self._executor.give_up()
        await self._completer.flush(FLUSH_SECONDS)
        if not await self._settler.flush(FLUSH_SECONDS):
            log.warning("the store did not accept the last results in time: their jobs will run again")
        await self._leave()

    async def _until_still(self, until: float) -> None:
        """Wait until nothing runs, at most until that time; a second stop signal ends the wait."""
        loop = asyncio.get_running_loop()
        while self._executor.unfinished or self._fetcher.claiming:
            left = until - loop.time()
            if left <= 0 or self._hurry.is_set():
                return
            self._executor.hand_back()
            await asyncio.sleep(min(left, 0.02))

    async def _leave(self) -> None:
        await self._executor.close()
        if self._state.failure_hooks is not None:
            await self._state.failure_hooks.flush(FLUSH_SECONDS)
        await self._lifecycle.stop()
        for service in self._services:
            await service.stop()
        await self._janitor.stop()
        try:
            await self._state.store.retire(self.id)
        except Exception as error:  # noqa: BLE001  # whatever it is, this worker is leaving
            log.warning("cannot sign off: %s", error)
        self._running = False
        log.info("worker %s has left", self._state.name, extra={"worker": self.name, **self.counters.as_dict()})
        self._state.emit("worker.left", worker=self.id, name=self._state.name)

    # ── upkeep ──────────────────────────────────────────────────────────────
    def _upkeep_group(self) -> str:
        """Workers of one group would do the same upkeep: same tasks and queues, same retention, same way to the store."""
        state, settings = self._state, self._state.settings
        same = (
            sorted(state.queues),
            sorted(state.tasks),
            settings.app,
            settings.url.partition(":")[0],
            settings.keep_done,
            settings.keep_dead,
            settings.keep_history,
            settings.history_url,
            sorted(dead_retentions(self._duties.queues).items()),
            sorted(self._duties.queues),
        )
        return hashlib.blake2s(repr(same).encode(), digest_size=8).hexdigest()

    def _begin_upkeep(self) -> None:
        self._janitor.begin()
        self._ticker.begin()
        self._fetcher.nudge.ring()  # From now on it looks more often.

    # ── between the services ────────────────────────────────────────────────
    def _has_room(self) -> bool:
        return not self._executor.waiting

    def _lose(self, held: HeldLease) -> None:
        self._executor.lose(held)

    def _freed(self, held: HeldLease) -> None:
        self._fetcher.freed()
        if held.limited:
            # Units of a limit may be free again, and the store does not always send a hint for that.
            self._fetcher.nudge.ring()

    def _due(self, wait: Any) -> None:
        self._janitor.due(wait)
