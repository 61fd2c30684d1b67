"""SAQ: `settings` is for its worker; as a program it produces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.peers.members.body import body
from benchmarks.peers.members.producer import aserve

_peer: Any = import_module("saq")
queue: Any = _peer.Queue.from_url(os.environ["PEERS_URL"])


async def job(context: object, *, text: str) -> None:
    del context
    body(text)


settings: dict[str, Any] = {"queue": queue, "functions": [job]}


async def _produce() -> None:
    async def enqueue(text: str) -> None:
        await queue.enqueue("job", text=text)

    async def bulk(texts: Sequence[str]) -> None:
        for text in texts:
            await enqueue(text)

    await queue.connect()
    await aserve(enqueue, bulk)


if __name__ == "__main__":
    asyncio.run(_produce())
