"""A script that enqueues and ends: whatever ends it, its jobs wake a worker that waits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap

import pytest

from conformance.kit import claim, put
from headrace.store import connect
from headrace.store.contract import Store

LONG = 60
"""Seconds that no test waits: a hint ends every wait."""

APP = """
    import asyncio, os, signal, time
    from headrace import Headrace

    app = Headrace({url!r})

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

"""
PLAIN = "add.enqueue(1, 2)"
OWN_LOOP = """
    async def main():
        await add.aenqueue(1, 2)

    asyncio.run(main())
"""
INTERRUPTED = """
    add.enqueue(1, 2)
    signal.raise_signal(signal.SIGINT)
"""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def script(url: str, body: str) -> int:
    code = textwrap.dedent(APP).format(url=url) + textwrap.dedent(body)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=environ, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def take(store: Store) -> None:
    """Claim one job; only a hint ends the wait for it."""
    while await claim(store) is None:
        assert await store.wait(["default"], LONG), "no hint came"


async def asleep(store: Store, url: str) -> asyncio.Task[None]:
    """A sleeper that has heard another store before, so that its ear is open."""
    # On a busy machine the first claim below may find the job without a wait, and only a wait opens the ear.
    while not getattr(store, "hears", True):
        await store.wait(["default"], 0.01)
    sleeper = asyncio.create_task(take(store))
    other = connect(url)
    await other.open()
    await put(other)
    await sleeper
    await other.close()
    return asyncio.create_task(take(store))


@pytest.mark.parametrize(
    ("body", "code"), [(PLAIN, 0), (OWN_LOOP, 0), (INTERRUPTED, -signal.SIGINT)], ids=["plain", "own loop", "interrupt"]
)
async def test_the_last_job_of_a_script_wakes_a_worker(real_store: Store, store_url: str, body: str, code: int):
    sleeper = await asleep(real_store, store_url)
    assert await script(store_url, body) == code
    await sleeper


async def test_a_store_whose_tasks_were_cancelled_says_what_is_unsaid_when_it_closes(real_store: Store, store_url: str):
    """As at the end of `asyncio.run`, which cancels every task before it closes stores."""
    sleeper = await asleep(real_store, store_url)
    other = connect(store_url)
    before = asyncio.all_tasks()
    await other.open()
    await put(other)
    for task in asyncio.all_tasks() - before - {sleeper}:
        task.cancel()
    await other.close()
    await sleeper
