"""headrace: `app` is for workers; as a program it produces, as async code does or as sync code. Jobs of sync code are plain functions."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from benchmarks.peers.members.body import body, fail_once
from benchmarks.peers.members.producer import aonce, aserve, once, serve
from headrace import Headrace, Retry

app = Headrace(os.environ["PEERS_URL"], max_payload=2 * 1024 * 1024)
AT_ONCE = Retry(base="0s")


@app.task(name="sync")
def in_thread(text: str) -> None:
    body(text)


@app.task(name="async")
async def in_loop(text: str) -> None:
    body(text)


@app.task(name="sync.fails", retry=AT_ONCE)
def fails_in_thread(text: str) -> None:
    fail_once(text)


@app.task(name="async.fails", retry=AT_ONCE)
async def fails_in_loop(text: str) -> None:
    fail_once(text)


async def _produce() -> None:
    async def bulk(texts: Sequence[str]) -> None:
        await app.aenqueue_many(in_loop.job(text) for text in texts)

    async def failing(texts: Sequence[str]) -> None:
        await app.aenqueue_many(fails_in_loop.job(text) for text in texts)

    async with app:
        await aserve(in_loop.aenqueue, bulk, failing)


def _produce_sync() -> None:
    def bulk(texts: Sequence[str]) -> None:
        app.enqueue_many(in_thread.job(text) for text in texts)

    def failing(texts: Sequence[str]) -> None:
        app.enqueue_many(fails_in_thread.job(text) for text in texts)

    serve(in_thread.enqueue, bulk, failing)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    match sys.argv[1:]:
        case ["async", "once", *words]:
            asyncio.run(aonce(in_loop.aenqueue, words))
        case ["async"]:
            asyncio.run(_produce())
        case ["sync", "once", *words]:
            once(in_thread.enqueue, words)
        case _:
            _produce_sync()
