"""The workloads: what each does, what is timed, and what it is compared with."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import msgspec

from headrace.bench.crew import Crew, Member
from headrace.bench.floor import Floor
from headrace.bench.fork_server import BenchFailed
from headrace.bench.load import Traffic
from headrace.bench.plan import Plan
from headrace.bench.result import Measurement, median, milliseconds, percentile, ratio, rounded
from headrace.bench.roles import RoleName, RoleReport, Spec

WARM_UP = 10
"""Jobs of `pickup` before those that count."""
FEW = 1000
"""The small backlog that claims are compared with."""


class Pair(NamedTuple):
    """What a producer and a worker did together."""

    rate: float
    """Jobs per second from the first enqueue to the last settlement."""
    cpu: float
    """Seconds of CPU time of both processes, per job."""


class Workloads:
    """The workloads on one store."""

    def __init__(self, crew: Crew, url: str, plan: Plan, floor: Floor | None) -> None:
        self.crew = crew
        self.url = url
        self.plan = plan
        self.floor = floor
        self._run = secrets.token_hex(3)

    @property
    def shared(self) -> bool:
        """Whether several processes can use this store."""
        return self.crew.shared

    # ── the groups ──────────────────────────────────────────────────────────

    async def plain(self) -> AsyncIterator[Measurement]:
        """Everything that begins with an empty queue."""
        yield await self.single("enqueue_single", "single")
        for measured in await self._fill_and_drain():
            yield measured
        yield await self._drain_2()
        yield await self._together_plain()
        yield await self._pickup()

    async def with_backlog(self) -> AsyncIterator[Measurement]:
        """Claims and the usual traffic with a large backlog."""
        queue = self.queue("backlog")
        await self.all(self.spec("bulk", queue, FEW))
        few = await self.all(self.spec("claim", queue, min(self.plan.claims, FEW // 2)))
        await self.all(self.spec("bulk", queue, self.plan.backlog))
        many = await self.all(self.spec("claim", queue, self.plan.claims))
        rates, floor = await self.repeat(lambda: self.together(queue, self.plan.jobs, busy=True), self.floor_together)
        yield self.measurement(
            "backlog_1m",
            rates,
            floor=floor,
            samples=many[0].samples,
            waiting=self.plan.backlog,
            claim_p99_ms_at_1k=milliseconds(percentile(few[0].samples, 0.99)),
        )

    async def flow(self, tenants: int) -> AsyncIterator[Measurement]:
        """The cost of fairness and limits: a producer and a worker with many tenants, and the same without."""
        beside: dict[str, tuple[Traffic, bool, str | None]] = {
            "fifo": ("fifo", False, None),
            "tenants_uniform": ("uniform", False, "fifo"),
            "tenants_skewed": ("skewed", False, "fifo"),
            "one_limit": ("limited", False, "fifo"),
            "limit_per_tenant": ("keyed", False, "tenants_uniform"),
            "fifo_apart": ("fifo", True, None),
            "uniform_apart": ("uniform", True, "fifo_apart"),
            "skewed_apart": ("skewed", True, "fifo_apart"),
        }
        rates: dict[str, list[float]] = {name: [] for name in beside}

        async def one_round() -> None:
            # In turns, so that other load of the machine affects all of them.
            for name, (traffic, apart, _) in beside.items():
                queue, count = self.queue(traffic), self.plan.jobs
                rates[name].append(await self.together(queue, count, traffic=traffic, tenants=tenants, apart=apart))

        await self.repeatedly(one_round)
        for name, (_, _, base) in beside.items():
            measured = self.measurement(name, rates[name], floor=rates[base] if base else None)
            measured.beside = base
            yield measured

    # ── the workloads ───────────────────────────────────────────────────────

    async def single(self, workload: str, role: RoleName) -> Measurement:
        """One job per call, one call after the other, beside one row per commit."""
        count = self.plan.single
        (report,) = await self.all(self.spec(role, self.queue("single"), count))
        floor: list[float] = []
        beneath: list[float] = []
        if self.floor is not None:
            (raw,) = await self.all(self.spec("floor_single", self.queue("floor"), count))
            floor, beneath = [count / (raw.ended - raw.began)], raw.samples
        return self.measurement(
            workload,
            [count / (report.ended - report.began)],
            jobs=count,
            floor=floor,
            samples=report.samples,
            floor_p50_ms=milliseconds(percentile(beneath, 0.5)),
        )

    async def _fill_and_drain(self) -> list[Measurement]:
        """Fill a queue call by call, another by one call, and let one worker process empty the first."""
        names = ("enqueue_bulk", "enqueue_stream", "drain_1")
        rates: dict[str, list[float]] = {name: [] for name in names}
        floors: dict[str, list[float]] = {name: [] for name in names}

        async def once() -> None:
            queue = self.queue("drain")
            rates["enqueue_bulk"].append(await self.fill(queue, apart=True))
            rates["enqueue_stream"].append(await self.fill(self.queue("stream")))
            floors["enqueue_bulk"] += await self._floor_rows("floor_jobs")
            rates["drain_1"].append(await self.drain(queue, workers=1, count=self.plan.jobs))
            floors["drain_1"] += await self._floor_rows("floor_done")

        await self.repeatedly(once)
        floors["enqueue_stream"] = floors["enqueue_bulk"]
        return [self.measurement(name, rates[name], floor=floors[name]) for name in names]

    async def _drain_2(self) -> Measurement:
        async def once() -> float:
            queue = self.queue("drain")
            await self.fill(queue)
            return await self.drain(queue, workers=2, count=self.plan.jobs)

        rates, floor = await self.repeat(once, lambda: self._floor_rows("floor_done", members=2))
        return self.measurement("drain_2", rates, floor=floor)

    async def fill(self, queue: str, *, apart: bool = False, usual: bool = False) -> float:
        """Jobs per second of one producer."""
        spec = msgspec.structs.replace(self.spec("bulk", queue, self.plan.jobs), apart=apart, usual=usual)
        (filled,) = await self.all(spec)
        return _rate([filled], self.plan.jobs)

    async def drain(self, queue: str, *, workers: int, count: int) -> float:
        """Settlements per second of this many workers that begin together."""
        async with self.crew.members([self.spec("work", queue, late=True) for _ in range(workers)]) as members:
            reports = await self.finish(members, count)
        return count / (_reached(reports, count) - min(report.began for report in reports))

    async def _together_plain(self) -> Measurement:
        count = self.plan.jobs
        wal: list[float] = []

        async def once() -> float:
            before = await self.floor.wal() if self.floor is not None else None
            rate = await self.together(self.queue("together"), count)
            after = await self.floor.wal() if self.floor is not None else None
            if before is not None and after is not None:
                wal.append((after - before) / count)
            return rate

        rates, floor = await self.repeat(once, self.floor_together)
        measured = self.measurement("together", rates, floor=floor)
        measured.wal_bytes_per_job = rounded(median(wal), 1)
        return measured

    async def _pickup(self) -> Measurement:
        """From the start of the enqueue call to the start of the task, on a worker that has nothing to do.

        The first jobs are left out, because they connect and make the server plan its statements.
        """
        latencies = await self.latencies("paced", WARM_UP + self.plan.pickups)
        return self.measurement("pickup", [], jobs=len(latencies), samples=latencies)

    async def latencies(self, role: RoleName, count: int, queue: str | None = None) -> list[float]:
        """Seconds from each enqueue call to the start of its task, but for the first calls."""
        queue = queue or self.queue(role)
        asked, worked = await self.side_by_side(self.spec(role, queue, count), self.spec("work", queue), count)
        began = dict(worked.marks)
        return [began[number] - moment for number, moment in enumerate(asked.samples)][WARM_UP:]

    async def together(
        self,
        queue: str,
        count: int,
        *,
        busy: bool = False,
        traffic: Traffic = "fifo",
        tenants: int = 1,
        apart: bool = False,
        usual: bool = False,
    ) -> float:
        """One producer and one worker at the same time: jobs per second. `pair` has the arguments."""
        pair = await self.pair(queue, count, busy=busy, traffic=traffic, tenants=tenants, apart=apart, usual=usual)
        return pair.rate

    async def pair(
        self,
        queue: str,
        count: int,
        *,
        busy: bool = False,
        traffic: Traffic = "fifo",
        tenants: int = 1,
        apart: bool = False,
        usual: bool = False,
        counted: bool = True,
        traced: float | None = None,
        grouped: bool = False,
    ) -> Pair:
        """One producer and one worker at the same time.

        `busy`: jobs wait already, so the worker must not begin before the clock does. `Spec` has the other arguments.
        """
        producing = msgspec.structs.replace(
            self.spec("bulk", queue, count), traffic=traffic, tenants=tenants, apart=apart, grouped=grouped
        )
        specs = [
            msgspec.structs.replace(spec, usual=usual, counted=counted, traced=traced)
            for spec in (self.spec("work", queue, late=busy), producing)
        ]
        # The callback of a group is one more job.
        return await self.produce_and_work(specs[1], specs[0], count + grouped)

    async def produce_and_work(self, producing: Spec, working: Spec, count: int) -> Pair:
        """The same for any producer of so many jobs."""
        produced, worked = await self.side_by_side(producing, working, count)
        began = min(worked.began, produced.began) if working.late else produced.began
        rate = count / (max(_reached([worked], count), produced.ended) - began)
        return Pair(rate, (worked.cpu + produced.cpu) / count)

    async def side_by_side(self, producing: Spec, working: Spec, count: int) -> tuple[RoleReport, RoleReport]:
        """Run a producer and a worker until so many jobs are settled. Returns their reports."""
        async with self.crew.members([working, producing]) as members:
            worker, producer = members
            worker.go()
            producer.go()
            produced = await producer.report(patience(count))
            (worked,) = await self.finish([worker], count)
        return produced, worked

    # ── how ─────────────────────────────────────────────────────────────────

    async def finish(self, members: list[Member], count: int, *, slower: int = 1) -> list[RoleReport]:
        """Let workers settle this many jobs, then stop them. `slower`: by this factor than jobs that do nothing."""
        for member in members:
            member.go()
        within = patience(count * slower)
        deadline = time.monotonic() + within
        while (settled := sum(member.settled for member in members)) < count:
            if time.monotonic() > deadline or any(member.over for member in members):
                words = members[0].last_words()
                raise BenchFailed(f"only {settled:,} of {count:,} jobs were settled within {within:.0f} s: {words}")
            await asyncio.sleep(0.02)
        for member in members:
            member.stop()
        return [await member.report(within) for member in members]

    async def _floor_rows(self, role: RoleName, *, members: int = 1) -> list[float]:
        """How fast this many processes write one kind of row. Nothing if there is no floor."""
        if self.floor is None:
            return []
        share = self.plan.jobs // members
        reports = await self.all(*(self.spec(role, "bench-floor", share) for _ in range(members)))
        return [_rate(reports, share * members)]

    async def floor_together(self) -> list[float]:
        """How fast two processes write both kinds of rows at the same time."""
        if self.floor is None:
            return []
        count = self.plan.jobs
        roles: tuple[RoleName, RoleName] = ("floor_jobs", "floor_done")
        return [_rate(await self.all(*(self.spec(role, "bench-floor", count) for role in roles)), count)]

    async def repeat(
        self, once: Callable[[], Awaitable[float]], beneath: Callable[[], Awaitable[list[float]]]
    ) -> tuple[list[float], list[float]]:
        """Measure rates and floors in turns, so that other load of the machine affects both."""
        rates: list[float] = []
        floor: list[float] = []

        async def both() -> None:
            rates.append(await once())
            floor.extend(await beneath())

        await self.repeatedly(both)
        return rates, floor

    async def repeatedly(self, once: Callable[[], Awaitable[None]]) -> None:
        began = time.monotonic()
        for _ in range(self.plan.repeats):
            await once()
            if time.monotonic() - began > self.plan.budget:
                return

    async def all(self, *specs: Spec) -> list[RoleReport]:
        return await self.crew.all(specs, within=patience(max(spec.count for spec in specs)))

    def queue(self, name: str) -> str:
        return f"bench-{name}-{self._run}-{secrets.token_hex(3)}"

    def spec(self, role: RoleName, queue: str, count: int = 0, *, late: bool = False) -> Spec:
        return Spec(role=role, url=self.url, engine=self.crew.engine, queue=queue, count=count, late=late)

    def measurement(
        self,
        workload: str,
        rates: list[float],
        *,
        floor: list[float] | None = None,
        samples: list[float] | None = None,
        jobs: int | None = None,
        waiting: int | None = None,
        claim_p99_ms_at_1k: float | None = None,
        floor_p50_ms: float | None = None,
    ) -> Measurement:
        rate, below = rounded(median(rates), 1), rounded(median(floor or []), 1)
        return Measurement(
            store=self.crew.engine,
            workload=workload,
            jobs_per_s=rate,
            floor_per_s=below,
            ratio=ratio(rate, below),
            p50_ms=milliseconds(percentile(samples or [], 0.5)),
            p99_ms=milliseconds(percentile(samples or [], 0.99)),
            jobs=self.plan.jobs if jobs is None else jobs,
            repeats=max(1, len(rates)),
            waiting=waiting,
            claim_p99_ms_at_1k=claim_p99_ms_at_1k,
            floor_p50_ms=floor_p50_ms,
        )


def patience(count: int) -> float:
    """Seconds that this many jobs may take on the slowest supported machine."""
    return 30.0 + count / 4000


def _rate(reports: list[RoleReport], count: int) -> float:
    return count / (max(report.ended for report in reports) - min(report.began for report in reports))


def _reached(reports: list[RoleReport], count: int) -> float:
    """When the workers together had settled this many jobs."""
    settled = 0
    for moment, amount in sorted(entry for report in reports for entry in report.trace):
        settled += amount
        if settled >= count:
            return moment
    raise BenchFailed(f"the workers settled {settled:,} jobs, not {count:,}")
