"""One enqueue from sync code, beside one raw write and beside peers: p50 and p99 of interleaved rounds.

    python benchmarks/sync_enqueue.py --store redis --python after=.venv/bin/python --python before=/other/.venv/bin/python \
        --peers /peers/bin/python

Each contestant is a process of its own, and the rounds of all contestants take turns, so a busy machine hits all of them
alike. `--python` names interpreters that have headrace installed, `--peers` one that has redis, psycopg, huey and pgqueuer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

# Python searches the folder of a script first, and `http` in this folder would hide the standard library's `http`. The
# throw-away servers are in the folder of the tests.
sys.path[0] = str(Path(__file__).parents[1] / "tests")

TEXT = "x" * 100
PEERS = {"redis": ("raw", "huey"), "postgres": ("raw", "pgqueuer"), "sqlite": ("raw", "huey")}


# ── contestants: each answers with a function that enqueues one job ──────────


def headrace(store: str, url: str) -> Callable[[], object]:
    del store
    from headrace import Headrace

    logging.disable(logging.WARNING)
    app = Headrace(url)

    @app.task(name="noop")
    def noop(text: str) -> None: ...

    return lambda: noop.enqueue(TEXT)


def raw(store: str, url: str) -> Callable[[], object]:
    """The plainest durable write of one value by a plain client."""
    value = TEXT.encode()
    if store == "redis":
        redis: Any = import_module("redis")

        client = redis.Redis.from_url(url)
        return lambda: client.lpush("raw", value)
    if store == "postgres":
        psycopg: Any = import_module("psycopg")
        connection = psycopg.connect(url, autocommit=True)
        connection.execute("create table if not exists raw (id bigserial primary key, payload bytea)")
        return lambda: connection.execute("insert into raw (payload) values (%b)", (value,), prepare=True)
    import sqlite3

    file = sqlite3.connect(url.removeprefix("sqlite:///") + ".raw", isolation_level=None)
    file.execute("pragma journal_mode = wal")
    file.execute("pragma synchronous = full")
    file.execute("create table if not exists raw (id integer primary key, payload blob)")
    return lambda: file.execute("insert into raw (payload) values (?)", (value,))


def huey(store: str, url: str) -> Callable[[], object]:
    peer: Any = import_module("huey")

    if store == "redis":
        queue: Any = peer.RedisHuey("bench", url=url, results=False)
    else:
        queue = peer.SqliteHuey("bench", filename=url.removeprefix("sqlite:///") + ".huey", fsync=True, results=False)

    def noop(text: str) -> None: ...

    task = queue.task()(noop)
    return lambda: task(TEXT)


def pgqueuer(store: str, url: str) -> Callable[[], object]:
    del store
    drivers: Any = import_module("pgqueuer.db")
    peer: Any = import_module("pgqueuer.queries")
    psycopg: Any = import_module("psycopg")
    asyncpg: Any = import_module("asyncpg")

    async def install() -> None:
        connection = await asyncpg.connect(url)
        with contextlib.suppress(Exception):  # it is there
            await peer.Queries(drivers.AsyncpgDriver(connection)).install()
        await connection.close()

    asyncio.run(install())
    queries = peer.SyncQueries(drivers.SyncPsycopgDriver(psycopg.connect(url, autocommit=True)))
    value = TEXT.encode()
    return lambda: queries.enqueue("noop", value)


def contest(name: str, store: str, url: str) -> None:
    """Read a number, enqueue so many jobs, print how long each took; until the input ends."""
    enqueue = {"headrace": headrace, "raw": raw, "huey": huey, "pgqueuer": pgqueuer}[name](store, url)
    for _ in range(100):
        enqueue()
    print("ready", flush=True)
    for line in sys.stdin:
        samples: list[float] = []
        for _ in range(int(line)):
            began = time.perf_counter()
            enqueue()
            samples.append(time.perf_counter() - began)
        print(json.dumps(samples), flush=True)


# ── the driver ───────────────────────────────────────────────────────────────


@contextlib.contextmanager
def place(store: str, folder: str | None) -> Generator[Callable[[], str]]:
    """Answers with a fresh place for each contestant, on one server."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(dir=folder) as own:
            numbers = iter(range(100))
            yield lambda: f"sqlite:///{own}/{next(numbers)}.db"
    elif store == "redis":
        from servers.redis import RedisServer

        with RedisServer.start("redis") as redis:
            databases = iter(range(16))
            yield lambda: redis.url().rsplit("/", 1)[0] + f"/{next(databases)}"
    else:
        from headrace.store import connect
        from servers.postgres import PostgresServer

        async def migrate(url: str) -> None:
            opened = connect(url)
            await opened.migrate()
            await opened.close()

        with PostgresServer.start() as postgres:

            def fresh() -> str:
                url = postgres.create_database()
                asyncio.run(migrate(url))
                return url

            yield fresh


def drive(options: argparse.Namespace) -> None:
    own = {label: path for label, _, path in (each.partition("=") for each in options.python)}
    runs = [(label, path, "headrace") for label, path in own.items()]
    if options.peers:
        runs += [(name, options.peers, name) for name in PEERS[options.store]]
    samples: dict[str, list[list[float]]] = {label: [] for label, _, _ in runs}
    with place(options.store, options.folder) as fresh, contextlib.ExitStack() as stack:
        members: dict[str, subprocess.Popen[str]] = {}
        for label, path, name in runs:
            command = [
                path,
                str(Path(__file__).resolve()),
                "--contest",
                name,
                "--store",
                options.store,
                "--url",
                fresh(),
            ]
            member = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(end, member)
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n", label
            members[label] = member
        for _ in range(options.rounds):
            for label, member in members.items():
                assert member.stdin is not None
                assert member.stdout is not None
                member.stdin.write(f"{options.calls}\n")
                member.stdin.flush()
                samples[label].append(json.loads(member.stdout.readline()))
    report(samples)


def end(member: subprocess.Popen[str]) -> None:
    member.communicate()
    member.wait()


def report(samples: dict[str, list[list[float]]]) -> None:
    """Percentiles over all calls, and the spread of the rounds' medians."""
    base = None
    for label, rounds in samples.items():
        every = sorted(sample for one in rounds for sample in one)
        medians = sorted(statistics.median(one) for one in rounds)
        p10, p50, p99 = (1000 * every[int(len(every) * share)] for share in (0.10, 0.50, 0.99))
        best = 1000 * medians[0]
        base = base or p50
        print(
            f"{label:10} {len(every):6} calls  p10 {p10:.3f}  p50 {p50:.3f}  p99 {p99:.3f} ms"
            f"  quietest round {best:.3f}  p50 / first {p50 / base:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", choices=PEERS, required=True)
    parser.add_argument("--python", action="append", default=[], help="LABEL=INTERPRETER with headrace")
    parser.add_argument("--peers", help="interpreter with redis, psycopg, huey and pgqueuer")
    parser.add_argument("--folder", help="where SQLite files are made: a disk, for memory syncs nothing")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=50, help="in each round")
    parser.add_argument("--contest", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contest:
        contest(options.contest, options.store, options.url)
    else:
        drive(options)


if __name__ == "__main__":
    main()
