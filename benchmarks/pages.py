"""`python -m benchmarks.pages`: how long the server takes for each call of each page of the dashboard, over a long history.

It makes ended jobs through the store's own verbs, and rollups of 30 days, then starts the server and asks for what the
pages ask for. It does so at a tenth of the jobs first, so that the run shows whether the cost grows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import uuid4

import click
import msgspec

from benchmarks.http.helper import Helper
from benchmarks.http.orders import OrderTimes, Serve, Up
from benchmarks.stand import STANDS
from headrace.bench import stand
from headrace.bench.fork_server import BenchFailed
from headrace.bench.result import milliseconds, percentile
from headrace.cli.output import emit, say, table
from headrace.cli.root import Answering
from headrace.model.histogram import Histogram
from headrace.model.job import Batch, Failure, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import MAX_LEASE, Ask, Lease, WorkerId, new_token, new_worker_id
from headrace.model.outcome import DONE, Finish, Settlement
from headrace.model.records import Filter
from headrace.model.rollup import HOUR, AttemptEnd, Rollup
from headrace.runtime.event_loop import run
from headrace.store import connect
from headrace.store.contract import Store
from headrace.worker.history import HistoryUpkeep

QUEUES = tuple(f"queue-{number}" for number in range(10))
TASKS = tuple(f"task-{number}" for number in range(30))
"""Three of each queue."""
TENANTS = tuple(f"tenant-{number}" for number in range(50))
BUGS = 20
BATCH = 5000
"""Jobs of one enqueue call."""
DIES = 1000
"""One job of so many dies, and one of a hundred has a result."""
APART = 1.2
"""Seconds between two rounds of calls. The server keeps figures for a second."""
MOST = 200.0
"""Milliseconds that a call may take."""
SLOW = 3
"""The exit code if a call took longer."""
_DAY = 24 * 60
_PASSES = 3
"""Minutes become quarters of an hour, hours, and days."""
_AT_ONCE = 500
_PAYLOAD = msgspec.msgpack.encode((["x" * 90], {}))


def pages(sample: Mapping[str, str]) -> dict[str, list[str]]:
    """What each page of the dashboard asks for. `sample`: ids of jobs in each state."""
    done, dead, waiting, old = (sample[name] for name in ("done", "dead", "ready", "old"))
    return {
        "every page": ["/v1/queues", "/v1/pauses", "/v1/workers", "/v1/limits"],
        "overview": [
            *(f"/v1/history?since={since}&by=end&times=false" for since in ("1h", "24h", "7d&step=2h")),
            "/v1/changes?since=1h&limit=20",
        ],
        "queue": [
            f"/v1/history?since={since}&by={by}&queue=queue-0"
            for since in ("1h", "24h", "7d&step=2h")
            for by in ("queue", "task&step=all")
            if not ("step=2h" in since and "step=all" in by)
        ]
        + ["/v1/history?since=7d&by=task&queue=queue-0&step=all", "/v1/queues/queue-0"],
        "jobs": [
            f"/v1/jobs?{query}&limit=50"
            for query in (
                "",
                "state=done",
                "state=dead",
                "state=ready",
                "state=running",
                "state=cancelled",
                "queue=queue-0",
                "task=task-3",
                "tenant=tenant-9",
                "queue=queue-0&state=dead",
                "tenant=none",
                "task=none&state=dead",
                "task=none&state=done",
                "text=task-3",
                "text=no+such+text",
                f"before={old}",
            )
        ]
        + [
            f"/v1/jobs/count?{query}"
            for query in ("queue=queue-0", "tenant=none", "state=done&task=none", "text=no+such+text")
        ],
        "job": [
            *(f"/v1/jobs/{id}{more}" for id in (done, dead, waiting) for more in ("", "/explain")),
            f"/v1/jobs/{done}/result",
        ],
        "dead letters": [
            "/v1/dead",
            "/v1/dead?queue=queue-0",
            "/v1/dead?tenant=none",
            f"/v1/jobs/{dead}",
            "/v1/dead/replays",
        ],
        "reports": [
            "/v1/report?since=7d",
            "/v1/report?since=30d",
            "/v1/history?since=7d&by=task&step=all",
            "/v1/history?since=30d&by=task&step=all",
            "/v1/history?since=7d&step=2h&by=task&task=task-3",
            "/v1/history?since=30d&by=task&task=task-3",
        ],
        "others": ["/v1/schedules", "/v1/audit?limit=50", "/v1/tokens"],
    }


# ── filling ──────────────────────────────────────────────────────────────────


@dataclass
class Fill:
    """Makes ended jobs in one store."""

    store: Store
    count: int = 0
    """Jobs so far."""

    async def reach(self, jobs: int) -> None:
        """Until there are so many ended jobs."""
        worker, shown_at = new_worker_id(), time.monotonic()
        while self.count < jobs:
            number = self.count // BATCH
            lane = Lane(queue=QUEUES[number % len(QUEUES)], tenant=TENANTS[number % len(TENANTS)])
            tasks = TASKS[3 * (number % len(QUEUES)) :][:3]
            await self.store.enqueue(
                Batch(new_batch(), [NewJob(tasks[place % 3], _PAYLOAD, lane) for place in range(BATCH)])
            )
            async for lease in self._leases(lane.queue, worker):
                settled = await self.store.settle(lease.token, [*_endings(lease, self.count)])
                if settled:
                    raise BenchFailed(f"{len(settled)} settlements were refused")
                self.count += len(lease.jobs)
            if time.monotonic() - shown_at > 10:
                shown_at = time.monotonic()
                say(f"{self.count:,} of {jobs:,} jobs")

    async def _leases(self, queue: str, worker: WorkerId) -> AsyncIterator[Lease]:
        while True:
            ask = Ask(worker, (queue,), MAX_LEASE, timedelta(minutes=5), new_token())
            lease = await self.store.claim(ask)
            if lease is None:
                return
            yield lease

    async def history(self, days: int, tasks: int) -> None:
        """Rollups of so many days and tasks: by hour, and of the last day by minute."""
        now = int((await self.store.now()).timestamp())
        rollups = [*_rollups(now, days, tasks)] if days else []
        for start in range(0, len(rollups), _AT_ONCE):
            await self.store.add_history(rollups[start : start + _AT_ONCE])
        # Workers fold them: each pass into the next longer length of time.
        for _ in range(_PASSES):
            upkeep = HistoryUpkeep(self.store, timedelta(days=30))
            while await upkeep.tidy() < 1:
                pass
        say(f"{len(rollups):,} rollups, folded")

    async def sample(self) -> dict[str, str]:
        """A job of each kind: among the newest, and from the middle."""
        lane = Lane(queue="waiting")
        batch = Batch(new_batch(), [NewJob(TASKS[0], _PAYLOAD, lane)] * 1000)
        await self.store.enqueue(batch)
        ids = {"ready": str(job_id(batch.id, 500))}
        for name, state in (("done", JobState.DONE), ("dead", JobState.DEAD)):
            page = await self.store.find(Filter(states=frozenset({state})), limit=1)
            while not page.jobs and page.next is not None:
                page = await self.store.find(Filter(states=frozenset({state})), before=page.next, limit=1)
            ids[name] = str(page.jobs[0].id)
        return ids


def _endings(lease: Lease, count: int) -> Iterator[tuple[int, Settlement]]:
    for place in range(len(lease.jobs)):
        number = count + place
        if number % DIES == 0:
            bug = number // DIES % BUGS
            at = datetime.now(UTC)
            message = f"bug {bug} of order {number}"
            failure = Failure(1, "builtins.ValueError", message, _traceback(bug, message), at, "host:1")
            yield place, Finish(JobState.DEAD, note="max_attempts", failure=failure, failures=1)
        elif number % 100 == 1:
            yield place, Finish(JobState.DONE, result=msgspec.msgpack.encode(number))
        else:
            yield place, DONE


def _traceback(bug: int, message: str) -> str:
    frames = "".join(
        f'  File "/app/module_{line}.py", line {line + bug}, in call_{bug}\n    call()\n' for line in range(20)
    )
    return f"Traceback (most recent call last):\n{frames}ValueError: {message}\n"


def _rollups(now: int, days: int, tasks: int) -> Iterator[Rollup]:
    minute = now // 60
    times = Histogram()
    # 200 attempts whose times spread over a factor of about 50, as those of one task in one minute do.
    times.add(0.01 * 1.02**power for power in range(200))
    packed = times.pack()
    starts = [(minute - offset, 1) for offset in range(_DAY)]
    first = (minute - _DAY) // HOUR * HOUR
    starts += [(first - offset, HOUR) for offset in range(HOUR, (days - 1) * _DAY, HOUR)]
    for start, span in starts:
        for place, task in enumerate(TASKS[:tasks]):
            # Every tenth minute has failures, and every hour.
            for end in (AttemptEnd.DONE, AttemptEnd.FAILED)[: 2 if span == HOUR or start % 10 == place % 10 else 1]:
                yield Rollup(
                    start=start,
                    id=uuid4(),
                    span=span,
                    queue=QUEUES[place // 3],
                    task=task,
                    end=end,
                    count=200,
                    wait=packed,
                    run=packed,
                    sent=start * 60,
                )


# ── asking ───────────────────────────────────────────────────────────────────


class CallTime(msgspec.Struct, kw_only=True):
    """One call of one page."""

    store: str
    jobs: int
    page: str
    call: str
    first_ms: float
    """The first call of its kind, of a server that has just started."""
    p50_ms: float | None
    """Of the calls after it."""
    most_ms: float | None
    first_cpu_ms: float
    """What the server's process used for it. A busy machine makes the other times longer, and hardly this one."""
    cpu_ms: float | None
    kilobytes: float


class _Sample(NamedTuple):
    took: float
    cpu: float
    size: int


async def ask(url: str, engine: str, jobs: int, sample: Mapping[str, str], rounds: int) -> list[CallTime]:
    """The time of every call. Each page has a server process of its own, so that its first calls are those after a start."""
    times: list[CallTime] = []
    for page, paths in pages(sample).items():
        async with Helper.start("server") as server:
            up = await server.ask(Serve(what="headrace", url=url, queue="serve", max_polls=100_000), Up, within=120)
            reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
            samples: dict[str, list[_Sample]] = {path: [] for path in paths}
            try:
                await _get(reader, writer, "/livez")
                for _ in range(rounds + 1):
                    for path in paths:
                        samples[path].append(await _sample(server, reader, writer, path))
                    await asyncio.sleep(APART)
            finally:
                writer.close()
        times += [_times(engine, jobs, page, path, *measured) for path, measured in samples.items()]
    return times


async def _sample(server: Helper, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> _Sample:
    used = await server.ask("used", OrderTimes, within=60)
    began = time.monotonic()
    size = await _get(reader, writer, path)
    took = time.monotonic() - began
    return _Sample(took, (await server.ask("used", OrderTimes, within=60)).cpu - used.cpu, size)


def _times(engine: str, jobs: int, page: str, path: str, first: _Sample, *later: _Sample) -> CallTime:
    return CallTime(
        store=engine,
        jobs=jobs,
        page=page,
        call=path,
        first_ms=round(1000 * first.took, 1),
        p50_ms=milliseconds(percentile([one.took for one in later], 0.5)),
        most_ms=milliseconds(max(one.took for one in later)),
        first_cpu_ms=round(1000 * first.cpu, 1),
        cpu_ms=milliseconds(percentile([one.cpu for one in later], 0.5)),
        kilobytes=round(first.size / 1000, 1),
    )


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept-encoding: identity\r\n\r\n".encode())
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    length = next(int(line.partition(":")[2]) for line in headers if line.lower().startswith("content-length:"))
    body = await reader.readexactly(length)
    if " 200 " not in f"{status} ":
        raise BenchFailed(f"GET {path} answered {status}: {body[:200]!r}")
    return length


async def measure(place: stand.Stand, sizes: Sequence[int], *, days: int, tasks: int, rounds: int) -> list[CallTime]:
    """Fill and ask, at each of these numbers of jobs."""
    url = place.fresh()
    await stand.prepare(url)
    store = connect(url)
    await store.open()
    times: list[CallTime] = []
    try:
        fill = Fill(store)
        await fill.history(days, tasks)
        old = ""
        for jobs in sizes:
            began, before = time.monotonic(), fill.count
            await fill.reach(jobs)
            say(f"{jobs:,} jobs: {(fill.count - before) / (time.monotonic() - began):,.0f} per second")
            sample = await fill.sample()
            old = old or sample["done"]
            times += await ask(url, place.engine, jobs, {**sample, "old": old}, rounds)
    finally:
        await store.close()
    return times


@click.command("pages", cls=Answering)
@click.option(
    "--store", default="sqlite", show_default=True, help="sqlite, postgres, redis, or the URL of an empty store."
)
@click.option("--jobs", type=click.IntRange(20_000), default=10_000_000, show_default=True)
@click.option("--days", type=click.IntRange(0, 30), default=30, show_default=True, help="Days of history.")
@click.option("--tasks", type=click.IntRange(1, 30), default=10, show_default=True, help="Tasks that history has.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="How often each call is made.")
@click.option("--json", "as_json", is_flag=True)
def main(store: str, jobs: int, days: int, tasks: int, rounds: int, as_json: bool) -> None:
    """Measure the calls of the dashboard over a long history."""
    with stand.open_stand(store, STANDS) as place:
        times = run(measure(place, (jobs // 10, jobs), days=days, tasks=tasks, rounds=rounds))
    if as_json:
        emit(times)
    else:
        few = {entry.call: entry for entry in times if entry.jobs != jobs}
        rows = [
            (
                entry.page,
                entry.call if len(entry.call) < 60 else f"{entry.call[:59]}…",
                few[entry.call].p50_ms if entry.call in few else "",
                entry.first_ms,
                entry.p50_ms,
                entry.most_ms,
                entry.first_cpu_ms,
                entry.cpu_ms,
                entry.kilobytes,
            )
            for entry in times
            if entry.jobs == jobs
        ]
        headers = ("page", "call", f"p50 ms at {jobs // 10:,}", "first", "p50", "most", "first cpu", "cpu", "kB")
        table(headers, rows, right=(2, 3, 4, 5, 6, 7, 8))
    if slow := [entry.call for entry in times if max(entry.first_ms, entry.p50_ms or 0) > MOST]:
        say(f"slower than {MOST:.0f} ms: {', '.join(dict.fromkeys(slow))}")
        sys.exit(SLOW)


if __name__ == "__main__":
    main.main(prog_name="python -m benchmarks.pages")
