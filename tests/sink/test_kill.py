"""The rows are exact after the sink was killed at any moment and started again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from conformance.kit import put, settle_all, take
from headrace.model.job import JobId
from headrace.store.contract import Store
from sink.kit import Table, holding

ENDS = 6500
"""More than one insert takes."""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def end_jobs(store: Store, count: int) -> list[JobId]:
    ids = await put(store, count)
    for _ in range(0, count, 500):
        await settle_all(store, await take(store, 500))
    return ids


@asynccontextmanager
async def sink(store_url: str, url: str, *options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "sink", *options),
        env={**env, "HEADRACE_URL": store_url, "HEADRACE_HISTORY_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    ("answers", "request_bytes"),
    [
        pytest.param(0, -1, id="before the table"),
        pytest.param(2, -1, id="after the first insert"),
        pytest.param(3, -1, id="after the second insert"),
        pytest.param(-1, 700_000, id="within the first insert"),
    ],
)
async def test_rows_are_exact_after_a_kill(
    real_store: Store, store_url: str, table: Table, answers: int, request_bytes: int
):
    """The answers are the refusal of the first insert, that of the new table, and those of the inserts."""
    ids = await end_jobs(real_store, ENDS)
    async with holding(table.server) as proxy:
        proxy.answers, proxy.bytes = answers, request_bytes
        async with sink(store_url, table.server.url(port=proxy.port, table=table.name)) as process:
            async with asyncio.timeout(120):
                await proxy.held.wait()
            process.kill()
            await process.wait()
        ids += await end_jobs(real_store, 500)
        proxy.answers = proxy.bytes = -1
        async with sink(store_url, table.server.url(port=proxy.port, table=table.name), "--once") as process:
            _, said = await process.communicate()
            assert process.returncode == 0, said.decode()
    assert table.ids() == sorted(ids)
    assert table.count() >= len(ids)
