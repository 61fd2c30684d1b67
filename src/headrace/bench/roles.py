"""What a member of a run does: produce jobs, work on them, or time claims."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import msgspec

from headrace.bench.load import TEXT, Body, Load, Traffic
from headrace.errors import HeadraceError
from headrace.model.lease import Ask, Token, new_token, new_worker_id
from headrace.model.outcome import DONE, Settlement
from headrace.store.contract import Store
from headrace.worker import Worker
from headrace.worker.tally import Tally

RoleName = Literal[
    "bulk",
    "bodies",
    "single",
    "single_sync",
    "paced",
    "trickle",
    "work",
    "serve",
    "claim",
    "blocked",
    "release",
    "settle_each",
    "chains",
    "chain",
    "joins",
    "steps",
    "waits",
    "signals",
    "floor_jobs",
    "floor_done",
    "floor_single",
    "floor_steps",
]

BULK = 1000
"""Jobs per bulk enqueue call."""
TRICKLE = 500
"""Jobs per second of `trickle`."""


class Spec(msgspec.Struct, kw_only=True):
    """The orders of a member."""

    role: RoleName
    url: str
    engine: str
    queue: str
    count: int = 0
    traffic: Traffic = "fifo"
    tenants: int = 1
    """`bulk`: the number of tenants, if the traffic has any."""
    apart: bool = False
    """`bulk`: every thousand jobs are a call of their own, so that they are not grouped with later jobs."""
    body: Body = "noop"
    """`bodies`: what the jobs do."""
    size: int = len(TEXT)
    """`bodies`: how long each job's text is."""
    usual: bool = False
    """`bulk` and `work`: in the layout that is usual on this engine; only a member that knows such layouts can do it."""
    late: bool = False
    """`work`: start the worker with the signal to go, not before the member is ready."""
    counted: bool = True
    """`work`: count the attempts for history. False: to measure what that costs."""
    traced: float | None = None
    """`bulk` and `work`: with OpenTelemetry, and this share of the traces sampled; only a member that knows it can do it."""
    grouped: bool = False
    """`bulk`: the jobs are members of one group, which has a callback."""
    parts: int = 1
    """`chains`: links of each chain. `steps`: steps of each job. `joins`: jobs that each callback waits for."""
    port_file: str = ""
    """`serve`: the file to which the member writes its port before it is ready."""


class RoleReport(msgspec.Struct, kw_only=True):
    """The answer of a member at its end. Times are time.monotonic(), the same in every process of a machine."""

    began: float
    ended: float
    samples: list[float] = []
    """Seconds of each timed call; `paced`, `trickle` and `signals`: when each call began."""
    trace: list[tuple[float, int]] = []
    """`work`: (time, jobs settled) of each settlement."""
    marks: list[tuple[int, float]] = []
    """`work`: (number, time) of each marked job's start."""
    cpu: float = 0.0
    """`serve`, `bulk` and `work`: seconds of CPU time since the signal to go."""


class Line(Protocol):
    """A member's connection to the run."""

    async def ready(self) -> None:
        """Report that the member is ready, and wait for the signal to go."""
        ...

    async def stopped(self) -> None:
        """Wait for the signal to stop."""
        ...

    def settled(self, count: int) -> None:
        """Report the number of jobs so far."""
        ...


async def bulk(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` jobs in calls of 1,000."""
    await load.open()
    jobs = load.jobs(spec.traffic, spec.count, spec.tenants)
    await line.ready()
    began, cpu = time.monotonic(), time.process_time()
    if spec.grouped:
        async with load.app.open_group("bench", on_done=load.noop.job(TEXT)) as group:
            await group.aenqueue_many(jobs)
    elif spec.apart:
        while some := list(itertools.islice(jobs, BULK)):
            await load.app.aenqueue_many(some)
    else:
        await load.app.aenqueue_many(jobs)
    return RoleReport(began=began, ended=time.monotonic(), cpu=time.process_time() - cpu)


async def bodies(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` jobs of one kind and size, in calls of 1,000."""
    await load.open()
    jobs = load.bodies(spec.body, spec.count, spec.size)
    await line.ready()
    began = time.monotonic()
    while some := list(itertools.islice(jobs, BULK)):
        await load.app.aenqueue_many(some)
    return RoleReport(began=began, ended=time.monotonic())


async def single(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` jobs one after the other."""
    await load.noop.aenqueue(TEXT)
    await line.ready()
    samples: list[float] = []
    began = before = time.monotonic()
    for _ in range(spec.count):
        await load.noop.aenqueue(TEXT)
        after = time.monotonic()
        samples.append(after - before)
        before = after
    return RoleReport(began=began, ended=before, samples=samples)


async def single_sync(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` jobs one after the other from sync code, as a view or a script does."""

    def calls() -> RoleReport:
        samples: list[float] = []
        began = before = time.monotonic()
        for _ in range(spec.count):
            load.noop.enqueue(TEXT)
            after = time.monotonic()
            samples.append(after - before)
            before = after
        return RoleReport(began=began, ended=before, samples=samples)

    await asyncio.to_thread(load.noop.enqueue, TEXT)
    await line.ready()
    return await asyncio.to_thread(calls)


async def paced(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue one marked job after the other, with time for the worker to become idle in between."""
    await load.open()
    await line.ready()
    samples: list[float] = []
    began = time.monotonic()
    for number in range(spec.count):
        await asyncio.sleep(random.uniform(0.01, 0.03))
        samples.append(time.monotonic())
        await load.mark.aenqueue(number, TEXT)
    return RoleReport(began=began, ended=time.monotonic(), samples=samples)


async def trickle(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue marked jobs one by one at a steady rate, each at its own time however long the others take."""
    await load.open()
    await line.ready()
    began = time.monotonic()
    samples: list[float] = []
    for number in range(spec.count):
        await asyncio.sleep(max(0.0, began + number / TRICKLE - time.monotonic()))
        samples.append(time.monotonic())
        await load.mark.aenqueue(number, TEXT)
    return RoleReport(began=began, ended=time.monotonic(), samples=samples)


class Counting:
    """A store that notes each settlement that passes through; everything else is the inner store's own."""

    def __init__(self, inner: Store, line: Line) -> None:
        self._inner = inner
        self._line = line
        self._count = 0
        self.trace: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        refused = await self._inner.settle(token, settlements)
        settled = len(settlements) - len(refused)
        self.trace.append((time.monotonic(), settled))
        self._count += settled
        self._line.settled(self._count)
        return refused


async def work(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Run a worker until stopped."""
    inner = load.connect()
    store = Counting(inner, line)
    await inner.open()
    try:
        settings, duties = load.app.settings, load.app.duties
        worker = Worker(load.app.tasks, cast("Store", store), settings, queues=(spec.queue,), duties=duties)
        if not spec.counted:
            worker._state.tally = NoTally(time.time)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # no setting does it
        if spec.late:
            await line.ready()
        began = time.monotonic()
        async with worker:
            if not spec.late:
                await line.ready()
            cpu = time.process_time()
            await line.stopped()
            cpu = time.process_time() - cpu
        return RoleReport(began=began, ended=time.monotonic(), trace=store.trace, marks=load.began, cpu=cpu)
    finally:
        await inner.close()


class NoTally(Tally):
    """Counts nothing, so that a run shows what counting costs."""

    def settled(self, *_: Any, **__: Any) -> None:
        """Count nothing."""

    def ended(self, *_: Any, **__: Any) -> None:
        """Count nothing."""

    def add(self, *_: Any, **__: Any) -> None:
        """Count nothing."""


async def serve(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Run a server until stopped, on a port of the system's choice."""
    from headrace.server import ServerSettings, asgi
    from headrace.server.http.listener import Server

    settings = ServerSettings(port=0, access_log=False)
    server = Server(asgi(load.app, settings=settings), settings)
    here = socket.create_server(("127.0.0.1", 0), backlog=server.config.backlog)
    Path(spec.port_file).write_text(str(here.getsockname()[1]), encoding="ascii")  # noqa: ASYNC240 — nothing runs yet
    serving = asyncio.create_task(server.serve([here]))
    await line.ready()
    began, cpu = time.monotonic(), time.process_time()
    await line.stopped()
    report = RoleReport(began=began, ended=time.monotonic(), cpu=time.process_time() - cpu)
    server.stop()
    await serving
    return report


async def claim(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Time `count` claims of one job each; the settlements in between are not timed."""
    store = load.connect()
    await store.open()
    try:
        worker, ttl = new_worker_id(), load.app.settings.lease
        await line.ready()
        samples: list[float] = []
        began = time.monotonic()
        for _ in range(spec.count):
            ask = Ask(worker=worker, queues=(spec.queue,), limit=1, ttl=ttl, token=new_token())
            before = time.monotonic()
            lease = await store.claim(ask)
            samples.append(time.monotonic() - before)
            if lease is None:
                raise HeadraceError(f"a claim found nothing on {spec.queue}, though jobs wait there")
            await store.settle(lease.token, [(0, DONE)])
        return RoleReport(began=began, ended=time.monotonic(), samples=samples)
    finally:
        await store.close()


Role = Callable[[Spec, Load, Line], Awaitable[RoleReport]]

PLAIN_ROLES: Mapping[RoleName, Role] = {
    "bulk": bulk,
    "bodies": bodies,
    "single": single,
    "single_sync": single_sync,
    "paced": paced,
    "trickle": trickle,
    "work": work,
    "serve": serve,
    "claim": claim,
}
"""The roles of jobs that stand alone. `workflow_roles.py` has the others, and the table of all."""
