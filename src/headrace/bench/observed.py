"""What it costs to be observed: a producer and a worker with history, with browsers that watch, and with traces."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from headrace.bench.browsers import Browsers
from headrace.bench.plan import Plan
from headrace.bench.result import OBSERVED, Measurement, median, quartiles, rounded
from headrace.bench.workloads import Pair, Workloads, patience

_BASE: Final = "unobserved"
_TRACED: Final = {"traced_1": 0.01, "traced_100": 1.0}
"""The shares of traces that are sampled."""
_BESIDE: Final = dict.fromkeys(_TRACED, "rollups")
"""What a way is compared with, if that is not the base: history is always kept, so traces come on top of it."""
_SLOWER: Final = 8
"""A run with a span for every job has fewer jobs by this factor, so that it takes about as long as the others."""
_AT_ONCE: Final = 1000
"""The producer enqueues so many jobs with one call."""

Progress = Callable[[int, int, str], None]


class Watched(msgspec.Struct, kw_only=True):
    """What the browsers got while they were watched, and what it cost the server."""

    seconds: float
    answers: int
    events: int
    cpu: float


class Observed:
    """The usual traffic, in turns without and with each way to observe it."""

    def __init__(self, plan: Plan, progress: Progress, *, traces: bool) -> None:
        """`traces`: whether the members can trace."""
        self._plan = plan
        self._progress = progress
        self.names = [name for name in OBSERVED if traces or name not in _TRACED]
        self._rounds = 0
        self._until = time.monotonic() + plan.observed_budget
        self._jobs = 0
        """Jobs of one run."""
        self._pairs: dict[str, list[Pair]] = {name: [] for name in self.names}
        self._watched: list[Watched] = []
        self._at_rest: list[Watched] = []

    @property
    def goes_on(self) -> bool:
        """Whether there is another round. A run on a slow machine has fewer."""
        return not self._rounds or (self._rounds < self._plan.rounds and time.monotonic() < self._until)

    async def round(self, on: Workloads) -> None:
        """Every way once. In each round another way is first, so that none has the better place."""
        await self._warm_up(on)
        first = self._rounds % len(self.names)
        for name in (*self.names[first:], *self.names[:first]):
            self._tell(name)
            self._pairs[name].append(await self._once(on, name))
        self._rounds += 1
        self._tell("")

    def _tell(self, what: str) -> None:
        done = sum(len(pairs) for pairs in self._pairs.values())
        self._progress(done, len(self.names) * self._plan.rounds, what)

    async def _warm_up(self, on: Workloads) -> None:
        """A run that does not count: it makes the server plan its statements, and the files grow.

        The first one also says how many jobs a run needs, so that it takes some seconds: short runs differ too much.
        """
        self._tell("warm-up")
        pair = await self._pair(on, _BASE, self._plan.jobs)
        if not self._jobs:
            wanted = round(pair.rate * self._plan.observed_seconds)
            self._jobs = max(self._plan.jobs, wanted - wanted % _AT_ONCE)
            async with self._watching(on, self._at_rest):
                await asyncio.sleep(self._plan.idle)

    async def _once(self, on: Workloads, name: str) -> Pair:
        if name == "browsers":
            async with self._watching(on, self._watched):
                return await self._pair(on, name, self._count(name))
        return await self._pair(on, name, self._count(name))

    async def _pair(self, on: Workloads, name: str, count: int) -> Pair:
        traced = _TRACED.get(name)
        # One call for every thousand jobs, so that there are many traces.
        return await on.pair(on.queue(name), count, apart=True, counted=name != _BASE, traced=traced)

    def _count(self, name: str) -> int:
        return max(1, self._jobs // _SLOWER) if name == "traced_100" else self._jobs

    @asynccontextmanager
    async def _watching(self, on: Workloads, watched: list[Watched]) -> AsyncGenerator[None]:
        """A server, and browsers that watch it. What their connections cost is not counted."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            file = Path(folder) / "port"
            spec = msgspec.structs.replace(on.spec("serve", on.queue("serve")), port_file=str(file))
            async with on.crew.members([spec]) as (server,):
                browsers = Browsers(int(file.read_text(encoding="ascii")))
                async with browsers.watching():
                    await browsers.until_answered(patience(0))
                    answers, events = browsers.answers, browsers.events
                    server.go()
                    yield
                server.stop()
                report = await server.report(patience(0))
        watched.append(
            Watched(
                seconds=report.ended - report.began,
                answers=browsers.answers - answers,
                events=browsers.events - events,
                cpu=report.cpu,
            )
        )

    def measurements(self, on: Workloads) -> list[Measurement]:
        """All ways, each beside the first."""
        return [self._measurement(on, name) for name in self.names]

    def _measurement(self, on: Workloads, name: str) -> Measurement:
        beside = _BESIDE.get(name, _BASE)
        pairs, base = self._pairs[name], self._pairs[beside]
        measured = on.measurement(name, [pair.rate for pair in pairs], jobs=self._count(name))
        measured.cpu_us_per_job = rounded(median([1e6 * pair.cpu for pair in pairs]), 2)
        if name == _BASE:
            return measured
        # Two runs of one round have the same other load, so their ratio varies less than the ratio of two medians.
        ratios = [pair.rate / below.rate for pair, below in zip(pairs, base, strict=True)]
        measured.beside = beside
        measured.floor_per_s = rounded(median([below.rate for below in base]), 1)
        measured.ratio = rounded(median(ratios))
        measured.lower_ratio, measured.upper_ratio = map(rounded, quartiles(ratios))
        shares = [below.cpu / pair.cpu for pair, below in zip(pairs, base, strict=True)]
        measured.cpu_ratio = rounded(median(shares))
        if name == "browsers":
            seconds = sum(watched.seconds for watched in self._watched)
            measured.answers_per_s = rounded(sum(watched.answers for watched in self._watched) / seconds, 1)
            measured.events_per_s = rounded(sum(watched.events for watched in self._watched) / seconds, 1)
            measured.server_cpu = rounded(sum(watched.cpu for watched in self._watched) / seconds)
            measured.server_cpu_at_rest = rounded(self._at_rest[0].cpu / self._at_rest[0].seconds)
        return measured
