"""What work that spans jobs costs: groups, chains, joins, steps and suspended jobs, each beside what it is compared with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final

import msgspec

from headrace.bench.plan import Plan
from headrace.bench.result import WORKFLOWS, Measurement, median, milliseconds, percentile, quartiles, rounded
from headrace.bench.roles import RoleName, RoleReport
from headrace.bench.targets import judge
from headrace.bench.workloads import WARM_UP, Pair, Workloads

_SETTLERS: Final = 8
"""`group_singles`: members that settle at the same time."""
_LINKS: Final = 100
"""`chains`: jobs of a chain."""
_TENANTS: Final = 1000
"""Tenants of the traffic that `chains` is compared with."""
_MEMBERS: Final = 4
"""`join`: jobs that a callback waits for."""
_TASKS: Final = 100
_STEPS: Final = 10
"""`steps_100`: tasks at once, and steps of each."""
_SETTLE_DOWN: Final = 2.0
"""Seconds after which a started worker is idle."""
_SLOWER: Final = 4
"""A suspension may take this many times as long as a job that only ends."""

Progress = Callable[[int, int, str], None]
Act = Callable[[Workloads], Awaitable[None]]


class Turns(msgspec.Struct, kw_only=True):
    """What the rounds of one workload found, and what they found of the one beside it."""

    beside: str
    jobs: int
    rates: list[Pair] = []
    base: list[Pair] = []
    samples: list[list[float]] = []
    base_samples: list[list[float]] = []
    cpu: list[float] = []
    base_cpu: list[float] = []


class Workflows:
    """Work that spans jobs, in turns with the same or the nearest work that does not."""

    def __init__(self, plan: Plan, progress: Progress, *, floor: bool) -> None:
        """`floor`: whether the run has one, so that the bytes of jobs are known."""
        self._plan = plan
        self._progress = progress
        self._floor = floor
        self._rounds = 0
        self._until = time.monotonic() + plan.workflow_budget
        self._turns: dict[str, Turns] = {}
        self._bytes: dict[str, float] = {}
        self._pickups: list[float] = []
        """Those of this round."""
        acts: dict[str, Act] = {
            "ordinary": self._ordinary,
            "group_1m": self._group,
            "group_singles": self._singles,
            "chains": self._chains,
            "chain_1": self._chain,
            "join": self._join,
            "step_1": self._step,
            "steps_100": self._steps,
        }
        self._acts = acts
        self._done = 0
        self.names = [name for name in WORKFLOWS if floor or not name.startswith("bytes_")]

    @property
    def goes_on(self) -> bool:
        """Whether there is another round. A run on a slow machine has fewer."""
        return not self._rounds or (self._rounds < self._plan.workflow_rounds and time.monotonic() < self._until)

    async def round(self, on: Workloads) -> None:
        """Every workload once, but for those of suspended jobs."""
        self._tell("warm-up")
        await on.pair(on.queue("warm"), self._plan.jobs)
        for name, act in self._acts.items():
            self._tell(name)
            await act(on)
            self._done += 1
        self._rounds += 1

    async def last(self, on: Workloads) -> list[Measurement]:
        """What is measured once, because it takes long to prepare. Returns all measurements."""
        self._done = len(self._acts) * self._plan.workflow_rounds
        self._tell("suspended_100k")
        await self._suspended(on)
        if self._floor:
            self._tell("bytes")
            await self._stored(on)
        self._tell("")
        return [self._measurement(on, name) for name in self.names]

    def _tell(self, what: str) -> None:
        self._progress(self._done, len(self._acts) * self._plan.workflow_rounds, what)

    def _figures(self, name: str, beside: str, jobs: int) -> Turns:
        return self._turns.setdefault(name, Turns(beside=beside, jobs=jobs))

    async def _in_turns(
        self, own: Callable[[], Awaitable[Pair]], base: Callable[[], Awaitable[Pair]], to: Turns
    ) -> None:
        """Measure both. In each round the other one is first, so that none has the better place."""
        if self._rounds % 2:
            to.rates.append(await own())
            to.base.append(await base())
        else:
            to.base.append(await base())
            to.rates.append(await own())

    # ── ordinary jobs beside blocked ones, and what happens when those are released ──

    async def _ordinary(self, on: Workloads) -> None:
        count, blocked = self._plan.jobs, self._plan.blocked
        together = self._figures("ordinary_together", "none blocked", count)
        drain = self._figures("ordinary_drain_1", "none blocked", count)
        pickup = self._figures("ordinary_pickup", "none blocked", self._plan.pickups)
        fanout = self._figures("fanout_drain", "drain_1", blocked)
        alone, queue = on.queue("alone"), on.queue("beside")
        together.base.append(await on.pair(alone, count, busy=True))
        drained = await self._drain(on, alone)
        drain.base.append(drained)
        fanout.base.append(drained)
        self._pickups = await self._pickup(on, alone)
        pickup.base_samples.append(self._pickups)
        await on.all(on.spec("blocked", queue, blocked))
        together.rates.append(await on.pair(queue, count, busy=True))
        drain.rates.append(await self._drain(on, queue))
        pickup.samples.append(await self._pickup(on, queue))
        (released,) = await on.all(on.spec("release", queue, blocked))
        self._figures("fanout_1m", "", blocked).samples.append(released.samples)
        fanout.rates.append(Pair(await on.drain(queue, workers=1, count=blocked), 0.0))

    async def _drain(self, on: Workloads, queue: str) -> Pair:
        await on.fill(queue)
        return Pair(await on.drain(queue, workers=1, count=self._plan.jobs), 0.0)

    async def _pickup(self, on: Workloads, queue: str) -> list[float]:
        return await on.latencies("paced", WARM_UP + self._plan.pickups, queue)

    # ── groups ──────────────────────────────────────────────────────────────

    async def _group(self, on: Workloads) -> None:
        count = self._plan.blocked
        await self._in_turns(
            lambda: on.pair(on.queue("group"), count, grouped=True),
            lambda: on.pair(on.queue("together"), count),
            self._figures("group_1m", "together", count),
        )

    async def _singles(self, on: Workloads) -> None:
        count = _SETTLERS * self._plan.settles
        figures = self._figures("group_singles", "no group", count)
        await self._in_turns(lambda: self._settle(on, grouped=True), lambda: self._settle(on, grouped=False), figures)

    async def _settle(self, on: Workloads, *, grouped: bool) -> Pair:
        queue, settles = on.queue("singles"), self._plan.settles
        count = _SETTLERS * settles
        await on.all(msgspec.structs.replace(on.spec("bulk", queue, count), grouped=grouped))
        reports = await on.all(*(on.spec("settle_each", queue, settles) for _ in range(_SETTLERS)))
        took = max(report.ended for report in reports) - min(report.began for report in reports)
        return Pair(count / took, 0.0)

    # ── chains and joins ────────────────────────────────────────────────────

    async def _chains(self, on: Workloads) -> None:
        chains = self._plan.chains
        count = chains * _LINKS

        async def own() -> Pair:
            queue = on.queue("chains")
            producing = msgspec.structs.replace(on.spec("chains", queue, chains), parts=_LINKS)
            return await on.produce_and_work(producing, on.spec("work", queue), count)

        await self._in_turns(
            own,
            lambda: on.pair(on.queue("uniform"), count, traffic="uniform", tenants=_TENANTS, apart=True),
            self._figures("chains", "uniform_apart", count),
        )

    async def _chain(self, on: Workloads) -> None:
        count = WARM_UP + self._plan.pickups
        began = dict((await self._marked(on, "chain", count, 1, count)).marks)
        times = [began[number] for number in range(WARM_UP - 1, count)]
        self._beside_pickup("chain_1", [after - before for before, after in pairwise(times)])

    async def _join(self, on: Workloads) -> None:
        calls = WARM_UP + self._plan.pickups
        began = dict((await self._marked(on, "joins", calls, _MEMBERS, calls * (_MEMBERS + 1))).marks)
        callbacks = range(_MEMBERS, calls * (_MEMBERS + 1), _MEMBERS + 1)
        waited = [began[number] - max(began[number - part] for part in range(1, _MEMBERS + 1)) for number in callbacks]
        self._beside_pickup("join", waited[WARM_UP:])

    def _beside_pickup(self, name: str, samples: list[float]) -> None:
        figures = self._figures(name, "pickup", len(samples))
        figures.samples.append(samples)
        figures.base_samples.append(self._pickups)

    async def _marked(self, on: Workloads, role: RoleName, count: int, parts: int, jobs: int) -> RoleReport:
        """The report of a worker that runs marked jobs of one producer."""
        queue = on.queue(role)
        producing = msgspec.structs.replace(on.spec(role, queue, count), parts=parts)
        _, worked = await on.side_by_side(producing, on.spec("work", queue), jobs)
        return worked

    # ── steps ───────────────────────────────────────────────────────────────

    async def _step(self, on: Workloads) -> None:
        count = self._plan.single
        (single,) = await on.all(on.spec("single", on.queue("single"), count))
        times = [moment for _, moment in (await self._marked(on, "steps", 1, count, 1)).marks]
        figures = self._figures("step_1", "enqueue_single", count)
        figures.samples.append([after - before for before, after in pairwise(times)])
        figures.base_samples.append(single.samples)

    async def _steps(self, on: Workloads) -> None:
        count = _TASKS * _STEPS
        figures = self._figures("steps_100", "a row per step" if self._floor else "", count)
        times = [moment for _, moment in (await self._marked(on, "steps", _TASKS, _STEPS, _TASKS)).marks]
        figures.rates.append(Pair(count / (max(times) - min(times)), 0.0))
        if self._floor:
            spec = msgspec.structs.replace(on.spec("floor_steps", on.queue("floor"), _TASKS), parts=_STEPS)
            (raw,) = await on.all(spec)
            figures.base.append(Pair(count / (raw.ended - raw.began), 0.0))

    # ── suspended jobs ──────────────────────────────────────────────────────

    async def _suspended(self, on: Workloads) -> None:
        queue, count = on.queue("suspended"), self._plan.suspended
        idle = self._figures("suspended_idle", "none suspended", count)
        # A worker looks after the whole store, so the comparison has to come first.
        idle.base_cpu += [await self._idle(on, queue) for _ in range(self._plan.repeats)]
        await on.all(on.spec("waits", queue, count))
        async with on.crew.members([on.spec("work", queue)]) as members:
            await on.finish(members, count, slower=_SLOWER)
        idle.cpu += [await self._idle(on, queue) for _ in range(self._plan.repeats)]
        signals = min(count, WARM_UP + self._plan.pickups)
        self._pickups = await self._pickup(on, on.queue("pickup"))
        asked, worked = await on.side_by_side(on.spec("signals", queue, signals), on.spec("work", queue), signals)
        resumed = dict(worked.marks)
        waited = [resumed[number] - moment for number, moment in enumerate(asked.samples)]
        self._beside_pickup("suspended_signal", waited[min(WARM_UP, signals - 1) :])

    async def _idle(self, on: Workloads, queue: str) -> float:
        """Seconds of CPU time of a worker that has nothing to do."""
        async with on.crew.members([on.spec("work", queue)]) as (worker,):
            await asyncio.sleep(min(_SETTLE_DOWN, self._plan.idle))
            worker.go()
            await asyncio.sleep(self._plan.idle)
            (report,) = await on.finish([worker], 0)
        return report.cpu

    # ── bytes ───────────────────────────────────────────────────────────────

    async def _stored(self, on: Workloads) -> None:
        assert on.floor is not None
        chains = self._plan.chains
        links = msgspec.structs.replace(on.spec("chains", on.queue("chains"), chains), parts=_LINKS)
        jobs = self._plan.jobs
        for name, spec, count in (
            ("waiting", on.spec("bulk", on.queue("waiting"), jobs), jobs),
            ("bytes_blocked", on.spec("blocked", on.queue("blocked"), jobs), jobs),
            ("bytes_link", links, chains * _LINKS),
        ):
            before = await on.floor.stored()
            await on.all(spec)
            self._bytes[name] = (await on.floor.stored() - before) / count

    # ── the answer ──────────────────────────────────────────────────────────

    def _measurement(self, on: Workloads, name: str) -> Measurement:
        if name in self._bytes:
            measured = on.measurement(name, [], jobs=self._plan.jobs)
            measured.beside = "a waiting job"
            measured.bytes_per_job, measured.floor_bytes = (
                rounded(self._bytes[name], 1),
                rounded(self._bytes["waiting"], 1),
            )
            measured.ratio = rounded(self._bytes[name] / self._bytes["waiting"]) if self._bytes["waiting"] else None
        else:
            measured = measurement_of(on, name, self._turns[name])
        judge(measured)
        return measured


def measurement_of(on: Workloads, name: str, figures: Turns) -> Measurement:
    """One workload: medians over all rounds, and the quartiles of their ratios."""
    samples = [sample for some in figures.samples for sample in some]
    measured = on.measurement(name, [pair.rate for pair in figures.rates], samples=samples, jobs=figures.jobs)
    measured.repeats = max(len(figures.rates), len(figures.samples), len(figures.cpu))
    measured.beside = figures.beside or None
    measured.floor_per_s = rounded(median([pair.rate for pair in figures.base]), 1)
    # Two runs of one round have the same other load, so their ratio varies less than the ratio of two medians.
    ratios = [own.rate / base.rate for own, base in zip(figures.rates, figures.base, strict=False)]
    if figures.base_samples:
        base = [sample for some in figures.base_samples for sample in some]
        measured.floor_p50_ms = milliseconds(percentile(base, 0.5))
        ratios = [
            _middle(own) / _middle(below) for own, below in zip(figures.samples, figures.base_samples, strict=True)
        ]
    if name == "join":
        pairs = list(zip(figures.samples, figures.base_samples, strict=True))
        for share, field in ((0.5, "more_p50_ms"), (0.99, "more_p99_ms")):
            more = [(percentile(own, share) or 0.0) - (percentile(below, share) or 0.0) for own, below in pairs]
            setattr(measured, field, milliseconds(median(more)))
    if figures.cpu:
        ratios = [own / base for own, base in zip(figures.cpu, figures.base_cpu, strict=True)]
    if ratios:
        measured.ratio = rounded(median(ratios))
        measured.lower_ratio, measured.upper_ratio = map(rounded, quartiles(ratios))
    if any(pair.cpu for pair in figures.rates):
        measured.cpu_us_per_job = rounded(median([1e6 * pair.cpu for pair in figures.rates]), 2)
        shares = [base.cpu / own.cpu for own, base in zip(figures.rates, figures.base, strict=True)]
        measured.cpu_ratio = rounded(median(shares))
    return measured


def _middle(samples: list[float]) -> float:
    return percentile(samples, 0.5) or 0.0
