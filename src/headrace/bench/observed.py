"""What it costs to be observed: a producer and a worker with history, with browsers that watch, and with traces."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from headrace.bench.browsers import Browsers
from headrace.bench.result import OBSERVED, Measurement, median, rounded
from headrace.bench.workloads import Workloads, patience

_BASE: Final = "unobserved"
_TRACED: Final = {"traced_1": 0.01, "traced_100": 1.0}
"""The shares of traces that are sampled."""


class Watched(msgspec.Struct, kw_only=True):
    """What the browsers of one round got, and what it cost the server."""

    seconds: float
    answers: int
    events: int
    cpu: float


class Observed:
    """The usual traffic, in turns without and with each way to observe it."""

    def __init__(self, workloads: Workloads, *, traces: bool) -> None:
        """`traces`: whether the members can trace."""
        self._on = workloads
        self.names = [name for name in OBSERVED if traces or name not in _TRACED]
        self.rounds = 1 if workloads.plan.repeats == 1 else 3 * workloads.plan.repeats
        """More than other workloads have, because the differences are small."""
        self._rates: dict[str, list[float]] = {name: [] for name in self.names}
        self._watched: list[Watched] = []

    async def all(self, progress: Callable[[int], None]) -> list[Measurement]:
        """Every way, in turns. In each round another way is first, so that none has the better place."""
        # A run that does not count: it makes the server plan its statements, and the files grow.
        await self._once(_BASE)
        for number in range(self.rounds):
            progress(number)
            first = number % len(self.names)
            for name in (*self.names[first:], *self.names[:first]):
                self._rates[name].append(await self._once(name))
        progress(self.rounds)
        return [self._measurement(name) for name in self.names]

    async def _once(self, name: str) -> float:
        if name == "browsers":
            async with self._watching():
                return await self._together(name)
        return await self._together(name)

    async def _together(self, name: str) -> float:
        on, count = self._on, self._count(name)
        traced = _TRACED.get(name)
        # One call for every thousand jobs, so that there are many traces.
        return await on.together(on.queue(name), count, apart=True, counted=name != _BASE, traced=traced)

    def _count(self, name: str) -> int:
        # Twice as many as elsewhere, because browsers ask once a second. A span for every job is much slower.
        return self._on.plan.jobs // 2 if name == "traced_100" else 2 * self._on.plan.jobs

    @asynccontextmanager
    async def _watching(self) -> AsyncGenerator[None]:
        """A server, and browsers that watch it."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            file = Path(folder) / "port"
            spec = msgspec.structs.replace(self._on.spec("serve", self._on.queue("serve")), port_file=str(file))
            async with self._on.crew.members([spec]) as (server,):
                server.go()
                browsers = Browsers(int(file.read_text(encoding="ascii")))
                async with browsers.watching():
                    yield
                server.stop()
                report = await server.report(patience(0))
        seconds = report.ended - report.began
        self._watched.append(Watched(seconds=seconds, answers=browsers.answers, events=browsers.events, cpu=report.cpu))

    def _measurement(self, name: str) -> Measurement:
        rates, base = self._rates[name], self._rates[_BASE]
        measured = self._on.measurement(name, rates, jobs=self._count(name))
        if name == _BASE:
            return measured
        # Two runs of one round have the same other load, so their ratio varies less than the ratio of two medians.
        ratios = [rate / below for rate, below in zip(rates, base, strict=True)]
        measured.beside = _BASE
        measured.floor_per_s = rounded(median(base), 1)
        measured.ratio = rounded(median(ratios))
        measured.lowest_ratio, measured.highest_ratio = rounded(min(ratios)), rounded(max(ratios))
        if name == "browsers":
            seconds = sum(watched.seconds for watched in self._watched)
            measured.answers_per_s = rounded(sum(watched.answers for watched in self._watched) / seconds, 1)
            measured.events_per_s = rounded(sum(watched.events for watched in self._watched) / seconds, 1)
            measured.server_cpu = rounded(sum(watched.cpu for watched in self._watched) / seconds)
        return measured
