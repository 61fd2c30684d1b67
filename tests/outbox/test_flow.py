"""Limits and unique locks travel through an outbox with their jobs."""

import sqlite3
from contextlib import closing
from pathlib import Path

from headrace import Headrace, Limit, Unique


async def test_limits_and_locks_arrive_with_the_job(tmp_path: Path):
    business = str(tmp_path / "business.db")
    app = Headrace("memory://")
    outbox = app.outbox(f"sqlite:///{business}")
    unique = Unique(key=lambda shop, _: shop, within="10m", on_conflict="replace")

    @app.task(name="sync", limits=[Limit("shop", concurrency=1, key=lambda shop, _: shop)], unique=unique)
    async def sync(shop: str, version: int) -> int:
        return version

    await outbox.prepare()
    with closing(sqlite3.connect(business)) as database:
        with database:
            first, last, other = app.enqueue_many(
                [sync.job("acme", 1), sync.job("acme", 2), sync.job("zeta", 3)], tx=database
            )
        async with app.worker(concurrency=5):
            assert await last.aresult(timeout=60) == 2
            assert await other.aresult(timeout=60) == 3
        assert (await last.astatus()).limits == ("shop:acme",)
        # The earlier one of the same call gave way: it was never made.
        assert await app.aget(first.id) is None
    await app.aclose()
