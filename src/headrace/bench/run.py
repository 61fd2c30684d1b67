"""A whole run: the workloads one after the other on one stand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from headrace.bench import stand
from headrace.bench.crew import Crew
from headrace.bench.everyday import Everyday
from headrace.bench.floor import NOTHING, Beside, Group
from headrace.bench.observed import Observed
from headrace.bench.plan import Plan
from headrace.bench.result import EVERYDAY, FLOW, WORKLOADS, Measurement
from headrace.bench.workflows import Workflows
from headrace.bench.workloads import Workloads
from headrace.errors import ConfigError

Progress = Callable[[int, int, str], None]
"""(done, total, what)."""

GROUPS: tuple[Group, ...] = (Workloads.plain, Workloads.with_backlog)
"""Each group gets a fresh store, so that jobs of one group do not affect the next."""


async def measure(place: stand.Stand, plan: Plan, progress: Progress, beside: Beside = NOTHING) -> list[Measurement]:
    """Every workload on this stand."""
    measurements: list[Measurement] = []
    names = (*WORKLOADS, *beside.workloads)
    progress(0, len(names), names[0])
    for group in (*GROUPS, *beside.groups):
        async with _ground(place, plan, beside) as workloads:
            async for measurement in group(workloads):
                measurements.append(measurement)
                following = names[len(measurements)] if len(measurements) < len(names) else ""
                progress(len(measurements), len(names), following)
    return measurements


async def measure_flow(
    place: stand.Stand, plan: Plan, tenants: int, progress: Progress, beside: Beside = NOTHING
) -> list[Measurement]:
    """What tenants and limits cost on this stand."""
    progress(0, len(FLOW), "tenants and limits")
    async with _ground(place, plan, beside) as workloads:
        measurements = [measurement async for measurement in workloads.flow(tenants)]
    progress(len(FLOW), len(FLOW), "")
    return measurements


async def measure_everyday(
    place: stand.Stand, plan: Plan, progress: Progress, beside: Beside = NOTHING
) -> list[Measurement]:
    """The everyday workloads on this stand."""
    measurements: list[Measurement] = []
    progress(0, len(EVERYDAY), EVERYDAY[0])
    async with _ground(place, plan, beside) as workloads:
        async for measurement in Everyday(workloads).all():
            measurements.append(measurement)
            progress(len(measurements), len(EVERYDAY), measurement.workload)
    progress(len(EVERYDAY), len(EVERYDAY), "")
    return measurements


async def measure_observed(
    place: stand.Stand, plan: Plan, progress: Progress, beside: Beside = NOTHING
) -> list[Measurement]:
    """What it costs to be observed, on this stand."""
    if not place.shared:
        raise ConfigError(f"--observed measures a server in a process of its own, which cannot use {place.engine}")
    observed = Observed(plan, progress, traces=beside.traces)
    while True:
        # A store that is made for the run is made anew for each round, so that it does not grow with their number.
        async with _ground(place, plan, beside) as workloads:
            await observed.round(workloads)
            while observed.goes_on and not place.renews:
                await observed.round(workloads)
            if not observed.goes_on:
                return observed.measurements(workloads)


async def measure_workflows(
    place: stand.Stand, plan: Plan, progress: Progress, beside: Beside = NOTHING
) -> list[Measurement]:
    """What work that spans jobs costs on this stand."""
    workflows: Workflows | None = None
    while True:
        # A store that is made for the run is made anew for each round, so that it does not grow with their number.
        async with _ground(place, plan, beside) as workloads:
            if workflows is None:
                workflows = Workflows(plan, progress, floor=workloads.floor is not None)
            await workflows.round(workloads)
        if not workflows.goes_on:
            break
    async with _ground(place, plan, beside) as workloads:
        return await workflows.last(workloads)


@asynccontextmanager
async def _ground(place: stand.Stand, plan: Plan, beside: Beside) -> AsyncGenerator[Workloads]:
    url = place.fresh()
    if place.shared:
        await stand.prepare(url)
    floor = beside.floor(place.engine, url)
    if floor is not None:
        await floor.prepare()
    crew = Crew(place.engine, shared=place.shared, member=beside.member)
    try:
        yield Workloads(crew, url, plan, floor)
    finally:
        await crew.close()
        if floor is not None:
            await floor.drop()
