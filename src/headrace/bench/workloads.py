"""The workloads: what is done, what is timed, and what stands beside it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from headrace.bench.crew import BenchFailed, Crew, Member
from headrace.bench.floors import Floor
from headrace.bench.load import USUAL as LAYOUTS
from headrace.bench.load import Traffic
from headrace.bench.plan import Plan
from headrace.bench.result import USUAL, Measurement, median, milliseconds, percentile, ratio, rounded
from headrace.bench.roles import Report, RoleName, Spec

WARM_UP = 10
"""Jobs of `pickup` before those that count."""
FEW = 1000
"""The small backlog that claims are compared with."""


class Workloads:
    """The workloads on one store."""

    def __init__(self, crew: Crew, url: str, plan: Plan, floor: Floor | None) -> None:
        self._crew = crew
        self._url = url
        self._plan = plan
        self._floor = floor
        self._run = secrets.token_hex(3)

    # ── the groups ──────────────────────────────────────────────────────────

    async def plain(self) -> AsyncIterator[Measurement]:
        """Everything that begins with an empty queue."""
        yield await self._enqueue_single()
        enqueue_bulk, drain_1 = await self._fill_and_drain()
        yield enqueue_bulk
        yield drain_1
        yield await self._drain_2()
        yield await self._together_plain()
        yield await self._pickup()

    async def with_backlog(self) -> AsyncIterator[Measurement]:
        """Claims and the usual traffic in front of a long line."""
        queue = self._queue("backlog")
        await self._all(self._spec("bulk", queue, FEW))
        few = await self._all(self._spec("claim", queue, min(self._plan.claims, FEW // 2)))
        await self._all(self._spec("bulk", queue, self._plan.backlog))
        many = await self._all(self._spec("claim", queue, self._plan.claims))
        rates, floor = await self._repeat(
            lambda: self._together(queue, self._plan.jobs, busy=True), self._floor_together
        )
        yield self._measurement(
            "backlog_1m",
            rates,
            floor=floor,
            samples=many[0].samples,
            waiting=self._plan.backlog,
            claim_p99_ms_at_1k=milliseconds(percentile(few[0].samples, 0.99)),
        )

    async def with_open_transaction(self) -> AsyncIterator[Measurement]:
        """The usual traffic while somebody keeps a transaction open."""
        count = self._plan.held
        free: list[float] = []
        held: list[float] = []

        async def pair() -> float:
            free.append(await self._together(self._queue("free"), count))
            if self._floor is not None:
                async with self._floor.hold():
                    held.append(await self._together(self._queue("held"), count))
            return free[-1]

        _, floor = await self._repeat(pair, self._floor_together)
        measured = self._measurement("open_transaction", held, jobs=count, floor=floor)
        measured.unheld_per_s = rounded(median(free), 1)
        measured.slowdown = ratio(measured.unheld_per_s, measured.jobs_per_s)
        yield measured

    async def flow(self, tenants: int) -> AsyncIterator[Measurement]:
        """What fairness and limits cost: a producer and a worker with many tenants, beside the same without."""
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

        async def each() -> None:
            # In turns, so that whatever else the machine does weighs on all of them.
            for name, (traffic, apart, _) in beside.items():
                queue, count = self._queue(traffic), self._plan.jobs
                rates[name].append(await self._together(queue, count, traffic=traffic, tenants=tenants, apart=apart))

        await self._repeatedly(each)
        for name, (_, _, base) in beside.items():
            measured = self._measurement(name, rates[name], floor=rates[base] if base else None)
            measured.beside = base
            yield measured

    async def beside_usual(self) -> AsyncIterator[Measurement]:
        """A producer and a worker, beside the same two in the layout that is usual on this engine, if there is one."""
        floor = self._floor
        if floor is None or self._crew.engine not in LAYOUTS:
            return
        count = self._plan.jobs
        rates: dict[bool, list[float]] = {False: [], True: []}
        cpu: dict[bool, list[float]] = {False: [], True: []}
        memory: dict[bool, float] = {}

        async def pair() -> None:
            # In turns, so that whatever else the machine does weighs on both.
            for usual in (False, True):
                before = await floor.spent()
                rates[usual].append(await self._together(self._queue("usual"), count, usual=usual))
                after = await floor.spent()
                if before and after:
                    cpu[usual].append((after.cpu - before.cpu) / count)

        await self._repeatedly(pair)
        for usual in (False, True):
            before = await floor.spent()
            await self._fill(self._queue("memory"), usual=usual)
            after = await floor.spent()
            if before and after:
                memory[usual] = (after.memory - before.memory) / count
        measured = self._measurement(USUAL, rates[False], floor=rates[True])
        measured.server_cpu_us_per_job, measured.usual_cpu_us_per_job = _micro(cpu[False]), _micro(cpu[True])
        measured.bytes_per_waiting_job = rounded(memory.get(False), 1)
        measured.usual_bytes_per_waiting_job = rounded(memory.get(True), 1)
        yield measured

    # ── the workloads ───────────────────────────────────────────────────────

    async def _enqueue_single(self) -> Measurement:
        count = self._plan.single
        (report,) = await self._all(self._spec("single", self._queue("single"), count))
        floor: list[float] = []
        beneath: list[float] = []
        if self._floor is not None:
            (raw,) = await self._all(self._spec("floor_single", self._queue("floor"), count))
            floor, beneath = [count / (raw.ended - raw.began)], raw.samples
        return self._measurement(
            "enqueue_single",
            [count / (report.ended - report.began)],
            jobs=count,
            floor=floor,
            samples=report.samples,
            floor_p50_ms=milliseconds(percentile(beneath, 0.5)),
        )

    async def _fill_and_drain(self) -> tuple[Measurement, Measurement]:
        """Fill a queue, then let one worker process empty it: two workloads for one load."""
        rates: list[list[float]] = [[], [], [], []]

        async def once() -> None:
            queue = self._queue("drain")
            rates[0].append(await self._fill(queue))
            rates[1] += await self._floor_rows("floor_jobs")
            rates[2].append(await self._drain(queue, workers=1))
            rates[3] += await self._floor_rows("floor_done")

        await self._repeatedly(once)
        return (
            self._measurement("enqueue_bulk", rates[0], floor=rates[1]),
            self._measurement("drain_1", rates[2], floor=rates[3]),
        )

    async def _drain_2(self) -> Measurement:
        async def once() -> float:
            queue = self._queue("drain")
            await self._fill(queue)
            return await self._drain(queue, workers=2)

        rates, floor = await self._repeat(once, lambda: self._floor_rows("floor_done", members=2))
        return self._measurement("drain_2", rates, floor=floor)

    async def _fill(self, queue: str, *, usual: bool = False) -> float:
        spec = msgspec.structs.replace(self._spec("bulk", queue, self._plan.jobs), usual=usual)
        (filled,) = await self._all(spec)
        return _rate([filled], self._plan.jobs)

    async def _drain(self, queue: str, *, workers: int) -> float:
        count = self._plan.jobs
        async with self._crew.members([self._spec("work", queue, late=True) for _ in range(workers)]) as members:
            reports = await self._finish(members, count)
        return count / (_reached(reports, count) - min(report.began for report in reports))

    async def _together_plain(self) -> Measurement:
        count = self._plan.jobs
        wal: list[float] = []

        async def once() -> float:
            before = await self._floor.wal() if self._floor is not None else None
            rate = await self._together(self._queue("together"), count)
            after = await self._floor.wal() if self._floor is not None else None
            if before is not None and after is not None:
                wal.append((after - before) / count)
            return rate

        rates, floor = await self._repeat(once, self._floor_together)
        measured = self._measurement("together", rates, floor=floor)
        measured.wal_bytes_per_job = rounded(median(wal), 1)
        return measured

    async def _pickup(self) -> Measurement:
        """From the start of the enqueue call to the start of the task, on a worker that has nothing to do.

        The first jobs are left out: they connect, and have the server plan its statements.
        """
        count = WARM_UP + self._plan.pickups
        queue = self._queue("pickup")
        async with self._crew.members([self._spec("work", queue), self._spec("paced", queue, count)]) as members:
            worker, producer = members
            worker.go()
            producer.go()
            asked = await producer.report(_patience(count))
            (worked,) = await self._finish([worker], count)
        began = dict(worked.marks)
        latencies = [began[number] - moment for number, moment in enumerate(asked.samples)][WARM_UP:]
        return self._measurement("pickup", [], jobs=len(latencies), samples=latencies)

    async def _together(
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
        """One producer and one worker at the same time: jobs per second from the first enqueue to the last settlement.

        `busy`: jobs wait already, so the worker must not begin before the clock does.
        """
        producing = msgspec.structs.replace(
            self._spec("bulk", queue, count), traffic=traffic, tenants=tenants, apart=apart
        )
        specs = [
            msgspec.structs.replace(each, usual=usual) for each in (self._spec("work", queue, late=busy), producing)
        ]
        async with self._crew.members(specs) as members:
            worker, producer = members
            worker.go()
            producer.go()
            produced = await producer.report(_patience(count))
            (worked,) = await self._finish([worker], count)
        began = min(worked.began, produced.began) if busy else produced.began
        return count / (max(_reached([worked], count), produced.ended) - began)

    # ── how ─────────────────────────────────────────────────────────────────

    async def _finish(self, members: list[Member], count: int) -> list[Report]:
        """Let workers settle so many jobs, then stop them."""
        for member in members:
            member.go()
        patience = _patience(count)
        deadline = time.monotonic() + patience
        while (settled := sum(member.settled for member in members)) < count:
            if time.monotonic() > deadline or any(member.over for member in members):
                words = members[0].last_words()
                raise BenchFailed(f"only {settled:,} of {count:,} jobs were settled within {patience:.0f} s: {words}")
            await asyncio.sleep(0.02)
        for member in members:
            member.stop()
        return [await member.report(patience) for member in members]

    async def _floor_rows(self, role: RoleName, *, members: int = 1) -> list[float]:
        """How fast one kind of row is written by so many processes; nothing where there is no floor."""
        if self._floor is None:
            return []
        share = self._plan.jobs // members
        reports = await self._all(*(self._spec(role, "bench-floor", share) for _ in range(members)))
        return [_rate(reports, share * members)]

    async def _floor_together(self) -> list[float]:
        """How fast both kinds of rows are written by two processes at the same time."""
        if self._floor is None:
            return []
        count = self._plan.jobs
        roles: tuple[RoleName, RoleName] = ("floor_jobs", "floor_done")
        return [_rate(await self._all(*(self._spec(role, "bench-floor", count) for role in roles)), count)]

    async def _repeat(
        self, once: Callable[[], Awaitable[float]], beneath: Callable[[], Awaitable[list[float]]]
    ) -> tuple[list[float], list[float]]:
        """Rates and floors in turns, so that whatever else the machine does weighs on both."""
        rates: list[float] = []
        floor: list[float] = []

        async def both() -> None:
            rates.append(await once())
            floor.extend(await beneath())

        await self._repeatedly(both)
        return rates, floor

    async def _repeatedly(self, once: Callable[[], Awaitable[None]]) -> None:
        began = time.monotonic()
        for _ in range(self._plan.repeats):
            await once()
            if time.monotonic() - began > self._plan.budget:
                return

    async def _all(self, *specs: Spec) -> list[Report]:
        return await self._crew.all(specs, within=_patience(max(spec.count for spec in specs)))

    def _queue(self, name: str) -> str:
        return f"bench-{name}-{self._run}-{secrets.token_hex(3)}"

    def _spec(self, role: RoleName, queue: str, count: int = 0, *, late: bool = False) -> Spec:
        return Spec(role=role, url=self._url, engine=self._crew.engine, queue=queue, count=count, late=late)

    def _measurement(
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
            store=self._crew.engine,
            workload=workload,
            jobs_per_s=rate,
            floor_per_s=below,
            ratio=ratio(rate, below),
            p50_ms=milliseconds(percentile(samples or [], 0.5)),
            p99_ms=milliseconds(percentile(samples or [], 0.99)),
            jobs=self._plan.jobs if jobs is None else jobs,
            repeats=max(1, len(rates)),
            waiting=waiting,
            claim_p99_ms_at_1k=claim_p99_ms_at_1k,
            floor_p50_ms=floor_p50_ms,
        )


def _patience(count: int) -> float:
    """Seconds that so many jobs may take on the slowest machine worth measuring."""
    return 30.0 + count / 4000


def _micro(seconds: list[float]) -> float | None:
    value = median(seconds)
    return None if value is None else round(value * 1_000_000, 2)


def _rate(reports: list[Report], count: int) -> float:
    return count / (max(report.ended for report in reports) - min(report.began for report in reports))


def _reached(reports: list[Report], count: int) -> float:
    """When the workers together had settled so many jobs."""
    settled = 0
    for moment, amount in sorted(entry for report in reports for entry in report.trace):
        settled += amount
        if settled >= count:
            return moment
    raise BenchFailed(f"the workers settled {settled:,} jobs, not {count:,}")
