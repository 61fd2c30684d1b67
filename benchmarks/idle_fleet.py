"""What an idle fleet asks of its store: `python -m benchmarks.idle_fleet --store redis|postgres|sqlite`.

Workers that have nothing to do run in a few processes, each with a store object of its own: first as many as do the upkeep of a
fleet, then `--workers`. For each fleet the calls per second are printed: on Redis the commands of clients, by name, and on PostgreSQL the
transactions, with those of the server itself. The difference between the fleets is what each further worker adds. SQLite has no
server, so the processor time of the workers is printed for each store.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from benchmarks.stand import STANDS
from headrace import Headrace
from headrace.bench.stand import open_stand, prepare
from headrace.model.lease import UPKEEP_PLACES
from headrace.settings import Settings
from headrace.store.postgres.driver import asyncpg

_COMMAND = re.compile(rb'^\+[\d.]+ \[\d+ (?!lua)[^]]+\] "(\w+)"', re.MULTILINE)
"""A line of MONITOR about a command that a client sent. Those of scripts name `lua` in place of an address."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="redis", help="redis, postgres or sqlite (made for the run)")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=20.0, help="seconds before the measurement")
    parser.add_argument("--work", nargs=2, metavar=("URL", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        url, workers = options.work
        asyncio.run(_work(url, int(workers), options.queues))
        return
    fleets: dict[int, float] = {}
    with open_stand(options.store, STANDS) as stand:
        for workers in (UPKEEP_PLACES, options.workers):
            url = stand.fresh()
            asyncio.run(prepare(url))
            fleets[workers] = _measure(url, workers, options)
    (few, less), (many, more) = fleets.items()
    if many > few:
        print(f"each further worker: {(more - less) / (many - few):.3f} calls/s")


async def _work(url: str, workers: int, queues: int) -> None:
    """Idle workers until stdin ends. Answers each line with the processor time of this process."""
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            app = Headrace(settings=Settings(url=url))

            @app.task(name="idle.never")
            async def never() -> None: ...

            await stack.enter_async_context(app.worker(queues=[f"idle-{number}" for number in range(queues)]))
        while await lines.readline():
            print(time.process_time(), flush=True)


def _measure(url: str, workers: int, options: argparse.Namespace) -> float:
    """Calls per second of so many workers."""
    count = min(options.processes, workers)
    sizes = [workers // count + (number < workers % count) for number in range(count)]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.idle_fleet", "--queues", str(options.queues), "--work", url, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for size in sizes
    ]
    try:
        _processor_time(children)  # all of them have started
        time.sleep(options.warm)
        spent = -_processor_time(children)
        calls = _COUNTERS[urlsplit(url).scheme](url, options.seconds)
        spent += _processor_time(children)
    finally:
        for child in children:
            child.communicate()
    total: float = calls.total() / options.seconds
    print(
        f"{workers} workers: {total:.2f} calls/s, processor time of the workers {spent / options.seconds:.2%} of one core"
    )
    print(
        "  " + ", ".join(f"{name} {number / options.seconds:.2f}" for name, number in calls.most_common(8)), flush=True
    )
    return total


def _processor_time(children: list[subprocess.Popen[str]]) -> float:
    total = 0.0
    for child in children:
        assert child.stdin is not None  # both are pipes
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        total += float(child.stdout.readline())
    return total


def _commands(url: str, seconds: float) -> Counter[str]:
    """The commands of clients that a Redis server gets in this time."""
    place = urlsplit(url)
    until = time.monotonic() + seconds
    said = b""
    with socket.create_connection((place.hostname, place.port)) as wire:
        wire.sendall(f"AUTH {place.password}\r\nMONITOR\r\n".encode())
        while (left := until - time.monotonic()) > 0:
            wire.settimeout(left)
            try:
                said += wire.recv(1 << 20)
            except TimeoutError:
                break
    return Counter(name.decode().lower() for name in _COMMAND.findall(said))


def _transactions(url: str, seconds: float) -> Counter[str]:
    """The transactions of a PostgreSQL database in this time."""
    before = asyncio.run(_count(url))
    time.sleep(seconds)
    return Counter(transactions=asyncio.run(_count(url)) - before)


async def _count(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        statement = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
        return int(await connection.fetchval(statement))
    finally:
        await connection.close()


def _none(_url: str, seconds: float) -> Counter[str]:
    time.sleep(seconds)
    return Counter()


_COUNTERS = {"redis": _commands, "postgresql": _transactions, "postgres": _transactions, "sqlite": _none}


if __name__ == "__main__":
    main()
