"""The everyday workloads: one call from sync code, plain functions, large payloads, a trickle, a script, an idle worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import msgspec

from headrace.bench.floor import Floor
from headrace.bench.fork_server import BenchFailed, child_environment
from headrace.bench.load import TEXT, Body
from headrace.bench.result import Measurement, median, milliseconds, rounded
from headrace.bench.roles import TRICKLE, Spec
from headrace.bench.workloads import WARM_UP, Workloads, patience

_SETTLE_DOWN = 2.0
"""Seconds after which a started worker is idle."""


class Everyday:
    """The everyday workloads on one store."""

    def __init__(self, workloads: Workloads) -> None:
        self._on = workloads
        self._plan = workloads.plan

    async def all(self) -> AsyncIterator[Measurement]:
        yield await self._enqueue_sync()
        for measured in await self._bodies():
            yield measured
        yield await self._payload("payload_10k", 10_000)
        yield await self._payload("payload_100k", 100_000)
        yield await self._trickle()
        if self._on.shared:
            yield await self._one_shot()
        if self._on.shared and self._on.floor is not None:
            yield await self._idle_chatter(self._on.floor)

    async def _enqueue_sync(self) -> Measurement:
        return await self._on.single("enqueue_sync", "single_sync")

    async def _bodies(self) -> list[Measurement]:
        """One worker on a backlog of coroutines, of plain functions, and of jobs that fail once; in turns."""
        beside: dict[str, tuple[Body, int]] = {
            "async_task": ("noop", 1),
            "sync_task": ("sync", 1),
            "fail_once": ("fail_once", 2),
        }
        rates: dict[str, list[float]] = {name: [] for name in beside}

        async def one_round() -> None:
            for name, (body, attempts) in beside.items():
                _, drained = await self._fill_and_drain(body, self._plan.jobs, len(TEXT), attempts)
                rates[name].append(drained)

        await self._on.repeatedly(one_round)
        measurements: list[Measurement] = []
        for name in beside:
            base = "async_task" if name != "async_task" else None
            measurements.append(self._on.measurement(name, rates[name], floor=rates[base] if base else None))
            measurements[-1].beside = base
        return measurements

    async def _payload(self, workload: str, size: int) -> Measurement:
        count = min(self._plan.jobs, max(10, self._plan.large * 1_000_000 // size))
        filled: list[float] = []
        drained: list[float] = []

        async def once() -> None:
            fill, drain = await self._fill_and_drain("noop", count, size, 1)
            filled.append(fill)
            drained.append(drain)

        await self._on.repeatedly(once)
        measured = self._on.measurement(workload, drained, jobs=count)
        measured.bulk_per_s = rounded(median(filled), 1)
        return measured

    async def _fill_and_drain(self, body: Body, count: int, size: int, attempts: int) -> tuple[float, float]:
        """Jobs per second enqueued, and then worked off."""
        queue = self._on.queue(body)
        spec = msgspec.structs.replace(self._on.spec("bodies", queue, count), body=body, size=size)
        (filled,) = await self._on.all(spec)
        drained = await self._on.drain(queue, workers=1, count=count * attempts)
        return count / (filled.ended - filled.began), drained / attempts

    async def _trickle(self) -> Measurement:
        count = WARM_UP + self._plan.trickled
        latencies = await self._on.latencies("trickle", count)
        return self._on.measurement(f"trickle_{TRICKLE}", [], jobs=len(latencies), samples=latencies)

    async def _one_shot(self) -> Measurement:
        """A script enqueues one job and ends, beside an idle worker.

        p50 and p99 are from the end of the enqueue call to the start of the task.
        """
        queue, count = self._on.queue("script"), self._plan.one_shots
        committed: dict[int, float] = {}
        exits: list[float] = []
        async with self._on.crew.members([self._on.spec("work", queue)]) as members:
            members[0].go()
            for number in range(count):
                committed[number], ended = await _script(self._on.spec("single_sync", queue, number))
                exits.append(ended - committed[number])
            (worked,) = await self._on.finish(members, count)
        pickups = [began - committed[number] for number, began in worked.marks]
        measured = self._on.measurement("one_shot", [], jobs=count, samples=pickups)
        measured.exit_p50_ms = milliseconds(median(exits))
        return measured

    async def _idle_chatter(self, floor: Floor) -> Measurement:
        measured = self._on.measurement("idle_chatter", [], jobs=0)
        if await floor.calls() is None:
            return measured
        async with self._on.crew.members([self._on.spec("work", self._on.queue("idle"))]) as members:
            members[0].go()
            await asyncio.sleep(_SETTLE_DOWN)
            before, again = await floor.calls() or 0, await floor.calls() or 0
            await asyncio.sleep(self._plan.idle)
            after = await floor.calls() or 0
        # Reading the counter makes calls, too. The difference of two reads in a row is subtracted.
        measured.server_calls_per_s = round(max(0, after - again - (again - before)) / self._plan.idle, 2)
        return measured


async def _script(spec: Spec) -> tuple[float, float]:
    """When the script's job was stored, and when its process ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace.bench.one_shot",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    output, _ = await asyncio.wait_for(process.communicate(msgspec.json.encode(spec) + b"\n"), patience(1))
    ended = time.monotonic()
    if process.returncode != 0 or not output:
        raise BenchFailed(f"a script that enqueues one job ended with exit code {process.returncode}")
    return float(output), ended
