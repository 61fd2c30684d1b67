"""A whole run over HTTP: the real server and the bare route in turns, under one load client."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from benchmarks.http.helper import Helper
from benchmarks.http.orders import (
    BATCHES_AT_ONCE,
    CONNECTIONS,
    Drive,
    Driven,
    Held,
    Hold,
    Order,
    OrderTimes,
    PickUp,
    Serve,
    Up,
    Work,
    job,
)
from benchmarks.result import HttpMeasurement
from headrace.bench import stand
from headrace.bench.fork_server import BenchFailed
from headrace.bench.load import TEXT
from headrace.bench.result import Measurement, median, milliseconds, percentile, ratio, rounded
from headrace.errors import ConfigError

START = 120.0
"""Seconds that a process may take until it answers the first time."""
SETTLE = 2.0
"""Seconds in which idle workers begin to wait, before the server is measured."""
MIB = 1024 * 1024
BARE = "a bare route"
HTTP = ("http_enqueue", "http_batch", "http_work", "http_idle")
"""What `--http` measures."""

T = TypeVar("T")

Progress = Callable[[int, int, str], None]


class HttpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything."""

    requests: int = 20_000
    """Per turn."""
    turns: int = 3
    batch: int = 1000
    """Jobs in one request of `http_batch`."""
    jobs: int = 200_000
    """Enqueued in batches, then worked off."""
    idle: int = 10_000
    watch: float = 30.0
    """Seconds for which the server with its idle workers is measured. Each worker claims once in this time."""
    before: float = 5.0
    """The same without any."""
    pickups: int = 200


FULL = HttpPlan()
QUICK = HttpPlan(requests=4000, jobs=30_000, idle=500, watch=3.0, before=1.0, pickups=40)


def plan(*, quick: bool, jobs: int | None) -> HttpPlan:
    """The plan that was asked for; `jobs` scales everything to it."""
    chosen = QUICK if quick else FULL
    if jobs is None:
        return chosen
    few = jobs <= 1000
    return msgspec.structs.replace(
        chosen,
        requests=jobs,
        turns=1 if few else chosen.turns,
        batch=min(chosen.batch, jobs),
        jobs=jobs,
        idle=min(chosen.idle, jobs),
        watch=0.2 if few else chosen.watch,
        before=0.2 if few else chosen.before,
        pickups=min(chosen.pickups, jobs),
    )


def check_installed() -> None:
    """Raise ConfigError if a package that the server needs is missing."""
    for name in ("httptools", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"the server needs {name}: pip install 'headrace[server]'")


async def measure(place: stand.Stand, plan: HttpPlan, progress: Progress) -> list[Measurement]:
    """Every workload over HTTP on this stand."""
    check_installed()
    found: list[Measurement] = []

    def take(measured: Measurement) -> None:
        found.append(measured)
        progress(len(found), len(HTTP), HTTP[len(found)] if len(found) < len(HTTP) else "")

    progress(0, len(HTTP), HTTP[0])
    async with _ground(place, plan) as ground:
        take(await ground.enqueue())
        take(await ground.batch())
        take(await ground.work())
    # Its memory is measured, so it is a fresh process.
    async with _ground(place, plan) as ground:
        take(await ground.idle())
    return found


@asynccontextmanager
async def _ground(place: stand.Stand, plan: HttpPlan) -> AsyncGenerator[_Ground]:
    url = place.fresh()
    if place.shared:
        await stand.prepare(url)
    queue = f"bench-http-{secrets.token_hex(3)}"
    async with Helper.start("server") as server, Helper.start("server") as bare, Helper.start("client") as client:
        ours = await server.ask(Serve(what="headrace", url=url, queue=queue), Up, within=START)
        theirs = await bare.ask(Serve(what="bare", url="", queue=queue), Up, within=START)
        yield _Ground(place.engine, plan, queue, client, _Listening(server, ours.port), _Listening(bare, theirs.port))


@dataclass(frozen=True, slots=True)
class _Listening:
    process: Helper
    port: int

    async def spent(self) -> OrderTimes:
        return await self.process.ask(None, OrderTimes, within=START)


@dataclass(slots=True)
class _Turns:
    """The figures of one server, turn by turn."""

    rates: list[float]
    samples: list[float]
    cpu: list[float]
    """Seconds of the server process per request."""


class _Ground:
    """The processes of a run, and the workloads they carry out."""

    def __init__(
        self, engine: str, plan: HttpPlan, queue: str, client: Helper, server: _Listening, bare: _Listening
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._queue = queue
        self._client = client
        self._server = server
        self._bare = bare

    async def enqueue(self) -> Measurement:
        """One job per request, in turns with the bare route, so that other load of the machine affects both."""
        ours, theirs = _Turns([], [], []), _Turns([], [], [])
        count = self._plan.requests
        for target in (self._server, self._bare):
            await self._singles(target, min(count, 5 * CONNECTIONS))  # connects, and plans statements
        for _ in range(self._plan.turns):
            await self._turn(self._server, ours)
            await self._turn(self._bare, theirs)
        rate, below = rounded(median(ours.rates), 1), rounded(median(theirs.rates), 1)
        return HttpMeasurement(
            store=self._engine,
            workload="http_enqueue",
            jobs_per_s=rate,
            floor_per_s=below,
            ratio=ratio(rate, below),
            beside=BARE,
            p50_ms=milliseconds(percentile(ours.samples, 0.5)),
            p99_ms=milliseconds(percentile(ours.samples, 0.99)),
            floor_p50_ms=milliseconds(percentile(theirs.samples, 0.5)),
            jobs=count,
            repeats=self._plan.turns,
            http_cpu_us_per_job=_micro(median(ours.cpu)),
            bare_cpu_us_per_job=_micro(median(theirs.cpu)),
        )

    async def _turn(self, target: _Listening, turns: _Turns) -> None:
        before = await target.spent()
        driven = await self._singles(target, self._plan.requests)
        after = await target.spent()
        turns.rates.append(self._plan.requests / (driven.ended - driven.began))
        turns.samples += driven.samples
        turns.cpu.append((after.cpu - before.cpu) / self._plan.requests)

    async def _singles(self, target: _Listening, count: int) -> Driven:
        order = Drive(port=target.port, path="/v1/jobs", body=job(TEXT).decode(), connections=CONNECTIONS, count=count)
        return await self._load(order, Driven, within=_patience(count))

    async def _load(self, order: Order, answer: type[T], *, within: float) -> T:
        """Make the client do this. An error also shows the server's last lines."""
        try:
            return await self._client.ask(order, answer, within=within)
        except BenchFailed as error:
            raise BenchFailed(f"{error}; the server's last words: {self._server.process.last_words()}") from None

    async def batch(self) -> Measurement:
        """As many jobs as fit into one request, a few requests at once."""
        size = self._plan.batch
        requests = -(-self._plan.jobs // size)
        body = b'{"jobs":[%b]}' % b",".join([job(TEXT)] * size)
        before = await self._server.spent()
        order = Drive(
            port=self._server.port,
            path="/v1/jobs/batch",
            body=body.decode(),
            connections=min(BATCHES_AT_ONCE, requests),
            count=requests,
        )
        driven = await self._load(order, Driven, within=_patience(requests * size))
        after = await self._server.spent()
        return self._rate("http_batch", driven, requests * size, after.cpu - before.cpu)

    async def work(self) -> Measurement:
        """A worker of another language: claim 100 jobs, settle them, one call after the other."""
        count = self._plan.jobs
        before = await self._server.spent()
        order = Work(port=self._server.port, queue=self._queue, count=count)
        driven = await self._load(order, Driven, within=_patience(count))
        after = await self._server.spent()
        return self._rate("http_work", driven, count, after.cpu - before.cpu)

    def _rate(self, workload: str, driven: Driven, jobs: int, cpu: float) -> Measurement:
        return HttpMeasurement(
            store=self._engine,
            workload=workload,
            jobs_per_s=rounded(jobs / (driven.ended - driven.began), 1),
            p50_ms=milliseconds(percentile(driven.samples, 0.5)),
            p99_ms=milliseconds(percentile(driven.samples, 0.99)),
            jobs=jobs,
            http_cpu_us_per_job=_micro(cpu / jobs),
        )

    async def idle(self) -> Measurement:
        """Long polls without jobs; then one job, and the time until a worker has it."""
        alone, at_rest = await self._watch(self._plan.before)
        order = Hold(port=self._server.port, queue=self._queue, workers=self._plan.idle)
        held = await self._load(order, Held, within=_patience(100 * self._plan.idle))
        await asyncio.sleep(min(SETTLE, self._plan.watch))
        crowded, busy = await self._watch(self._plan.watch)
        pick_up = PickUp(body=job(TEXT).decode(), count=self._plan.pickups)
        driven = await self._load(pick_up, Driven, within=_patience(100 * self._plan.pickups))
        return HttpMeasurement(
            store=self._engine,
            workload="http_idle",
            p50_ms=milliseconds(percentile(driven.samples, 0.5)),
            p99_ms=milliseconds(percentile(driven.samples, 0.99)),
            jobs=self._plan.pickups,
            idle_workers=held.workers,
            rss_mib=rounded(crowded.memory / MIB, 1),
            rss_mib_alone=rounded(alone.memory / MIB, 1),
            cpu_percent=rounded(busy, 1),
            cpu_percent_alone=rounded(at_rest, 1),
        )

    async def _watch(self, seconds: float) -> tuple[OrderTimes, float]:
        """What the server has spent, and its share of one core over this time."""
        loop = asyncio.get_running_loop()
        before, began = await self._server.spent(), loop.time()
        await asyncio.sleep(seconds)
        after, ended = await self._server.spent(), loop.time()
        return after, 100 * (after.cpu - before.cpu) / (ended - began)


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1_000_000, 2)


def _patience(count: int) -> float:
    """Seconds that this many requests or jobs may take on the slowest supported machine."""
    return 60.0 + count / 500
