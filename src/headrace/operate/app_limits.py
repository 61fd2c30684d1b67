"""The limits' desk: what `app.limits` is. Verbs come in two, `x` for sync code, `ax` for async code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.client.per_loop import Clients
from headrace.errors import ConfigError
from headrace.operate.limits import LimitOperations
from headrace.operate.operations import Operations
from headrace.operate.stored_limits import LimitEntry, Limits, figures
from headrace.runtime.portal import Portal
from headrace.task.limit import Limit, LimitDeclaration, describe
from headrace.task.task import Task


class AppLimits:
    """Limits as the store has them, changed at run time."""

    def __init__(self, portal: Portal, clients: Clients) -> None:
        self._portal = portal
        self._clients = clients
        self.declared: dict[str, LimitDeclaration] = {}
        """Those of the app's tasks, stored when a worker starts."""

    def declare(self, limits: Iterable[Limit]) -> None:
        """What a task needs; tasks that name the same limit must mean the same."""
        for limit in limits:
            fresh, known = limit.declared, self.declared.get(limit.name)
            if known is None:
                self.declared[limit.name] = fresh
                continue
            if (fresh.figures, fresh.breaker, fresh.cool_down) != (known.figures, known.breaker, known.cool_down):
                raise ConfigError(
                    f"limit {limit.name!r} is declared twice with other figures ({describe(known.figures)}; "
                    f"{describe(fresh.figures)}): make one Limit and share it, or give one another name"
                )
            self.declared[limit.name] = msgspec.structs.replace(known, cost=max(known.cost, fresh.cost))

    @staticmethod
    def refuse_shared(tasks: Iterable[Task[..., Any]]) -> None:
        """On a Redis cluster a limit counts within one queue: tasks of two queues would exceed what they share."""
        queues: dict[str, str] = {}
        for task in tasks:
            for limit in task.options.limits:
                other = queues.setdefault(limit.name, task.options.queue)
                if other != task.options.queue:
                    raise ConfigError(
                        f"limit {limit.name!r} is shared by tasks of the queues {other!r} and {task.options.queue!r}: on a "
                        "Redis cluster a limit counts within one queue, and together they would exceed it; "
                        "put these tasks into one queue, or declare a Limit with another name for each queue"
                    )

    def list(self) -> Mapping[str, LimitEntry]:
        """Every limit by name: its figures, by whom, and what it allows right now."""
        return self._portal.run(self.alist)

    async def alist(self) -> Mapping[str, LimitEntry]:
        """Every limit by name: its figures, by whom, and what it allows right now."""
        return await Limits((await self._clients.here()).store).all()

    def set(
        self, name: str, *, rate: str | None = None, burst: int | None = None, concurrency: int | None = None
    ) -> LimitEntry:
        """Other figures than code declares, from now on and for every worker: `app.limits.set("stripe", rate="50/s")`.

        `name` may be one key of a limit, e.g. `shop:acme`. They stay, also over a deploy, until `reset`.
        """
        return self._portal.run(lambda: self.aset(name, rate=rate, burst=burst, concurrency=concurrency))

    async def aset(
        self, name: str, *, rate: str | None = None, burst: int | None = None, concurrency: int | None = None
    ) -> LimitEntry:
        """Other figures than code declares; see `set`."""
        made = figures(name, rate=rate, burst=burst, concurrency=concurrency)
        return await (await self._operations()).set(name, made)

    def reset(self, name: str) -> LimitEntry | None:
        """Back to what code declares, and open; None: this key has no figures of its own, its limit's count."""
        return self._portal.run(lambda: self.areset(name))

    async def areset(self, name: str) -> LimitEntry | None:
        """Back to what code declares, and open; see `reset`."""
        return await (await self._operations()).reset(name)

    def remove(self, name: str) -> Sequence[str]:
        """Forget a limit that no code declares any more, and its keys' own figures; answers what is gone.

        Nothing holds its jobs back any more; a worker whose code declares it after all stores it when it starts.
        """
        return self._portal.run(lambda: self.aremove(name))

    async def aremove(self, name: str) -> Sequence[str]:
        """Forget a limit that no code declares any more; see `remove`."""
        return await (await self._operations()).remove(name)

    async def _operations(self) -> LimitOperations:
        client = await self._clients.here()
        return Operations(client.store, audit=client.audit).limits
