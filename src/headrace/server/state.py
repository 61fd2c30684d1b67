"""The service: the state that all endpoints share, opened once per server process in its event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.app import Headrace
from headrace.client.client import Client
from headrace.model.lease import Presence, WorkerOrder
from headrace.model.records import LimitRule, Pause, Stats
from headrace.operate import held
from headrace.operate.autoscale import AutoscaleOperations
from headrace.operate.dead.causes import Causes
from headrace.operate.held import HeldFigures
from headrace.operate.workers import orders_of
from headrace.policy.autoscale import Arrivals, RecentWork
from headrace.server.api.audit import Audit
from headrace.server.auth import LOCAL, Auth, Principal, address_of
from headrace.server.cache import Cached
from headrace.server.config import ServerSettings
from headrace.server.events.hub import Hub
from headrace.server.http.problems import Problem
from headrace.server.http.rate_limit import RateLimit
from headrace.server.leases import Leases
from headrace.server.queue_names import QueueNames
from headrace.server.replays import ReplayRunner
from headrace.server.sessions import SessionSigner
from headrace.server.store_times import StoreTimes
from headrace.sink.figures import SinkFigures, read_sinks
from headrace.store.contract import Store
from headrace.worker.attempt_times import AttemptTimes

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


HISTORY_TTLS: Final = 5
"""How many times longer history is kept than figures. It costs more to read, and workers write it every ten seconds."""


HELD_TTLS: Final = 30
"""The same for held jobs: a look makes a call of the store for each of some dead letters."""


class FiguresKept:
    """Values that dashboards read often. They are kept in memory for a second, history for five."""

    def __init__(self, store: Store, settings: ServerSettings) -> None:
        self._store = store
        self._stats = Cached(store.stats, settings.stats_ttl)
        self._pauses = Cached(store.pauses, settings.stats_ttl)
        self._workers = Cached(store.workers, settings.stats_ttl)
        self._sinks = Cached(lambda: read_sinks(store), settings.stats_ttl)
        self._orders = Cached(partial(orders_of, store), settings.stats_ttl)
        self._recent_work = Cached(AutoscaleOperations(store).recent, HISTORY_TTLS * settings.stats_ttl)
        self._limits = Cached(store.limits, settings.stats_ttl)
        self._held = Cached(self._look_held, HELD_TTLS * settings.stats_ttl)
        self._times = Cached(StoreTimes(store).read, HISTORY_TTLS * settings.stats_ttl)
        self.causes = Causes(store)
        """Why dead jobs died, as far as this server has read it."""
        self._most = settings.max_polls
        self._pace = RateLimit(self._most, 1 / self._most, time.monotonic)

    async def stats(self) -> Stats:
        """The figures of every queue, up to a second old."""
        return await self._stats.get()

    async def pauses(self) -> list[Pause]:
        """All pauses. Those made through another server may appear a second later."""
        return await self._pauses.get()

    async def workers(self) -> list[Presence]:
        """The workers, up to a second old."""
        return await self._workers.get()

    async def orders(self) -> dict[str, WorkerOrder]:
        """The orders to workers by their ids, up to a second old."""
        return await self._orders.get()

    async def recent_work(self) -> dict[str, RecentWork]:
        """The attempts of the last minutes by queue, up to five seconds old."""
        return await self._recent_work.get()

    async def sinks(self) -> list[SinkFigures]:
        """The tables that get the ends of jobs, up to a second old."""
        return await self._sinks.get()

    async def limits(self) -> dict[str, LimitRule]:
        """What limits allow, up to a second old."""
        return await self._limits.get()

    async def times(self) -> AttemptTimes:
        """The wait and run times of all jobs, up to a minute and a half old."""
        return await self._times.get()

    async def held(self) -> HeldFigures:
        """The jobs that dead letters hold, up to half a minute old."""
        return await self._held.get()

    async def _look_held(self) -> HeldFigures:
        return await held.look(self._store, await self.stats())

    def forget_pauses(self) -> None:
        """Drop the kept pauses after a pause or resume here."""
        self._pauses.forget()

    def forget_orders(self) -> None:
        """Drop the kept orders after one was given here."""
        self._orders.forget()

    async def aclose(self) -> None:
        """Cancel the reads under way."""
        caches: tuple[Cached[Any], ...] = (
            self._stats,
            self._pauses,
            self._workers,
            self._orders,
            self._sinks,
            self._recent_work,
            self._limits,
            self._times,
            self._held,
        )
        for cache in caches:
            await cache.aclose()

    def count(self, request: HTTPConnection, principal: Principal, weight: int) -> None:
        """Count a read by this token (without tokens: by this address). Raises Problem 429 if there were too many."""
        key = f"@{address_of(request)}" if principal is LOCAL else principal.name
        if wait := self._pace.wait(key, min(weight, self._most)):
            raise Problem(
                429,
                "too_many_polls",
                f"more than {self._most} reads per second: read less often, or follow /v1/events",
                headers={"Retry-After": str(math.ceil(wait))},
            )


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The state that all endpoints share."""

    app: Headrace
    settings: ServerSettings
    store: Store
    client: Client
    hub: Hub
    auth: Auth
    audit: Audit
    figures: FiguresKept
    leases: Leases
    queue_names: QueueNames
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: long polls answer early, streams end."""
    at_stop: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called then."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """How many jobs are enqueued per second, measured between reads of `/v1/autoscale`."""
    replays: ReplayRunner = field(init=False)

    def __post_init__(self) -> None:
        self.replays = ReplayRunner(self)

    @property
    def stopping(self) -> bool:
        """Whether the server stops. Accepted requests are finished."""
        return self.ending.is_set()

    def stop(self) -> None:
        """Announce that the server stops."""
        self.ending.set()
        for callback in self.at_stop:
            callback()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, app: Headrace, settings: ServerSettings | None = None, store: Store | None = None
    ) -> AsyncGenerator[ServerState, None]:
        """A service for the running event loop. A given store must be open, and stays open."""
        settings = settings or ServerSettings()
        ours = store is None
        if store is None:
            store = app.connect()
            await store.open()
        client = Client(store, queues=app.queues)
        try:
            async with (
                Hub(store) as hub,
                Leases.open(app, store, tidy=settings.tidy) as leases,
                aclosing(
                    Auth(
                        store,
                        failures=settings.max_failures,
                        host=settings.host,
                        signer=await SessionSigner.load(store),
                    )
                ) as auth,
                aclosing(FiguresKept(store, settings)) as figures,
            ):
                state = cls(
                    app=app,
                    settings=settings,
                    store=store,
                    client=client,
                    hub=hub,
                    auth=auth,
                    audit=client.audit,
                    figures=figures,
                    leases=leases,
                    queue_names=QueueNames(app, figures.stats, settings.max_queues),
                    at_stop=[hub.dismiss, leases.room.dismiss],
                )
                async with state.replays.running():
                    yield state
        finally:
            await (client.close() if ours else client.leave())
