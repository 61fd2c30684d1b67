"""Another process on the same file: `python child.py URL what`; says `ready` when it is, then does it."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import DONE
from headrace.store.sqlite.store import SqliteStore

WORKER = new_worker_id()


def say(word: object) -> None:
    print(word, flush=True)


def jobs(count: int) -> Batch:
    return Batch(new_batch(), [NewJob("t", b"{}", Lane())] * count)


async def migrate(store: SqliteStore) -> None:
    """All begin together, when the parent closes their input."""
    say("ready")
    sys.stdin.read()
    say(",".join(await store.migrate()))


async def enqueue(store: SqliteStore) -> None:
    """One job whenever the parent writes a line."""
    await store.open()
    say("ready")
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        await store.enqueue(jobs(1))
        say("enqueued")


async def wait(store: SqliteStore) -> None:
    await store.open()
    waiting = asyncio.ensure_future(store.wait(("default",), 60))
    await asyncio.sleep(0)
    await store.stats()
    say("ready")
    say(await waiting)


async def work(store: SqliteStore) -> None:
    """Claim and settle until nothing is left; says every job."""
    await store.open()
    say("ready")
    sys.stdin.read()
    while (lease := await store.claim(Ask(WORKER, ("default",), 7, timedelta(seconds=15), new_token()))) is not None:
        await store.settle(lease.token, [(at, DONE) for at in range(len(lease.jobs))])
        for job in lease.jobs:
            say(job.id)


async def hammer(store: SqliteStore) -> None:
    """Enqueue, claim and settle for ever; says every batch once it is acknowledged."""
    await store.open()
    say("ready")
    while True:
        batch = jobs(50)
        await store.enqueue(batch)
        say(batch.id)
        lease = await store.claim(Ask(WORKER, ("default",), 30, timedelta(seconds=15), new_token()))
        if lease is not None:
            await store.settle(lease.token, [(at, DONE) for at in range(0, len(lease.jobs), 2)])


async def main(url: str, what: str) -> None:
    store = SqliteStore(url)
    try:
        await {"migrate": migrate, "enqueue": enqueue, "wait": wait, "work": work, "hammer": hammer}[what](store)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
