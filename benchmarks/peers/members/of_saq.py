"""SAQ: `settings` is for its worker; as a program it produces. It has no bulk call, so a bulk order makes many calls at a time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.peers.members.body import body, fail_once
from benchmarks.peers.members.producer import aonce, aserve

_peer: Any = import_module("saq")
queue: Any = _peer.Queue.from_url(os.environ["PEERS_URL"])
AT_A_TIME = 100
UNKEPT = -1
"""Ended jobs are removed, as those of the others are."""


async def job(context: object, *, text: str) -> None:
    del context
    body(text)


async def failing(context: object, *, text: str) -> None:
    del context
    fail_once(text)


settings: dict[str, Any] = {"queue": queue, "functions": [job, failing]}


async def _bulk(name: str, texts: Sequence[str], **options: int) -> None:
    for first in range(0, len(texts), AT_A_TIME):
        some = texts[first : first + AT_A_TIME]
        await asyncio.gather(*(queue.enqueue(name, text=text, ttl=UNKEPT, **options) for text in some))


async def _produce(words: Sequence[str]) -> None:
    async def enqueue(text: str) -> None:
        await queue.enqueue("job", text=text, ttl=UNKEPT)

    await queue.connect()
    if words[0] == "once":
        await aonce(enqueue, words[1:])
        await queue.disconnect()
    else:
        await aserve(enqueue, lambda texts: _bulk("job", texts), lambda texts: _bulk("failing", texts, retries=2))


if __name__ == "__main__":
    asyncio.run(_produce(sys.argv[1:]))
