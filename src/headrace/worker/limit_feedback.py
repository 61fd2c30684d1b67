"""LIMITS: declares limits at start, closes and opens them by the outcomes of jobs, and reads pauses and lanes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import monotonic
from typing import NamedTuple

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.model.lane import split_limit
from headrace.model.lease import Lease
from headrace.model.outcome import Failed, Outcome, Succeeded
from headrace.operate.limits import Limits
from headrace.policy.flow import ClaimOrder, Planner
from headrace.policy.recovery import WELL, LimitHealth, LimitObservation, What, moment, rested, unpack
from headrace.supervisor.series import LIMIT_UNITS, MOST_LIMITS, Series
from headrace.task.limit import Limit, LimitDeclaration
from headrace.worker.attempt import ObservedAttempt
from headrace.worker.service import Backoff, OutageLog, Service, log
from headrace.worker.state import WorkerState

LOOK = 1.0
"""Seconds for which pauses, rules and lanes are not read again."""
MAX_KEYS = 1000
"""Limit keys with observations that are not written yet. Observations of further keys are dropped."""
MAX_HEALED = 20
"""Recovered limit keys that the worker writes after one look. Each write reads all rules."""
REST = 60.0
"""Seconds after which a worker that claims nothing reads its limits."""
LAST_WORDS = 2.0
"""Seconds in which a stopping worker may write its last observations."""
MAX_NEWS = 1000
"""Observations of one key."""


class Sight(NamedTuple):
    """The limits as the store showed them last."""

    at: float
    """On the monotonic clock."""
    unwell: Mapping[str, LimitHealth]
    """Limit keys that were closed and have not fully recovered."""


class LimitFeedback(Service):
    """Reads limits, pauses and lanes for a worker, and writes what its jobs show about limits."""

    name = "limit feedback"

    def __init__(
        self,
        state: WorkerState,
        limits: Mapping[str, LimitDeclaration],
        planner: Planner,
        *,
        opened: Callable[[], None],
    ) -> None:
        super().__init__()
        self._state = state
        self._declared = limits
        self._limits = Limits(state.store)
        self._planner = planner
        self._timed = planner.timed
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._news: dict[str, deque[LimitObservation]] = {}
        self._sight = Sight(float("-inf"), {})
        self._lanes_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._outage = OutageLog("looking at limits and pauses")
        self._declaring = OutageLog("declaring limits")
        self.declared = asyncio.Event()
        """Set when the store has the limits. An earlier claim would ignore them."""
        if not limits:
            self.declared.set()
        state.attentive = bool(self._timed)

    # ── looking ─────────────────────────────────────────────────────────────
    def is_fresh(self) -> bool:
        """Whether jobs may start without a look: the last one is recent, and nothing was paused."""
        return not self._state.paused and monotonic() - self._sight.at < LOOK

    async def look(self, lease: Lease) -> None:
        """Refresh what is paused and closed before these jobs start, unless the last look is recent.

        The worker waits for the look after an idle time, because jobs of a task that was paused meanwhile must not
        start. It also waits before it puts a job off, so that the jobs of a task that was just resumed start at once.
        """
        paused = self._state.paused
        doubtful = bool(paused) and any(job.task in paused for job in lease.jobs)
        age = monotonic() - self._sight.at
        if age < LOOK and not doubtful:
            return
        if doubtful and self._looking is not None:
            await asyncio.wait([self._looking])  # That look may have begun before the resume.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="headrace-look")
        if doubtful or age > 2 * LOOK:
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        state = self._state
        try:
            pauses = await state.store.pauses()
            rules = await state.store.limits() if self._declared else {}
        except HeadraceError as error:
            self._outage.raise_(error)
            return
        except Exception as error:  # noqa: BLE001  # a store's bug must not end the worker
            log.exception("the store raised an unexpected error while the worker read limits and pauses")
            self._outage.raise_(error)
            return
        self._outage.settle()
        state.paused = {pause.name: pause for pause in pauses if pause.kind == "task"}
        unwell = {key: health for key, rule in rules.items() if (health := unpack(rule.state).health) != WELL}
        self._see(unwell)
        self._rest(unwell)

    def _see(self, unwell: Mapping[str, LimitHealth]) -> None:
        self._sight = Sight(monotonic(), unwell)
        self._state.attentive = bool(self._timed or unwell)

    def _rest(self, unwell: Mapping[str, LimitHealth]) -> None:
        """Write down limits that have recovered by time alone, a few at a time. No job's success is needed for that."""
        now = self._now()
        healed = (
            key
            for key, health in unwell.items()
            if key not in self._news and key.partition(":")[0] in self._declared and rested(health, now) == WELL
        )
        for key in islice(healed, MAX_HEALED):
            self._news[key] = deque(maxlen=MAX_NEWS)
            self.bell.ring()

    async def order(self, limit: int) -> ClaimOrder:
        """The order in which a claim of up to `limit` jobs takes them, by the queues' policies."""
        planner, state = self._planner, self._state
        if planner.watched and monotonic() - self._lanes_at >= LOOK:
            self._lanes_at = monotonic()
            planner.saw(await state.store.lanes(planner.watched), self._now())
        return planner.plan(limit)

    def units(self) -> Iterator[Series]:
        """The units that jobs of this worker hold, by limit. A job whose cost a function computes counts as one unit."""
        units = dict.fromkeys(islice(sorted(self._declared), MOST_LIMITS), 0)
        attempts = (attempt for held in self._state.leases.values() if held.limited for attempt in held.attempts)
        for attempt in attempts:
            for limit in () if attempt is None else attempt.known.limits:
                if limit.name in units:
                    units[limit.name] += limit.cost if isinstance(limit.cost, int) else 1
        for name, held in units.items():
            yield Series(LIMIT_UNITS, (name,), held)

    # ── hearing ─────────────────────────────────────────────────────────────
    def saw(self, attempt: ObservedAttempt, outcome: Outcome) -> None:
        """An attempt ended."""
        job, limits = attempt.job, attempt.known.limits
        if attempt.started and job.queue in self._timed:
            self._planner.ran(job.queue, job.tenant, monotonic() - attempt.started)
        if not limits:
            return
        match outcome:
            case Failed(retry_after=timedelta() as delay):
                refused = [limit for limit in limits if limit.rate is not None]
                self._note(attempt, refused, What.REFUSED, self._now() + delay)
                self._note(attempt, [limit for limit in limits if limit.rate is None and limit.breaker], What.FAILED)
            case Failed():
                self._note(attempt, [limit for limit in limits if limit.breaker is not None], What.FAILED)
            case Succeeded():
                self._note(attempt, limits, What.SUCCEEDED)
            case _:
                pass

    def trip(self, attempt: ObservedAttempt, limit: Limit, until: timedelta | datetime) -> None:
        """A task says that a limit was refused. Any thread."""
        if limit.name not in {declared.name for declared in attempt.known.limits}:
            raise ConfigError(
                f"task {attempt.job.task} does not have the limit {limit.name!r}: add it to its limits=[…]"
            )
        at = moment(until, self._now())
        self._loop.call_soon_threadsafe(self._note, attempt, [limit], What.REFUSED, at)

    def _note(
        self, attempt: ObservedAttempt, limits: Sequence[Limit], what: What, until: datetime | None = None
    ) -> None:
        claimed_at = self._now() - timedelta(seconds=monotonic() - attempt.claimed_at)
        for limit in limits:
            key = _key_of(attempt, limit)
            if key is None or (what is What.SUCCEEDED and key not in self._sight.unwell and key not in self._news):
                continue
            if key not in self._news and len(self._news) >= MAX_KEYS:
                continue
            self._news.setdefault(key, deque(maxlen=MAX_NEWS)).append(LimitObservation(what, claimed_at, until))
            self.bell.ring()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._state.watch.now(), UTC)

    # ── the service ─────────────────────────────────────────────────────────
    async def run(self) -> None:
        if not self.declared.is_set():
            await self._insist(
                self._declaring, lambda: self._limits.declare(self._declared, app=self._state.settings.app)
            )
            self.declared.set()
        while True:
            if not await self.bell.wait(REST if self._declared else None) and monotonic() - self._sight.at > REST:
                # This worker may run no job of these limits. It looks nevertheless, because no claim triggers a look.
                await self._look()
            await self.flush()

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await super().stop()
        with contextlib.suppress(TimeoutError):
            # The other workers need what the last jobs have met.
            async with asyncio.timeout(LAST_WORDS):
                await self.flush()

    async def flush(self) -> None:
        """Write all observations."""
        while self._news:
            await self._tell()

    async def _tell(self) -> None:
        """Write the observations of one key. Later observations go with the next write."""
        key, news = next(iter(self._news.items()))
        name = key.partition(":")[0]
        if (declared := self._declared.get(name)) is None:
            del self._news[key]
            return
        seen, count = list(news), len(news)

        async def write() -> None:
            was = self._sight.unwell.get(key, WELL)
            health = await self._limits.observe(key, declared, seen, self._now())
            self._hear(key, was, health)

        await self._insist(self._outage, write)
        for _ in range(min(count, len(news))):
            news.popleft()
        if not news:
            del self._news[key]

    def _hear(self, key: str, was: LimitHealth, health: LimitHealth) -> None:
        """Take over the new health of a limit, and log what changed."""
        if health.closed_until is not None and health.closings != was.closings:
            log.warning(
                "limit %s is closed until %s: it was refused, or failed too often; then one job at a time until one succeeds",
                key,
                health.closed_until.isoformat(timespec="seconds"),
                extra={"limit": key, "event": "limit.closed"},
            )
            self._state.emit("limit.closed", limit=key, until=health.closed_until)
        elif was.closed_until is not None and health.closed_until is None:
            log.info("limit %s is open again, at %.0f %% of its figures", key, 100 * health.factor)
            self._state.emit("limit.opened", limit=key, factor=health.factor)
        unwell = {name: other for name, other in self._sight.unwell.items() if name != key}
        if health != WELL:
            unwell[key] = health
        self._sight = Sight(self._sight.at, unwell)
        self._state.attentive = bool(self._timed or unwell)
        self._opened()

    async def _insist(self, outage: OutageLog, call: Callable[[], Awaitable[None]]) -> None:
        """Repeat the call until the store accepts it."""
        backoff = Backoff()
        while True:
            try:
                await call()
            except StoreError as error:
                outage.raise_(error)
                await asyncio.sleep(backoff.next())
            else:
                outage.settle()
                return


def _key_of(attempt: ObservedAttempt, limit: Limit) -> str | None:
    """The key of this limit whose units the attempt's job holds. None: it holds none."""
    if limit.key is None:
        return limit.name
    try:
        args, kwargs = attempt.known.shape.full(*attempt.known.arguments(attempt.job))
        keys = limit.keys_for(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # a user's function may do anything
        log.warning("cannot compute the key of limit %s for job %s: %s", limit.name, attempt.job.id, error)
        return None
    return split_limit(keys[0])[1] if keys else None
