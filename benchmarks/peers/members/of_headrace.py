"""headrace: `app` is for workers; as a program, with `sync` or `async`, it produces. Jobs of sync code are plain functions."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from benchmarks.peers.members.body import body
from benchmarks.peers.members.producer import aserve, serve
from headrace import Headrace

app = Headrace(os.environ["PEERS_URL"])


@app.task(name="sync")
def in_thread(text: str) -> None:
    body(text)


@app.task(name="async")
async def in_loop(text: str) -> None:
    body(text)


async def _produce() -> None:
    async def bulk(texts: Sequence[str]) -> None:
        await app.aenqueue_many(in_loop.job(text) for text in texts)

    async with app:
        await aserve(in_loop.aenqueue, bulk)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    if sys.argv[1] == "async":
        asyncio.run(_produce())
    else:
        serve(in_thread.enqueue, lambda texts: app.enqueue_many(in_thread.job(text) for text in texts))
