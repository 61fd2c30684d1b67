"""Workloads that need more of an engine than a store does: a transaction held open, and the layout that is usual there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from benchmarks import floors
from benchmarks.member import LAYOUTS
from benchmarks.result import EngineMeasurement
from headrace.bench.floor import Beside
from headrace.bench.result import Measurement, median, ratio, rounded
from headrace.bench.workloads import Workloads

USUAL = "usual_layout"
"""Only on engines where queues usually have a layout of their own. On Redis this is a hash per job."""


async def open_transaction(workloads: Workloads) -> AsyncIterator[Measurement]:
    """The usual traffic while another connection keeps a transaction open."""
    engine = floors.of(workloads.crew.engine, workloads.url)
    if engine is None:
        return
    count = workloads.plan.held
    free: list[float] = []
    held: list[float] = []

    async def pair() -> float:
        free.append(await workloads.together(workloads.queue("free"), count))
        async with engine.hold():
            held.append(await workloads.together(workloads.queue("held"), count))
        return free[-1]

    _, floor = await workloads.repeat(pair, workloads.floor_together)
    measured = workloads.measurement("open_transaction", held, jobs=count, floor=floor)
    unheld = rounded(median(free), 1)
    yield EngineMeasurement(
        **msgspec.structs.asdict(measured), unheld_per_s=unheld, slowdown=ratio(unheld, measured.jobs_per_s)
    )


async def usual_layout(workloads: Workloads) -> AsyncIterator[Measurement]:
    """A producer and a worker, beside the same two in the layout that is usual on this engine, if there is one."""
    floor = floors.of(workloads.crew.engine, workloads.url)
    if floor is None or workloads.crew.engine not in LAYOUTS:
        return
    count = workloads.plan.jobs
    rates: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    memory: dict[bool, float] = {}

    async def pair() -> None:
        # In turns, so that whatever else the machine does weighs on both.
        for usual in (False, True):
            before = await floor.spent()
            rates[usual].append(await workloads.together(workloads.queue("usual"), count, usual=usual))
            after = await floor.spent()
            if before and after:
                cpu[usual].append((after.cpu - before.cpu) / count)

    await workloads.repeatedly(pair)
    for usual in (False, True):
        before = await floor.spent()
        await workloads.fill(workloads.queue("memory"), usual=usual)
        after = await floor.spent()
        if before and after:
            memory[usual] = (after.memory - before.memory) / count
    measured = workloads.measurement(USUAL, rates[False], floor=rates[True])
    yield EngineMeasurement(
        **msgspec.structs.asdict(measured),
        server_cpu_us_per_job=_micro(cpu[False]),
        usual_cpu_us_per_job=_micro(cpu[True]),
        bytes_per_waiting_job=rounded(memory.get(False), 1),
        usual_bytes_per_waiting_job=rounded(memory.get(True), 1),
    )


def _micro(seconds: list[float]) -> float | None:
    value = median(seconds)
    return None if value is None else round(value * 1_000_000, 2)


BESIDE = Beside(
    member="benchmarks.member",
    floor=floors.of,
    groups=(open_transaction, usual_layout),
    workloads=("open_transaction",),
    traces=True,
)
"""What `make bench` measures beside a store."""
